use std::sync::Arc;

use loadmaster_api::{PodDisruptionBudget, Str, Timestamp};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::*;
use crate::feature_gates::FeatureGates;
use crate::registry::{ExtensionPoints, PluginDef, PluginError};
use crate::state::{CycleState, PluginStates};
use crate::testkit::PluginTestBench;
use crate::testkit::post_filter::CpuOnlyFilter;

fn bench() -> PluginTestBench {
    fn build(_: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
        Ok(())
    }
    let def = PluginDef { name: "Nothing", build, args: None };
    PluginTestBench::with_gates(&def, json!({}), FeatureGates::default()).unwrap()
}

/// `name priority cpu [started] [label]`.
fn pod(text: &str) -> Value {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let mut pod = json!({
        "metadata": {"name": fields[0]},
        "spec": {
            "priority": fields[1].parse::<i32>().unwrap(),
            "containers": [{"resources": {"requests": {"cpu": fields[2]}}}],
        },
    });
    if let Some(minute) = fields.get(3).filter(|minute| **minute != "-") {
        pod["status"] = json!({"startTime": format!("2024-05-01T10:{minute}:00Z")});
    }
    if let Some(app) = fields.get(4) {
        pod["metadata"]["labels"] = json!({"app": app});
    }
    pod
}

fn node(bench: &mut PluginTestBench, name: &str, pods: &[&str]) {
    let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}});
    bench.node(node).unwrap();
    for text in pods {
        bench.add_assigned_pod(name, pod(text)).unwrap();
    }
}

fn budget(bench: &mut PluginTestBench, budget: Value) {
    let budget: PodDisruptionBudget = crate::plugin_args::decode_json_value(&budget).unwrap();
    bench.world.update_cluster_objects(|cluster| {
        let all = cluster.disruption_budgets.entry(budget.metadata.namespace.clone()).or_default();
        all.push(Arc::new(budget));
    });
}

/// Per candidate `node: victims (violations)`, then the best candidates; or why there is none.
fn search(bench: &mut PluginTestBench, preemptor: &str, sample: CandidateSampling) -> String {
    let pod = Arc::new(bench.parse_pod(pod(preemptor)).unwrap());
    let (cycle, states) = (CycleState::default(), PluginStates::default());
    let mut cx = DryRunCx::new(&mut bench.world, &cycle, &states);
    let node_codes = CpuOnlyFilter.node_codes(cx.reborrow(), &pod);
    let budgets = DisruptionBudgets::new(cx.world().cluster_objects());
    let mut preemptor = Preemptor { cx, filter_runner: &CpuOnlyFilter, pod: &pod };
    let result = preemptor.dry_run_preemption(
        &nodes_where_preemption_might_help(&node_codes),
        sample,
        |dry_run| dry_run.select_victims_on_node(dry_run.potential_victims(), &budgets),
    );
    if result.candidates.is_empty() {
        return result.rejection(bench.world.nodes().len()).message();
    }
    let name = |row| bench.world.node(row).unwrap().name().to_owned();
    let candidates = result.candidates.iter().map(|candidate| {
        let victims = candidate.victims.pods.iter().map(|pod| pod.name.to_string());
        let victims = victims.collect::<Vec<_>>().join(" ");
        format!("{}: {victims} ({})", name(candidate.row), candidate.victims.n_pdb_violations)
    });
    let best: Vec<String> = pick_best_candidates(&result.candidates)
        .iter()
        .map(|at| name(result.candidates[*at].row))
        .collect();
    format!("{}; best: {}", candidates.collect::<Vec<_>>().join(", "), best.join(" "))
}

/// Which pods are evicted from one full node.
#[track_caller]
fn check(pods: &[&str], preemptor: &str, want: &str) {
    let mut bench = bench();
    node(&mut bench, "a", pods);
    assert_eq!(search(&mut bench, preemptor, CandidateSampling::ALL), want);
}

#[test]
fn less_important_pods_are_evicted() {
    check(&["low 0 2", "high 5 2"], "new 9 2", "a: low (0); best: a");
    check(&["late 0 2 20", "early 0 2 10"], "new 9 2", "a: late (0); best: a");
    check(&["never 0 2", "late 0 2 20"], "new 9 2", "a: never (0); best: a");
    // Evicting `small` alone would do, but `large` is tried for reprieve first and does not fit.
    check(&["large 5 3", "small 0 1"], "new 9 2", "a: large (0); best: a");
    check(&["b 0 2 10", "a 0 2 10"], "new 9 4", "a: b a (0); best: a");
}

#[test]
fn no_victims_are_found() {
    let none = "0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    check(&["equal 9 4"], "new 9 1", none);
    check(&["higher 10 4"], "new 9 1", none);
    let still = "0/1 nodes are available: 1 Insufficient cpu.";
    check(&["higher 10 3", "low 0 1"], "new 9 2", still);
    let never = "0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    check(&["low 0 4"], "new 9 5", never);
}

/// The five criteria, each applied among those that are equal so far; `a` and `b` are full.
#[test]
fn candidates_are_compared_by_five_criteria() {
    #[track_caller]
    fn check(a: &[&str], b: &[&str], want: &str) {
        let mut bench = bench();
        node(&mut bench, "a", a);
        node(&mut bench, "b", b);
        budget(
            &mut bench,
            json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "guarded"}}}}),
        );
        let result = search(&mut bench, "new 9 4", CandidateSampling::ALL);
        assert_eq!(result.split_once("best: ").unwrap().1, want, "{result}");
    }
    check(&["p 0 4 10 guarded"], &["q 5 4"], "b");
    check(&["p 0 4"], &["q 5 4"], "a");
    check(&["p 5 2", "r 1 2"], &["q 5 2", "s 0 2"], "b");
    // Negative priorities must not make many victims cheaper than few.
    check(&["p -1 2", "r -1 2"], &["q -1 4"], "b");
    check(&["p 5 2", "r -2147483648 2"], &["q 5 4"], "b");
    check(&["p 5 4 10"], &["q 5 4 20"], "b");
    check(&["p 5 2 30", "r 5 2 10"], &["q 5 2 20", "s 5 2 20"], "b");
    check(&["p 5 4 10"], &["q 5 4"], "b");
    check(&["p 5 4 10"], &["q 5 4 10"], "a b");
    check(&["p 5 4"], &["q 5 4"], "a b");
}

/// Pods with a budget are reprieved first, so that a more important pod may be evicted.
#[test]
fn pods_with_a_budget_are_reprieved_first() {
    let guard = |status: Value, selector: Value| json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": selector}, "status": status});
    let web = || json!({"matchLabels": {"app": "web"}});
    #[track_caller]
    fn check(budgets: &[Value], pods: &[&str], want: &str) {
        let mut bench = bench();
        node(&mut bench, "a", pods);
        budgets.iter().for_each(|it| budget(&mut bench, it.clone()));
        let result = search(&mut bench, "new 9 2", CandidateSampling::ALL);
        assert_eq!(result.split(';').next().unwrap(), want);
    }
    let two = &["high 5 2 10 db", "low 0 2 10 web"];
    check(&[], two, "a: low (0)");
    check(&[guard(json!({}), web())], two, "a: high (0)");
    check(&[guard(json!({"disruptionsAllowed": 1}), web())], two, "a: low (0)");
    check(&[guard(json!({"disruptedPods": {"low": null}}), web())], two, "a: low (0)");
    check(&[guard(json!({}), json!({}))], two, "a: low (0)");
    check(&[guard(json!({}), Value::Null)], two, "a: low (0)");
    check(&[guard(json!({}), json!({"matchLabels": {"-": ""}}))], two, "a: low (0)");
    let without = json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
    check(&[guard(json!({}), without)], &["high 5 2 10 db", "low 0 2 10"], "a: low (0)");
    let mut elsewhere = guard(json!({}), web());
    elsewhere["metadata"]["namespace"] = json!("blue");
    check(&[elsewhere], two, "a: low (0)");
    // One disruption is allowed: the more important pod uses it up, and the eviction of the other violates the budget.
    let one = guard(json!({"disruptionsAllowed": 1}), web());
    check(std::slice::from_ref(&one), &["high 5 2 10 web", "low 0 2 10 web"], "a: high (0)");
    // Every budget counts, and a pod uses up every budget that selects it.
    check(&[one.clone(), guard(json!({}), web())], two, "a: high (0)");
    let four = &["p 0 1 10 web", "q 0 1 11 web", "r 0 1 12 web", "s 0 1 13 web"];
    check(&[guard(json!({}), web())], four, "a: r s (2)");
    check(&[one], four, "a: p s (1)");
}

/// A dry run for one node may also remove pods of other nodes; added again, they are where they were.
#[test]
fn a_dry_run_removes_pods_of_other_nodes() {
    let mut bench = bench();
    node(&mut bench, "a", &["p 0 4"]);
    node(&mut bench, "b", &["q 0 3", "r 0 1"]);
    let before = format!("{:?}", bench.world.nodes());
    let preemptor = Arc::new(bench.parse_pod(pod("new 9 4")).unwrap());
    let (cycle, states) = (CycleState::default(), PluginStates::default());
    let [p, q] = ["p", "q"]
        .map(|name| bench.world.assigned_pod(&format!("default/{name}")).unwrap().clone());
    let row = bench.world.nodes().row("a").unwrap();
    let cx = DryRunCx::new(&mut bench.world, &cycle, &states);
    let mut preemptor = Preemptor { cx, filter_runner: &CpuOnlyFilter, pod: &preemptor };
    let mut run = preemptor.new_node_dry_run(row);
    let names = |run: &NodeDryRun<'_>| {
        let names = |node: crate::NodeInfo<'_>| {
            let names: Vec<String> = node.pods().map(|pod| pod.name.to_string()).collect();
            names.join(" ")
        };
        run.cx().world.node_infos().map(names).collect::<Vec<_>>().join(" | ")
    };
    run.remove_pod(&q).unwrap();
    assert_eq!(names(&run), "p | r");
    assert!(run.preemptor_fits().is_err());
    run.remove_pod(&p).unwrap();
    assert_eq!(names(&run), " | r");
    assert!(run.preemptor_fits().is_ok());
    run.add_pod(&q).unwrap();
    assert_eq!(names(&run), " | r q");
    run.undo();
    assert_eq!(names(&run), "p | q r");
    assert!(run.preemptor_fits().is_err());
    run.remove_pod(&q).unwrap();
    drop(run);
    assert_eq!(format!("{:?}", bench.world.nodes()), before);
}

#[test]
fn the_dry_run_stops_at_enough_candidates() {
    let mut bench = bench();
    for name in ["a", "b", "c", "d"] {
        node(&mut bench, name, &[&format!("on-{name} 0 4")]);
    }
    let mut check = |offset, n_wanted, want: &str| {
        let sample = CandidateSampling { offset, n_candidates: n_wanted };
        let result = search(&mut bench, "new 9 4", sample);
        assert_eq!(result.split(';').next().unwrap(), want);
    };
    // As upstream: one percent of four nodes is none.
    check(0, 0, "0/4 nodes are available: 4 Preemption is not helpful for scheduling.");
    check(0, 1, "a: on-a (0)");
    check(2, 3, "c: on-c (0), d: on-d (0), a: on-a (0)");
    check(3, 9, "d: on-d (0), a: on-a (0), b: on-b (0), c: on-c (0)");
}

/// The search continues until one candidate violates no budget; of the others no more than wanted are returned.
#[test]
fn the_dry_run_continues_until_a_candidate_violates_no_budget() {
    let mut bench = bench();
    for (name, app) in [("a", "web"), ("b", "web"), ("c", "web"), ("d", "db"), ("e", "db")] {
        node(&mut bench, name, &[&format!("on-{name} 0 4 10 {app}")]);
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    budget(
        &mut bench,
        json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": selector}}),
    );
    let sample = CandidateSampling { offset: 0, n_candidates: 2 };
    let result = search(&mut bench, "new 9 4", sample);
    assert_eq!(result, "d: on-d (0), a: on-a (1), b: on-b (1); best: d");
}

#[test]
fn equal_failures_are_reported_once() {
    let failed = |row, text: &'static str| (NodeRow(row), crate::Failure::new(text).into());
    let check = |turned_down: Vec<(NodeRow, Rejection)>, want: &str| {
        let result = DryRunResult { candidates: Vec::new(), rejected_nodes: turned_down };
        let rejection = result.rejection(3);
        assert_eq!(format!("{:?} {}", rejection.code(), rejection.message()), want);
    };
    check(vec![failed(0, "x"), failed(1, "x")], "Error x");
    check(vec![failed(0, "x"), failed(1, "y")], "Error [x, y]");
    let rejected = (NodeRow(1), Rejection::unschedulable("r"));
    check(vec![failed(0, "x"), rejected.clone()], "Error x");
    check(
        vec![rejected],
        "Unschedulable 0/3 nodes are available: 1 r, 2 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn a_preemptor_waits_for_its_victims() {
    let mut bench = bench();
    node(&mut bench, "a", &["p 0 1"]);
    let uid = "default/p";
    let mut preemptions = OngoingPreemptions::default();
    assert!(!preemptions.is_pod_running_preemption("me", &bench.world));
    preemptions.set_last_victim("me", uid);
    assert!(!preemptions.is_pod_running_preemption("me", &bench.world), "nothing was started");
    preemptions.start("me");
    assert!(
        preemptions.is_pod_running_preemption("me", &bench.world)
            && !preemptions.is_pod_running_preemption("you", &bench.world)
    );
    preemptions.set_last_victim("me", uid);
    assert!(preemptions.is_pod_running_preemption("me", &bench.world));
    let terminating =
        PodInfo { terminating: true, ..(**bench.world.assigned_pod(uid).unwrap()).clone() };
    let row = bench.world.row_of_pod(uid).unwrap();
    bench.world.add_pod(row, Arc::new(terminating));
    assert!(
        !preemptions.is_pod_running_preemption("me", &bench.world),
        "the last victim is terminating"
    );
    bench.world.remove_pod(uid);
    assert!(
        !preemptions.is_pod_running_preemption("me", &bench.world),
        "the last victim is deleted"
    );
    preemptions.end("me");
    assert!(preemptions.last_victims.is_empty());
}

#[test]
fn eviction_requests_and_event_notes() {
    let mut bench = bench();
    let preemptor = bench.parse_pod(json!({"metadata": {"name": "new", "uid": "u1"}})).unwrap();
    let mut victim = bench
        .parse_pod(json!({"metadata": {"name": "p", "namespace": "blue", "uid": "u2"}}))
        .unwrap();
    let now = Timestamp(1_767_323_045_600_000_000);
    let call = eviction::disruption_condition_patch(&preemptor, &victim, now);
    assert_eq!((call.resource.as_str(), call.subresource.as_str()), ("pods", "status"));
    assert_eq!((&*call.namespace, &*call.name), ("blue", "p"));
    let mut condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "default-scheduler: preempting to accommodate a higher priority pod",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    let body = |condition: &Value| json!({"metadata": {"uid": "u2"}, "status": {"conditions": [condition]}});
    assert_eq!(call.body, Some(body(&condition)));
    // The condition was already true for another reason: lastTransitionTime does not change.
    let known =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
    victim.disruption = Some(Box::new(crate::plugin_args::decode_json_value(&known).unwrap()));
    drop(condition.as_object_mut().unwrap().remove("lastTransitionTime"));
    assert_eq!(
        eviction::disruption_condition_patch(&preemptor, &victim, now).body,
        Some(body(&condition))
    );
    let call = eviction::delete_victim_request(&victim);
    assert_eq!(call.body.unwrap()["preconditions"], json!({"uid": "u2"}));
    assert_eq!(call.subresource, Str::default());
    assert_eq!(eviction::preempted_event_note(&preemptor, "a"), "Preempted by pod u1 on node a");
    assert_eq!(
        eviction::preempted_in_memory_event_note(&preemptor, "a"),
        "Preempted by pod u1 on node a (in kube-scheduler memory)."
    );
}

#[test]
fn number_of_candidates() {
    let check = |percentage, absolute, n_nodes, want| {
        let args = PreemptionArgs {
            min_candidate_nodes_percentage: percentage,
            min_candidate_nodes_absolute: absolute,
        };
        assert_eq!(args.sample(n_nodes, &mut Rng::new(1)).n_candidates, want);
    };
    check(10, 100, 50, 50);
    check(10, 100, 999, 100);
    check(10, 100, 5_000, 500);
    check(0, 3, 5_000, 3);
    check(100, 0, 7, 7);
    check(1, 0, 7, 0);
    check(10, 100, 0, 0);
}
