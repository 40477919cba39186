//! Per-node evaluation: calls every plugin for every node, as upstream does. The reference for all faster ways, and the basis of
//! `explain`.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_framework::extension_points::{Cx, NodeScore, SerialCx};
use loadmaster_framework::{
    Code, CycleState, Failure, MAX_NODE_SCORE, NodeInfo, NodeRow, PluginStates, PodInfo,
    PreFilterResult, PreScoreResult, Rejection, Score, World,
};
use loadmaster_stdx::Set;

use super::filter_runner::ProfileFilters;
use super::{Evaluation, ExtenderResults, FilterResult, NodeEvaluation, PluginRejection};
use crate::guard::{self, ExtensionPoint};
use crate::node_sampling::NodeSearch;
use crate::profile::{EXTENDER_NAME, EnabledPlugin, Profile};

/// Runs PreFilter, Filter, PreScore, Score and NormalizeScore for all nodes, as upstream does. `states` is changed only by
/// PreFilter and PreScore.
pub fn evaluate_per_node(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Evaluation {
    evaluate_attempt(profile, world, states, pod).evaluation
}

/// The evaluation of a scheduling attempt, and the input of PostFilter.
#[derive(Default)]
pub struct AttemptEvaluation {
    pub evaluation: Evaluation,
    pub cycle: CycleState,
    /// Indexes of plugins whose Filter is not called in this cycle.
    pub skipped: Vec<usize>,
    /// Number of nodes that Filter ran on.
    pub n_filtered_nodes: usize,
}

/// The same, with the state that PostFilter needs when no node is feasible.
pub fn evaluate_attempt(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> AttemptEvaluation {
    evaluate_attempt_with_extenders(profile, world, states, pod, None, &ExtenderResults::default())
}

/// The same with node sampling, and with the extenders' results applied.
pub fn evaluate_attempt_with_extenders(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    node_search: Option<NodeSearch<'_>>,
    extended: &ExtenderResults,
) -> AttemptEvaluation {
    if world.nodes().is_empty() {
        return AttemptEvaluation::default();
    }
    let (cycle, skipped) = (CycleState::default(), Vec::new());
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    let mut evaluation = Evaluation::default();
    let mut n_visited = 0;
    match attempt.pre_filter(&mut evaluation) {
        Ok(nodes) => n_visited = attempt.filter(nodes.as_ref(), node_search, &mut evaluation),
        Err(rejected) => {
            if let Rejection::Failed(failure) = &rejected.rejection {
                evaluation.failure = Some(failure.to_string());
            }
            evaluation.pre_filter_rejection = Some(rejected);
        }
    }
    apply_extender_results(extended, world, &mut evaluation);
    if evaluation.failure.is_none()
        && let Err(failure) = attempt.score(&mut evaluation)
    {
        // A single feasible node is selected without scoring, so that a failure to score does not matter.
        evaluation.clear_scores();
        if evaluation.single_feasible_node().is_none() {
            evaluation.failure = Some(failure.to_string());
        }
    }
    AttemptEvaluation {
        evaluation,
        cycle: attempt.cycle,
        skipped: attempt.skipped,
        n_filtered_nodes: n_visited,
    }
}

/// Replaces filter results of plugins by those of extenders.
fn apply_extender_results(extended: &ExtenderResults, world: &World, evaluation: &mut Evaluation) {
    if extended.is_empty() {
        return;
    }
    let mut also = BTreeSet::new();
    for node in &mut evaluation.nodes {
        let name = world.node(node.row).map_or("", |node| node.name());
        let Some(filter_result) = extended.filter_result(node.row, name) else { continue };
        if let FilterResult::Rejected(PluginRejection { plugin: Some(plugin), .. }) =
            &node.filter_result
        {
            also.insert(*plugin);
        }
        // A node is feasible if an extender lists it as failed but does not remove it.
        if node.filter_result != FilterResult::Feasible || extended.excluded.contains(&node.row) {
            node.filter_result = filter_result;
        }
    }
    if !extended.excluded.is_empty() {
        also.insert(EXTENDER_NAME);
    }
    evaluation.other_rejecting_plugins = also.into_iter().collect();
    let is_unknown = |name: &str| world.nodes().row(name).is_none();
    let elsewhere = extended.failures.iter().filter(|(name, _)| is_unknown(name));
    evaluation.unknown_node_rejections =
        elsewhere.map(|(_, failure)| super::extender_rejection(failure)).collect();
}

/// Runs PreFilter, and Filter with nominated pods on some rows, even if PreFilter excluded them, as upstream does for a pod's
/// nominated node.
///
/// # Errors
///
/// When PreFilter rejects the pod on all nodes.
pub fn filter_rows_with_nominated_pods(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    rows: &[NodeRow],
) -> Result<Vec<Result<(), PluginRejection>>, PluginRejection> {
    let (cycle, skipped) = (CycleState::default(), Vec::new());
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    attempt.pre_filter(&mut Evaluation::default())?;
    let filters = ProfileFilters { profile, skipped: &attempt.skipped };
    let nodes = rows.iter().filter_map(|row| world.node(*row));
    Ok(nodes.map(|node| filters.run_with_nominated_pods(attempt.cx(), pod, node)).collect())
}

/// Adds the cycle state of `plugins` that were evaluated incrementally: runs PreFilter for the pod, and Filter for the selected
/// node.
///
/// # Errors
///
/// When a plugin rejects the pod or the selected node now.
pub fn replay_cycle_state(
    profile: &Profile,
    world: &World,
    states: &mut PluginStates,
    pod: &PodInfo,
    (row, plugins): (NodeRow, &[usize]),
    cycle: CycleState,
) -> Result<CycleState, PluginRejection> {
    let skipped = (0..profile.plugins.len()).filter(|plugin| !plugins.contains(plugin)).collect();
    let mut attempt = Attempt { profile, world, states, pod, cycle, skipped };
    for member in profile.pre_filter.iter().filter(|member| plugins.contains(&member.plugin)) {
        match member.point.pre_filter(attempt.serial_cx(), pod) {
            Ok(PreFilterResult::Skip) => attempt.skipped.push(member.plugin),
            Ok(_) => {}
            Err(rejection) => return Err(PluginRejection { plugin: Some(member.name), rejection }),
        }
    }
    if let Some(node) = world.node(row) {
        let filters = ProfileFilters { profile, skipped: &attempt.skipped };
        filters.run(attempt.cx(), pod, node)?;
    }
    Ok(attempt.cycle)
}

struct Attempt<'a> {
    profile: &'a Profile,
    world: &'a World,
    states: &'a mut PluginStates,
    pod: &'a PodInfo,
    cycle: CycleState,
    skipped: Vec<usize>,
}

impl Attempt<'_> {
    fn serial_cx(&mut self) -> SerialCx<'_> {
        SerialCx { world: self.world, cycle: &mut self.cycle, states: self.states }
    }

    fn cx(&self) -> Cx<'_> {
        Cx { world: self.world, cycle: &self.cycle, states: self.states }
    }

    /// Runs PreFilter; returns the names of the remaining nodes, or `None` for all nodes.
    fn pre_filter(
        &mut self,
        evaluation: &mut Evaluation,
    ) -> Result<Option<Set<Str>>, PluginRejection> {
        let mut narrowed: Option<Set<Str>> = None;
        let mut by: BTreeSet<&'static str> = BTreeSet::new();
        let mut rejected = None;
        let profile = self.profile;
        for member in &profile.pre_filter {
            let pod = self.pod;
            match member.point.pre_filter(self.serial_cx(), pod) {
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
        evaluation.excluded_by = by.into_iter().collect();
        match rejected {
            Some(rejected) => Err(rejected),
            None => Ok(narrowed),
        }
    }

    /// Runs Filter on the nodes; returns the number of nodes that it ran on.
    fn filter(
        &mut self,
        narrowed: Option<&Set<Str>>,
        node_search: Option<NodeSearch<'_>>,
        evaluation: &mut Evaluation,
    ) -> usize {
        let filters = ProfileFilters { profile: self.profile, skipped: &self.skipped };
        let is_left = |row: &NodeRow| {
            let name = self.world.node(*row).map(|node| node.name());
            narrowed.is_none_or(|nodes| name.is_some_and(|name| nodes.contains(name)))
        };
        let n_nodes = self.world.nodes().len();
        let mut n_wanted = n_nodes;
        let rows: Vec<NodeRow> = match node_search {
            None => self.world.nodes().rows().collect(),
            Some(node_search) => {
                let left: Vec<NodeRow> =
                    node_search.order.iter().copied().filter(is_left).collect();
                n_wanted = node_search
                    .sampling
                    .num_feasible_nodes_to_find(left.len(), !self.profile.score.is_empty());
                let others = node_search.order.iter().copied().filter(|row| !is_left(row));
                others.chain(node_search.iter_from_start(&left)).collect()
            }
        };
        evaluation.nodes.reserve(rows.len());
        let (mut n_visited, mut n_found) = (0, 0);
        for node in rows.into_iter().filter_map(|row| self.world.node(row)) {
            let excluded = !is_left(&node.row());
            let filter_result = if excluded {
                FilterResult::Excluded
            } else {
                match filters.run_with_nominated_pods(self.cx(), self.pod, node) {
                    Ok(()) => FilterResult::Feasible,
                    Err(rejected) => FilterResult::Rejected(rejected),
                }
            };
            n_found += usize::from(filter_result == FilterResult::Feasible);
            if n_found > n_wanted {
                break;
            }
            n_visited += usize::from(!excluded);
            if let FilterResult::Rejected(PluginRejection {
                rejection: Rejection::Failed(failure),
                ..
            }) = &filter_result
                && evaluation.failure.is_none()
            {
                evaluation.failure = Some(failure.to_string());
            }
            // Upstream filters a pod's nominated node first, even if PreFilter excluded it, and keeps its rejection.
            if self.pod.nominated_node_name == node.name() {
                let rejected = match &filter_result {
                    FilterResult::Rejected(rejected) => Some(rejected.clone()),
                    FilterResult::Excluded => {
                        filters.run_with_nominated_pods(self.cx(), self.pod, node).err()
                    }
                    FilterResult::Feasible => None,
                };
                evaluation.nominated_rejected_by =
                    rejected.as_ref().and_then(|rejected| rejected.plugin);
                evaluation.nominated_node_rejection = rejected.filter(|_| excluded);
            }
            evaluation.nodes.push(NodeEvaluation {
                row: node.row(),
                filter_result,
                scores: vec![],
                total: None,
            });
        }
        if node_search.is_some() {
            evaluation.nodes.sort_unstable_by_key(|node| node.row);
        }
        n_visited
    }

    fn score(&mut self, evaluation: &mut Evaluation) -> Result<(), Failure> {
        let world = self.world;
        let indexes = evaluation.nodes.iter().enumerate();
        let indexes = indexes
            .filter(|(_, node)| node.filter_result == FilterResult::Feasible)
            .map(|(at, _)| at);
        let indexes: Vec<usize> = indexes.collect();
        let rows = indexes.iter().map(|at| evaluation.nodes[*at].row);
        let feasible: Vec<NodeInfo<'_>> = rows.filter_map(|row| world.node(row)).collect();
        if feasible.is_empty() {
            return Ok(());
        }
        let profile = self.profile;
        if profile.score.is_empty() {
            // As upstream, every node gets 1 if no plugin scores.
            indexes.iter().for_each(|at| evaluation.nodes[*at].total = Some(1));
            return Ok(());
        }
        let skipped = self.pre_score(&feasible)?;
        indexes.iter().for_each(|at| evaluation.nodes[*at].total = Some(0));
        for member in profile.score.iter().filter(|member| !skipped.contains(&member.plugin)) {
            let scores = guard::catch_plugin_panic(|| self.score_by(member, &feasible));
            let scores = scores.unwrap_or_else(|caught| Err(caught.record(profile).1))?;
            evaluation.score_plugins.push(member.name);
            for (at, score) in indexes.iter().zip(scores) {
                let node = &mut evaluation.nodes[*at];
                node.scores.push(score.score * member.weight);
                node.total = Some(node.total.unwrap_or(0) + score.score * member.weight);
            }
        }
        Ok(())
    }

    fn pre_score(&mut self, feasible: &[NodeInfo<'_>]) -> Result<Vec<usize>, Failure> {
        let mut skipped = Vec::new();
        let (profile, pod) = (self.profile, self.pod);
        for member in &profile.pre_score {
            let result = member.point.pre_score(self.serial_cx(), pod, feasible);
            let result = result.map_err(|failure| {
                Failure::new(format!("running PreScore plugin {:?}: {failure}", member.name))
            })?;
            if result == PreScoreResult::Skip {
                skipped.push(member.plugin);
            }
        }
        Ok(skipped)
    }

    fn score_by(
        &self,
        member: &EnabledPlugin<dyn Score>,
        feasible: &[NodeInfo<'_>],
    ) -> Result<Vec<NodeScore>, Failure> {
        let EnabledPlugin { plugin, name, point, .. } = member;
        let watch = guard::stopwatch();
        guard::set_current_plugin(*plugin, ExtensionPoint::Score);
        let cx = Cx { world: self.world, cycle: &self.cycle, states: self.states };
        let failed = |when: &str, failure: Failure| {
            Failure::new(format!("running {when} plugins: plugin {name:?} failed with: {failure}"))
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
            Some(bad) => Err(Failure::new(format!(
                "applying score defaultWeights on Score plugins: plugin {name:?} returns an invalid score {}, it should in the \
                 range of [0, {MAX_NODE_SCORE}] after normalizing",
                bad.score
            ))),
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

/// The feasible rows with their totals, for comparison with the faster ways.
pub fn feasible_total_scores(evaluation: &Evaluation) -> Vec<(NodeRow, i64)> {
    evaluation.nodes.iter().filter_map(|node| Some((node.row, node.total?))).collect()
}
