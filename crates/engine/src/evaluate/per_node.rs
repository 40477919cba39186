//! Per-node evaluation: calls every plugin for every node, as upstream does. The reference for all faster ways, and the basis of
//! `explain`.

use std::collections::BTreeSet;

use loadmaster_api::Str;
use loadmaster_framework::{
    CycleState, DryRunCx, Failure, NodeInfo, NodeRow, PluginStates, PodInfo, Rejection, World,
};
use loadmaster_stdx::Set;

use super::filter_runner::{ProfileFilters, run_filters};
use super::plugin_loops::{PluginLoops, ScoreError};
use super::{Evaluation, ExtenderResults, FilterResult, NodeEvaluation, PluginRejection};
use crate::guard;
use crate::node_sampling::NodeSearch;
use crate::profile::{EXTENDER_NAME, Profile};

/// Runs PreFilter, Filter, PreScore, Score and NormalizeScore for all nodes, as upstream does. `states` is changed only by
/// PreFilter and PreScore.
pub fn evaluate_per_node(
    profile: &Profile,
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Evaluation {
    evaluate_attempt(profile, world, states, pod).evaluation
}

/// The first node that PreFilter and Filter find feasible. `None` also if a plugin fails, which ends a scheduling attempt.
pub fn first_feasible_node(
    profile: &Profile,
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> Option<NodeRow> {
    let mut attempt = Attempt { world, loops: PluginLoops::new(profile, states, pod) };
    let nodes = attempt.loops.pre_filter(attempt.world).ok()?;
    let mut evaluation = Evaluation::default();
    attempt.filter(nodes.as_ref(), None, &mut evaluation);
    let is_feasible = |node: &&NodeEvaluation| node.filter_result == FilterResult::Feasible;
    let found = evaluation.nodes.iter().find(is_feasible).map(|node| node.row);
    found.filter(|_| evaluation.failure.is_none())
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
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
) -> AttemptEvaluation {
    evaluate_attempt_with_extenders(profile, world, states, pod, None, &ExtenderResults::default())
}

/// The same with node sampling, and with the extenders' results applied.
pub fn evaluate_attempt_with_extenders(
    profile: &Profile,
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
    node_search: Option<NodeSearch<'_>>,
    extended: &ExtenderResults,
) -> AttemptEvaluation {
    if world.nodes().is_empty() {
        return AttemptEvaluation::default();
    }
    let mut attempt = Attempt { world, loops: PluginLoops::new(profile, states, pod) };
    let mut evaluation = Evaluation::default();
    let mut n_visited = 0;
    match attempt.loops.pre_filter(attempt.world) {
        Ok(nodes) => n_visited = attempt.filter(nodes.as_ref(), node_search, &mut evaluation),
        Err(rejected) => {
            if let Rejection::Failed(failure) = &rejected.rejection {
                evaluation.failure = Some(failure.to_string());
            }
            evaluation.pre_filter_rejection = Some(rejected);
        }
    }
    evaluation.excluded_by = std::mem::take(&mut attempt.loops.excluded_by);
    apply_extender_results(extended, attempt.world, &mut evaluation);
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
        cycle: attempt.loops.cycle,
        skipped: attempt.loops.skipped,
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
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
    rows: &[NodeRow],
) -> Result<Vec<Result<(), PluginRejection>>, PluginRejection> {
    let mut attempt = Attempt { world, loops: PluginLoops::new(profile, states, pod) };
    attempt.loops.pre_filter(attempt.world)?;
    Ok(rows.iter().map(|row| attempt.filter_with_nominated_pods(*row)).collect())
}

/// The results of [`filter_rows`].
pub(crate) struct FilteredRows {
    /// By row, in the order of the rows.
    pub results: Vec<Result<(), PluginRejection>>,
    pub cycle: CycleState,
    /// Indexes of plugins whose Filter is not called in this cycle.
    pub skipped: Vec<usize>,
}

/// Runs PreFilter, and Filter with nominated pods on some rows. `None` if PreFilter rejects the pod or excludes nodes.
pub(crate) fn filter_rows(
    profile: &Profile,
    world: &mut World,
    states: &mut PluginStates,
    pod: &PodInfo,
    rows: &[NodeRow],
) -> Option<FilteredRows> {
    let mut attempt = Attempt { world, loops: PluginLoops::new(profile, states, pod) };
    let Ok(None) = attempt.loops.pre_filter(attempt.world) else { return None };
    let results = rows.iter().map(|row| attempt.filter_with_nominated_pods(*row)).collect();
    let PluginLoops { cycle, skipped, .. } = attempt.loops;
    Some(FilteredRows { results, cycle, skipped })
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
    let only = Some(plugins);
    let mut loops = PluginLoops { cycle, only, ..PluginLoops::new(profile, states, pod) };
    loops.pre_filter(world)?;
    if let Some(node) = world.node(row) {
        let filters = loops.filters().into_iter();
        run_filters(profile, filters, loops.cx(world), pod, node)?;
    }
    Ok(loops.cycle)
}

struct Attempt<'a> {
    /// Changed only in dry runs.
    world: &'a mut World,
    loops: PluginLoops<'a>,
}

impl Attempt<'_> {
    fn filter_with_nominated_pods(&mut self, row: NodeRow) -> Result<(), PluginRejection> {
        let PluginLoops { profile, states, pod, cycle, skipped, .. } = &self.loops;
        let cx = DryRunCx::new(self.world, cycle, states);
        ProfileFilters { profile, skipped, victims: None }.run_with_nominated_pods(cx, pod, row)
    }

    /// Runs Filter on the nodes; returns the number of nodes that it ran on.
    fn filter(
        &mut self,
        narrowed: Option<&Set<Str>>,
        node_search: Option<NodeSearch<'_>>,
        evaluation: &mut Evaluation,
    ) -> usize {
        let is_left = |world: &World, row: NodeRow| {
            let name = world.node(row).map(|node| node.name());
            narrowed.is_none_or(|nodes| name.is_some_and(|name| nodes.contains(name)))
        };
        let (profile, pod) = (self.loops.profile, self.loops.pod);
        let nominated_row = self.world.nodes().row(&pod.nominated_node_name);
        let n_nodes = self.world.nodes().len();
        let mut n_wanted = n_nodes;
        let rows: Vec<NodeRow> = match node_search {
            None => self.world.nodes().rows().collect(),
            Some(node_search) => {
                let order = node_search.order.iter().copied();
                let (left, others): (Vec<NodeRow>, Vec<NodeRow>) =
                    order.partition(|row| is_left(self.world, *row));
                n_wanted = node_search
                    .sampling
                    .num_feasible_nodes_to_find(left.len(), !profile.score.is_empty());
                others.into_iter().chain(node_search.iter_from_start(&left)).collect()
            }
        };
        evaluation.nodes.reserve(rows.len());
        let (mut n_visited, mut n_found) = (0, 0);
        for row in rows {
            let excluded = !is_left(self.world, row);
            let filter_result = if excluded {
                FilterResult::Excluded
            } else {
                match self.filter_with_nominated_pods(row) {
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
            if nominated_row == Some(row) {
                let rejected = match &filter_result {
                    FilterResult::Rejected(rejected) => Some(rejected.clone()),
                    FilterResult::Excluded => self.filter_with_nominated_pods(row).err(),
                    FilterResult::Feasible => None,
                };
                evaluation.nominated_rejected_by =
                    rejected.as_ref().and_then(|rejected| rejected.plugin);
                evaluation.nominated_node_rejection = rejected.filter(|_| excluded);
            }
            evaluation.nodes.push(NodeEvaluation {
                row,
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
        let Attempt { world, loops } = self;
        let world: &World = world;
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
        let profile = loops.profile;
        if profile.score.is_empty() {
            // As upstream, every node gets 1 if no plugin scores.
            indexes.iter().for_each(|at| evaluation.nodes[*at].total = Some(1));
            return Ok(());
        }
        let skipped = loops.pre_score(world, &feasible)?;
        indexes.iter().for_each(|at| evaluation.nodes[*at].total = Some(0));
        for member in profile.score.iter().filter(|member| !skipped.contains(&member.plugin)) {
            let scores = guard::catch_plugin_panic(|| loops.score(world, member, &feasible));
            let scores = scores
                .unwrap_or_else(|caught| Err(ScoreError::Failed(caught.record(profile).1)))?;
            evaluation.score_plugins.push(member.name);
            for (at, score) in indexes.iter().zip(scores) {
                let node = &mut evaluation.nodes[*at];
                node.scores.push(score.score * member.weight);
                node.total = Some(node.total.unwrap_or(0) + score.score * member.weight);
            }
        }
        Ok(())
    }
}

/// The feasible rows with their totals, for comparison with the faster ways.
pub fn feasible_total_scores(evaluation: &Evaluation) -> Vec<(NodeRow, i64)> {
    evaluation.nodes.iter().filter_map(|node| Some((node.row, node.total?))).collect()
}
