//! The test kit asks [`PluginEvaluator::is_stale`] as the engine does: only after a change of nodes or states.

use std::sync::Arc;

use loadmaster_stdx::Rng;
use serde_json::json;

use super::check_incremental_history;
use crate::incremental::{
    EvaluatorCx, PluginEvaluator, PrepareCx, PrepareResult, ResultDependencies, RowDependency,
};
use crate::testkit::{BenchResult, PluginTestBench, node, pod};
use crate::{Cx, Filter, Incremental, NodeInfo, NodeRow, PluginDef, PodInfo, Rejection, World};

/// Rejects all nodes if their number, or that of their pods, is odd.
struct OddNumber(fn(&World) -> usize);

impl OddNumber {
    fn accepts(&self, world: &World) -> bool {
        (self.0)(world).is_multiple_of(2)
    }
}

impl Filter for OddNumber {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, _: NodeInfo<'_>) -> Result<(), Rejection> {
        self.accepts(cx.world).then_some(()).ok_or(Rejection::unschedulable("odd"))
    }
}

impl Incremental for OddNumber {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        let accepts = self.accepts(cx.world());
        PrepareResult::Evaluator(Box::new(Evaluator { plugin: OddNumber(self.0), accepts }))
    }
}

struct Evaluator {
    plugin: OddNumber,
    accepts: bool,
}

impl PluginEvaluator for Evaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { filter: Some(RowDependency::Node), ..ResultDependencies::default() }
    }

    fn filter_row(&self, _: EvaluatorCx<'_>, _: NodeRow) -> bool {
        self.accepts
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        self.plugin.accepts(cx.world) != self.accepts
    }
}

const NUMBERS: [fn(&World) -> usize; 2] =
    [|world| world.nodes().len(), |world| world.n_assigned_pods()];

/// Runs a history in which nodes and pods are added and deleted.
fn history<const CASE: usize>() -> BenchResult<()> {
    let def = PluginDef {
        name: "OddNumber",
        build: |points, _| {
            let plugin = Arc::new(OddNumber(NUMBERS[CASE]));
            points.filter = Some(plugin.clone());
            points.incremental = Some(plugin);
            Ok(())
        },
        args: None,
    };
    let mut bench = PluginTestBench::new(&def, json!({})).unwrap();
    bench.node(node("first")).unwrap();
    let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
        let name = *rng.pick(&["a", "b", "c"]);
        Ok(match rng.below(3) {
            0 => {
                bench.node(node(name))?;
                "node"
            }
            1 => {
                bench.delete_node(name);
                "deleted node"
            }
            _ => {
                bench.add_assigned_pod("first", pod(&format!("pod-{}", rng.below(1 << 40))))?;
                "pod"
            }
        })
    };
    check_incremental_history(&mut bench, &mut Rng::new(5), 50, |_| pod("p").into(), change)
}

#[test]
fn an_evaluator_may_be_stale_after_changes_of_nodes_only() {
    history::<0>().unwrap();
    let error = history::<1>().unwrap_err().to_string();
    assert!(error.contains("(pod), pod 0"), "{error}");
}
