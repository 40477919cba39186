//! Time as plugins and the engine see it: an input of every call of the engine, which never reads a clock.

use std::time::Duration;

use loadmaster_api::Timestamp;

/// Monotonic time: nanoseconds since the engine started. All durations are measured with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// Adds a duration; saturates at the maximum.
    #[must_use]
    pub fn after(self, duration: Duration) -> MonoTime {
        MonoTime(self.0.saturating_add(nanos(duration)))
    }

    /// Subtracts a duration; saturates at zero.
    #[must_use]
    pub fn before(self, duration: Duration) -> MonoTime {
        MonoTime(self.0.saturating_sub(nanos(duration)))
    }

    /// The duration since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: MonoTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Rounds down to a multiple of `step`, which must not be zero.
    #[must_use]
    pub fn floor(self, step: Duration) -> MonoTime {
        MonoTime(self.0 - self.0 % nanos(step).max(1))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The current time. Ordered by `mono`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// For durations and deadlines; never goes back.
    pub mono: MonoTime,
    /// For timestamps in objects.
    pub wall: Timestamp,
}

impl Default for Now {
    /// The start of the engine, on 1970-01-01: the time in a world that no engine owns.
    fn default() -> Now {
        Now { mono: MonoTime::default(), wall: Timestamp(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stays_in_range() {
        let second = Duration::from_secs(1);
        assert_eq!(MonoTime(5).after(second), MonoTime(1_000_000_005));
        assert_eq!(MonoTime(u64::MAX - 1).after(second), MonoTime(u64::MAX));
        assert_eq!(MonoTime(0).after(Duration::MAX), MonoTime(u64::MAX));
        assert_eq!(MonoTime(1_000_000_005).before(second), MonoTime(5));
        assert_eq!(MonoTime(5).before(second), MonoTime(0));
        assert_eq!(MonoTime(7).since(MonoTime(5)), Duration::from_nanos(2));
        assert_eq!(MonoTime(5).since(MonoTime(7)), Duration::ZERO);
        assert_eq!(MonoTime(1_999_999_999).floor(second), MonoTime(1_000_000_000));
        assert_eq!(MonoTime(2_000_000_000).floor(second), MonoTime(2_000_000_000));
    }
}
