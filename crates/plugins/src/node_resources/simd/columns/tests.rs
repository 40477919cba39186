use loadmaster_framework::node_amounts::{NodeAmount, NodeAmounts};
use proptest::prelude::*;

use super::super::tests::{amount, formula, near_a_percent, plain_score};
use super::super::{headroom, pods_headroom};
use super::*;

/// Amounts that columns have, in their unit, and now and then any others.
fn offered_and_used(unit: i64) -> impl Strategy<Value = (i64, i64)> {
    let end = 1i64 << 30;
    let in_columns = prop_oneof![
        (1..40_000i64, 0..40_000i64),
        (1..end, 0..end),
        near_a_percent(100..end),
        (1..end).prop_map(|allocatable| (allocatable, 0)),
        // Percentages of round numbers.
        (1..65i64, 0..65i64).prop_map(|(a, b)| (a * 4_000, b * 500)),
        (end - 3..end, end - 3..end),
    ];
    prop_oneof![
        40 => in_columns.prop_map(move |(allocatable, used)| (allocatable * unit, used * unit)),
        1 => (amount(), amount()),
    ]
}

fn node() -> impl Strategy<Value = NodeAmounts> {
    let pods = prop_oneof![(0..300i64, 0..300i64), (amount(), 0..300i64)];
    (offered_and_used(1), offered_and_used(1024), pods).prop_map(|(cpu, memory, pods)| {
        let mut node = NodeAmounts::default();
        for (allocatable, used, amounts) in [
            (NodeAmount::AllocatableCpu, NodeAmount::RequestedCpu, cpu),
            (NodeAmount::AllocatableMemory, NodeAmount::RequestedMemory, memory),
            (NodeAmount::AllocatablePods, NodeAmount::Pods, pods),
        ] {
            (node[allocatable], node[used]) = amounts;
        }
        node
    })
}

const CPU: [NodeAmount; 2] = [NodeAmount::AllocatableCpu, NodeAmount::RequestedCpu];
const MEMORY: [NodeAmount; 2] = [NodeAmount::AllocatableMemory, NodeAmount::RequestedMemory];
const PODS: [NodeAmount; 2] = [NodeAmount::AllocatablePods, NodeAmount::Pods];

/// The columns of CPU, memory and pods, and which rows are exactly in them.
struct Columns {
    columns: [[Vec<i32>; 2]; 3],
    exact: Vec<u8>,
}

impl Columns {
    fn new(nodes: &[NodeAmounts]) -> Columns {
        let in_columns = |node: &NodeAmounts, amount: NodeAmount| amount.in_column(node[amount]);
        let columns = [CPU, MEMORY, PODS].map(|pair| {
            pair.map(|amount| {
                nodes.iter().map(|node| in_columns(node, amount).unwrap_or(5)).collect()
            })
        });
        let exact = nodes.iter().map(|node| {
            let all = [CPU, MEMORY, PODS].into_iter().flatten();
            let mut all = all.map(|amount| in_columns(node, amount));
            u8::from(all.all(|it| it.is_some()) && node[CPU[0]] > 0 && node[MEMORY[0]] > 0)
        });
        Columns { exact: exact.collect(), columns }
    }

    fn of(&self, resource: usize) -> [&[i32]; 2] {
        let [allocatable, used] = &self.columns[resource];
        [allocatable, used]
    }
}

/// Requests in the unit of the column.
fn wanted() -> impl Strategy<Value = i64> {
    prop_oneof![0..2_000i64, 0..1i64 << 30, Just((1 << 30) - 1)]
}

/// Requests above 0.
fn filtered() -> impl Strategy<Value = i64> {
    prop_oneof![
        1..1i64 << 32,
        (0..40i64, -1..2i64).prop_map(|(n, near)| (n << 30) + 2 + near),
        1..i64::MAX
    ]
}

proptest! {
    #[test]
    fn scores_from_columns_equal_the_formula(
        formula in formula(),
        rows in prop::collection::vec((node(), any::<bool>()), 0..200),
        wanted in (wanted(), wanted()),
        weights in (1..101i64, 1..101i64),
        weight in prop_oneof![0..200i64, Just(1 << 20)],
    ) {
        let (nodes, set): (Vec<NodeAmounts>, Vec<u8>) =
            rows.into_iter().map(|(node, member)| (node, u8::from(member))).unzip();
        let columns = Columns::new(&nodes);
        let plain = |at: usize| {
            let [cpu, memory] = [CPU, MEMORY].map(|pair| pair.map(|amount| nodes[at][amount]));
            plain_score(&formula, [
                (cpu[0], cpu[1], wanted.0, weights.0),
                (memory[0], memory[1], wanted.1 * 1024, weights.1),
            ])
        };
        let simd_formula = &SimdFormula::new(&formula, [weights.0, weights.1].into_iter()).unwrap();
        let resources = [
            ColumnRequest { amounts: columns.of(0), wanted: wanted.0 as i32 },
            ColumnRequest { amounts: columns.of(1), wanted: wanted.1 as i32 },
        ];
        let scores = ColumnScores { simd_formula, resources, exact: &columns.exact };
        let mut out = vec![7; set.len()];
        let others = |first: usize, set: &[u8], out: &mut [i64]| {
            for (at, sum) in out.iter_mut().enumerate().filter(|(at, _)| set[*at] != 0) {
                *sum = sum.wrapping_add(weight.wrapping_mul(plain(first + at)));
            }
        };
        prop_assert!(scores.add(&set, weight, &mut out, &others));
        for at in (0..set.len()).filter(|at| set[*at] != 0) {
            prop_assert_eq!(out[at], weight.wrapping_mul(plain(at)).wrapping_add(7), "row {} {:?}", at, nodes[at]);
        }
        // On a processor without SIMD.
        let mut narrow = vec![7; set.len()];
        AddScores { scores: &scores, set: &set, weight: weight as i32, out: &mut narrow, others: &others }
            .with_simd(pulp::Scalar::new());
        prop_assert_eq!(narrow, out);
        for weight in [-1, (1 << 20) + 1] {
            prop_assert!(!scores.add(&set, weight, &mut [], &|_, _, _| ()));
        }
    }

    #[test]
    fn the_filter_of_columns_equals_a_comparison(
        rows in prop::collection::vec((node(), any::<bool>()), 0..200),
        requests in prop::collection::vec((any::<bool>(), filtered()), 0..3),
    ) {
        let (nodes, before): (Vec<NodeAmounts>, Vec<u8>) =
            rows.into_iter().map(|(node, member)| (node, u8::from(member))).unzip();
        let columns = Columns::new(&nodes);
        let requests: Vec<_> =
            requests.into_iter().map(|(is_cpu, wanted)| if is_cpu { (0, CPU, wanted) } else { (1, MEMORY, wanted) }).collect();
        let resources: Vec<_> = requests.iter().map(|(column, amounts, wanted)| {
            ColumnRequest { amounts: columns.of(*column), wanted: amounts[0].request_in_column(*wanted) }
        }).collect();
        let mut set = before.clone();
        let fits = |at: usize| {
            let headrooms = requests.iter().map(|(_, [allocatable, used], wanted)| {
                headroom(nodes[at][*allocatable], nodes[at][*used], *wanted)
            });
            headrooms.fold(pods_headroom(nodes[at][PODS[0]], nodes[at][PODS[1]]), |least, more| least | more) >= 0
        };
        let inexact = |at: usize| {
            assert_eq!((columns.exact[at], before[at]), (0, 1));
            fits(at)
        };
        retain_fitting(&mut set, &columns.exact, columns.of(2), &resources, &inexact);
        for (at, (node, member)) in nodes.iter().zip(&set).enumerate() {
            let enough = requests.iter().all(|(_, [allocatable, used], wanted)| {
                *wanted <= node[*allocatable].wrapping_sub(node[*used])
            });
            prop_assert_eq!(fits(at), node[PODS[1]] < node[PODS[0]] && enough);
            prop_assert_eq!(*member, before[at] & u8::from(fits(at)), "row {} {:?}", at, node);
        }
    }
}

#[test]
fn percentages_are_exact() {
    let check = |n: i64, allocatable: i64| {
        let found = i64::from(percent(n as i32, allocatable as i32));
        assert_eq!(found, n * 100 / allocatable, "{n} of {allocatable}");
    };
    for allocatable in 1..=300 {
        (0..=allocatable).for_each(|n| check(n, allocatable));
    }
    for allocatable in [1 << 20, (1 << 24) + 1, 123_456_789, (1 << 30) - 1, (1 << 30) - 100] {
        for percent in 0..=100 {
            let n = allocatable * percent / 100;
            (n - 3..n + 4)
                .filter(|n| (0..=allocatable).contains(n))
                .for_each(|n| check(n, allocatable));
        }
    }
}

#[test]
fn means_are_exact() {
    for other in 1..=1000 {
        let simd_formula = SimdFormula {
            kind: FormulaKind::LeastAllocated,
            weights: [1.0, other as f64],
            inverse: 1.0 / (1 + other) as f64,
        };
        let mean = Mean::new(&simd_formula);
        for (a, b) in (0..=100).flat_map(|a| [0, 1, 49, 50, 99, 100].map(|b| (a, b))) {
            assert_eq!(mean.of(a, b), (a + b * other) / (1 + other), "{a} {b} {other}");
        }
    }
}

#[test]
fn few_scores_are_left_to_the_caller() {
    let mut rng = loadmaster_stdx::Rng::new(5);
    let mut n_unsure = 0;
    for _ in 0..10_000 {
        let row = [1, 4_000].map(|scale| {
            let allocatable = (1 + rng.below(16) as i32) * 4_000 * scale;
            (allocatable, rng.below(allocatable as u64) as i32, 100 * scale)
        });
        n_unsure += balanced(row[0], row[1]).1;
    }
    assert!(n_unsure < 30, "{n_unsure}");
    // Nodes without pods, and nodes with equal fractions of both.
    assert_eq!(balanced((4_000, 0, 100), (16_000, 0, 1_000)), (74, 0));
    assert_eq!(balanced((4_000, 1_000, 100), (16_000, 4_000, 1_000)).1, 1);
}
