//! `loadmaster crds` and `loadmaster controllers`, with the embedded API server as a separate process.

use serde_json::{Value, json};

use crate::process::{Client, Folder, wait_until};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUPS: &str = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups";
const QUOTAS: &str = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/elasticquotas";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/sched-plugins-controllers";

fn create_definitions(folder: &Folder, client: &Client) {
    let printed = folder.run(&["crds"]);
    let documents: Vec<Value> = printed
        .split("---\n")
        .map(|document| {
            // The last line is the exit code.
            serde_saphyr::from_str(document.strip_suffix("exit 0\n").unwrap_or(document)).unwrap()
        })
        .collect();
    assert_eq!(documents.len(), 2, "{printed}");
    documents.iter().for_each(|definition| drop(client.create(DEFINITIONS, definition)));
}

fn start_api_server(folder: &Folder) -> crate::process::Running {
    let server = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    server
}

#[test]
fn objects_as_users_of_scheduler_plugins_have_them_are_valid() {
    let folder = Folder::new();
    let _api = start_api_server(&folder);
    let client = Client::new(folder.path("kubeconfig"));
    create_definitions(&folder, &client);
    let group = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "nginx"},
        "spec": {"scheduleTimeoutSeconds": 10, "minMember": 3,
            "minResources": {"cpu": "3", "memory": "300Mi", "nvidia.com/gpu": 3}}});
    let quota = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "quota1"},
        "spec": {"max": {"cpu": 20, "memory": "40Gi", "nvidia.com/gpu": 2}, "min": {"cpu": "10"}}});
    for (path, name, object) in [(GROUPS, "nginx", &group), (QUOTAS, "quota1", &quota)] {
        let stored = wait_until("the definition", || {
            client.get(path).0.eq(&200).then(|| client.create(path, object));
            let (status, stored) = client.get(&format!("{path}/{name}"));
            (status == 200).then_some(stored)
        });
        assert_eq!(stored["spec"], object["spec"]);
    }
}

#[test]
fn the_controller_writes_the_status_while_it_leads() {
    let folder = Folder::new();
    let _api = start_api_server(&folder);
    let client = Client::new(folder.path("kubeconfig"));
    create_definitions(&folder, &client);
    let flags = [
        "controllers",
        "--kubeconfig",
        "kubeconfig",
        "--metricsAddr=0",
        "--probeAddr=0",
        "--enableLeaderElection",
        "--qps=50",
    ];
    let running = folder.start(&flags, "controllers.log");
    let group = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {"minMember": 1}});
    wait_until("the definition", || (client.get(GROUPS).0 == 200).then_some(()));
    client.create(GROUPS, &group);
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"scheduling.x-k8s.io/pod-group": "g"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}})
    };
    client.create(PODS, &pod("a"));
    let phase = || client.get(&format!("{GROUPS}/g")).1["status"]["phase"].clone();
    wait_until("the phase", || (phase() == "Scheduling").then_some(()));
    let quota = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "q"}, "spec": {"min": {"cpu": "1"}}});
    wait_until("the definition", || (client.get(QUOTAS).0 == 200).then_some(()));
    client.create(QUOTAS, &quota);
    let used = || client.get(&format!("{QUOTAS}/q")).1["status"]["used"].clone();
    wait_until("the use", || (used() == json!({"cpu": "0"})).then_some(()));
    let holder = client.get(LEASE).1["spec"]["holderIdentity"].clone();
    assert!(holder.as_str().is_some_and(|holder| !holder.is_empty()), "{holder}");
    drop(running);
}

/// In one process, while the scheduler leads; the definitions are installed when it runs already.
#[test]
fn the_controllers_run_beside_the_scheduler() {
    let config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                  clientConnection: {kubeconfig: kubeconfig}\nleaderElection: {leaderElect: true}\n";
    let folder = Folder::new().with("config", config);
    let _api = start_api_server(&folder);
    let client = Client::new(folder.path("kubeconfig"));
    let flags = ["run", "--config=config", "--secure-port=0", "--with-controllers"];
    let leader = folder.start(&flags, "leader.log");
    let is_leading = |log| folder.read(log).contains("Successfully acquired lease").then_some(());
    wait_until("a leader", || is_leading("leader.log"));
    let standby = folder.start(&flags, "standby.log");
    create_definitions(&folder, &client);
    wait_until("the definition", || (client.get(GROUPS).0 == 200).then_some(()));
    let create_group = |name: &str| {
        client.create(
            GROUPS,
            &json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
                "metadata": {"name": name}, "spec": {"minMember": 1}}),
        );
        let phase = || client.get(&format!("{GROUPS}/{name}")).1["status"]["phase"].clone();
        wait_until("the phase", || (phase() == "Pending").then_some(()));
    };
    create_group("first");
    // It ends the controllers before it releases the lease, and the next leader runs its own.
    assert_eq!(leader.terminate(), Some(0));
    let log = folder.read("leader.log");
    assert!(!log.contains("A service"), "{log}");
    wait_until("the other leader", || is_leading("standby.log"));
    create_group("second");
    assert_eq!(standby.terminate(), Some(0));
}

#[test]
fn invalid_flags_are_usage_errors() {
    let folder = Folder::new();
    let output = folder.run(&["controllers", "--kubeconfig", "none", "--metricsAddr", "here"]);
    assert!(output.contains("expected ADDRESS:PORT, :PORT or 0"), "{output}");
    assert!(output.ends_with("exit 2\n"), "{output}");
}
