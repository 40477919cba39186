//! Writes calls and effects as bytes.

use loadmaster_api::RawObject;
use prost::Message as _;

use super::clock::Clock;
use super::convert;
use super::end_reason::RecordingEndReason;
use super::message::{self, Empty, EntryBody, RecordedEffects};
use crate::engine::{CycleResult, Effect, EngineEvent};
use crate::time::Now;

/// An object without its original bytes cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object without its original bytes cannot be recorded")]
pub struct MissingObjectBytes;

/// Writes entries. A call is written before it is made, so that a call that never returns is in the recording; its effects are written after
/// it.
#[derive(Default)]
pub struct RecordingWriter {
    out: Vec<u8>,
    clock: Clock,
    n_entries: u64,
}

impl RecordingWriter {
    /// A writer without any entries.
    pub fn new() -> RecordingWriter {
        RecordingWriter::default()
    }

    /// Writes a call of [`Engine::apply_event`](crate::Engine::apply_event); an object must come with the bytes it was decoded from.
    ///
    /// # Errors
    ///
    /// When an object comes without its bytes.
    pub fn write_apply_event(
        &mut self,
        now: Now,
        event: &EngineEvent,
        raw: Option<&RawObject>,
    ) -> Result<(), MissingObjectBytes> {
        let step = convert::event(event, raw).ok_or(MissingObjectBytes)?;
        self.call(now, step);
        Ok(())
    }

    /// Writes a call of [`Engine::cycle`](crate::Engine::cycle).
    pub fn write_cycle(&mut self, now: Now) {
        self.call(now, EntryBody::Cycle(Empty {}));
    }

    /// Writes a call of [`Engine::handle_timeouts`](crate::Engine::handle_timeouts).
    pub fn write_handle_timeouts(&mut self, now: Now) {
        self.call(now, EntryBody::HandleTimeouts(Empty {}));
    }

    /// Writes the effects of the last call, and the result of a cycle.
    pub fn write_effects(&mut self, effects: &[Effect], cycled: Option<CycleResult>) {
        let left = RecordedEffects::of(effects, cycled);
        if left != RecordedEffects::default() {
            self.push(0, 0, EntryBody::Effects(left));
        }
    }

    /// Writes the end of the recording.
    pub fn write_end(&mut self, ended: RecordingEndReason) {
        self.push(0, 0, EntryBody::End(ended.code()));
    }

    /// Number of entries that have been written, which is the number of the last one.
    pub fn n_entries(&self) -> u64 {
        self.n_entries
    }

    /// Number of bytes that have been written and not taken.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether there are no such bytes.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// The content of a block, for [`encode_block`](super::encode_block).
    pub fn take_block(&mut self) -> Vec<u8> {
        self.clock = Clock::default();
        std::mem::take(&mut self.out)
    }

    fn call(&mut self, now: Now, step: EntryBody) {
        let (mono, wall) = self.clock.write(now);
        self.push(mono, wall, step);
    }

    fn push(&mut self, mono: i64, wall: i64, step: EntryBody) {
        self.n_entries += 1;
        let entry = message::Entry { mono, wall, step: Some(step) };
        // Writing to a Vec cannot fail.
        let _ = entry.encode_length_delimited(&mut self.out);
    }
}
