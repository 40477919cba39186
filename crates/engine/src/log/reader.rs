//! From bytes to calls and effects.

use bytes::{Buf, Bytes};
use loadmaster_api::Needs;
use prost::Message as _;

use super::block::{HEAD_LEN, Head};
use super::convert::{self, EventError};
use super::header::Header;
use super::message::{self, Left, Step};
use super::writer::Clock;
use super::{FORMAT, MAGIC};
use crate::engine::Event;
use crate::time::Now;

/// A piece of a log.
#[derive(Debug)]
pub enum Piece {
    /// How the engine was built: the first piece.
    Header(Box<Header>),
    /// Any other.
    Entry(Entry),
}

/// A step of a run.
#[derive(Debug)]
pub enum Entry {
    /// The engine was called.
    Call { now: Now, call: Called },
    /// What that call left.
    Left(Left),
    /// The log ends here on purpose.
    End(Ended),
}

/// Which call.
#[derive(Debug)]
pub enum Called {
    /// [`Engine::apply`](crate::Engine::apply).
    Apply(Event),
    /// [`Engine::cycle`](crate::Engine::cycle).
    Cycle,
    /// [`Engine::wake`](crate::Engine::wake).
    Wake,
}

/// Why a log ends where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The scheduler was stopped.
    Stopped,
    /// The log was as large as it may be.
    Full,
    /// The disk could not keep up.
    Behind,
    /// Something came that cannot be logged.
    Unloggable,
}

impl Ended {
    pub(super) fn code(self) -> i32 {
        match self {
            Ended::Stopped => 1,
            Ended::Full => 2,
            Ended::Behind => 3,
            Ended::Unloggable => 4,
        }
    }

    fn of(code: i32) -> Option<Ended> {
        [Ended::Stopped, Ended::Full, Ended::Behind, Ended::Unloggable]
            .into_iter()
            .find(|ended| ended.code() == code)
    }
}

/// How the bytes of a log end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With its end.
    Whole(Ended),
    /// After a block, without an end: whoever wrote it was killed.
    Open,
    /// Within a block: whoever wrote it was killed. Its last bytes, so many, were left out.
    Torn {
        /// How many.
        n_bytes: usize,
    },
}

/// Why bytes are not a log. Places count bytes of the file from 0, those within a block bytes of its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Something else.
    #[error(
        "at byte 0: expected a recording, which begins with \"loadmaster log {FORMAT}\" and a header"
    )]
    NoLog,
    /// Another format.
    #[error("at byte {}: expected format {FORMAT} of a recording, found {found:?}", MAGIC.len())]
    Format {
        /// What stands there.
        found: String,
    },
    /// The lengths before a block have changed.
    #[error("at byte {at}: expected the head of a block with its checksum: the file is damaged")]
    Head {
        /// Where the block begins.
        at: u64,
    },
    /// A block has changed.
    #[error("at byte {at}: expected a block with its checksum: the file is damaged")]
    Block {
        /// Where it begins.
        at: u64,
    },
    /// The header cannot be read.
    #[error("at byte {at}: expected how the scheduler was set up")]
    Header {
        /// Where its block begins.
        at: u64,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// An entry is none.
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
    /// What an entry tells cannot be read.
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

/// Reads a log from pieces of any size.
#[derive(Default)]
pub struct Reader {
    /// Bytes of the file that have not been read, and where they begin in it.
    buffer: Vec<u8>,
    start: usize,
    at: u64,
    has_begun: bool,
    has_header: bool,
    /// The rest of the block at hand, how long it was, and where it begins in the file.
    block: Bytes,
    block_len: usize,
    block_at: u64,
    clock: Clock,
    ended: Option<Ended>,
    needs: Needs,
}

impl Reader {
    /// Nothing read yet.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// What the engine that lives through it needs of pods and nodes ([`Engine::needs`](crate::Engine::needs)); nothing until this
    /// is called.
    pub fn keep(&mut self, needs: Needs) {
        self.needs = needs;
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` when more bytes are needed, or there are none.
    ///
    /// # Errors
    ///
    /// When the bytes are no log, or not what was written.
    pub fn read(&mut self) -> Result<Option<Piece>, LogError> {
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
                let header = serde_json::from_slice(&block);
                let header =
                    header.map_err(|source| LogError::Header { at: self.block_at, source })?;
                return Ok(Some(Piece::Header(Box::new(header))));
            }
        }
        let within = self.block_len - self.block.remaining();
        let at = self.block_at;
        let entry = message::Entry::decode_length_delimited(&mut self.block)
            .map_err(|source| LogError::Entry { at, within, source })?;
        let entry = self.entry(entry).map_err(|source| LogError::Event { at, within, source })?;
        if let Entry::End(ended) = &entry {
            self.ended = Some(*ended);
        }
        Ok(Some(Piece::Entry(entry)))
    }

    /// How the file ends; ask when all of it was pushed and [`Reader::read`] gives nothing more.
    ///
    /// # Errors
    ///
    /// When it ends before its header.
    pub fn tail(&self) -> Result<Tail, LogError> {
        let n_bytes = self.buffer.len() - self.start;
        match (self.has_header, self.ended, n_bytes) {
            (false, ..) => Err(LogError::NoLog),
            (true, Some(ended), 0) => Ok(Tail::Whole(ended)),
            (true, None, 0) => Ok(Tail::Open),
            (true, _, n_bytes) => Ok(Tail::Torn { n_bytes }),
        }
    }

    /// The line that all logs begin with.
    fn begin(&mut self) -> Result<bool, LogError> {
        let shorter = self.buffer.len().min(MAGIC.len());
        if self.buffer[..shorter] != MAGIC[..shorter] {
            return Err(LogError::NoLog);
        }
        let rest = &self.buffer[shorter..];
        let Some(len) = rest.iter().take(16).position(|byte| *byte == b'\n') else {
            return if rest.len() < 16 { Ok(false) } else { Err(LogError::NoLog) };
        };
        let found = String::from_utf8_lossy(&rest[..len]).into_owned();
        if found != FORMAT.to_string() {
            return Err(LogError::Format { found });
        }
        self.skip(MAGIC.len() + len + 1);
        self.has_begun = true;
        Ok(true)
    }

    /// The next block, if it is there as a whole.
    fn open(&mut self) -> Result<bool, LogError> {
        let rest = &self.buffer[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD_LEN>() else { return Ok(false) };
        let head = Head::read(head).ok_or(LogError::Head { at: self.at })?;
        let Some(stored) = rest.get(..head.stored_len) else { return Ok(false) };
        let content = head.open(stored).ok_or(LogError::Block { at: self.at })?;
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

    fn entry(&mut self, entry: message::Entry) -> Result<Entry, EventError> {
        let step = entry.step.ok_or(EventError::Field { expected: "a call or what it left" })?;
        let call = match step {
            Step::Left(left) => return Ok(Entry::Left(left)),
            Step::End(code) => {
                let ended = Ended::of(code);
                let ended = ended.ok_or(EventError::Field { expected: "a reason to end" })?;
                return Ok(Entry::End(ended));
            }
            Step::Set(set) => Called::Apply(Event::Set(convert::object(set, self.needs)?)),
            Step::Gone(gone) => Called::Apply(Event::Gone(convert::name(&gone)?)),
            Step::Replied(replied) => Called::Apply(convert::replied(replied)?),
            Step::Extended(extended) => Called::Apply(convert::extended(extended)?),
            Step::Changed(changed) => Called::Apply(convert::changed(&changed)?),
            Step::Listed(listed) => Called::Apply(convert::listed(&listed)),
            Step::Published(published) => Called::Apply(convert::published(published)?),
            Step::Permit(permit) => Called::Apply(convert::permit(permit)),
            Step::Activate(uids) => {
                let uids = uids.uids.into_iter().map(Into::into).collect();
                Called::Apply(Event::Activate(uids))
            }
            Step::Cycle(_) => Called::Cycle,
            Step::Wake(_) => Called::Wake,
        };
        Ok(Entry::Call { now: self.clock.read(entry.mono, entry.wall), call })
    }
}
