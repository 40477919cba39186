use expect_test::{Expect, expect};
use loadmaster_api::Str;
use loadmaster_framework::testkit::PluginTestBench;
use serde_json::json;

use super::*;

/// Two nodes with 4 CPUs each, all of them used by pods of priority 0 to 5.
fn bench(args: Value) -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, args).unwrap();
    for name in ["a", "b"] {
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}});
        bench.node(node).unwrap();
    }
    for (node, name, priority) in [("a", "p1", 5), ("a", "p2", 0), ("b", "p3", 5), ("b", "p4", 4)] {
        bench.add_assigned_pod(node, pod(name, priority, "2")).unwrap();
    }
    bench
}

fn pod(name: &str, priority: i32, cpu: &str) -> Value {
    let containers = json!([{"resources": {"requests": {"cpu": cpu}}}]);
    json!({"metadata": {"name": name}, "spec": {"priority": priority, "containers": containers}})
}

#[track_caller]
fn check(bench: &mut PluginTestBench, incoming: Value, want: &Expect) {
    want.assert_eq(&bench.post_filter(incoming, 7).unwrap());
}

#[test]
fn nominates_a_node_and_evicts_victims() {
    let mut bench = bench(json!({}));
    check(&mut bench, pod("new", 9, "2"), &expect!["nominates a; evicts p2"]);
    check(&mut bench, pod("new", 5, "2"), &expect!["nominates a; evicts p2"]);
    check(&mut bench, pod("new", 9, "4"), &expect!["nominates a; evicts p1 p2"]);
    for (name, priority) in [("n1", 8), ("n2", 9)] {
        let nominated = Arc::new(bench.parse_pod(pod(name, priority, "1")).unwrap());
        bench.world.add_nominated_pod(Str::new("a"), nominated);
    }
    check(
        &mut bench,
        pod("new", 9, "4"),
        &expect!["nominates a; evicts p1 p2; clears the nomination of n1"],
    );
}

#[test]
fn terminating_pods_are_not_evicted_again() {
    let mut bench = bench(json!({}));
    let terminating = json!({"metadata": {"name": "p2", "deletionTimestamp": "2026-01-31T12:00:00Z"}, "spec": pod("p2", 0, "2")["spec"]});
    bench.add_assigned_pod("a", terminating).unwrap();
    let nominated = Arc::new(bench.parse_pod(pod("n1", 8, "1")).unwrap());
    bench.world.add_nominated_pod(Str::new("a"), nominated);
    check(&mut bench, pod("new", 9, "2"), &expect!["nominates a"]);
}

#[test]
fn no_candidates() {
    let mut bench = bench(json!({}));
    check(
        &mut bench,
        pod("new", 0, "2"),
        &expect![
            "clears; Unschedulable preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        ],
    );
    check(
        &mut bench,
        pod("new", 9, "5"),
        &expect![
            "clears; Unschedulable preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        ],
    );
    let mut never = pod("new", 9, "2");
    never["spec"]["preemptionPolicy"] = json!("Never");
    check(
        &mut bench,
        never,
        &expect!["clears; Unschedulable preemption: not eligible due to preemptionPolicy=Never."],
    );
}

#[test]
fn a_pod_with_a_terminating_victim_on_its_nominated_node_is_not_eligible() {
    let mut bench = bench(json!({}));
    let on_a = |cpu: &str| {
        let mut incoming = pod("new", 9, cpu);
        incoming["status"] = json!({"nominatedNodeName": "a"});
        incoming
    };
    let mut terminating = pod("p2", 0, "2");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
    let mut check_condition = |status: &str, reason: &str, cpu: &str, want: &Expect| {
        let condition = json!({"type": "DisruptionTarget", "status": status, "reason": reason});
        terminating["status"] = json!({"conditions": [condition]});
        bench.add_assigned_pod("a", terminating.clone()).unwrap();
        check(&mut bench, on_a(cpu), want);
    };
    check_condition(
        "True",
        "PreemptionByScheduler",
        "4",
        &expect![
            "Unschedulable preemption: not eligible due to a terminating pod on the nominated node."
        ],
    );
    check_condition("False", "PreemptionByScheduler", "4", &expect!["nominates a; evicts p1"]);
    check_condition("True", "EvictionByEvictionAPI", "4", &expect!["nominates a; evicts p1"]);
    // Preemption does not help on this node, so the pod does not wait.
    check_condition(
        "True",
        "PreemptionByScheduler",
        "5",
        &expect![
            "clears; Unschedulable preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        ],
    );
}

#[test]
fn no_nodes() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    check(&mut bench, pod("new", 9, "1"), &expect!["Error preemption: no nodes available"]);
}

#[test]
fn pre_enqueue_rejects_a_preemptor_while_its_victims_are_deleted() {
    let pre_enqueue_results = |is_async| {
        let gates = loadmaster_framework::FeatureGates {
            scheduler_async_preemption: is_async,
            ..Default::default()
        };
        let mut bench = PluginTestBench::with_gates(&DEF, json!({}), gates).unwrap();
        let before = bench.pre_enqueue(pod("new", 9, "1")).unwrap();
        bench.world.ongoing_preemptions_mut().start("default/new");
        let during = bench.pre_enqueue(pod("new", 9, "1")).unwrap();
        let n_events = bench.extension_points().events.as_ref().map(Vec::len);
        format!("{before}; {during}; {n_events:?}")
    };
    expect!["Success; UnschedulableAndUnresolvable waiting for the preemption for this pod to be finished; Some(1)"]
        .assert_eq(&pre_enqueue_results(true));
    expect!["Success; Success; Some(0)"].assert_eq(&pre_enqueue_results(false));
}

#[test]
fn arguments() {
    let check = |args: Value, want: &Expect| {
        want.assert_eq(&match (DEF.args.unwrap())(&args, &Default::default()) {
            Ok(complete) => complete.to_string(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        });
    };
    check(
        json!({}),
        &expect![[r#"{"minCandidateNodesAbsolute":100,"minCandidateNodesPercentage":10}"#]],
    );
    check(
        json!({"minCandidateNodesPercentage": 101, "minCandidateNodesAbsolute": -1}),
        &expect![[r#"
            minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]
            minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)"#]],
    );
    check(
        json!({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}),
        &expect![[r#"
            minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute
            minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage"#]],
    );
    check(
        json!({"x": 1}),
        &expect![
            "x: unknown field `x`, expected `minCandidateNodesPercentage` or `minCandidateNodesAbsolute`"
        ],
    );
}
