//! From calls and effects to bytes.

use loadmaster_api::Raw;
use prost::Message as _;

use super::convert;
use super::message::{self, Left, Nothing, Step};
use super::reader::Ended;
use crate::engine::{Cycled, Effect, Event};
use crate::time::Now;

/// An object whose bytes were not kept cannot be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object came without the bytes it was read from")]
pub struct NoBytes;

/// Writes entries. A call is written before it is made, so that one that never ends is in the log; what it left, after it.
#[derive(Default)]
pub struct Writer {
    out: Vec<u8>,
    clock: Clock,
}

/// The time of the entry before, in the same block. Times are written as differences.
#[derive(Default)]
pub(super) struct Clock {
    mono: u64,
    /// How far the wall clock is ahead of the other.
    ahead: i64,
}

impl Clock {
    /// `mono` and `wall` of an entry.
    fn write(&mut self, now: Now) -> (i64, i64) {
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
            mono: crate::time::Mono(self.mono),
            wall: loadmaster_api::Timestamp(self.ahead.wrapping_add(self.mono.cast_signed())),
        }
    }
}

impl Writer {
    /// Nothing written yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// [`Engine::apply`](crate::Engine::apply) is about to be called; an object comes with the bytes it was read from.
    ///
    /// # Errors
    ///
    /// When an object comes without.
    pub fn apply(&mut self, now: Now, event: &Event, raw: Option<&Raw>) -> Result<(), NoBytes> {
        let step = convert::event(event, raw).ok_or(NoBytes)?;
        self.call(now, step);
        Ok(())
    }

    /// [`Engine::cycle`](crate::Engine::cycle) is about to be called.
    pub fn cycle(&mut self, now: Now) {
        self.call(now, Step::Cycle(Nothing {}));
    }

    /// [`Engine::wake`](crate::Engine::wake) is about to be called.
    pub fn wake(&mut self, now: Now) {
        self.call(now, Step::Wake(Nothing {}));
    }

    /// What the last call left, and what a cycle did.
    pub fn left(&mut self, effects: &[Effect], cycled: Option<Cycled>) {
        let left = Left::of(effects, cycled);
        if left != Left::default() {
            self.push(0, 0, Step::Left(left));
        }
    }

    /// The log ends here on purpose.
    pub fn end(&mut self, ended: Ended) {
        self.push(0, 0, Step::End(ended.code()));
    }

    /// Bytes that have been written and not taken.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The content of a block, for [`seal`](super::seal).
    pub fn take(&mut self) -> Vec<u8> {
        self.clock = Clock::default();
        std::mem::take(&mut self.out)
    }

    fn call(&mut self, now: Now, step: Step) {
        let (mono, wall) = self.clock.write(now);
        self.push(mono, wall, step);
    }

    fn push(&mut self, mono: i64, wall: i64, step: Step) {
        let entry = message::Entry { mono, wall, step: Some(step) };
        // A Vec has room for everything.
        let _ = entry.encode_length_delimited(&mut self.out);
    }
}
