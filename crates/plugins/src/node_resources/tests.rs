//! Both plugins in random worlds: over columns, by row and node by node they say the same.

use loadmaster_framework::prepare::in_range;
use loadmaster_framework::testkit::{Bench, BenchError};
use loadmaster_framework::{PluginDef, Prepared};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{balanced_allocation, fit};

const NAMES: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "a.io/x", "b.io/y"];

fn quantity() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (0..40i64).prop_map(|n| json!(n)),
        4 => (0..9000i64).prop_map(|n| json!(format!("{n}m"))),
        4 => (0..900i64).prop_map(|n| json!(format!("{n}Gi"))),
        1 => Just(json!("40Pi")),
        1 => Just(json!(i64::MAX)),
        1 => (0..5i64).prop_map(|n| json!(-n)),
    ]
}

/// Some amounts of some resources.
fn list() -> impl Strategy<Value = Map<String, Value>> {
    let part = |name: &'static str| {
        prop::option::weighted(0.7, quantity()).prop_map(move |q| q.map(|q| (name, q)))
    };
    let [a, b, c, d, e] = NAMES.map(part);
    (a, b, c, d, e).prop_map(|(a, b, c, d, e)| {
        [a, b, c, d, e].into_iter().flatten().map(|(name, q)| (name.to_owned(), q)).collect()
    })
}

fn containers() -> impl Strategy<Value = Value> {
    let one = list().prop_map(|requests| json!({"name": "c", "resources": {"requests": requests}}));
    prop::collection::vec(one, 0..3).prop_map(Value::Array)
}

fn pod(name: &str, containers: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": containers}})
}

fn strategy() -> impl Strategy<Value = Value> {
    let resources = prop::sample::subsequence(NAMES.to_vec(), 0..4)
        .prop_flat_map(|names| (Just(names.clone()), prop::collection::vec(0..101i64, names.len())))
        .prop_map(|(names, weights)| -> Vec<Value> {
            names
                .iter()
                .zip(weights)
                .map(|(name, weight)| json!({"name": name, "weight": weight}))
                .collect()
        });
    let shape =
        prop::collection::btree_map(0..101i64, 0..11i64, 1..5).prop_map(|points| -> Vec<Value> {
            points
                .iter()
                .map(|(utilization, score)| json!({"utilization": utilization, "score": score}))
                .collect()
        });
    let kind =
        prop::sample::select(vec!["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]);
    (kind, resources, shape).prop_map(|(kind, resources, shape)| match kind {
        "RequestedToCapacityRatio" => {
            json!({"type": kind, "resources": resources, "requestedToCapacityRatio": {"shape": shape}})
        }
        _ => json!({"type": kind, "resources": resources}),
    })
}

#[derive(Clone, Debug)]
struct Scene {
    /// Allocatable and pods, node by node.
    nodes: Vec<(Map<String, Value>, Vec<Value>)>,
    /// Nodes that go again, and leave free rows.
    gone: Vec<usize>,
    web: Value,
}

fn scene() -> impl Strategy<Value = Scene> {
    let node = (list(), 0..4i64).prop_map(|(mut list, pods)| {
        list.insert("pods".into(), json!(pods));
        list
    });
    let nodes = prop::collection::vec((node, prop::collection::vec(containers(), 0..3)), 1..90);
    (nodes, prop::collection::vec(0..90usize, 0..3), containers())
        .prop_map(|(nodes, gone, web)| Scene { nodes, gone, web })
}

fn check(def: &PluginDef, args: Value, scene: &Scene) -> Result<(), BenchError> {
    let mut bench = Bench::new(def, args)?;
    for (at, (allocatable, pods)) in scene.nodes.iter().enumerate() {
        let name = format!("n{at}");
        bench.node(json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}}))?;
        for (nth, containers) in pods.iter().enumerate() {
            bench.assigned(&name, pod(&format!("p{at}-{nth}"), containers))?;
        }
    }
    for at in &scene.gone {
        bench.world.remove_node(&format!("n{at}"));
    }
    let web = bench.pod(pod("web", &scene.web))?;
    bench.check_incremental(&web)?;
    check_weighted(&mut bench, &web);
    Ok(())
}

/// Scores of all nodes, also of those that a filter turns down, with a weight.
fn check_weighted(bench: &mut Bench, web: &loadmaster_framework::PodInfo) {
    let prepare = bench.points().prepare.clone().unwrap();
    let Prepared::Run(run) = prepare.prepare(&mut bench.world, web) else { return };
    let nodes = bench.world.nodes();
    let mut sums = vec![5; nodes.n_rows()];
    let scored = run.score_all(nodes, &nodes.columns().live, 3, &mut sums);
    let mut rows = nodes.rows();
    assert_eq!(scored.is_ok(), rows.all(|row| in_range(run.score_row(nodes, row)).is_ok()));
    if scored.is_err() {
        return;
    }
    for row in nodes.rows() {
        let want = run.score_row(nodes, row).wrapping_mul(3).wrapping_add(5);
        assert_eq!(sums[row.index()], want, "{row:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn fit_by_default(scene in scene()) {
        check(&fit::DEF, json!({}), &scene)?;
    }

    #[test]
    fn fit_with_any_strategy(scene in scene(), strategy in strategy()) {
        check(&fit::DEF, json!({"scoringStrategy": strategy, "ignoredResourceGroups": ["b.io"]}), &scene)?;
    }

    #[test]
    fn balanced(scene in scene(), names in prop::sample::subsequence(NAMES.to_vec(), 0..5)) {
        let resources: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        check(&balanced_allocation::DEF, json!({"resources": resources}), &scene)?;
    }
}

/// A resource that nobody mentioned when a run was made gets a column later.
#[test]
fn a_scalar_column_comes_up() {
    let mut bench = Bench::new(&fit::DEF, json!({})).unwrap();
    bench.node(json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": 5}}})).unwrap();
    let web = bench
        .pod(pod("web", &json!([{"name": "c", "resources": {"requests": {"a.io/x": 1}}}])))
        .unwrap();
    let prepare = bench.points().prepare.clone().unwrap();
    let Prepared::Run(run) = prepare.prepare(&mut bench.world, &web) else { unreachable!() };
    let verdict = |bench: &Bench| {
        let nodes = bench.world.nodes();
        let mut set = nodes.columns().live.clone();
        run.filter_all(nodes, &mut set);
        (set, run.filter_row(nodes, nodes.row("n").unwrap()), run.is_stale(&bench.world))
    };
    assert_eq!(verdict(&bench), (vec![0], false, false));
    bench
        .node(
            json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": 5, "a.io/x": 1}}}),
        )
        .unwrap();
    assert_eq!(verdict(&bench), (vec![1], true, true));
}
