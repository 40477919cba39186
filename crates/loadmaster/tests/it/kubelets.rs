//! Fake kubelets as a process, beside the embedded API server as another.

use loadmaster_client::{Cluster, ClusterOptions, Lane, Method, Request, lane::LaneLimits};
use serde_json::{Value, json};

use crate::process::{Folder, until};

#[test]
fn bad_files_are_told_with_their_places() {
    #[track_caller]
    fn check(flag: &str, text: &str, want: &str) {
        let folder = Folder::new().with("f.yaml", text);
        let flags = ["kubelets", "--kubeconfig", "none", "--nodes", "1", flag, "f.yaml"];
        assert_eq!(folder.run(&flags), format!("2> error: {want}\nexit 2\n"));
    }
    check(
        "--node-template",
        "apiVersion: v1\nkind: Node\nstatus:\n  capacity: {cpu: lots}\n",
        "f.yaml:4:19: status.capacity.cpu: invalid quantity \"lots\": expected a number with an optional suffix such as m, Ki, M or e3",
    );
    check(
        "--stages",
        "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: a}\nspec:\n  resourceRef: {kind: Pod}\n  next:\n    statusTemplate: '{{ Fly }}'\n",
        "f.yaml:7:21: spec.next.statusTemplate: line 1: there is no function \"Fly\"",
    );
}

const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn ask(lane: &Lane, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::with(method, path, body);
    let runtime = tokio::runtime::Handle::current();
    let reply = tokio::task::block_in_place(|| runtime.block_on(lane.call(&request))).unwrap();
    (reply.status, serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
}

#[test]
fn nodes_come_and_pods_run() {
    let folder = Folder::new();
    let _api = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
    until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let flags = ["kubelets", "--kubeconfig", "kubeconfig", "--nodes", "2"];
    let _kubelets = folder.start(&flags, "kubelets.log");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ClusterOptions {
            kubeconfig: Some(folder.path("kubeconfig")),
            context: None,
            master: None,
            user_agent: "tester".to_owned(),
        };
        let cluster = Cluster::find(&options).await.unwrap();
        let lane = cluster.lane("test", LaneLimits { http2_connections_max: 2, http1_connections_max: 2 });
        let get = |path: &str| ask(&lane, Method::GET, path, &Value::Null);
        let is_ready = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
        };
        until("two nodes that are ready", || {
            let (_, nodes) = get("/api/v1/nodes");
            let nodes = nodes["items"].as_array().unwrap();
            (nodes.iter().filter(|it| is_ready(it)).count() == 2).then_some(())
        });
        until("a lease", || (get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1").0 == 200).then_some(()));
        let pod = json!({"metadata": {"name": "a", "annotations": {"loadmaster.io/start-seconds": "0"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(ask(&lane, Method::POST, PODS, &pod).0, 201);
        let path = format!("{PODS}/a");
        until("a running pod", || (get(&path).1["status"]["phase"] == "Running").then_some(()));
        assert_eq!(ask(&lane, Method::DELETE, &path, &Value::Null).0, 200);
        until("the end of the pod", || (get(&path).0 == 404).then_some(()));
    });
}
