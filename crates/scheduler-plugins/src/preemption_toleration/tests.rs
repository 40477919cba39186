use std::time::Duration;

use expect_test::{Expect, expect};
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, node, pod};
use serde_json::json;

use super::*;

fn priority_class(value: i32, annotations: &[(&str, &str)]) -> PriorityClass {
    let annotations = annotations.iter().map(|(key, text)| (key.to_string(), text.to_string()));
    let metadata = PriorityClassMetadata { annotations: Some(annotations.collect()) };
    PriorityClass { metadata, value }
}

#[test]
fn policies() {
    let check = |value, annotations: &[(&str, &str)], want: Option<(i32, i64)>| {
        let policy = TolerationPolicy::of(&priority_class(value, annotations));
        let policy = policy.map(|it| (it.minimum_preemptable_priority, it.toleration_seconds));
        assert_eq!(policy, want);
    };
    let (minimum, seconds) = (MINIMUM_PREEMPTABLE_PRIORITY, TOLERATION_SECONDS);
    check(7, &[], Some((8, 0)));
    check(7, &[("other", "x")], Some((8, 0)));
    check(7, &[(minimum, "-5"), (seconds, "-1")], Some((-5, -1)));
    check(7, &[(minimum, "+9"), (seconds, "3600")], Some((9, 3600)));
    check(7, &[(minimum, "2147483648")], None);
    check(7, &[(seconds, "1h")], None);
    check(7, &[(seconds, "")], None);
    let classes = json!([{"metadata": {"name": "a"}, "value": 3},
        {"metadata": {"name": "b", "annotations": null}, "value": 3}]);
    for class in classes.as_array().unwrap() {
        let class = PriorityClass::deserialize(class).unwrap();
        assert!(TolerationPolicy::of(&class).is_some());
    }
}

#[test]
fn tolerations() {
    let check = |toleration_seconds, preemptor, scheduled: Option<i64>, now: i64, want| {
        let policy = TolerationPolicy { minimum_preemptable_priority: 10, toleration_seconds };
        let seconds = |it: i64| Timestamp(it * 1_000_000_000);
        assert_eq!(policy.tolerates(preemptor, scheduled.map(seconds), seconds(now)), want);
    };
    check(-1, 10, Some(100), 100, false);
    check(-1, 9, Some(100), 1_000_000, true);
    check(30, 9, Some(100), 100, true);
    check(30, 9, Some(100), 129, true);
    check(30, 9, Some(100), 130, false);
    check(0, 9, Some(100), 100, false);
    // Not known to be scheduled, for example assumed.
    check(0, 9, None, 100, true);
    check(i64::MAX, 9, Some(100), 1_000_000, true);
}

const SCHEDULED: &str = "2026-01-31T12:00:00Z";

/// A node with a victim of priority 1000 and of a class with these annotations.
fn bench(annotations: &Value, is_scheduled: bool) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    let class =
        json!({"metadata": {"name": "tolerant", "annotations": annotations}, "value": 1000});
    let kind = Gvr::new("scheduling.k8s.io", "v1", "priorityclasses");
    bench.object(&kind, class).unwrap();
    let mut victim = pod("victim").request("cpu", "4").priority(1000);
    victim = victim.set_field("/spec/priorityClassName", "tolerant");
    if is_scheduled {
        let conditions =
            json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": SCHEDULED}]);
        victim = victim.set_field("/status", json!({"conditions": conditions}));
    }
    bench.add_assigned_pod("a", victim).unwrap();
    bench.advance_time(seconds_until(SCHEDULED));
    bench
}

fn seconds_until(time: &str) -> Duration {
    let Timestamp(nanos) = serde_json::from_value(json!(time)).unwrap();
    Duration::from_nanos(nanos.unsigned_abs())
}

fn preemptor(priority: i32) -> PodBuilder {
    pod("new").request("cpu", "4").priority(priority)
}

#[track_caller]
fn check(annotations: Value, priority: i32, after: u64, want: &str) {
    let annotations: serde_json::Map<String, Value> = annotations.as_object().unwrap().clone();
    let prefixed = annotations
        .into_iter()
        .map(|(key, value)| (format!("preemption-toleration.scheduling.x-k8s.io/{key}"), value));
    let mut bench = bench(&prefixed.collect(), true);
    bench.advance_time(Duration::from_secs(after));
    let result = bench.post_filter(preemptor(priority).into(), 1).unwrap();
    let short = if result.starts_with("clears;") { "no victim" } else { &result };
    assert_eq!(short, want);
}

#[test]
fn annotations_of_the_priority_class_protect_its_pods() {
    let evicts = "nominates a; evicts victim";
    let up_to = |seconds: Option<&str>| match seconds {
        Some(seconds) => {
            json!({"minimum-preemptable-priority": "1010", "toleration-seconds": seconds})
        }
        None => json!({"minimum-preemptable-priority": "1010"}),
    };
    check(json!({}), 1001, 0, evicts);
    check(json!({}), 1000, 0, "no victim");
    check(up_to(None), 1010, 0, evicts);
    check(up_to(None), 1009, 0, evicts);
    check(up_to(Some("-1")), 1010, 0, evicts);
    check(up_to(Some("-1")), 1009, 1_000_000, "no victim");
    check(up_to(Some("30")), 1009, 0, "no victim");
    check(up_to(Some("30")), 1009, 29, "no victim");
    check(up_to(Some("30")), 1009, 30, evicts);
    check(up_to(Some("soon")), 1009, 0, evicts);
}

#[track_caller]
fn check_result(bench: &mut PluginTestBench, incoming: PodBuilder, want: &Expect) {
    want.assert_eq(&bench.post_filter(incoming.into(), 1).unwrap());
}

#[test]
fn messages() {
    let never = json!({TOLERATION_SECONDS: "-1", MINIMUM_PREEMPTABLE_PRIORITY: "2000"});
    let mut protected = bench(&never, true);
    check_result(
        &mut protected,
        preemptor(1500),
        &expect![
            "clears; Unschedulable 0/1 nodes are available: 1 No victims found on node a for preemptor pod new."
        ],
    );
    check_result(
        &mut protected,
        preemptor(3000).set_field("/spec/preemptionPolicy", "Never"),
        &expect!["clears; Unschedulable not eligible due to preemptionPolicy=Never."],
    );
    // A pod that is not known to be scheduled is exempted, even without seconds.
    check_result(
        &mut bench(&json!({MINIMUM_PREEMPTABLE_PRIORITY: "2000"}), false),
        preemptor(1500),
        &expect![
            "clears; Unschedulable 0/1 nodes are available: 1 No victims found on node a for preemptor pod new."
        ],
    );
    let mut of_unknown_class = bench(&json!({}), true);
    let kind = Gvr::new("scheduling.k8s.io", "v1", "priorityclasses");
    of_unknown_class.delete_object(&kind, "", "tolerant");
    check_result(
        &mut of_unknown_class,
        preemptor(1500),
        &expect![[r#"Error priorityclass.scheduling.k8s.io "tolerant" not found"#]],
    );
}

#[test]
fn a_preemptor_waits_for_its_victims() {
    let mut bench = bench(&json!({}), true);
    let terminating = pod("gone").set_field("/metadata/deletionTimestamp", SCHEDULED);
    bench.add_assigned_pod("a", terminating).unwrap();
    // Whoever deleted it: upstream does not look at the condition DisruptionTarget.
    check_result(
        &mut bench,
        preemptor(1500).set_field("/status", json!({"nominatedNodeName": "a"})),
        &expect!["Unschedulable not eligible due to a terminating pod on the nominated node."],
    );
    check_result(&mut bench, preemptor(1500), &expect!["nominates a; evicts victim"]);
    bench.world.ongoing_preemptions_mut().start("default/new");
    check_result(
        &mut bench,
        preemptor(1500),
        &expect!["Unschedulable waiting for the preemption for this pod to be finished"],
    );
}

#[test]
fn exempted_pods_stay_beside_victims() {
    let mut bench =
        bench(&json!({TOLERATION_SECONDS: "60", MINIMUM_PREEMPTABLE_PRIORITY: "2000"}), true);
    bench.node(node("a").allocatable("cpu", "8")).unwrap();
    bench.add_assigned_pod("a", pod("plain").request("cpu", "4").priority(1200)).unwrap();
    // The pod of higher priority goes, because the other one tolerates preemption.
    check_result(&mut bench, preemptor(1500), &expect!["nominates a; evicts plain"]);
    bench.advance_time(Duration::from_secs(61));
    check_result(&mut bench, preemptor(1500), &expect!["nominates a; evicts victim"]);
}
