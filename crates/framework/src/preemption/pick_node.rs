//! Comparing candidates (upstream's `pickOneNodeForPreemption`).

use super::{Candidate, Victims};

/// The criteria by which candidates are compared, in order. Smaller is better. One more victim never makes it smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CandidateCost {
    n_violations: usize,
    top_priority: i32,
    /// Each priority is shifted to be non-negative, so that fewer victims always cost less than more victims.
    sum_of_priorities: i64,
    n_victims: usize,
    /// Earliest start time among the victims of the highest priority, negated: later is better.
    earliest_start: i64,
}

/// Indexes of the candidates that are equally good, and better than all others.
pub fn pick_best_candidates(candidates: &[Candidate]) -> Vec<usize> {
    let costs: Vec<CandidateCost> =
        candidates.iter().map(|candidate| CandidateCost::new(&candidate.victims)).collect();
    let least = costs.iter().min();
    (0..costs.len()).filter(|at| Some(&costs[*at]) == least).collect()
}

impl CandidateCost {
    /// The cost of evicting these victims, the most important of which is first.
    pub fn new(victims: &Victims) -> CandidateCost {
        let priorities = || victims.pods.iter().map(|pod| pod.template.priority());
        let highest = priorities().max().unwrap_or(i32::MIN);
        let most_important = victims.pods.iter().filter(|pod| pod.template.priority() == highest);
        // A pod that has not started counts as started last.
        let earliest = most_important
            .map(|pod| pod.started.get().map_or(i64::MAX, |started| started.0))
            .min()
            .unwrap_or(i64::MAX);
        CandidateCost {
            n_violations: victims.n_pdb_violations,
            // As upstream, the priority of the first victim; the most important victims are first.
            top_priority: priorities().next().unwrap_or(i32::MIN),
            sum_of_priorities: priorities().map(|priority| i64::from(priority) + (1 << 31)).sum(),
            n_victims: victims.pods.len(),
            earliest_start: earliest.saturating_neg(),
        }
    }
}
