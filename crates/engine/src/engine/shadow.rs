//! Shadow mode: compares the decisions of another scheduler with our own. Is the node it chose one of our best nodes?
//!
//! The comparison uses the state of the world when the bound pod arrives through the watch, before it is added to its node. The other
//! scheduler may have had newer or older state; it selects at random among the best nodes, and may score only a part of the nodes.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{NodeRow, PodInfo};

use super::Engine;
use super::effect::{Effect, Effects, Observation};
use crate::evaluate::{Evaluation, FilterResult, NodeEvaluation};
use crate::queue::ProfileIdx;

pub use super::observation::{ScoreDifference, ShadowComparison, ShadowResult};

impl Engine {
    /// Compares the placement of a pod that was pending here and that another scheduler has bound.
    pub(super) fn compare_placement(
        &mut self,
        profile_idx: ProfileIdx,
        pod: &Arc<PodInfo>,
        node: &Str,
        effects: &mut Effects,
    ) {
        let Some(row) = self.world.nodes().row(node) else { return };
        let result = self.shadow_result(profile_idx, pod, row);
        let profile = self.scheduler_name(profile_idx);
        let comparison =
            ShadowComparison { pod: pod.full_name(), profile, node: node.clone(), result };
        effects.push(Effect::Observe(Observation::ShadowCompared(Box::new(comparison))));
    }

    fn shadow_result(
        &mut self,
        profile_idx: ProfileIdx,
        pod: &Arc<PodInfo>,
        row: NodeRow,
    ) -> ShadowResult {
        let scheduler = &mut self.profiles[profile_idx.0 as usize].scheduler;
        let totals = scheduler.feasible_total_scores(&mut self.world, pod);
        let best = totals.iter().map(|(_, total)| *total).max();
        let is_best = |entry: &&(NodeRow, i64)| Some(entry.1) == best;
        if totals.iter().any(|entry| entry.0 == row && is_best(&entry)) {
            return ShadowResult::Agreed { n_best: totals.iter().filter(is_best).count() };
        }
        let evaluation = scheduler.evaluate_for_diagnosis(&mut self.world, pod);
        // Only the full evaluation considers nominated pods and the pod's own nomination.
        if evaluation.best_nodes().contains(&row) || evaluation.single_feasible_node() == Some(row)
        {
            return ShadowResult::Agreed { n_best: evaluation.best_nodes().len().max(1) };
        }
        self.explain_mismatch(&evaluation, row)
    }

    fn explain_mismatch(&self, evaluation: &Evaluation, row: NodeRow) -> ShadowResult {
        let find = |row: NodeRow| evaluation.nodes.iter().find(|node| node.row == row);
        let undecided = || ShadowResult::Undecided {
            message: crate::diagnosis::fit_error_message(evaluation, self.world.nodes().len()),
        };
        let Some(chosen) = find(row) else { return undecided() };
        if let FilterResult::Rejected(rejected) = &chosen.filter_result {
            let plugin = rejected.plugin.unwrap_or_default();
            return ShadowResult::Infeasible { plugin, reasons: rejected.rejection.reasons() };
        }
        let best = evaluation.best_nodes().first().copied().and_then(find);
        match (chosen.total, best.and_then(|best| Some((best, best.total?)))) {
            (Some(total), Some((best, most))) => ShadowResult::Worse {
                total,
                best: most,
                best_node: self
                    .world
                    .node(best.row)
                    .map(|it| Str::new(it.name()))
                    .unwrap_or_default(),
                by: differences(evaluation, chosen, best),
            },
            _ => undecided(),
        }
    }
}

fn differences(
    evaluation: &Evaluation,
    chosen: &NodeEvaluation,
    best: &NodeEvaluation,
) -> Vec<ScoreDifference> {
    let scores = chosen.scores.iter().zip(&best.scores);
    let scores = evaluation.score_plugins.iter().zip(scores);
    let differing = scores.filter(|(_, (chosen, best))| chosen != best);
    differing
        .map(|(plugin, (chosen, best))| ScoreDifference { plugin, chosen: *chosen, best: *best })
        .collect()
}
