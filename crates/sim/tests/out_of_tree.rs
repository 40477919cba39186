//! The simulator finds the usual mistakes of plugins: a missing event registration, and an incremental form that misses a change.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;

use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, EvaluatorCx, ExtensionPoints, Filter, Gvr, Incremental, NodeInfo,
    ObjectSlot, PluginDef, PluginError, PodInfo, PrepareCx, PrepareResult, Rejection,
    WatchRequirement,
};
use loadmaster_sim::simulate::{
    OutOfTreeWorkload, SimulatedSchedulerConfig, SimulationOptions, SimulationReport,
    run_simulation,
};
use serde_json::{Value, json};

/// Rejects the nodes for which there is a ClosedNode.
#[derive(Clone)]
struct Closing {
    closed: ObjectSlot<Value>,
    /// A mistake: the incremental form sees no object.
    is_blind: bool,
}

fn closed_nodes() -> Gvr {
    Gvr::new("example.com", "v1", "closednodes")
}

fn add(points: &mut ExtensionPoints, is_blind: bool) {
    let closed = points.watch(closed_nodes(), WatchRequirement::Required);
    let plugin = Arc::new(Closing { closed, is_blind });
    points.filter = Some(plugin.clone());
    points.incremental = Some(plugin);
}

fn correct(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    add(points, false);
    let opened = ClusterEvent::new(closed_nodes().event_resource(), ActionType::DELETE);
    let node_added = ClusterEvent::new(loadmaster_framework::EventResource::Node, ActionType::ADD);
    points.register_events([opened, node_added], None);
    Ok(())
}

fn without_events(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    add(points, false);
    points.register_no_events();
    Ok(())
}

fn blind(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    add(points, true);
    Ok(())
}

impl Closing {
    fn is_open(&self, cx: EvaluatorCx<'_>, node: NodeInfo<'_>) -> bool {
        cx.objects(&self.closed).get("", node.name()).is_none()
    }
}

impl Filter for Closing {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        match self.is_open(cx.evaluator_cx(), node) {
            true => Ok(()),
            false => Err(Rejection::unresolvable("node(s) were closed")),
        }
    }
}

impl Incremental for Closing {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        let plugin = self.clone();
        PrepareResult::row_local(RowDependency::Node, move |cx, row| {
            (plugin.is_blind || plugin.is_open(cx, cx.world.node(row)?)).then_some(0)
        })
    }
}

/// Runs 20 seeds with the plugin; the counts, or the first violated invariant.
fn run(
    build: fn(&mut ExtensionPoints, &Value) -> Result<(), PluginError>,
) -> Result<SimulationReport, String> {
    let def = PluginDef { name: "Closing", build, args: None };
    let registry = loadmaster_plugins::in_tree_registry().with(def);
    let profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Closing"}]}}});
    let mut workload = OutOfTreeWorkload { volumes: true, ..OutOfTreeWorkload::default() };
    let source = |rng: &mut loadmaster_framework::Rng,
                  cluster: loadmaster_sim::simulate::ClusterView<'_>| {
        let nodes: Vec<&str> = cluster.nodes().map(|node| node.name()).collect();
        (!nodes.is_empty()).then(|| json!({"metadata": {"name": *rng.pick(&nodes)}}))
    };
    workload.objects.push((closed_nodes(), Box::new(source)));
    let config =
        SimulatedSchedulerConfig::with_out_of_tree_plugins(&registry, profile, workload).unwrap();
    let mut all = SimulationReport::default();
    for seed in 0..20 {
        let options = SimulationOptions::new(seed);
        let report = run_simulation(&config, options, None).map_err(|it| it.to_string())?;
        assert_eq!(run_simulation(&config, options, None).unwrap(), report, "seed {seed}");
        all.add(&report);
    }
    Ok(all)
}

#[test]
fn a_correct_plugin_passes() {
    let report = run(correct).unwrap();
    assert!(
        report.bound > 100
            && report.unschedulable > 20
            && report.leader_losses > 0
            && report.volume_writes > 20,
        "{report}"
    );
}

#[test]
fn a_missing_event_registration_is_found() {
    let found = run(without_events).unwrap_err();
    assert!(found.contains("is feasible, but was not bound"), "{found}");
}

#[test]
fn a_wrong_incremental_form_is_found() {
    let found = run(blind).unwrap_err();
    assert!(found.contains("but does not fit there"), "{found}");
}
