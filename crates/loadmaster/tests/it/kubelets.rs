//! Simulated kubelets and the embedded API server as separate processes.

use serde_json::{Value, json};

use crate::process::{Client, Folder, wait_until};

#[test]
fn invalid_files_are_rejected_with_a_position() {
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

#[test]
fn nodes_become_ready_and_pods_run() {
    let folder = Folder::new();
    let _api = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let flags = ["kubelets", "--kubeconfig", "kubeconfig", "--nodes", "2"];
    let _kubelets = folder.start(&flags, "kubelets.log");
    let client = Client::new(folder.path("kubeconfig"));
    let is_ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    wait_until("two ready nodes", || {
        let (_, nodes) = client.get("/api/v1/nodes");
        let nodes = nodes["items"].as_array().unwrap();
        (nodes.iter().filter(|it| is_ready(it)).count() == 2).then_some(())
    });
    wait_until("a lease", || {
        (client.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1").0
            == 200)
            .then_some(())
    });
    let pod = json!({"metadata": {"name": "a", "annotations": {"loadmaster.io/start-seconds": "0"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]}});
    client.create(PODS, &pod);
    let path = format!("{PODS}/a");
    wait_until("a running pod", || {
        (client.get(&path).1["status"]["phase"] == "Running").then_some(())
    });
    assert_eq!(client.delete(&path), 200);
    wait_until("the deletion of the pod", || (client.get(&path).0 == 404).then_some(()));
}
