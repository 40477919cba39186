//! What Filter found on the selected node reaches Reserve, however the node was selected.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_framework::PrepareCx;
use loadmaster_framework::incremental::{Incremental, PrepareResult};
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use loadmaster_framework::{EvaluatorCx, Filter, NodeRow, NodeStateSlot, PluginStateSlot};

use super::*;

/// Each node has the devices in its label `devices`, such as `3.5.7`; a pod takes the first free one. Filter chooses, Reserve takes.
struct Devices {
    chosen: NodeStateSlot<Choice>,
    taken: PluginStateSlot<Taken>,
}

struct Choice {
    node: String,
    device: u32,
}

/// Devices by node, with the pods that have them.
type Taken = BTreeMap<String, BTreeMap<u32, Box<str>>>;

const PER_NODE: PluginDef =
    PluginDef { name: "Devices", build: |points, _| build_devices(points, false), args: None };
const INCREMENTAL: PluginDef =
    PluginDef { name: "Devices", build: |points, _| build_devices(points, true), args: None };

fn build_devices(points: &mut ExtensionPoints, incremental: bool) -> Result<(), PluginError> {
    let taken = points.plugin_state_slot(Taken::new());
    let plugin = Arc::new(Devices { chosen: points.node_state_slot(), taken });
    points.filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.pre_bind = Some(plugin.clone());
    if incremental {
        points.incremental = Some(plugin);
    }
    points.register_no_events();
    Ok(())
}

fn devices_of(node: NodeInfo<'_>) -> BTreeSet<u32> {
    let label = node.labels().get("devices").map_or("", |value| value.as_str());
    label.split('.').filter_map(|device| device.parse().ok()).collect()
}

impl Filter for Devices {
    fn filter(&self, cx: Cx<'_>, _: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let taken = cx.states.get(self.taken).and_then(|taken| taken.get(node.name()));
        let is_free = |device: &u32| taken.is_none_or(|taken| !taken.contains_key(device));
        // A dry run adds pods that have no device yet: fewer are left.
        let has_device =
            |uid: &str| taken.is_some_and(|taken| taken.values().any(|it| **it == *uid));
        let n_others = node.pods().filter(|other| !has_device(&other.uid)).count();
        let free = devices_of(node).into_iter().filter(is_free).nth(n_others);
        let device = free.ok_or_else(|| Rejection::unschedulable("no free device"))?;
        let choice = Choice { node: node.name().to_owned(), device };
        cx.cycle.set_for_node(self.chosen, node.row(), choice);
        Ok(())
    }
}

/// Leaves no row out, although Filter does: enough to show that Filter runs on the selected row.
impl Incremental for Devices {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, _: &PodInfo) -> Option<()> {
        Some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Skip
    }
}

impl Reserve for Devices {
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let Some(choice) = cx.cycle.get_for_selected_node(self.chosen) else {
            return Err(Rejection::unschedulable("nothing was chosen"));
        };
        assert_eq!(choice.node, node.name());
        let taken = cx.states.get_mut(self.taken).unwrap().entry(choice.node.clone()).or_default();
        assert!(taken.insert(choice.device, pod.uid.clone()).is_none(), "taken twice");
        Ok(())
    }

    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        if let Some(taken) = cx.states.get_mut(self.taken).unwrap().get_mut(node) {
            taken.retain(|_, owner| *owner != pod.uid);
        }
    }
}

impl PreBind for Devices {
    fn pre_flight(&self, _: Cx<'_>, _: &PodInfo, _: &str) -> Result<PreBindPreFlight, Rejection> {
        Ok(PreBindPreFlight::Work { parallel: false })
    }

    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        _: &Arc<PodInfo>,
        node: &str,
        _: PluginStepInput<'_>,
    ) -> PluginStep<()> {
        assert_eq!(cx.cycle.get_for_selected_node(self.chosen).unwrap().node, node);
        PluginStep::Done(())
    }
}

fn bench(plugin: PluginDef, extra: Value) -> Bench {
    let mut profile = json!({"plugins": {"multiPoint": {"enabled": [{"name": "Devices"}]}}});
    for (key, value) in extra.as_object().unwrap() {
        profile[key] = value.clone();
    }
    let mut bench = Bench::of(EngineOptions::default(), plugin, &profile, json!([]));
    bench.apply(EngineEvent::Delete(DeletedObjectKey::Node("a".into())));
    for (name, devices) in [("b", "3.5"), ("c", "4"), ("d", "6")] {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"devices": devices}},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
        }))
        .unwrap();
        bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))));
    }
    bench
}

fn taken(bench: &Bench) -> Vec<String> {
    let states = bench.engine.profiles[0].scheduler.plugin_states();
    let taken = plugin_state::<Taken>(states).unwrap();
    let each = taken
        .iter()
        .flat_map(|(node, devices)| devices.keys().map(move |device| format!("{node}/{device}")));
    each.collect()
}

#[test]
fn reserve_gets_what_filter_found_on_the_selected_node() {
    let sampled = json!({"percentageOfNodesToScore": 40});
    for (plugin, profile) in
        [(PER_NODE, json!({})), (INCREMENTAL, json!({})), (PER_NODE, sampled.clone())]
    {
        let mut bench = bench(plugin, profile);
        for nth in 0..4 {
            bench.pod(&format!("web-{nth}"), json!({}));
            bench.cycle();
            bench.cycle();
        }
        // The incremental form leaves full nodes in; their pods are rejected when Filter runs.
        let taken = taken(&bench);
        assert_eq!(bench.engine.n_assumed_pods(), taken.len());
        assert!(taken.len() >= 2, "{taken:?}");
    }
}

#[test]
fn a_nominated_node_is_filtered_too() {
    let mut bench = bench(PER_NODE, json!({}));
    bench.set_pod("web", json!({}), json!({}), json!({"nominatedNodeName": "c"}));
    bench.cycle();
    assert_eq!(taken(&bench), ["c/4"]);
}

#[test]
fn the_pass_with_nominated_pods_leaves_no_value() {
    let mut bench = bench(PER_NODE, json!({}));
    bench.set_pod("pinned", json!({}), json!({"nodeSelector": {"devices": "3.5"}}), json!({}));
    bench.set_pod("vip", json!({}), json!({"priority": 0}), json!({"nominatedNodeName": "b"}));
    assert!(bench.engine.world().nominated_nodes().any(|node| node == "b"));
    bench.cycle();
    assert_eq!(taken(&bench), ["b/3"], "not b/5, which is left when vip has b/3");
}

#[test]
fn a_failed_attempt_gives_its_device_back() {
    let mut bench = bench(PER_NODE, json!({}));
    bench.pod("web", json!({}));
    bench.cycle();
    bench.reply(Ok(()));
    assert_eq!(taken(&bench).len(), 1);
    bench.reply(Err("not today"));
    assert!(taken(&bench).is_empty());
}

#[test]
fn a_clone_has_no_values_of_nodes_but_those_of_the_selected_one() {
    let slot = ExtensionPoints::default().node_state_slot::<u32>();
    let mut cycle = CycleState::default();
    cycle.set_for_node(slot, NodeRow(1), 10);
    cycle.set_for_node(slot, NodeRow(2), 20);
    let clone = cycle.clone();
    clone.set_for_node(slot, NodeRow(2), 21);
    assert_eq!(
        (clone.get_for_node(slot, NodeRow(1)), cycle.get_for_selected_node(slot)),
        (None, None)
    );
    assert_eq!(cycle.get_for_node(slot, NodeRow(2)).as_deref(), Some(&20));
    cycle.select_node(NodeRow(2));
    assert_eq!(cycle.clone().get_for_selected_node(slot), Some(&20));
    assert_eq!(cycle.get_for_node(slot, NodeRow(1)), None);
}

#[test]
fn the_bench_of_a_plugin_filters_the_selected_node() {
    let mut bench = PluginTestBench::new(&PER_NODE, json!({})).unwrap();
    bench.node(node("b").label("devices", "3.5")).unwrap();
    let mut first = bench.start_cycle(pod("one"), "b").unwrap();
    assert_eq!(bench.reserve(&mut first), "Success");
    let mut second = bench.start_cycle(pod("two"), "b").unwrap();
    assert_eq!(bench.reserve(&mut second), "Success");
    let full = bench.start_cycle(pod("three"), "b").err().unwrap();
    assert_eq!(full.0, "node \"b\": Unschedulable no free device");
    bench.unreserve(first);
    let mut third = bench.start_cycle(pod("three"), "b").unwrap();
    assert_eq!(bench.reserve(&mut third), "Success");
}
