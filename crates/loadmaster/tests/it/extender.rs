//! `loadmaster run` with the embedded API server and an HTTP extender whose response depends on the pod's name.

#![expect(
    clippy::disallowed_methods,
    reason = "the extender runs in a thread, and one of its responses is slow"
)]
#![expect(
    clippy::disallowed_types,
    reason = "the received requests are shared with the extender's thread"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect;
use loadmaster_apiserver::http::serve;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_apiserver::{ApiServer, Options};
use loadmaster_client::{ApiClient, Method};
use serde_json::{Value, json};

use crate::process::{Folder, client, cluster, send};

/// Received requests: path and body.
type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// Starts an extender; returns its URL and the received requests.
fn extender() -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Requests::default();
    let shared = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let shared = shared.clone();
            std::thread::spawn(
                move || while answer(stream.as_ref().unwrap(), &shared).is_some() {},
            );
        }
    });
    (url, requests)
}

/// Answers one request; `None` at the end of the connection.
fn answer(mut stream: &TcpStream, requests: &Requests) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let header = line.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    let pod = body["Pod"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    requests.lock().unwrap().push((path.clone(), body));
    let (status, body) = match (&*path, &*pod) {
        ("/x/filter", "slow") => {
            std::thread::sleep(Duration::from_secs(2));
            (200, json!({}))
        }
        ("/x/filter", "broken") => (500, json!({})),
        ("/x/filter", "nowhere") => (
            200,
            json!({"NodeNames": [], "FailedNodes": {"a": "full"}, "FailedAndUnresolvableNodes": {"b": "no disk"}}),
        ),
        ("/x/filter", _) => (
            200,
            json!({"nodes": {"items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "c"}}]}}),
        ),
        ("/x/score", _) => (200, json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 9}])),
        _ => (404, json!({})),
    };
    let body = body.to_string();
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}").ok()
}

async fn api_server(folder: &Folder) -> ApiClient {
    let server = ApiServer::new(Options {
        clock: Arc::new(jiff::Timestamp::now),
        seed: 1,
        limits: StoreLimits::default(),
        also_serve: Vec::new(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "it", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "it", "user": "me"}}],
    });
    let text = text.to_string();
    std::fs::write(folder.path("kubeconfig"), text).unwrap();
    tokio::spawn(serve(listener, server.unwrap(), None));
    client(&cluster(folder.path("kubeconfig"), "tester").await)
}

async fn create(api: &ApiClient, path: &str, object: Value) {
    let (status, made) = send(api, Method::POST, path, &object).await;
    assert_eq!(status, 201, "{made}");
}

/// Waits until a pod is bound or rejected; returns the node or the reason.
async fn outcome(api: &ApiClient, pod: &str) -> String {
    for _ in 0..1_500 {
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        let (_, pod) = send(api, Method::GET, &path, &Value::Null).await;
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            return format!("on {node}");
        }
        let condition = &pod["status"]["conditions"][0];
        if let (Some(reason), Some(message)) =
            (condition["reason"].as_str(), condition["message"].as_str())
        {
            return format!("{reason}: {message}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    "no result".to_owned()
}

#[test]
fn a_scheduler_with_an_extender() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let (url, requests) = extender();
        let folder = Folder::new();
        let api = api_server(&folder).await;
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": folder.path("kubeconfig")},
            "leaderElection": {"leaderElect": false},
            "extenders": [{
                "urlPrefix": format!("{url}/x/"), "filterVerb": "filter", "prioritizeVerb": "score", "weight": 5,
                "httpTimeout": "300ms",
            }],
        });
        std::fs::write(folder.path("config.json"), config.to_string()).unwrap();
        for name in ["a", "b", "c"] {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "annotations": {"only": "extenders read this"}},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
            });
            create(&api, "/api/v1/nodes", node).await;
        }
        let run = ["run", "--config", "config.json", "--secure-port", "0"];
        let _running = folder.start(&run, "log");
        let mut outcomes = Vec::new();
        for name in ["web", "nowhere", "broken", "slow"] {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "annotations": {"note": "whole"}},
                "spec": {"containers": [{"name": "main", "image": "x"}]},
            });
            create(&api, "/api/v1/namespaces/default/pods", pod).await;
            outcomes.push(format!("{name}: {}", outcome(&api, name).await.replace(&url, "URL")));
        }
        let log = folder.read("log");
        assert!(!outcomes[0].ends_with("no result"), "{log}");
        expect![[r#"
            web: on c
            nowhere: Unschedulable: 0/3 nodes are available: 1 full, 1 no disk. preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.
            broken: SchedulerError: failed filter with extender at URL URL/x/filter, code 500
            slow: SchedulerError: Post "URL/x/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"#]]
        .assert_eq(&outcomes.join("\n"));
        let requests = requests.lock().unwrap();
        let about = |path: &str| &requests.iter().find(|(known, _)| known == path).unwrap().1;
        let filter = about("/x/filter");
        // Full objects, without fields that client-go omits.
        let pod = &filter["Pod"];
        assert_eq!(pod["metadata"]["annotations"], json!({"note": "whole"}));
        assert_eq!(pod["spec"]["containers"][0]["image"], "x");
        assert_eq!((&pod["kind"], &pod["metadata"]["managedFields"]), (&Value::Null, &Value::Null));
        assert_eq!(filter["NodeNames"], Value::Null);
        let nodes = filter["Nodes"]["items"].as_array().unwrap();
        assert_eq!(nodes.len(), 3);
        let annotations = json!({"only": "extenders read this"});
        assert!(nodes.iter().all(|node| node["metadata"]["annotations"] == annotations));
        assert_eq!(about("/x/score")["Nodes"]["items"].as_array().unwrap().len(), 2);
    });
}
