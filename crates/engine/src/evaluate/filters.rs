//! A profile's Filters about one node, as they run in a cycle and in the dry runs of PostFilter.

use std::sync::Arc;

use loadmaster_framework::{
    Code, Cx, CycleState, Failure, Feasibility, NodeInfo, PodInfo, Rejection, World,
};

use super::Rejected;
use crate::guard::{self, Site};
use crate::profile::Profile;

/// The Filters of one cycle.
#[derive(Clone, Copy)]
pub struct Filters<'a> {
    pub profile: &'a Profile,
    /// Indexes of plugins whose PreFilter had nothing to say: they are not asked.
    pub skipped: &'a [usize],
}

impl Filters<'_> {
    /// Asks twice where pods of at least this priority are nominated to the node: with them, and then without. Both must succeed.
    pub fn ask(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejected> {
        let nominated = cx.world.nominated(node.name()).iter().filter(|other| {
            other.template.priority() >= pod.template.priority() && other.uid != pod.uid
        });
        let nominated: Vec<_> = nominated.collect();
        if !nominated.is_empty() {
            let mut overlay = node.overlay().cloned().unwrap_or_default();
            let mut cycle = cx.cycle.clone();
            for other in nominated {
                overlay.add(other.clone());
                let added = self.add_pod(&mut cycle, cx.world, pod, other, node.with(&overlay));
                added.map_err(|failure| Rejected { plugin: None, rejection: failure.into() })?;
            }
            self.ask_once(Cx { cycle: &cycle, ..cx }, pod, node.with(&overlay))?;
        }
        self.ask_once(cx, pod, node)
    }

    /// Asks once, without the pods that are nominated to the node.
    pub fn ask_once(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejected> {
        guard::section(|| self.ask_each(cx, pod, node)).unwrap_or_else(|caught| {
            let (plugin, failure) = caught.note(self.profile);
            Err(Rejected { plugin, rejection: failure.into() })
        })
    }

    fn ask_each(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejected> {
        let watch = guard::stopwatch();
        for member in &self.profile.filter {
            if self.skipped.contains(&member.plugin) {
                continue;
            }
            guard::turn(member.plugin, Site::Filter);
            let began = watch.map(|watch| watch());
            let answer = member.point.filter(cx, pod, node);
            if let Some(began) = began {
                let code = answer.as_ref().map_or_else(Rejection::code, |()| Code::Success);
                guard::timed(|| self.profile.who(member.name), Site::Filter, code, began);
            }
            if let Err(rejection) = answer {
                let rejection = match rejection {
                    Rejection::Failed(failure) => {
                        let text = format!("running {:?} filter plugin: {failure}", member.name);
                        Rejection::Failed(Failure::new(text))
                    }
                    other => other,
                };
                return Err(Rejected { plugin: Some(member.name), rejection });
            }
        }
        Ok(())
    }
}

impl Feasibility for Filters<'_> {
    fn fits(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        self.ask(cx, pod, node).map_err(|rejected| rejected.rejection)
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
                let told = member.point.add_pod(cycle, world, pod, other, node);
                told.map_err(|failure| failed("AddPod", member.name, &failure))?;
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
                let told = member.point.remove_pod(cycle, world, pod, other, node);
                told.map_err(|failure| failed("RemovePod", member.name, &failure))?;
            }
        }
        Ok(())
    }
}

fn failed(what: &str, plugin: &str, failure: &Failure) -> Failure {
    Failure::new(format!("running {what} on PreFilter plugin {plugin:?}: {failure}"))
}
