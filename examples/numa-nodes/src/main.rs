//! Fits pods into NUMA zones: the CPU request of a pod must fit into one zone of its node.
//!
//! An agent on each node keeps the NodeTopology of the node's name: the zones, their CPUs, and the pods that the kubelet placed in them. The
//! plugin books a zone for a pod until the agent reports the pod. A pod of which neither knows the zone counts in every zone.

use std::{collections::BTreeMap, sync::Arc};

use loadmaster::SchedulerCommand;
use loadmaster::api::Str;
use loadmaster::framework::{cluster_event::QueueingHintArgs, incremental::RowDependency, *};

const NAME: &str = "NumaFit";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

/// The custom resource: cluster-scoped, one object per node, with the node's name.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeTopology {
    node_name: Str,
    zones: Vec<Zone>,
}

#[derive(serde::Deserialize)]
struct Zone {
    cpus: u32,
    /// Uids of the pods in the zone.
    #[serde(default)]
    pods: Vec<Box<str>>,
}

/// How a pod fits on a node: in which zone, if the node has any.
#[derive(Clone, Copy, Default)]
struct Fit {
    zone: Option<usize>,
    score: i64,
}

#[derive(Clone)]
struct NumaFit {
    topologies: ObjectSlot<NodeTopology>,
    /// Node and zone by the pod's uid.
    booked: PluginStateSlot<BTreeMap<Box<str>, (Str, usize)>>,
    found: NodeStateSlot<Fit>,
    log: PluginLogger,
}

fn build(points: &mut ExtensionPoints, _: &serde_json::Value) -> Result<(), PluginError> {
    let kind = Gvr::new("example.com", "v1", "nodetopologies");
    let topology_event = kind.event_resource();
    let node_of = |topology: &NodeTopology| vec![topology.node_name.clone()];
    let plugin = Arc::new(NumaFit {
        topologies: points.watch_per_node(kind, WatchRequirement::Required, node_of),
        booked: points.plugin_state_slot(BTreeMap::new()),
        found: points.node_state_slot(),
        log: points.logger(),
    });
    points.filter = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    let hint = move |args: &QueueingHintArgs<'_>| Ok(QueueingHint::queue_if(plugin.may_help(args)));
    // A nominated pod counts in every zone; when it is assigned, in one.
    let pod_changed = ActionType::ADD | ActionType::DELETE | ActionType::UPDATE_POD_SCALE_DOWN;
    let events = [
        ClusterEvent::new(topology_event, ActionType::ALL),
        ClusterEvent::new(EventResource::Node, ActionType::ADD),
        ClusterEvent::new(EventResource::AssignedPod, pod_changed),
    ];
    points.register_events(events, Some(Arc::new(hint)));
    Ok(())
}

fn cpu_milli(pod: &PodInfo) -> i64 {
    pod.requests().resources.cpu_milli
}

impl NumaFit {
    /// Total and free milli-CPUs of each zone; `None` for a node without a topology.
    fn zones(&self, cx: EvaluatorCx<'_>, node: NodeInfo<'_>) -> Option<Vec<(i64, i64)>> {
        let zones = &cx.objects(&self.topologies).get("", node.name())?.zones;
        let booked = cx.states.get(self.booked)?;
        let totals = zones.iter().map(|zone| i64::from(zone.cpus) * 1000);
        let mut cpus: Vec<(i64, i64)> = totals.map(|total| (total, total)).collect();
        for pod in node.pods() {
            let reported = zones.iter().position(|zone| zone.pods.contains(&pod.uid));
            let booked = || booked.get(&pod.uid).filter(|(on, _)| *on == node.name());
            let zone = reported.or_else(|| Some(booked()?.1));
            let used =
                cpus.iter_mut().enumerate().filter(|(at, _)| zone.is_none_or(|it| it == *at));
            used.for_each(|(_, (_, free))| *free -= cpu_milli(pod));
        }
        Some(cpus)
    }

    /// The fullest zone in which a pod with this request fits; `None` if it fits in none.
    fn fit(&self, cx: EvaluatorCx<'_>, cpu: i64, row: NodeRow) -> Option<Fit> {
        let zones = cx.world.node(row).and_then(|node| self.zones(cx, node));
        let Some(zones) = zones.filter(|_| cpu > 0) else { return Some(Fit::default()) };
        let fitting = zones.into_iter().enumerate().filter(|(_, (_, free))| *free >= cpu);
        let (zone, (total, free)) = fitting.min_by_key(|(_, (_, free))| *free)?;
        Some(Fit { zone: Some(zone), score: MAX_NODE_SCORE * (total - free + cpu) / total })
    }

    /// Whether a rejected pod fits now on the node of a changed object.
    fn may_help(&self, args: &QueueingHintArgs<'_>) -> bool {
        let node = match args.new.or(args.old) {
            Some(EventObject::Node(node)) => node.name(),
            Some(EventObject::Pod(pod)) => &pod.node_name,
            Some(EventObject::Other(topology)) => &topology.name,
            _ => return true,
        };
        let cx = EvaluatorCx { world: args.world, states: args.states };
        let fits = |row| self.fit(cx, cpu_milli(args.pod), row).is_some();
        args.world.nodes().row(node).is_none_or(fits)
    }
}

impl Filter for NumaFit {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fit = self.fit(cx.evaluator_cx(), cpu_milli(pod), node.row()).ok_or_else(|| {
            Rejection::unschedulable("node(s) had no NUMA zone with enough free CPUs")
        })?;
        cx.cycle.set_for_node(self.found, node.row(), fit);
        Ok(())
    }
}

impl Score for NumaFit {
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        Ok(self.fit(cx.evaluator_cx(), cpu_milli(pod), node.row()).map_or(0, |fit| fit.score))
    }
}

impl Incremental for NumaFit {
    type Key = i64;

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<i64> {
        Some(cpu_milli(pod))
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, cpu: &i64) -> PrepareResult {
        let (plugin, cpu) = (self.clone(), *cpu);
        let score = move |cx: EvaluatorCx<'_>, row| Some(plugin.fit(cx, cpu, row)?.score);
        PrepareResult::row_local(RowDependency::Pods, score)
    }
}

impl Reserve for NumaFit {
    fn reserve(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let found = cx.cycle.get_for_selected_node(self.found);
        let Some(zone) = found.and_then(|fit| fit.zone) else { return Ok(()) };
        self.log.pod(pod).info(3, format_args!("Booked zone {zone} of {}", node.name()));
        if let Some(booked) = cx.states.get_mut(self.booked) {
            booked.insert(pod.uid.clone(), (node.name().into(), zone));
        }
        cx.invalidate_node(node.name());
        Ok(())
    }

    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str) {
        cx.states.get_mut(self.booked).and_then(|booked| booked.remove(&pod.uid));
        cx.invalidate_node(node);
    }
}

impl PodEventHandler for NumaFit {
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange) {
        if let (Some(pod), None) = (&change.old, &change.new) {
            cx.states.get_mut(self.booked).and_then(|booked| booked.remove(&pod.uid));
        }
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).run()
}

#[cfg(test)]
mod tests;
