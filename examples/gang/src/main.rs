//! Gang scheduling: binds the pods of a gang together, or none of them.
//!
//! A pod belongs to the gang in its label `example.com/gang`. The object of the kind Gang in the pod's namespace says how many pods must
//! have a node before any of them is bound, and how long they wait for each other.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

use loadmaster::api::{Str, Timestamp};
use loadmaster::framework::{cluster_event::QueueingHintArgs, *};
use loadmaster::{SchedulerCommand, serde_json::Value};

const NAME: &str = "Gang";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const LABEL: &str = "example.com/gang";

/// Gangs take turns in the queue, by the time since which they wait: one that fails goes behind the others.
#[derive(Clone)]
struct Turn {
    since: Timestamp,
    /// When all members must have a node; set when the first one waits at Permit.
    deadline: Option<MonoTime>,
}

struct Plugin {
    gangs: ObjectSlot<Value>,
    members: PodIndex,
    /// By namespace and name of the gang.
    turns: PluginStateSlot<BTreeMap<(Str, Str), Turn>>,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let gangs = points.watch(Gvr::new("example.com", "v1", "gangs"), WatchRequirement::Required);
    let gang_event = gangs.kind().event_resource();
    let members = points.pod_index(PodIndexKey::Label(LABEL.into()));
    let turns = points.plugin_state_slot(BTreeMap::new());
    let plugin = Arc::new(Plugin { gangs, members, turns });
    points.pod_event_handler = Some(plugin.clone());
    points.queue_sort = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    let hint = move |args: &QueueingHintArgs<'_>| Ok(QueueingHint::queue_if(plugin.may_help(args)));
    let node_grew = ActionType::ADD | ActionType::UPDATE_NODE_ALLOCATABLE;
    let events = [
        ClusterEvent::new(gang_event, ActionType::ADD | ActionType::UPDATE),
        ClusterEvent::new(EventResource::Node, node_grew),
        ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE),
        ClusterEvent::new(EventResource::UnschedulablePod, ActionType::UPDATE_POD_LABEL),
    ];
    points.register_events(events, Some(Arc::new(hint)));
    Ok(())
}

fn gang_of(pod: &PodInfo) -> Option<(Str, Str)> {
    Some((pod.template.namespace.clone(), pod.template.labels.get(LABEL)?.clone()))
}

fn number(gang: &Value, field: &str) -> u64 {
    gang["spec"][field].as_u64().unwrap_or_default()
}

impl Plugin {
    /// The pod's gang, if it is in one; or why none of its pods may be scheduled yet.
    fn gang<'a>(&self, world: &'a World, pod: &PodInfo) -> Result<Option<&'a Value>, Rejection> {
        let Some((namespace, name)) = gang_of(pod) else { return Ok(None) };
        let members = world.sibling_pods(&self.members, pod);
        let n = members.n_pending() + members.n_assigned();
        match world.watched_objects().lister(&self.gangs).get(&namespace, &name) {
            Some(gang) if n as u64 >= number(gang, "minMembers") => Ok(Some(gang)),
            Some(_) => Err(Rejection::unresolvable(format!("gang {name:?} has only {n} pods"))),
            None => Err(Rejection::unresolvable(format!("gang {name:?} not found"))),
        }
    }

    fn turn<'a>(&self, states: &'a mut PluginStates, pod: &PodInfo) -> Option<&'a mut Turn> {
        states.get_mut(self.turns)?.get_mut(&gang_of(pod)?)
    }

    /// Whether an event may help a rejected pod. What its own gang releases does not.
    fn may_help(&self, args: &QueueingHintArgs<'_>) -> bool {
        let released_by = args.old.and_then(EventObject::pod).and_then(gang_of);
        (released_by.is_none() || released_by != gang_of(args.pod))
            && self.gang(args.world, args.pod).is_ok()
    }
}

impl PodEventHandler for Plugin {
    fn on_pod_change(&self, mut cx: SerialCx<'_>, change: &PodChange) {
        let (now, pod) = (cx.now().wall, change.new.as_ref().or(change.old.as_ref()));
        let Some((pod, gang)) = pod.and_then(|pod| Some((pod, gang_of(pod)?))) else { return };
        let Some(turns) = cx.states.get_mut(self.turns) else { return };
        let members = cx.world.sibling_pods(&self.members, pod);
        if members.n_pending() + members.n_assigned() == 0 {
            turns.remove(&gang);
        } else {
            turns.entry(gang).or_insert(Turn { since: now, deadline: None });
        }
        if change.old.is_none() && self.gang(cx.world, pod).is_ok() {
            cx.activate(members.pending().map(|pod| &*pod.uid));
        }
    }
}

impl QueueSort for Plugin {
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let turns = cx.states.get(self.turns);
        let key = |it: &QueuedPodInfo| {
            let first_attempt = it.initial_attempt.map_or(it.queued, |now| now.wall);
            let gang = gang_of(&it.pod);
            let turn = gang.as_ref().and_then(|gang| Some(turns?.get(gang)?.since));
            (-i64::from(it.pod.template.priority()), turn.unwrap_or(first_attempt), gang)
        };
        key(a).cmp(&key(b))
    }
}

impl PreFilter for Plugin {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        self.gang(cx.world, pod).map(|_| PreFilterResult::Skip)
    }
}

/// Pods without a gang share their results. Those of members depend on all other members.
impl Incremental for Plugin {
    type Key = ();

    fn key(&self, _: EvaluatorCx<'_>, pod: &PodInfo) -> Option<()> {
        gang_of(pod).is_none().then_some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Skip
    }
}

impl Permit for Plugin {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let Some(gang) = self.gang(cx.world, pod)? else { return Ok(PermitResult::Allow) };
        let Some(turn) = self.turn(cx.states, pod) else { return Ok(PermitResult::Allow) };
        let (now, members) = (cx.world.now().mono, cx.world.sibling_pods(&self.members, pod));
        // Bound pods, those that wait, and this one, which is already assumed.
        if members.n_assigned() as u64 >= number(gang, "minMembers") {
            turn.deadline = None;
            members.waiting().for_each(|it| cx.allow_waiting_pod(NAME, &it.pod.uid));
            return Ok(PermitResult::Allow);
        }
        let timeout = Duration::from_secs(number(gang, "timeoutSeconds"));
        let deadline = *turn.deadline.get_or_insert(now.after(timeout));
        cx.activate(members.pending().map(|pod| &*pod.uid));
        Ok(PermitResult::Wait(deadline.since(now)))
    }
}

impl Reserve for Plugin {
    /// A member timed out at Permit or failed: the others that wait are rejected.
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let since = cx.now().wall;
        let Some(turn) = self.turn(cx.states, pod).filter(|it| it.deadline.is_some()) else {
            return;
        };
        *turn = Turn { since, deadline: None };
        cx.sort_queue();
        let waiting = cx.world.sibling_pods(&self.members, pod).waiting();
        for other in waiting.filter(|it| it.pod.uid != pod.uid) {
            let why = format!("pod {} of the same gang was rejected", pod.name);
            cx.reject_waiting_pod(NAME, &other.pod.uid, why);
        }
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).run()
}

#[cfg(test)]
mod tests;
