//! HorizontalPodAutoscalers are one set of objects in two versions.

use http::Method;
use serde_json::{Value, json};

use super::testkit::{bytes, create, get, patch, send, server};

const V1: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
const V2: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

#[test]
fn both_versions_show_the_same_autoscalers() {
    let server = server();
    assert_eq!(get(&server, V1)["items"], json!([]));
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let one = json!({"metadata": {"name": "a"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 70}});
    let made = create(&server, V1, one);
    assert_eq!(made["apiVersion"], "autoscaling/v1");
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 70);
    let stored = get(&server, &format!("{V2}/a"));
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    assert_eq!((&stored["spec"]["metrics"], &stored["spec"]["minReplicas"]), (&cpu, &json!(1)));

    let memory = json!([{"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}]);
    let other = json!({"metadata": {"name": "b"}, "spec": {"scaleTargetRef": target, "maxReplicas": 3, "metrics": memory}});
    create(&server, V2, other);
    let changed = patch(&server, &format!("{V1}/b"), json!({"spec": {"maxReplicas": 9}}));
    assert!(changed["spec"]["metrics"].is_null(), "{changed}");
    let stored = get(&server, &format!("{V2}/b"));
    assert_eq!((&stored["spec"]["metrics"], &stored["spec"]["maxReplicas"]), (&memory, &json!(9)));
    assert!(stored["metadata"]["annotations"].is_null(), "{stored}");
    let list = get(&server, V1);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));

    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = bytes(send(&server, Method::GET, V1, &accept, ""));
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    assert_eq!(table["rows"][0]["cells"][2], "cpu: <unknown>/70%");
}

#[test]
fn discovery_has_both_versions() {
    let server = server();
    let group = get(&server, "/apis/autoscaling");
    assert_eq!(group["preferredVersion"]["version"], "v2");
    assert_eq!(group["versions"][1]["version"], "v1");
    let resources = get(&server, "/apis/autoscaling/v1");
    assert_eq!(resources["resources"][0]["name"], "horizontalpodautoscalers");
}
