//! The loops over the plugins of one scheduling cycle, up to NormalizeScore; used by per-node evaluation for all plugins, and by full
//! scans for those without an incremental form. The loop over Filter plugins is [`super::filter_runner::run_filters`].

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_framework::extension_points::{Cx, NodeScore, SerialCx};
use loadmaster_framework::{
    Code, CycleState, Failure, Filter, MAX_NODE_SCORE, NodeInfo, PluginStates, PodInfo,
    PreFilterResult, PreScoreResult, Rejection, Score, World,
};
use loadmaster_stdx::Set;

use super::PluginRejection;
use crate::guard::{self, ExtensionPoint};
use crate::profile::{EnabledPlugin, Profile};

/// One scheduling cycle of a pod, as far as plugins are concerned.
pub(crate) struct PluginLoops<'a> {
    pub profile: &'a Profile,
    pub states: &'a mut PluginStates,
    pub pod: &'a PodInfo,
    /// Indexes of the plugins that are called; `None` for all.
    pub only: Option<&'a [usize]>,
    pub cycle: CycleState,
    /// Indexes of plugins whose PreFilter returned Skip: their Filter is not called.
    pub skipped: Vec<usize>,
    /// Plugins whose PreFilter result excluded nodes, sorted; empty when PreFilter ended early.
    pub excluded_by: Vec<&'static str>,
}

/// A score is out of range, or a plugin failed.
pub(crate) enum ScoreError {
    Failed(Failure),
    /// The failure that upstream reports.
    OutOfRange(Failure),
}

impl From<ScoreError> for Failure {
    fn from(error: ScoreError) -> Failure {
        match error {
            ScoreError::Failed(failure) | ScoreError::OutOfRange(failure) => failure,
        }
    }
}

impl<'a> PluginLoops<'a> {
    /// The loops over all plugins of a profile.
    pub fn new(profile: &'a Profile, states: &'a mut PluginStates, pod: &'a PodInfo) -> Self {
        PluginLoops {
            profile,
            states,
            pod,
            only: None,
            cycle: CycleState::default(),
            skipped: Vec::new(),
            excluded_by: Vec::new(),
        }
    }

    /// The read-only context.
    pub fn cx<'c>(&'c self, world: &'c World) -> Cx<'c> {
        Cx { world, cycle: &self.cycle, states: self.states }
    }

    fn serial_cx<'c>(&'c mut self, world: &'c World) -> SerialCx<'c> {
        SerialCx { world, cycle: &mut self.cycle, states: self.states }
    }

    /// Those of these plugins that are called.
    pub fn called<T: ?Sized>(
        &self,
        members: &'a [EnabledPlugin<T>],
    ) -> impl Iterator<Item = &'a EnabledPlugin<T>> + use<'a, T> {
        let only = self.only;
        members.iter().filter(move |member| only.is_none_or(|only| only.contains(&member.plugin)))
    }

    /// Runs PreFilter; returns the names of the remaining nodes, or `None` for all nodes.
    ///
    /// # Errors
    ///
    /// When no node remains, or a plugin rejects the pod or fails.
    pub fn pre_filter(&mut self, world: &World) -> Result<Option<Set<Str>>, PluginRejection> {
        let mut narrowed: Option<Set<Str>> = None;
        let mut by: BTreeSet<&'static str> = BTreeSet::new();
        let mut rejected = None;
        for member in self.called(&self.profile.pre_filter) {
            let pod = self.pod;
            match member.point.pre_filter(self.serial_cx(world), pod) {
                Ok(PreFilterResult::All) => {}
                Ok(PreFilterResult::Skip) => self.skipped.push(member.plugin),
                Ok(PreFilterResult::Nodes(nodes)) => {
                    by.insert(member.name);
                    narrowed = Some(match narrowed.take() {
                        Some(before) => before.intersection(&nodes).cloned().collect(),
                        None => nodes,
                    });
                }
                // Preemption may still help, so the other plugins run too; the last rejection counts.
                Err(rejection @ Rejection::Unschedulable(_)) => {
                    rejected = Some(PluginRejection { plugin: Some(member.name), rejection });
                    continue;
                }
                Err(rejection @ Rejection::Unresolvable(_)) => {
                    return Err(PluginRejection { plugin: Some(member.name), rejection });
                }
                Err(other) => {
                    let text =
                        format!("running PreFilter plugin {:?}: {}", member.name, other.message());
                    let rejection = Rejection::Failed(Failure::new(text));
                    return Err(PluginRejection { plugin: Some(member.name), rejection });
                }
            }
            if narrowed.as_ref().is_some_and(Set::is_empty) {
                return Err(no_node_left(&by));
            }
        }
        self.excluded_by = by.into_iter().collect();
        match rejected {
            Some(rejected) => Err(rejected),
            None => Ok(narrowed),
        }
    }

    /// The Filter plugins that are called.
    pub fn filters(&self) -> Vec<&'a EnabledPlugin<dyn Filter>> {
        let called = self.called(&self.profile.filter);
        called.filter(|member| !self.skipped.contains(&member.plugin)).collect()
    }

    /// Runs PreScore; returns the indexes of plugins whose Score is not called.
    ///
    /// # Errors
    ///
    /// When a plugin fails.
    pub fn pre_score(
        &mut self,
        world: &World,
        feasible: &[NodeInfo<'_>],
    ) -> Result<Vec<usize>, Failure> {
        let mut skipped = Vec::new();
        for member in self.called(&self.profile.pre_score) {
            let pod = self.pod;
            let result = member.point.pre_score(self.serial_cx(world), pod, feasible);
            let result = result.map_err(|failure| {
                Failure::new(format!("running PreScore plugin {:?}: {failure}", member.name))
            })?;
            if result == PreScoreResult::Skip {
                skipped.push(member.plugin);
            }
        }
        Ok(skipped)
    }

    /// Runs Score and NormalizeScore of one plugin; returns one score per node, in `0..=100`. The caller catches panics.
    ///
    /// # Errors
    ///
    /// When the plugin fails, or a score is out of range.
    pub fn score(
        &self,
        world: &World,
        member: &EnabledPlugin<dyn Score>,
        feasible: &[NodeInfo<'_>],
    ) -> Result<Vec<NodeScore>, ScoreError> {
        let EnabledPlugin { plugin, name, point, .. } = member;
        let watch = guard::stopwatch();
        guard::set_current_plugin(*plugin, ExtensionPoint::Score);
        let cx = self.cx(world);
        let failed = |when: &str, failure: Failure| {
            ScoreError::Failed(Failure::new(format!(
                "running {when} plugins: plugin {name:?} failed with: {failure}"
            )))
        };
        let mut scores = Vec::with_capacity(feasible.len());
        for node in feasible {
            let began = watch.map(|watch| watch());
            let score = point.score(cx, self.pod, *node);
            if let Some(began) = began {
                let code = score.as_ref().map_or(Code::Error, |_| Code::Success);
                guard::record_execution(
                    || self.profile.plugin_ref(name),
                    ExtensionPoint::Score,
                    code,
                    began,
                );
            }
            let score = score.map_err(|failure| failed("Score", failure))?;
            scores.push(NodeScore { row: node.row(), score });
        }
        guard::set_current_plugin(*plugin, ExtensionPoint::NormalizeScore);
        point
            .normalize(cx, self.pod, &mut scores)
            .map_err(|failure| failed("Normalize on Score", failure))?;
        match scores.iter().find(|node| !(0..=MAX_NODE_SCORE).contains(&node.score)) {
            Some(bad) => Err(ScoreError::OutOfRange(Failure::new(format!(
                "applying score defaultWeights on Score plugins: plugin {name:?} returns an invalid score {}, it should in the \
                 range of [0, {MAX_NODE_SCORE}] after normalizing",
                bad.score
            )))),
            None => Ok(scores),
        }
    }
}

fn no_node_left(by: &BTreeSet<&'static str>) -> PluginRejection {
    let names: Vec<&str> = by.iter().copied().collect();
    let text = match names.as_slice() {
        [one] => format!("node(s) didn't satisfy plugin {one}"),
        several => {
            format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", several.join(" "))
        }
    };
    PluginRejection { plugin: None, rejection: Rejection::unresolvable(text) }
}
