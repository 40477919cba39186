//! Whether another scheduler decides as if a plugin had another weight.
//!
//! One decision says little: a better node may have been missed by sampling, or be better only in our state. All decisions together say how
//! likely each weight is. A decision counts with the logarithm of its probability, in bits. Either it is one of the equally good nodes of the
//! sample, and all better nodes were missed; or it was made in a state that we do not know, so that each feasible node is equally likely.

use loadmaster_stdx::float;

use crate::engine::shadow_comparison::WeightEvidence;
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

/// The probability that a decision was made in another state than the one in which we evaluate it. It keeps a single decision from counting
/// much.
const OTHER_STATE: f64 = 0.1;

/// How much more likely other weights make the choice of the row at index `at`, when `n_wanted` feasible nodes are looked at.
pub(super) fn evidence(table: &ScoreTable, at: usize, n_wanted: usize) -> Vec<WeightEvidence> {
    let n_feasible = table.rows.len();
    let sampled = share_of_nodes(n_feasible, n_wanted);
    let with_ours = bits(table, at, n_wanted);
    let mut found = Vec::new();
    let mut totals = Vec::with_capacity(n_feasible);
    for (plugin, scores) in &table.plugins {
        let is_constant = scores.iter().all(|score| *score == scores[at]);
        for factor in FACTORS {
            let (numerator, denominator) = factor;
            // Equal scores of all nodes leave everything as it is.
            if is_constant {
                continue;
            }
            totals.clear();
            let total =
                |(total, score): (&i64, &i64)| (total - score) * denominator + score * numerator;
            totals.extend(table.totals.iter().zip(scores).map(total));
            let gain = with_ours - bits_of(count(&totals, at), sampled, n_feasible);
            found.push(WeightEvidence {
                plugin,
                factor,
                millibits: (gain * 1000.0).round() as i64,
            });
        }
    }
    found
}

/// How unlikely the choice of the row at index `at` is with our weights, in bits.
pub(super) fn bits(table: &ScoreTable, at: usize, n_wanted: usize) -> f64 {
    let n_feasible = table.rows.len();
    bits_of(count(&table.totals, at), share_of_nodes(n_feasible, n_wanted), n_feasible)
}

/// The share of the feasible nodes that is looked at, if not all are.
fn share_of_nodes(n_feasible: usize, n_wanted: usize) -> Option<f64> {
    (n_wanted < n_feasible).then(|| n_wanted as f64 / n_feasible as f64)
}

/// Numbers of better and of equally good rows, the row itself included.
fn count(totals: &[i64], at: usize) -> (usize, usize) {
    let better = totals.iter().filter(|total| **total > totals[at]).count();
    (better, totals.iter().filter(|total| **total == totals[at]).count())
}

fn bits_of((n_better, n_equal): (usize, usize), sampled: Option<f64>, n_feasible: usize) -> f64 {
    let in_our_state = match sampled {
        None if n_better > 0 => 0.0,
        None => 1.0 / n_equal as f64,
        Some(share) => power(1.0 - share, n_better) / (n_equal as f64 * share).max(1.0),
    };
    -log2((1.0 - OTHER_STATE) * in_our_state + OTHER_STATE / n_feasible as f64)
}

/// Equal on all platforms.
fn power(base: f64, exponent: usize) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result *= square;
        }
        square *= square;
        left /= 2;
    }
    result
}

/// Equal on all platforms.
fn log2(value: f64) -> f64 {
    float::go_ln(value) / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::NodeRow;

    use super::*;

    #[test]
    fn weights_that_make_a_choice_more_or_less_likely() {
        let table = ScoreTable {
            rows: vec![NodeRow(0), NodeRow(1)],
            totals: vec![60, 70],
            plugins: vec![("A", vec![10, 40]), ("B", vec![50, 30]), ("C", vec![0, 0])],
            excluded: Vec::new(),
        };
        let check = |at, n_wanted, want: &[(&str, (i64, i64), i64)]| {
            let found = evidence(&table, at, n_wanted);
            let shown = found.iter().filter(|it| it.millibits != 0);
            let shown: Vec<_> = shown.map(|it| (it.plugin, it.factor, it.millibits)).collect();
            assert_eq!(shown, want, "row {at}, {n_wanted} wanted");
        };
        let a = [(0, 1), (1, 10), (1, 5), (1, 3), (1, 2)].map(|factor| ("A", factor));
        let b = [(2, 1), (3, 1), (5, 1), (10, 1), (30, 1)].map(|factor| ("B", factor));
        let all = |of_a: i64, of_b_tie: i64, of_b: i64| -> Vec<(&str, (i64, i64), i64)> {
            let tie = [("B", (3, 2), of_b_tie)].into_iter().filter(|it| it.2 != 0);
            let a = a.into_iter().map(|(plugin, factor)| (plugin, factor, of_a));
            a.chain(tie)
                .chain(b.into_iter().map(|(plugin, factor)| (plugin, factor, of_b)))
                .collect()
        };
        // Not the best node of all, then the best one, then one that a sample may have missed.
        check(0, 2, &all(4_248, 3_322, 4_248));
        check(1, 2, &all(-4_248, -926, -4_248));
        check(0, 1, &all(926, 926, 926));
    }
}
