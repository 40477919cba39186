//! Judging what another scheduler did: was the node it chose among those that we would have chosen from?
//!
//! The judgement is made on the world as it is known when the news of the binding comes, before the pod is put on its node. The other
//! scheduler may have known more or less; it draws by chance among equals, and may look at a sample of the nodes only.

use std::fmt;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{PodInfo, Row};

use super::Engine;
use super::effect::{Effect, Effects, Observation};
use crate::evaluate::{Evaluation, NodeVerdict, Verdict};
use crate::queue::SeatIdx;

/// What we say about a pod that another scheduler placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// `namespace/name`.
    pub pod: String,
    /// The schedulerName of the profile that judges.
    pub profile: Str,
    pub node: Str,
    pub opinion: Opinion,
}

/// Whether we would have done the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// The node is one of so many that are best.
    Agreed { n_best: usize },
    /// It is feasible, and others have a higher total.
    Worse { total: i64, best: i64, best_node: Str, by: Vec<Difference> },
    /// We would have turned it down.
    Infeasible { plugin: &'static str, reasons: Vec<String> },
    /// We would have turned the pod down everywhere, or could not decide it.
    Undecided { message: String },
}

/// A plugin that likes the two nodes differently; weighted scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub plugin: &'static str,
    pub chosen: i64,
    pub best: i64,
}

impl Opinion {
    /// A word for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Opinion::Agreed { .. } => "agreed",
            Opinion::Worse { .. } => "worse",
            Opinion::Infeasible { .. } => "infeasible",
            Opinion::Undecided { .. } => "undecided",
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.pod, self.node)?;
        match &self.opinion {
            Opinion::Agreed { n_best } => write!(f, "agreed, one of {n_best} best nodes"),
            Opinion::Worse { total, best, best_node, by } => {
                write!(f, "its total is {total}, {best_node} has {best}")?;
                for Difference { plugin, chosen, best } in by {
                    write!(f, "; {plugin} {chosen} against {best}")?;
                }
                Ok(())
            }
            Opinion::Infeasible { plugin, reasons } => {
                write!(f, "{plugin} turns it down: {}", reasons.join(", "))
            }
            Opinion::Undecided { message } => f.write_str(message),
        }
    }
}

impl Engine {
    /// A pod that waited here is on a node now, and we did not put it there.
    pub(super) fn judge(
        &mut self,
        seat: SeatIdx,
        pod: &Arc<PodInfo>,
        node: &Str,
        effects: &mut Effects,
    ) {
        let Some(row) = self.world.nodes().row(node) else { return };
        let opinion = self.opinion(seat, pod, row);
        let profile = self.scheduler_name(seat);
        let judgement = Judgement { pod: pod.full_name(), profile, node: node.clone(), opinion };
        effects.push(Effect::Observe(Observation::Judged(Box::new(judgement))));
    }

    fn opinion(&mut self, seat: SeatIdx, pod: &Arc<PodInfo>, row: Row) -> Opinion {
        let scheduler = &mut self.seats[seat.0 as usize].scheduler;
        let totals = scheduler.totals(&mut self.world, pod);
        let best = totals.iter().map(|(_, total)| *total).max();
        let is_best = |entry: &&(Row, i64)| Some(entry.1) == best;
        if totals.iter().any(|entry| entry.0 == row && is_best(&entry)) {
            return Opinion::Agreed { n_best: totals.iter().filter(is_best).count() };
        }
        let evaluation = scheduler.evaluate(&self.world, pod);
        // Nominated pods and wishes of the pod itself are looked at only here.
        if evaluation.best().contains(&row) || evaluation.only_feasible() == Some(row) {
            return Opinion::Agreed { n_best: evaluation.best().len().max(1) };
        }
        self.disagree(&evaluation, row)
    }

    fn disagree(&self, evaluation: &Evaluation, row: Row) -> Opinion {
        let find = |row: Row| evaluation.nodes.iter().find(|node| node.row == row);
        let undecided = || Opinion::Undecided {
            message: crate::diagnosis::message(evaluation, self.world.nodes().len()),
        };
        let Some(chosen) = find(row) else { return undecided() };
        if let Verdict::Rejected(rejected) = &chosen.verdict {
            let plugin = rejected.plugin.unwrap_or_default();
            return Opinion::Infeasible { plugin, reasons: rejected.rejection.reasons() };
        }
        let best = evaluation.best().first().copied().and_then(find);
        match (chosen.total, best.and_then(|best| Some((best, best.total?)))) {
            (Some(total), Some((best, most))) => Opinion::Worse {
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
    chosen: &NodeVerdict,
    best: &NodeVerdict,
) -> Vec<Difference> {
    let scores = chosen.scores.iter().zip(&best.scores);
    let scores = evaluation.score_plugins.iter().zip(scores);
    let differing = scores.filter(|(_, (chosen, best))| chosen != best);
    differing
        .map(|(plugin, (chosen, best))| Difference { plugin, chosen: *chosen, best: *best })
        .collect()
}
