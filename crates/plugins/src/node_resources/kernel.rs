//! Filter and scores over whole columns: plain loops over slices that the compiler turns into vector code, for the best
//! instruction set that the processor at hand has.
//!
//! Scores are computed in `f64`, because no instruction set divides integers in lanes. They are equal to those of
//! [`super::formula`] on *plain* rows: both resources offered, nothing negative, capacities up to 2^45, amounts in use below
//! 2^52. Then all integers are exact as floats, and a quotient below 2^7 cannot round up to the next integer, from which it is
//! at least 1/capacity away. Other rows are computed in integers, one by one.

use pulp::{Arch, Simd, WithSimd};
use smallvec::SmallVec;

use super::amounts::Lane;
use super::formula::Formula;

/// Rows that are worked on before odd ones among them are looked for.
const CHUNK: usize = 64;

/// A score over two resources that a kernel can compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    rule: Rule,
    weights: [f64; 2],
    /// One over the sum of the weights.
    inverse: f64,
}

/// The formulas that have a kernel.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Least,
    Most,
    Balanced,
}

/// Weights up to this keep a weighted mean exact; configuration allows 100.
const WEIGHT_MAX: i64 = 1000;

/// Scores times this are exact.
const PLUGIN_WEIGHT_MAX: i64 = 1 << 40;

impl Fused {
    /// `None` unless the formula has a kernel and there are two resources of usual weights.
    pub fn new(formula: &Formula, weights: impl Iterator<Item = i64>) -> Option<Fused> {
        let rule = match formula {
            Formula::Least => Rule::Least,
            Formula::Most => Rule::Most,
            Formula::Balanced => Rule::Balanced,
            Formula::Ratio(_) => return None,
        };
        let weights: SmallVec<[i64; 4]> = weights.collect();
        let [one, other] = *weights else { return None };
        let fits = (1..=WEIGHT_MAX).contains(&one) && (1..=WEIGHT_MAX).contains(&other);
        let inverse = 1.0 / (one + other) as f64;
        fits.then_some(Fused { rule, weights: [one as f64, other as f64], inverse })
    }

    /// The score of one row; `None` when the row is odd.
    #[inline]
    pub fn score(&self, lanes: &[Lane<'_>; 2], at: usize) -> Option<i64> {
        let row = Plain::new(lanes.map(|lane| (lane.allocatable[at], lane.used[at], lane.wanted)));
        let score = match self.rule {
            Rule::Least => least(self, &row, floor),
            Rule::Most => most(self, &row, floor),
            Rule::Balanced => balanced(&row, floor),
        };
        (row.odd == 0).then(|| to_i64(score))
    }
}

/// Adds `weight` times the score to the rows of `set`, and anything to other rows. Asks `exact` for odd rows.
pub(super) fn add_scores(
    fused: &Fused,
    lanes: &[Lane<'_>; 2],
    set: &[u8],
    weight: i64,
    out: &mut [i64],
    exact: &dyn Fn(usize) -> i64,
) {
    let n_chunked =
        if (0..=PLUGIN_WEIGHT_MAX).contains(&weight) { out.len() / CHUNK * CHUNK } else { 0 };
    let (chunked, rest) = out.split_at_mut(n_chunked);
    Arch::new().dispatch(AddScores { fused, lanes, set, weight, out: chunked, exact });
    for (at, sum) in (n_chunked..).zip(rest).filter(|(at, _)| set[*at] != 0) {
        let score = fused.score(lanes, at).unwrap_or_else(|| exact(at));
        *sum = sum.wrapping_add(weight.wrapping_mul(score));
    }
}

/// Whole chunks only: loops of known length need no check of their bounds.
struct AddScores<'a> {
    fused: &'a Fused,
    lanes: &'a [Lane<'a>; 2],
    set: &'a [u8],
    weight: i64,
    out: &'a mut [i64],
    exact: &'a dyn Fn(usize) -> i64,
}

impl WithSimd for AddScores<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        // One instruction where there are wide lanes, else a function call.
        if S::IS_SCALAR { self.by_rule(floor) } else { self.by_rule(f64::floor) }
    }
}

impl AddScores<'_> {
    #[inline(always)]
    fn by_rule(self, floor: impl Fn(f64) -> f64 + Copy) {
        match self.fused.rule {
            Rule::Least => self.run(|fused, row| least(fused, row, floor)),
            Rule::Most => self.run(|fused, row| most(fused, row, floor)),
            Rule::Balanced => self.run(|_, row| balanced(row, floor)),
        }
    }

    #[inline(always)]
    fn run(self, score: impl Fn(&Fused, &Plain) -> f64) {
        let AddScores { fused, lanes, set, weight, out, exact } = self;
        let factor = weight as f64;
        let [one, other] = lanes;
        let columns = [one.allocatable, one.used, other.allocatable, other.used]
            .map(|c| c.as_chunks::<CHUNK>().0);
        for (chunk, out) in out.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            let [a, b, c, d] = columns.map(|column| &column[chunk]);
            let mut scores = [0i64; CHUNK];
            let mut odd = 0;
            for at in 0..CHUNK {
                let row = Plain::new([(a[at], b[at], one.wanted), (c[at], d[at], other.wanted)]);
                odd |= row.odd;
                scores[at] = to_i64(factor * score(fused, &row));
            }
            if odd != 0 {
                for (in_chunk, scaled) in scores.iter_mut().enumerate() {
                    let at = chunk * CHUNK + in_chunk;
                    if set[at] != 0 {
                        let score = fused.score(lanes, at).unwrap_or_else(|| exact(at));
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

/// Two resources of one row as floats; nonsense when the row is odd.
struct Plain {
    allocatable: [f64; 2],
    used: [f64; 2],
    used_with_pod: [f64; 2],
    /// Not 0 when the row is odd.
    odd: u64,
}

impl Plain {
    /// From what is offered, used and wanted of each resource.
    #[inline(always)]
    fn new(amounts: [(i64, i64, i64); 2]) -> Plain {
        let with = amounts.map(|(_, used, wanted)| used.wrapping_add(wanted));
        let [(one, used, _), (other, also_used, _)] = amounts;
        let too_big = (one.wrapping_sub(1) | other.wrapping_sub(1)) as u64 >> 45;
        let too_full = (used | also_used | with[0] | with[1]) as u64 >> 52;
        Plain {
            allocatable: amounts.map(|(allocatable, ..)| to_f64(allocatable)),
            used: amounts.map(|(_, used, _)| to_f64(used)),
            used_with_pod: with.map(to_f64),
            odd: too_big | too_full,
        }
    }
}

#[inline(always)]
fn least(fused: &Fused, row: &Plain, floor: impl Fn(f64) -> f64) -> f64 {
    let part = |i: usize| {
        let free = row.allocatable[i] - row.used_with_pod[i];
        let free = if free > 0.0 { free } else { 0.0 };
        floor(free * 100.0 / row.allocatable[i])
    };
    mean(fused, [part(0), part(1)], floor)
}

#[inline(always)]
fn most(fused: &Fused, row: &Plain, floor: impl Fn(f64) -> f64) -> f64 {
    let part = |i: usize| {
        let (used, allocatable) = (row.used_with_pod[i], row.allocatable[i]);
        let used = if used < allocatable { used } else { allocatable };
        floor(used * 100.0 / allocatable)
    };
    mean(fused, [part(0), part(1)], floor)
}

#[inline(always)]
fn mean(fused: &Fused, scores: [f64; 2], floor: impl Fn(f64) -> f64) -> f64 {
    let sum = scores[0] * fused.weights[0] + scores[1] * fused.weights[1];
    // A quarter more cannot reach the next integer, and lifts exact quotients clear of the error in the inverse.
    floor((sum + 0.25) * fused.inverse)
}

#[inline(always)]
fn balanced(row: &Plain, floor: impl Fn(f64) -> f64) -> f64 {
    let evenness = |used: &[f64; 2]| {
        let fraction = |i: usize| {
            let fraction = used[i] / row.allocatable[i];
            if fraction < 1.0 { fraction } else { 1.0 }
        };
        let deviation = ((fraction(0) - fraction(1)) / 2.0).abs();
        floor((1.0 - deviation) * 100.0)
    };
    let change = evenness(&row.used_with_pod) - evenness(&row.used);
    50.0 + floor((50.0 + change) * 0.5)
}

/// 2^52: from here on to 2^53 floats are exactly the integers, and their low 52 bits count them.
const INTEGERS: f64 = 4_503_599_627_370_496.0;

/// An integer in `0..2^52` as a float, without the conversion instruction that older processors lack.
#[inline(always)]
fn to_f64(n: i64) -> f64 {
    f64::from_bits(n as u64 | INTEGERS.to_bits()) - INTEGERS
}

/// A float that is an integer in `0..2^52`, as one.
#[inline(always)]
fn to_i64(x: f64) -> i64 {
    ((x + INTEGERS).to_bits() ^ INTEGERS.to_bits()) as i64
}

/// The largest integer up to `x`, for `x` in `0..2^51`; `f64::floor` is a function call on older processors.
#[inline(always)]
fn floor(x: f64) -> f64 {
    let near = (x + INTEGERS) - INTEGERS;
    near - if near > x { 1.0 } else { 0.0 }
}

/// Takes the rows out of `set` that have no room for one more pod (`pods` are how many are allowed and how many there
/// are), or lack what a lane wants.
pub(super) fn retain_fitting(set: &mut [u8], pods: [&[i64]; 2], lanes: &[Lane<'_>]) {
    Arch::new().dispatch(RetainFitting { set, pods, lanes });
}

struct RetainFitting<'a> {
    set: &'a mut [u8],
    pods: [&'a [i64]; 2],
    lanes: &'a [Lane<'a>],
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
                *short = pods_lacking(*allowed, *there);
            }
            for lane in self.lanes {
                let [allocatable, used] =
                    [lane.allocatable, lane.used].map(|column| &column[rows.clone()]);
                for ((short, allocatable), used) in short.iter_mut().zip(allocatable).zip(used) {
                    *short |= lacking(*allocatable, *used, lane.wanted);
                }
            }
            for (member, short) in set.iter_mut().zip(&short) {
                *member &= !(short >> 63) as u8;
            }
        }
    }
}

/// Negative when more is wanted than `allocatable - used`, which wraps as upstream's does; `wanted` is above 0. No
/// comparison, which baseline processors lack for lanes of 64 bits: less than nothing is too little for anything, and from
/// nothing on the second difference cannot overflow.
#[inline(always)]
pub(super) fn lacking(allocatable: i64, used: i64, wanted: i64) -> i64 {
    let free = allocatable.wrapping_sub(used);
    free | free.wrapping_sub(wanted)
}

/// Negative when no pod more is allowed.
#[inline(always)]
pub(super) fn pods_lacking(allowed: i64, there: i64) -> i64 {
    allowed | allowed.wrapping_sub(there + 1)
}

#[cfg(test)]
mod tests;
