use expect_test::{Expect, expect};
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use serde_json::json;

use super::*;
use crate::volumes::StorageKind;

/// Nodes in zones a and b, one with the old label of zone a, and one without labels; the claim `data` with this spec; the volume `pv` with
/// these labels; classes.
fn bench(claim: Value, labels: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a").label(ZONE, "a")).unwrap();
    bench.node(node("b").label(ZONE, "b").label(REGION, "r")).unwrap();
    bench.node(node("old").label(BETA_ZONE, "a")).unwrap();
    bench.node(node("none")).unwrap();
    let mut object = |kind: StorageKind, object: Value| bench.object(&kind.gvr(), object).unwrap();
    let metadata = json!({"name": "data", "namespace": "default"});
    object(StorageKind::PersistentVolumeClaim, json!({"metadata": metadata, "spec": claim}));
    object(StorageKind::PersistentVolume, json!({"metadata": {"name": "pv", "labels": labels}}));
    for (name, mode) in
        [("wait", Some(WAIT_FOR_FIRST_CONSUMER)), ("now", Some("Immediate")), ("odd", None)]
    {
        let class = json!({"metadata": {"name": name}, "volumeBindingMode": mode});
        object(StorageKind::StorageClass, class);
    }
    bench
}

fn uses(claim: &str) -> Value {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    pod("web").set_field("/spec/volumes", volumes).into()
}

/// The nodes on which a pod with the claim fits.
#[track_caller]
fn check(labels: Value, want: &str) {
    let mut bench = bench(json!({"volumeName": "pv"}), labels);
    let results = bench.filter(uses("data")).unwrap();
    let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
    assert_eq!(feasible.collect::<Vec<_>>().join(" "), want);
    let rejected = format!("UnschedulableAndUnresolvable {REASON}");
    assert!(results.iter().all(|it| it.ends_with("Success") || it.ends_with(&rejected)));
}

#[test]
fn nodes_must_be_in_the_zones_of_the_volume() {
    check(json!({}), "a b old none");
    check(json!({ZONE: "a"}), "a none");
    // The old label of a volume matches the new one of a node, not the other way round.
    check(json!({BETA_ZONE: "a"}), "a old none");
    check(json!({ZONE: "a__b"}), "a b none");
    check(json!({ZONE: " a __ b "}), "a b none");
    check(json!({ZONE: "a__"}), "a b old none");
    check(json!({BETA_REGION: "r"}), "b none");
    check(json!({ZONE: "a", REGION: "r"}), "none");
    check(json!({"app": "x"}), "a b old none");
}

#[track_caller]
fn check_pre_filter(claim: Value, want: &Expect) {
    want.assert_eq(&bench(claim, json!({ZONE: "a"})).pre_filter(uses("data")).unwrap());
}

#[test]
fn claims_without_a_volume() {
    check_pre_filter(json!({"volumeName": "pv"}), &expect!["All"]);
    check_pre_filter(json!({"storageClassName": "wait"}), &expect!["Skip"]);
    check_pre_filter(
        json!({"storageClassName": "now"}),
        &expect!["UnschedulableAndUnresolvable PersistentVolume had no name"],
    );
    check_pre_filter(
        json!({"storageClassName": "odd"}),
        &expect![[
            r#"UnschedulableAndUnresolvable VolumeBindingMode not set for StorageClass "odd""#
        ]],
    );
    check_pre_filter(
        json!({"storageClassName": "gone"}),
        &expect![[r#"UnschedulableAndUnresolvable storageclass.storage.k8s.io "gone" not found"#]],
    );
    check_pre_filter(
        json!({}),
        &expect![
            "UnschedulableAndUnresolvable PersistentVolumeClaim had no pv name and storageClass name"
        ],
    );
    check_pre_filter(
        json!({"volumeName": "gone"}),
        &expect![[r#"UnschedulableAndUnresolvable persistentvolume "gone" not found"#]],
    );
    let mut bench = bench(json!({}), json!({}));
    expect![[r#"UnschedulableAndUnresolvable persistentvolumeclaim "gone" not found"#]]
        .assert_eq(&bench.pre_filter(uses("gone")).unwrap());
    expect!["UnschedulableAndUnresolvable PersistentVolumeClaim had no name"]
        .assert_eq(&bench.pre_filter(uses("")).unwrap());
    assert_eq!(bench.pre_filter(pod("web")).unwrap(), "Skip");
}

#[test]
fn pods_share_their_key_if_their_volumes_are_in_the_same_zones() {
    let mut bench = bench(json!({"volumeName": "pv"}), json!({ZONE: "a"}));
    let claims = StorageKind::PersistentVolumeClaim.gvr();
    let volumes = StorageKind::PersistentVolume.gvr();
    for (name, zone) in [("same", "a"), ("other", "b")] {
        let metadata = json!({"name": name, "namespace": "default"});
        bench.object(&claims, json!({"metadata": metadata, "spec": {"volumeName": name}})).unwrap();
        bench
            .object(&volumes, json!({"metadata": {"name": name, "labels": {ZONE: zone}}}))
            .unwrap();
    }
    assert!(bench.have_equal_keys(uses("data"), uses("same")).unwrap());
    assert!(!bench.have_equal_keys(uses("data"), uses("other")).unwrap());
    bench.check_key(uses("data")).unwrap();
}

#[test]
fn explain_names_the_zones_of_volumes() {
    let check = |labels: Value, want: &[&str]| {
        let mut bench = bench(json!({"volumeName": "pv"}), labels);
        assert_eq!(bench.explain(uses("data")).unwrap(), want);
    };
    let wants = "volume pv of claim data is in topology.kubernetes.io/zone in (a, c) and topology.kubernetes.io/region in (r)";
    check(
        json!({ZONE: "a__c", REGION: "r"}),
        &[
            &format!("a: zones={wants}, the node has no {REGION}, {ZONE}=a"),
            &format!("b: zones={wants}, the node has {REGION}=r, {ZONE}=b"),
            &format!("old: zones={wants}, the node has no {REGION}, no {ZONE}"),
        ],
    );
    check(json!({}), &[]);
    let mut bench = bench(json!({"volumeName": "gone"}), json!({}));
    assert_eq!(bench.explain(uses("data")).unwrap(), [""; 0]);
}
