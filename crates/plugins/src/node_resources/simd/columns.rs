//! Filter and scores over the 32-bit columns of the node table ([`AmountColumns`](loadmaster_framework::node_amounts::AmountColumns)): a
//! vector has twice as many rows as with 64-bit amounts, and half the bytes are read.
//!
//! Percentages are rounded from a quotient in `f32` and corrected by their remainder, which is exact. The evenness of
//! [`FormulaKind::BalancedAllocation`] is a sum of rounded quotients in `f64`; where the one in `f32` is near an integer, or amounts are not
//! exactly in the columns, the score of the row is left to the caller.

use pulp::{Arch, Simd, WithSimd};

use super::super::resource_amounts::ColumnRequest;
use super::{CHUNK, FormulaKind, SimdFormula};

/// Removes from `set` the rows with too many pods (`pods` are the allocatable and the current number of pods), or with less
/// of a resource than the pod requests, which is above 0. Calls `fits` for members of which `exact` is 0.
pub(in super::super) fn retain_fitting(
    set: &mut [u8],
    exact: &[u8],
    pods: [&[i32]; 2],
    resources: &[ColumnRequest<'_>],
    fits: &dyn Fn(usize) -> bool,
) {
    Arch::new().dispatch(RetainFitting { set, exact, pods, resources, fits });
}

struct RetainFitting<'a> {
    set: &'a mut [u8],
    exact: &'a [u8],
    pods: [&'a [i32]; 2],
    resources: &'a [ColumnRequest<'a>],
    fits: &'a dyn Fn(usize) -> bool,
}

impl WithSimd for RetainFitting<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (chunk, set) in self.set.chunks_mut(CHUNK).enumerate() {
            let first = chunk * CHUNK;
            let rows = first..first + set.len();
            let mut short = [0i32; CHUNK];
            let [allowed, there] = self.pods.map(|column| &column[rows.clone()]);
            for ((short, allowed), there) in short.iter_mut().zip(allowed).zip(there) {
                *short = allowed - there - 1;
            }
            for ColumnRequest { amounts, wanted } in self.resources {
                let [allocatable, used] = amounts.map(|column| &column[rows.clone()]);
                for ((short, allocatable), used) in short.iter_mut().zip(allocatable).zip(used) {
                    let free = allocatable - used;
                    *short |= free | free.wrapping_sub(*wanted);
                }
            }
            let mut unknown = 0;
            for ((member, exact), short) in set.iter_mut().zip(&self.exact[rows]).zip(&short) {
                *member &= !(short >> 31) as u8 | (exact ^ 1);
                unknown |= *member & (exact ^ 1);
            }
            if unknown != 0 {
                for (at, member) in (first..).zip(set) {
                    if *member != 0 && self.exact[at] == 0 {
                        *member = u8::from((self.fits)(at));
                    }
                }
            }
        }
    }
}

/// Scores of rows whose amounts are in columns.
#[derive(Clone, Copy)]
pub(in super::super) struct ColumnScores<'a> {
    pub simd_formula: &'a SimdFormula,
    pub resources: [ColumnRequest<'a>; 2],
    /// 1 for rows whose amounts are exactly in the columns.
    pub exact: &'a [u8],
}

/// Adds the weighted scores of the members of a set to sums; from the position of its first row, the set, and the sums.
type OtherScores<'a> = dyn Fn(usize, &[u8], &mut [i64]) + 'a;

/// A score times a plugin weight up to this is no overflow.
const PLUGIN_WEIGHT_MAX: i64 = 1 << 20;

impl ColumnScores<'_> {
    /// Adds `weight` times the score to the rows of `set`, and arbitrary values to other rows. Calls `others` for each chunk that has members
    /// whose scores do not follow from the columns, with the set of these. Returns false, without adding anything, for a weight that is out of range.
    #[must_use]
    pub fn add(&self, set: &[u8], weight: i64, out: &mut [i64], others: &OtherScores<'_>) -> bool {
        let in_range = (0..=PLUGIN_WEIGHT_MAX).contains(&weight);
        if in_range {
            let weight = weight as i32;
            Arch::new().dispatch(AddScores { scores: self, set, weight, out, others });
        }
        in_range
    }
}

struct AddScores<'a> {
    scores: &'a ColumnScores<'a>,
    set: &'a [u8],
    weight: i32,
    out: &'a mut [i64],
    others: &'a OtherScores<'a>,
}

impl WithSimd for AddScores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mean = Mean::new(self.scores.simd_formula);
        match self.scores.simd_formula.kind {
            FormulaKind::LeastAllocated => {
                self.run(|one, other| (mean.of(least(one), least(other)), 0))
            }
            FormulaKind::MostAllocated => {
                self.run(|one, other| (mean.of(most(one), most(other)), 0))
            }
            FormulaKind::BalancedAllocation => self.run(balanced),
        }
    }
}

impl<'a> AddScores<'a> {
    /// `score` returns the score of a row, and 1 where it is not certain.
    #[inline(always)]
    fn run(self, score: impl Fn(Amounts, Amounts) -> (i32, i32)) {
        let AddScores { scores: ColumnScores { resources, exact, .. }, set, weight, out, others } =
            self;
        let [one, other] = resources;
        let n_whole = out.len() / CHUNK;
        let chunks_of = |column: &'a [i32]| &column.as_chunks::<CHUNK>().0[..n_whole];
        let [a, b] = one.amounts.map(chunks_of);
        let [c, d] = other.amounts.map(chunks_of);
        let (chunks, rest) = out.as_chunks_mut::<CHUNK>();
        let sets = set.as_chunks::<CHUNK>().0[..n_whole].iter();
        let sets = sets.zip(&exact.as_chunks::<CHUNK>().0[..n_whole]);
        for ((chunk, out), (set, exact)) in chunks.iter_mut().enumerate().zip(sets) {
            let (a, b, c, d) = (&a[chunk], &b[chunk], &c[chunk], &d[chunk]);
            let mut sums = [0i32; CHUNK];
            let mut unsure = [0i32; CHUNK];
            for at in 0..CHUNK {
                (sums[at], unsure[at]) =
                    score((a[at], b[at], one.wanted), (c[at], d[at], other.wanted));
            }
            let mut left = [0u8; CHUNK];
            let mut any = 0;
            for at in 0..CHUNK {
                left[at] = (unsure[at] as u8 | (exact[at] ^ 1)) & set[at];
                any |= left[at];
            }
            if any == 0 {
                for (out, sum) in out.iter_mut().zip(&sums) {
                    *out = out.wrapping_add(i64::from(sum.wrapping_mul(weight)));
                }
                continue;
            }
            for ((out, sum), left) in out.iter_mut().zip(&sums).zip(&left) {
                let sure = if *left == 0 { *sum } else { 0 };
                *out = out.wrapping_add(i64::from(sure.wrapping_mul(weight)));
            }
            others(chunk * CHUNK, &left, out);
        }
        if !rest.is_empty() {
            others(n_whole * CHUNK, &set[n_whole * CHUNK..], rest);
        }
    }
}

/// Allocatable, used and wanted; all in `0..2^30`, and allocatable is not 0, or the score means nothing.
type Amounts = (i32, i32, i32);

/// 1.5 * 2^23: floats from 2^23 to 2^24 are exactly the integers.
const INTEGERS: f32 = 12_582_912.0;

/// The nearest integer, for `x` from -1 to 1000; any integer for others.
#[inline(always)]
fn round(x: f32) -> i32 {
    ((x + INTEGERS).to_bits() as i32).wrapping_sub(INTEGERS.to_bits() as i32)
}

#[inline(always)]
fn least((allocatable, used, wanted): Amounts) -> i32 {
    let free = allocatable.wrapping_sub(used.wrapping_add(wanted));
    percent(if free > 0 { free } else { 0 }, allocatable)
}

#[inline(always)]
fn most((allocatable, used, wanted): Amounts) -> i32 {
    let used = used.wrapping_add(wanted);
    percent(if used < allocatable { used } else { allocatable }, allocatable)
}

/// `n * 100 / allocatable`, rounded down, for `n` up to `allocatable`.
///
/// The quotient in `f32` is at most 3e-5 away, so that the nearest integer is the result or 1 more; the remainder, which is in
/// `-allocatable..allocatable` and right in spite of products that wrap, tells which.
#[inline(always)]
fn percent(n: i32, allocatable: i32) -> i32 {
    let near = round(n as f32 * 100.0 / allocatable as f32);
    let rest = n.wrapping_mul(100).wrapping_sub(near.wrapping_mul(allocatable));
    near.wrapping_add(rest >> 31)
}

/// The weighted mean of the scores of two resources.
struct Mean {
    weights: [f32; 2],
    inverse: f32,
}

impl Mean {
    #[inline(always)]
    fn new(simd_formula: &SimdFormula) -> Mean {
        let SimdFormula { weights, inverse, .. } = simd_formula;
        Mean { weights: weights.map(|weight| weight as f32), inverse: *inverse as f32 }
    }

    /// Rounded down. Sums are exact. Adding a quarter cannot reach the next integer: with weights up to 1,000 the quotient is at least
    /// 1e-4 away from one, and at most 2e-5 wrong.
    #[inline(always)]
    fn of(&self, one: i32, other: i32) -> i32 {
        let sum = one as f32 * self.weights[0] + other as f32 * self.weights[1] + 0.25;
        round(sum * self.inverse - 0.5)
    }
}

/// The score, and 1 if one of its two evennesses is so near an integer that it may be rounded to another one.
#[inline(always)]
fn balanced(one: Amounts, other: Amounts) -> (i32, i32) {
    let inverse = [1.0 / one.0 as f32, 1.0 / other.0 as f32];
    // The float of the rounded evenness, in the range where floats are integers, and how far it is from the middle between two integers.
    let evenness = |used: [i32; 2]| {
        let fraction = |i: usize| {
            let fraction = used[i] as f32 * inverse[i];
            if fraction < 1.0 { fraction } else { 1.0 }
        };
        let less_half = 99.5 - 50.0 * (fraction(0) - fraction(1)).abs();
        let integer = less_half + INTEGERS;
        (integer, (less_half - (integer - INTEGERS)).abs())
    };
    let (with, from_middle) = evenness([one.1.wrapping_add(one.2), other.1.wrapping_add(other.2)]);
    let (without, also) = evenness([one.1, other.1]);
    // Of an empty node it is exactly 100; such nodes are many.
    let is_empty = one.1 | other.1 == 0;
    let without = if is_empty { 100.0 + INTEGERS } else { without };
    let also = if is_empty { 0.0 } else { also };
    let farther = if also > from_middle { also } else { from_middle };
    let change = (with.to_bits() as i32).wrapping_sub(without.to_bits() as i32);
    (50 + (change.wrapping_add(50) >> 1), i32::from(farther > FROM_MIDDLE_MAX))
}

/// Up to this distance from the middle between two integers an evenness in `f32`, which is at most 4e-5 wrong, is rounded as that in `f64`.
const FROM_MIDDLE_MAX: f32 = 0.5 - 1.0 / 8192.0;

#[cfg(test)]
mod tests;
