//! Durations as Kubernetes writes them in configuration files (metav1.Duration): Go's syntax, such
//! as `1m30s`, `15s` or `1.5h`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Go counts in a signed 64-bit number of nanoseconds; this is the magnitude of its smallest value.
const MAGNITUDE_MAX: u64 = 1 << 63;

/// A span of time in nanoseconds; may be negative, as Go's may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(i64);

/// A text that is no duration, in Go's words.
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

impl Duration {
    /// A whole number of seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Duration(secs.saturating_mul(SECOND as i64))
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The same for the standard library; `None` when negative.
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.0).ok().map(std::time::Duration::from_nanos)
    }
}

/// The longest that Go can count when it is longer.
impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Self {
        Duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid { text: text.to_owned() };
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Duration(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, after) = parse_part(rest, text)?;
            total =
                total.checked_add(part).filter(|sum| *sum <= MAGNITUDE_MAX).ok_or_else(invalid)?;
            rest = after;
        }
        let nanos =
            if negative { 0i64.checked_sub_unsigned(total) } else { i64::try_from(total).ok() };
        nanos.map(Duration).ok_or_else(invalid)
    }
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

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}\u{b5}s", Decimal { units: nanos, per_one: 1_000 }),
            1_000_000..SECOND => write!(f, "{}ms", Decimal { units: nanos, per_one: 1_000_000 }),
            _ => {
                let (hours, minutes) = (nanos / HOUR, nanos % HOUR / MINUTE);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                write!(f, "{}s", Decimal { units: nanos % MINUTE, per_one: SECOND })
            }
        }
    }
}

/// `units / per_one`, exact, without trailing zeros.
struct Decimal {
    units: u64,
    per_one: u64,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.units / self.per_one)?;
        let fraction = self.units % self.per_one;
        if fraction == 0 {
            return Ok(());
        }
        let width = self.per_one.ilog10() as usize;
        write!(f, ".{}", format!("{fraction:0width$}").trim_end_matches('0'))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DurationVisitor)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"15s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got =
            text.parse::<Duration>().map_or_else(|error| error.to_string(), |it| it.to_string());
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn reads_and_writes_as_go_does() {
        for (text, want) in [
            ("0", "0s"),
            ("15s", "15s"),
            ("1m30s", "1m30s"),
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("1.5h", "1h30m0s"),
            ("100ms", "100ms"),
            ("1500ms", "1.5s"),
            ("1.5us", "1.5\u{b5}s"),
            ("2\u{3bc}s", "2\u{b5}s"),
            ("7ns", "7ns"),
            ("-1m", "-1m0s"),
            ("+5s", "5s"),
            (".5s", "500ms"),
            ("5.s", "5s"),
            ("1h1ms", "1h0m0.001s"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
            ("-2562047h47m16.854775808s", "-2562047h47m16.854775808s"),
            ("0.9223372036854775807999s", "922.337203ms"),
        ] {
            check(text, want);
        }
    }

    #[test]
    fn refuses_as_go_does() {
        for (text, want) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("x", "time: invalid duration \"x\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1h-5m", "time: unknown unit \"h-\" in duration \"1h-5m\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("99999999999999999999s", "time: invalid duration \"99999999999999999999s\""),
        ] {
            check(text, want);
        }
    }
}
