//! Recording and replay: every call that changes an [`Engine`](crate::Engine), in order, and the effects of each, as bytes.
//!
//! The engine is deterministic: its settings and these calls determine all effects. Replayed on an engine with the same settings ([`Replay`])
//! they lead to the same effects, or to the first difference.
//!
//! ```text
//! "loadmaster log 1\n"
//! block: the settings of the engine, in JSON (Header)
//! block, block, ...: entries, each a length-delimited protobuf message
//! ```
//!
//! A block begins with four 32-bit little-endian numbers: stored length, length of its content, CRC-32 of the stored bytes, CRC-32 of these
//! twelve bytes; the content is compressed with LZ4. So a missing end can be distinguished from corrupted bytes. Objects are recorded as the
//! API server sent them, and decoded by the replay: a later version that reads more fields finds them.
//!
//! | module | |
//! | --- | --- |
//! | `header` | the settings of the engine |
//! | `message` | calls and effects as protobuf messages |
//! | `convert` | conversion of events and effects to these messages, and back |
//! | `block` | encoding of blocks |
//! | `writer`, `reader`; `clock`, `end_reason` | encoding of entries; of their times, and of why a recording was ended |
//! | `replay` | repeats the calls and compares the effects |
//! | `describe` | effects as text, for differences |
//!
//! There is no I/O here: [`RecordingWriter`] produces bytes, [`RecordingReader`] takes them in pieces of any size.

mod block;
mod clock;
mod convert;
mod describe;
mod end_reason;
mod header;
mod message;
mod reader;
mod replay;
#[cfg(test)]
mod tests;
mod writer;

pub use block::{encode_block, encode_preamble};
pub use end_reason::RecordingEndReason;
pub use header::RecordingHeader;
pub use message::RecordedEffects;
pub use reader::{
    EngineCall, RecordingEnd, RecordingEntry, RecordingError, RecordingItem, RecordingReader,
};
pub use replay::{
    BindRequest, BuildConfiguration, Replay, ReplayDifference, ReplayReport, bind_request_of_effect,
};
pub use writer::{MissingObjectBytes, RecordingWriter};

/// The magic bytes of a recording, up to the version of its format.
const MAGIC: &[u8] = b"loadmaster log ";
/// The version of the format that is written, and the only one that can be read.
const FORMAT: u32 = 1;
