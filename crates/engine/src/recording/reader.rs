//! Reads calls and effects from bytes.

use bytes::{Buf, Bytes};
use loadmaster_api::ExtraFieldsByKind;
use prost::Message as _;

use super::block::{BlockHeader, HEAD_LEN};
use super::clock::Clock;
use super::convert::{self, EventError};
use super::end_reason::RecordingEndReason;
use super::header::RecordingHeader;
use super::message::{self, EntryBody, RecordedEffects};
use super::{FORMAT, MAGIC};
use crate::engine::EngineEvent;
use crate::time::Now;

/// An item of a recording.
#[derive(Debug)]
pub enum RecordingItem {
    /// The settings of the engine: the first item.
    Header(Box<RecordingHeader>),
    /// All others.
    Entry(RecordingEntry),
}

/// An entry of a recording.
#[derive(Debug)]
pub enum RecordingEntry {
    /// The engine was called.
    Call { now: Now, call: EngineCall },
    /// The effects of that call.
    Effects(RecordedEffects),
    /// The recording ends here on purpose.
    End(RecordingEndReason),
}

/// A call to the engine.
#[derive(Debug)]
pub enum EngineCall {
    /// [`Engine::apply_event`](crate::Engine::apply_event).
    Apply(EngineEvent),
    /// The same for [`EngineEvent::Reconfigured`]: the KubeSchedulerConfiguration, whose plugins the reader does not have.
    Reconfigure(String),
    /// [`Engine::cycle`](crate::Engine::cycle).
    Cycle,
    /// [`Engine::handle_timeouts`](crate::Engine::handle_timeouts).
    HandleTimeouts,
}

/// How the bytes of a recording end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingEnd {
    /// With an end entry.
    Complete(RecordingEndReason),
    /// After a block, without an end entry: the process that wrote it was killed.
    Unfinished,
    /// Within a block: the process that wrote it was killed. The last `n_bytes` bytes were ignored.
    Truncated {
        /// Number of ignored bytes.
        n_bytes: usize,
    },
}

/// Why bytes are not a valid recording. Positions are byte offsets in the file, positions within a block are offsets in its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The bytes do not begin with the magic bytes and a header.
    #[error(
        "at byte 0: expected a recording, which begins with \"loadmaster log {FORMAT}\" and a header"
    )]
    NotARecording,
    /// The version of the format is not supported.
    #[error("at byte {}: expected format {FORMAT} of a recording, found {found:?}", MAGIC.len())]
    Format {
        /// The version found.
        found: String,
    },
    /// The header of a block is corrupted.
    #[error(
        "at byte {at}: expected the header of a block with its checksum: the file is corrupted"
    )]
    BlockHeader {
        /// Where the block begins.
        at: u64,
    },
    /// The content of a block is corrupted.
    #[error("at byte {at}: expected a block with its checksum: the file is corrupted")]
    Block {
        /// Where it begins.
        at: u64,
    },
    /// The header cannot be read.
    #[error("at byte {at}: expected the settings of the scheduler")]
    Header {
        /// Where its block begins.
        at: u64,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// An entry cannot be decoded.
    #[error("in the block at byte {at}, at its byte {within}: expected an entry")]
    Entry {
        /// Where its block begins.
        at: u64,
        /// Where it begins in it.
        within: usize,
        /// What is wrong.
        #[source]
        source: prost::DecodeError,
    },
    /// The event of an entry cannot be decoded.
    #[error("in the block at byte {at}, in the entry at its byte {within}")]
    Event {
        /// Where its block begins.
        at: u64,
        /// Where it begins in it.
        within: usize,
        /// What is wrong.
        #[source]
        source: EventError,
    },
}

/// Reads a recording from pieces of any size.
#[derive(Default)]
pub struct RecordingReader {
    /// Bytes of the file that have not been read, and their offset.
    buffer: Vec<u8>,
    start: usize,
    at: u64,
    has_begun: bool,
    has_header: bool,
    /// The rest of the current block, its length, and its offset in the file.
    block: Bytes,
    block_len: usize,
    block_at: u64,
    clock: Clock,
    ended: Option<RecordingEndReason>,
    needs: ExtraFieldsByKind,
}

impl RecordingReader {
    /// A reader without any bytes.
    pub fn new() -> RecordingReader {
        RecordingReader::default()
    }

    /// Sets the fields of pods and nodes that the engine needs ([`Engine::extra_fields`](crate::Engine::extra_fields)); none until this is called.
    pub fn set_extra_fields(&mut self, needs: ExtraFieldsByKind) {
        self.needs = needs;
    }

    /// Adds the next bytes of the file.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Reads the next item; `None` when more bytes are needed, or at the end.
    ///
    /// # Errors
    ///
    /// When the bytes are not a recording, or are corrupted.
    pub fn read_item(&mut self) -> Result<Option<RecordingItem>, RecordingError> {
        if !self.has_begun && !self.begin()? {
            return Ok(None);
        }
        while self.block.is_empty() {
            if !self.open()? {
                return Ok(None);
            }
            if !self.has_header {
                self.has_header = true;
                let block = std::mem::take(&mut self.block);
                let header = loadmaster_stdx::json::from_slice(&block);
                let header = header
                    .map_err(|source| RecordingError::Header { at: self.block_at, source })?;
                return Ok(Some(RecordingItem::Header(Box::new(header))));
            }
        }
        let within = self.block_len - self.block.remaining();
        let at = self.block_at;
        let entry = message::Entry::decode_length_delimited(&mut self.block)
            .map_err(|source| RecordingError::Entry { at, within, source })?;
        let entry =
            self.entry(entry).map_err(|source| RecordingError::Event { at, within, source })?;
        if let RecordingEntry::End(ended) = &entry {
            self.ended = Some(*ended);
        }
        Ok(Some(RecordingItem::Entry(entry)))
    }

    /// How the file ends; to be called when all bytes were pushed and [`RecordingReader::read_item`] has returned `None`.
    ///
    /// # Errors
    ///
    /// When it ends before its header.
    pub fn recording_end(&self) -> Result<RecordingEnd, RecordingError> {
        let n_bytes = self.buffer.len() - self.start;
        match (self.has_header, self.ended, n_bytes) {
            (false, ..) => Err(RecordingError::NotARecording),
            (true, Some(ended), 0) => Ok(RecordingEnd::Complete(ended)),
            (true, None, 0) => Ok(RecordingEnd::Unfinished),
            (true, _, n_bytes) => Ok(RecordingEnd::Truncated { n_bytes }),
        }
    }

    /// Reads the first line of a recording.
    fn begin(&mut self) -> Result<bool, RecordingError> {
        let shorter = self.buffer.len().min(MAGIC.len());
        if self.buffer[..shorter] != MAGIC[..shorter] {
            return Err(RecordingError::NotARecording);
        }
        let rest = &self.buffer[shorter..];
        let Some(len) = rest.iter().take(16).position(|byte| *byte == b'\n') else {
            return if rest.len() < 16 { Ok(false) } else { Err(RecordingError::NotARecording) };
        };
        let found = String::from_utf8_lossy(&rest[..len]).into_owned();
        if found != FORMAT.to_string() {
            return Err(RecordingError::Format { found });
        }
        self.skip(MAGIC.len() + len + 1);
        self.has_begun = true;
        Ok(true)
    }

    /// Reads the next block, if it is complete.
    fn open(&mut self) -> Result<bool, RecordingError> {
        let rest = &self.buffer[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD_LEN>() else { return Ok(false) };
        let head = BlockHeader::decode(head).ok_or(RecordingError::BlockHeader { at: self.at })?;
        let Some(stored) = rest.get(..head.stored_len) else { return Ok(false) };
        let content = head.decode_content(stored).ok_or(RecordingError::Block { at: self.at })?;
        self.block = content.into();
        self.block_len = self.block.len();
        self.block_at = self.at;
        self.clock = Clock::default();
        self.skip(HEAD_LEN + head.stored_len);
        Ok(true)
    }

    fn skip(&mut self, n_bytes: usize) {
        self.start += n_bytes;
        self.at += n_bytes as u64;
    }

    fn entry(&mut self, entry: message::Entry) -> Result<RecordingEntry, EventError> {
        let step = entry.step.ok_or(EventError::Field { expected: "a call or its effects" })?;
        let call = match step {
            EntryBody::Effects(left) => return Ok(RecordingEntry::Effects(left)),
            EntryBody::End(code) => {
                let ended = RecordingEndReason::of(code);
                let ended = ended.ok_or(EventError::Field { expected: "the reason of the end" })?;
                return Ok(RecordingEntry::End(ended));
            }
            EntryBody::Upsert(upsert) => {
                EngineCall::Apply(EngineEvent::Upsert(convert::object(upsert, self.needs)?))
            }
            EntryBody::Delete(deleted) => {
                EngineCall::Apply(EngineEvent::Delete(convert::object_key(&deleted)?))
            }
            EntryBody::Replied(replied) => EngineCall::Apply(convert::replied(replied)?),
            EntryBody::ExtenderReplied(replied) => {
                EngineCall::Apply(convert::extender_replied(replied)?)
            }
            EntryBody::ObjectChanged(changed) => EngineCall::Apply(convert::changed(&changed)?),
            EntryBody::Synced(synced) => EngineCall::Apply(convert::synced(&synced)),
            EntryBody::Published(published) => EngineCall::Apply(convert::published(published)?),
            EntryBody::Permit(permit) => EngineCall::Apply(convert::permit(permit)),
            EntryBody::Activate(uids) => {
                let uids = uids.uids.into_iter().map(Into::into).collect();
                EngineCall::Apply(EngineEvent::Activate(uids))
            }
            EntryBody::Reconfigured(yaml) => EngineCall::Reconfigure(yaml),
            EntryBody::Cycle(_) => EngineCall::Cycle,
            EntryBody::HandleTimeouts(_) => EngineCall::HandleTimeouts,
        };
        Ok(RecordingEntry::Call { now: self.clock.read(entry.mono, entry.wall), call })
    }
}
