//! What the server makes and fills in by itself.

use std::sync::atomic::Ordering;

use http::Method;
use loadmaster_apiserver::ClusterOptions;
use loadmaster_apiserver::store::StoreLimits;
use serde_json::{Value, json};

use crate::testkit::{Bench, PODS, call, create, get, patch, server};

#[test]
fn deleted_system_objects_are_recreated() {
    let Bench { server, seconds } = Bench::new(StoreLimits::default(), ClusterOptions::default());
    let (service, namespace) =
        ("/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/kube-node-lease");
    let before = get(&server, service);
    for path in [service, namespace] {
        assert_eq!(call(&server, Method::DELETE, path, Value::Null).0, 200);
    }
    let empty = json!({"metadata": {"name": "kube-node-lease"}, "spec": {}});
    assert_eq!(call(&server, Method::PUT, &format!("{namespace}/finalize"), empty).0, 200);
    let are_there =
        || [service, namespace].map(|path| call(&server, Method::GET, path, Value::Null).0 == 200);
    assert_eq!(are_there(), [false, false]);
    seconds.fetch_add(10, Ordering::Relaxed);
    server.run_maintenance();
    assert_eq!(are_there(), [true, true]);
    let after = get(&server, service);
    assert_eq!(after["spec"], before["spec"]);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

#[test]
fn duplicated_service_fields_stay_equal() {
    let server = server();
    let node = |name: &str, spec: Value| {
        let node = json!({"metadata": {"name": name}, "spec": spec});
        create(&server, "/api/v1/nodes", node)["spec"].clone()
    };
    assert_eq!(
        node("n", json!({"podCIDR": "10.1.0.0/24"})),
        json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]})
    );
    let spec = node("m", json!({"podCIDRs": ["10.2.0.0/24", "fd00::/64"]}));
    assert_eq!(spec["podCIDR"], "10.2.0.0/24");

    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    create(&server, PODS, json!({"metadata": {"name": "p"}, "spec": spec}));
    let check = |status: Value, first: &str, all: Value| {
        let pod = patch(&server, &format!("{PODS}/p/status"), json!({"status": status}));
        assert_eq!((&pod["status"]["podIP"], &pod["status"]["podIPs"]), (&json!(first), &all));
    };
    check(json!({"podIP": "10.0.0.1"}), "10.0.0.1", json!([{"ip": "10.0.0.1"}]));
    check(json!({"podIP": "10.0.0.2"}), "10.0.0.2", json!([{"ip": "10.0.0.2"}]));

    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "10.96.9.9", "ports": [{"port": 80}]}});
    assert_eq!(create(&server, services, service)["spec"]["clusterIPs"], json!(["10.96.9.9"]));
    let elsewhere = json!({"spec": {"type": "ExternalName", "externalName": "a.example.com"}});
    let moved = patch(&server, &format!("{services}/s"), elsewhere);
    for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert_eq!(moved["spec"][name], Value::Null, "{name}: {moved}");
    }
}
