//! The plugin alone; `crates/loadmaster/tests/it/coscheduling.rs` tests it in a scheduler.

use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_framework::testkit::incremental_history::check_incremental_history;
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, TestCycle, node, pod};
use loadmaster_framework::{EventResource, Rng};
use serde_json::json;

use super::*;
use crate::pod_group::{LABEL, OLD_LABEL};

fn bench(args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    bench.node(node("n").allocatable("cpu", "4").allocatable("pods", "10")).unwrap();
    bench
}

fn pod_group(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn member(name: &str, group: &str) -> PodBuilder {
    pod(name).label(LABEL, group).request("cpu", "1")
}

fn terminating(name: &str) -> PodBuilder {
    member(name, "g").set_field("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z")
}

/// A bench with a PodGroup `g` with this spec, and so many pending members `g-0`, `g-1`, ...
fn bench_with_group(args: Value, spec: Value, n_members: usize) -> PluginTestBench {
    let mut bench = bench(args);
    bench.object(&pod_groups(), pod_group("g", spec)).unwrap();
    for nth in 0..n_members {
        bench.add_pending_pod(member(&format!("g-{nth}"), "g")).unwrap();
    }
    bench
}

/// Reserves a member's place on the node. Returns the result of Permit.
fn reserve(bench: &mut PluginTestBench, name: &str) -> (TestCycle, String) {
    let mut cycle = bench.start_cycle(member(name, "g"), "n").unwrap();
    assert_eq!(bench.reserve(&mut cycle), "Success");
    let permitted = bench.permit(&mut cycle);
    (cycle, permitted)
}

const UNRESOLVABLE: &str = "UnschedulableAndUnresolvable";

#[test]
fn arguments_are_validated_with_upstreams_messages() {
    #[track_caller]
    fn check(args: Value, want: &str) {
        let error = PluginTestBench::new(&DEF, args).err().map(|error| error.to_string());
        assert_eq!(error.as_deref().unwrap_or_default(), want);
    }
    check(json!({}), "");
    check(json!({"permitWaitingTimeSeconds": 0, "podGroupRejectPercentage": 100}), "");
    check(
        json!({"permitWaitingTimeSeconds": -1, "podGroupBackoffSeconds": -2}),
        "permitWaitingTimeSeconds: Invalid value: -1: must be greater than 0; podGroupBackoffSeconds: Invalid value: -2: must be greater than 0",
    );
    check(
        json!({"podGroupRejectPercentage": 101}),
        "podGroupRejectPercentage: Invalid value: 101: must be between 0 and 100",
    );
}

#[test]
fn arguments_have_upstreams_defaults() {
    let defaults = (DEF.args.unwrap())(&json!({}), &Default::default()).unwrap();
    let want = json!({"permitWaitingTimeSeconds": 60, "podGroupBackoffSeconds": 0, "podGroupRejectPercentage": 10});
    assert_eq!(defaults, want);
}

#[test]
fn pre_filter_counts_siblings() {
    #[track_caller]
    fn check(others: &[PodBuilder], want: &str) {
        let mut bench = bench_with_group(json!({}), json!({"minMember": 3}), 1);
        for other in others {
            bench.add_pending_pod(other.clone()).unwrap();
        }
        let want = want.replace("Rejected", UNRESOLVABLE);
        assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), want);
    }
    let too_few = |n| {
        format!(
            "Rejected pre-filter pod g-0 cannot find enough sibling pods, current pods number: {n}, minMember of group: 3"
        )
    };
    check(&[], &too_few(1));
    check(&[member("g-1", "g"), member("h-0", "h")], &too_few(2));
    check(&[member("g-1", "g"), member("x", "g").namespace("other")], &too_few(2));
    check(&[member("g-1", "g"), terminating("g-2")], &too_few(2));
    check(&[member("g-1", "g"), member("g-2", "g")], "All");
    let gate = json!([{"name": "wait"}]);
    let gated = |name| member(name, "g").set_field("/spec/schedulingGates", gate.clone());
    let for_gated =
        "Rejected pre-filter pod g-0 cannot proceed due to gated pods in the same PodGroup";
    check(&[member("g-1", "g"), gated("g-2")], for_gated);
    check(&[member("g-1", "g"), member("g-2", "g"), gated("g-3")], "All");
}

/// A bench at the second 100, and members that were created so many milliseconds before.
fn bench_with_new_members(n_min: usize, ages: &[u64]) -> PluginTestBench {
    let mut bench = bench_with_group(json!({}), json!({"minMember": n_min}), 0);
    bench.advance_time(Duration::from_secs(100));
    for (nth, age) in ages.iter().enumerate() {
        bench.add_pending_pod(new_member(nth, 100_000 - age)).unwrap();
    }
    bench
}

/// A member that was created at this millisecond.
fn new_member(nth: usize, millis: u64) -> PodBuilder {
    let created = Timestamp(millis as i64 / 1_000 * 1_000_000_000);
    member(&format!("g-{nth}"), "g").set_field("/metadata/creationTimestamp", created.to_string())
}

fn pre_enqueue(bench: &mut PluginTestBench, n: usize) -> Vec<String> {
    (0..n).map(|nth| bench.pre_enqueue(member(&format!("g-{nth}"), "g")).unwrap()).collect()
}

const WAITS: &str = "Unschedulable waiting for another pod of PodGroup default/g to find a node";

#[test]
fn pre_enqueue_holds_new_members_for_two_seconds() {
    let mut bench = bench_with_new_members(4, &[100, 1_500, 3_500]);
    let too_few = |name| {
        format!(
            "{UNRESOLVABLE} pre-filter pod {name} cannot find enough sibling pods, current pods number: 3, minMember of group: 4"
        )
    };
    let old = "Success".to_owned();
    assert_eq!(pre_enqueue(&mut bench, 3), [too_few("g-0"), too_few("g-1"), old]);
    assert_eq!(bench.pre_enqueue(member("h-0", "h")).unwrap(), "Success", "without PodGroup");
    assert_eq!(bench.pre_enqueue(pod("web")).unwrap(), "Success");
    // Those that are held wait for the first one from now on.
    bench.advance_time(Duration::from_millis(500));
    bench.add_pending_pod(new_member(3, 100_500)).unwrap();
    bench.advance_time(Duration::from_millis(1_999));
    assert_eq!(pre_enqueue(&mut bench, 4), ["Success", WAITS, "Success", WAITS]);
    bench.advance_time(Duration::from_millis(1));
    assert_eq!(pre_enqueue(&mut bench, 4), ["Success"; 4]);
}

#[test]
fn pre_enqueue_admits_the_members_when_the_first_one_has_a_node() {
    let mut bench = bench_with_new_members(3, &[100, 100, 100]);
    assert_eq!(pre_enqueue(&mut bench, 3), ["Success", WAITS, WAITS]);
    let _first = reserve(&mut bench, "g-0");
    assert_eq!(pre_enqueue(&mut bench, 3)[1..], ["Success"; 2]);
}

#[test]
fn pods_without_a_pod_group_pass_pre_filter() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 3}), 1);
    assert_eq!(bench.pre_filter(pod("web")).unwrap(), "All");
    assert_eq!(bench.pre_filter(member("h-0", "h")).unwrap(), "All", "its PodGroup is missing");
}

#[test]
fn permit_rejects_pods_whose_pod_group_is_missing() {
    let mut bench = bench(json!({}));
    bench.add_pending_pod(member("g-0", "g")).unwrap();
    let (_, permitted) = reserve(&mut bench, "g-0");
    assert_eq!(permitted, "Unschedulable PodGroup not found");
    let mut cycle = bench.start_cycle(pod("web"), "n").unwrap();
    assert_eq!(bench.permit(&mut cycle), "Allow");
}

#[test]
fn permit_waits_for_min_member_pods() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 3}), 4);
    assert_eq!(reserve(&mut bench, "g-0").1, "Wait 60s");
    let (second, permitted) = reserve(&mut bench, "g-1");
    assert_eq!(permitted, "Wait 60s");
    // Its place is free again, so the third one is only the second.
    bench.unreserve(second);
    bench.advance_time(Duration::from_secs(1));
    assert_eq!(reserve(&mut bench, "g-2").1, "Wait 60s");
    assert_eq!(reserve(&mut bench, "g-3").1, "Allow");
}

#[test]
fn a_member_that_another_scheduler_binds_may_be_the_last_one() {
    #[track_caller]
    fn check(n_min: usize, want: &str) {
        let mut bench = bench_with_group(json!({}), json!({"minMember": n_min}), 3);
        let (first, permitted) = reserve(&mut bench, "g-0");
        assert_eq!(permitted, "Wait 60s");
        bench.add_assigned_pod("n", member("other", "g")).unwrap();
        // The end of its binding cycle fails the attempt of the group only if that is not over.
        bench.unreserve(first);
        let want = want.replace("Rejected", UNRESOLVABLE);
        assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), want);
    }
    check(2, "All");
    check(3, "Rejected podGroup default/g failed recently");
}

#[test]
fn terminating_members_do_not_count_at_permit() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 2}), 2);
    bench.add_assigned_pod("n", terminating("old")).unwrap();
    assert_eq!(reserve(&mut bench, "g-0").1, "Wait 60s");
    assert_eq!(reserve(&mut bench, "g-1").1, "Allow");
}

#[test]
fn the_waiting_time_is_that_of_the_pod_group_or_of_the_arguments() {
    #[track_caller]
    fn check(args: Value, timeout: Value, want: &str) {
        let spec = json!({"minMember": 2, "scheduleTimeoutSeconds": timeout});
        let mut bench = bench_with_group(args, spec, 2);
        assert_eq!(reserve(&mut bench, "g-0").1, want);
    }
    check(json!({}), json!(null), "Wait 60s");
    check(json!({}), json!(0), "Wait 60s");
    check(json!({}), json!(7), "Wait 7s");
    check(json!({"permitWaitingTimeSeconds": 10}), json!(null), "Wait 10s");
    check(json!({"permitWaitingTimeSeconds": 0}), json!(null), "Wait 60s");
}

#[test]
fn post_filter_fails_the_attempt_unless_others_can_take_the_place() {
    /// `n_reserved` of `n_members` have a node, then the last one fits nowhere.
    #[track_caller]
    fn check(args: Value, n_min: usize, n_members: usize, n_reserved: usize, want: &str) {
        let mut bench = bench_with_group(args, json!({"minMember": n_min}), n_members);
        let _cycles: Vec<_> =
            (0..n_reserved).map(|nth| reserve(&mut bench, &format!("g-{nth}"))).collect();
        let last = member(&format!("g-{}", n_members - 1), "g");
        assert_eq!(bench.post_filter(last.into(), 0).unwrap(), want);
    }
    let failed = |pod| {
        format!(
            "Unschedulable PodGroup default/g gets rejected due to Pod {pod} is unschedulable even after PostFilter"
        )
    };
    check(json!({}), 3, 3, 2, &failed("g-2"));
    check(json!({}), 2, 3, 2, "Unschedulable ");
    let half = json!({"podGroupRejectPercentage": 50});
    check(half.clone(), 2, 3, 1, "Unschedulable ");
    // Upstream waits for the timeout: no member is left that could take the place.
    check(half.clone(), 2, 2, 1, &failed("g-1"));
    check(half, 3, 4, 1, &failed("g-3"));
    let mut bench = bench(json!({}));
    let alone = bench.post_filter(pod("web").into(), 0).unwrap();
    assert_eq!(alone, "Unschedulable can not find pod group");
}

#[test]
fn a_member_that_fits_nowhere_fails_one_attempt() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 3}), 5);
    let post_filter = |bench: &mut PluginTestBench, name: &str| {
        let result = bench.post_filter(member(name, "g").into(), 0).unwrap();
        let has_failed = result.contains("gets rejected");
        bench.advance_time(Duration::from_secs(11));
        has_failed
    };
    assert!(post_filter(&mut bench, "g-4"), "others may not fit either");
    assert!(!post_filter(&mut bench, "g-4"));
    let first = reserve(&mut bench, "g-0").0;
    assert!(!post_filter(&mut bench, "g-4"));
    assert!(post_filter(&mut bench, "g-3"), "it may fit without the others");
    // Too few others are left that can be tried.
    bench.unreserve(first);
    let gate = json!([{"name": "wait"}]);
    bench.add_pending_pod(member("g-3", "g").set_field("/spec/schedulingGates", gate)).unwrap();
    let _first = reserve(&mut bench, "g-0");
    assert!(!post_filter(&mut bench, "g-4"), "g-1 and g-2 are left");
    bench.delete_pod("default/g-2");
    bench.add_pending_pod(member("g-5", "g")).unwrap();
    let _second = reserve(&mut bench, "g-1");
    assert!(!post_filter(&mut bench, "g-4"), "g-5 is left");
    bench.delete_pod("default/g-5");
    assert!(post_filter(&mut bench, "g-4"), "only a gated pod is left");
}

#[test]
fn a_failed_group_backs_off() {
    #[track_caller]
    fn check(args: Value, millis: &[u64]) {
        let mut bench = bench_with_group(args, json!({"minMember": 2}), 2);
        for expected in millis {
            bench.post_filter(member("g-1", "g").into(), 0).unwrap();
            let backs_off = format!("{UNRESOLVABLE} podGroup default/g failed recently");
            assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), backs_off);
            bench.advance_time(Duration::from_millis(*expected) - Duration::from_nanos(1));
            assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), backs_off);
            bench.advance_time(Duration::from_nanos(1));
            assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), "All");
        }
        // A group that succeeds starts from the beginning.
        let _cycles = [reserve(&mut bench, "g-0"), reserve(&mut bench, "g-1")];
        assert_eq!(_cycles[1].1, "Allow");
    }
    check(json!({}), &[100, 100, 100, 100, 100, 125]);
    check(json!({"podGroupBackoffSeconds": 30}), &[30_000, 30_000]);
}

#[test]
fn the_backoff_is_a_quarter_of_the_time_since_more_members_had_a_node_than_ever() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 5}), 5);
    let attempts = [
        (0, 0, 100),
        (0, 700, 200),
        (1, 1_000, 100),
        (1, 3_900, 1_000),
        (0, 3_000, 2_000),
        (3, 0, 100),
        (2, 60_000, 10_000),
    ];
    for (n_placed, after, millis) in attempts {
        bench.advance_time(Duration::from_millis(after));
        let cycles: Vec<TestCycle> =
            (0..n_placed).map(|nth| reserve(&mut bench, &format!("g-{nth}")).0).collect();
        bench.post_filter(member("g-4", "g").into(), 0).unwrap();
        cycles.into_iter().for_each(|cycle| bench.unreserve(cycle));
        bench.advance_time(Duration::from_millis(millis) - Duration::from_nanos(1));
        let backs_off = format!("{UNRESOLVABLE} podGroup default/g failed recently");
        assert_eq!(bench.pre_filter(member("g-4", "g")).unwrap(), backs_off, "{n_placed} placed");
        bench.advance_time(Duration::from_nanos(1));
        assert_eq!(bench.pre_filter(member("g-4", "g")).unwrap(), "All", "{n_placed} placed");
    }
}

#[test]
fn min_resources_must_be_free_without_the_group_itself() {
    #[track_caller]
    fn check(min_resources: Value, assigned: &[PodBuilder], want: &str) {
        let spec = json!({"minMember": 2, "minResources": min_resources});
        let mut bench = bench_with_group(json!({}), spec, 2);
        for pod in assigned {
            bench.add_assigned_pod("n", pod.clone()).unwrap();
        }
        let want = want.replace("Rejected", UNRESOLVABLE);
        assert_eq!(bench.pre_filter(member("g-0", "g")).unwrap(), want);
    }
    let other = |cpu| pod("other").request("cpu", cpu);
    check(json!({"cpu": "4"}), &[], "All");
    check(json!({"cpu": "4"}), &[other("500m")], "Rejected resource gap: cpu: 500m");
    check(json!({"cpu": "4"}), &[member("g-2", "g")], "All");
    let all = json!({"cpu": "5", "example.com/gpu": "2", "pods": "1"});
    check(all, &[], "Rejected resource gap: cpu: 1000m, example.com/gpu: 2");
    check(json!({}), &[], "All");
    // The node does not have the resource any more.
    let other = pod("other").request("example.com/gpu", "3");
    let gap = "Rejected resource gap: example.com/gpu: 2";
    check(json!({"example.com/gpu": "2"}), &[other], gap);
}

#[test]
fn pods_are_ordered_by_priority_time_and_group() {
    let mut bench = bench(json!({}));
    let created = |name: &str, second: u32| {
        let mut group = pod_group(name, json!({"minMember": 2}));
        group["metadata"]["creationTimestamp"] = json!(format!("1970-01-01T00:00:{second:02}Z"));
        group
    };
    for (name, second) in [("a", 10), ("b", 10), ("old", 0)] {
        bench.object(&pod_groups(), created(name, second)).unwrap();
    }
    let pods = || {
        ["a-1", "b-0", "a-0", "b-1", "old-0", "missing-0"]
            .map(|name| member(name, name.split_once('-').unwrap().0))
    };
    for pod in pods() {
        bench.add_pending_pod(pod).unwrap();
    }
    // The first attempt of the pod without a PodGroup is at second 5.
    let want = ["old-0", "missing-0", "a-0", "a-1", "b-0", "b-1"];
    assert_eq!(bench.queue_order(pods()).unwrap(), want);
    let urgent = pods().into_iter().chain([member("b-2", "b").priority(1)]);
    assert_eq!(bench.queue_order(urgent).unwrap()[0], "b-2");
    // A group that failed goes behind the others.
    bench.advance_time(Duration::from_secs(20));
    bench.post_filter(member("a-0", "a").into(), 0).unwrap();
    let want = ["old-0", "missing-0", "b-0", "b-1", "a-0", "a-1"];
    assert_eq!(bench.queue_order(pods()).unwrap(), want);
    let mut cycle = bench.start_cycle(member("b-0", "b"), "n").unwrap();
    bench.reserve(&mut cycle);
    assert_eq!(bench.permit(&mut cycle), "Wait 60s");
    bench.advance_time(Duration::from_secs(1));
    bench.unreserve(cycle);
    let want = ["old-0", "missing-0", "a-0", "a-1", "b-0", "b-1"];
    assert_eq!(bench.queue_order(pods()).unwrap(), want);
}

#[test]
fn events_of_nodes_wake_pods_that_wait_for_min_resources() {
    #[track_caller]
    fn check(min_resources: Value, want: &str) {
        let spec = json!({"minMember": 2, "minResources": min_resources});
        let mut bench = bench_with_group(json!({}), spec, 2);
        let hint = |bench: &mut PluginTestBench| {
            let event = ClusterEvent::new(EventResource::Node, ActionType::ADD);
            bench.queueing_hint(event, member("g-0", "g").into(), None, None).unwrap()
        };
        assert_eq!(hint(&mut bench), want);
        bench.post_filter(member("g-1", "g").into(), 0).unwrap();
        assert_eq!(hint(&mut bench), "Skip", "the group backs off");
        bench.advance_time(Duration::from_secs(1));
        assert_eq!(hint(&mut bench), want);
    }
    check(json!(null), "Skip");
    check(json!({"cpu": "4"}), "Queue");
    check(json!({"cpu": "5"}), "Skip");
}

#[test]
fn the_older_group_and_label_are_read() {
    let mut bench = bench(json!({}));
    bench.object(&old_pod_groups(), pod_group("g", json!({"minMember": 2}))).unwrap();
    let old = |name| pod(name).label(OLD_LABEL, "g").request("cpu", "1");
    bench.add_pending_pod(old("g-0")).unwrap();
    assert!(bench.pre_filter(old("g-0")).unwrap().contains("cannot find enough sibling pods"));
    bench.add_pending_pod(old("g-1")).unwrap();
    assert_eq!(bench.pre_filter(old("g-0")).unwrap(), "All");
    bench.add_pending_pod(member("x", "g")).unwrap();
    assert_eq!(bench.pre_filter(member("x", "g")).unwrap(), "All", "another group: not found");
}

#[test]
fn members_of_complete_groups_share_results_with_all_pods() {
    let mut bench = bench_with_group(json!({}), json!({"minMember": 2}), 1);
    let same = |bench: &mut PluginTestBench| {
        bench.have_equal_keys(pod("web"), member("g-0", "g")).unwrap()
    };
    assert!(!same(&mut bench), "it is rejected with a message of its own");
    bench.add_pending_pod(member("g-1", "g")).unwrap();
    assert!(same(&mut bench));
    bench.post_filter(member("g-1", "g").into(), 0).unwrap();
    assert!(!same(&mut bench), "the group backs off");
}

#[test]
fn keys_follow_every_change() {
    for seed in 0..40 {
        let mut bench = bench(json!({}));
        let mut rng = Rng::new(seed);
        let random_member = |rng: &mut Rng| {
            let name = format!("p-{}", rng.below(5));
            match *rng.pick(&["", "g", "h"]) {
                "" => pod(&name),
                group => member(&name, group),
            }
        };
        let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
            Ok(match rng.below(8) {
                0 | 1 => {
                    bench.add_pending_pod(random_member(rng))?;
                    "a pending pod"
                }
                2 => {
                    bench.add_assigned_pod("n", random_member(rng))?;
                    "an assigned pod"
                }
                3 => {
                    bench.delete_pod(&format!("default/p-{}", rng.below(5)));
                    "a pod is deleted"
                }
                4 => {
                    bench.post_filter(random_member(rng).into(), 0)?;
                    "no node"
                }
                5 => {
                    bench.advance_time(Duration::from_millis(rng.below(3000)));
                    "time"
                }
                6 => {
                    bench.delete_object(&pod_groups(), "default", "h");
                    "a PodGroup is deleted"
                }
                _ => {
                    let mut spec = json!({"minMember": rng.range(1, 4)});
                    if rng.one_in(2) {
                        spec["minResources"] = json!({"cpu": rng.range(1, 5)});
                    }
                    let name = *rng.pick(&["g", "h"]);
                    bench.object(&pod_groups(), pod_group(name, spec))?;
                    "a PodGroup"
                }
            })
        };
        let pod = |rng: &mut Rng| random_member(rng).into();
        check_incremental_history(&mut bench, &mut rng, 150, pod, change).unwrap();
    }
}

#[test]
fn explain_says_what_the_group_waits_for() {
    #[track_caller]
    fn check(bench: &mut PluginTestBench, want: &str) {
        let shown = bench.explain(member("g-0", "g")).unwrap();
        let waits_for = shown[0].split_once("waitsFor=").map(|(_, text)| text);
        assert_eq!(waits_for.unwrap_or_default(), want, "{}", shown[0]);
    }
    let mut bench = bench(json!({}));
    bench.add_pending_pod(member("g-0", "g")).unwrap();
    check(&mut bench, "the PodGroup");
    bench.object(&pod_groups(), pod_group("g", json!({"minMember": 3}))).unwrap();
    check(&mut bench, "2 more pods to be created");
    bench.add_pending_pod(member("g-1", "g")).unwrap();
    let gate = json!([{"name": "wait"}]);
    bench.add_pending_pod(member("g-2", "g").set_field("/spec/schedulingGates", gate)).unwrap();
    check(&mut bench, "1 more pod without scheduling gates");
    bench.add_pending_pod(member("g-2", "g")).unwrap();
    check(&mut bench, "3 more pods to get a node");
    let (_cycle, _) = reserve(&mut bench, "g-1");
    check(&mut bench, "2 more pods to get a node");
    bench.post_filter(member("g-2", "g").into(), 0).unwrap();
    check(&mut bench, "the backoff after a failed attempt, 1 s more");
    for name in ["g-0", "g-1", "g-2"] {
        bench.add_assigned_pod("n", member(name, "g")).unwrap();
    }
    bench.advance_time(Duration::from_secs(1));
    check(&mut bench, "");
}

#[test]
fn metrics_show_each_group_as_long_as_it_exists() {
    #[track_caller]
    fn check(bench: &PluginTestBench, want: &[&str]) {
        let mut lines = Vec::new();
        for family in
            bench.extension_points().metrics().iter().flat_map(|it| it.collector().collect())
        {
            let name = family.name().trim_start_matches("coscheduling_pod_group_").to_owned();
            for metric in family.get_metric() {
                let shown = ["pod_group", "state"];
                let labels = metric.get_label().iter().filter(|it| shown.contains(&it.name()));
                let labels: Vec<&str> = labels.map(|it| it.value()).collect();
                lines.push(format!(
                    "{name} {}: {}",
                    labels.join(" "),
                    metric.get_gauge().get_value()
                ));
            }
        }
        lines.sort_unstable();
        assert_eq!(lines, want);
    }
    let mut bench = bench_with_group(json!({}), json!({"minMember": 3}), 0);
    check(&bench, &[]);
    for nth in 0..3 {
        bench.add_pending_pod(member(&format!("g-{nth}"), "g")).unwrap();
    }
    bench.add_pending_pod(member("h-0", "h")).unwrap();
    bench.add_assigned_pod("n", member("g-3", "g")).unwrap();
    let (_cycle, _) = reserve(&mut bench, "g-0");
    check(
        &bench,
        &[
            "failed_attempts g: 0",
            "min_member g: 3",
            "pods g bound: 1",
            "pods g pending: 2",
            "pods g waiting: 1",
        ],
    );
    for nth in 2..4 {
        bench.delete_pod(&format!("default/g-{nth}"));
    }
    bench.object(&pod_groups(), pod_group("g", json!({"minMember": 2}))).unwrap();
    bench.post_filter(member("g-1", "g").into(), 0).unwrap();
    check(
        &bench,
        &[
            "failed_attempts g: 1",
            "min_member g: 2",
            "pods g bound: 0",
            "pods g pending: 1",
            "pods g waiting: 1",
        ],
    );
    bench.delete_object(&pod_groups(), "default", "g");
    check(&bench, &[]);
}

#[test]
fn a_min_member_below_one_counts_as_one_with_a_warning() {
    let mut bench = bench(json!({}));
    bench.add_pending_pod(member("g-0", "g")).unwrap();
    let (_, lines) = loadmaster_framework::plugin_log::collect_log_lines(3, || {
        bench.object(&pod_groups(), pod_group("g", json!({"minMember": 0}))).unwrap();
    });
    let texts: Vec<&str> = lines.iter().map(|line| &*line.message).collect();
    assert_eq!(texts, ["PodGroup default/g: minMember is 0, and counts as 1"]);
    assert_eq!(reserve(&mut bench, "g-0").1, "Allow");
}
