//! Runs a profile's Filter plugins on one node, in scheduling cycles and in the dry runs of PostFilter.

use std::cell::RefCell;
use std::sync::Arc;

use loadmaster_framework::preemption::VictimCache;
use loadmaster_framework::{
    Code, Cx, CycleState, DryRunCx, Failure, Filter, FilterRunner, NodeInfo, NodeRow, PodInfo,
    Rejection, World,
};

use super::PluginRejection;
use crate::guard::{self, ExtensionPoint};
use crate::profile::{EnabledPlugin, Profile};

/// The Filter plugins of one scheduling cycle.
#[derive(Clone, Copy)]
pub struct ProfileFilters<'a> {
    pub profile: &'a Profile,
    /// Indexes of plugins whose PreFilter returned Skip: their Filter is not called.
    pub skipped: &'a [usize],
    /// What earlier preemptors with these results found.
    pub victims: Option<&'a RefCell<VictimCache>>,
}

impl ProfileFilters<'_> {
    /// Runs the Filter plugins with the pods of equal or higher priority that are nominated to the node, if there are any, and
    /// then without them. Both must succeed (upstream's `RunFilterPluginsWithNominatedPods`).
    pub fn run_with_nominated_pods(
        &self,
        mut cx: DryRunCx<'_>,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<(), PluginRejection> {
        let (cycle, states) = (cx.cycle, cx.states);
        let nominated = nominated_pods(cx.world(), pod, row);
        if !nominated.is_empty() {
            let mut world = cx.dry_run();
            let mut cycle = cycle.clone();
            for other in nominated {
                world.assume(row, other.clone());
                self.add_pod(&mut cycle, &world, pod, &other, node_in_row(&world, row)?)?;
            }
            let node = node_in_row(&world, row)?;
            self.run(Cx { world: &world, cycle: &cycle, states }, pod, node)?;
        }
        self.run(cx.cx(), pod, node_in_row(cx.world(), row)?)
    }

    /// Runs the Filter plugins once, without nominated pods.
    pub fn run(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: NodeInfo<'_>,
    ) -> Result<(), PluginRejection> {
        let members = self.profile.filter.iter();
        let members = members.filter(|member| !self.skipped.contains(&member.plugin));
        run_filters(self.profile, members, cx, pod, node)
    }
}

/// The pods of equal or higher priority that are nominated to a node, without the pod itself.
fn nominated_pods(world: &World, pod: &PodInfo, row: NodeRow) -> Vec<Arc<PodInfo>> {
    let node = world.node(row).map_or("", |node| node.name());
    let nominated = world.nominated_pods_for_node(node).iter();
    let counts = |other: &&Arc<PodInfo>| {
        other.template.priority() >= pod.template.priority() && other.uid != pod.uid
    };
    nominated.filter(counts).cloned().collect()
}

fn node_in_row(world: &World, row: NodeRow) -> Result<NodeInfo<'_>, Failure> {
    world.node(row).ok_or_else(|| Failure::new("the node does not exist"))
}

/// Calls these Filter plugins for one node, until one rejects it.
pub(crate) fn run_filters<'p>(
    profile: &Profile,
    members: impl Iterator<Item = &'p EnabledPlugin<dyn Filter>>,
    cx: Cx<'_>,
    pod: &PodInfo,
    node: NodeInfo<'_>,
) -> Result<(), PluginRejection> {
    guard::catch_plugin_panic(|| run_each_filter(profile, members, cx, pod, node)).unwrap_or_else(
        |caught| {
            let (plugin, failure) = caught.record(profile);
            Err(PluginRejection { plugin, rejection: failure.into() })
        },
    )
}

/// The same without a guard: the caller catches panics.
pub(crate) fn run_each_filter<'p>(
    profile: &Profile,
    members: impl Iterator<Item = &'p EnabledPlugin<dyn Filter>>,
    cx: Cx<'_>,
    pod: &PodInfo,
    node: NodeInfo<'_>,
) -> Result<(), PluginRejection> {
    let watch = guard::stopwatch();
    for member in members {
        guard::set_current_plugin(member.plugin, ExtensionPoint::Filter);
        let began = watch.map(|watch| watch());
        let result = member.point.filter(cx, pod, node);
        if let Some(began) = began {
            let code = result.as_ref().map_or_else(Rejection::code, |()| Code::Success);
            guard::record_execution(
                || profile.plugin_ref(member.name),
                ExtensionPoint::Filter,
                code,
                began,
            );
        }
        if let Err(rejection) = result {
            let rejection = match rejection {
                Rejection::Failed(failure) => {
                    Rejection::Failed(filter_failure(member.name, &failure))
                }
                other => other,
            };
            return Err(PluginRejection { plugin: Some(member.name), rejection });
        }
    }
    Ok(())
}

/// The failure of the attempt when a Filter plugin fails.
fn filter_failure(plugin: &str, failure: &Failure) -> Failure {
    Failure::new(format!("running {plugin:?} filter plugin: {failure}"))
}

impl FilterRunner for ProfileFilters<'_> {
    fn run_filters_with_nominated_pods(
        &self,
        cx: DryRunCx<'_>,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<(), Rejection> {
        self.run_with_nominated_pods(cx, pod, row).map_err(|rejected| rejected.rejection)
    }

    fn victim_cache(&self) -> Option<&RefCell<VictimCache>> {
        self.victims
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        for member in &self.profile.pre_filter {
            if !self.skipped.contains(&member.plugin) {
                let added = member.point.add_pod(cycle, world, pod, other, node);
                added.map_err(|failure| failed("AddPod", member.name, &failure))?;
            }
        }
        Ok(())
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        for member in &self.profile.pre_filter {
            if !self.skipped.contains(&member.plugin) {
                let removed = member.point.remove_pod(cycle, world, pod, other, node);
                removed.map_err(|failure| failed("RemovePod", member.name, &failure))?;
            }
        }
        Ok(())
    }
}

fn failed(method: &str, plugin: &str, failure: &Failure) -> Failure {
    Failure::new(format!("running {method} on PreFilter plugin {plugin:?}: {failure}"))
}
