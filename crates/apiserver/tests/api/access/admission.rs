//! Admission plugins.

use super::super::testkit::{MERGE, call_with};
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
    let off = AdmissionPlugins { limit_ranger: false, ..AdmissionPlugins::default() };
    let off = with(ClusterOptions { admission: off, ..ClusterOptions::default() });
    off.make(
        "/api/v1/namespaces/default/limitranges",
        json!({"metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}),
    );
    off.make(pods, pod("b", json!({"limits": {"cpu": "2"}})));
}

#[test]
fn admission_plugins_that_need_controllers() {
    let admission = AdmissionPlugins {
        service_account: true,
        taint_nodes: true,
        ..AdmissionPlugins::default()
    };
    let cluster = with(ClusterOptions { admission, ..ClusterOptions::default() });
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

#[test]
fn limits_do_not_apply_to_unchanged_requests() {
    let cluster = cluster();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    cluster
        .make(claims, json!({"metadata": {"name": "c", "finalizers": ["x.io/y"]}, "spec": spec}));
    cluster.make(
        "/api/v1/namespaces/default/limitranges",
        json!({"metadata": {"name": "l"},
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}}]}}),
    );
    let path = format!("{claims}/c");
    let change =
        |path: &str, value: Value| call_with(&cluster.server, Method::PATCH, path, MERGE, value);
    assert_eq!(change(&path, json!({"metadata": {"labels": {"a": "b"}}})).0, 403);
    let status = json!({"status": {"phase": "Bound"}});
    assert_eq!(change(&format!("{path}/status"), status).0, 200);
    cluster.send(&User::admin(), Method::DELETE, &path, &[], &Value::Null);
    assert_eq!(change(&path, json!({"metadata": {"finalizers": null}})).0, 200, "it can go");
}

#[test]
fn storage_in_use_has_a_finalizer() {
    #[track_caller]
    fn check(cluster: &Bench, path: &str, object: Value, want: &Value) {
        let made = cluster.make(path, object);
        assert_eq!(&made["metadata"]["finalizers"], want);
        let owned = made["metadata"]["managedFields"][0]["fieldsV1"].to_string();
        assert!(!owned.contains("-protection"), "nobody owns what admission adds: {owned}");
    }
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |metadata: Value| {
        json!({"metadata": metadata, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let cluster = cluster();
    let held = json!(["kubernetes.io/pvc-protection"]);
    check(&cluster, claims, claim(json!({"name": "a"})), &held);
    let both = json!({"name": "b", "finalizers": ["x.io/y"]});
    check(&cluster, claims, claim(both), &json!(["x.io/y", "kubernetes.io/pvc-protection"]));
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    check(&cluster, "/api/v1/persistentvolumes", volume, &json!(["kubernetes.io/pv-protection"]));
    check(
        &cluster,
        "/apis/storage.k8s.io/v1/volumeattributesclasses",
        json!({"metadata": {"name": "c"}, "driverName": "example.com", "parameters": {"a": "b"}}),
        &json!(["kubernetes.io/vac-protection"]),
    );
    let path = format!("{claims}/a");
    let (code, marked) = cluster.send(&User::admin(), Method::DELETE, &path, &[], &Value::Null);
    assert_eq!((code, &marked["metadata"]["finalizers"]), (200, &held));
    let let_go = json!({"metadata": {"finalizers": null}});
    assert_eq!(call_with(&cluster.server, Method::PATCH, &path, MERGE, let_go).0, 200);
    assert_eq!(cluster.send(&User::admin(), Method::GET, &path, &[], &Value::Null).0, 404);

    let admission = AdmissionPlugins { storage_protection: false, ..AdmissionPlugins::default() };
    let off = with(ClusterOptions { admission, ..ClusterOptions::default() });
    check(&off, claims, claim(json!({"name": "a"})), &Value::Null);
}
