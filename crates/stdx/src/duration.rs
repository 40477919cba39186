//! Go durations such as `1m30s`, `15s` or `1.5h`: accepts, rejects and rounds as `time.ParseDuration` does.

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Go counts in a signed 64-bit number of nanoseconds; this is the magnitude of its smallest value.
const MAGNITUDE_MAX: u64 = 1 << 63;

/// A text that is no span of time, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// Not of the form number and unit, or too large.
    #[error("time: invalid duration {text:?}")]
    Invalid { text: String },
    /// A number without unit.
    #[error("time: missing unit in duration {text:?}")]
    MissingUnit { text: String },
    /// A unit Go does not have.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { unit: String, text: String },
}

/// The nanoseconds that a text such as `1h15m30.5s` stands for; may be negative, as Go's may.
pub fn parse_duration_nanos(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid { text: text.to_owned() };
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = parse_part(rest, text)?;
        total = total.checked_add(part).filter(|sum| *sum <= MAGNITUDE_MAX).ok_or_else(invalid)?;
        rest = after;
    }
    let nanos = if negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() };
    nanos.ok_or_else(invalid)
}

/// Reads one number with its unit off the front of `rest`: nanoseconds, and what follows.
fn parse_part<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid { text: text.to_owned() };
    let (whole, after) = split_digits(rest);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => split_digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(end);
    let factor = match unit {
        "" => return Err(DurationError::MissingUnit { text: text.to_owned() }),
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => {
            return Err(DurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        }
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
    let nanos = whole
        .checked_mul(factor)
        .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, factor)));
    match nanos.filter(|nanos| *nanos <= MAGNITUDE_MAX) {
        Some(nanos) => Ok((nanos, after)),
        None => Err(invalid()),
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The fraction `0.<digits>` of a unit. Go multiplies in float64 and drops digits that no longer
/// fit into 63 bits.
fn fraction_nanos(digits: &str, factor: u64) -> u64 {
    let mut value: u64 = 0;
    let mut scale = 1.0;
    for digit in digits.bytes().map(|byte| u64::from(byte - b'0')) {
        match value
            .checked_mul(10)
            .and_then(|value| value.checked_add(digit))
            .filter(|v| *v <= MAGNITUDE_MAX)
        {
            Some(longer) => value = longer,
            None => break,
        }
        scale *= 10.0;
    }
    (value as f64 * (factor as f64 / scale)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Result<i64, &str>) {
        assert_eq!(
            parse_duration_nanos(text).map_err(|error| error.to_string()),
            want.map_err(str::to_owned)
        );
    }

    #[test]
    fn durations_parse_as_in_go() {
        for (text, want) in [
            ("0", 0),
            ("-0", 0),
            ("+5s", 5_000_000_000),
            ("-1.5m", -90_000_000_000),
            ("1h15m30.5s", 4_530_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1us2\u{b5}s3\u{3bc}s4ns", 6_004),
            ("2562047h47m16.854775807s", i64::MAX),
            ("-2562047h47m16.854775808s", i64::MIN),
            ("0.9223372036854775807999s", 922_337_203),
        ] {
            check(text, Ok(want));
        }
    }

    #[test]
    fn invalid_durations_are_rejected_as_in_go() {
        for (text, want) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("x", "time: invalid duration \"x\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1h-5m", "time: unknown unit \"h-\" in duration \"1h-5m\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("1.5.s", "time: missing unit in duration \"1.5.s\""),
            ("1 s", "time: unknown unit \" s\" in duration \"1 s\""),
            ("1e3s", "time: unknown unit \"e\" in duration \"1e3s\""),
            ("99999999999999999999s", "time: invalid duration \"99999999999999999999s\""),
        ] {
            check(text, Err(want));
        }
    }
}
