//! Looks for a state, a sample of the nodes, or another order of events in which the other scheduler's choice is a best one.

use loadmaster_api::Str;
use loadmaster_framework::world::Trial;
use loadmaster_framework::{NodeRow, PodInfo, World};

use super::evidence::Decision;
use super::history::{HistoryEntry, Step};
use super::image_sizes::{ImageSizes, PodImage, pod_images, restore_sizes};
use super::sample::{SampledNode, find_sample};
use crate::engine::shadow_comparison::{
    NodeScores, OrderOf, ScoreDifference, ScoreLoss, ShadowResult, Unexplained, WeightEvidence,
};
use crate::evaluate::FilterResult;
use crate::node_sampling::NodeSampling;
use crate::scheduler::{Scheduler, ScoreTable};

/// How many steps before and after a binding may be in another order than the decisions. Each of the nearest states is looked at, and one in
/// some of the others.
pub(super) const N_STEPS: usize = 1024;
const N_NEAR_STATES: usize = 32;
const STATE_STRIDE: usize = 64;

/// In at least so many states in the order of the queue a choice is looked for. In a small cluster, where a state is evaluated fast, it is
/// looked for in more: as many as evaluate so many nodes.
const N_QUEUE_STATES_MIN: usize = 32;
const N_QUEUE_STATES_MAX: usize = 512;
const N_NODES_IN_QUEUE_STATES: usize = 150_000;

/// How many single steps are moved, before and after the binding.
const N_MOVES_MAX: usize = 24;

/// How often a sample is scored, to find one that is normalized in favor of the chosen node.
const N_SAMPLES_MAX: usize = 4;

/// How many of the best nodes a trace has.
const N_BEST_NODES: usize = 3;

/// How many evaluations one search may take, without those in the order of the queue.
const N_TABLES_MAX: usize = 170;

/// The bound pod, and how kube-scheduler would decide it.
pub(super) struct Mismatch<'a> {
    pub pod: &'a PodInfo,
    pub node: &'a Str,
    pub row: NodeRow,
    /// The engine call in which the pod was first seen pending.
    pub since: u64,
    /// The engine call in which it was bound.
    pub bound_in: u64,
    pub sampling: NodeSampling,
    /// All nodes in the order of searches.
    pub node_order: &'a [NodeRow],
    /// The steps before the binding, the last one first.
    pub before: Vec<&'a HistoryEntry>,
    /// The steps after it, in order.
    pub after: Vec<&'a HistoryEntry>,
}

/// A search. It ends early when the evaluations that are left are used up.
pub(super) struct Search<'a> {
    pub scheduler: &'a mut Scheduler,
    pub sizes: &'a mut ImageSizes,
    pub mismatch: Mismatch<'a>,
    pub n_tables: usize,
    /// What the decision says of other weights.
    pub evidence: Vec<WeightEvidence>,
    /// How many evaluations are left for all searches.
    pub n_left: &'a mut usize,
}

/// The search must end: a plugin failed, or too many evaluations were needed.
pub(super) enum SearchEnd {
    Failed(String),
    Exhausted,
}

type Found = Result<Option<ShadowResult>, SearchEnd>;

impl<'a> Search<'a> {
    /// The result of the comparison; the trial is in the state in which the binding arrived.
    pub fn run(&mut self, trial: &mut Trial<'_>) -> ShadowResult {
        match self.explain(trial) {
            Ok(result) => result,
            Err(SearchEnd::Failed(message)) => ShadowResult::Undecided { message },
            Err(SearchEnd::Exhausted) => ShadowResult::NotExamined,
        }
    }

    fn table(
        &mut self,
        world: &mut World,
        among: Option<&[NodeRow]>,
    ) -> Result<ScoreTable, SearchEnd> {
        let n_tables_max = N_TABLES_MAX + self.n_queue_states_max();
        let Some(n_left) = self.n_left.checked_sub(1).filter(|_| self.n_tables < n_tables_max)
        else {
            return Err(SearchEnd::Exhausted);
        };
        *self.n_left = n_left;
        self.n_tables += 1;
        self.scheduler.score_table(world, self.mismatch.pod, among).map_err(SearchEnd::Failed)
    }

    fn explain(&mut self, trial: &mut Trial<'_>) -> Result<ShadowResult, SearchEnd> {
        let row = self.mismatch.row;
        // The first evaluations are always made, because only they say what differs.
        let evaluate = |world: &mut World, scheduler: &mut Scheduler| {
            scheduler.score_table(world, self.mismatch.pod, None).map_err(SearchEnd::Failed)
        };
        let base = evaluate(trial.world_mut(), self.scheduler)?;
        let is_nominated = *self.mismatch.pod.nominated_node_name == **self.mismatch.node;
        if is_nominated && base.index_of(row).is_some() {
            return Ok(ShadowResult::SameChoicePossible { n_best: 1, n_bindings: 0 });
        }
        if let Some(n_best) = base.n_best_with(row) {
            return Ok(ShadowResult::SameChoicePossible { n_best, n_bindings: 0 });
        }
        let loss = loss(trial, &base, row);
        let by_order = |order| ShadowResult::ExplainedByOrder { order, loss: loss.clone() };
        let images = pod_images(trial, self.mismatch.pod);
        self.gather_evidence(trial, &base, &images)?;
        let own_sizes = self.sizes.apply_likely(trial.world_mut(), &images);
        let sized = match own_sizes.is_empty() {
            true => base.clone(),
            false => evaluate(trial.world_mut(), self.scheduler)?,
        };
        if sized.n_best_with(row).is_some() {
            restore_sizes(trial.world_mut(), &own_sizes);
            return Ok(by_order(OrderOf::Images));
        }
        let found = self.in_other_states(trial, &base, &sized, &loss);
        restore_sizes(trial.world_mut(), &own_sizes);
        if let Some(result) = found? {
            return Ok(result);
        }
        if self.nodes_changed(trial, &base) {
            return Ok(by_order(OrderOf::Nodes));
        }
        self.trace(trial, &sized, loss).map(|trace| ShadowResult::Unexplained(Box::new(trace)))
    }

    /// Adds what the decision says of the sizes of images and of other weights. The order of the queue is closer to that of the decisions than
    /// the order of the bindings.
    fn gather_evidence(
        &mut self,
        trial: &mut Trial<'_>,
        base: &ScoreTable,
        images: &[PodImage],
    ) -> Result<(), SearchEnd> {
        let start = trial.checkpoint();
        let table = match self.apply_queue_order(trial, self.mismatch.since) {
            false => Ok(base.clone()),
            true => self.scheduler.score_table(trial.world_mut(), self.mismatch.pod, None),
        };
        let n_wanted = table.as_ref().map_or(0, |table| self.n_wanted(table));
        let Mismatch { pod, row, .. } = self.mismatch;
        let found = table.and_then(|table| {
            let decision =
                Decision { scheduler: self.scheduler, pod, row, n_wanted, stands_for: 1 };
            decision.evidence(trial.world_mut(), table, self.sizes, images)
        });
        trial.undo_to(start);
        self.evidence = found.map_err(SearchEnd::Failed)?;
        Ok(())
    }

    /// Everything but the state in which the binding arrived. `base` is that state, and `sized` the same with likely sizes of images.
    fn in_other_states(
        &mut self,
        trial: &mut Trial<'_>,
        base: &ScoreTable,
        sized: &ScoreTable,
        loss: &Option<ScoreLoss>,
    ) -> Found {
        let row = self.mismatch.row;
        let by_order = |order| ShadowResult::ExplainedByOrder { order, loss: loss.clone() };
        let start = trial.checkpoint();
        let queue_order = match self.apply_queue_order(trial, self.mismatch.since) {
            false => None,
            true => Some(self.table(trial.world_mut(), None)?),
        };
        if queue_order.as_ref().is_some_and(|table| table.n_best_with(row).is_some()) {
            trial.undo_to(start);
            return Ok(Some(by_order(OrderOf::Bindings)));
        }
        // In either order an image may count with another size.
        let mut by_images = queue_order.is_some() && self.other_image_sizes(trial)?;
        trial.undo_to(start);
        by_images = by_images || self.other_image_sizes(trial)?;
        if by_images {
            return Ok(Some(by_order(OrderOf::Images)));
        }
        for table in [Some(sized), Some(base).filter(|base| *base != sized)].into_iter().flatten() {
            if let Some(missed) = self.sampled(trial.world_mut(), table, N_SAMPLES_MAX, loss)? {
                return Ok(Some(missed));
            }
        }
        if let Some(table) = &queue_order {
            self.apply_queue_order(trial, self.mismatch.since);
            let missed = self.sampled(trial.world_mut(), table, N_SAMPLES_MAX, loss)?;
            trial.undo_to(start);
            if missed.is_some() {
                return Ok(missed);
            }
        }
        if let Some(found) = self.in_earlier_states(trial, loss)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.in_later_queue_states(trial, loss)? {
            return Ok(Some(found));
        }
        let moved = self.with_moved_steps(trial, sized, queue_order.as_ref())?;
        Ok(moved.then(|| by_order(OrderOf::Bindings)))
    }

    /// Brings the placements around the binding into the order in which kube-scheduler takes the pods from its queue, as if it had taken this
    /// one in the given engine call. Returns whether that differs from the order of the bindings.
    fn apply_queue_order(&self, trial: &mut Trial<'_>, taken_in: u64) -> bool {
        let Mismatch { pod, before, after, bound_in, .. } = &self.mismatch;
        let precedes =
            |it: &HistoryEntry| it.precedes(pod.template.priority(), taken_in, *bound_in);
        let later = before.iter().filter(|it| precedes(it) == Some(false));
        let earlier = after.iter().filter(|it| precedes(it) == Some(true));
        let mut differs = false;
        for entry in later {
            entry.step.undo(trial);
            differs = true;
        }
        for entry in earlier {
            entry.step.redo(trial);
            differs = true;
        }
        differs
    }

    /// How many states in the order of the queue are evaluated.
    fn n_queue_states_max(&self) -> usize {
        let n_nodes = self.mismatch.node_order.len().max(1);
        (N_NODES_IN_QUEUE_STATES / n_nodes).clamp(N_QUEUE_STATES_MIN, N_QUEUE_STATES_MAX)
    }

    /// The states in which kube-scheduler took the pods around the binding from its queue: a pod that had to be tried again was decided among
    /// pods that are younger than it.
    fn in_later_queue_states(&mut self, trial: &mut Trial<'_>, loss: &Option<ScoreLoss>) -> Found {
        let start = trial.checkpoint();
        let Mismatch { since, before, after, .. } = &self.mismatch;
        let n_max = self.n_queue_states_max();
        let younger = |entries: &[&HistoryEntry]| -> Vec<u64> {
            let pending_since = entries.iter().filter_map(|entry| entry.step.pending_since());
            pending_since.filter(|it| it > since).take(n_max / 2).collect()
        };
        let mut taken_in = younger(before);
        taken_in.extend(younger(after));
        taken_in.sort_unstable();
        taken_in.dedup();
        for call in taken_in.into_iter().rev() {
            self.apply_queue_order(trial, call);
            let table = self.table(trial.world_mut(), None)?;
            let found = match table.n_best_with(self.mismatch.row) {
                Some(_) => Some(ShadowResult::ExplainedByOrder {
                    order: OrderOf::Bindings,
                    loss: loss.clone(),
                }),
                None => self.sampled(trial.world_mut(), &table, 1, loss)?,
            };
            trial.undo_to(start);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The states between the pod's creation and its binding.
    fn in_earlier_states(&mut self, trial: &mut Trial<'_>, loss: &Option<ScoreLoss>) -> Found {
        let start = trial.checkpoint();
        let before = std::mem::take(&mut self.mismatch.before);
        let mut found = Ok(None);
        let is_pod = |entry: &&&HistoryEntry| entry.step.pod().is_some();
        let since = self.mismatch.since;
        let lifetime = before.iter().take_while(|entry| entry.call >= since).filter(is_pod);
        for (nth, entry) in lifetime.enumerate() {
            entry.step.undo(trial);
            if nth >= N_NEAR_STATES && !nth.is_multiple_of(STATE_STRIDE) {
                continue;
            }
            found = self.in_state(trial, nth + 1, loss);
            if !matches!(found, Ok(None)) {
                break;
            }
        }
        self.mismatch.before = before;
        trial.undo_to(start);
        found
    }

    fn in_state(
        &mut self,
        trial: &mut Trial<'_>,
        n_bindings: usize,
        loss: &Option<ScoreLoss>,
    ) -> Found {
        let table = self.table(trial.world_mut(), None)?;
        if let Some(n_best) = table.n_best_with(self.mismatch.row) {
            return Ok(Some(ShadowResult::SameChoicePossible { n_best, n_bindings }));
        }
        self.sampled(trial.world_mut(), &table, 1, loss)
    }

    /// Whether the choice is a best one if single steps came in another order than the bindings, or than the pods in the queue. The trial is in
    /// the state in which the binding arrived.
    fn with_moved_steps(
        &mut self,
        trial: &mut Trial<'_>,
        arrived: &ScoreTable,
        queue_order: Option<&ScoreTable>,
    ) -> Result<bool, SearchEnd> {
        let start = trial.checkpoint();
        let mut is_found = self.move_steps(trial, arrived)?;
        trial.undo_to(start);
        if let Some(table) = queue_order.filter(|_| !is_found) {
            self.apply_queue_order(trial, self.mismatch.since);
            is_found = self.move_steps(trial, table)?;
            trial.undo_to(start);
        }
        Ok(is_found)
    }

    /// Moves steps to the other side of the decision, one after another, and keeps each move with which nodes are better by fewer points in all.
    fn move_steps(
        &mut self,
        trial: &mut Trial<'_>,
        before: &ScoreTable,
    ) -> Result<bool, SearchEnd> {
        let row = self.mismatch.row;
        let mut n_points = before.n_points_better_than(row);
        for entry in self.movable_steps(trial, before) {
            let before = trial.checkpoint();
            let is_removed = entry.step.toggle(trial);
            let table = self.table(trial.world_mut(), None)?;
            if table.n_best_with(row).is_some() {
                return Ok(true);
            }
            let n_points_now = table.n_points_better_than(row);
            // While the chosen node is rejected, no number says how far it is from a best one.
            let may_help = is_removed && trial.nodes().row(entry.step.node()) == Some(row);
            let is_kept = match (n_points_now, n_points) {
                (Some(now), Some(before)) => now < before,
                (now, None) => now.is_some() || may_help,
                (None, Some(_)) => false,
            };
            match is_kept {
                true => n_points = n_points_now,
                false => trial.undo_to(before),
            }
        }
        Ok(false)
    }

    /// The steps that are moved: first those on the chosen node and on better ones, then those of pods with the same labels, which count for
    /// its constraints, then others; of each the nearest.
    fn movable_steps(&self, trial: &Trial<'_>, table: &ScoreTable) -> Vec<&'a HistoryEntry> {
        let Mismatch { pod, row, before, after, .. } = &self.mismatch;
        let total = table.index_of(*row).map(|at| table.totals[at]);
        let matters = |node: &Str| {
            let on = trial.nodes().row(node);
            let at = on.and_then(|on| table.index_of(on));
            on == Some(*row) || at.is_some_and(|at| Some(table.totals[at]) > total)
        };
        let labels = |pod: &PodInfo| (pod.template.namespace.clone(), pod.template.labels.clone());
        let own_labels = labels(pod);
        let sides = [before, after].map(|entries| {
            let mut ranked: Vec<(u8, &'a HistoryEntry)> = Vec::new();
            for entry in entries {
                let Some(other) = entry.step.pod() else { continue };
                let rank = match matters(entry.step.node()) {
                    true => 0,
                    false => 1 + u8::from(labels(other) != own_labels),
                };
                ranked.push((rank, entry));
            }
            ranked.sort_by_key(|(rank, _)| *rank);
            ranked.truncate(N_MOVES_MAX);
            ranked
        });
        let mut ranked = sides.concat();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether the choice is a best one with another size of one of the pod's images.
    fn other_image_sizes(&mut self, trial: &mut Trial<'_>) -> Result<bool, SearchEnd> {
        let images = pod_images(trial, self.mismatch.pod);
        for image in &images {
            for size in image.candidates() {
                let world = trial.world_mut();
                let Some(before) = world.replace_image_size(&image.name, size) else { continue };
                if before == size {
                    continue;
                }
                let table = self.table(world, None);
                world.replace_image_size(&image.name, before);
                if table?.n_best_with(self.mismatch.row).is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether there is a sample of the nodes in which the choice is a best one.
    fn sampled(
        &mut self,
        world: &mut World,
        table: &ScoreTable,
        n_samples: usize,
        loss: &Option<ScoreLoss>,
    ) -> Found {
        let (row, Some(at)) = (self.mismatch.row, table.index_of(self.mismatch.row)) else {
            return Ok(None);
        };
        let n_feasible = table.rows.len();
        let n_wanted = self.n_wanted(table);
        if n_wanted >= n_feasible {
            return Ok(None);
        }
        let mut totals = table.totals.clone();
        for _ in 0..n_samples {
            let Some(sample) = self.find_sample(table, &totals, at, n_wanted) else {
                return Ok(None);
            };
            let scored = self.table(world, Some(&sample))?;
            if scored.n_best_with(row).is_some() {
                let loss = loss.clone();
                return Ok(Some(ShadowResult::BetterNodeMissed { n_wanted, n_feasible, loss }));
            }
            // Normalized over the sample, other nodes are better than the chosen one.
            let Some(own) = scored.index_of(row).map(|at| scored.totals[at]) else {
                return Ok(None);
            };
            for (scored_row, total) in scored.rows.iter().zip(&scored.totals) {
                if let Some(other) = table.index_of(*scored_row) {
                    totals[other] = totals[at] + total - own;
                }
            }
        }
        Ok(None)
    }

    /// How many feasible nodes kube-scheduler looks for.
    fn n_wanted(&self, table: &ScoreTable) -> usize {
        let n_nodes = self.mismatch.node_order.len() - table.excluded.len();
        self.mismatch.sampling.num_feasible_nodes_to_find(n_nodes, !table.plugins.is_empty())
    }

    /// The rows of a sample without a node whose total is higher than that of the node at index `at`.
    fn find_sample(
        &self,
        table: &ScoreTable,
        totals: &[i64],
        at: usize,
        n_wanted: usize,
    ) -> Option<Vec<NodeRow>> {
        let order = self.mismatch.node_order.iter().copied();
        let order: Vec<NodeRow> =
            order.filter(|row| table.excluded.binary_search(row).is_err()).collect();
        let n_rows = order.iter().map(|row| row.index() + 1).max().unwrap_or(0);
        let mut by_row = vec![SampledNode::Infeasible; n_rows];
        for (row, total) in table.rows.iter().zip(totals) {
            if let Some(node) = by_row.get_mut(row.index()) {
                *node =
                    if *total > totals[at] { SampledNode::Better } else { SampledNode::Possible };
            }
        }
        let nodes: Vec<SampledNode> = order.iter().map(|row| by_row[row.index()]).collect();
        let chosen = order.iter().position(|row| *row == table.rows[at])?;
        let sample = find_sample(&nodes, chosen, n_wanted)?;
        Some(sample.into_iter().map(|at| order[at]).collect())
    }

    /// Whether every better node, or the chosen node if it is rejected, changed while the pod was pending or being bound.
    fn nodes_changed(&self, trial: &Trial<'_>, base: &ScoreTable) -> bool {
        let Mismatch { row, since, before, after, .. } = &self.mismatch;
        let recent = before.iter().take_while(|entry| entry.call >= *since).chain(after);
        let changed = recent.filter(|entry| matches!(entry.step, Step::NodeChanged { .. }));
        let changed: Vec<NodeRow> =
            changed.filter_map(|entry| trial.nodes().row(entry.step.node())).collect();
        if changed.contains(row) {
            return true;
        }
        let Some(total) = base.index_of(*row).map(|at| base.totals[at]) else { return false };
        let mut better = base.rows.iter().zip(&base.totals).filter(|(_, it)| **it > total);
        better.all(|(row, _)| changed.contains(row))
    }

    fn trace(
        &mut self,
        trial: &mut Trial<'_>,
        table: &ScoreTable,
        loss: Option<ScoreLoss>,
    ) -> Result<Unexplained, SearchEnd> {
        let row = self.mismatch.row;
        let chosen = table.index_of(row);
        let own = chosen.map(|at| table.totals[at]);
        let mut ranked: Vec<usize> = (0..table.rows.len()).collect();
        ranked.sort_by_key(|at| (std::cmp::Reverse(table.totals[*at]), table.rows[*at]));
        ranked.truncate(N_BEST_NODES);
        let best_nodes: Vec<NodeScores> =
            ranked.iter().map(|at| node_scores(trial, table, *at)).collect();
        let n_wanted = self.n_wanted(table).min(table.rows.len());
        let is_shown = |entry: &&HistoryEntry| {
            let node = entry.step.node();
            node == self.mismatch.node || best_nodes.iter().any(|best| best.node == *node)
        };
        let line = |entry: &HistoryEntry| {
            let pod = entry.step.pod()?;
            Some(format!("{} on {}", pod.full_name(), entry.step.node()))
        };
        let near = |entries: &[&HistoryEntry]| -> Vec<String> {
            entries.iter().copied().filter(is_shown).filter_map(line).take(8).collect()
        };
        let mut bindings = near(&self.mismatch.before);
        bindings.reverse();
        bindings.extend(near(&self.mismatch.after));
        Ok(Unexplained {
            rejected_by: if chosen.is_none() { self.rejection(trial) } else { None },
            loss,
            chosen: chosen.map(|at| node_scores(trial, table, at)),
            best_nodes,
            n_feasible: table.rows.len(),
            n_better: own.map_or(table.rows.len(), |own| {
                table.totals.iter().filter(|it| **it > own).count()
            }),
            n_wanted,
            n_states: self.n_tables,
            bindings,
        })
    }

    fn rejection(&mut self, trial: &mut Trial<'_>) -> Option<(&'static str, Vec<String>)> {
        let evaluation =
            self.scheduler.evaluate_for_diagnosis(trial.world_mut(), self.mismatch.pod);
        let chosen = evaluation.nodes.iter().find(|node| node.row == self.mismatch.row);
        let rejected = match chosen.map(|node| &node.filter_result) {
            Some(FilterResult::Rejected(rejected)) => rejected,
            Some(FilterResult::Excluded) => {
                return Some((
                    evaluation.excluded_by.first().copied().unwrap_or_default(),
                    Vec::new(),
                ));
            }
            _ => evaluation.pre_filter_rejection.as_ref()?,
        };
        Some((rejected.plugin.unwrap_or_default(), rejected.rejection.reasons()))
    }
}

fn node_name(world: &World, row: NodeRow) -> Str {
    world.node(row).map(|node| Str::new(node.name())).unwrap_or_default()
}

fn node_scores(world: &World, table: &ScoreTable, at: usize) -> NodeScores {
    NodeScores {
        node: node_name(world, table.rows[at]),
        total: table.totals[at],
        scores: table.plugins.iter().map(|(plugin, scores)| (*plugin, scores[at])).collect(),
    }
}

/// How much lower the total of a feasible row is than that of the first best row.
fn loss(world: &World, table: &ScoreTable, row: NodeRow) -> Option<ScoreLoss> {
    let at = table.index_of(row)?;
    let best = table.best_total()?;
    let best_at = table.totals.iter().position(|total| *total == best)?;
    let scores = table.plugins.iter().map(|(plugin, scores)| ScoreDifference {
        plugin,
        chosen: scores[at],
        best: scores[best_at],
    });
    Some(ScoreLoss {
        total: table.totals[at],
        best,
        best_node: node_name(world, table.rows[best_at]),
        by: scores.filter(|it| it.chosen != it.best).collect(),
    })
}
