//! The embedded API server as a process: its data folder, and its faults with those who live through them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadmaster_api::proto::Object;
use loadmaster_client::watch::{Change, Follow, Following, Form, follow};
use loadmaster_client::{Kind, Lane, Lanes, Method, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::process::{Folder, ask, cluster, lane, until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let folder = Folder::new();
    let port = free_port();
    let start = |log: &str| {
        let flags = ["apiserver", "--data-dir", "data", "--kubeconfig", "kubeconfig", "--port"];
        let api = folder.start(&[&flags[..], &[&port]].concat(), log);
        until("the API server", || folder.read(log).contains("try:").then_some(()));
        api
    };
    let api = start("first.log");
    // Made once: who has it can go on after the restart.
    std::fs::copy(folder.path("kubeconfig"), folder.path("old-kubeconfig")).unwrap();
    let old = || folder.path("old-kubeconfig");
    let (first, last) = runtime().block_on(async {
        let lane = lane(&cluster(old(), "tester").await);
        let mut answers = Vec::new();
        for name in ["a", "b"] {
            let map = json!({"metadata": {"name": name}, "data": {"k": name}});
            let (code, answer) = ask(&lane, Method::POST, MAPS, &map).await;
            assert_eq!(code, 201, "{answer}");
            answers.push(answer);
        }
        let (code, _) = ask(&lane, Method::DELETE, &format!("{MAPS}/a"), &Value::Null).await;
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
        let lane = lane(&cluster(old(), "tester").await);
        let (_, list) = ask(&lane, Method::GET, MAPS, &Value::Null).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        let (code, found) = ask(&lane, Method::GET, &format!("{MAPS}/b"), &Value::Null).await;
        assert_eq!((code, &found), (200, &last), "the same to the last field");
        // The history is there, too.
        let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
        let watch = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={revision}");
        let reply = lane.call(&Request::get(watch)).await.unwrap();
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let events: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        let told = |event: &Value| (event["type"].clone(), event["object"]["data"]["k"].clone());
        let told: Vec<_> = events.iter().map(told).collect();
        assert_eq!(told, [("ADDED".into(), "b".into()), ("DELETED".into(), "a".into())]);
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

/// Everything that can go wrong goes wrong, for all but the one who looks on.
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

/// What an informer believes: node by name and uid.
#[derive(Default)]
struct Belief {
    pods: BTreeMap<(String, String), String>,
}

impl Belief {
    fn hear(&mut self, change: Change) {
        match change {
            Change::Set { object: Object::Pod(pod), .. } => {
                let (name, uid) = (pod.metadata.name.to_string(), pod.metadata.uid.to_string());
                let node = pod.spec.node_name.to_string();
                let before = self.pods.insert((name, uid), node.clone()).unwrap_or_default();
                assert!(before.is_empty() || before == node, "a pod moved from {before} to {node}");
            }
            Change::Gone { name, uid, .. } => {
                let gone = self.pods.remove(&(name.to_string(), uid.to_string()));
                assert!(gone.is_some(), "{name} went twice");
            }
            _ => {}
        }
    }
}

async fn truth(lane: &Lane) -> BTreeMap<(String, String), String> {
    let (code, list) = ask(lane, Method::GET, PODS, &Value::Null).await;
    assert_eq!(code, 200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["items"].as_array().unwrap().iter();
    pods.map(|pod| {
        let metadata = &pod["metadata"];
        ((text(&metadata["name"]), text(&metadata["uid"])), text(&pod["spec"]["nodeName"]))
    })
    .collect()
}

/// An informer and what it was told.
struct Informer {
    following: Following,
    changes: mpsc::Receiver<Change>,
    belief: Belief,
}

impl Informer {
    fn start(lanes: &Lanes, seed: u64) -> Informer {
        let kinds = vec![Kind::Pod];
        let what = Follow {
            kinds,
            streams: seed.is_multiple_of(2),
            form: Form::Protobuf,
            keep_raw: false,
            needs: loadmaster_api::Needs::default(),
            seed,
        };
        let (out, changes) = mpsc::channel(1_000);
        let following = follow(&lanes.watch, &what, &out);
        Informer { following, changes, belief: Belief::default() }
    }

    /// Takes in what has come.
    fn listen(&mut self) -> &Belief {
        while let Ok(change) = self.changes.try_recv() {
            self.belief.hear(change);
        }
        &self.belief
    }
}

/// Creates pods a few at a time, deletes some, and waits until all are bound and all informers know.
async fn churn(kubeconfig: PathBuf) {
    let onlooker = lane(&cluster(kubeconfig.clone(), "onlooker").await);
    let lanes = Lanes::new(&cluster(kubeconfig, "follower").await);
    let mut informers: Vec<Informer> = (0..4).map(|seed| Informer::start(&lanes, seed)).collect();
    let node = |name: &str| {
        json!({"metadata": {"name": name},
            "status": {"allocatable": {"cpu": "100", "memory": "8Gi", "pods": "110"}}})
    };
    for name in ["a", "b", "c"] {
        let (code, _) = ask(&onlooker, Method::POST, "/api/v1/nodes", &node(name)).await;
        assert_eq!(code, 201);
    }
    for nth in 0..N_PODS {
        let pod = json!({"metadata": {"name": format!("p{nth}")}, "spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
        let (code, answer) = ask(&onlooker, Method::POST, PODS, &pod).await;
        assert_eq!(code, 201, "{answer}");
        if nth % 3 == 0 {
            let path = format!("{PODS}/p{}?gracePeriodSeconds=0", nth / 2);
            ask(&onlooker, Method::DELETE, &path, &Value::Null).await;
        }
        informers.iter_mut().for_each(|it| {
            it.listen();
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = tokio::time::Instant::now();
    loop {
        let truth = truth(&onlooker).await;
        let n_pending = truth.values().filter(|node| node.is_empty()).count();
        let n_behind =
            informers.iter_mut().filter_map(|it| (it.listen().pods != truth).then_some(())).count();
        if n_pending + n_behind == 0 {
            break;
        }
        let is_late = began.elapsed() > Duration::from_secs(90);
        assert!(!is_late, "{n_pending} pods are not bound, {n_behind} informers are behind");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let counts = informers.iter().flat_map(|it| it.following.counts());
    let n_failures: u64 = counts.map(|(_, counts)| counts.n_failures).sum();
    assert!(n_failures > 0, "nothing went wrong");
}

#[test]
fn a_scheduler_and_informers_live_through_all_faults() {
    let folder = Folder::new().with("faults.yaml", FAULTS);
    let flags = ["apiserver", "--kubeconfig", "kubeconfig", "--faults", "faults.yaml"];
    let _api = folder.start(&[&flags[..], &["--fault-seed", "1"]].concat(), "api.log");
    until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let port = format!("--secure-port={}", free_port());
    let flags = ["run", "--kubeconfig=kubeconfig", "--leader-elect=false", "--cert-dir=certs"];
    let _scheduler =
        folder.start(&[&flags[..], &["--bind-address=127.0.0.1", &port]].concat(), "run.log");
    runtime().block_on(churn(folder.path("kubeconfig")));
}

#[test]
fn faults_that_cannot_be_are_told() {
    let folder = Folder::new();
    let text = folder.run(&["apiserver", "--faults", "drop=2"]);
    let want =
        "2> error: --faults drop=2: rule 1: drop is 2, and a probability is from 0 to 1\nexit 2\n";
    assert_eq!(text, want);
    let text = folder.run(&["apiserver", "--faults", "nowhere.yaml"]);
    assert!(text.starts_with("2> error: --faults nowhere.yaml: No such file"), "{text}");
}
