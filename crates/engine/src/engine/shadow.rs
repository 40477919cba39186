//! Shadow mode: compares the decisions of another scheduler, which is kube-scheduler or decides like it, with our own.
//!
//! When a pod arrives that the other scheduler bound, the state of the world is nearly that in which it was decided. If the node is a best one
//! there, the comparison is done. Otherwise it waits for [`DELAY_NANOS`]: bindings arrive in another order than the decisions were made, so
//! that pods that were decided earlier may arrive later. Then [`search`] goes back to that state in a trial, and looks for what explains the
//! decision: another state, order or image size, or a better node that was not in the sample of the nodes. The number of evaluations is
//! bounded; mismatches beyond that are counted as not examined.

mod evidence;
mod history;
mod image_sizes;
mod sample;
mod search;
mod summary;
mod weights;

use std::collections::VecDeque;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::world::Trial;
use loadmaster_framework::{NodeRow, PodInfo};

use super::effect::{Effect, Effects, Observation};
use super::extender_cycle::has_interested_extenders;
use super::{Engine, ProfileScheduler};
use crate::queue::ProfileIdx;
use crate::time::{MonoTime, Now};

pub use super::shadow_comparison::{
    NodeScores, OrderOf, ScoreDifference, ScoreLoss, ShadowComparison, ShadowResult, Unexplained,
    WeightEvidence,
};
use evidence::Decision;
use history::History;
pub(super) use history::Step;
use image_sizes::{ImageSizes, pod_images};
use search::{Mismatch, N_STEPS, Search};
pub use summary::{ShadowSummary, ShadowVerdict};

/// How long a mismatch waits for bindings of pods that were decided earlier.
const DELAY_NANOS: u64 = 2_000_000_000;

/// Mismatches are examined together, because going back to an earlier state costs more than a comparison there.
const PERIOD_NANOS: u64 = 250_000_000;

/// The maximum number of nodes that are evaluated at a time, in at least so many evaluations. At 5,000 nodes they take some 200 ms.
const N_NODES_PER_PERIOD: usize = 5_000_000;
const N_TABLES_PER_PERIOD_MIN: usize = 1000;

/// The maximum number of mismatches that wait.
const N_WAITING_MAX: usize = 4096;

/// One in this many same choices is evaluated for what it says of other weights.
const EVIDENCE_EVERY: u64 = 4;

/// Mismatches that wait, and what is needed to examine them.
#[derive(Default)]
pub(super) struct Shadow {
    history: History,
    waiting: VecDeque<WaitingMismatch>,
    sizes: ImageSizes,
    n_same_choices: u64,
}

struct WaitingMismatch {
    pod: Arc<PodInfo>,
    profile_idx: ProfileIdx,
    node: Str,
    /// The position of its binding in the history.
    position: u64,
    /// The engine call in which the pod was first seen pending.
    since: u64,
    due: MonoTime,
}

impl Shadow {
    /// When mismatches are examined next.
    pub fn next_due(&self) -> Option<MonoTime> {
        self.waiting.front().map(|waiting| waiting.due)
    }

    fn take_due(&mut self, now: MonoTime) -> Vec<WaitingMismatch> {
        let n_due = self.waiting.iter().take_while(|waiting| waiting.due <= now).count();
        self.waiting.drain(..n_due).collect()
    }
}

/// A pod that was pending here, as far as a comparison needs it.
pub(super) struct BoundPod<'a> {
    pub pod: &'a Arc<PodInfo>,
    pub profile_idx: ProfileIdx,
    pub since: u64,
    pub node: &'a Str,
}

impl Engine {
    /// Compares the placement of a pod that another scheduler has bound, before the pod is added to its node. The next step that is recorded
    /// is that placement.
    pub(super) fn compare_placement(
        &mut self,
        now: Now,
        bound: &BoundPod<'_>,
        effects: &mut Effects,
    ) {
        let BoundPod { pod, profile_idx, since, node } = *bound;
        let Some(row) = self.world.nodes().row(node) else { return };
        let result = if self.shadow.waiting.len() >= N_WAITING_MAX {
            Some(ShadowResult::NotExamined)
        } else {
            self.result_on_arrival(profile_idx, pod, row)
        };
        match result {
            Some(result) => {
                let evidence = self.evidence_on_arrival(profile_idx, pod, row, &result);
                effects.push(self.comparison(profile_idx, pod, node, result, evidence));
            }
            None => {
                let due = (now.mono.0 + DELAY_NANOS).next_multiple_of(PERIOD_NANOS);
                self.shadow.waiting.push_back(WaitingMismatch {
                    pod: pod.clone(),
                    profile_idx,
                    node: node.clone(),
                    position: self.shadow.history.end(),
                    since,
                    due: MonoTime(due),
                });
            }
        }
    }

    /// The result, if it is known at once.
    fn result_on_arrival(
        &mut self,
        profile_idx: ProfileIdx,
        pod: &Arc<PodInfo>,
        row: NodeRow,
    ) -> Option<ShadowResult> {
        let profile_scheduler = &mut self.profiles[profile_idx.0 as usize];
        if has_interested_extenders(&profile_scheduler.profile.extenders, pod) {
            let message = "an extender takes part in the decision, and a shadow calls no extenders";
            return Some(ShadowResult::Undecided { message: message.to_owned() });
        }
        let totals = profile_scheduler.scheduler.feasible_total_scores(&mut self.world, pod);
        let best = totals.iter().map(|(_, total)| *total).max()?;
        totals.contains(&(row, best)).then(|| ShadowResult::SameChoicePossible {
            n_best: totals.iter().filter(|(_, total)| *total == best).count(),
            n_bindings: 0,
        })
    }

    /// What a part of the same choices say of other weights, and how many choices that stands for.
    fn evidence_on_arrival(
        &mut self,
        profile_idx: ProfileIdx,
        pod: &Arc<PodInfo>,
        row: NodeRow,
        result: &ShadowResult,
    ) -> (Vec<WeightEvidence>, u32) {
        if !matches!(result, ShadowResult::SameChoicePossible { .. }) {
            return (Vec::new(), 0);
        }
        self.shadow.n_same_choices += 1;
        if !self.shadow.n_same_choices.is_multiple_of(EVIDENCE_EVERY) {
            return (Vec::new(), 0);
        }
        let Engine { world, profiles, shadow: Shadow { sizes, .. }, .. } = self;
        let ProfileScheduler { profile, scheduler, .. } = &mut profiles[profile_idx.0 as usize];
        let Ok(table) = scheduler.score_table(world, pod, None) else { return (Vec::new(), 0) };
        let n_nodes = world.nodes().len() - table.excluded.len();
        let n_wanted = profile
            .upstream_sampling
            .num_feasible_nodes_to_find(n_nodes, !table.plugins.is_empty());
        let stands_for = EVIDENCE_EVERY as u32;
        let images = pod_images(world, pod);
        let decision = Decision { scheduler, pod, row, n_wanted, stands_for };
        let found = decision.evidence(world, table, sizes, &images);
        found.map_or((Vec::new(), 0), |evidence| (evidence, stands_for))
    }

    fn comparison(
        &self,
        profile_idx: ProfileIdx,
        pod: &PodInfo,
        node: &Str,
        result: ShadowResult,
        (evidence, n_evidence): (Vec<WeightEvidence>, u32),
    ) -> Effect {
        let (pod, profile) = (pod.full_name(), self.scheduler_name(profile_idx));
        let node = node.clone();
        let comparison = ShadowComparison { pod, profile, node, result, evidence, n_evidence };
        Effect::Observe(Observation::ShadowCompared(Box::new(comparison)))
    }

    /// Remembers a change of the world.
    pub(super) fn record_step(&mut self, step: Step) {
        if self.options.shadow {
            self.shadow.history.push(self.n_engine_calls, step);
        }
    }

    /// Examines the mismatches that have waited long enough.
    pub(super) fn examine_mismatches(&mut self, now: Now, effects: &mut Effects) {
        let due = self.shadow.take_due(now.mono);
        if due.is_empty() {
            return;
        }
        let node_order = self.world.nodes().node_tree().rows();
        let mut n_left =
            (N_NODES_PER_PERIOD / node_order.len().max(1)).max(N_TABLES_PER_PERIOD_MIN);
        let Engine { world, profiles, shadow: Shadow { history, sizes, .. }, .. } = self;
        let mut trial = Trial::new(world);
        let mut position = history.end();
        let mut results = Vec::with_capacity(due.len());
        for waiting in due.iter().rev() {
            while position > waiting.position {
                position -= 1;
                if let Some(entry) = history.get(position) {
                    entry.step.undo(&mut trial);
                }
            }
            let Some(row) = trial.nodes().row(&waiting.node) else {
                let message = format!("node {} no longer exists", waiting.node);
                results.push((ShadowResult::Undecided { message }, Vec::new()));
                continue;
            };
            let entry = history.get(position);
            let Some(entry) = entry.filter(|_| !profiles.is_replaced(waiting.profile_idx)) else {
                results.push((ShadowResult::NotExamined, Vec::new()));
                continue;
            };
            let profile_scheduler = &mut profiles[waiting.profile_idx.0 as usize];
            let mismatch = Mismatch {
                pod: &waiting.pod,
                node: &waiting.node,
                row,
                since: waiting.since,
                bound_in: entry.call,
                sampling: profile_scheduler.profile.upstream_sampling,
                node_order: &node_order,
                before: history.before(position, N_STEPS).collect(),
                after: history.after(position, N_STEPS).collect(),
            };
            let scheduler = &mut profile_scheduler.scheduler;
            let mut search = Search {
                scheduler,
                sizes,
                mismatch,
                n_tables: 0,
                evidence: Vec::new(),
                n_left: &mut n_left,
            };
            let result = search.run(&mut Trial::new(trial.world_mut()));
            results.push((result, search.evidence));
        }
        drop(trial);
        for (waiting, (result, evidence)) in due.iter().zip(results.into_iter().rev()) {
            let WaitingMismatch { profile_idx, pod, node, .. } = waiting;
            effects.push(self.comparison(*profile_idx, pod, node, result, (evidence, 1)));
        }
    }
}
