//! `loadmaster explain` with a live cluster, which is a small HTTP server in this process.

#![expect(clippy::disallowed_methods, reason = "the server needs a thread")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use expect_test::expect;

use crate::process::Folder;

const NODES: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":[
{"metadata":{"name":"a"},"status":{"allocatable":{"cpu":"2","memory":"8Gi","pods":"10"}}}]}"#;

/// Two pages. The first pod of each is at the same position in its page.
const PODS: [&str; 2] = [
    r#"{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"2"},"items":[
{"metadata":{"name":"old","namespace":"shop"},"spec":{"nodeName":"a","containers":[
 {"name":"main","resources":{"requests":{"cpu":"1500m"}}}]},"status":{"phase":"Running"}}]}"#,
    r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[
{"metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[
 {"name":"main","resources":{"requests":{"cpu":"1"}}}]},"status":{"phase":"Pending"}},
{"metadata":{"name":"db","namespace":"shop"},"spec":{"containers":[{"name":"main"}],
 "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]},"status":{"phase":"Pending"}}]}"#,
];

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap()?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match path {
        path if path.starts_with("/api/v1/nodes") => (200, NODES),
        path if path.starts_with("/api/v1/pods") => {
            (200, PODS[usize::from(path.contains("continue=2"))])
        }
        path if path.starts_with("/apis/apps") => (403, r#"{"message":"forbidden"}"#),
        _ => (404, "{}"),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A folder with the kubeconfig of a cluster that serves few kinds.
fn cluster() -> Folder {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = answer(&stream.unwrap());
        }
    });
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: it, cluster: {{server: {server:?}}}}}]\n\
         users: [{{name: me, user: {{token: secret}}}}]\n\
         contexts: [{{name: here, context: {{cluster: it, user: me, namespace: shop}}}}]\n"
    );
    Folder::new().with("kubeconfig", &kubeconfig)
}

#[test]
fn a_live_cluster_is_explained() {
    let text = cluster().run(&["explain", "web", "--kubeconfig", "kubeconfig"]);
    expect![[r#"
        shop/web fits none of 1 node
          0/1 nodes are available: 1 Insufficient cpu.
          profile default-scheduler
          NodeResourcesFit: needs=1 cpu, too much for 1 of 1 nodes; a is nearest, with
            500m of 2 free

          NODES  REJECTED BY       PREEMPTION     REASON
              1  NodeResourcesFit  does not help  Insufficient cpu
                 a: needs=1 cpu, 500m of 2 free

          preemption: 0/1 nodes are available: 1 No preemption victims found for
          incoming pod.

          would fit after one of these changes:
          - lower its request of cpu from 1 to 500m (fits on a)
          - add a node like a
        2> warning: this cluster has no namespaces: affinity terms with a namespaceSelector match no namespace
        2> warning: this cluster has no services: default spreading of pods over zones may be scored differently
        2> warning: this cluster has no replicationcontrollers: default spreading of pods over zones may be scored differently
        2> warning: not allowed to list replicasets (missing rule: {apiGroups: ["apps"], resources: [replicasets], verbs: [list]}): default spreading of pods over zones may be scored differently
        2> warning: not allowed to list statefulsets (missing rule: {apiGroups: ["apps"], resources: [statefulsets], verbs: [list]}): default spreading of pods over zones may be scored differently
        2> warning: this cluster has no poddisruptionbudgets: preemption ignores PodDisruptionBudgets
        2> warning: this cluster has no priorityclasses: priorities are read from the pods only
        exit 1
    "#]].assert_eq(&text);
}

#[test]
fn missing_kinds_around_volumes_are_notes_of_a_pod_with_volumes() {
    let text = cluster().run(&["explain", "db", "--kubeconfig", "kubeconfig"]);
    let notes: Vec<&str> = text.lines().filter(|line| line.starts_with("2> note")).collect();
    assert_eq!(
        notes,
        [
            "2> note: this cluster has no volumeattachments: plugins that watch them see none",
            "2> note: this cluster has no persistentvolumeclaims, persistentvolumes, csidrivers, csinodes, csistoragecapacities, storageclasses: a scheduler does not schedule pods before it has read them"
        ]
    );
}

#[test]
fn a_missing_kubeconfig_is_an_error() {
    let text = Folder::new().run(&["explain", "web", "--kubeconfig", "nowhere"]);
    assert!(text.starts_with("2> error: finding a cluster: "), "{text}");
    assert!(text.ends_with("exit 2\n"), "{text}");
}
