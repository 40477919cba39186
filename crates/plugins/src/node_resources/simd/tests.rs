use proptest::prelude::*;

use loadmaster_framework::node_amounts::{NodeAmount, NodeAmounts};

use super::super::resource_amounts::ResourceAmount;
use super::*;

/// Amounts at and around all limits of the exact range.
fn amount() -> impl Strategy<Value = i64> {
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
    prop_oneof![
        (amount(), amount()),
        // One below or above a whole percent.
        (1i64 << 40..1 << 45, 0..101i64, -1..2i64).prop_map(|(cap, percent, near)| {
            (cap, cap - (cap / 100 * percent + cap % 100 * percent / 100) + near)
        }),
    ]
}

/// Allocatable and used of each resource, and whether the row is in the set.
type TwoResources = ((i64, i64), (i64, i64), bool);

fn formula() -> impl Strategy<Value = ScoreFormula> {
    prop::sample::select(vec![
        ScoreFormula::LeastAllocated,
        ScoreFormula::MostAllocated,
        ScoreFormula::BalancedAllocation,
    ])
}

/// Nodes with these two amounts.
fn amounts_of_nodes(which: [NodeAmount; 2], values: [&[i64]; 2]) -> Vec<NodeAmounts> {
    let mut nodes = vec![NodeAmounts::default(); values[0].len()];
    for (amount, values) in which.into_iter().zip(values) {
        nodes.iter_mut().zip(values).for_each(|(node, value)| node[amount] = *value);
    }
    nodes
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
        let column = |value: fn(&TwoResources) -> i64| -> Vec<i64> { rows.iter().map(value).collect() };
        let columns = [column(|r| r.0.0), column(|r| r.0.1), column(|r| r.1.0), column(|r| r.1.1)];
        let set: Vec<u8> = rows.iter().map(|row| u8::from(row.2)).collect();
        let resources = [
            WantedResource { amounts: [&columns[0][..], &columns[1]], wanted: wanted.0 },
            WantedResource { amounts: [&columns[2][..], &columns[3]], wanted: wanted.1 },
        ];
        // One resource of those that nodes have side by side, and one with columns of its own.
        let cpu = [NodeAmount::AllocatableCpu, NodeAmount::NonzeroCpu];
        let nodes = amounts_of_nodes(cpu, [&columns[0], &columns[1]]);
        let of_single_rows = [
            WantedResource { amounts: RowAmounts::OfNodes(&nodes, cpu), wanted: wanted.0 },
            WantedResource { amounts: RowAmounts::Columns([&columns[2], &columns[3]]), wanted: wanted.1 },
        ];
        let exact = |at: usize| {
            let amounts = [(&resources[0], weights.0), (&resources[1], weights.1)].map(|(resource, weight)| {
                ResourceAmount { weight, allocatable: resource.amounts[0][at], used: resource.amounts[1][at], wanted: resource.wanted }
            });
            formula.score(amounts.into_iter().filter(|amount| amount.allocatable != 0))
        };
        let simd_formula = SimdFormula::new(&formula, [weights.0, weights.1].into_iter()).unwrap();
        let mut out = vec![7; rows.len()];
        add_scores(&simd_formula, &resources, &set, weight, &mut out, &exact);
        // The same for a list of rows.
        let listed: Vec<NodeRow> =
            (0..rows.len()).rev().filter(|at| set[*at] != 0).map(|at| NodeRow(at as u32)).collect();
        let mut sums = vec![7; listed.len()];
        add_listed_scores(&simd_formula, &of_single_rows, &listed, weight, &mut sums, &exact);
        for (row, sum) in listed.iter().zip(&sums) {
            prop_assert_eq!(*sum, out[row.index()], "row {:?}", row);
        }
        // The same on a processor without SIMD.
        let mut narrow = vec![7; rows.len() / CHUNK * CHUNK];
        AddScores { simd_formula: &simd_formula, resources: &resources, set: &set, weight: weight.clamp(0, 200), out: &mut narrow, exact: &exact }
            .with_simd(pulp::Scalar::new());
        for at in (0..rows.len()).filter(|at| set[*at] != 0) {
            prop_assert_eq!(out[at], weight.wrapping_mul(exact(at)).wrapping_add(7), "row {} {:?}", at, rows[at]);
            if let Some(narrow) = narrow.get(at) {
                prop_assert_eq!(*narrow, weight.clamp(0, 200).wrapping_mul(exact(at)).wrapping_add(7));
            }
            if let Some(score) = simd_formula.score(of_single_rows.map(|resource| resource.of_row(at))) {
                prop_assert_eq!(score, exact(at), "row {} {:?}", at, rows[at]);
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

    #[test]
    fn the_simd_filter_equals_a_comparison(
        rows in prop::collection::vec((amount(), 0..300i64, amount(), amount(), any::<bool>()), 0..200),
        wanted in prop::collection::vec(1..i64::MAX, 0..3),
    ) {
        let column = |value: fn(&(i64, i64, i64, i64, bool)) -> i64| -> Vec<i64> { rows.iter().map(value).collect() };
        let columns = [column(|r| r.0), column(|r| r.1), column(|r| r.2), column(|r| r.3)];
        let amounts = [&columns[2][..], &columns[3][..]];
        let resources: Vec<_> =
            wanted.iter().map(|wanted| WantedResource { amounts, wanted: *wanted }).collect();
        let mut set: Vec<u8> = rows.iter().map(|row| u8::from(row.4)).collect();
        let members = |set: &[u8]| -> Vec<NodeRow> {
            (0..).map(NodeRow).zip(set).filter(|(_, member)| **member != 0).map(|(row, _)| row).collect()
        };
        let mut listed = members(&set);
        retain_fitting(&mut set, [&columns[0], &columns[1]], &resources);
        retain_listed(&mut listed, |at| {
            let headrooms = resources.iter().map(|resource| {
                let (allocatable, used, wanted) = resource.of_row(at);
                headroom(allocatable, used, wanted)
            });
            headrooms.fold(pods_headroom(columns[0][at], columns[1][at]), |least, more| least | more)
        });
        prop_assert_eq!(listed, members(&set));
        for (member, (allowed, there, allocatable, used, before)) in set.iter().zip(&rows) {
            let fits = there < allowed && wanted.iter().all(|wanted| *wanted <= allocatable.wrapping_sub(*used));
            prop_assert_eq!(*member, u8::from(*before && fits));
        }
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
