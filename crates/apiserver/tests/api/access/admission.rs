//! What a request is completed with or refused for once it is allowed.

use super::*;

#[test]
fn limit_ranges() {
    let cluster = cluster();
    cluster.make(
        "/api/v1/namespaces/default/limitranges",
        json!({"metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"},
            "defaultRequest": {"cpu": "250m"}}]}}),
    );
    let pods = "/api/v1/namespaces/default/pods";
    let made = cluster.make(pods, pod("a", json!({})));
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "250m"}})
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    cluster.check(&User::admin(), Method::POST, pods, pod("b", json!({"limits": {"cpu": "2"}})), &expect![[r#"403 Forbidden: pods "b" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#]]);
    let off = Admission { limit_ranger: false, ..Admission::default() };
    let off = with(Setup { admission: off, ..Setup::default() });
    off.make(
        "/api/v1/namespaces/default/limitranges",
        json!({"metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}),
    );
    off.make(pods, pod("b", json!({"limits": {"cpu": "2"}})));
}

#[test]
fn admission_that_needs_controllers() {
    let admission = Admission { service_account: true, taint_nodes: true, ..Admission::default() };
    let cluster = with(Setup { admission, ..Setup::default() });
    let pods = "/api/v1/namespaces/default/pods";
    let mut lost = pod("a", json!({}));
    lost["spec"]["serviceAccountName"] = "no".into();
    cluster.check(&User::admin(), Method::POST, pods, lost, &expect![[r#"403 Forbidden: pods "a" is forbidden: error looking up service account default/no: serviceaccount "no" not found"#]]);
    let made = cluster.make(pods, pod("b", json!({})));
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let node = cluster.make("/api/v1/nodes", json!({"metadata": {"name": "n"}}));
    assert_eq!(
        node["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );
}
