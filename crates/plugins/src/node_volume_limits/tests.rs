use expect_test::{Expect, expect};
use loadmaster_framework::FeatureGates;
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use serde_json::json;

use super::*;

const DRIVER: &str = "csi.example.com";

/// Nodes a and b with a limit of two volumes of the driver, and one without a CSINode; the claims c1 to c4 with the volumes h1 to h4; a
/// claim `new` of a class that waits.
fn bench() -> PluginTestBench {
    bench_with_gates(&FeatureGates::default())
}

fn bench_with_gates(gates: &FeatureGates) -> PluginTestBench {
    let mut bench = PluginTestBench::with_gates(&DEF, json!({}), gates.clone()).unwrap();
    for name in ["a", "b", "none"] {
        bench.node(node(name)).unwrap();
    }
    for name in ["a", "b"] {
        set_limit(&mut bench, name, Some(2));
    }
    for at in 1..=4 {
        add_volume(&mut bench, &format!("c{at}"), &format!("h{at}"));
    }
    object(&mut bench, StorageKind::StorageClass, "wait", json!({"provisioner": DRIVER}));
    claim(&mut bench, "new", json!({"storageClassName": "wait"}));
    bench
}

fn object(bench: &mut PluginTestBench, kind: StorageKind, name: &str, mut fields: Value) {
    fields["metadata"]["name"] = json!(name);
    bench.object(&kind.gvr(), fields).unwrap();
}

fn claim(bench: &mut PluginTestBench, name: &str, spec: Value) {
    let fields = json!({"metadata": {"namespace": "default"}, "spec": spec});
    object(bench, StorageKind::PersistentVolumeClaim, name, fields);
}

/// A claim and the volume of the same name that it is bound to.
fn add_volume(bench: &mut PluginTestBench, name: &str, handle: &str) {
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": handle}});
    object(bench, StorageKind::PersistentVolume, name, json!({"spec": source}));
    claim(bench, name, json!({"volumeName": name}));
}

fn set_limit(bench: &mut PluginTestBench, node: &str, count: Option<i32>) {
    let drivers = json!([{"name": DRIVER, "nodeID": node, "allocatable": {"count": count}}]);
    object(bench, StorageKind::CsiNode, node, json!({"spec": {"drivers": drivers}}));
}

fn uses(name: &str, claims: &[&str]) -> Value {
    let volume =
        |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let volumes: Vec<Value> = claims.iter().map(volume).collect();
    pod(name).set_field("/spec/volumes", json!(volumes)).into()
}

/// The nodes that are feasible for a pod with these claims.
fn feasible(bench: &mut PluginTestBench, claims: &[&str]) -> String {
    let results = bench.filter(uses("web", claims)).unwrap();
    let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
    feasible.collect::<Vec<_>>().join(" ")
}

#[test]
fn explain_counts_the_volumes_of_each_node() {
    let mut bench = bench();
    bench.add_assigned_pod("a", uses("old", &["c1", "c3"])).unwrap();
    set_limit(&mut bench, "b", Some(5));
    let details = |bench: &mut PluginTestBench| bench.explain(uses("web", &["c1", "c2"])).unwrap();
    let of_a = format!("a: attached={DRIVER}: 2 of 2 attached, 1 more needed");
    let of_b = format!("b: attached={DRIVER}: 0 of 5 attached, 2 more needed");
    assert_eq!(details(&mut bench), [of_a.as_str(), &of_b]);
    set_limit(&mut bench, "b", None);
    assert_eq!(details(&mut bench), [of_a]);
    assert_eq!(bench.explain(pod("web")).unwrap(), [""; 0]);
}

#[test]
fn volumes_of_a_driver_are_limited() {
    let mut bench = bench();
    assert_eq!(feasible(&mut bench, &["c1", "c2"]), "a b none");
    assert_eq!(feasible(&mut bench, &["c1", "c2", "c3"]), "none");
    bench.add_assigned_pod("a", uses("old", &["c1"])).unwrap();
    assert_eq!(feasible(&mut bench, &["c2", "c3"]), "b none");
    // A volume that is there already is no new one.
    assert_eq!(feasible(&mut bench, &["c1", "c2"]), "a b none");
    bench.add_assigned_pod("a", uses("old-2", &["c1", "c2"])).unwrap();
    assert_eq!(feasible(&mut bench, &["c1", "c2"]), "a b none");
    assert_eq!(feasible(&mut bench, &["c3"]), "b none");
    assert_eq!(feasible(&mut bench, &["new"]), "b none");
    set_limit(&mut bench, "a", Some(3));
    assert_eq!(feasible(&mut bench, &["new"]), "a b none");
    set_limit(&mut bench, "a", None);
    assert_eq!(feasible(&mut bench, &["c3", "c4", "new"]), "a none");
}

#[test]
fn evaluations_follow_claims_and_volumes_of_assigned_pods() {
    let mut bench = bench();
    bench.add_assigned_pod("a", uses("old", &["new", "c1"])).unwrap();
    assert_eq!(feasible(&mut bench, &["c2"]), "b none");
    // The claim is bound to the volume of another driver.
    let source = json!({"csi": {"driver": "other", "volumeHandle": "h"}});
    object(&mut bench, StorageKind::PersistentVolume, "pv", json!({"spec": source}));
    claim(&mut bench, "new", json!({"storageClassName": "wait", "volumeName": "pv"}));
    assert_eq!(feasible(&mut bench, &["c2"]), "a b none");
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": "h"}});
    object(&mut bench, StorageKind::PersistentVolume, "pv", json!({"spec": source}));
    assert_eq!(feasible(&mut bench, &["c2"]), "b none");
}

#[test]
fn attachments_count_unless_a_pod_uses_their_volume() {
    let mut bench = bench();
    let mut attach = |name: &str, volume: &str| {
        let source = json!({"persistentVolumeName": volume});
        let spec = json!({"attacher": DRIVER, "nodeName": "a", "source": source});
        object(&mut bench, StorageKind::VolumeAttachment, name, json!({"spec": spec}));
    };
    attach("one", "c1");
    attach("two", "c2");
    attach("gone", "no-such-volume");
    assert_eq!(feasible(&mut bench, &["c3"]), "b none");
    // As upstream counts, also for a pod that uses one of them.
    assert_eq!(feasible(&mut bench, &["c1"]), "b none");
    bench.add_assigned_pod("a", uses("old", &["c1"])).unwrap();
    assert_eq!(feasible(&mut bench, &["c1"]), "a b none");
    assert_eq!(feasible(&mut bench, &["c3"]), "b none");
}

#[test]
fn in_tree_volumes_count_as_those_of_the_driver() {
    let mut bench = bench();
    let drivers = json!([{"name": "ebs.csi.aws.com", "nodeID": "a", "allocatable": {"count": 1}}]);
    object(&mut bench, StorageKind::CsiNode, "a", json!({"spec": {"drivers": drivers}}));
    let disk = |id: &str| {
        let volumes = json!([{"name": "v", "awsElasticBlockStore": {"volumeID": id}}]);
        Value::from(pod("web").set_field("/spec/volumes", volumes))
    };
    bench.add_assigned_pod("a", disk("aws://zone/vol-1")).unwrap();
    let mut result = |id: &str| bench.filter(disk(id)).unwrap()[0].clone();
    assert_eq!(result("vol-1"), "a Success");
    assert_eq!(result("vol-2"), format!("a Unschedulable {REASON}"));
    expect!["a Error converting volume(v) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://zone/x)"]
        .assert_eq(&result("aws://zone/x"));
}

#[track_caller]
fn check_first_node(bench: &mut PluginTestBench, pod: Value, want: &Expect) {
    want.assert_eq(&bench.filter(pod).unwrap()[0]);
}

#[test]
fn claims_that_cannot_be_counted() {
    let mut bench = bench();
    check_first_node(
        &mut bench,
        uses("web", &["gone"]),
        &expect![[
            r#"a UnschedulableAndUnresolvable looking up PVC default/gone: persistentvolumeclaim "gone" not found"#
        ]],
    );
    check_first_node(
        &mut bench,
        uses("web", &[""]),
        &expect!["a Error PersistentVolumeClaim had no name"],
    );
    claim(&mut bench, "web-own", json!({"volumeName": "c1"}));
    let own = json!([{"name": "own", "ephemeral": {"volumeClaimTemplate": {}}}]);
    let own = Value::from(pod("web").set_field("/spec/volumes", own));
    check_first_node(
        &mut bench,
        own.clone(),
        &expect![
            "a Error PVC default/web-own was not created for pod default/web (pod is not owner)"
        ],
    );
    // Such a pod on a node fails the attempts of all others that are filtered there.
    bench.add_assigned_pod("a", own).unwrap();
    check_first_node(
        &mut bench,
        uses("db", &["c2"]),
        &expect![
            "a Error PVC default/web-own was not created for pod default/web (pod is not owner)"
        ],
    );
    assert_eq!(bench.pre_filter(pod("web")).unwrap(), "Skip");
}

#[test]
fn missing_drivers() {
    let gates = FeatureGates { volume_limit_scaling: true, ..FeatureGates::default() };
    let mut bench = bench_with_gates(&gates);
    object(&mut bench, StorageKind::CsiNode, "b", json!({"spec": {"drivers": []}}));
    assert_eq!(feasible(&mut bench, &["c1"]), "a b none");
    let spec = json!({"preventPodSchedulingIfMissing": true});
    object(&mut bench, StorageKind::CsiDriver, DRIVER, json!({"spec": spec}));
    assert_eq!(feasible(&mut bench, &["c1"]), "a");
    expect!["b Unschedulable csi.example.com CSI driver is not installed on the node"]
        .assert_eq(&bench.filter(uses("web", &["c1"])).unwrap()[1]);
}

#[test]
fn pods_share_their_key_unless_their_volumes_are_attached() {
    let mut bench = bench();
    let are_equal = |bench: &mut PluginTestBench, one: &str, other: &str| {
        bench.have_equal_keys(uses("x", &[one]), uses("y", &[other])).unwrap()
    };
    assert!(are_equal(&mut bench, "c1", "c2"));
    assert!(are_equal(&mut bench, "c1", "new"));
    bench.add_assigned_pod("a", uses("old", &["c1"])).unwrap();
    assert!(!are_equal(&mut bench, "c1", "c2"));
    assert!(are_equal(&mut bench, "c3", "c2"));
    // Two volumes with one handle are the same.
    add_volume(&mut bench, "twin", "h3");
    assert!(!are_equal(&mut bench, "c3", "c2"));
    bench.check_key(uses("web", &["c2", "c4"])).unwrap();
    bench.check_key(uses("web", &["c1"])).unwrap();
}
