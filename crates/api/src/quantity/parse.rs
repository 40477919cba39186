//! From text to amount.

use super::{Format, Quantity, Spelling};

/// Most digits an amount may have to stay narrow; fewer with a binary suffix.
const NARROW_DIGITS_MAX: usize = 18;

/// Decimals of a wide amount: smaller fractions are rounded up, away from zero.
const WIDE_DECIMALS: i64 = 9;

/// A text taken apart: sign, superfluous zeros, digits on both sides of the point.
struct Number<'a> {
    negative: bool,
    plus: bool,
    zeros_len: usize,
    whole: &'a [u8],
    point: bool,
    fraction: &'a [u8],
}

/// What follows the number, understood.
struct Suffix {
    format: Format,
    /// Power of ten, or of two if the format is binary.
    exponent: i32,
    /// Flags of [`Spelling`].
    flags: u8,
    /// Leading zeros of the exponent.
    zeros_len: usize,
    /// The exponent did not fit 32 bits; upstream takes what is left of it.
    wrapped: bool,
}

/// Reads a whole text; `None` if it is no quantity.
pub(super) fn parse(text: &[u8]) -> Option<Quantity> {
    if text.is_empty() {
        return None;
    }
    let (number, rest) = split(text);
    let suffix = suffix(rest)?;
    // Upstream counts a missing number as one digit.
    let whole_len = number.whole.len().max(1);
    let narrow = match suffix.format {
        Format::Decimal | Format::Exponent => {
            whole_len + number.fraction.len() <= NARROW_DIGITS_MAX
        }
        // Three decimal digits for ten binary ones, one in reserve.
        Format::Binary => {
            number.fraction.is_empty() && whole_len + suffix.exponent as usize * 3 / 10 <= 14
        }
    };
    if narrow {
        // Wraps as upstream does; exponents of that size mean nothing anyway.
        let fraction_len = number.fraction.len() as i32;
        let scale = match suffix.format {
            Format::Binary => 0,
            _ => suffix.exponent.wrapping_sub(fraction_len),
        };
        if scale >= -(WIDE_DECIMALS as i32) {
            return Some(parse_narrow(&number, &suffix, scale));
        }
    }
    if number.zeros_len == 0 && number.whole.is_empty() && number.fraction.is_empty() {
        return None;
    }
    Some(parse_wide(&number, &suffix))
}

/// Splits a text into its number and whatever follows.
fn split(text: &[u8]) -> (Number<'_>, &[u8]) {
    let (sign, rest) = match text {
        [sign @ (b'-' | b'+'), rest @ ..] => (*sign, rest),
        _ => (0, text),
    };
    let zeros_len = prefix_len(rest, |byte| byte == b'0');
    let rest = &rest[zeros_len..];
    let (whole, rest) = rest.split_at(prefix_len(rest, |byte| byte.is_ascii_digit()));
    let (point, rest) = match rest {
        [b'.', rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let fraction_len = if point { prefix_len(rest, |byte| byte.is_ascii_digit()) } else { 0 };
    let (fraction, rest) = rest.split_at(fraction_len);
    let (negative, plus) = (sign == b'-', sign == b'+');
    (Number { negative, plus, zeros_len, whole, point, fraction }, rest)
}

fn prefix_len(bytes: &[u8], test: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !test(*byte)).unwrap_or(bytes.len())
}

fn suffix(text: &[u8]) -> Option<Suffix> {
    let (format, exponent) = match text {
        b"" => (Format::Decimal, 0),
        b"n" => (Format::Decimal, -9),
        b"u" => (Format::Decimal, -6),
        b"m" => (Format::Decimal, -3),
        b"k" => (Format::Decimal, 3),
        b"M" => (Format::Decimal, 6),
        b"G" => (Format::Decimal, 9),
        b"T" => (Format::Decimal, 12),
        b"P" => (Format::Decimal, 15),
        b"E" => (Format::Decimal, 18),
        b"Ki" => (Format::Binary, 10),
        b"Mi" => (Format::Binary, 20),
        b"Gi" => (Format::Binary, 30),
        b"Ti" => (Format::Binary, 40),
        b"Pi" => (Format::Binary, 50),
        b"Ei" => (Format::Binary, 60),
        [letter @ (b'e' | b'E'), rest @ ..] => return exponent_suffix(*letter, rest),
        _ => return None,
    };
    Some(Suffix { format, exponent, flags: 0, zeros_len: 0, wrapped: false })
}

/// `e` or `E`, an optional sign, digits.
fn exponent_suffix(letter: u8, rest: &[u8]) -> Option<Suffix> {
    let (sign, digits) = match rest {
        [b'+', digits @ ..] => (Spelling::EXPONENT_PLUS, digits),
        [b'-', digits @ ..] => (Spelling::EXPONENT_MINUS, digits),
        _ => (0, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Built up on the negative side, which reaches one further.
    let negated = digits
        .iter()
        .try_fold(0i64, |sum, digit| sum.checked_mul(10)?.checked_sub(i64::from(*digit - b'0')))?;
    let full = if sign == Spelling::EXPONENT_MINUS { negated } else { negated.checked_neg()? };
    let exponent = full as i32;
    let case = if letter == b'E' { Spelling::UPPERCASE } else { 0 };
    Some(Suffix {
        format: Format::Exponent,
        exponent,
        flags: sign | case,
        zeros_len: prefix_len(&digits[..digits.len() - 1], |byte| byte == b'0'),
        wrapped: i64::from(exponent) != full,
    })
}

/// At most 18 digits: the mantissa fits 64 bits, and the spelling may be kept.
fn parse_narrow(number: &Number<'_>, suffix: &Suffix, scale: i32) -> Quantity {
    let digits = number.whole.iter().chain(number.fraction);
    let digits = digits.fold(0i64, |sum, digit| sum * 10 + i64::from(*digit - b'0'));
    let mut value = digits;
    let canonical = match suffix.format {
        Format::Binary => {
            value <<= suffix.exponent;
            digits & 7 != 0
        }
        Format::Decimal | Format::Exponent => {
            scale % 3 == 0 && !number.whole.is_empty() && digits % 1000 != 0
        }
    };
    if number.negative {
        value = -value;
    }
    let mut quantity = Quantity::narrow(value, scale, suffix.format);
    if canonical && !suffix.wrapped && number.zeros_len < 16 && suffix.zeros_len < 16 {
        let plus = if number.plus { Spelling::PLUS } else { 0 };
        let point = if number.point { Spelling::POINT } else { 0 };
        quantity.spelling = Spelling {
            flags: Spelling::KEPT | plus | point | suffix.flags,
            fraction_len: number.fraction.len() as u8,
            zeros: number.zeros_len as u8 | ((suffix.zeros_len as u8) << 4),
        };
    }
    quantity
}

/// Any number of digits: rounded up to nine decimals.
fn parse_wide(number: &Number<'_>, suffix: &Suffix) -> Quantity {
    /// Upstream's bound for amounts with a binary suffix.
    const BINARY_MAX: u128 = i64::MAX as u128;
    const UNIT: u128 = 10u128.pow(WIDE_DECIMALS as u32);

    let mut format = suffix.format;
    let (mut magnitude, mut scale) = match format {
        Format::Binary => (nanos_binary(number, suffix.exponent as u32), -9),
        Format::Decimal | Format::Exponent => (nanos_decimal(number, suffix.exponent), -9),
    };
    if format == Format::Binary {
        if magnitude > BINARY_MAX * UNIT {
            (magnitude, scale) = (BINARY_MAX, 0);
        } else if 0 < magnitude && magnitude < UNIT {
            format = Format::Decimal;
        }
    }
    if magnitude == 0 {
        scale = 0;
    }
    let mantissa = i128::try_from(magnitude).unwrap_or(i128::MAX);
    Quantity::wide(if number.negative { -mantissa } else { mantissa }, scale, format)
}

/// Billionths, rounded up, of a number times a power of ten.
fn nanos_decimal(number: &Number<'_>, exponent: i32) -> u128 {
    let n_digits = number.whole.len() + number.fraction.len();
    // Number of digits at or above the last decimal that remains.
    let n_kept = number.whole.len() as i64 + i64::from(exponent) + WIDE_DECIMALS;
    let mut sum = 0u128;
    for (at, digit) in number.whole.iter().chain(number.fraction).enumerate() {
        let digit = u128::from(*digit - b'0');
        if (at as i64) < n_kept {
            sum = sum.saturating_mul(10).saturating_add(digit);
        } else if digit != 0 {
            return sum.saturating_add(1);
        }
    }
    let mut n_missing = n_kept - n_digits as i64;
    while n_missing > 0 && sum != 0 && sum != u128::MAX {
        sum = sum.saturating_mul(10);
        n_missing -= 1;
    }
    sum
}

/// Billionths, rounded up, of a number times a power of two (at most 2^60).
fn nanos_binary(number: &Number<'_>, exponent: u32) -> u128 {
    let unit = 10u128.pow(WIDE_DECIMALS as u32) << exponent;
    let whole = number
        .whole
        .iter()
        .fold(0u128, |sum, digit| sum.saturating_mul(10).saturating_add(u128::from(*digit - b'0')));
    // From the last decimal to the first: rounding down at each step amounts to rounding down once.
    let mut part = 0;
    let mut inexact = false;
    for digit in number.fraction.iter().rev() {
        let sum = part + u128::from(*digit - b'0') * unit;
        part = sum / 10;
        inexact |= !sum.is_multiple_of(10);
    }
    whole.saturating_mul(unit).saturating_add(part + u128::from(inexact))
}
