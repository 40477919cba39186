//! Selects a node for a pod (upstream's `schedulePod`), in the cheapest of three equivalent ways.
//!
//! | way | used for | cost |
//! | --- | --- | --- |
//! | score index | pods with whose [keys](loadmaster_framework::Incremental::key) a pod was scheduled recently | the changed rows, and a small table of node classes |
//! | full scan | other pods; plugins without an incremental form | columns, once over all rows, or over the few that the node selector and the like leave |
//! | per-node evaluation | pods with a node name, pods with an in-place resize, scores out of range | every plugin for every node |
//!
//! With node sampling ([`crate::node_sampling`]) there is no score index: the full scan takes the first feasible nodes in search
//! order. Pods whose PreFilter excludes nodes, and plugins without an incremental form, then need a per-node evaluation.
//!
//! A nominated pod tries its nominated node first. Nodes with nominated pods of equal or higher priority are evaluated per node
//! with these pods added; the rest of the decision is made in one of the ways above.
//!
//! All three ways give the same results; tests compare the first two with the third.

mod cache_updates;
mod feasible_nodes;
mod nominated_pods;
mod score_table;
mod verification;

pub use crate::decision::Decision;
pub use crate::row_names::FeasibleNodes;
pub use feasible_nodes::ExtenderScoring;
pub use score_table::ScoreTable;

use std::sync::Arc;

use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{CycleState, EvaluatorCx, NodeRow, PluginStates, PodInfo, World};
use loadmaster_stdx::Rng;

use crate::combination_id::CombinationId;
use crate::evaluate::changed_rejections::{ChangedRejection, NodeFilters};
use crate::evaluate::per_node::{self, AttemptEvaluation, FilteredRows};
use crate::evaluate::{Evaluation, ExtenderResults, FilterResult, PluginRejection};
pub use crate::evaluation_cache::CacheSize;
use crate::evaluation_cache::{EvaluationCache, FullScanCache, NodeFilterKeys};
use crate::full_scan::{FullScan, Scan};
use crate::guard::{self, CaughtPanic, PluginPanic};
use crate::node_rejections::{ChangedRow, NodeRejections};
use crate::node_sampling::{NodeSampling, RotatingNodeOrder};
use crate::profile::Profile;
use crate::row_names::RowNames;
use feasible_nodes::other_rows;

/// Pods for which this is equal share their decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedKeys {
    combination: CombinationId,
    template: Option<TemplateId>,
}

/// Which nodes are searched, and what for.
#[derive(Clone, Copy)]
struct SearchOptions<'a> {
    /// Only these rows; `None` for all.
    among: Option<&'a [NodeRow]>,
    /// Whether the feasible rows are scored.
    with_scores: bool,
    /// Whether something scores nodes: without it one feasible node is enough.
    is_scored: bool,
    /// Whether results that were computed for decisions before may be used.
    may_reuse: bool,
    /// Whether the search may end early, as the profile's node sampling says.
    may_end_early: bool,
}

/// Where the result of a search is.
enum Search {
    /// In the score index of this combination of keys, which is up to date.
    Index(CombinationId),
    /// In the full scan.
    Scan,
    /// The pod must be evaluated per node.
    PerNode,
}

/// Selects nodes for the pods of one profile (upstream's `Algorithm`).
pub struct Scheduler {
    profile: Arc<Profile>,
    states: PluginStates,
    cache: EvaluationCache,
    full_scan: FullScan,
    rng: Rng,
    node_order: RotatingNodeOrder,
    n_decisions: u64,
    verify_every: Option<u64>,
    decision_mismatches: Vec<String>,
    /// The cycle state after the last decision, and the plugins that it contains.
    cycle: Option<(CycleState, Vec<usize>)>,
    names: RowNames,
    /// The feasible nodes that were found last, if a score index found them.
    feasible_nodes: Option<Arc<FeasibleNodes>>,
}

impl Scheduler {
    /// A scheduler that breaks ties with this random number generator.
    pub fn new(profile: Arc<Profile>, rng: Rng) -> Self {
        Scheduler {
            states: profile.states.clone(),
            cache: EvaluationCache::new(&profile),
            profile,
            full_scan: FullScan::default(),
            rng,
            node_order: RotatingNodeOrder::default(),
            n_decisions: 0,
            verify_every: None,
            decision_mismatches: Vec::new(),
            cycle: None,
            names: RowNames::default(),
            feasible_nodes: None,
        }
    }

    /// The scheduler of a profile that replaces this one: it continues the random numbers and the order of nodes. Nothing is cached.
    pub fn successor(&mut self, profile: Arc<Profile>) -> Scheduler {
        let mut next = Scheduler::new(profile, self.rng.clone());
        next.node_order = std::mem::take(&mut self.node_order);
        next.n_decisions = self.n_decisions;
        next
    }

    /// Drops everything that is cached: no attempt begins here any more. Returns the decision mismatches that were not taken yet.
    pub fn retire(&mut self, world: &mut World) -> Vec<String> {
        self.reset_caches(world);
        std::mem::take(&mut self.decision_mismatches)
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The plugins' states.
    pub fn plugin_states(&self) -> &PluginStates {
        &self.states
    }

    /// Mutable access to the plugins' states.
    pub fn plugin_states_mut(&mut self) -> &mut PluginStates {
        &mut self.states
    }

    /// Index of the node at which the next search with node sampling starts (upstream's `nextStartNodeIndex`). All profiles share
    /// it.
    pub fn next_start_node_index(&self) -> usize {
        self.node_order.start
    }

    /// Sets the index at which the next search starts.
    pub fn set_next_start_node_index(&mut self, start: usize) {
        self.node_order.start = start;
    }

    /// Recovers after a plugin panicked: drops all cached evaluations, and resets the plugin's state if it may be partly changed.
    pub fn recover_from_panic(&mut self, panic: &PluginPanic, world: &mut World) {
        self.cache.forget_all(world);
        let mut plugins = self.profile.plugins.iter();
        let plugin = plugins.find(|plugin| plugin.name == panic.plugin.name);
        if let Some(plugin) = plugin.filter(|_| panic.extension_point.may_corrupt_state()) {
            self.states.reset(plugin.states.clone(), &self.profile.states);
        }
    }

    /// Selects a node for a pod. The caller assumes the pod; nodes and pods of the world do not change here.
    pub fn schedule_pod(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        if self.is_verified(world, pod) {
            return self.schedule_and_verify(world, pod);
        }
        self.schedule_unverified(world, pod)
    }

    /// The same, not verified.
    #[inline]
    fn schedule_unverified(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        let decided = guard::catch_plugin_panic(|| self.schedule_pod_inner(world, pod));
        decided.unwrap_or_else(|caught| self.decide_after_panic(world, caught))
    }

    #[cold]
    fn decide_after_panic(&mut self, world: &mut World, caught: CaughtPanic) -> Decision {
        let (_, failure) = caught.record(&self.profile);
        self.reset_caches(world);
        Decision::Failed(failure.to_string())
    }

    fn schedule_pod_inner(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        self.n_decisions += 1;
        self.feasible_nodes = None;
        if let Some(row) = self.evaluate_nominated_node(world, pod) {
            return Decision::Selected { row, total: 0, n_ties: Some(1) };
        }
        let options = SearchOptions {
            among: None,
            with_scores: true,
            is_scored: !self.profile.score.is_empty(),
            may_reuse: true,
            may_end_early: true,
        };
        let selected = match self.search(world, pod, options) {
            Err(decided) => return decided,
            Ok(Search::PerNode) => Err(ScoreOutOfRange),
            Ok(Search::Scan) => self.full_scan.select_node(&mut self.rng),
            Ok(Search::Index(id)) => {
                let cx = EvaluatorCx { world, states: &self.states };
                let Some(mut index) = self.cache.indexed(id) else {
                    return Decision::Unschedulable;
                };
                let selected = index.select_node(cx, &mut self.rng);
                if selected.is_err() {
                    self.cache.drop_index(id);
                }
                selected
            }
        };
        selected.unwrap_or_else(|ScoreOutOfRange| self.schedule_pod_per_node(world, pod))
    }

    /// Searches for feasible rows in the cheapest way. `Err` is the decision if no node can be feasible, or a plugin failed.
    fn search(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        options: SearchOptions<'_>,
    ) -> Result<Search, Decision> {
        if pod.resized.is_some() || !pod.node_name.is_empty() {
            return Ok(Search::PerNode);
        }
        let mut excluded = Vec::new();
        if world.nominates_any_pod() {
            let blocked = self.rows_blocked_by_nominated_pods(world, pod);
            excluded = blocked.map_err(Decision::Failed)?;
        }
        if options.among.is_some() {
            excluded.extend(other_rows(world, options.among));
        }
        let sampling = self.profile.sampling;
        let n_nodes = world.nodes().len();
        let n_wanted = sampling.num_feasible_nodes_to_find(n_nodes, options.is_scored);
        let finds_all = n_wanted >= n_nodes || !options.may_end_early;
        let ends_early = !finds_all && options.among.is_none();
        let id = self.refresh(world, pod, options.may_reuse && finds_all)?;
        let Some((evaluator, has_index)) = self.cache.evaluator(id) else {
            return Err(Decision::Unschedulable);
        };
        // Sampling applies to the nodes that PreFilter left, and a failing plugin counts only on nodes that it filters.
        let needs_per_node = evaluator.pre_filter_excludes_nodes()
            || ends_early && !evaluator.per_node_plugins.is_empty();
        if sampling != NodeSampling::All && options.may_end_early && needs_per_node {
            return Ok(Search::PerNode);
        }
        let cx = EvaluatorCx { world, states: &self.states };
        if evaluator.rejected.is_some() || !evaluator.accepts_pod(cx, pod) {
            return Err(Decision::Unschedulable);
        }
        if has_index && excluded.is_empty() && options.among.is_none() {
            return Ok(Search::Index(id));
        }
        let early = ends_early.then_some(n_wanted);
        Ok(self.scan(world, pod, (options, &excluded, early), id))
    }

    /// Scans all nodes for pods with the keys of this combination; not those in `excluded`, and only until `early` feasible ones are found.
    #[inline(never)]
    fn scan(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        (options, excluded, early): (SearchOptions<'_>, &[NodeRow], Option<usize>),
        id: CombinationId,
    ) -> Search {
        let Some(cached) = self.cache.for_full_scan(id) else { return Search::PerNode };
        let FullScanCache { evaluator, node_rows, results, classes } = cached;
        world.update_columns();
        let cx = EvaluatorCx { world, states: &self.states };
        if early.is_some() {
            self.node_order.refresh(world.nodes());
        }
        let early = early.map(|n_wanted| (&mut self.node_order, n_wanted));
        let results = Some(results).filter(|it| options.may_reuse && it.is_up_to_date(cx));
        let node_rows = options.may_reuse.then(|| {
            node_rows.catch_up(evaluator, cx);
            &*node_rows
        });
        let (profile, states) = (&self.profile, &mut self.states);
        let scan = Scan {
            evaluator,
            classes,
            node_rows,
            results,
            profile,
            world,
            states,
            pod,
            excluded,
            early,
        };
        if options.with_scores {
            self.full_scan.run(scan);
        } else {
            self.full_scan.run_filters(scan);
        }
        self.cycle = Some((self.full_scan.take_cycle_state(), evaluator.per_node_plugins.clone()));
        Search::Scan
    }

    /// Takes the cycle state of the last decision for Reserve and the binding cycle. Runs PreFilter and Filter of plugins that
    /// were evaluated incrementally and need their cycle state, or what their Filter finds on the selected node.
    ///
    /// # Errors
    ///
    /// When one of these plugins rejects the selected node now.
    pub fn take_cycle_state(
        &mut self,
        world: &World,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<CycleState, PluginRejection> {
        let (cycle, included) = self.cycle.take().unwrap_or_default();
        let users = &self.profile.cycle_state_users;
        let missing: Vec<usize> =
            users.iter().copied().filter(|plugin| !included.contains(plugin)).collect();
        let states = &mut self.states;
        let mut cycle = if missing.is_empty() {
            cycle
        } else {
            per_node::replay_cycle_state(&self.profile, world, states, pod, (row, &missing), cycle)?
        };
        cycle.select_node(row);
        Ok(cycle)
    }

    /// Selects one of these rows at random; there must be at least one.
    pub fn pick_random_row(&mut self, rows: &[NodeRow]) -> NodeRow {
        *self.rng.pick(rows)
    }

    /// Evaluates every node for a pod that is unschedulable, for its diagnosis.
    #[inline(never)]
    pub fn evaluate_for_diagnosis(&mut self, world: &mut World, pod: &PodInfo) -> Evaluation {
        per_node::evaluate_per_node(&self.profile, world, &mut self.states.clone(), pod)
    }

    /// The same, with the state that PostFilter needs.
    pub fn evaluate_attempt(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        extended: &ExtenderResults,
    ) -> AttemptEvaluation {
        per_node::evaluate_attempt_with_extenders(
            &self.profile,
            world,
            &mut self.states,
            pod,
            None,
            extended,
        )
    }

    /// The keys of a pod whose last decision applies to all pods with these keys, because all plugins have an incremental form; with the
    /// pod's template if a plugin reads more of the pod.
    pub(crate) fn shared_keys(&self, pod: &PodInfo) -> Option<SharedKeys> {
        let (combination, cached) = self.cache.combination_of(pod)?;
        let template = cached.evaluator.depends_on_pod().then_some(pod.template.id);
        let is_shared = cached.evaluator.per_node_plugins.is_empty();
        is_shared.then_some(SharedKeys { combination, template })
    }

    /// What decides by which nodes this pod, which has just been found to fit nowhere, is rejected, if no Filter plugin looks at more than
    /// one node.
    pub(crate) fn node_filter_keys(
        &mut self,
        world: &World,
        pod: &PodInfo,
    ) -> Option<NodeFilterKeys> {
        let keys = self.cache.node_filter_keys(EvaluatorCx { world, states: &self.states }, pod);
        keys.filter(|_| self.profile.reuses_results)
    }

    /// Updates the rejections of these rows, with whose keys the pod has just been looked up, as far as only their pods changed and plugins can
    /// say without PreFilter and Filter what these find. Returns the other rows.
    pub(crate) fn update_rejections(
        &self,
        world: &World,
        pod: &PodInfo,
        changed: &[ChangedRow],
        rejections: &mut NodeRejections,
    ) -> Vec<NodeRow> {
        let all = || changed.iter().map(|changed| changed.row).collect();
        let Some((_, cached)) = self.cache.combination_of(pod) else { return all() };
        let filters = NodeFilters::new(&self.profile, &cached.evaluator);
        let cx = EvaluatorCx { world, states: &self.states };
        let mut others = Vec::new();
        let updated = guard::catch_plugin_panic(|| {
            for ChangedRow { row, only_pods } in changed {
                let known = rejections.get(*row).filter(|_| *only_pods);
                let known = known.filter(|_| !world.has_nominated_pods(*row));
                let now = known.map(|known| filters.rejection(cx, *row, known));
                let is_known = match now {
                    Some(ChangedRejection::Same) => true,
                    Some(ChangedRejection::Another(now)) => rejections.set(*row, &now).is_some(),
                    Some(ChangedRejection::Unknown) | None => false,
                };
                if !is_known {
                    others.push(*row);
                }
            }
        });
        match updated {
            Ok(()) => others,
            // A plugin that panics does so again where the panic is caught and reported.
            Err(_) => all(),
        }
    }

    /// Runs PreFilter, and Filter on some rows. `None` if PreFilter rejects the pod or excludes nodes.
    pub(crate) fn filter_rows(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        rows: &[NodeRow],
    ) -> Option<FilteredRows> {
        per_node::filter_rows(&self.profile, world, &mut self.states, pod, rows)
    }

    /// Numbers of evaluations that are cached and shared by pods.
    pub fn cache_size(&self) -> CacheSize {
        self.cache.size()
    }

    /// Drops what a plugin prepared, because something changed that it reads: its published value or its state.
    pub fn forget_plugin(&mut self, plugin: usize, world: &mut World) {
        self.cache.forget_plugin(plugin, world);
    }

    /// The feasible rows with their totals, by row, computed as [`Scheduler::schedule_pod`] would now; empty when a plugin fails.
    pub fn feasible_total_scores(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
    ) -> Vec<(NodeRow, i64)> {
        let totals = guard::catch_plugin_panic(|| self.feasible_totals_inner(world, pod));
        totals.unwrap_or_else(|caught| {
            caught.record(&self.profile);
            self.reset_caches(world);
            Vec::new()
        })
    }

    fn feasible_totals_inner(&mut self, world: &mut World, pod: &PodInfo) -> Vec<(NodeRow, i64)> {
        let options = SearchOptions {
            among: None,
            with_scores: true,
            is_scored: true,
            may_reuse: true,
            may_end_early: false,
        };
        let totals = match self.search(world, pod, options) {
            Err(_) => return Vec::new(),
            Ok(Search::PerNode) => Err(ScoreOutOfRange),
            Ok(Search::Scan) => self.full_scan.total_scores(),
            Ok(Search::Index(id)) => {
                let cx = EvaluatorCx { world, states: &self.states };
                let Some(mut index) = self.cache.indexed(id) else { return Vec::new() };
                index.total_scores(cx).map(Iterator::collect)
            }
        };
        totals.unwrap_or_else(|ScoreOutOfRange| {
            per_node::feasible_total_scores(&self.evaluate_for_diagnosis(world, pod))
        })
    }

    #[cold]
    fn schedule_pod_per_node(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        let evaluation = self.evaluate_per_node(world, pod, true, &ExtenderResults::default());
        if let Some(failure) = evaluation.failure {
            return Decision::Failed(failure);
        }
        if let Some(row) = evaluation.single_feasible_node() {
            let only = evaluation.nodes.iter().find(|node| node.row == row);
            let total = only.and_then(|node| node.total).unwrap_or(0);
            return Decision::Selected { row, total, n_ties: Some(1) };
        }
        let best = evaluation.best_nodes();
        let total = evaluation.nodes.iter().filter_map(|node| node.total).max();
        match total {
            Some(total) if !best.is_empty() => {
                let n_ties = Some(best.len() as u64);
                Decision::Selected { row: *self.rng.pick(&best), total, n_ties }
            }
            _ => Decision::Unschedulable,
        }
    }

    /// Runs a per-node evaluation, with the profile's node sampling if it may end early.
    fn evaluate_per_node(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        may_end_early: bool,
        extended: &ExtenderResults,
    ) -> Evaluation {
        let sampling = self.profile.sampling;
        let samples = may_end_early && sampling != NodeSampling::All;
        if samples {
            self.node_order.refresh(world.nodes());
        }
        let node_search = samples.then(|| self.node_order.node_search(sampling));
        let states = &mut self.states;
        let AttemptEvaluation { evaluation, n_filtered_nodes: n_visited, .. } =
            per_node::evaluate_attempt_with_extenders(
                &self.profile,
                world,
                states,
                pod,
                node_search,
                extended,
            );
        if samples {
            self.node_order.advance(n_visited, |row| {
                let mut nodes = evaluation.nodes.iter();
                nodes.any(|node| node.row == row && node.filter_result != FilterResult::Excluded)
            });
        }
        evaluation
    }

    /// Drops everything that a panic may have left partly changed.
    fn reset_caches(&mut self, world: &mut World) {
        self.cache.forget_all(world);
        self.full_scan = FullScan::default();
        self.feasible_nodes = None;
    }
}

#[cfg(test)]
mod tests;
