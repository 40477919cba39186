use expect_test::{Expect, expect};
use loadmaster_framework::testkit::Bench;
use serde_json::json;

use super::*;

/// Two nodes of 4 CPUs, full of pods of priority 0 to 5, and what is done for a pod of priority 9.
fn bench(args: Value) -> Bench {
    let mut bench = Bench::new(&DEF, args).unwrap();
    for name in ["a", "b"] {
        let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}});
        bench.node(node).unwrap();
    }
    for (node, name, priority) in [("a", "p1", 5), ("a", "p2", 0), ("b", "p3", 5), ("b", "p4", 4)] {
        bench.assigned(node, pod(name, priority, "2")).unwrap();
    }
    bench
}

fn pod(name: &str, priority: i32, cpu: &str) -> Value {
    let containers = json!([{"resources": {"requests": {"cpu": cpu}}}]);
    json!({"metadata": {"name": name}, "spec": {"priority": priority, "containers": containers}})
}

#[track_caller]
fn check(bench: &mut Bench, asked: Value, want: &Expect) {
    want.assert_eq(&bench.post_filter(asked, 7).unwrap());
}

#[test]
fn room_is_made() {
    let mut bench = bench(json!({}));
    check(&mut bench, pod("new", 9, "2"), &expect!["nominates a; evicts p2"]);
    check(&mut bench, pod("new", 5, "2"), &expect!["nominates a; evicts p2"]);
    check(&mut bench, pod("new", 9, "4"), &expect!["nominates a; evicts p1 p2"]);
    for (name, priority) in [("n1", 8), ("n2", 9)] {
        let nominated = Arc::new(bench.pod(pod(name, priority, "1")).unwrap());
        bench.world.nominate(Str::new("a"), nominated);
    }
    check(
        &mut bench,
        pod("new", 9, "4"),
        &expect!["nominates a; evicts p1 p2; takes the nomination of n1"],
    );
}

#[test]
fn who_is_going_is_not_evicted_again() {
    let mut bench = bench(json!({}));
    let going = json!({"metadata": {"name": "p2", "deletionTimestamp": "2026-01-31T12:00:00Z"}, "spec": pod("p2", 0, "2")["spec"]});
    bench.assigned("a", going).unwrap();
    let nominated = Arc::new(bench.pod(pod("n1", 8, "1")).unwrap());
    bench.world.nominate(Str::new("a"), nominated);
    check(&mut bench, pod("new", 9, "2"), &expect!["nominates a"]);
}

#[test]
fn no_room() {
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
        &expect!["Unschedulable preemption: not eligible due to preemptionPolicy=Never."],
    );
}

#[test]
fn a_pod_waits_for_the_victims_on_its_nominated_node() {
    let mut bench = bench(json!({}));
    let on_a = |cpu: &str| {
        let mut asked = pod("new", 9, cpu);
        asked["status"] = json!({"nominatedNodeName": "a"});
        asked
    };
    let mut going = pod("p2", 0, "2");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
    let mut say = |status: &str, reason: &str, cpu: &str, want: &Expect| {
        let condition = json!({"type": "DisruptionTarget", "status": status, "reason": reason});
        going["status"] = json!({"conditions": [condition]});
        bench.assigned("a", going.clone()).unwrap();
        check(&mut bench, on_a(cpu), want);
    };
    say(
        "True",
        "PreemptionByScheduler",
        "4",
        &expect![
            "Unschedulable preemption: not eligible due to a terminating pod on the nominated node."
        ],
    );
    say("False", "PreemptionByScheduler", "4", &expect!["nominates a; evicts p1"]);
    say("True", "EvictionByEvictionAPI", "4", &expect!["nominates a; evicts p1"]);
    // The node is beyond help, so that there is nothing to wait for.
    say(
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
    let mut bench = Bench::new(&DEF, json!({})).unwrap();
    check(&mut bench, pod("new", 9, "1"), &expect!["Error preemption: no nodes available"]);
}

#[test]
fn held_back_while_victims_go() {
    let held = |is_async| {
        let gates = loadmaster_framework::FeatureGates {
            scheduler_async_preemption: is_async,
            ..Default::default()
        };
        let mut bench = Bench::with_gates(&DEF, json!({}), gates).unwrap();
        let before = bench.pre_enqueue(pod("new", 9, "1")).unwrap();
        bench.world.preemptions_mut().start("default/new");
        let during = bench.pre_enqueue(pod("new", 9, "1")).unwrap();
        let n_events = bench.points().events.as_ref().map(Vec::len);
        format!("{before}; {during}; {n_events:?}")
    };
    expect!["Success; UnschedulableAndUnresolvable waiting for the preemption for this pod to be finished; Some(1)"]
        .assert_eq(&held(true));
    expect!["Success; Success; Some(0)"].assert_eq(&held(false));
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

#[test]
fn how_many_candidates_are_enough() {
    let check = |percentage, absolute, n_nodes, want| {
        let args = Args {
            min_candidate_nodes_percentage: percentage,
            min_candidate_nodes_absolute: absolute,
        };
        assert_eq!(args.n_candidates(n_nodes), want);
    };
    check(10, 100, 50, 50);
    check(10, 100, 999, 100);
    check(10, 100, 5_000, 500);
    check(0, 3, 5_000, 3);
    check(100, 0, 7, 7);
    check(1, 0, 7, 0);
}
