//! Clocks and the hostname. The engine does not read them itself.

#![expect(clippy::disallowed_types, reason = "clocks are read here and passed to the engine")]

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use loadmaster_api::Timestamp;
use loadmaster_engine::{MonoTime, Now};

static STARTED: OnceLock<Instant> = OnceLock::new();

/// Now, by both clocks.
pub(super) fn now() -> Now {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let wall = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    Now { mono: MonoTime(ticks()), wall: Timestamp(wall) }
}

/// Monotonic time in nanoseconds since the first call.
pub(super) fn ticks() -> u64 {
    let started = STARTED.get_or_init(Instant::now);
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// This machine's name.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
