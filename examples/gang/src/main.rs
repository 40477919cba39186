//! Runs the pods of a gang all together or not at all.
//!
//! A pod is of the gang that its label `example.com/gang` names: an object of the kind Gang in the pod's namespace, which says how
//! many pods must have a node before any of them is bound, and how long those wait that have one.

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

/// The custom resource, as far as it is read.
#[derive(Deserialize)]
struct Gang {
    spec: GangSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GangSpec {
    min_members: usize,
    #[serde(default = "a_minute")]
    timeout_seconds: u64,
}

fn a_minute() -> u64 {
    60
}

struct Plugin {
    gangs: ObjectSlot<Gang>,
}

fn build(points: &mut Points, _: &Value) -> Result<(), PluginError> {
    let plugin = Arc::new(Plugin { gangs: points.watch(gangs(), Presence::Required) });
    points.pre_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin);
    let gang_changed = gangs().event_resource();
    points.wake_on(
        ClusterEvent::new(gang_changed, Action::ADD | Action::UPDATE),
        Some(Arc::new(of_its_gang)),
    );
    // More room, for those of the gang that had none.
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_NODE_ALLOCATABLE),
        None,
    );
    points.wake_on(ClusterEvent::new(EventResource::AssignedPod, Action::DELETE), None);
    Ok(())
}

fn gang_of(pod: &PodInfo) -> Option<&str> {
    pod.template.labels.get(LABEL).map(|name| name.as_str())
}

fn is_of(pod: &PodInfo, namespace: &str, gang: &str) -> bool {
    gang_of(pod) == Some(gang) && pod.template.namespace == namespace
}

/// A Gang came or changed: that of this pod?
fn of_its_gang(question: &event::HintQuestion<'_>) -> Result<Hint, Failure> {
    let Some(EventObject::Other(changed)) = question.new else { return Ok(Hint::Skip) };
    let is_its = is_of(question.pod, &changed.namespace, &changed.name);
    Ok(if is_its { Hint::Queue } else { Hint::Skip })
}

/// Uids of the gang's pods that wait at Permit.
fn waiting(cx: &SerialCx<'_>, pod: &PodInfo, gang: &str) -> Vec<Box<str>> {
    let all = cx.waiting_pods().iter().map(|waiting| &waiting.pod);
    let others = all.filter(|it| it.uid != pod.uid && is_of(it, &pod.template.namespace, gang));
    others.map(|it| it.uid.clone()).collect()
}

impl PreFilter for Plugin {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection> {
        let Some(gang) = gang_of(pod) else { return Ok(PreFiltered::Skip) };
        match cx.objects(&self.gangs).get(&pod.template.namespace, gang) {
            Some(_) => Ok(PreFiltered::Skip),
            None => Err(Rejection::unresolvable(format!("there is no gang {gang:?}"))),
        }
    }
}

impl Permit for Plugin {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection> {
        let Some(gang) = gang_of(pod) else { return Ok(Permitted::Allow) };
        let namespace = &pod.template.namespace;
        let Some(Gang { spec }) = cx.objects(&self.gangs).get(namespace, gang) else {
            return Err(Rejection::unschedulable(format!("there is no gang {gang:?} any more")));
        };
        // Those that are bound, those that wait, and this one. It costs a look at every pod of the cluster for each pod of a gang.
        let on_nodes = cx.world.node_infos().flat_map(|node| node.pods());
        if on_nodes.filter(|it| is_of(it, namespace, gang)).count() < spec.min_members {
            return Ok(Permitted::Wait(Duration::from_secs(spec.timeout_seconds)));
        }
        for uid in waiting(&cx, pod, gang) {
            cx.allow(NAME, &uid);
        }
        Ok(Permitted::Allow)
    }
}

impl Reserve for Plugin {
    fn reserve(&self, _: SerialCx<'_>, _: &Arc<PodInfo>, _: NodeInfo<'_>) -> Result<(), Rejection> {
        Ok(())
    }

    /// One gives its node up, so all that wait for it do: it waited too long, or something was wrong with it.
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let Some(gang) = gang_of(pod) else { return };
        for uid in waiting(&cx, pod, gang) {
            cx.reject(NAME, &uid, format!("pod {} of gang {gang:?} gave its node up", pod.name));
        }
    }
}

fn main() -> std::process::ExitCode {
    SchedulerCommand::new().with_plugin(DEF).run()
}

#[cfg(test)]
mod tests;
