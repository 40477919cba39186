//! Filter and scores over whole columns with SIMD: plain loops over slices that the compiler vectorizes, for the best
//! instruction set of the processor.
//!
//! Scores are computed in `f64`, because no instruction set divides vectors of integers. They equal those of
//! [`super::score_formula`] for rows in *exact range*: both resources allocatable, no negative amount, allocatable amounts up
//! to 2^45, requested amounts below 2^52. Then all integers are exact as floats, and a quotient below 2^7 cannot round up to
//! the next integer, from which it is at least 1/allocatable away. Other rows are computed per row, in integers.

use loadmaster_framework::NodeRow;
use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;

use super::resource_amounts::{RowAmounts, WantedResource, of_node};
use super::score_formula::ScoreFormula;

/// Number of rows that are computed before those out of the exact range are replaced.
const CHUNK: usize = 64;

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

/// A score times a plugin weight up to this is exact.
const PLUGIN_WEIGHT_MAX: i64 = 1 << 40;

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

/// Adds `weight` times the score to the rows of `set`, and arbitrary values to other rows. Calls `exact` for rows out of the
/// exact range.
pub(super) fn add_scores(
    simd_formula: &SimdFormula,
    resources: &[WantedResource<[&[i64]; 2]>; 2],
    set: &[u8],
    weight: i64,
    out: &mut [i64],
    exact: &dyn Fn(usize) -> i64,
) {
    let n_chunked =
        if (0..=PLUGIN_WEIGHT_MAX).contains(&weight) { out.len() / CHUNK * CHUNK } else { 0 };
    let (chunked, rest) = out.split_at_mut(n_chunked);
    Arch::new().dispatch(AddScores { simd_formula, resources, set, weight, out: chunked, exact });
    for (at, sum) in (n_chunked..).zip(rest).filter(|(at, _)| set[*at] != 0) {
        let score = simd_formula
            .score(resources.map(|resource| resource.of_row(at)))
            .unwrap_or_else(|| exact(at));
        *sum = sum.wrapping_add(weight.wrapping_mul(score));
    }
}

/// With fewer rows than this, computing a chunk takes longer than computing row by row.
const LISTED_MIN: usize = 16;

/// Adds `weight` times the score of each listed row to the element of `out` at the same place. Calls `exact` for rows out of the exact
/// range.
pub(super) fn add_listed_scores(
    simd_formula: &SimdFormula,
    resources: &[WantedResource<RowAmounts<'_>>; 2],
    rows: &[NodeRow],
    weight: i64,
    out: &mut [i64],
    exact: &dyn Fn(usize) -> i64,
) {
    // The amounts of the rows of a chunk side by side; what follows them belongs to no row of it.
    let mut amounts = [[[1i64; CHUNK]; 2]; 2];
    for (rows, out) in rows.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        if rows.len() < LISTED_MIN {
            for (row, sum) in rows.iter().zip(out) {
                let at = row.index();
                let amounts = resources.map(|resource| resource.of_row(at));
                let score = simd_formula.score(amounts).unwrap_or_else(|| exact(at));
                *sum = sum.wrapping_add(weight.wrapping_mul(score));
            }
            continue;
        }
        let mut set = [0u8; CHUNK];
        let mut sums = [0i64; CHUNK];
        set[..rows.len()].fill(1);
        write_amounts(rows, resources.map(|resource| resource.amounts), &mut amounts);
        let [one, other] = resources;
        let [first, second] = &amounts;
        let slices = [(first, one), (second, other)].map(|([allocatable, used], resource)| {
            WantedResource { amounts: [&allocatable[..], &used[..]], wanted: resource.wanted }
        });
        let exact = |at: usize| exact(rows[at].index());
        add_scores(simd_formula, &slices, &set, weight, &mut sums, &exact);
        for (sum, more) in out.iter_mut().zip(&sums) {
            *sum = sum.wrapping_add(*more);
        }
    }
}

/// Writes the allocatable and the used amounts of two resources of these rows.
fn write_amounts(
    rows: &[NodeRow],
    resources: [RowAmounts<'_>; 2],
    [[one, one_used], [other, other_used]]: &mut [[[i64; CHUNK]; 2]; 2],
) {
    let to = one.iter_mut().zip(one_used).zip(other.iter_mut().zip(other_used));
    let rows = rows.iter().map(|row| row.index()).zip(to);
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

/// For whole chunks only: loops of constant length need no bounds checks.
struct AddScores<'a> {
    simd_formula: &'a SimdFormula,
    resources: &'a [WantedResource<[&'a [i64]; 2]>; 2],
    set: &'a [u8],
    weight: i64,
    out: &'a mut [i64],
    exact: &'a dyn Fn(usize) -> i64,
}

impl WithSimd for AddScores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        if S::IS_SCALAR { self.by_formula(Baseline) } else { self.by_formula(Fused) }
    }
}

impl AddScores<'_> {
    #[inline(always)]
    fn by_formula(self, operations: impl Operations) {
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
    fn run(self, score: impl Fn(&SimdFormula, &FloatRow) -> f64) {
        let AddScores { simd_formula, resources, set, weight, out, exact } = self;
        let factor = weight as f64;
        let [one, other] = resources;
        let columns = [one.amounts, other.amounts]
            .map(|pair| pair.map(|column| column.as_chunks::<CHUNK>().0));
        for (chunk, out) in out.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            let [[a, b], [c, d]] = columns.map(|pair| pair.map(|column| &column[chunk]));
            let mut scores = [0i64; CHUNK];
            let mut out_of_range = 0;
            for at in 0..CHUNK {
                let row = FloatRow::new([(a[at], b[at], one.wanted), (c[at], d[at], other.wanted)]);
                out_of_range |= row.out_of_range;
                scores[at] = to_i64(factor * score(simd_formula, &row));
            }
            if out_of_range != 0 {
                for (in_chunk, scaled) in scores.iter_mut().enumerate() {
                    let at = chunk * CHUNK + in_chunk;
                    if set[at] != 0 {
                        let score =
                            simd_formula.score(resources.map(|resource| resource.of_row(at)));
                        let score = score.unwrap_or_else(|| exact(at));
                        *scaled = weight.wrapping_mul(score);
                    }
                }
            }
            for (sum, scaled) in out.iter_mut().zip(&scores) {
                *sum = sum.wrapping_add(*scaled);
            }
        }
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

/// Removes from `set` the rows with too many pods (`pods` are the allocatable and the current number of pods), or with less
/// of a resource than the pod requests.
pub(super) fn retain_fitting(
    set: &mut [u8],
    pods: [&[i64]; 2],
    resources: &[WantedResource<[&[i64]; 2]>],
) {
    Arch::new().dispatch(RetainFitting { set, pods, resources });
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

struct RetainFitting<'a> {
    set: &'a mut [u8],
    pods: [&'a [i64]; 2],
    resources: &'a [WantedResource<[&'a [i64]; 2]>],
}

impl WithSimd for RetainFitting<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (chunk, set) in self.set.chunks_mut(CHUNK).enumerate() {
            let rows = chunk * CHUNK..chunk * CHUNK + set.len();
            let mut short = [0i64; CHUNK];
            let [allowed, there] = self.pods.map(|column| &column[rows.clone()]);
            for ((short, allowed), there) in short.iter_mut().zip(allowed).zip(there) {
                *short = pods_headroom(*allowed, *there);
            }
            for resource in self.resources {
                let [allocatable, used] = resource.amounts.map(|column| &column[rows.clone()]);
                for ((short, allocatable), used) in short.iter_mut().zip(allocatable).zip(used) {
                    *short |= headroom(*allocatable, *used, resource.wanted);
                }
            }
            for (member, short) in set.iter_mut().zip(&short) {
                *member &= !(short >> 63) as u8;
            }
        }
    }
}

/// Negative when `wanted` exceeds `allocatable - used`, which wraps as upstream's does; `wanted` is above 0. Only the sign of
/// the result is meaningful. There is no comparison, because baseline processors cannot compare vectors of 64-bit integers:
/// a negative difference is insufficient for any request, and from 0 on the second difference cannot overflow.
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
