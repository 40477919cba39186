//! Reads a cluster from a scripted HTTP server on this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]
#![expect(clippy::disallowed_methods, reason = "the server needs a thread")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use expect_test::{Expect, expect};
use loadmaster_client::{ClusterObjects, ClusterReadOptions, KubeconfigSource, read_cluster};
use loadmaster_stdx::ErrorChain;

/// Status and body of the response for a path with its query.
type Replies = fn(&str) -> (u16, String);

/// Serves on a free port as long as the test runs, one request per connection.
fn serve(replies: Replies) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = reply_to(&stream.unwrap(), replies);
        }
    });
    port
}

fn reply_to(mut stream: &TcpStream, replies: Replies) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap()?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = replies(path);
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A kubeconfig file for a server, removed at the end.
struct Kubeconfig(PathBuf);

impl Kubeconfig {
    fn new(server: &str) -> Kubeconfig {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let name = format!("loadmaster-client-{}-{nth}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             clusters: [{{name: it, cluster: {{server: {server:?}}}}}]\n\
             users: [{{name: me, user: {{token: secret}}}}]\n\
             contexts: [{{name: here, context: {{cluster: it, user: me, namespace: shop}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        Kubeconfig(path)
    }

    fn options(&self) -> KubeconfigSource {
        KubeconfigSource { kubeconfig: Some(self.0.clone()), context: None }
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[track_caller]
fn check(replies: Replies, want: &Expect) {
    let server = format!("http://127.0.0.1:{}", serve(replies));
    let kubeconfig = Kubeconfig::new(&server);
    let text = match read_cluster(&kubeconfig.options(), &ClusterReadOptions::default()) {
        Ok(reading) => describe(&reading),
        Err(error) => format!("{}\n", ErrorChain(&error)),
    };
    want.assert_eq(&text.replace(&server, "SERVER"));
}

fn describe(reading: &ClusterObjects) -> String {
    let snapshot = &reading.snapshot;
    let nodes: Vec<&str> = snapshot.nodes.iter().map(|node| node.name()).collect();
    let pods: Vec<String> = snapshot.pods.iter().map(|pod| pod.full_name()).collect();
    let mut text = format!("namespace {}\nnodes {nodes:?}\npods {pods:?}\n", reading.namespace);
    text.push_str(&format!("services {}\n", snapshot.services.len()));
    for warning in &reading.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn list(kind: &str, after: &str, items: &[&str]) -> (u16, String) {
    let version = match kind {
        "ReplicaSet" | "StatefulSet" => "apps/v1",
        "PodDisruptionBudget" => "policy/v1",
        "PriorityClass" => "scheduling.k8s.io/v1",
        _ => "v1",
    };
    let items = items.join(",");
    let text = format!(
        r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{{"resourceVersion":"1","continue":"{after}"}},"items":[{items}]}}"#
    );
    (200, text)
}

fn refuse(status: u16, message: &str) -> (u16, String) {
    let text = format!(
        r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","code":{status},"message":"{message}"}}"#
    );
    (status, text)
}

fn complete_cluster(path: &str) -> (u16, String) {
    let (path, query) = path.split_once('?').unwrap();
    match (path, query.contains("continue=next%2Fpage")) {
        ("/api/v1/nodes", _) => list("Node", "", &[r#"{"metadata":{"name":"a"}}"#]),
        ("/api/v1/pods", false) if query.contains("fieldSelector=status.phase%21%3DSucceeded") => {
            list(
                "Pod",
                "next/page",
                &[r#"{"metadata":{"name":"web","namespace":"shop"},"spec":{"nodeName":"a"}}"#],
            )
        }
        ("/api/v1/pods", true) => list(
            "Pod",
            "",
            &[
                r#"{"metadata":{"name":"lost","namespace":"shop"},"spec":{"nodeName":"gone"}}"#,
                r#"{"metadata":{"name":"new","namespace":"shop"}}"#,
            ],
        ),
        ("/api/v1/services", _) => {
            list("Service", "", &[r#"{"metadata":{"name":"web","namespace":"shop"}}"#])
        }
        ("/api/v1/namespaces", _) => list("Namespace", "", &[]),
        ("/api/v1/replicationcontrollers", _) => list("ReplicationController", "", &[]),
        ("/apis/apps/v1/replicasets", _) => list("ReplicaSet", "", &[]),
        ("/apis/apps/v1/statefulsets", _) => list("StatefulSet", "", &[]),
        ("/apis/policy/v1/poddisruptionbudgets", _) => list("PodDisruptionBudget", "", &[]),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", _) => list("PriorityClass", "", &[]),
        (other, _) => refuse(404, &format!("no {other}")),
    }
}

#[test]
fn pages_are_concatenated() {
    check(
        complete_cluster,
        &expect![[r#"
            namespace shop
            nodes ["a"]
            pods ["shop/web", "shop/new"]
            services 1
            warning: 1 pod is on nodes that no longer exist, and ignored
        "#]],
    );
}

#[test]
fn a_missing_optional_kind_is_a_warning() {
    fn replies(path: &str) -> (u16, String) {
        match path.split_once('?').unwrap().0 {
            "/api/v1/services" => refuse(403, "services is forbidden"),
            "/apis/policy/v1/poddisruptionbudgets" => refuse(404, "not found"),
            _ => complete_cluster(path),
        }
    }
    check(
        replies,
        &expect![[r#"
            namespace shop
            nodes ["a"]
            pods ["shop/web", "shop/new"]
            services 0
            warning: not allowed to list services (missing rule: {apiGroups: [""], resources: [services], verbs: [list]}): default spreading of pods over zones may be scored differently
            warning: this cluster has no poddisruptionbudgets: preemption ignores PodDisruptionBudgets
            warning: 1 pod is on nodes that no longer exist, and ignored
        "#]],
    );
}

#[test]
fn missing_nodes_or_pods_are_an_error() {
    check(
        |_| refuse(403, "pods is forbidden: User me cannot list"),
        &expect![[r#"
        not allowed to list pods, which are required: pods is forbidden: User me cannot list; missing rule: {apiGroups: [""], resources: [pods], verbs: [list]}
    "#]],
    );
    check(
        |_| refuse(401, "Unauthorized"),
        &expect![[r#"
        SERVER does not accept these credentials: Unauthorized
    "#]],
    );
    check(
        |_| (502, "<html>Bad\n  Gateway</html>".to_owned()),
        &expect![[r#"
        listing pods from SERVER: unexpected status 502: <html>Bad Gateway</html>
    "#]],
    );
    check(
        |_| (200, "not JSON".to_owned()),
        &expect![[r#"
            SERVER/api/v1/pods:1:1: expected a map
        "#]],
    );
}

#[test]
fn an_unreachable_cluster_or_missing_kubeconfig_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    drop(listener);
    let kubeconfig = Kubeconfig::new(&server);
    let unreachable =
        read_cluster(&kubeconfig.options(), &ClusterReadOptions::default()).unwrap_err();
    let text = ErrorChain(&unreachable).to_string().replace(&server, "SERVER");
    assert!(text.starts_with("listing pods from SERVER: "), "{text}");

    let no_file =
        KubeconfigSource { kubeconfig: Some(PathBuf::from("/does/not/exist")), context: None };
    let text = ErrorChain(&read_cluster(&no_file, &ClusterReadOptions::default()).unwrap_err())
        .to_string();
    assert!(text.starts_with("finding a cluster: ") && text.contains("/does/not/exist"), "{text}");

    let context = Some("other".to_owned());
    let no_context = KubeconfigSource { context, ..kubeconfig.options() };
    let text = ErrorChain(&read_cluster(&no_context, &ClusterReadOptions::default()).unwrap_err())
        .to_string();
    expect!["finding a cluster: failed to load current context: other"].assert_eq(&text);
}
