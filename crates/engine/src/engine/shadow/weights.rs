//! Other weights of one plugin with which another scheduler's choice would be a best one.

use super::comparison::WeightFactor;
use crate::scheduler::ScoreTable;

/// What a weight may be multiplied by: numerator and denominator.
const FACTORS: [(i64, i64); 12] = [
    (0, 1),
    (1, 10),
    (1, 5),
    (1, 3),
    (1, 2),
    (3, 4),
    (3, 2),
    (2, 1),
    (3, 1),
    (5, 1),
    (10, 1),
    (30, 1),
];

/// What [`explaining_factors`] costs, in evaluations.
pub(super) const COST: usize = 20;

/// For each plugin, the factors of its weight that make the row at index `at` a best one, or, by `is_sampled`, one of a sample. `is_sampled`
/// is called with the other totals.
pub(super) fn explaining_factors(
    table: &ScoreTable,
    at: usize,
    is_sampled: impl Fn(&[i64]) -> bool,
) -> Vec<WeightFactor> {
    let mut found = Vec::new();
    for (plugin, scores) in &table.plugins {
        // A plugin that scores all nodes alike explains nothing.
        if scores.iter().all(|score| *score == scores[at]) {
            continue;
        }
        for (numerator, denominator) in FACTORS {
            let total = |(total, score): (&i64, &i64)| {
                (total - score) * denominator + score * numerator
            };
            let totals: Vec<i64> = table.totals.iter().zip(scores).map(total).collect();
            let is_best = totals.iter().all(|total| *total <= totals[at]);
            if is_best || is_sampled(&totals) {
                let n_best = totals.iter().filter(|total| **total == totals[at]).count();
                found.push(WeightFactor { plugin, factor: (numerator, denominator), n_best });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::NodeRow;

    use super::*;

    #[test]
    fn factors_that_make_a_row_the_best() {
        let table = ScoreTable {
            rows: vec![NodeRow(0), NodeRow(1)],
            totals: vec![60, 70],
            plugins: vec![("A", vec![10, 40]), ("B", vec![50, 30]), ("C", vec![0, 0])],
            excluded: Vec::new(),
        };
        let found = explaining_factors(&table, 0, |_| false);
        let found: Vec<_> = found.iter().map(|it| (it.plugin, it.factor, it.n_best)).collect();
        let want = [
            ("A", (0, 1), 1),
            ("A", (1, 10), 1),
            ("A", (1, 5), 1),
            ("A", (1, 3), 1),
            ("A", (1, 2), 1),
            ("B", (3, 2), 2),
            ("B", (2, 1), 1),
            ("B", (3, 1), 1),
            ("B", (5, 1), 1),
            ("B", (10, 1), 1),
            ("B", (30, 1), 1),
        ];
        assert_eq!(found, want);
    }
}
