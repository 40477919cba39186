//! Time as the engine is told it: it never looks at a clock.

use std::time::Duration;

use loadmaster_api::Timestamp;

/// Nanoseconds since the engine started. It never goes back; all durations are measured with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// This much later; the end of time if that is too far away.
    #[must_use]
    pub fn after(self, duration: Duration) -> Mono {
        Mono(self.0.saturating_add(nanos(duration)))
    }

    /// This much earlier; the start if that is before it.
    #[must_use]
    pub fn before(self, duration: Duration) -> Mono {
        Mono(self.0.saturating_sub(nanos(duration)))
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The last whole multiple of `step` that is not later. `step` is not zero.
    #[must_use]
    pub fn floor(self, step: Duration) -> Mono {
        Mono(self.0 - self.0 % nanos(step).max(1))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment: `mono` for durations, `wall` for timestamps of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stays_in_range() {
        let second = Duration::from_secs(1);
        assert_eq!(Mono(5).after(second), Mono(1_000_000_005));
        assert_eq!(Mono(u64::MAX - 1).after(second), Mono(u64::MAX));
        assert_eq!(Mono(0).after(Duration::MAX), Mono(u64::MAX));
        assert_eq!(Mono(1_000_000_005).before(second), Mono(5));
        assert_eq!(Mono(5).before(second), Mono(0));
        assert_eq!(Mono(7).since(Mono(5)), Duration::from_nanos(2));
        assert_eq!(Mono(5).since(Mono(7)), Duration::ZERO);
        assert_eq!(Mono(1_999_999_999).floor(second), Mono(1_000_000_000));
        assert_eq!(Mono(2_000_000_000).floor(second), Mono(2_000_000_000));
    }
}
