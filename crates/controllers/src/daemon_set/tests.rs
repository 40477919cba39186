use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::{DaemonSetController, nodes};
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, Patch};
use crate::test_kubelet::{bench, set};
use crate::testkit::ControllerBench;

fn start(n_nodes: usize, more: Value) -> ControllerBench {
    let mut bench = bench(vec![Box::<DaemonSetController>::default()]);
    for number in 0..n_nodes {
        node(&mut bench, &format!("n{number}"));
    }
    bench.create(set("DaemonSet", "log", &more));
    bench.run_until_idle();
    bench
}

fn node(bench: &mut ControllerBench, name: &str) {
    bench.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
}

fn change_node(bench: &mut ControllerBench, name: &str, patch: Value) {
    bench.send_as_client(&ControllerRequest::patch(
        Key::new(Kind::Node, "", name),
        Patch::Merge(patch),
    ));
    bench.run_until_idle();
}

fn change(bench: &mut ControllerBench, spec: Value) {
    bench.merge(Kind::DaemonSet, "log", json!({"spec": spec}));
    bench.run_until_idle();
}

fn image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "c", "image": image}]}}})
}

fn wait_from(image: &str) -> Value {
    json!({"template": {"metadata": {"annotations": {"play": "wait"}},
        "spec": {"containers": [{"name": "c", "image": image}]}}})
}

/// Node and image of each pod.
fn pods(bench: &ControllerBench) -> Vec<String> {
    let line = |pod: &Pod| {
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        format!("{} {image}", nodes::target_node_name(pod).unwrap())
    };
    let mut all: Vec<String> = bench.list::<Pod>().iter().map(line).collect();
    all.sort();
    all
}

fn status(bench: &ControllerBench) -> Value {
    let set: DaemonSet = bench.get("default", "log").unwrap();
    serde_json::to_value(set.status.unwrap()).unwrap()
}

#[test]
fn every_node_gets_a_pod() {
    let mut bench = start(2, json!({}));
    assert_eq!(pods(&bench), ["n0 v1", "n1 v1"]);
    node(&mut bench, "n2");
    bench.run_until_idle();
    assert_eq!(pods(&bench), ["n0 v1", "n1 v1", "n2 v1"]);
    let found = status(&bench);
    for count in [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "numberAvailable",
        "updatedNumberScheduled",
    ] {
        assert_eq!(found[count], 3, "{count}");
    }
    assert_eq!(
        (&found["numberMisscheduled"], &found["numberUnavailable"]),
        (&json!(0), &Value::Null)
    );
    let pod = bench.list::<Pod>().remove(0);
    let labels = pod.metadata.labels.unwrap();
    let revision = bench.list::<ControllerRevision>().remove(0);
    let name = format!("log-{}", labels["controller-revision-hash"]);
    assert_eq!(revision.metadata.name, Some(name));
    let tolerated = pod.spec.unwrap().tolerations.unwrap();
    assert!(
        tolerated.iter().any(|one| one.key.as_deref() == Some("node.kubernetes.io/unschedulable"))
    );
    // A pod whose node was deleted before it was bound is deleted, too.
    let gone = Key::new(Kind::Node, "", "n2");
    bench.send_as_client(&ControllerRequest::Delete { key: gone, options: Default::default() });
    bench.run_until_idle();
    assert_eq!(pods(&bench), ["n0 v1", "n1 v1"]);
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent);
}

#[test]
fn pods_follow_node_labels_and_taints() {
    let template = json!({"metadata": {"labels": {"app": "log"}},
        "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": "v1"}]}});
    let mut bench = start(2, json!({"template": template}));
    assert_eq!(pods(&bench).len(), 0);
    change_node(&mut bench, "n1", json!({"metadata": {"labels": {"disk": "ssd"}}}));
    assert_eq!(pods(&bench), ["n1 v1"]);
    let taint = |effect: &str| json!({"spec": {"taints": [{"key": "k", "effect": effect}]}});
    change_node(&mut bench, "n1", taint("NoSchedule"));
    assert_eq!(pods(&bench), ["n1 v1"]);
    bench.wait(1);
    assert_eq!(status(&bench)["numberMisscheduled"], 1);
    assert_eq!(status(&bench)["desiredNumberScheduled"], 0);
    change_node(&mut bench, "n1", taint("NoExecute"));
    assert_eq!(pods(&bench).len(), 0);
    change_node(&mut bench, "n1", json!({"spec": {"taints": null}}));
    assert_eq!(pods(&bench), ["n1 v1"]);
    change_node(&mut bench, "n1", json!({"metadata": {"labels": {"disk": "hdd"}}}));
    assert_eq!(pods(&bench).len(), 0);
}

#[test]
fn a_rolling_update_replaces_one_pod_at_a_time() {
    let mut bench = start(3, json!({}));
    change(&mut bench, wait_from("bad"));
    assert_eq!(pods(&bench), ["n0 bad", "n1 v1", "n2 v1"]);
    assert_eq!(status(&bench)["updatedNumberScheduled"], 1);
    assert_eq!(status(&bench)["numberUnavailable"], 1);
    change(&mut bench, json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "60%"}}}));
    assert_eq!(pods(&bench), ["n0 bad", "n1 bad", "n2 v1"]);
    change(
        &mut bench,
        json!({"template": {"metadata": {"annotations": null}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}),
    );
    assert_eq!(pods(&bench), ["n0 v1", "n1 v1", "n2 v1"]);
    let mut revisions: Vec<i64> =
        bench.list::<ControllerRevision>().iter().map(|one| one.revision).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, [2, 3]);
}

#[test]
fn with_surge_the_new_pod_is_created_first() {
    let surge = json!({"updateStrategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
    let mut bench = start(3, surge);
    // The older pod of a node is the one that counts.
    bench.wait(5);
    change(&mut bench, wait_from("bad"));
    assert_eq!(pods(&bench), ["n0 bad", "n0 v1", "n1 v1", "n2 v1"]);
    assert_eq!(status(&bench)["numberAvailable"], 3);
    let mut good = image("v2");
    good["template"]["metadata"] = json!({"annotations": null});
    change(&mut bench, good);
    assert_eq!(pods(&bench), ["n0 v2", "n1 v2", "n2 v2"]);
}

#[test]
fn on_delete_replaces_only_deleted_pods() {
    let mut bench = start(2, json!({"updateStrategy": {"type": "OnDelete"}}));
    change(&mut bench, image("v2"));
    assert_eq!(pods(&bench), ["n0 v1", "n1 v1"]);
    let name = bench.names::<Pod>().remove(0);
    bench.delete(Kind::Pod, &name);
    bench.run_until_idle();
    assert_eq!(pods(&bench).iter().filter(|one| one.ends_with("v2")).count(), 1);
}

#[test]
fn a_failed_pod_is_replaced_with_backoff() {
    let mut bench = start(1, json!({}));
    let fail = |bench: &mut ControllerBench| {
        let name = bench.names::<Pod>().remove(0);
        bench.set_phase(&name, "Failed");
        bench.run_until_idle();
        bench.names::<Pod>().remove(0) != name
    };
    assert!(fail(&mut bench));
    assert!(!fail(&mut bench));
    bench.wait(1);
    assert!(!fail(&mut bench));
    bench.wait(1);
    assert!(!fail(&mut bench));
    bench.wait(2);
    assert!(
        bench
            .events()
            .iter()
            .any(|one| one.starts_with("FailedDaemonPod: Found failed daemon pod default/log-"))
    );
    assert_eq!(status(&bench)["numberReady"], 1);
    assert_eq!(bench.list::<Node>().len(), 1);
}
