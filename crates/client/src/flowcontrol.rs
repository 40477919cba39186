//! Rate limiting and backoff. Owns no clock: times are durations since any fixed moment.

use std::time::Duration;

use loadmaster_stdx::Rng;

/// A token bucket rate limiter, as client-go's flowcontrol: `qps` tokens per second, at most `burst` at once. A token may be
/// reserved
/// before it is there; the number of tokens is then negative.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Infinite without a limit.
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Duration,
}

impl TokenBucket {
    /// A full bucket. As upstream: a negative `qps` means no limit, zero means client-go's default of 5, and so does a `burst`
    /// of zero with 10.
    pub fn new(qps: f32, burst: i32) -> TokenBucket {
        let per_second = match qps {
            qps if qps < 0.0 => f64::INFINITY,
            0.0 => 5.0,
            qps => f64::from(qps),
        };
        let burst = if burst == 0 { 10.0 } else { f64::from(burst.max(1)) };
        TokenBucket { per_second, burst, tokens: burst, filled_at: Duration::ZERO }
    }

    /// Whether there is no limit.
    pub fn is_unlimited(&self) -> bool {
        self.per_second.is_infinite()
    }

    /// Reserves a token. Returns how long to wait before using it.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        if self.is_unlimited() {
            return Duration::ZERO;
        }
        let passed = now.saturating_sub(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst) - 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or(Duration::MAX)
    }
}

/// A Retry-After of a server, or of a proxy in front of it, is honoured up to this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Exponential backoff with jitter, as client-go's reflector: 800 ms doubled up to 30 s, each lengthened at random by up to its own
/// length, and reset after two minutes without a failure.
#[derive(Clone, Debug)]
pub struct Backoff {
    rng: Rng,
    pause: Duration,
    last: Option<Duration>,
}

const PAUSE_MIN: Duration = Duration::from_millis(800);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const RESET_AFTER: Duration = Duration::from_secs(120);

impl Backoff {
    /// A backoff that starts with the shortest delay.
    pub fn new(rng: Rng) -> Backoff {
        Backoff { rng, pause: PAUSE_MIN, last: None }
    }

    /// The delay before the next attempt.
    pub fn next_delay(&mut self, now: Duration) -> Duration {
        if self.last.is_some_and(|last| now.saturating_sub(last) > RESET_AFTER) {
            self.pause = PAUSE_MIN;
        }
        self.last = Some(now);
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause + random_fraction(&mut self.rng, pause)
    }
}

/// A random duration from zero to `whole`.
pub(crate) fn random_fraction(rng: &mut Rng, whole: Duration) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(rng.below(nanos.saturating_add(1).max(1)))
}

/// A seed from the operating system, for identities and for delays that must differ between replicas.
pub fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    // If this fails, only the delays and choices of replicas no longer differ.
    let _ = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn token_buckets_limit_rate_and_burst() {
        #[track_caller]
        fn check(qps: f32, burst: i32, at_ms: &[u64], want_ms: &[u64]) {
            let mut bucket = TokenBucket::new(qps, burst);
            let waits: Vec<u128> =
                at_ms.iter().map(|at| bucket.reserve(ms(*at)).as_micros().div_ceil(1000)).collect();
            assert_eq!(waits, want_ms.iter().map(|ms| u128::from(*ms)).collect::<Vec<_>>());
        }
        check(10.0, 2, &[0, 0, 0, 0], &[0, 0, 100, 200]);
        check(10.0, 2, &[0, 0, 0, 200, 1000], &[0, 0, 100, 0, 0]);
        // Never more than `burst` tokens.
        check(10.0, 1, &[0, 60_000, 60_000], &[0, 0, 100]);
        check(-1.0, 1, &[0; 5], &[0; 5]);
        check(0.0, 0, &[0; 12], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 400]);
        // A clock that goes backwards adds no tokens.
        check(10.0, 1, &[1000, 500, 1000], &[0, 100, 200]);
    }

    #[test]
    fn backoff_doubles_and_resets() {
        let mut backoff = Backoff::new(Rng::new(1));
        let mut now = Duration::ZERO;
        for least_ms in [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            let pause = backoff.next_delay(now);
            assert!(pause >= ms(least_ms) && pause <= ms(least_ms * 2), "{pause:?} {least_ms}");
            now += pause;
        }
        assert!(backoff.next_delay(now + ms(50_000)) >= ms(30_000));
        assert!(backoff.next_delay(now + ms(300_000)) <= ms(1_600));
    }
}
