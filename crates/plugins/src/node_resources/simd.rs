//! Scores and filters with SIMD: plain loops over slices that the compiler vectorizes, for the best instruction set of the processor.
//!
//! [`columns`] has those for whole columns of 32-bit amounts. This file has those for any amounts, of chunks of rows.
//! Scores are computed in `f64`, because no instruction set divides vectors of integers. They equal those of
//! [`super::score_formula`] for rows in *exact range*: both resources allocatable, no negative amount, allocatable amounts up
//! to 2^45, requested amounts below 2^52. Then all integers are exact as floats, and a quotient below 2^7 cannot round up to
//! the next integer, from which it is at least 1/allocatable away. Other rows are computed per row, in integers.

pub(super) mod columns;

use loadmaster_framework::NodeRow;
use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;

use super::resource_amounts::{RowAmounts, WantedResource, of_node};
use super::score_formula::ScoreFormula;

/// Number of rows that are computed before those out of the exact range are replaced. Few with debug assertions, so that the small clusters
/// of tests and of the twin have many chunks.
const CHUNK: usize = if cfg!(debug_assertions) { 4 } else { 64 };

/// A score formula over two resources in its SIMD form.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimdFormula {
    kind: FormulaKind,
    weights: [f64; 2],
    /// One over the sum of the weights.
    inverse: f64,
}

/// The score formulas that have a SIMD form.
#[derive(Clone, Copy, Debug)]
enum FormulaKind {
    LeastAllocated,
    MostAllocated,
    BalancedAllocation,
}

/// With weights up to this the weighted mean is exact; the configuration allows 100.
const WEIGHT_MAX: i64 = 1000;

impl SimdFormula {
    /// `None` unless the formula has a SIMD form and there are two resources with weights up to [`WEIGHT_MAX`].
    pub fn new(formula: &ScoreFormula, weights: impl Iterator<Item = i64>) -> Option<SimdFormula> {
        let kind = match formula {
            ScoreFormula::LeastAllocated => FormulaKind::LeastAllocated,
            ScoreFormula::MostAllocated => FormulaKind::MostAllocated,
            ScoreFormula::BalancedAllocation => FormulaKind::BalancedAllocation,
            ScoreFormula::RequestedToCapacityRatio(_) => return None,
        };
        let weights: SmallVec<[i64; 4]> = weights.collect();
        let [one, other] = *weights else { return None };
        let fits = (1..=WEIGHT_MAX).contains(&one) && (1..=WEIGHT_MAX).contains(&other);
        let inverse = 1.0 / (one + other) as f64;
        fits.then_some(SimdFormula { kind, weights: [one as f64, other as f64], inverse })
    }

    /// The score of one row, given the allocatable, the used and the wanted amount of each resource; `None` when the row is out of the exact range.
    /// Always inlined: the amounts would be passed through memory.
    #[inline(always)]
    pub fn score(&self, resources: [(i64, i64, i64); 2]) -> Option<i64> {
        let row = FloatRow::new(resources);
        let score = match self.kind {
            FormulaKind::LeastAllocated => least(self, &row, Baseline),
            FormulaKind::MostAllocated => most(self, &row, Baseline),
            FormulaKind::BalancedAllocation => balanced(&row, Baseline),
        };
        (row.out_of_range == 0).then(|| to_i64(score))
    }
}

/// Scores of any two resources.
#[derive(Clone, Copy)]
pub(super) struct RowScores<'a> {
    pub simd_formula: &'a SimdFormula,
    pub resources: [WantedResource<RowAmounts<'a>>; 2],
    /// The score of a row whose amounts are out of the exact range.
    pub exact: &'a dyn Fn(usize) -> i64,
}

/// With fewer rows than this, computing a chunk takes longer than computing row by row.
const CHUNK_MIN: usize = CHUNK / 4;

impl RowScores<'_> {
    /// Adds `weight` times the score to the rows of `set`, which begins with the row `first`.
    pub fn add(&self, first: usize, set: &[u8], weight: i64, out: &mut [i64]) {
        let chunks = set.chunks(CHUNK).zip(out.chunks_mut(CHUNK));
        for (nth, (set, out)) in chunks.enumerate() {
            let first = first + nth * CHUNK;
            let n_members: usize = set.iter().map(|member| usize::from(*member)).sum();
            if n_members >= CHUNK_MIN {
                self.add_chunk(first..first + set.len(), |at| set[at] != 0, weight, out);
                continue;
            }
            for (at, sum) in out.iter_mut().enumerate().filter(|(at, _)| set[*at] != 0) {
                *sum = sum.wrapping_add(weight.wrapping_mul(self.of_row(first + at)));
            }
        }
    }

    /// Adds `weight` times the score of each listed row to the element of `out` at the same place.
    pub fn add_listed(&self, rows: &[NodeRow], weight: i64, out: &mut [i64]) {
        for (rows, out) in rows.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
            let at_rows = rows.iter().map(|row| row.index());
            if rows.len() >= CHUNK_MIN {
                self.add_chunk(at_rows, |_| true, weight, out);
                continue;
            }
            for (row, sum) in at_rows.zip(out) {
                *sum = sum.wrapping_add(weight.wrapping_mul(self.of_row(row)));
            }
        }
    }

    fn of_row(&self, row: usize) -> i64 {
        let amounts = self.resources.map(|resource| resource.of_row(row));
        self.simd_formula.score(amounts).unwrap_or_else(|| (self.exact)(row))
    }

    /// At most [`CHUNK`] rows, of which only members get a score.
    fn add_chunk(
        &self,
        rows: impl Iterator<Item = usize> + Clone,
        is_member: impl Fn(usize) -> bool,
        weight: i64,
        out: &mut [i64],
    ) {
        // What follows the amounts of the last row belongs to no row.
        let mut amounts = [[[1i64; CHUNK]; 2]; 2];
        write_amounts(rows.clone(), self.resources.map(|resource| resource.amounts), &mut amounts);
        let mut scores = [0i64; CHUNK];
        let out_of_range = Arch::new().dispatch(ScoreChunk {
            simd_formula: self.simd_formula,
            amounts: &amounts,
            wanted: self.resources.map(|resource| resource.wanted),
            scores: &mut scores,
        });
        if out_of_range != 0 {
            for (at, row) in rows.enumerate().filter(|(at, _)| is_member(*at)) {
                scores[at] = self.of_row(row);
            }
        }
        for (at, (sum, score)) in out.iter_mut().zip(&scores).enumerate() {
            let score = if is_member(at) { *score } else { 0 };
            *sum = sum.wrapping_add(weight.wrapping_mul(score));
        }
    }
}

/// The allocatable and the used amounts of two resources of the rows of a chunk, side by side.
type ChunkAmounts = [[[i64; CHUNK]; 2]; 2];

/// Writes the allocatable and the used amounts of two resources of these rows.
fn write_amounts(
    rows: impl Iterator<Item = usize>,
    resources: [RowAmounts<'_>; 2],
    [[one, one_used], [other, other_used]]: &mut ChunkAmounts,
) {
    let to = one.iter_mut().zip(one_used).zip(other.iter_mut().zip(other_used));
    let rows = rows.zip(to);
    match resources {
        // Both are in the same cache line, which is read once.
        [RowAmounts::OfNodes(nodes, one), RowAmounts::OfNodes(_, other)] => {
            for (at, ((to, used_to), (other_to, other_used_to))) in rows {
                let node = &nodes[at];
                (*to, *used_to) = of_node(node, one);
                (*other_to, *other_used_to) = of_node(node, other);
            }
        }
        [one, other] => {
            for (at, ((to, used_to), (other_to, other_used_to))) in rows {
                (*to, *used_to) = one.get(at);
                (*other_to, *other_used_to) = other.get(at);
            }
        }
    }
}

/// Writes the scores of a whole chunk: loops of constant length need no bounds checks. The result is not 0 when a row is out of the exact
/// range; the scores of such rows mean nothing.
struct ScoreChunk<'a> {
    simd_formula: &'a SimdFormula,
    amounts: &'a ChunkAmounts,
    wanted: [i64; 2],
    scores: &'a mut [i64; CHUNK],
}

impl WithSimd for ScoreChunk<'_> {
    type Output = u64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> u64 {
        if S::IS_SCALAR { self.by_formula(Baseline) } else { self.by_formula(Fused) }
    }
}

impl ScoreChunk<'_> {
    #[inline(always)]
    fn by_formula(self, operations: impl Operations) -> u64 {
        match self.simd_formula.kind {
            FormulaKind::LeastAllocated => {
                self.run(|simd_formula, row| least(simd_formula, row, operations))
            }
            FormulaKind::MostAllocated => {
                self.run(|simd_formula, row| most(simd_formula, row, operations))
            }
            FormulaKind::BalancedAllocation => self.run(|_, row| balanced(row, operations)),
        }
    }

    #[inline(always)]
    fn run(self, score: impl Fn(&SimdFormula, &FloatRow) -> f64) -> u64 {
        let ScoreChunk { simd_formula, amounts: [[a, b], [c, d]], wanted, scores } = self;
        let mut out_of_range = 0;
        for at in 0..CHUNK {
            let row = FloatRow::new([(a[at], b[at], wanted[0]), (c[at], d[at], wanted[1])]);
            out_of_range |= row.out_of_range;
            scores[at] = to_i64(score(simd_formula, &row));
        }
        out_of_range
    }
}

/// The amounts of two resources of one row as floats; meaningless when the row is out of the exact range.
struct FloatRow {
    allocatable: [f64; 2],
    used: [f64; 2],
    used_with_pod: [f64; 2],
    /// Not 0 when the row is out of the exact range.
    out_of_range: u64,
}

impl FloatRow {
    /// From allocatable, used and wanted of each resource.
    #[inline(always)]
    fn new(amounts: [(i64, i64, i64); 2]) -> FloatRow {
        let with = amounts.map(|(_, used, wanted)| used.wrapping_add(wanted));
        let [(one, used, _), (other, also_used, _)] = amounts;
        let too_big = (one.wrapping_sub(1) | other.wrapping_sub(1)) as u64 >> 45;
        let too_full = (used | also_used | with[0] | with[1]) as u64 >> 52;
        FloatRow {
            allocatable: amounts.map(|(allocatable, ..)| to_f64(allocatable)),
            used: amounts.map(|(_, used, _)| to_f64(used)),
            used_with_pod: with.map(to_f64),
            out_of_range: too_big | too_full,
        }
    }
}

#[inline(always)]
fn least(simd_formula: &SimdFormula, row: &FloatRow, operations: impl Operations) -> f64 {
    let part = |i: usize| {
        let free = row.allocatable[i] - row.used_with_pod[i];
        let free = if free > 0.0 { free } else { 0.0 };
        operations.floor(free * 100.0 / row.allocatable[i])
    };
    mean(simd_formula, [part(0), part(1)], operations)
}

#[inline(always)]
fn most(simd_formula: &SimdFormula, row: &FloatRow, operations: impl Operations) -> f64 {
    let part = |i: usize| {
        let (used, allocatable) = (row.used_with_pod[i], row.allocatable[i]);
        let used = if used < allocatable { used } else { allocatable };
        operations.floor(used * 100.0 / allocatable)
    };
    mean(simd_formula, [part(0), part(1)], operations)
}

#[inline(always)]
fn mean(simd_formula: &SimdFormula, scores: [f64; 2], operations: impl Operations) -> f64 {
    let sum = scores[0] * simd_formula.weights[0] + scores[1] * simd_formula.weights[1];
    // Adding a quarter cannot reach the next integer, and compensates the error of the inverse for exact quotients.
    operations.floor((sum + 0.25) * simd_formula.inverse)
}

#[inline(always)]
fn balanced(row: &FloatRow, operations: impl Operations) -> f64 {
    let inverse = row.allocatable.map(|allocatable| 1.0 / allocatable);
    let evenness = |used: &[f64; 2]| {
        let fraction = |i: usize| {
            let fraction = operations.quotient(used[i], row.allocatable[i], inverse[i]);
            if fraction < 1.0 { fraction } else { 1.0 }
        };
        let deviation = ((fraction(0) - fraction(1)) / 2.0).abs();
        operations.floor((1.0 - deviation) * 100.0)
    };
    let change = evenness(&row.used_with_pod) - evenness(&row.used);
    50.0 + operations.floor((50.0 + change) * 0.5)
}

/// What takes another form with other instruction sets. The results are the same.
trait Operations: Copy {
    /// The largest integer up to `x`, for `x` in `0..2^51`.
    fn floor(self, x: f64) -> f64;

    /// `n / divisor`, rounded to the nearest, for integers in exact range; `inverse` is `1.0 / divisor`.
    fn quotient(self, n: f64, divisor: f64, inverse: f64) -> f64;
}

/// For all processors. On older ones `f64::floor` is a function call.
#[derive(Clone, Copy)]
struct Baseline;

/// For instruction sets with wide vectors, which also round and add a product in one instruction each.
#[derive(Clone, Copy)]
struct Fused;

impl Operations for Baseline {
    #[inline(always)]
    fn floor(self, x: f64) -> f64 {
        let near = (x + INTEGERS) - INTEGERS;
        near - if near > x { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn quotient(self, n: f64, divisor: f64, _: f64) -> f64 {
        n / divisor
    }
}

impl Operations for Fused {
    #[inline(always)]
    fn floor(self, x: f64) -> f64 {
        x.floor()
    }

    /// Without a division: the first approximation is at most two units in the last place
    /// away, and the correction leaves an error of 2^-51 units. Rounding is decided further away: with a divisor up to 2^45, a quotient that
    /// is no float is at least 2^-46 units from the middle between two of them.
    #[inline(always)]
    fn quotient(self, n: f64, divisor: f64, inverse: f64) -> f64 {
        let near = n * inverse;
        let rest = (-near).mul_add(divisor, n);
        rest.mul_add(inverse, near)
    }
}

/// 2^52: from here to 2^53 the floats are exactly the integers, and their low 52 bits are the offset.
const INTEGERS: f64 = 4_503_599_627_370_496.0;

/// An integer in `0..2^52` as a float, without the conversion instruction that older processors lack.
#[inline(always)]
fn to_f64(n: i64) -> f64 {
    f64::from_bits(n as u64 | INTEGERS.to_bits()) - INTEGERS
}

/// Converts a float that is an integer in `0..2^52`.
#[inline(always)]
fn to_i64(x: f64) -> i64 {
    ((x + INTEGERS).to_bits() ^ INTEGERS.to_bits()) as i64
}

/// Removes the listed rows whose headroom is negative.
pub(super) fn retain_listed(rows: &mut Vec<NodeRow>, headroom: impl Fn(usize) -> i64) {
    // Without a branch that depends on the row.
    let mut n_left = 0;
    for at in 0..rows.len() {
        let row = rows[at];
        rows[n_left] = row;
        n_left += usize::from(headroom(row.index()) >= 0);
    }
    rows.truncate(n_left);
}

/// Negative when `wanted` exceeds `allocatable - used`, which wraps as upstream's does; `wanted` is above 0. Only the sign of
/// the result is meaningful. There is no comparison, so that several amounts are compared at once: a negative difference is insufficient for any request, and from 0 on the second difference cannot overflow.
#[inline(always)]
pub(super) fn headroom(allocatable: i64, used: i64, wanted: i64) -> i64 {
    let free = allocatable.wrapping_sub(used);
    free | free.wrapping_sub(wanted)
}

/// Negative when the node cannot take one more pod. Only the sign of the result is meaningful.
#[inline(always)]
pub(super) fn pods_headroom(allowed: i64, there: i64) -> i64 {
    allowed | allowed.wrapping_sub(there + 1)
}

#[cfg(test)]
mod tests;
