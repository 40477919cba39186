//! Mismatches between cache and API server, and the text of a dump.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;
use crate::run::testkit;

fn names(nodes: &[&str], pods: &[&str]) -> CachedKeys {
    CachedKeys {
        nodes: nodes.iter().map(|name| Str::new(name)).collect(),
        pods: pods.iter().map(|uid| Box::from(*uid)).collect(),
    }
}

fn listed(nodes: &[&str], pods: &[&str]) -> ListedObjects {
    let pod = |uid: &&str| {
        let is_expected = !uid.starts_with("other");
        (Box::from(*uid), ListedPod { phase: Str::new("Running"), is_expected })
    };
    ListedObjects {
        nodes: nodes.iter().map(|name| Str::new(name)).collect(),
        pods: pods.iter().map(pod).collect(),
    }
}

#[test]
fn missed_and_redundant_objects() {
    #[track_caller]
    fn check(before: &[&str], after: &[&str], there: &[&str], missed: &[&str], redundant: &[&str]) {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let want = Mismatch { missed: of(missed), redundant: of(redundant) };
        let (before, after) = (names(before, before), names(after, after));
        let listed = listed(there, there);
        assert_eq!(nodes_mismatch(&before, &after, &listed), want);
        assert_eq!(pods_mismatch(&before, &after, &listed), want);
    }
    check(&["a", "b"], &["a", "b"], &["b", "a"], &[], &[]);
    check(&["a"], &["a"], &["a", "c", "b"], &["b", "c"], &[]);
    check(&["a", "c", "b"], &["a", "c", "b"], &["a"], &[], &["b", "c"]);
    check(&["a"], &["a"], &["b"], &["b"], &["a"]);
    // An object that is added or deleted during the comparison is not a mismatch.
    check(&["a"], &["a", "b"], &["a", "b"], &[], &[]);
    check(&["a", "b"], &["a"], &["a", "b"], &[], &[]);
    check(&["a"], &["a", "b"], &["a"], &[], &[]);
    check(&["a", "b"], &["a"], &["a"], &[], &[]);
}

#[test]
fn pending_pods_of_other_schedulers_are_not_missed() {
    let mismatch =
        pods_mismatch(&names(&[], &[]), &names(&[], &[]), &listed(&[], &["other-1", "mine"]));
    assert_eq!(mismatch.missed, ["mine"]);
}

fn cache_dump() -> CacheDump {
    let gpu = json!({"nodeName": "a", "containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi", "example.com/gpu": "2"}}}]});
    let pods = [
        ("old", gpu),
        ("lost", json!({"nodeName": "deleted"})),
        ("large", json!({"nodeSelector": {"disk": "ssd"}})),
        ("gated", json!({"schedulingGates": [{"name": "quota"}]})),
        ("foreign", json!({"schedulerName": "other"})),
    ];
    let mut engine = testkit::engine(&["b", "a"], &pods);
    testkit::schedule_pods(&mut engine);
    CacheDump::from_engine(&engine)
}

#[test]
fn a_dump_has_all_nodes_and_pods_of_the_engine() {
    let names = cache_dump().keys();
    let (nodes, pods) = (to_strings(names.nodes.iter()), to_strings(names.pods.iter()));
    assert_eq!(nodes, ["a", "b"]);
    assert_eq!(pods, ["uid-gated", "uid-large", "uid-lost", "uid-old"]);
    assert_eq!(cache_dump().profiles, ["default-scheduler"]);
}

#[test]
fn text_of_the_dump() {
    #[track_caller]
    fn check(text: &str, want: &Expect) {
        want.assert_eq(text);
    }
    let (picture, listed) = (cache_dump(), listed(&["a"], &["uid-old"]));
    check(
        &print::nodes(&picture, &listed),
        &expect![[r#"
        Node name: a
        Deleted: false
        Requested Resources: &{MilliCPU:1500 Memory:1073741824 EphemeralStorage:0 AllowedPodNumber:0 ScalarResources:map[example.com/gpu:2]}
        Allocatable Resources:&{MilliCPU:2000 Memory:8589934592 EphemeralStorage:0 AllowedPodNumber:10 ScalarResources:map[example.com/gpu:4]}
        Scheduled Pods(number: 1):
        name: old, namespace: shop, uid: uid-old, phase: Running, nominated node: 


        Node name: b
        Deleted: false
        Requested Resources: &{MilliCPU:0 Memory:0 EphemeralStorage:0 AllowedPodNumber:0 ScalarResources:map[]}
        Allocatable Resources:&{MilliCPU:2000 Memory:8589934592 EphemeralStorage:0 AllowedPodNumber:10 ScalarResources:map[example.com/gpu:4]}
        Scheduled Pods(number: 0):


        Node name: deleted
        Deleted: true
        Requested Resources: &{MilliCPU:0 Memory:0 EphemeralStorage:0 AllowedPodNumber:0 ScalarResources:map[]}
        Allocatable Resources:&{MilliCPU:0 Memory:0 EphemeralStorage:0 AllowedPodNumber:0 ScalarResources:map[]}
        Scheduled Pods(number: 1):
        name: lost, namespace: shop, uid: uid-lost, phase: , nominated node: 
    "#]],
    );
    check(
        &print::pods(&picture.pending, &listed),
        &expect![[r#"
        name: gated, namespace: shop, uid: uid-gated, phase: , nominated node: 
        name: large, namespace: shop, uid: uid-large, phase: , nominated node: 
    "#]],
    );
    check(&print::summary(picture.queued), &expect!["activeQ:0; backoffQ:0; unschedulablePods:2"]);
}

#[tokio::test]
async fn without_an_engine_there_is_no_dump() {
    let (commands, _) = tokio::sync::mpsc::unbounded_channel();
    assert!(query_engine(&commands, CacheDump::from_engine).await.is_none());
    let commands = testkit::spawn_engine_thread(testkit::engine(&["a"], &[]));
    assert_eq!(query_engine(&commands, CacheDump::from_engine).await.unwrap().nodes.len(), 1);
}
