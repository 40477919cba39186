//! A running scheduler to ask: the API server, `loadmaster run` and `loadmaster explain --server` are separate processes.

use serde_json::json;

use crate::process::{Client, Folder, Running, free_port, wait_until};

pub struct TestCluster {
    /// Has the `kubeconfig` of an administrator, and the scheduler's log `run.log`.
    pub folder: Folder,
    pub scheduler: Running,
    _apiserver: Running,
    /// The scheduler's URL.
    pub server: String,
}

impl TestCluster {
    /// Starts an API server, creates objects, and starts the scheduler.
    pub fn start(create_objects: impl FnOnce(&Client)) -> TestCluster {
        let folder = Folder::new();
        let apiserver = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
        wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
        let client = Client::new(folder.path("kubeconfig"));
        create_objects(&client);
        create_reader(&folder, &client);
        let port = free_port();
        let flags =
            ["run", "--kubeconfig=kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1"];
        let port_flag = format!("--secure-port={port}");
        let own = [&port_flag, "--cert-dir=certs", "-v=3"];
        let scheduler = folder.start(&[&flags[..], &own].concat(), "run.log");
        let server = format!("https://127.0.0.1:{port}");
        TestCluster { folder, scheduler, _apiserver: apiserver, server }
    }

    /// Runs `explain --server` as the reader.
    pub fn explain(&self, args: &[&str]) -> String {
        let who = ["--certificate-authority", "certs/kube-scheduler.crt", "--token-file", "token"];
        let server = ["explain", "--server", &self.server];
        self.folder.run(&[&server[..], &who, args].concat())
    }

    /// Waits until the first attempt of the pod has failed, and its backoff has ended.
    pub fn wait_for_attempt(&self, pod: &str) {
        wait_until(&format!("a scheduling attempt of {pod}, and the end of its backoff"), || {
            let text = self.explain(&[pod, "--last"]);
            (text.contains("attempt 1 ended") && !text.contains("in backoff until")).then_some(())
        });
    }
}

/// Creates a service account that may read explanations, and writes its token into the file `token`.
fn create_reader(folder: &Folder, client: &Client) {
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.create(accounts, &account);
    let rules = json!([{"nonResourceURLs": ["/explain/*"], "verbs": ["get"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    client.create(
        &format!("{rbac}/clusterroles"),
        &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "explain-reader"}, "rules": rules}),
    );
    client.create(
        &format!("{rbac}/clusterrolebindings"),
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "explain-reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "explain-reader"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "reader"}],
        }),
    );
    let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let token = client.create(&format!("{accounts}/reader/token"), &wanted);
    std::fs::write(folder.path("token"), token["status"]["token"].as_str().unwrap()).unwrap();
}
