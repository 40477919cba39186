//! Exact amounts of a resource, with the arithmetic and the spelling of Kubernetes quantities.
//!
//! An amount is a decimal number `mantissa * 10^scale`. Upstream keeps small ones in 64 bits and others as
//! unbounded decimals, and the two round and overflow differently: here the second kind is "wide". What is
//! copied includes `value()` of amounts too large for 64 bits, which is 0 or wrapped for the first kind and
//! wrapped for the second.
//!
//! Deviations: wide amounts saturate at about 1.7e29 units instead of growing without bound; a text with
//! more than 15 superfluous leading zeros or an exponent beyond 32 bits is printed in canonical form.

mod parse;
mod print;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, AddAssign, Neg, Sub};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sorted_map::MapValue;

/// An amount such as `100m`, `1.5Gi` or `2e3`. Compared and hashed by value: `1` equals `1000m`.
#[derive(Clone, Copy)]
pub struct Quantity {
    /// The mantissa in two halves: a plain `i128` would raise alignment and size from 24 to 32 bytes.
    high: i64,
    low: u64,
    /// Power of ten the mantissa is multiplied with.
    scale: i32,
    format: Format,
    spelling: Spelling,
}

/// How many slices of amounts a thread remembers.
const N_RECENT: usize = 8;

thread_local! {
    static RECENT: RefCell<VecDeque<Arc<[Quantity]>>> = const { RefCell::new(VecDeque::new()) };
}

/// Nodes of one size have the same amounts, and most pods those of their template.
impl MapValue for Quantity {
    fn shared(values: Vec<Quantity>) -> Arc<[Quantity]> {
        RECENT.with_borrow_mut(|recent| {
            let are_these = |known: &&Arc<[Quantity]>| {
                let pairs = known.iter().zip(&values);
                known.len() == values.len() && { pairs }.all(|(a, b)| a.is_spelled_as(b))
            };
            if let Some(known) = recent.iter().find(are_these) {
                return known.clone();
            }
            let fresh: Arc<[Quantity]> = values.into();
            recent.truncate(N_RECENT - 1);
            recent.push_front(fresh.clone());
            fresh
        })
    }
}

/// In which family of suffixes an amount is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `k`, `M`, `m` and so on.
    Decimal,
    /// `Ki`, `Mi` and so on.
    Binary,
    /// `e3`, `e6` and so on.
    Exponent,
}

/// How an amount was written, if that is to be repeated; and whether it is wide.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Spelling {
    flags: u8,
    /// Digits after the point.
    fraction_len: u8,
    /// Superfluous leading zeros of the number (low half) and of its exponent (high half).
    zeros: u8,
}

impl Spelling {
    /// The text was in canonical form by upstream's measure and is printed as it was written.
    const KEPT: u8 = 1;
    const PLUS: u8 = 1 << 1;
    const POINT: u8 = 1 << 2;
    const UPPERCASE: u8 = 1 << 3;
    const EXPONENT_PLUS: u8 = 1 << 4;
    const EXPONENT_MINUS: u8 = 1 << 5;
    /// Not part of the spelling: upstream holds this amount as an unbounded decimal.
    const WIDE: u8 = 1 << 6;

    const NONE: Spelling = Spelling { flags: 0, fraction_len: 0, zeros: 0 };
    const NONE_WIDE: Spelling = Spelling { flags: Spelling::WIDE, fraction_len: 0, zeros: 0 };

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid quantity {text:?}: expected a number with an optional suffix such as m, Ki, M or e3"
)]
pub struct QuantityError {
    /// The text, cut after 64 characters.
    pub text: Box<str>,
}

impl Quantity {
    /// Whether it is equal, and printed in the same way.
    fn is_spelled_as(&self, other: &Quantity) -> bool {
        let parts = |it: &Quantity| (it.high, it.low, it.scale, it.format, it.spelling);
        parts(self) == parts(other)
    }

    /// Nothing.
    pub const ZERO: Quantity = Quantity::narrow(0, 0, Format::Decimal);

    /// Reads a quantity as upstream's `ParseQuantity` does. Does not allocate unless it fails.
    ///
    /// # Errors
    ///
    /// When the text is not a number with a known suffix. Blanks are errors, too.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        parse::parse(text.as_bytes())
            .ok_or_else(|| QuantityError { text: text.chars().take(64).collect() })
    }

    /// So many whole units.
    pub const fn from_value(value: i64) -> Quantity {
        Quantity::narrow(value, 0, Format::Decimal)
    }

    /// So many thousandths.
    pub const fn from_milli(milli: i64) -> Quantity {
        Quantity::narrow(milli, -3, Format::Decimal)
    }

    /// Whether the amount is exactly zero.
    pub fn is_zero(&self) -> bool {
        self.high == 0 && self.low == 0
    }

    /// Whole units, a fraction rounded away from zero. Out of range it is upstream's 0 or wrapped.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Thousandths, rounded and overflowing like [`Quantity::value`].
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    /// The amount in whole units, a fraction rounded away from zero, in the same family of suffixes; itself if it is whole.
    pub fn rounded_up(self) -> Quantity {
        let (mantissa, fraction) = match 10i128.checked_pow(self.scale.min(0).unsigned_abs()) {
            Some(unit) => (self.mantissa() / unit, self.mantissa() % unit),
            None => (0, self.mantissa()),
        };
        if fraction == 0 {
            self
        } else {
            Quantity::of(mantissa + fraction.signum(), 0, self.format)
        }
    }

    /// Narrow if it fits.
    fn of(mantissa: i128, scale: i32, format: Format) -> Quantity {
        match i64::try_from(mantissa) {
            Ok(mantissa) => Quantity::narrow(mantissa, scale, format),
            Err(_) => Quantity::wide(mantissa, scale, format),
        }
    }

    const fn narrow(mantissa: i64, scale: i32, format: Format) -> Quantity {
        Quantity {
            high: mantissa >> 63,
            low: mantissa as u64,
            scale,
            format,
            spelling: Spelling::NONE,
        }
    }

    fn wide(mantissa: i128, scale: i32, format: Format) -> Quantity {
        let (high, low) = ((mantissa >> 64) as i64, mantissa as u64);
        Quantity { high, low, scale, format, spelling: Spelling::NONE_WIDE }
    }

    fn is_wide(self) -> bool {
        self.spelling.has(Spelling::WIDE)
    }

    fn mantissa(self) -> i128 {
        (i128::from(self.high) << 64) | i128::from(self.low)
    }

    /// The amount in units of `10^target`, as upstream's `ScaledValue`.
    fn scaled(self, target: i32) -> i64 {
        let up = i64::from(self.scale) - i64::from(target);
        if self.is_wide() {
            return scaled_wide(self.mantissa(), up);
        }
        let mantissa = self.low as i64;
        match up {
            // Out of range these wrap upstream, other powers give 0.
            1 | 2 | 3 | 6 | 9 => mantissa.wrapping_mul(10i64.pow(up as u32)),
            0.. => scale_up(mantissa, up).unwrap_or(0),
            _ => scale_down(mantissa, -up),
        }
    }
}

/// `mantissa * 10^by` if it fits.
fn scale_up(mantissa: i64, by: i64) -> Option<i64> {
    if by == 0 || mantissa == 0 {
        return Some(mantissa);
    }
    10i64.checked_pow(u32::try_from(by).ok()?)?.checked_mul(mantissa)
}

/// `mantissa / 10^by`, rounded away from zero. Narrow amounts have at most nine decimals.
fn scale_down(mantissa: i64, by: i64) -> i64 {
    let divisor = 10i64.pow(by as u32);
    mantissa / divisor + (mantissa % divisor).signum()
}

/// `mantissa * 10^up` of a wide amount: wraps, and rounds towards plus infinity.
fn scaled_wide(mantissa: i128, up: i64) -> i64 {
    if up >= 0 {
        // Upstream computes the factor in floating point; out of range that becomes the least integer.
        let factor = u32::try_from(up).ok().and_then(|n| 10i64.checked_pow(n)).unwrap_or(i64::MIN);
        return (mantissa as i64).wrapping_mul(factor);
    }
    let divisor = 10i64.pow(-up as u32);
    if mantissa < i128::from(i64::MAX) {
        // Large negative amounts come here as well: upstream checks one bound only.
        let low = mantissa as i64;
        return low / divisor + i64::from(low % divisor != 0);
    }
    let rounded = mantissa / i128::from(divisor) + i128::from(mantissa % i128::from(divisor) != 0);
    rounded as i64
}

/// `mantissa * 10^by` if it fits.
fn scale_up_checked(mantissa: i128, by: i64) -> Option<i128> {
    if by == 0 || mantissa == 0 {
        return Some(mantissa);
    }
    10i128.checked_pow(u32::try_from(by).ok()?)?.checked_mul(mantissa)
}

/// `mantissa * 10^by`, saturating.
fn scale_up_saturating(mantissa: i128, by: i64) -> i128 {
    let bound = if mantissa < 0 { i128::MIN } else { i128::MAX };
    scale_up_checked(mantissa, by).unwrap_or(bound)
}

/// The mantissa without its factors of ten, and how many those are.
fn strip_tens(mut mantissa: i128) -> (i128, i32) {
    let mut n_tens = 0;
    while i64::try_from(mantissa).is_err() && mantissa % 10 == 0 {
        mantissa /= 10;
        n_tens += 1;
    }
    if let Ok(mut small) = i64::try_from(mantissa) {
        while small % 10 == 0 && small != 0 {
            small /= 10;
            n_tens += 1;
        }
        mantissa = i128::from(small);
    }
    (mantissa, n_tens)
}

impl Default for Quantity {
    fn default() -> Quantity {
        Quantity::ZERO
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        let (left, right) = (self.mantissa(), other.mantissa());
        let up = i64::from(self.scale) - i64::from(other.scale);
        if up == 0 || left.signum() != right.signum() {
            return left.cmp(&right);
        }
        // A product out of range is further from zero than any mantissa.
        let further = if left > 0 { Ordering::Greater } else { Ordering::Less };
        if up > 0 {
            scale_up_checked(left, up).map_or(further, |left| left.cmp(&right))
        } else {
            scale_up_checked(right, -up).map_or(further.reverse(), |right| left.cmp(&right))
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (mantissa, n_tens) = strip_tens(self.mantissa());
        let scale = if mantissa == 0 { 0 } else { i64::from(self.scale) + i64::from(n_tens) };
        mantissa.hash(state);
        scale.hash(state);
    }
}

impl Add for Quantity {
    type Output = Quantity;

    /// The sum in the format of the left side, or of the right one if the left is zero; saturates.
    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        if !self.is_wide()
            && !other.is_wide()
            && let Some((mantissa, scale)) = add_narrow(self, other)
        {
            return Quantity::narrow(mantissa, scale, format);
        }
        let scale = self.scale.min(other.scale);
        let [left, right] = [self, other].map(|amount| {
            scale_up_saturating(amount.mantissa(), i64::from(amount.scale) - i64::from(scale))
        });
        Quantity::wide(left.saturating_add(right), scale, format)
    }
}

/// The sum of two narrow amounts if it is one, too.
fn add_narrow(left: Quantity, right: Quantity) -> Option<(i64, i32)> {
    if right.is_zero() {
        return Some((left.low as i64, left.scale));
    }
    if left.is_zero() {
        return Some((right.low as i64, right.scale));
    }
    let scale = left.scale.min(right.scale);
    let aligned =
        |amount: Quantity| scale_up(amount.low as i64, i64::from(amount.scale) - i64::from(scale));
    Some((aligned(left)?.checked_add(aligned(right)?)?, scale))
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        let mantissa = self.mantissa().saturating_neg();
        match self.is_wide() {
            true => Quantity::wide(mantissa, self.scale, self.format),
            false => Quantity::of(mantissa, self.scale, self.format),
        }
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    /// The difference, in the format that the sum would have; saturates.
    fn sub(self, other: Quantity) -> Quantity {
        self.add(-other)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        Quantity::parse(text)
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

/// Takes what Go's decoder takes: a string, blanks around it allowed; a bare number; null.
struct Visitor;

impl serde::de::Visitor<'_> for Visitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 2, \"100m\" or \"1Gi\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text.trim()).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
        // From 19 digits on a text gives a wide amount.
        if value.unsigned_abs() < 10u64.pow(18) {
            return Ok(Quantity::from_value(value));
        }
        self.visit_str(&value.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.visit_str(&value.to_string()),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
        // The shortest text that gives this number; the original one is not known here.
        if value.abs() < 1e18 {
            self.visit_str(&value.to_string())
        } else {
            self.visit_str(&format!("{value:e}"))
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::ZERO)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::ZERO)
    }
}

#[cfg(test)]
mod tests;
