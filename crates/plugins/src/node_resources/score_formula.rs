//! The score formulas, on amounts of one node. Integers wrap where upstream's do, so overflows give the same scores.

use loadmaster_framework::MAX_NODE_SCORE;

use super::resource_amounts::ResourceAmount;
use crate::utilization_shape::Shape;

/// The scoring strategies of NodeResourcesFit, and the score of NodeResourcesBalancedAllocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScoreFormula {
    /// Prefers nodes with more unrequested resources.
    LeastAllocated,
    /// Prefers nodes with more requested resources (bin packing).
    MostAllocated,
    /// A piecewise linear function of the utilization in percent.
    RequestedToCapacityRatio(Shape),
    /// Prefers equal utilization of all resources.
    BalancedAllocation,
}

impl ScoreFormula {
    /// The score of a node; `amounts` must not contain any with 0 allocatable.
    pub fn score(&self, amounts: impl Iterator<Item = ResourceAmount> + Clone) -> i64 {
        match self {
            ScoreFormula::LeastAllocated => mean(amounts, least),
            ScoreFormula::MostAllocated => mean(amounts, most),
            ScoreFormula::BalancedAllocation => balanced(amounts),
            ScoreFormula::RequestedToCapacityRatio(shape) => {
                rounded_mean_of_positive(amounts, |amount| at_utilization(shape, amount))
            }
        }
    }
}

/// Percent that stays unrequested; 0 when more is requested than allocatable (upstream's `leastRequestedScore`).
fn least(amount: &ResourceAmount) -> i64 {
    let free = amount.allocatable.wrapping_sub(amount.used_with_pod());
    let over = amount.used_with_pod() > amount.allocatable;
    if over { 0 } else { free.wrapping_mul(MAX_NODE_SCORE).wrapping_div(amount.allocatable) }
}

/// Percent requested, at most 100: the defaults for pods without requests can exceed what is allocatable (upstream's
/// `mostRequestedScore`).
fn most(amount: &ResourceAmount) -> i64 {
    let used = amount.used_with_pod().min(amount.allocatable);
    used.wrapping_mul(MAX_NODE_SCORE).wrapping_div(amount.allocatable)
}

fn mean(amounts: impl Iterator<Item = ResourceAmount>, score: fn(&ResourceAmount) -> i64) -> i64 {
    let (mut sum, mut weights) = (0i64, 0i64);
    for amount in amounts {
        sum = sum.wrapping_add(score(&amount).wrapping_mul(amount.weight));
        weights = weights.wrapping_add(amount.weight);
    }
    if weights == 0 { 0 } else { sum.wrapping_div(weights) }
}

fn rounded_mean_of_positive(
    amounts: impl Iterator<Item = ResourceAmount>,
    score: impl Fn(&ResourceAmount) -> i64,
) -> i64 {
    let (mut sum, mut weights) = (0i64, 0i64);
    for amount in amounts {
        let score = score(&amount);
        if score > 0 {
            sum = sum.wrapping_add(score.wrapping_mul(amount.weight));
            weights = weights.wrapping_add(amount.weight);
        }
    }
    if weights == 0 { 0 } else { (sum as f64 / weights as f64).round() as i64 }
}

/// The score at the utilization with the pod; 100 % when more is requested than allocatable.
fn at_utilization(shape: &Shape, amount: &ResourceAmount) -> i64 {
    let used = amount.used_with_pod();
    let over = used > amount.allocatable;
    shape.at(if over { 100 } else { used.wrapping_mul(100).wrapping_div(amount.allocatable) })
}

/// How balanced the utilization of a node's resources would be: 100 when the pod makes an unbalanced node balanced, 50 when
/// it does the reverse, 75 when it changes nothing. `amounts` must not contain any with 0 allocatable.
fn balanced(amounts: impl Iterator<Item = ResourceAmount> + Clone) -> i64 {
    let with = evenness(amounts.clone().map(|a| fraction(a.used_with_pod(), a.allocatable)));
    let without = evenness(amounts.map(|a| fraction(a.used, a.allocatable)));
    let half = MAX_NODE_SCORE / 2;
    half + half.wrapping_add(with).wrapping_sub(without) / 2
}

fn fraction(used: i64, allocatable: i64) -> f64 {
    let fraction = used as f64 / allocatable as f64;
    if fraction > 1.0 { 1.0 } else { fraction }
}

/// 100 less the standard deviation in percent. Upstream's order of evaluation; for two fractions its shortcut, which
/// rounds differently.
fn evenness(fractions: impl Iterator<Item = f64> + Clone) -> i64 {
    let count = fractions.clone().count();
    let mut first_two = fractions.clone();
    let deviation = match (count, first_two.next(), first_two.next()) {
        (2, Some(one), Some(other)) => ((one - other) / 2.0).abs(),
        (3.., ..) => {
            let mean = fractions.clone().fold(0.0, |sum, f| sum + f) / count as f64;
            let squares = fractions.fold(0.0, |sum, f| sum + (f - mean) * (f - mean));
            (squares / count as f64).sqrt()
        }
        _ => 0.0,
    };
    ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::utilization_shape::ShapePoint;

    fn amounts(list: &[(i64, i64, i64, i64)]) -> Vec<ResourceAmount> {
        let amount = |&(weight, wanted, used, allocatable)| ResourceAmount {
            weight,
            allocatable,
            used,
            wanted,
        };
        list.iter().map(amount).filter(|amount| amount.allocatable != 0).collect()
    }

    fn ratio(points: &[(i64, i64)]) -> ScoreFormula {
        let points = points.iter().map(|&(utilization, score)| ShapePoint { utilization, score });
        ScoreFormula::RequestedToCapacityRatio(Shape(points.collect()))
    }

    #[track_caller]
    fn check(formula: &ScoreFormula, list: &[(i64, i64, i64, i64)], want: i64) {
        assert_eq!(formula.score(amounts(list).into_iter()), want, "{formula:?} {list:?}");
    }

    #[test]
    fn least_allocated() {
        let least = ScoreFormula::LeastAllocated;
        check(&least, &[], 0);
        check(&least, &[(1, 1, 0, 0)], 0);
        check(&least, &[(1, 1, 0, 4)], 75);
        check(&least, &[(1, 1, 0, 3), (1, 1, 0, 2)], 58);
        check(&least, &[(1, 5, 0, 4)], 0);
        check(&least, &[(1, 4, 0, 4)], 0);
        check(&least, &[(3, 1, 0, 4), (1, 3, 0, 4)], 62);
        check(&least, &[(1, 1, 1, 4), (9, 1, 0, 0)], 50);
        // 99.999… is 99.
        check(&least, &[(1, 1, 0, 1 << 44)], 99);
        // Above 92 petabytes upstream overflows.
        check(&least, &[(1, 0, 0, i64::MAX)], 0);
        check(&least, &[(1, 0, 0, -4)], 0);
        check(&least, &[(1, -9, 0, -4)], -125);
    }

    #[test]
    fn most_allocated() {
        let most = ScoreFormula::MostAllocated;
        check(&most, &[(1, 1, 0, 3), (1, 1, 0, 2)], 41);
        check(&most, &[(1, 5, 5, 4)], 100);
        check(&most, &[(2, 1, 0, 4), (1, 0, 3, 4)], 41);
        check(&most, &[], 0);
    }

    #[test]
    fn ratio_to_capacity() {
        let up = ratio(&[(0, 0), (100, 100)]);
        check(&up, &[(1, 1, 0, 3)], 33);
        check(&up, &[(1, 5, 0, 3)], 100);
        check(&up, &[(1, 1, 0, 2), (1, 1, 0, 3)], 42);
        // Resources with score 0 do not count.
        check(&up, &[(1, 1, 0, 2), (1, 0, 0, 3)], 50);
        check(&up, &[(1, 0, 0, 3)], 0);
        let bent = ratio(&[(10, 100), (50, 20), (90, 70)]);
        check(&bent, &[(1, 5, 0, 100)], 100);
        check(&bent, &[(1, 11, 0, 100)], 98);
        check(&bent, &[(1, 50, 0, 100)], 20);
        check(&bent, &[(1, 51, 0, 100)], 21);
        check(&bent, &[(1, 95, 0, 100)], 70);
    }

    #[track_caller]
    fn check_balanced(list: &[(i64, i64, i64, i64)], want: i64) {
        assert_eq!(balanced(amounts(list).into_iter()), want, "{list:?}");
    }

    #[test]
    fn balanced_allocation() {
        check_balanced(&[], 75);
        check_balanced(&[(1, 1, 0, 4)], 75);
        check_balanced(&[(1, 1, 0, 4), (1, 1, 0, 4)], 75);
        check_balanced(&[(1, 4, 0, 4), (1, 0, 0, 4)], 50);
        check_balanced(&[(1, 4, 0, 4), (1, 0, 4, 4)], 100);
        check_balanced(&[(1, 9, 0, 4), (1, 0, 4, 4)], 100);
        check_balanced(&[(1, 1, 0, 3), (1, 1, 0, 7)], 70);
        check_balanced(&[(1, 1, 0, 2), (1, 1, 0, 4), (1, 1, 0, 8)], 67);
        check_balanced(&[(1, 1, 0, 2), (1, 1, 0, 0), (1, 1, 0, 8)], 65);
    }
}
