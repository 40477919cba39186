//! Times of entries, as differences to the entry before.

use loadmaster_api::Timestamp;

use crate::time::{MonoTime, Now};

/// The time of the previous entry of the block. Times are written as differences.
#[derive(Default)]
pub(super) struct Clock {
    mono: u64,
    /// The difference of the wall clock to the monotonic clock.
    ahead: i64,
}

impl Clock {
    /// `mono` and `wall` of an entry.
    pub fn write(&mut self, now: Now) -> (i64, i64) {
        let ahead = now.wall.0.wrapping_sub(now.mono.0.cast_signed());
        let written =
            (now.mono.0.wrapping_sub(self.mono).cast_signed(), ahead.wrapping_sub(self.ahead));
        *self = Clock { mono: now.mono.0, ahead };
        written
    }

    pub fn read(&mut self, mono: i64, wall: i64) -> Now {
        self.mono = self.mono.wrapping_add_signed(mono);
        self.ahead = self.ahead.wrapping_add(wall);
        Now {
            mono: MonoTime(self.mono),
            wall: Timestamp(self.ahead.wrapping_add(self.mono.cast_signed())),
        }
    }
}
