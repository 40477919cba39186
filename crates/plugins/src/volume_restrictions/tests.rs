use expect_test::{Expect, expect};
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use serde_json::json;

use super::*;

fn claim(name: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"accessModes": [mode]}})
}

/// Nodes a and b; a pod on a with these volumes; the claims `own` (ReadWriteOncePod) and `shared`.
fn bench(used: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    for name in ["a", "b"] {
        bench.node(node(name)).unwrap();
    }
    let claims = StorageKind::PersistentVolumeClaim.gvr();
    bench.object(&claims, claim("own", READ_WRITE_ONCE_POD)).unwrap();
    bench.object(&claims, claim("shared", "ReadWriteOnce")).unwrap();
    bench.add_assigned_pod("a", with_volumes("old", used)).unwrap();
    bench
}

fn with_volumes(name: &str, volumes: Value) -> Value {
    pod(name).set_field("/spec/volumes", volumes).into()
}

fn uses(claim: &str) -> Value {
    json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])
}

#[track_caller]
fn check(wanted: Value, used: Value, want: &Expect) {
    let mut bench = bench(used);
    let web = with_volumes("web", wanted);
    let results = [vec![bench.pre_filter(web.clone()).unwrap()], bench.filter(web).unwrap()];
    let text =
        results.concat().join("; ").replace(REASON_DISK, "DISK").replace(REASON_CLAIM, "CLAIM");
    want.assert_eq(&text);
}

#[test]
fn disks_that_must_not_be_mounted_twice() {
    let gce = |name: &str, read_only: bool| json!([{"name": "v", "gcePersistentDisk": {"pdName": name, "readOnly": read_only}}]);
    check(gce("d", false), gce("d", false), &expect!["All; a Unschedulable DISK; b Success"]);
    check(gce("d", true), gce("d", false), &expect!["All; a Unschedulable DISK; b Success"]);
    check(gce("d", true), gce("d", true), &expect!["All; a Success; b Success"]);
    check(gce("d", false), gce("e", false), &expect!["All; a Success; b Success"]);
    let ebs = |id: &str| json!([{"name": "v", "awsElasticBlockStore": {"volumeID": id, "readOnly": true}}]);
    check(ebs("v"), ebs("v"), &expect!["All; a Unschedulable DISK; b Success"]);
    check(ebs("v"), ebs("w"), &expect!["All; a Success; b Success"]);
    check(ebs("v"), gce("v", false), &expect!["All; a Success; b Success"]);
    let iscsi = |iqn: &str, lun: i32, read_only: bool| json!([{"name": "v", "iscsi": {"iqn": iqn, "lun": lun, "readOnly": read_only}}]);
    check(
        iscsi("i", 0, true),
        iscsi("i", 1, false),
        &expect!["All; a Unschedulable DISK; b Success"],
    );
    check(iscsi("i", 0, true), iscsi("i", 0, true), &expect!["All; a Success; b Success"]);
    let rbd = |monitors: Value, pool: &str, read_only: bool| json!([{"name": "v", "rbd": {"monitors": monitors, "pool": pool, "image": "i", "readOnly": read_only}}]);
    let ab = || rbd(json!(["a", "b"]), "p", false);
    check(
        ab(),
        rbd(json!(["b", "c"]), "p", true),
        &expect!["All; a Unschedulable DISK; b Success"],
    );
    check(ab(), rbd(json!(["c"]), "p", false), &expect!["All; a Success; b Success"]);
    check(ab(), rbd(json!(["b"]), "q", false), &expect!["All; a Success; b Success"]);
}

#[test]
fn a_claim_of_one_pod_has_one_user() {
    check(uses("own"), uses("own"), &expect!["All; a Unschedulable CLAIM; b Unschedulable CLAIM"]);
    check(uses("own"), uses("shared"), &expect!["Skip; a Success; b Success"]);
    check(uses("shared"), uses("shared"), &expect!["Skip; a Success; b Success"]);
    check(json!([]), uses("own"), &expect!["Skip; a Success; b Success"]);
    check(
        uses("none"),
        json!([]),
        &expect![[
            r#"UnschedulableAndUnresolvable persistentvolumeclaim "none" not found; a UnschedulableAndUnresolvable persistentvolumeclaim "none" not found; b UnschedulableAndUnresolvable persistentvolumeclaim "none" not found"#
        ]],
    );
    // A claim of this name in another namespace is another claim.
    let mut bench = bench(json!([]));
    bench
        .add_assigned_pod(
            "a",
            pod("other").namespace("blue").set_field("/spec/volumes", uses("own")),
        )
        .unwrap();
    assert_eq!(bench.pre_filter(with_volumes("web", uses("own"))).unwrap(), "Skip");
}

#[test]
fn dry_runs_count_the_users_of_a_claim() {
    let mut bench = bench(uses("own"));
    let web = bench.parse_pod(with_volumes("web", uses("own"))).unwrap();
    let old = bench.world.node_infos().next().unwrap().pods().next().unwrap().clone();
    let mut cycle = CycleState::default();
    let points = bench.extension_points();
    let (pre_filter, filter) = (points.pre_filter.clone().unwrap(), points.filter.clone().unwrap());
    let mut states = loadmaster_framework::PluginStates::default();
    let cx = SerialCx { world: &bench.world, cycle: &mut cycle, states: &mut states };
    assert!(pre_filter.pre_filter(cx, &web).is_ok());
    let node = bench.world.node_infos().nth(1).unwrap();
    let is_feasible = |cycle: &CycleState| {
        filter.filter(Cx { world: &bench.world, cycle, states: &states }, &web, node).is_ok()
    };
    assert!(!is_feasible(&cycle));
    pre_filter.remove_pod(&mut cycle, &bench.world, &web, &old, node).unwrap();
    assert!(is_feasible(&cycle));
    pre_filter.add_pod(&mut cycle, &bench.world, &web, &old, node).unwrap();
    assert!(!is_feasible(&cycle));
}

#[test]
fn hints() {
    let mut bench = bench(json!([]));
    let disk = json!([{"name": "v", "awsElasticBlockStore": {"volumeID": "x"}}]);
    let mut web_volumes = uses("own");
    web_volumes.as_array_mut().unwrap().push(disk[0].clone());
    let web = with_volumes("web", web_volumes);
    let mut after_deleted = |deleted: Value| {
        let deleted = bench.parse_pod(deleted).unwrap();
        let event = ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE);
        bench.queueing_hint(event, web.clone(), Some(EventObject::Pod(&deleted)), None).unwrap()
    };
    assert_eq!(after_deleted(with_volumes("old", uses("own"))), "Queue");
    assert_eq!(after_deleted(with_volumes("old", disk.clone())), "Queue");
    assert_eq!(after_deleted(with_volumes("old", uses("shared"))), "Skip");
    let blue = pod("old").namespace("blue").set_field("/spec/volumes", disk);
    assert_eq!(after_deleted(blue.into()), "Skip");
    let added = ClusterEvent::new(EventResource::Node, ActionType::ADD);
    assert_eq!(bench.queueing_hint(added, web, None, None).unwrap(), "Queue");
}

#[test]
fn pods_share_their_key_unless_disks_or_exclusive_claims_differ() {
    let mut bench = bench(uses("own"));
    let mut are_equal = |one: Value, other: Value| {
        bench.have_equal_keys(with_volumes("x", one), with_volumes("y", other)).unwrap()
    };
    assert!(are_equal(uses("shared"), json!([])));
    assert!(!are_equal(uses("own"), json!([])));
    assert!(!are_equal(uses("none"), json!([])));
    let disk = |id: &str| json!([{"name": "v", "awsElasticBlockStore": {"volumeID": id}}]);
    assert!(!are_equal(disk("x"), disk("y")));
    assert!(are_equal(disk("x"), disk("x")));
    bench.check_key(with_volumes("web", uses("own"))).unwrap();
}

#[test]
fn explain_names_the_pods_that_use_claims_and_disks() {
    let disk = |read_only: bool| json!([{"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": read_only}}]);
    let check = |wanted: Value, used: Value, want: &[&str]| {
        let mut bench = bench(used);
        bench.add_assigned_pod("b", with_volumes("new", uses("own"))).unwrap();
        assert_eq!(bench.explain(with_volumes("web", wanted)).unwrap(), want);
    };
    let user = |pod: &str, node: &str| {
        format!("own (ReadWriteOncePod) is used by pod {pod} on node {node}")
    };
    let of_new = user("new", "b");
    check(uses("own"), json!([]), &[&format!("pod: usedClaims={of_new}")]);
    let both = format!("pod: usedClaims={}; {of_new}", user("old", "a"));
    check(uses("own"), uses("own"), &[&both]);
    check(uses("shared"), uses("shared"), &[]);
    check(uses("gone"), json!([]), &[]);
    check(
        disk(false),
        disk(true),
        &["a: usedDisks=the disk of volume v is used by pod default/old"],
    );
    check(disk(true), disk(true), &[]);
}
