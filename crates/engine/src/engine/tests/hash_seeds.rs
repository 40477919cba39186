//! Plugins' hash maps have the engine's seed too, and the order that follows from it decides nothing.

use std::cell::RefCell;

use loadmaster_framework::{PreFilter, PreFilterResult};
use loadmaster_stdx::Set;

use super::*;

thread_local! {
    /// The orders in which PreFilter found the node names in its set.
    static ORDERS: RefCell<Vec<Vec<Str>>> = const { RefCell::new(Vec::new()) };
}

struct NamedNodes;

const NAMED_NODES: PluginDef =
    PluginDef { name: "NamedNodes", build: build_named_nodes, args: None };

fn build_named_nodes(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.pre_filter = Some(Arc::new(NamedNodes));
    points.register_no_events();
    Ok(())
}

impl PreFilter for NamedNodes {
    fn pre_filter(&self, _: SerialCx<'_>, _: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let names: Set<Str> = (0..20).map(|nth| Str::new(&format!("n{nth}"))).collect();
        ORDERS.with_borrow_mut(|all| all.push(names.clone().into_iter().collect()));
        Ok(PreFilterResult::Nodes(names))
    }
}

/// What happens with a seed, and the order of names in the plugin's set.
fn run_with(hash_seed: HashSeed) -> (Vec<String>, Vec<Vec<Str>>) {
    let options = EngineOptions { hash_seed, ..EngineOptions::default() };
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "NamedNodes"}]}}});
    let mut bench = Bench::of(options, NAMED_NODES, &profile, json!([]));
    for nth in 0..30 {
        bench.node(&format!("n{nth}"), "2");
    }
    for nth in 0..4 {
        bench.pod(&format!("p{nth}"), json!({}));
        bench.cycle();
    }
    (bench.lines, ORDERS.take())
}

#[test]
fn two_seeds_lead_to_the_same_decisions() {
    let (lines, orders) = run_with(HashSeed::new(1));
    assert_eq!(orders.len(), 4);
    let repeated = run_with(HashSeed::new(1));
    assert_eq!((&lines, &orders), (&repeated.0, &repeated.1));
    for number in [0, 2, 3] {
        let (others, other_orders) = run_with(HashSeed::new(number));
        assert_eq!(lines, others, "seed {number}");
        assert_ne!(orders, other_orders, "seed {number}");
    }
    assert_eq!(HashSeed::of_thread(), HashSeed::FIXED, "the thread has its own seed again");
}
