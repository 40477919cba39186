//! Durations of Kubernetes configuration files (metav1.Duration), in Go's syntax: `1m30s`, `15s` or
//! `1.5h`.

use std::fmt;
use std::str::FromStr;

pub use loadmaster_stdx::duration::DurationError;
use loadmaster_stdx::duration::parse_duration_nanos;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A duration in nanoseconds; may be negative, as in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(i64);

impl Duration {
    /// A whole number of seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Duration(secs.saturating_mul(SECOND as i64))
    }

    /// A number of nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Duration(nanos)
    }

    /// Nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Converts to the standard library's duration; `None` when negative.
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.0).ok().map(std::time::Duration::from_nanos)
    }
}

/// Saturates at Go's maximum.
impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Self {
        Duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse_duration_nanos(text).map(Duration)
    }
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
}
