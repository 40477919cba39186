use expect_test::{Expect, expect};
use loadmaster_framework::testkit::{NodeBuilder, PluginTestBench, node, pod};
use loadmaster_framework::{FeatureGates, PluginDef};
use loadmaster_plugins::volumes::StorageKind;
use serde_json::json;

use super::*;
use crate::{azure_disk_limits, cinder_limits, ebs_limits, gce_pd_limits};

const DISKS: &str = "attachable-volumes-aws-ebs";

/// Nodes a and b with a limit of two EBS volumes; the claims c1 to c4 with the volumes vol-1 to vol-4.
fn bench() -> PluginTestBench {
    let mut bench = PluginTestBench::new(&ebs_limits::DEF, json!({})).unwrap();
    for name in ["a", "b"] {
        bench.node(node(name).allocatable(DISKS, "2")).unwrap();
    }
    for at in 1..=4 {
        add_bound_claim(&mut bench, &format!("c{at}"), ebs(&format!("vol-{at}")));
    }
    let provisioner = json!({"provisioner": "kubernetes.io/aws-ebs"});
    object(&mut bench, StorageKind::StorageClass, "ebs", provisioner);
    object(&mut bench, StorageKind::StorageClass, "other", json!({"provisioner": "example.com/x"}));
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
fn add_bound_claim(bench: &mut PluginTestBench, name: &str, source: Value) {
    object(bench, StorageKind::PersistentVolume, name, json!({"spec": source}));
    claim(bench, name, json!({"volumeName": name}));
}

fn migrate(bench: &mut PluginTestBench, node: &str, plugins: &str) {
    let annotations = json!({"storage.alpha.kubernetes.io/migrated-plugins": plugins});
    object(bench, StorageKind::CsiNode, node, json!({"metadata": {"annotations": annotations}}));
}

fn ebs(id: &str) -> Value {
    json!({"awsElasticBlockStore": {"volumeID": id}})
}

/// A pod with these claims, and these EBS volumes that it names itself.
fn uses(name: &str, claims: &[&str], disks: &[&str]) -> Value {
    let claims = claims.iter().map(|claim| json!({"persistentVolumeClaim": {"claimName": claim}}));
    with_volumes(name, claims.chain(disks.iter().map(|id| ebs(id))))
}

fn with_volumes(name: &str, sources: impl Iterator<Item = Value>) -> Value {
    let volume = |(at, mut source): (usize, Value)| {
        source["name"] = json!(format!("v{at}"));
        source
    };
    let volumes: Vec<Value> = sources.enumerate().map(volume).collect();
    pod(name).set_field("/spec/volumes", volumes).into()
}

/// The nodes that are feasible for a pod with these claims and disks.
#[track_caller]
fn check(bench: &mut PluginTestBench, claims: &[&str], disks: &[&str], want: &str) {
    check_pod(bench, uses("web", claims, disks), want);
}

#[track_caller]
fn check_pod(bench: &mut PluginTestBench, incoming: Value, want: &str) {
    let results = bench.filter(incoming).unwrap();
    let feasible = results.iter().filter_map(|result| result.strip_suffix(" Success"));
    assert_eq!(feasible.collect::<Vec<_>>().join(" "), want);
    for result in results.iter().filter(|result| !result.ends_with(" Success")) {
        let rejection = "Unschedulable node(s) exceed max volume count";
        assert_eq!(result.split_once(' ').unwrap().1, rejection);
    }
}

#[test]
fn volumes_count_once_per_node() {
    let mut bench = bench();
    check(&mut bench, &["c1", "c2"], &[], "a b");
    check(&mut bench, &["c1", "c2", "c3"], &[], "");
    check(&mut bench, &["c1"], &["vol-1", "vol-2"], "a b");
    check(&mut bench, &["c1"], &["vol-2", "vol-3"], "");
    bench.add_assigned_pod("a", uses("old", &["c1"], &["vol-9"])).unwrap();
    check(&mut bench, &["c2"], &[], "b");
    check(&mut bench, &["c1"], &["vol-9"], "a b");
    // More than the limit is too much also for a pod that adds none.
    bench.add_assigned_pod("a", uses("old-2", &[], &["vol-8"])).unwrap();
    check(&mut bench, &["c1"], &[], "b");
    check(&mut bench, &[], &[], "a b");
}

#[test]
fn volumes_of_other_plugins_do_not_count() {
    let mut bench = bench();
    bench.add_assigned_pod("a", uses("old", &["c1", "c2"], &[])).unwrap();
    let gce = json!({"gcePersistentDisk": {"pdName": "disk"}});
    add_bound_claim(&mut bench, "gce", gce.clone());
    add_bound_claim(
        &mut bench,
        "csi",
        json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-7"}}),
    );
    check(&mut bench, &["gce", "csi"], &[], "a b");
    check_pod(&mut bench, with_volumes("web", [gce].into_iter()), "a b");
    check(&mut bench, &["gce", "c3"], &[], "b");
}

#[test]
fn claims_without_known_volume_count_by_their_class() {
    let mut bench = bench();
    bench.add_assigned_pod("a", uses("old", &["c1"], &[])).unwrap();
    let class = |name: &str| json!({"storageClassName": name});
    claim(&mut bench, "new-1", class("ebs"));
    claim(&mut bench, "new-2", class("ebs"));
    check(&mut bench, &["new-1"], &[], "a b");
    check(&mut bench, &["new-1", "new-2"], &[], "b");
    claim(&mut bench, "other", class("other"));
    claim(&mut bench, "unknown", class("no-such-class"));
    claim(&mut bench, "none", json!({}));
    check(&mut bench, &["new-1", "other", "unknown", "none"], &[], "a b");
    // Its volume is not known yet, or no longer.
    claim(&mut bench, "lost", json!({"volumeName": "gone", "storageClassName": "ebs"}));
    check(&mut bench, &["new-1", "lost"], &[], "b");
    // A pod on the node with the same claim.
    bench.add_assigned_pod("a", uses("old-2", &["new-1"], &[])).unwrap();
    check(&mut bench, &["new-1"], &[], "a b");
    check(&mut bench, &["new-2"], &[], "b");
}

#[test]
fn migrated_volumes_are_left_to_another_plugin() {
    let mut bench = bench();
    migrate(&mut bench, "a", "kubernetes.io/gce-pd,kubernetes.io/aws-ebs");
    migrate(&mut bench, "b", "kubernetes.io/gce-pd");
    check(&mut bench, &["c1", "c2", "c3"], &[], "a");
    migrate(&mut bench, "b", "kubernetes.io/aws-ebs");
    check(&mut bench, &["c1", "c2", "c3"], &[], "a b");
}

#[track_caller]
fn check_first_node(bench: &mut PluginTestBench, pod: Value, want: &Expect) {
    want.assert_eq(&bench.filter(pod).unwrap()[0]);
}

#[test]
fn claims_that_cannot_be_used() {
    let mut bench = bench();
    check_first_node(
        &mut bench,
        uses("web", &["gone"], &[]),
        &expect![[
            r#"a Error looking up PVC default/gone: persistentvolumeclaim "gone" not found"#
        ]],
    );
    check_first_node(
        &mut bench,
        uses("web", &[""], &[]),
        &expect!["a Error PersistentVolumeClaim had no name"],
    );
    // Claims of pods that run may have been deleted.
    bench.add_assigned_pod("a", uses("old", &["gone"], &[])).unwrap();
    check(&mut bench, &["c1", "c2"], &[], "a b");
}

#[test]
fn claims_of_ephemeral_volumes_belong_to_their_pod() {
    let mut bench = bench();
    claim(&mut bench, "web-v0", json!({"volumeName": "c1"}));
    let ephemeral = || {
        let source = json!({"ephemeral": {"volumeClaimTemplate": {}}});
        with_volumes("web", [source].into_iter())
    };
    check_first_node(
        &mut bench,
        ephemeral(),
        &expect![
            "a Error PVC default/web-v0 was not created for pod default/web (pod is not owner)"
        ],
    );
    let owner = json!([{"kind": "Pod", "name": "web", "uid": "default/web", "controller": true}]);
    let fields = json!({"metadata": {"namespace": "default", "ownerReferences": owner},
        "spec": {"volumeName": "c1"}});
    object(&mut bench, StorageKind::PersistentVolumeClaim, "web-v0", fields);
    bench.add_assigned_pod("a", uses("old", &["c2", "c3"], &[])).unwrap();
    check_pod(&mut bench, ephemeral(), "b");
}

/// The highest number of disks of this kind that fit on a node.
#[track_caller]
fn check_limit(
    def: &PluginDef,
    args: Value,
    node: NodeBuilder,
    disk: fn(String) -> Value,
    want: usize,
) {
    let mut bench = PluginTestBench::new(def, args).unwrap();
    bench.node(node).unwrap();
    let mut fits = |n_disks: usize| {
        let disks = (0..n_disks).map(|at| disk(format!("disk-{at}")));
        bench.filter(with_volumes("web", disks)).unwrap()[0].ends_with(" Success")
    };
    assert!(fits(want));
    assert!(!fits(want + 1));
}

fn ebs_disk(id: String) -> Value {
    ebs(&id)
}

#[test]
fn limits_of_nodes() {
    let ebs = &ebs_limits::DEF;
    check_limit(ebs, json!({}), node("a"), ebs_disk, 39);
    let instance = |label: &str, kind: &str| node("a").label(label, kind);
    let (stable, beta) = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type");
    check_limit(ebs, json!({}), instance(stable, "m5.large"), ebs_disk, 25);
    check_limit(ebs, json!({}), instance(beta, "m5.large"), ebs_disk, 25);
    check_limit(ebs, json!({}), instance(stable, "m4.large"), ebs_disk, 39);
    check_limit(ebs, json!({"maxVolumes": 7}), instance(stable, "m5.large"), ebs_disk, 7);
    let own = |limit: &str| node("a").allocatable(DISKS, limit);
    check_limit(ebs, json!({"maxVolumes": 7}), own("3"), ebs_disk, 3);
    check_limit(ebs, json!({}), own("0"), ebs_disk, 0);
    check_limit(
        &gce_pd_limits::DEF,
        json!({}),
        node("a"),
        |name: String| json!({"gcePersistentDisk": {"pdName": name}}),
        16,
    );
    let azure = |name: String| json!({"azureDisk": {"diskName": name, "diskURI": name}});
    check_limit(&azure_disk_limits::DEF, json!({}), node("a"), azure, 16);
    check_limit(
        &azure_disk_limits::DEF,
        json!({}),
        node("a").allocatable("attachable-volumes-azure-disk", "4"),
        azure,
        4,
    );
    let cinder = |id: String| json!({"cinder": {"volumeID": id}});
    check_limit(&cinder_limits::DEF, json!({}), node("a"), cinder, 256);
}

#[track_caller]
fn check_args(given: Value, want: &Expect) {
    let complete = ebs_limits::DEF.args.unwrap();
    want.assert_eq(&match complete(&given, &FeatureGates::default()) {
        Ok(args) => args.to_string(),
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    });
}

#[track_caller]
fn check_node_hint(old: Option<&str>, new: Option<&str>, want: &str) {
    let with = |limit: Option<&str>| -> Node {
        let node = limit.iter().fold(node("a"), |node, limit| node.allocatable(DISKS, limit));
        serde_json::from_value(node.into()).unwrap()
    };
    let (old, new) = (old.map(|limit| with(Some(limit))), with(new));
    let action = match old.is_some() {
        true => ActionType::UPDATE_NODE_ALLOCATABLE,
        false => ActionType::ADD,
    };
    let event = ClusterEvent::new(EventResource::Node, action);
    let (old, new) = (old.as_ref().map(EventObject::Node), Some(EventObject::Node(&new)));
    let hint = bench().queueing_hint(event, uses("web", &["c1"], &[]), old, new);
    assert_eq!(hint.unwrap(), want);
}

#[test]
fn nodes_and_their_limits_wake_pods() {
    check_node_hint(None, None, "Queue");
    check_node_hint(Some("2"), Some("3"), "Queue");
    check_node_hint(Some("2"), None, "Queue");
    check_node_hint(Some("2"), Some("2"), "Skip");
}

#[track_caller]
fn check_pod_hint(deleted: Value, node_name: &str, want: &str) {
    let mut bench = bench();
    let deleted = loadmaster_framework::testkit::PodBuilder::from(deleted);
    let deleted = bench.parse_pod(deleted.set_field("/spec/nodeName", node_name)).unwrap();
    let event = ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE);
    let old = Some(EventObject::Pod(&deleted));
    let hint = bench.queueing_hint(event, uses("web", &["c1"], &[]), old, None);
    assert_eq!(hint.unwrap(), want);
}

#[test]
fn deleted_pods_with_volumes_wake_pods() {
    check_pod_hint(uses("old", &["c2"], &[]), "a", "Queue");
    check_pod_hint(uses("old", &[], &["vol-7"]), "a", "Queue");
    check_pod_hint(uses("old", &["c2"], &[]), "", "Skip");
    check_pod_hint(uses("old", &[], &[]), "a", "Skip");
    let gce = json!({"gcePersistentDisk": {"pdName": "disk"}});
    check_pod_hint(with_volumes("old", [gce].into_iter()), "a", "Skip");
}

#[test]
fn only_pods_without_volumes_that_count_have_a_key() {
    let mut bench = bench();
    bench.add_assigned_pod("a", uses("old", &["c1", "c2"], &[])).unwrap();
    add_bound_claim(&mut bench, "csi", json!({"csi": {"driver": "x", "volumeHandle": "h"}}));
    assert!(bench.check_key(pod("web")).unwrap().keeps("ordinal label"));
    let are_equal = |bench: &mut PluginTestBench, claim: &str| {
        bench.have_equal_keys(pod("web"), uses("web", &[claim], &[])).unwrap()
    };
    assert!(are_equal(&mut bench, "csi"));
    assert!(!are_equal(&mut bench, "c1"));
    assert!(!are_equal(&mut bench, "gone"));
    // The key follows the objects.
    add_bound_claim(&mut bench, "csi", ebs("vol-9"));
    assert!(!are_equal(&mut bench, "csi"));
}

#[test]
fn args() {
    check_args(json!({}), &expect!["{}"]);
    check_args(json!({"maxVolumes": 1}), &expect![[r#"{"maxVolumes":1}"#]]);
    check_args(
        json!({"maxVolumes": 0}),
        &expect!["maxVolumes: Invalid value: 0: must be greater than 0"],
    );
}
