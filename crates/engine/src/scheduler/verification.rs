//! Compares decisions with the per-node evaluation while the scheduler runs (`--check-every`).

use loadmaster_framework::{EvaluatorCx, NodeRow, PodInfo, World};

use super::{Decision, Scheduler};
use crate::evaluate::{Evaluation, NodeEvaluation, per_node};
use crate::guard;
use crate::node_sampling::NodeSampling;

impl Scheduler {
    /// Verifies one in `n` decisions against a per-node evaluation; 0 verifies none.
    pub fn set_verification_interval(&mut self, n: u64) {
        self.verify_every = (n > 0).then_some(n);
    }

    /// One line per decision that differed from the per-node evaluation.
    pub fn decision_mismatches(&self) -> &[String] {
        &self.decision_mismatches
    }

    /// The nodes with the highest total, from which the decision that was just made about a pod has selected one; `None` unless it was made
    /// with a score index.
    pub fn best_rows(&mut self, world: &World, pod: &PodInfo) -> Option<Vec<NodeRow>> {
        let mut index = self.cache.up_to_date_index(world, pod)?;
        let cx = EvaluatorCx { world, states: &self.states };
        let rows = guard::catch_plugin_panic(|| index.best_rows(cx));
        let mut rows = rows.ok()?.ok()?;
        rows.sort_unstable();
        Some(rows)
    }

    /// Whether the next decision is verified. Never with nominated pods or node sampling, where the per-node evaluation may
    /// differ.
    pub(super) fn is_verified(&self, world: &World, pod: &PodInfo) -> bool {
        self.verify_every.is_some_and(|n| self.is_nth_verified(n, world, pod))
    }

    #[cold]
    fn is_nth_verified(&self, n: u64, world: &World, pod: &PodInfo) -> bool {
        (self.n_decisions + 1).is_multiple_of(n)
            && self.profile.sampling == NodeSampling::All
            && !world.nominates_any_pod()
            && pod.nominated_node_name.is_empty()
            && pod.node_name.is_empty()
    }

    /// A decision that is compared with the per-node evaluation.
    #[cold]
    pub(super) fn schedule_and_verify(&mut self, world: &mut World, pod: &PodInfo) -> Decision {
        let n_panics = guard::n_panics();
        let slow = self.evaluate_for_diagnosis(world, pod);
        let decided = self.schedule_unverified(world, pod);
        // A plugin that panics makes one of the two results fail; that is not a difference.
        if guard::n_panics() == n_panics {
            self.verify(world, pod, &slow, &decided);
        }
        decided
    }

    /// Compares a decision with the per-node evaluation.
    fn verify(&mut self, world: &World, pod: &PodInfo, slow: &Evaluation, decided: &Decision) {
        let selected_among = self.best_rows(world, pod);
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
                let has_all = n_ties.is_none_or(|n| n == best.len() as u64)
                    && selected_among.is_none_or(|rows| rows == best);
                has_all && best.contains(row) && slow.nodes.iter().any(is_best)
            }
        };
        if !is_right {
            let slow = per_node::feasible_total_scores(slow);
            let line = format!("{}: {decided:?}, per node {slow:?}", pod.full_name());
            self.decision_mismatches.push(line);
        }
    }
}
