use std::ops::Range;

use proptest::prelude::*;

use loadmaster_framework::node_amounts::{NodeAmount, NodeAmounts};

use super::super::resource_amounts::ResourceAmount;
use super::*;

/// Amounts at and around all limits of the exact range.
pub(super) fn amount() -> impl Strategy<Value = i64> {
    let edges =
        [0, 1, 1 << 44, 1 << 45, 1 << 51, 1 << 52, i64::MAX / 100, i64::MAX - 2, i64::MIN + 2];
    prop_oneof![
        4 => 0..20_000i64,
        4 => 0..1i64 << 46,
        1 => any::<i64>(),
        2 => (prop::sample::select(edges.to_vec()), -2..3i64).prop_map(|(edge, near)| edge + near),
    ]
}

/// Allocatable and used amounts, often close to each other.
fn offered_and_used() -> impl Strategy<Value = (i64, i64)> {
    prop_oneof![(amount(), amount()), near_a_percent(1 << 40..1 << 45)]
}

/// With the used amount a whole percent of the allocatable one, or one below or above.
pub(super) fn near_a_percent(allocatable: Range<i64>) -> impl Strategy<Value = (i64, i64)> {
    (allocatable, 0..101i64, -1..2i64).prop_map(|(cap, percent, near)| {
        (cap, cap - (cap / 100 * percent + cap % 100 * percent / 100) + near)
    })
}

pub(super) fn formula() -> impl Strategy<Value = ScoreFormula> {
    prop::sample::select(vec![
        ScoreFormula::LeastAllocated,
        ScoreFormula::MostAllocated,
        ScoreFormula::BalancedAllocation,
    ])
}

/// The score of a row as the formula has it, from allocatable, used, wanted and weight.
pub(super) fn plain_score(formula: &ScoreFormula, resources: [(i64, i64, i64, i64); 2]) -> i64 {
    let amounts = resources.map(|(allocatable, used, wanted, weight)| ResourceAmount {
        weight,
        allocatable,
        used,
        wanted,
    });
    formula.score(amounts.into_iter().filter(|amount| amount.allocatable != 0))
}

proptest! {
    #[test]
    fn simd_scores_equal_the_formula(
        formula in formula(),
        rows in prop::collection::vec((offered_and_used(), offered_and_used(), any::<bool>()), 0..200),
        wanted in (amount(), amount()),
        weights in (1..101i64, 1..101i64),
        weight in prop_oneof![0..200i64, Just(-3), Just(i64::MAX)],
    ) {
        let set: Vec<u8> = rows.iter().map(|row| u8::from(row.2)).collect();
        // One resource of those that nodes have side by side, and one with columns of its own.
        let cpu = [NodeAmount::AllocatableCpu, NodeAmount::NonzeroCpu];
        let mut nodes = vec![NodeAmounts::default(); rows.len()];
        for (node, ((allocatable, used), ..)) in nodes.iter_mut().zip(&rows) {
            (node[cpu[0]], node[cpu[1]]) = (*allocatable, *used);
        }
        let columns: [Vec<i64>; 2] =
            [rows.iter().map(|row| row.1.0).collect(), rows.iter().map(|row| row.1.1).collect()];
        let resources = [
            WantedResource { amounts: RowAmounts::OfNodes(&nodes, cpu), wanted: wanted.0 },
            WantedResource { amounts: RowAmounts::Columns([&columns[0], &columns[1]]), wanted: wanted.1 },
        ];
        let exact = |at: usize| {
            let ((a, b), (c, d), _) = rows[at];
            plain_score(&formula, [(a, b, wanted.0, weights.0), (c, d, wanted.1, weights.1)])
        };
        let simd_formula = &SimdFormula::new(&formula, [weights.0, weights.1].into_iter()).unwrap();
        let scores = RowScores { simd_formula, resources, exact: &exact };
        let want = |at: usize| weight.wrapping_mul(exact(at)).wrapping_add(7);
        let first = rows.len() / 3;
        let mut out = vec![7; rows.len() - first];
        scores.add(first, &set[first..], weight, &mut out);
        for at in first..rows.len() {
            let want = if set[at] != 0 { want(at) } else { 7 };
            prop_assert_eq!(out[at - first], want, "row {} {:?}", at, rows[at]);
        }
        let listed: Vec<NodeRow> =
            (0..rows.len()).rev().filter(|at| set[*at] != 0).map(|at| NodeRow(at as u32)).collect();
        let mut sums = vec![7; listed.len()];
        scores.add_listed(&listed, weight, &mut sums);
        for (row, sum) in listed.iter().zip(&sums) {
            prop_assert_eq!(*sum, want(row.index()), "row {:?}", row);
        }
        // On a processor without SIMD.
        for first in (0..rows.len()).step_by(CHUNK) {
            let rows = first..rows.len().min(first + CHUNK);
            let (mut amounts, mut scores) = ([[[1; CHUNK]; 2]; 2], [0; CHUNK]);
            write_amounts(rows.clone(), resources.map(|resource| resource.amounts), &mut amounts);
            let wanted = [wanted.0, wanted.1];
            let chunk = ScoreChunk { simd_formula, amounts: &amounts, wanted, scores: &mut scores };
            if chunk.with_simd(pulp::Scalar::new()) == 0 {
                let found = &scores[..rows.len()];
                prop_assert_eq!(found, rows.map(exact).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_fused_quotient_equals_the_division(
        n in prop_oneof![0..1i64 << 52, 0..1i64 << 20],
        divisor in prop_oneof![1..=1i64 << 45, 1..1i64 << 20, (0..46i64).prop_map(|n| 1 << n)],
    ) {
        let (n, divisor) = (n as f64, divisor as f64);
        prop_assert_eq!(Fused.quotient(n, divisor, 1.0 / divisor).to_bits(), (n / divisor).to_bits());
    }
}

#[test]
fn rows_out_of_the_exact_range() {
    let out_of_range = |allocatable: i64, used: i64, wanted: i64| {
        FloatRow::new([(allocatable, used, wanted), (1, 0, 0)]).out_of_range != 0
    };
    assert!(!out_of_range(1, 0, 0));
    assert!(!out_of_range(1 << 45, (1 << 52) - 2, 1));
    assert!(out_of_range((1 << 45) + 1, 0, 0));
    assert!(out_of_range(0, 0, 0));
    assert!(out_of_range(-1, 0, 0));
    assert!(out_of_range(1, (1 << 52) - 1, 1));
    assert!(out_of_range(1, -1, 1));
    assert!(out_of_range(1, 1, -2));
}

#[test]
fn weights_without_a_simd_form() {
    let has = |formula: ScoreFormula, weights: &[i64]| {
        SimdFormula::new(&formula, weights.iter().copied()).is_some()
    };
    assert!(has(ScoreFormula::LeastAllocated, &[1, 100]));
    assert!(!has(ScoreFormula::LeastAllocated, &[1]));
    assert!(!has(ScoreFormula::LeastAllocated, &[1, 1, 1]));
    assert!(!has(ScoreFormula::MostAllocated, &[0, 1]));
    assert!(!has(ScoreFormula::MostAllocated, &[1, 1001]));
}

#[test]
fn means_are_exact() {
    for other in 1..=WEIGHT_MAX {
        let simd_formula =
            SimdFormula::new(&ScoreFormula::LeastAllocated, [1, other].into_iter()).unwrap();
        for (a, b) in (0..=100).flat_map(|a| [0, 1, 49, 50, 99, 100].map(|b| (a, b))) {
            let found = mean(&simd_formula, [a as f64, b as f64], Baseline);
            assert_eq!(found, ((a + b * other) / (1 + other)) as f64, "{a} {b} {other}");
        }
    }
}
