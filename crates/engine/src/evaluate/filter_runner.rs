//! Runs a profile's Filter plugins on one node, in scheduling cycles and in the dry runs of PostFilter.

use std::sync::Arc;

use loadmaster_framework::{
    Code, Cx, CycleState, Failure, FilterRunner, NodeInfo, PodInfo, Rejection, World,
};

use super::PluginRejection;
use crate::guard::{self, ExtensionPoint};
use crate::profile::Profile;

/// The Filter plugins of one scheduling cycle.
#[derive(Clone, Copy)]
pub struct ProfileFilters<'a> {
    pub profile: &'a Profile,
    /// Indexes of plugins whose PreFilter returned Skip: their Filter is not called.
    pub skipped: &'a [usize],
}

impl ProfileFilters<'_> {
    /// Runs the Filter plugins with the pods of equal or higher priority that are nominated to the node, if there are any, and
    /// then without them. Both must succeed (upstream's `RunFilterPluginsWithNominatedPods`).
    pub fn run_with_nominated_pods(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: NodeInfo<'_>,
    ) -> Result<(), PluginRejection> {
        let nominated = cx.world.nominated_pods_for_node(node.name()).iter().filter(|other| {
            other.template.priority() >= pod.template.priority() && other.uid != pod.uid
        });
        let nominated: Vec<_> = nominated.collect();
        if !nominated.is_empty() {
            let mut overlay = node.overlay().cloned().unwrap_or_default();
            let mut cycle = cx.cycle.clone();
            for other in nominated {
                overlay.add(other.clone());
                let added =
                    self.add_pod(&mut cycle, cx.world, pod, other, node.with_overlay(&overlay));
                added.map_err(|failure| PluginRejection {
                    plugin: None,
                    rejection: failure.into(),
                })?;
            }
            self.run(Cx { cycle: &cycle, ..cx }, pod, node.with_overlay(&overlay))?;
        }
        self.run(cx, pod, node)
    }

    /// Runs the Filter plugins once, without nominated pods.
    pub fn run(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: NodeInfo<'_>,
    ) -> Result<(), PluginRejection> {
        guard::catch_plugin_panic(|| self.run_each(cx, pod, node)).unwrap_or_else(|caught| {
            let (plugin, failure) = caught.record(self.profile);
            Err(PluginRejection { plugin, rejection: failure.into() })
        })
    }

    fn run_each(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: NodeInfo<'_>,
    ) -> Result<(), PluginRejection> {
        let watch = guard::stopwatch();
        for member in &self.profile.filter {
            if self.skipped.contains(&member.plugin) {
                continue;
            }
            guard::set_current_plugin(member.plugin, ExtensionPoint::Filter);
            let began = watch.map(|watch| watch());
            let result = member.point.filter(cx, pod, node);
            if let Some(began) = began {
                let code = result.as_ref().map_or_else(Rejection::code, |()| Code::Success);
                guard::record_execution(
                    || self.profile.plugin_ref(member.name),
                    ExtensionPoint::Filter,
                    code,
                    began,
                );
            }
            if let Err(rejection) = result {
                let rejection = match rejection {
                    Rejection::Failed(failure) => {
                        let text = format!("running {:?} filter plugin: {failure}", member.name);
                        Rejection::Failed(Failure::new(text))
                    }
                    other => other,
                };
                return Err(PluginRejection { plugin: Some(member.name), rejection });
            }
        }
        Ok(())
    }
}

impl FilterRunner for ProfileFilters<'_> {
    fn run_filters_with_nominated_pods(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        self.run_with_nominated_pods(cx, pod, node).map_err(|rejected| rejected.rejection)
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
