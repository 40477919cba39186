//! Gang scheduling: binds the pods of a gang together, or none of them.
//!
//! A pod belongs to the gang in its label `example.com/gang`. The object of the kind Gang in the pod's namespace says how many pods must
//! have a node before any of them is bound, and how long a pod waits at Permit for the others.

use std::sync::Arc;
use std::time::Duration;

use loadmaster::SchedulerCommand;
use loadmaster::framework::*;
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "Gang";
const DEF: PluginDef = PluginDef { name: NAME, build, args: None };
const LABEL: &str = "example.com/gang";

fn gangs() -> Gvr {
    Gvr::new("example.com", "v1", "gangs")
}

/// The fields of the custom resource that the plugin reads.
#[derive(Deserialize)]
struct Gang {
    spec: GangSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GangSpec {
    min_members: usize,
    #[serde(default = "default_timeout_seconds")]
    timeout_seconds: u64,
}

fn default_timeout_seconds() -> u64 {
    60
}

struct Plugin {
    gangs: ObjectSlot<Gang>,
    members: PodIndex,
}

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    let gangs_slot = points.watch(gangs(), WatchRequirement::Required);
    let members = points.pod_index(PodIndexKey::Label(LABEL.into()));
    let plugin = Arc::new(Plugin { gangs: gangs_slot, members });
    points.pre_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin);
    let gang_changed = gangs().event_resource();
    points.register_event(
        ClusterEvent::new(gang_changed, ActionType::ADD | ActionType::UPDATE),
        Some(Arc::new(hint_for_gang_event)),
    );
    // Resources became free for members that did not fit.
    points.register_event(
        ClusterEvent::new(
            EventResource::Node,
            ActionType::ADD | ActionType::UPDATE_NODE_ALLOCATABLE,
        ),
        None,
    );
    points.register_event(ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE), None);
    Ok(())
}

fn gang_of(pod: &PodInfo) -> Option<&str> {
    pod.template.labels.get(LABEL).map(|name| name.as_str())
}

fn is_member_of(pod: &PodInfo, namespace: &str, gang: &str) -> bool {
    gang_of(pod) == Some(gang) && pod.template.namespace == namespace
}

/// Queueing hint: a Gang was added or updated. Is it the gang of this pod?
fn hint_for_gang_event(
    args: &cluster_event::QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let Some(EventObject::Other(changed)) = args.new else { return Ok(QueueingHint::Skip) };
    let is_own_gang = is_member_of(args.pod, &changed.namespace, &changed.name);
    Ok(if is_own_gang { QueueingHint::Queue } else { QueueingHint::Skip })
}

impl Plugin {
    /// Uids of the other pods of the gang that wait at Permit.
    fn other_waiting_members(&self, cx: &SerialCx<'_>, pod: &PodInfo) -> Vec<Box<str>> {
        let all = cx.sibling_pods(&self.members, pod).waiting();
        all.filter(|it| it.pod.uid != pod.uid).map(|it| it.pod.uid.clone()).collect()
    }
}

impl PreFilter for Plugin {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        let Some(gang) = gang_of(pod) else { return Ok(PreFilterResult::Skip) };
        match cx.objects(&self.gangs).get(&pod.template.namespace, gang) {
            Some(_) => Ok(PreFilterResult::Skip),
            None => Err(Rejection::unresolvable(format!("gang {gang:?} not found"))),
        }
    }
}

impl Permit for Plugin {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let Some(gang) = gang_of(pod) else { return Ok(PermitResult::Allow) };
        let namespace = &pod.template.namespace;
        let Some(Gang { spec }) = cx.objects(&self.gangs).get(namespace, gang) else {
            return Err(Rejection::unschedulable(format!("gang {gang:?} was deleted")));
        };
        // Bound members, waiting members, and this pod, which is already assumed.
        if cx.sibling_pods(&self.members, pod).n_assigned() < spec.min_members {
            return Ok(PermitResult::Wait(Duration::from_secs(spec.timeout_seconds)));
        }
        for uid in self.other_waiting_members(&cx, pod) {
            cx.allow_waiting_pod(NAME, &uid);
        }
        Ok(PermitResult::Allow)
    }
}

impl Reserve for Plugin {
    fn reserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: NodeInfo<'_>) -> Result<(), Rejection> {
        Ok(())
    }

    /// A member timed out at Permit or failed later: reject the other members that wait.
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let Some(gang) = gang_of(pod) else { return };
        for uid in self.other_waiting_members(&cx, pod) {
            cx.reject_waiting_pod(
                NAME,
                &uid,
                format!("pod {} of gang {gang:?} was rejected", pod.name),
            );
        }
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new()
        .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .with_plugin(DEF)
        .run()
}

#[cfg(test)]
mod tests;
