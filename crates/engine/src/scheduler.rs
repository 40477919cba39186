//! Selects a node for a pod (upstream's `schedulePod`), in the cheapest of three equivalent ways.
//!
//! | way | used for | cost |
//! | --- | --- | --- |
//! | score index | pods whose template was scheduled recently | the changed rows, and a small table of node classes |
//! | full scan | other templates; plugins without an incremental form | columns, once over all rows |
//! | per-node evaluation | pods with a node name, pods with an in-place resize, scores out of range | every plugin for every node |
//!
//! With node sampling ([`crate::node_sampling`]) there is no score index: the full scan takes the first feasible nodes in search
//! order. Pods whose PreFilter excludes nodes, and plugins without an incremental form, then need a per-node evaluation.
//!
//! A nominated pod tries its nominated node first. Nodes with nominated pods of equal or higher priority are evaluated per node
//! with these pods added; the rest of the decision is made in one of the ways above.
//!
//! All three ways give the same results; tests compare the first two with the third.

pub(crate) mod feasible_nodes;

pub use feasible_nodes::{ExtenderScoring, FeasibleNodes};

use std::sync::Arc;

use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{CycleState, Failure, NodeRow, PluginStates, PodInfo, Rejection, World};
use loadmaster_stdx::{Map, Rng};

use crate::evaluate::incremental::Evaluator;
use crate::evaluate::per_node::{self, AttemptEvaluation};
use crate::evaluate::{Evaluation, ExtenderResults, NodeEvaluation, PluginRejection};
use crate::full_scan::FullScan;
use crate::guard::{self, PluginPanic};
use crate::node_sampling::{NodeSampling, RotatingNodeOrder};
use crate::profile::Profile;
use crate::score_index::ScoreIndex;
use feasible_nodes::RowNames;

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This node is selected; `n_ties` nodes have this total.
    Selected { row: NodeRow, total: i64, n_ties: u64 },
    /// No node is feasible; [`Scheduler::evaluate_for_diagnosis`] says why.
    Unschedulable,
    /// A plugin failed.
    Failed(String),
}

/// Maximum number of rows in all score indexes together; about 24 bytes each.
const CACHED_ROWS_MAX: usize = 64 << 20;

/// A score index is not updated if there is more than one change per this many rows: updating a row costs about as much as twenty
/// rows of a full scan.
const ROWS_PER_CHANGE: usize = 20;

/// A score index is never updated over more changes than this; the world's change log is at least as long.
const CHANGES_MAX: usize = 1 << 14;

/// The cached evaluation of one template.
struct CachedEvaluation {
    evaluator: Evaluator,
    index: Option<ScoreIndex>,
    /// Sequence number of the world's changes up to which `evaluator` is known to be valid.
    checked_at: u64,
    /// Number of the decision in which it was last used.
    used: u64,
}

/// Selects nodes for the pods of one profile (upstream's `Algorithm`).
pub struct Scheduler {
    profile: Arc<Profile>,
    states: PluginStates,
    cached: Map<TemplateId, CachedEvaluation>,
    full_scan: FullScan,
    rng: Rng,
    node_order: RotatingNodeOrder,
    n_decisions: u64,
    verify_every: Option<u64>,
    decision_mismatches: Vec<String>,
    /// The cycle state after the last decision, and the plugins that it contains.
    cycle: (CycleState, Vec<usize>),
    names: RowNames,
    /// The feasible nodes that were found last, if a score index found them.
    feasible_nodes: Option<Arc<FeasibleNodes>>,
}

impl Scheduler {
    /// A scheduler that breaks ties with this random number generator.
    pub fn new(profile: Arc<Profile>, rng: Rng) -> Self {
        Scheduler {
            states: profile.states.clone(),
            profile,
            cached: Map::default(),
            full_scan: FullScan::default(),
            rng,
            node_order: RotatingNodeOrder::default(),
            n_decisions: 0,
            verify_every: None,
            decision_mismatches: Vec::new(),
            cycle: (CycleState::default(), Vec::new()),
            names: RowNames::default(),
            feasible_nodes: None,
        }
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

    /// Verifies one in `n` decisions against a per-node evaluation; 0 verifies none.
    pub fn set_verification_interval(&mut self, n: u64) {
        self.verify_every = (n > 0).then_some(n);
    }

    /// One line per decision that differed from the per-node evaluation.
    pub fn decision_mismatches(&self) -> &[String] {
        &self.decision_mismatches
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
        self.forget_all(world);
        let mut plugins = self.profile.plugins.iter();
        let plugin = plugins.find(|plugin| plugin.name == panic.plugin.name);
        if let Some(plugin) = plugin.filter(|_| panic.extension_point.may_corrupt_state()) {
            self.states.reset(plugin.states.clone(), &self.profile.states);
        }
    }

    /// Selects a node for a pod. The caller assumes the pod; nodes and pods of the world do not change here.
    pub fn schedule_pod(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        let n_panics = guard::n_panics();
        let slow = self.is_verified(world, pod).then(|| self.evaluate_for_diagnosis(world, pod));
        let decided = guard::catch_plugin_panic(|| self.schedule_pod_inner(world, pod));
        let decided = decided.unwrap_or_else(|caught| {
            let (_, failure) = caught.record(&self.profile);
            self.reset_caches(world);
            Decision::Failed(failure.to_string())
        });
        // A plugin that panics makes one of the two results fail; that is not a difference.
        if let Some(slow) = slow.filter(|_| guard::n_panics() == n_panics) {
            self.verify(pod, &slow, &decided);
        }
        decided
    }

    /// Whether the next decision is verified. Never with nominated pods or node sampling, where the per-node evaluation may
    /// differ.
    fn is_verified(&self, world: &World, pod: &PodInfo) -> bool {
        self.verify_every.is_some_and(|n| (self.n_decisions + 1).is_multiple_of(n))
            && self.profile.sampling == NodeSampling::All
            && world.nominated_nodes().next().is_none()
            && pod.nominated_node_name.is_empty()
            && pod.node_name.is_empty()
    }

    fn schedule_pod_inner(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        self.n_decisions += 1;
        self.feasible_nodes = None;
        if let Some(row) = self.evaluate_nominated_node(world, pod) {
            return Decision::Selected { row, total: 0, n_ties: 1 };
        }
        if pod.resized.is_some() || !pod.node_name.is_empty() {
            return self.schedule_pod_per_node(world, pod);
        }
        let blocked = match self.rows_blocked_by_nominated_pods(world, pod) {
            Ok(rows) => rows,
            Err(failure) => return Decision::Failed(failure),
        };
        let sampling = self.profile.sampling;
        let n_nodes = world.nodes().len();
        let n_wanted = sampling.num_feasible_nodes_to_find(n_nodes, !self.profile.score.is_empty());
        let ends_early = n_wanted < n_nodes;
        if let Err(failure) = self.refresh(world, pod, !ends_early) {
            return Decision::Failed(failure.to_string());
        }
        let id = pod.template.id;
        let Some(cached) = self.cached.get_mut(&id) else { return Decision::Unschedulable };
        // Sampling applies to the nodes that PreFilter left, and a failing plugin counts only on nodes that it filters.
        let needs_per_node = cached.evaluator.pre_filter_excludes_nodes()
            || ends_early && !cached.evaluator.per_node_plugins.is_empty();
        if sampling != NodeSampling::All && needs_per_node {
            return self.schedule_pod_per_node(world, pod);
        }
        if let Some(index) = &mut cached.index
            && blocked.is_empty()
        {
            if let Ok(decision) = index.select_node(&cached.evaluator, world, &mut self.rng) {
                return decision;
            }
            cached.index = None;
            return self.schedule_pod_per_node(world, pod);
        }
        if cached.evaluator.rejected.is_some() {
            return Decision::Unschedulable;
        }
        let evaluator = &cached.evaluator;
        if ends_early {
            self.node_order.refresh(world.nodes());
        }
        let early = ends_early.then_some((&mut self.node_order, n_wanted));
        self.full_scan.run(evaluator, &self.profile, world, &mut self.states, pod, &blocked, early);
        self.cycle = (self.full_scan.take_cycle_state(), evaluator.per_node_plugins.clone());
        match self.full_scan.select_node(&mut self.rng) {
            Ok(decision) => decision,
            Err(ScoreOutOfRange) => self.schedule_pod_per_node(world, pod),
        }
    }

    /// Takes the cycle state of the last decision for Reserve and the binding cycle. Runs PreFilter and Filter of plugins that
    /// were evaluated incrementally and need their cycle state.
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
        let (cycle, included) = std::mem::take(&mut self.cycle);
        let users = &self.profile.cycle_state_users;
        let missing: Vec<usize> =
            users.iter().copied().filter(|plugin| !included.contains(plugin)).collect();
        if missing.is_empty() {
            return Ok(cycle);
        }
        let states = &mut self.states;
        per_node::replay_cycle_state(&self.profile, world, states, pod, (row, &missing), cycle)
    }

    /// Selects one of these rows at random; there must be at least one.
    pub fn pick_random_row(&mut self, rows: &[NodeRow]) -> NodeRow {
        *self.rng.pick(rows)
    }

    /// The row of the pod's nominated node, if the pod fits there (upstream's `evaluateNominatedNode`).
    pub fn evaluate_nominated_node(&mut self, world: &World, pod: &PodInfo) -> Option<NodeRow> {
        self.cycle = Default::default();
        if pod.nominated_node_name.is_empty() {
            return None;
        }
        let row = world.nodes().row(&pod.nominated_node_name)?;
        let states = &mut self.states;
        let results =
            per_node::filter_rows_with_nominated_pods(&self.profile, world, states, pod, &[row])
                .ok()?;
        matches!(results.as_slice(), [Ok(())]).then_some(row)
    }

    /// Rows on which the pod does not fit because of pods that are nominated to them. Other rows with nominated pods are
    /// evaluated like any row.
    fn rows_blocked_by_nominated_pods(
        &mut self,
        world: &World,
        pod: &PodInfo,
    ) -> Result<Vec<NodeRow>, String> {
        let may_block = |other: &Arc<PodInfo>| {
            other.template.priority() >= pod.template.priority() && other.uid != pod.uid
        };
        let nodes = world.nominated_nodes();
        let nodes = nodes.filter(|node| world.nominated_pods_for_node(node).iter().any(may_block));
        let mut rows: Vec<NodeRow> = nodes.filter_map(|node| world.nodes().row(node)).collect();
        if rows.is_empty() {
            return Ok(rows);
        }
        rows.sort_unstable();
        let states = &mut self.states;
        match per_node::filter_rows_with_nominated_pods(&self.profile, world, states, pod, &rows) {
            Err(PluginRejection { rejection: Rejection::Failed(failure), .. }) => {
                Err(failure.to_string())
            }
            // The decision finds the same rejection.
            Err(_) => Ok(Vec::new()),
            Ok(results) => {
                let mut blocked = Vec::new();
                for (row, result) in rows.into_iter().zip(results) {
                    match result {
                        Ok(()) => {}
                        Err(PluginRejection { rejection: Rejection::Failed(failure), .. }) => {
                            return Err(failure.to_string());
                        }
                        Err(_) => blocked.push(row),
                    }
                }
                Ok(blocked)
            }
        }
    }

    /// Evaluates every node for a pod that is unschedulable, for its diagnosis.
    pub fn evaluate_for_diagnosis(&mut self, world: &World, pod: &PodInfo) -> Evaluation {
        per_node::evaluate_per_node(&self.profile, world, &mut self.states.clone(), pod)
    }

    /// The same, with the state that PostFilter needs.
    pub fn evaluate_attempt(
        &mut self,
        world: &World,
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

    /// Whether the last decision for such a pod applies to all pods of its template, because all plugins have an incremental
    /// form.
    pub fn is_decided_by_template(&self, pod: &PodInfo) -> bool {
        let cached = self.cached.get(&pod.template.id);
        cached.is_some_and(|cached| cached.evaluator.per_node_plugins.is_empty())
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
        let is_known = self.refresh(world, pod, true).is_ok();
        let cached = self.cached.get_mut(&pod.template.id).filter(|_| is_known);
        let Some(cached) = cached else { return Vec::new() };
        let totals = match &mut cached.index {
            Some(index) => index.total_scores(&cached.evaluator, world).map(Iterator::collect),
            None if cached.evaluator.rejected.is_some() => Ok(Vec::new()),
            None => {
                self.full_scan.run(
                    &cached.evaluator,
                    &self.profile,
                    world,
                    &mut self.states,
                    pod,
                    &[],
                    None,
                );
                self.full_scan.total_scores()
            }
        };
        totals.unwrap_or_else(|ScoreOutOfRange| {
            per_node::feasible_total_scores(&self.evaluate_for_diagnosis(world, pod))
        })
    }

    fn schedule_pod_per_node(&mut self, world: &World, pod: &PodInfo) -> Decision {
        let evaluation = self.evaluate_per_node(world, pod, true, &ExtenderResults::default());
        if let Some(failure) = evaluation.failure {
            return Decision::Failed(failure);
        }
        if let Some(row) = evaluation.single_feasible_node() {
            let only = evaluation.nodes.iter().find(|node| node.row == row);
            let total = only.and_then(|node| node.total).unwrap_or(0);
            return Decision::Selected { row, total, n_ties: 1 };
        }
        let best = evaluation.best_nodes();
        let total = evaluation.nodes.iter().filter_map(|node| node.total).max();
        match total {
            Some(total) if !best.is_empty() => {
                Decision::Selected { row: *self.rng.pick(&best), total, n_ties: best.len() as u64 }
            }
            _ => Decision::Unschedulable,
        }
    }

    /// Runs a per-node evaluation, with the profile's node sampling if it may end early.
    fn evaluate_per_node(
        &mut self,
        world: &World,
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
            self.node_order.advance(n_visited);
        }
        evaluation
    }

    /// Updates the cached evaluation of the pod's template, and decides whether to build a score index if `may_index`.
    fn refresh(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        may_index: bool,
    ) -> Result<(), Failure> {
        let id = pod.template.id;
        let now = world.next_change_seq();
        if let Some(cached) = self.cached.get(&id)
            && !is_still_valid(cached, world, pod)
        {
            self.forget(id, world);
        }
        if !self.cached.contains_key(&id) {
            self.evict_least_recently_used(world);
            let evaluator = Evaluator::new(&self.profile, world, pod)?;
            let cached = CachedEvaluation { evaluator, index: None, checked_at: now, used: 0 };
            self.cached.insert(id, cached);
            self.update(id, world, false);
            return Ok(());
        }
        self.update(id, world, may_index);
        Ok(())
    }

    fn update(&mut self, id: TemplateId, world: &World, may_index: bool) {
        let n_decisions = self.n_decisions;
        let Some(cached) = self.cached.get_mut(&id) else { return };
        let worth = (world.nodes().n_rows() / ROWS_PER_CHANGE).clamp(8, CHANGES_MAX) as u64;
        let behind = world.next_change_seq() - cached.checked_at;
        cached.used = n_decisions;
        cached.checked_at = world.next_change_seq();
        let is_incremental =
            cached.evaluator.per_node_plugins.is_empty() && cached.evaluator.rejected.is_none();
        if !may_index || !is_incremental || behind > worth {
            cached.index = None;
            return;
        }
        let caught_up =
            cached.index.as_mut().is_some_and(|index| index.catch_up(&cached.evaluator, world));
        if !caught_up {
            cached.index = Some(ScoreIndex::new(&cached.evaluator, world));
        }
    }

    fn forget(&mut self, id: TemplateId, world: &mut World) {
        if let Some(cached) = self.cached.remove(&id) {
            cached.evaluator.release_counters(&self.profile, world);
        }
    }

    /// Drops everything that a panic may have left partly changed.
    fn reset_caches(&mut self, world: &mut World) {
        self.forget_all(world);
        self.full_scan = FullScan::default();
        self.feasible_nodes = None;
    }

    fn forget_all(&mut self, world: &mut World) {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut ids: Vec<TemplateId> = self.cached.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.forget(id, world));
    }

    /// If there are too many cached evaluations, drops the least recently used quarter.
    fn evict_least_recently_used(&mut self, world: &mut World) {
        let max = (CACHED_ROWS_MAX / world.nodes().n_rows().max(1)).clamp(16, 4096);
        if self.cached.len() < max {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let mut by_use: Vec<(u64, TemplateId)> =
            self.cached.iter().map(|(id, cached)| (cached.used, *id)).collect();
        by_use.sort_unstable();
        for (_, id) in by_use.into_iter().take(max / 4) {
            self.forget(id, world);
        }
    }

    /// Compares a decision with the per-node evaluation.
    fn verify(&mut self, pod: &PodInfo, slow: &Evaluation, decided: &Decision) {
        let is_right = match decided {
            Decision::Failed(_) => true,
            Decision::Unschedulable => !slow.is_feasible(),
            // A single feasible node is selected whatever its score.
            Decision::Selected { row, .. } if slow.single_feasible_node().is_some() => {
                slow.single_feasible_node() == Some(*row)
            }
            Decision::Selected { row, total, n_ties } => {
                let best = slow.best_nodes();
                let is_best =
                    |node: &NodeEvaluation| node.row == *row && node.total == Some(*total);
                best.contains(row) && best.len() as u64 == *n_ties && slow.nodes.iter().any(is_best)
            }
        };
        if !is_right {
            let slow = per_node::feasible_total_scores(slow);
            let line = format!("{}: {decided:?}, per node {slow:?}", pod.full_name());
            self.decision_mismatches.push(line);
        }
    }
}

fn is_still_valid(cached: &CachedEvaluation, world: &World, pod: &PodInfo) -> bool {
    use loadmaster_framework::world::WorldChange;
    if !Arc::ptr_eq(&cached.evaluator.template, &pod.template) || cached.evaluator.is_stale(world) {
        return false;
    }
    match world.changes_since(cached.checked_at) {
        Some(changes) => !changes.contains(&WorldChange::Everything),
        None => false,
    }
}
