//! The plugin alone, with a Filter that considers only CPU; `crates/loadmaster/tests/it/cross_node_preemption.rs` tests it in a scheduler, and
//! `crates/sim/tests/cross_node_preemption.rs` compares it with brute force.

use loadmaster_framework::testkit::post_filter::CpuOnlyFilter;
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, node, pod};
use loadmaster_framework::{CycleState, PluginStates};
use serde_json::json;

use super::*;

fn bench() -> PluginTestBench {
    PluginTestBench::new(&DEF, json!({})).unwrap()
}

/// `name priority cpu [minute of its start]`.
fn small_pod(text: &str) -> PodBuilder {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let pod = pod(fields[0]).priority(fields[1].parse().unwrap()).request("cpu", fields[2]);
    match fields.get(3) {
        Some(minute) => {
            pod.set_field("/status", json!({"startTime": format!("2026-01-01T10:{minute}:00Z")}))
        }
        None => pod,
    }
}

/// Which pods are evicted from one node with 4 CPUs.
#[test]
fn the_cheapest_victims_on_one_node() {
    #[track_caller]
    fn check(pods: &[&str], preemptor: &str, want: &str) {
        let mut bench = bench();
        bench.node(node("n").allocatable("cpu", "4")).unwrap();
        for pod in pods {
            bench.add_assigned_pod("n", small_pod(pod)).unwrap();
        }
        assert_eq!(bench.post_filter(small_pod(preemptor).into(), 1).unwrap(), want);
    }
    let evicts = |names: &str| format!("nominates n; evicts {names}");
    check(&["low 0 2", "high 5 2"], "new 9 2", &evicts("low"));
    check(&["late 0 2 20", "early 0 2 10"], "new 9 2", &evicts("late"));
    // DefaultPreemption evicts b and c: it reprieves the most important pods.
    check(&["a 0 2 10", "b 0 1 20", "c 0 1 30"], "new 9 2", &evicts("a"));
    check(&["a 1 2", "b 0 1", "c 0 1"], "new 9 2", &evicts("b c"));
    check(&["a 0 1 10", "b 0 1 10", "c 0 1 10", "d 0 1 11"], "new 9 2", &evicts("c d"));
    let none = "Unschedulable cross-node preemption: 0/1 nodes are available: 1 ";
    let clears = |reason: &str| format!("clears; {none}{reason}.");
    check(&["equal 9 4"], "new 9 1", &clears("No preemption victims found for incoming pod"));
    check(&["equal 9 3", "low 0 1"], "new 9 2", &clears("Insufficient cpu"));
    check(&["low 0 4"], "new 9 5", &clears("Preemption is not helpful for scheduling"));
}

/// Calls `act` in a dry run for each node.
fn on_each_node<R>(
    bench: &mut PluginTestBench,
    preemptor: PodBuilder,
    mut act: impl FnMut(&mut NodeDryRun<'_>, &RelatedPods) -> R,
) -> Vec<R> {
    let pod = Arc::new(bench.parse_pod(preemptor).unwrap());
    let (cycle, states) = (CycleState::default(), PluginStates::default());
    let cx = DryRunCx::new(&mut bench.world, &cycle, &states);
    let rows: Vec<NodeRow> = cx.world().nodes().rows().collect();
    let related = RelatedPods::new(cx.world(), &pod);
    let mut preemptor = Preemptor { cx, filter_runner: &CpuOnlyFilter, pod: &pod };
    rows.into_iter().map(|row| act(&mut preemptor.new_node_dry_run(row), &related)).collect()
}

const ANTI_AFFINITY: &str =
    "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
const AFFINITY: &str = "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution";
const CONSTRAINTS: &str = "/spec/topologySpreadConstraints";

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn constraint(key: &str, app: &str, when_unsatisfiable: &str) -> Value {
    let mut constraint = term(key, app);
    constraint["maxSkew"] = 1.into();
    constraint["whenUnsatisfiable"] = when_unsatisfiable.into();
    constraint
}

/// The related pods on other nodes, for the nodes `a0`, `a1` and `b0` in zones `a` and `b`, with `?` after those that may be needed.
#[test]
fn pods_on_other_nodes_are_related_by_terms_and_constraints() {
    #[track_caller]
    fn check(preemptor: PodBuilder, want: [&str; 3]) {
        let mut bench = bench();
        for name in ["a0", "a1", "b0"] {
            bench.node(node(name).label("zone", &name[..1])).unwrap();
        }
        let existing = |name: &str, priority| pod(name).label("app", &name[..2]).priority(priority);
        let keeps_web_away =
            existing("xx", 1).set_field(ANTI_AFFINITY, json!([term("zone", "web")]));
        bench.add_assigned_pod("a0", existing("db-0", 1)).unwrap();
        bench.add_assigned_pod("a0", keeps_web_away).unwrap();
        bench.add_assigned_pod("a1", existing("db-1", 2)).unwrap();
        bench.add_assigned_pod("b0", existing("db-2", 3)).unwrap();
        bench.add_assigned_pod("b0", existing("db-high", 9)).unwrap();
        let found = on_each_node(&mut bench, preemptor, |run, related| {
            let node = run.node().unwrap();
            let victims = related.potential_victims(node, Vec::new(), N_RELATED_MAX);
            let names = victims.iter().map(|victim| {
                format!("{}{}", victim.pod.name, if victim.may_be_needed { "?" } else { "" })
            });
            let keeps_away = if related.keep_away(node) { " kept away" } else { "" };
            format!("{}{keeps_away}", names.collect::<Vec<_>>().join(" "))
        });
        assert_eq!(found, want);
    }
    let new = || pod("new").label("app", "new").priority(5);
    check(new(), ["", "", ""]);
    check(new().label("app", "web"), ["", "xx", ""]);
    let apart = |key, app| json!([term(key, app)]);
    check(new().set_field(ANTI_AFFINITY, apart("zone", "db")), ["db-1", "db-0", " kept away"]);
    check(
        new().set_field(ANTI_AFFINITY, apart("kubernetes.io/hostname", "db")),
        ["", "", " kept away"],
    );
    check(new().set_field(ANTI_AFFINITY, apart("rack", "db")), ["", "", ""]);
    // A StatefulSet's pod has affinity to its own kind: it may be the first one if there is no other.
    let near = |app| new().label("app", "db").set_field(AFFINITY, json!([term("zone", app)]));
    check(near("db"), ["db-2? db-1?", "db-2? db-0?", "db-1? db-0?"]);
    check(near("xx"), ["", "", ""]);
    let hard = constraint("zone", "db", "DoNotSchedule");
    check(new().set_field(CONSTRAINTS, json!([hard])), ["db-1", "db-0", ""]);
    let by_host = constraint("kubernetes.io/hostname", "db", "DoNotSchedule");
    check(new().set_field(CONSTRAINTS, json!([hard, by_host])), ["db-1?", "db-0?", ""]);
    let soft = constraint("zone", "db", "ScheduleAnyway");
    check(new().set_field(CONSTRAINTS, json!([soft])), ["", "", ""]);
}

/// Constraints do not count a terminating pod, but anti-affinity does.
#[test]
fn terminating_pods_are_related_by_terms_only() {
    let check = |preemptor: PodBuilder, want: &str| {
        let mut bench = bench();
        for name in ["a", "b"] {
            bench.node(node(name).label("zone", "z")).unwrap();
        }
        let leaving = pod("db").label("app", "db");
        let leaving = leaving.set_field("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z");
        bench.add_assigned_pod("b", leaving).unwrap();
        let found = on_each_node(&mut bench, preemptor.priority(5), |run, related| {
            let of_node = related.of_node(run.node().unwrap());
            of_node.iter().map(|it| it.pod.name.to_string()).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(found[0], want);
    };
    let hard = json!([constraint("zone", "db", "DoNotSchedule")]);
    check(pod("new").set_field(CONSTRAINTS, hard), "");
    check(pod("new").set_field(ANTI_AFFINITY, json!([term("zone", "db")])), "db");
}

/// Only the least important ones of very many pods on other nodes are considered.
#[test]
fn the_number_of_related_pods_is_limited() {
    let mut bench = bench();
    for name in ["a", "b"] {
        bench.node(node(name).label("zone", "z")).unwrap();
    }
    for nth in 0..6 {
        bench
            .add_assigned_pod("b", pod(&format!("p{nth}")).label("app", "db").priority(nth))
            .unwrap();
    }
    let preemptor = pod("new").priority(9).set_field(ANTI_AFFINITY, json!([term("zone", "db")]));
    let found = on_each_node(&mut bench, preemptor, |run, related| {
        let victims = related.potential_victims(run.node().unwrap(), Vec::new(), 2);
        victims.iter().map(|victim| victim.pod.name.to_string()).collect::<Vec<_>>().join(" ")
    });
    assert_eq!(found, ["p1 p0", ""]);
}

/// Victims after so many steps at most, and the steps that were used.
fn search(bench: &mut PluginTestBench, preemptor: &str, n_steps: usize) -> (String, usize) {
    let budgets = DisruptionBudgets::default();
    let found = on_each_node(bench, small_pod(preemptor), |run, related| {
        let mut n_left = n_steps;
        let found = select_victims(run, related, &budgets, &mut n_left);
        let names = |victims: Victims| {
            victims.pods.iter().map(|pod| pod.name.to_string()).collect::<Vec<_>>().join(" ")
        };
        (found.map_or_else(|rejection| rejection.message(), names), n_steps - n_left)
    });
    found.into_iter().next().unwrap()
}

/// A search that ends early has victims that suffice; the more steps, the better they are.
#[test]
fn the_search_is_bounded() {
    let mut bench = bench();
    bench.node(node("n").allocatable("cpu", "4")).unwrap();
    for pod in ["a 0 2 10", "b 0 1 20", "c 0 1 30"] {
        bench.add_assigned_pod("n", small_pod(pod)).unwrap();
    }
    assert_eq!(search(&mut bench, "new 9 2", 0), (REASON_SEARCH_ENDED.to_owned(), 0));
    // Removing all and testing each one alone; then there is no step left to let one stay.
    assert_eq!(search(&mut bench, "new 9 2", 1), ("a b c".to_owned(), 1));
    let (found, n_steps) = search(&mut bench, "new 9 2", 19);
    assert_eq!((found.as_str(), n_steps), ("b c", 19));
    let (found, n_steps) = search(&mut bench, "new 9 2", 1_000);
    assert_eq!(found, "a");
    assert!((20..60).contains(&n_steps), "{n_steps} steps");
}

/// 60 pods of 12 sizes: too many sets to try them all, and the same result whenever it is tried.
#[test]
fn a_search_among_many_pods_ends() {
    let mut bench = bench();
    bench.node(node("n").allocatable("cpu", "4")).unwrap();
    for nth in 0..60 {
        let (priority, milli) = (nth % 3, 30 + nth % 12 * 7);
        bench.add_assigned_pod("n", small_pod(&format!("p{nth} {priority} {milli}m"))).unwrap();
    }
    let first = search(&mut bench, "new 9 1500m", 1_000_000);
    assert_eq!(search(&mut bench, "new 9 1500m", 1_000_000), first);
    assert!(first.1 <= N_NODE_STEPS_MAX && !first.0.is_empty(), "{first:?}");
}

/// Equal pods are interchangeable, so that even hundreds of them need few steps.
#[test]
fn equal_pods_need_few_steps() {
    let mut bench = bench();
    bench.node(node("n").allocatable("cpu", "100")).unwrap();
    for nth in 0..100 {
        bench.add_assigned_pod("n", small_pod(&format!("p{nth} 0 1"))).unwrap();
    }
    let (found, n_steps) = search(&mut bench, "new 9 3", 1_000_000);
    assert_eq!(found.split(' ').count(), 3);
    assert!(n_steps < 1_000, "{n_steps} steps");
}
