//! The embedded API server as a process: its data folder, and fault injection with informers and a scheduler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadmaster_api::proto::Object;
use loadmaster_client::reflector::{
    ObjectFormat, ReflectorEvent, ReflectorOptions, Reflectors, start_reflectors,
};
use loadmaster_client::{ApiClient, ApiClients, Kind, Method, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::process::{Folder, client, cluster, free_port, send, wait_until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn acknowledged_writes_survive_a_kill() {
    let folder = Folder::new();
    let port = free_port().to_string();
    let start = |log: &str| {
        let flags = ["apiserver", "--data-dir", "data", "--kubeconfig", "kubeconfig", "--port"];
        let api = folder.start(&[&flags[..], &[&port]].concat(), log);
        wait_until("the API server", || folder.read(log).contains("try:").then_some(()));
        api
    };
    let api = start("first.log");
    // The kubeconfig stays valid after the restart.
    std::fs::copy(folder.path("kubeconfig"), folder.path("old-kubeconfig")).unwrap();
    let old = || folder.path("old-kubeconfig");
    let (first, last) = runtime().block_on(async {
        let client = client(&cluster(old(), "tester").await);
        let mut answers = Vec::new();
        for name in ["a", "b"] {
            let map = json!({"metadata": {"name": name}, "data": {"k": name}});
            let (code, answer) = send(&client, Method::POST, MAPS, &map).await;
            assert_eq!(code, 201, "{answer}");
            answers.push(answer);
        }
        let (code, _) = send(&client, Method::DELETE, &format!("{MAPS}/a"), &Value::Null).await;
        assert_eq!(code, 200);
        (answers.remove(0), answers.remove(0))
    });
    let second = folder.run(&["apiserver", "--data-dir", "data"]);
    let want = "2> error: --data-dir: data is in use by another server\nexit 2\n";
    assert_eq!(second, want);
    // Dropping it kills it at once.
    drop(api);
    let api = start("second.log");
    runtime().block_on(async {
        let client = client(&cluster(old(), "tester").await);
        let (_, list) = send(&client, Method::GET, MAPS, &Value::Null).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        let (code, found) = send(&client, Method::GET, &format!("{MAPS}/b"), &Value::Null).await;
        assert_eq!((code, &found), (200, &last), "all fields are equal");
        // The watch history is restored as well.
        let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
        let watch = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={revision}");
        let reply = client.call(&Request::get(watch)).await.unwrap();
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let events: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        let received =
            |event: &Value| (event["type"].clone(), event["object"]["data"]["k"].clone());
        let received: Vec<_> = events.iter().map(received).collect();
        assert_eq!(received, [("ADDED".into(), "b".into()), ("DELETED".into(), "a".into())]);
    });
    drop(api);
    damage(&folder.path("data"));
    let text = folder.run(&["apiserver", "--data-dir", "data"]);
    assert!(
        text.starts_with("2> error: --data-dir: data/log-00000000000000000001, byte "),
        "{text}"
    );
    assert!(text.ends_with("exit 2\n"), "{text}");
}

fn damage(data: &Path) {
    let path = data.join("log-00000000000000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// All kinds of faults, for all clients except the one that creates objects and compares.
const FAULTS: &str = "
rules:
- verbs: [list, watch]
  userAgents: [loadmaster, follower]
  latency: 0.2
  latencyMs: 20
  throttle: 0.05
  error: 0.1
  drop: 0.1
  cut: 0.3
  expire: 0.3
  late: 0.2
  lateMs: 50
- userAgents: [loadmaster]
  latency: 0.2
  latencyMs: 20
  throttle: 0.05
  error: 0.05
  conflict: 0.05
  drop: 0.05
  lose: 0.1
  cut: 0.05
";

const N_PODS: usize = 60;
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The cache of an informer: node by name and uid.
#[derive(Default)]
struct InformerCache {
    pods: BTreeMap<(String, String), String>,
}

impl InformerCache {
    fn handle_event(&mut self, change: ReflectorEvent) {
        match change {
            ReflectorEvent::Upsert { object: Object::Pod(pod), .. } => {
                let (name, uid) = (pod.metadata.name.to_string(), pod.metadata.uid.to_string());
                let node = pod.spec.node_name.to_string();
                let before = self.pods.insert((name, uid), node.clone()).unwrap_or_default();
                assert!(before.is_empty() || before == node, "a pod moved from {before} to {node}");
            }
            ReflectorEvent::Delete { name, uid, .. } => {
                let removed = self.pods.remove(&(name.to_string(), uid.to_string()));
                assert!(removed.is_some(), "{name} was deleted twice");
            }
            _ => {}
        }
    }
}

async fn pods_on_server(client: &ApiClient) -> BTreeMap<(String, String), String> {
    let (code, list) = send(client, Method::GET, PODS, &Value::Null).await;
    assert_eq!(code, 200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["items"].as_array().unwrap().iter();
    pods.map(|pod| {
        let metadata = &pod["metadata"];
        ((text(&metadata["name"]), text(&metadata["uid"])), text(&pod["spec"]["nodeName"]))
    })
    .collect()
}

/// An informer with its cache.
struct Informer {
    reflectors: Reflectors,
    changes: mpsc::Receiver<ReflectorEvent>,
    cache: InformerCache,
}

impl Informer {
    fn start(clients: &ApiClients, seed: u64) -> Informer {
        let kinds = vec![Kind::Pod];
        let what = ReflectorOptions {
            kinds,
            use_watch_list: seed.is_multiple_of(2),
            format: ObjectFormat::Protobuf,
            keep_raw: false,
            needs: loadmaster_api::ExtraFieldsByKind::default(),
            seed,
        };
        let (out, changes) = mpsc::channel(1_000);
        let reflectors = start_reflectors(&clients.watch, &what, &out);
        Informer { reflectors, changes, cache: InformerCache::default() }
    }

    /// Applies the received events.
    fn receive_events(&mut self) -> &InformerCache {
        while let Ok(change) = self.changes.try_recv() {
            self.cache.handle_event(change);
        }
        &self.cache
    }
}

/// Creates and deletes pods, and waits until all are bound and all informers are in sync. Faults are random: more informers start until one has
/// met a fault.
async fn churn(kubeconfig: PathBuf) {
    let observer = client(&cluster(kubeconfig.clone(), "observer").await);
    let clients = ApiClients::new(&cluster(kubeconfig, "follower").await);
    let mut informers: Vec<Informer> = (0..4).map(|seed| Informer::start(&clients, seed)).collect();
    let node = |name: &str| {
        json!({"metadata": {"name": name},
            "status": {"allocatable": {"cpu": "100", "memory": "8Gi", "pods": "110"}}})
    };
    for name in ["a", "b", "c"] {
        let (code, _) = send(&observer, Method::POST, "/api/v1/nodes", &node(name)).await;
        assert_eq!(code, 201);
    }
    for nth in 0..N_PODS {
        let pod = json!({"metadata": {"name": format!("p{nth}")}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
        let (code, answer) = send(&observer, Method::POST, PODS, &pod).await;
        assert_eq!(code, 201, "{answer}");
        if nth % 3 == 0 {
            let path = format!("{PODS}/p{}?gracePeriodSeconds=0", nth / 2);
            send(&observer, Method::DELETE, &path, &Value::Null).await;
        }
        informers.iter_mut().for_each(|it| {
            it.receive_events();
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = tokio::time::Instant::now();
    loop {
        let expected = pods_on_server(&observer).await;
        let n_pending = expected.values().filter(|node| node.is_empty()).count();
        let n_behind = informers
            .iter_mut()
            .filter_map(|it| (it.receive_events().pods != expected).then_some(()))
            .count();
        let stats = informers.iter().flat_map(|it| it.reflectors.stats());
        let n_failures: u64 = stats.map(|(_, stats)| stats.n_failures).sum();
        if n_pending + n_behind == 0 {
            if n_failures > 0 {
                break;
            }
            informers.push(Informer::start(&clients, informers.len() as u64));
        }
        let is_late = began.elapsed() > Duration::from_secs(90);
        assert!(
            !is_late,
            "{n_pending} pods are not bound, {n_behind} informers are behind, {n_failures} failures"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn a_scheduler_and_informers_converge_under_fault_injection() {
    let folder = Folder::new().with("faults.yaml", FAULTS);
    let flags = ["apiserver", "--kubeconfig", "kubeconfig", "--faults", "faults.yaml"];
    let _api = folder.start(&[&flags[..], &["--fault-seed", "1"]].concat(), "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let port = format!("--secure-port={}", free_port());
    let flags = ["run", "--kubeconfig=kubeconfig", "--leader-elect=false", "--cert-dir=certs"];
    let _scheduler =
        folder.start(&[&flags[..], &["--bind-address=127.0.0.1", &port]].concat(), "run.log");
    runtime().block_on(churn(folder.path("kubeconfig")));
}

#[test]
fn invalid_faults_are_rejected() {
    let folder = Folder::new();
    let text = folder.run(&["apiserver", "--faults", "drop=2"]);
    let want = "2> error: --faults drop=2: rule 1: drop is 2, but a probability must be from 0 to 1\nexit 2\n";
    assert_eq!(text, want);
    let text = folder.run(&["apiserver", "--faults", "nowhere.yaml"]);
    assert!(text.starts_with("2> error: --faults nowhere.yaml: No such file"), "{text}");
}
