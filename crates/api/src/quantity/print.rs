//! From amount to text.

use std::fmt;

use super::{Format, Quantity, Spelling, scale_up_saturating, strip_tens};

/// The text upstream gives: as written if that was canonical enough, otherwise in canonical form. The
/// canonical form of amounts from `1000E` on has no suffix, upstream's omission.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.spelling.has(Spelling::KEPT) { as_written(*self, f) } else { canonical(*self, f) }
    }
}

fn as_written(quantity: Quantity, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mantissa = quantity.low as i64;
    let spelling = quantity.spelling;
    if mantissa < 0 {
        f.write_str("-")?;
    } else if spelling.has(Spelling::PLUS) {
        f.write_str("+")?;
    }
    zeros(f, spelling.zeros & 15)?;

    let mut digits = mantissa.unsigned_abs();
    let mut exponent = quantity.scale.wrapping_add(i32::from(spelling.fraction_len));
    if quantity.format == Format::Binary {
        // At most two of the bits that are zero belong to the number itself.
        let shift = digits.trailing_zeros() / 10 * 10;
        digits >>= shift;
        exponent = shift as i32;
    }
    let unit = 10u64.pow(u32::from(spelling.fraction_len));
    write!(f, "{}", digits / unit)?;
    if spelling.has(Spelling::POINT) {
        f.write_str(".")?;
    }
    if spelling.fraction_len > 0 {
        write!(f, "{:0width$}", digits % unit, width = usize::from(spelling.fraction_len))?;
    }

    if quantity.format != Format::Exponent {
        return f.write_str(suffix(quantity.format, exponent));
    }
    f.write_str(if spelling.has(Spelling::UPPERCASE) { "E" } else { "e" })?;
    if spelling.has(Spelling::EXPONENT_PLUS) {
        f.write_str("+")?;
    } else if spelling.has(Spelling::EXPONENT_MINUS) {
        f.write_str("-")?;
    }
    zeros(f, spelling.zeros >> 4)?;
    write!(f, "{}", exponent.unsigned_abs())
}

/// A mantissa of one to three digits more than needed, and an exponent that has a suffix.
fn canonical(quantity: Quantity, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if quantity.is_zero() {
        return f.write_str("0");
    }
    let mut format = quantity.format;
    if format == Format::Binary {
        match binary(quantity) {
            Some((mantissa, exponent)) => {
                return write!(f, "{mantissa}{}", suffix(format, exponent));
            }
            None => format = Format::Decimal,
        }
    }
    let (mantissa, n_tens) = strip_tens(quantity.mantissa());
    let mut exponent = quantity.scale.wrapping_add(n_tens);
    let excess = exponent.rem_euclid(3);
    write!(f, "{mantissa}")?;
    zeros(f, excess as u8)?;
    exponent = exponent.wrapping_sub(excess);
    match format {
        Format::Exponent if exponent == 0 => Ok(()),
        Format::Exponent => write!(f, "e{exponent}"),
        Format::Decimal | Format::Binary => f.write_str(suffix(format, exponent)),
    }
}

/// The amount as a number times a power of 1024 (given as power of two), unless a decimal text is clearer:
/// below 1024 and for fractions.
fn binary(quantity: Quantity) -> Option<(i128, i32)> {
    let mut mantissa = if quantity.scale >= 0 {
        scale_up_saturating(quantity.mantissa(), i64::from(quantity.scale))
    } else {
        let unit = 10i128.checked_pow(quantity.scale.unsigned_abs())?;
        if quantity.mantissa() % unit != 0 {
            return None;
        }
        quantity.mantissa() / unit
    };
    if mantissa.unsigned_abs() < 1024 {
        return None;
    }
    let mut exponent = 0;
    while mantissa % 1024 == 0 {
        mantissa /= 1024;
        exponent += 10;
    }
    Some((mantissa, exponent))
}

fn zeros(f: &mut fmt::Formatter<'_>, len: u8) -> fmt::Result {
    (0..len).try_for_each(|_| f.write_str("0"))
}

fn suffix(format: Format, exponent: i32) -> &'static str {
    match (format, exponent) {
        (Format::Binary, 10) => "Ki",
        (Format::Binary, 20) => "Mi",
        (Format::Binary, 30) => "Gi",
        (Format::Binary, 40) => "Ti",
        (Format::Binary, 50) => "Pi",
        (Format::Binary, 60) => "Ei",
        (Format::Decimal, -9) => "n",
        (Format::Decimal, -6) => "u",
        (Format::Decimal, -3) => "m",
        (Format::Decimal, 3) => "k",
        (Format::Decimal, 6) => "M",
        (Format::Decimal, 9) => "G",
        (Format::Decimal, 12) => "T",
        (Format::Decimal, 15) => "P",
        (Format::Decimal, 18) => "E",
        _ => "",
    }
}
