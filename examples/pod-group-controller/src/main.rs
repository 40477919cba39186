//! A controller beside its plugin: the pods of a group wait in the queue until the group is complete.
//!
//! A pod belongs to the group in its label `example.com/pod-group`. The service, on the leader, counts the pods of each PodGroup and writes
//! the number to its status, where users see it. The plugin reads it: PreEnqueue gates the pods of a group that has less than `minMembers`,
//! and Filter accepts only nodes of the group's zone, if it has one.

mod controller;

use std::sync::Arc;

use loadmaster::SchedulerCommand;
use loadmaster::api::Str;
use loadmaster::framework::{cluster_event::QueueingHintArgs, incremental::RowDependency, *};
use serde_json::Value;

const NAME: &str = "PodGroup";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const LABEL: &str = "example.com/pod-group";
const ZONE: &str = "topology.kubernetes.io/zone";

struct Plugin {
    groups: ObjectSlot<Value>,
    log: PluginLogger,
    gated: PluginCounter<1>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let groups = Gvr::new("example.com", "v1", "podgroups");
    // The controller's. The scheduler may list and watch pods and what plugins watch.
    let rule = |resource, verb| PolicyRule::new(&["example.com"], &[resource], &[verb]);
    points.require_permissions(rule("podgroups", "get"))?;
    points.require_permissions(rule("podgroups/status", "patch"))?;
    let help = "Number of times that a pod of an incomplete group was kept out of the queue.";
    let plugin = Arc::new(Plugin {
        groups: points.watch(groups.clone(), WatchRequirement::Required),
        log: points.logger(),
        gated: points.counter("podgroup_gated_pods_total", help, ["namespace"])?,
    });
    points.pre_enqueue = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.incremental = Some(plugin);
    let labelled = ActionType::ADD | ActionType::UPDATE_NODE_LABEL;
    let events = [
        ClusterEvent::new(groups.event_resource(), ActionType::ADD | ActionType::UPDATE),
        ClusterEvent::new(EventResource::Node, labelled),
        ClusterEvent::new(EventResource::UnschedulablePod, ActionType::UPDATE_POD_LABEL),
    ];
    points.register_events(events, Some(Arc::new(is_own_group)));
    Ok(())
}

/// Queueing hint: if a PodGroup changed, is it that of the pod?
fn is_own_group(args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let Some(EventObject::Other(changed)) = args.new else { return Ok(QueueingHint::Queue) };
    let pod = &args.pod.template;
    let has_name = pod.labels.get(LABEL).is_some_and(|group| *group == *changed.name);
    Ok(QueueingHint::queue_if(has_name && pod.namespace == *changed.namespace))
}

impl Plugin {
    /// The zone in which a pod must run.
    fn zone(&self, world: &World, pod: &PodInfo) -> Option<Str> {
        let groups = world.watched_objects().lister(&self.groups);
        let group = groups.get(&pod.template.namespace, pod.template.labels.get(LABEL)?)?;
        group["spec"]["zone"].as_str().map(Str::new)
    }
}

impl Filter for Plugin {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        match self.zone(cx.world, pod) {
            Some(zone) if node.labels().get(ZONE) != Some(&zone) => {
                Err(Rejection::unresolvable("node(s) were outside of the PodGroup's zone"))
            }
            _ => Ok(()),
        }
    }
}

/// The key is the zone, and is computed again when a PodGroup changes.
impl Incremental for Plugin {
    type Key = Option<Str>;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key> {
        Some(self.zone(cx.world, pod))
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, zone: &Self::Key) -> PrepareResult {
        let Some(zone) = zone.clone() else { return PrepareResult::Skip };
        PrepareResult::row_local(RowDependency::Node, move |cx, row| {
            (cx.world.node(row)?.labels().get(ZONE) == Some(&zone)).then_some(0)
        })
    }
}

impl PreEnqueue for Plugin {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        let Some(name) = pod.template.labels.get(LABEL) else { return Ok(()) };
        let namespace = &pod.template.namespace;
        let Some(group) = cx.objects(&self.groups).get(namespace, name) else {
            return Err(Rejection::unresolvable(format!("PodGroup {name:?} not found")));
        };
        let number = |section, field| group[section][field].as_u64().unwrap_or(0);
        let (n_members, n_min) = (number("status", "members"), number("spec", "minMembers"));
        if n_members >= n_min {
            return Ok(());
        }
        let why = format!("PodGroup {name:?} has {n_members} of {n_min} pods");
        self.log.pod(pod).info(3, format_args!("Gated: {why}"));
        self.gated.inc([namespace]);
        Err(Rejection::unresolvable(why))
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).with_service("pod-group", controller::control).run()
}

#[cfg(test)]
mod tests;
