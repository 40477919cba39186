use std::sync::Arc;

use loadmaster_api::{PodDisruptionBudget, Str, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::gates::FeatureGates;
use crate::registry::{PluginDef, PluginError, Points};
use crate::state::{CycleState, PluginStates};
use crate::testkit::Bench;
use crate::testkit::room::CpuOnly;

fn bench() -> Bench {
    fn build(_: &mut Points, _: &Value) -> Result<(), PluginError> {
        Ok(())
    }
    let def = PluginDef { name: "Nothing", build, args: None };
    Bench::with_gates(&def, json!({}), FeatureGates::default()).unwrap()
}

/// `name priority cpu [started] [label]`.
fn pod(text: &str) -> Value {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut pod = json!({
        "metadata": {"name": words[0]},
        "spec": {
            "priority": words[1].parse::<i32>().unwrap(),
            "containers": [{"resources": {"requests": {"cpu": words[2]}}}],
        },
    });
    if let Some(minute) = words.get(3).filter(|minute| **minute != "-") {
        pod["status"] = json!({"startTime": format!("2024-05-01T10:{minute}:00Z")});
    }
    if let Some(app) = words.get(4) {
        pod["metadata"]["labels"] = json!({"app": app});
    }
    pod
}

fn node(bench: &mut Bench, name: &str, pods: &[&str]) {
    let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}});
    bench.node(node).unwrap();
    for text in pods {
        bench.assigned(name, pod(text)).unwrap();
    }
}

fn budget(bench: &mut Bench, budget: Value) {
    let budget: PodDisruptionBudget = crate::args::decode(&budget).unwrap();
    bench.world.change_cluster(|cluster| {
        let all = cluster.disruption_budgets.entry(budget.metadata.namespace.clone()).or_default();
        all.push(Arc::new(budget));
    });
}

/// Per candidate `node: victims (violations)`, then the best ones, or why there is none.
fn search(bench: &mut Bench, preemptor: &str, sample: Sample) -> String {
    let pod = Arc::new(bench.pod(pod(preemptor)).unwrap());
    let (cycle, states) = (CycleState::default(), PluginStates::default());
    let cx = Cx { world: &bench.world, cycle: &cycle, states: &states };
    let verdicts = CpuOnly.verdicts(cx, &pod);
    let preemptor = Preemptor { cx, feasibility: &CpuOnly, pod: &pod };
    let budgets = Budgets::new(bench.world.cluster());
    let found = preemptor
        .search(&helpable(&verdicts), sample, |run| run.select_victims(run.outranked(), &budgets));
    if found.candidates.is_empty() {
        return found.rejection(bench.world.nodes().len()).message();
    }
    let name = |row| bench.world.node(row).unwrap().name().to_owned();
    let candidates = found.candidates.iter().map(|candidate| {
        let victims = candidate.victims.pods.iter().map(|pod| pod.name.to_string());
        let victims = victims.collect::<Vec<_>>().join(" ");
        format!("{}: {victims} ({})", name(candidate.row), candidate.victims.n_violations)
    });
    let best: Vec<String> =
        best(&found.candidates).iter().map(|at| name(found.candidates[*at].row)).collect();
    format!("{}; best: {}", candidates.collect::<Vec<_>>().join(", "), best.join(" "))
}

/// What would go from one full node.
#[track_caller]
fn check(pods: &[&str], preemptor: &str, want: &str) {
    let mut bench = bench();
    node(&mut bench, "a", pods);
    assert_eq!(search(&mut bench, preemptor, Sample::ALL), want);
}

#[test]
fn the_less_important_go() {
    check(&["low 0 2", "high 5 2"], "new 9 2", "a: low (0); best: a");
    check(&["late 0 2 20", "early 0 2 10"], "new 9 2", "a: late (0); best: a");
    check(&["never 0 2", "late 0 2 20"], "new 9 2", "a: never (0); best: a");
    // The small one could go alone, but the large one is asked to come back first and does not fit.
    check(&["large 5 3", "small 0 1"], "new 9 2", "a: large (0); best: a");
    check(&["b 0 2 10", "a 0 2 10"], "new 9 4", "a: b a (0); best: a");
}

#[test]
fn nobody_to_evict() {
    let none = "0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    check(&["equal 9 4"], "new 9 1", none);
    check(&["higher 10 4"], "new 9 1", none);
    let still = "0/1 nodes are available: 1 Insufficient cpu.";
    check(&["higher 10 3", "low 0 1"], "new 9 2", still);
    let never = "0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    check(&["low 0 4"], "new 9 5", never);
}

/// The five rules, each among those that the former ones leave; `a` and `b` are full, and one pod goes from each.
#[test]
fn the_best_node() {
    #[track_caller]
    fn check(a: &[&str], b: &[&str], want: &str) {
        let mut bench = bench();
        node(&mut bench, "a", a);
        node(&mut bench, "b", b);
        budget(
            &mut bench,
            json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "guarded"}}}}),
        );
        let found = search(&mut bench, "new 9 4", Sample::ALL);
        assert_eq!(found.split_once("best: ").unwrap().1, want, "{found}");
    }
    check(&["p 0 4 10 guarded"], &["q 5 4"], "b");
    check(&["p 0 4"], &["q 5 4"], "a");
    check(&["p 5 2", "r 1 2"], &["q 5 2", "s 0 2"], "b");
    // A sum of priorities that are negative must not make many victims cheap.
    check(&["p -1 2", "r -1 2"], &["q -1 4"], "b");
    check(&["p 5 2", "r -2147483648 2"], &["q 5 4"], "b");
    check(&["p 5 4 10"], &["q 5 4 20"], "b");
    check(&["p 5 2 30", "r 5 2 10"], &["q 5 2 20", "s 5 2 20"], "b");
    check(&["p 5 4 10"], &["q 5 4"], "b");
    check(&["p 5 4 10"], &["q 5 4 10"], "a b");
    check(&["p 5 4"], &["q 5 4"], "a b");
}

/// Who is guarded comes back first, so that a more important pod may have to go.
#[test]
fn budgets() {
    let guard = |status: Value, selector: Value| json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": selector}, "status": status});
    let web = || json!({"matchLabels": {"app": "web"}});
    #[track_caller]
    fn check(budgets: &[Value], pods: &[&str], want: &str) {
        let mut bench = bench();
        node(&mut bench, "a", pods);
        budgets.iter().for_each(|it| budget(&mut bench, it.clone()));
        let found = search(&mut bench, "new 9 2", Sample::ALL);
        assert_eq!(found.split(';').next().unwrap(), want);
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
    // One may go: the more important one uses it up, and its fellow would violate.
    let one = guard(json!({"disruptionsAllowed": 1}), web());
    check(std::slice::from_ref(&one), &["high 5 2 10 web", "low 0 2 10 web"], "a: high (0)");
    // Every budget counts, and each pod uses up all that select it.
    check(&[one.clone(), guard(json!({}), web())], two, "a: high (0)");
    let four = &["p 0 1 10 web", "q 0 1 11 web", "r 0 1 12 web", "s 0 1 13 web"];
    check(&[guard(json!({}), web())], four, "a: r s (2)");
    check(&[one], four, "a: p s (1)");
}

#[test]
fn the_search_ends_when_it_has_enough() {
    let mut bench = bench();
    for name in ["a", "b", "c", "d"] {
        node(&mut bench, name, &[&format!("on-{name} 0 4")]);
    }
    let mut check = |offset, n_wanted, want: &str| {
        let sample = Sample { offset, n_wanted };
        let found = search(&mut bench, "new 9 4", sample);
        assert_eq!(found.split(';').next().unwrap(), want);
    };
    // As upstream: one percent of four nodes is none.
    check(0, 0, "0/4 nodes are available: 4 Preemption is not helpful for scheduling.");
    check(0, 1, "a: on-a (0)");
    check(2, 3, "c: on-c (0), d: on-d (0), a: on-a (0)");
    check(3, 9, "d: on-d (0), a: on-a (0), b: on-b (0), c: on-c (0)");
}

/// One candidate that violates nothing is looked for until the end; of the others no more than wanted are kept.
#[test]
fn a_peaceful_candidate_is_worth_the_way() {
    let mut bench = bench();
    for (name, app) in [("a", "web"), ("b", "web"), ("c", "web"), ("d", "db"), ("e", "db")] {
        node(&mut bench, name, &[&format!("on-{name} 0 4 10 {app}")]);
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    budget(
        &mut bench,
        json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {"selector": selector}}),
    );
    let sample = Sample { offset: 0, n_wanted: 2 };
    let found = search(&mut bench, "new 9 4", sample);
    assert_eq!(found, "d: on-d (0), a: on-a (1), b: on-b (1); best: d");
}

#[test]
fn failures_are_told_once() {
    let failed = |row, text: &'static str| (Row(row), crate::Failure::new(text).into());
    let check = |turned_down: Vec<(Row, Rejection)>, want: &str| {
        let found = Found { candidates: Vec::new(), turned_down };
        let rejection = found.rejection(3);
        assert_eq!(format!("{:?} {}", rejection.code(), rejection.message()), want);
    };
    check(vec![failed(0, "x"), failed(1, "x")], "Error x");
    check(vec![failed(0, "x"), failed(1, "y")], "Error [x, y]");
    let unfit = (Row(1), Rejection::unschedulable("r"));
    check(vec![failed(0, "x"), unfit.clone()], "Error x");
    check(
        vec![unfit],
        "Unschedulable 0/3 nodes are available: 1 r, 2 Preemption is not helpful for scheduling.",
    );
}

#[test]
fn a_preemptor_waits_for_its_victims() {
    let mut bench = bench();
    node(&mut bench, "a", &["p 0 1"]);
    let uid = "default/p";
    let mut underway = Underway::default();
    assert!(!underway.holds("me", &bench.world));
    underway.last_victim("me", uid);
    assert!(!underway.holds("me", &bench.world), "nothing was started");
    underway.start("me");
    assert!(underway.holds("me", &bench.world) && !underway.holds("you", &bench.world));
    underway.last_victim("me", uid);
    assert!(underway.holds("me", &bench.world));
    let going = PodInfo { terminating: true, ..(**bench.world.assigned(uid).unwrap()).clone() };
    let row = bench.world.row_of_pod(uid).unwrap();
    bench.world.add_pod(row, Arc::new(going));
    assert!(!underway.holds("me", &bench.world), "the last victim is going");
    bench.world.remove_pod(uid);
    assert!(!underway.holds("me", &bench.world), "the last victim is gone");
    underway.end("me");
    assert!(underway.0.is_empty());
}

#[test]
fn calls_and_texts() {
    let mut bench = bench();
    let preemptor = bench.pod(json!({"metadata": {"name": "new", "uid": "u1"}})).unwrap();
    let mut victim =
        bench.pod(json!({"metadata": {"name": "p", "namespace": "blue", "uid": "u2"}})).unwrap();
    let now = Timestamp(1_767_323_045_600_000_000);
    let call = evict::condition(&preemptor, &victim, now);
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
    // The condition was true before, for another reason: its transition was then.
    let known =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
    victim.disruption = Some(Box::new(crate::args::decode(&known).unwrap()));
    drop(condition.as_object_mut().unwrap().remove("lastTransitionTime"));
    assert_eq!(evict::condition(&preemptor, &victim, now).body, Some(body(&condition)));
    let call = evict::deletion(&victim);
    assert_eq!(call.body.unwrap()["preconditions"], json!({"uid": "u2"}));
    assert_eq!(call.subresource, Str::default());
    assert_eq!(evict::note(&preemptor, "a"), "Preempted by pod u1 on node a");
    assert_eq!(
        evict::note_in_memory(&preemptor, "a"),
        "Preempted by pod u1 on node a (in kube-scheduler memory)."
    );
}
