//! A run as bytes: every call that changed an [`Engine`](crate::Engine), in order, and the effects each left.
//!
//! The engine is a function of how it was built and of these calls, so that a log of them is the run: fed to an engine built the same
//! way ([`Replay`]), they lead to the same effects, or to the first one that differs.
//!
//! ```text
//! "loadmaster log 1\n"
//! block: how the engine was built, in JSON (Header)
//! block, block, ...: entries, each a protobuf message after its length
//! ```
//!
//! A block begins with four numbers of 32 bits, little end first: length as stored, length of its content, CRC-32 of the bytes that
//! are stored, CRC-32 of these twelve bytes; the content is compressed with LZ4. So an end that was never written is told from bytes
//! that have changed. Objects are logged as the API server sent them, and decoded when they are replayed: a later version that reads
//! more of them finds it.
//!
//! | module | |
//! | --- | --- |
//! | `header` | how the engine was built |
//! | `message` | calls and effects as protobuf messages |
//! | `block` | blocks to bytes and back |
//! | `writer`, `reader` | entries to blocks and back |
//! | `replay` | makes the calls again and compares |
//!
//! Nothing here knows a file: [`Writer`] makes bytes, [`Reader`] takes them in pieces of any size.

mod block;
mod convert;
mod header;
mod message;
mod reader;
mod replay;
#[cfg(test)]
mod tests;
mod words;
mod writer;

pub use block::{begin, seal};
pub use header::Header;
pub use message::Left;
pub use reader::{Called, Ended, Entry, LogError, Piece, Reader, Tail};
pub use replay::{BindOf, Difference, Replay, Report, bind_of};
pub use writer::{NoBytes, Writer};

/// What a log begins with, up to the number of its format.
const MAGIC: &[u8] = b"loadmaster log ";
/// The format that is written, and the only one that is read.
const FORMAT: u32 = 1;
