use proptest::prelude::*;

use super::super::amounts::Amount;
use super::*;

/// Amounts at and around everything that changes how a row is computed.
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

/// Offered and used: related more often than not.
fn offered_and_used() -> impl Strategy<Value = (i64, i64)> {
    prop_oneof![
        (amount(), amount()),
        // One less or more than a whole percent.
        (1i64 << 40..1 << 45, 0..101i64, -1..2i64).prop_map(|(cap, percent, near)| {
            (cap, cap - (cap / 100 * percent + cap % 100 * percent / 100) + near)
        }),
    ]
}

/// Offered and used of each, and whether the row is in the set.
type TwoResources = ((i64, i64), (i64, i64), bool);

fn formula() -> impl Strategy<Value = Formula> {
    prop::sample::select(vec![Formula::Least, Formula::Most, Formula::Balanced])
}

proptest! {
    #[test]
    fn scores_equal_the_formula(
        formula in formula(),
        rows in prop::collection::vec((offered_and_used(), offered_and_used(), any::<bool>()), 0..200),
        wanted in (amount(), amount()),
        weights in (1..101i64, 1..101i64),
        weight in prop_oneof![0..200i64, Just(-3), Just(i64::MAX)],
    ) {
        let column = |value: fn(&TwoResources) -> i64| -> Vec<i64> { rows.iter().map(value).collect() };
        let columns = [column(|r| r.0.0), column(|r| r.0.1), column(|r| r.1.0), column(|r| r.1.1)];
        let set: Vec<u8> = rows.iter().map(|row| u8::from(row.2)).collect();
        let lanes = [
            Lane { allocatable: &columns[0], used: &columns[1], wanted: wanted.0 },
            Lane { allocatable: &columns[2], used: &columns[3], wanted: wanted.1 },
        ];
        let exact = |at: usize| {
            let amounts = [(&lanes[0], weights.0), (&lanes[1], weights.1)].map(|(lane, weight)| {
                Amount { weight, allocatable: lane.allocatable[at], used: lane.used[at], wanted: lane.wanted }
            });
            formula.score(amounts.into_iter().filter(|amount| amount.allocatable != 0))
        };
        let fused = Fused::new(&formula, [weights.0, weights.1].into_iter()).unwrap();
        let mut out = vec![7; rows.len()];
        add_scores(&fused, &lanes, &set, weight, &mut out, &exact);
        // The same as a processor without wide lanes does it.
        let mut narrow = vec![7; rows.len() / CHUNK * CHUNK];
        AddScores { fused: &fused, lanes: &lanes, set: &set, weight: weight.clamp(0, 200), out: &mut narrow, exact: &exact }
            .with_simd(pulp::Scalar::new());
        for at in (0..rows.len()).filter(|at| set[*at] != 0) {
            prop_assert_eq!(out[at], weight.wrapping_mul(exact(at)).wrapping_add(7), "row {} {:?}", at, rows[at]);
            if let Some(narrow) = narrow.get(at) {
                prop_assert_eq!(*narrow, weight.clamp(0, 200).wrapping_mul(exact(at)).wrapping_add(7));
            }
            if let Some(score) = fused.score(&lanes, at) {
                prop_assert_eq!(score, exact(at), "row {} {:?}", at, rows[at]);
            }
        }
    }

    #[test]
    fn the_filter_equals_a_comparison(
        rows in prop::collection::vec((amount(), 0..300i64, amount(), amount(), any::<bool>()), 0..200),
        wanted in prop::collection::vec(1..i64::MAX, 0..3),
    ) {
        let column = |value: fn(&(i64, i64, i64, i64, bool)) -> i64| -> Vec<i64> { rows.iter().map(value).collect() };
        let columns = [column(|r| r.0), column(|r| r.1), column(|r| r.2), column(|r| r.3)];
        let lane = |wanted: &i64| Lane { allocatable: &columns[2], used: &columns[3], wanted: *wanted };
        let lanes: Vec<Lane<'_>> = wanted.iter().map(lane).collect();
        let mut set: Vec<u8> = rows.iter().map(|row| u8::from(row.4)).collect();
        retain_fitting(&mut set, [&columns[0], &columns[1]], &lanes);
        for (member, (allowed, there, allocatable, used, before)) in set.iter().zip(&rows) {
            let room = there < allowed && wanted.iter().all(|wanted| *wanted <= allocatable.wrapping_sub(*used));
            prop_assert_eq!(*member, u8::from(*before && room));
        }
    }
}

#[test]
fn rows_that_are_odd() {
    let odd = |allocatable: i64, used: i64, wanted: i64| {
        Plain::new([(allocatable, used, wanted), (1, 0, 0)]).odd != 0
    };
    assert!(!odd(1, 0, 0));
    assert!(!odd(1 << 45, (1 << 52) - 2, 1));
    assert!(odd((1 << 45) + 1, 0, 0));
    assert!(odd(0, 0, 0));
    assert!(odd(-1, 0, 0));
    assert!(odd(1, (1 << 52) - 1, 1));
    assert!(odd(1, -1, 1));
    assert!(odd(1, 1, -2));
}

#[test]
fn weights_that_have_no_kernel() {
    let has =
        |formula: Formula, weights: &[i64]| Fused::new(&formula, weights.iter().copied()).is_some();
    assert!(has(Formula::Least, &[1, 100]));
    assert!(!has(Formula::Least, &[1]));
    assert!(!has(Formula::Least, &[1, 1, 1]));
    assert!(!has(Formula::Most, &[0, 1]));
    assert!(!has(Formula::Most, &[1, 1001]));
}

#[test]
fn means_are_exact() {
    for other in 1..=WEIGHT_MAX {
        let fused = Fused::new(&Formula::Least, [1, other].into_iter()).unwrap();
        for (a, b) in (0..=100).flat_map(|a| [0, 1, 49, 50, 99, 100].map(|b| (a, b))) {
            let found = mean(&fused, [a as f64, b as f64], floor);
            assert_eq!(found, ((a + b * other) / (1 + other)) as f64, "{a} {b} {other}");
        }
    }
}
