//! Both plugins in random worlds: the results over columns, per row and per node are the same.

use loadmaster_framework::incremental::check_score_range;
use loadmaster_framework::testkit::{PluginTestBench, PluginTestBenchError};
use loadmaster_framework::{NodeRow, PluginDef, PrepareResult};
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
struct RandomCluster {
    /// Allocatable and pods, per node.
    nodes: Vec<(Map<String, Value>, Vec<Value>)>,
    /// Nodes that are removed again and leave free rows.
    removed: Vec<usize>,
    web: Value,
}

fn cluster() -> impl Strategy<Value = RandomCluster> {
    let node = (list(), 0..4i64).prop_map(|(mut list, pods)| {
        list.insert("pods".into(), json!(pods));
        list
    });
    let nodes = prop::collection::vec((node, prop::collection::vec(containers(), 0..3)), 1..90);
    (nodes, prop::collection::vec(0..90usize, 0..3), containers())
        .prop_map(|(nodes, removed, web)| RandomCluster { nodes, removed, web })
}

fn check(
    def: &PluginDef,
    args: Value,
    cluster: &RandomCluster,
) -> Result<(), PluginTestBenchError> {
    let mut bench = PluginTestBench::new(def, args)?;
    for (at, (allocatable, pods)) in cluster.nodes.iter().enumerate() {
        let name = format!("n{at}");
        bench.node(json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}}))?;
        for (nth, containers) in pods.iter().enumerate() {
            bench.add_assigned_pod(&name, pod(&format!("p{at}-{nth}"), containers))?;
        }
    }
    for at in &cluster.removed {
        bench.world.remove_node(&format!("n{at}"));
    }
    let web = bench.parse_pod(pod("web", &cluster.web))?;
    bench.check_incremental(&web)?;
    check_weighted(&mut bench, &web);
    Ok(())
}

/// Scores of all nodes, also of those that Filter rejects, with a weight.
fn check_weighted(bench: &mut PluginTestBench, web: &loadmaster_framework::PodInfo) {
    let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(web) else {
        return;
    };
    let nodes = bench.world.nodes();
    let (cx, all) = (bench.evaluator_cx(), &nodes.columns().occupied);
    let mut sums = vec![5; nodes.n_rows()];
    let scored = evaluator.score_rows(cx, NodeRow(0), all, 3, &mut sums);
    let mut rows = nodes.rows();
    assert_eq!(
        scored.is_ok(),
        rows.all(|row| check_score_range(evaluator.score_row(bench.evaluator_cx(), row)).is_ok())
    );
    if scored.is_err() {
        return;
    }
    for row in nodes.rows() {
        let want = evaluator.score_row(bench.evaluator_cx(), row).wrapping_mul(3).wrapping_add(5);
        assert_eq!(sums[row.index()], want, "{row:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn fit_with_default_args(cluster in cluster()) {
        check(&fit::DEF, json!({}), &cluster)?;
    }

    #[test]
    fn fit_with_any_strategy(cluster in cluster(), strategy in strategy()) {
        check(&fit::DEF, json!({"scoringStrategy": strategy, "ignoredResourceGroups": ["b.io"]}), &cluster)?;
    }

    #[test]
    fn balanced_allocation_with_any_resources(cluster in cluster(), names in prop::sample::subsequence(NAMES.to_vec(), 0..5)) {
        let resources: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        check(&balanced_allocation::DEF, json!({"resources": resources}), &cluster)?;
    }
}

/// A resource that no node and no pod had when an evaluator was built gets a column later.
#[test]
fn a_scalar_column_is_added_later() {
    let mut bench = PluginTestBench::new(&fit::DEF, json!({})).unwrap();
    bench.node(json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": 5}}})).unwrap();
    let web = bench
        .parse_pod(pod("web", &json!([{"name": "c", "resources": {"requests": {"a.io/x": 1}}}])))
        .unwrap();
    let PrepareResult::Evaluator(evaluator) = bench.prepare_incremental(&web) else {
        unreachable!()
    };
    let result = |bench: &PluginTestBench| {
        let nodes = bench.world.nodes();
        let mut set = nodes.columns().occupied.clone();
        evaluator.filter_rows(bench.evaluator_cx(), NodeRow(0), &mut set);
        (
            set,
            evaluator.filter_row(bench.evaluator_cx(), nodes.row("n").unwrap()),
            evaluator.is_stale(bench.evaluator_cx()),
        )
    };
    assert_eq!(result(&bench), (vec![0], false, false));
    bench
        .node(
            json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": 5, "a.io/x": 1}}}),
        )
        .unwrap();
    assert_eq!(result(&bench), (vec![1], true, true));
}
