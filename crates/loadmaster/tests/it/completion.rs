//! Shell completion, as the script of `loadmaster completion bash` asks for it; and manual pages.

use serde_json::json;

use crate::process::{Client, Folder, wait_until};

fn pod(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[test]
fn commands_files_and_pods_of_files_are_completed() {
    let mut other = pod("db-1");
    other["metadata"]["namespace"] = "shop".into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod("web-1"), pod("web-2"), pod("a"), other]});
    let folder = Folder::new().with("cluster.json", &list.to_string()).with("other.yaml", "");
    #[track_caller]
    fn check(folder: &Folder, words: &[&str], want: &str) {
        assert_eq!(folder.complete(words), want, "{words:?}");
    }
    check(&folder, &["expl"], "explain");
    check(&folder, &["explain", "--pend"], "--pending");
    check(&folder, &["run", "--leader-elect-ren"], "--leader-elect-renew-deadline");
    check(&folder, &["explain", "--from", "clu"], "cluster.json");
    check(&folder, &["config", "check", "oth"], "other.yaml");
    let from = ["explain", "--from", "cluster.json"];
    check(&folder, &[&from[..], &["we"]].concat(), "web-1 web-2");
    check(&folder, &[&from[..], &["shop/"]].concat(), "shop/db-1");
    check(&folder, &[&from[..], &["-n", "shop", "d"]].concat(), "db-1");
    check(&folder, &["explain", "--from", "other.yaml", "we"], "");
    check(&folder, &["explain", "--kubeconfig", "none", "we"], "");
}

#[test]
fn pods_of_a_cluster_are_completed() {
    let folder = Folder::new();
    let _apiserver = folder.start(&["apiserver", "--kubeconfig", "kubeconfig"], "api.log");
    wait_until("the API server", || folder.read("api.log").contains("try:").then_some(()));
    let client = Client::new(folder.path("kubeconfig"));
    client.create("/api/v1/namespaces/default/pods", &pod("web-1"));
    client.create("/api/v1/namespaces/kube-system/pods", &pod("dns-1"));
    let words = ["explain", "--kubeconfig", "kubeconfig"];
    let complete = |more: &[&str]| folder.complete(&[&words[..], more].concat());
    assert_eq!(complete(&["we"]), "web-1");
    assert_eq!(complete(&["kube-system/"]), "kube-system/dns-1");
    assert_eq!(complete(&["-n", "kube-system", "d"]), "dns-1");
}

#[test]
fn the_script_calls_the_program_and_manual_pages_are_written() {
    let folder = Folder::new();
    let script = folder.run(&["completion", "bash"]);
    assert!(script.contains("LOADMASTER_COMPLETE=\"bash\""), "{script}");
    assert!(script.contains(env!("CARGO_BIN_EXE_loadmaster")), "{script}");
    assert_eq!(folder.run(&["man", "man1"]), "exit 0\n");
    for page in ["loadmaster.1", "loadmaster-explain.1", "loadmaster-config-check.1"] {
        assert!(folder.read(&format!("man1/{page}")).contains(".TH"), "{page}");
    }
    assert!(!folder.run(&["--help"]).contains("manual pages"));
}
