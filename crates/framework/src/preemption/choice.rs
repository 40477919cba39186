//! Which node to take the victims from.

use super::{Candidate, Victims};

/// What makes a candidate better, the first thing first (upstream's `pickOneNodeForPreemption`). Smaller is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    n_violations: usize,
    top_priority: i32,
    /// Every priority counts as if it were not negative, so that fewer pods cost less whatever their priorities.
    sum_of_priorities: i64,
    n_victims: usize,
    /// Earliest start among the victims of the highest priority, negated: who started last has lost least.
    earliest_start: i64,
}

/// Indexes of the candidates that are equally good, and better than all others.
pub fn best(candidates: &[Candidate]) -> Vec<usize> {
    let costs: Vec<Cost> = candidates.iter().map(|candidate| cost(&candidate.victims)).collect();
    let least = costs.iter().min();
    (0..costs.len()).filter(|at| Some(&costs[*at]) == least).collect()
}

fn cost(victims: &Victims) -> Cost {
    let priorities = || victims.pods.iter().map(|pod| pod.template.priority());
    let highest = priorities().max().unwrap_or(i32::MIN);
    let most_important = victims.pods.iter().filter(|pod| pod.template.priority() == highest);
    // Who has not started yet starts now at the earliest.
    let earliest = most_important
        .map(|pod| pod.started.map_or(i64::MAX, |started| started.0))
        .min()
        .unwrap_or(i64::MAX);
    Cost {
        n_violations: victims.n_violations,
        // Upstream takes the first one's, and the most important ones are first.
        top_priority: priorities().next().unwrap_or(i32::MIN),
        sum_of_priorities: priorities().map(|priority| i64::from(priority) + (1 << 31)).sum(),
        n_victims: victims.pods.len(),
        earliest_start: earliest.saturating_neg(),
    }
}
