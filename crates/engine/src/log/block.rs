//! Blocks: bytes with their length and checksum.

use lz4_flex::block::{compress, decompress};

use super::header::Header;
use super::{FORMAT, MAGIC};

/// Length of what stands before a block's bytes.
pub(super) const HEAD_LEN: usize = 16;

/// No block is longer, stored or not: the largest object an API server sends is a tenth of it.
pub(super) const LEN_MAX: usize = 256 << 20;

/// The beginning of a log.
pub fn begin(header: &Header) -> Vec<u8> {
    let mut bytes = [MAGIC, format!("{FORMAT}\n").as_bytes()].concat();
    // Strings and numbers have a form in JSON.
    let text = serde_json::to_vec(header).unwrap_or_default();
    bytes.extend_from_slice(&seal(&text));
    bytes
}

/// A block of what [`Writer::take`](super::Writer::take) gave.
pub fn seal(content: &[u8]) -> Vec<u8> {
    let stored = compress(content);
    let mut block = Vec::with_capacity(HEAD_LEN + stored.len());
    let number = |it: usize| u32::try_from(it).unwrap_or(u32::MAX).to_le_bytes();
    block.extend_from_slice(&number(stored.len()));
    block.extend_from_slice(&number(content.len()));
    block.extend_from_slice(&crc32fast::hash(&stored).to_le_bytes());
    let sum = crc32fast::hash(&block);
    block.extend_from_slice(&sum.to_le_bytes());
    block.extend_from_slice(&stored);
    block
}

/// What stands before a block's bytes.
pub(super) struct Head {
    pub stored_len: usize,
    content_len: usize,
    sum: u32,
}

impl Head {
    /// `None` when it is not what [`seal`] writes.
    pub fn read(bytes: &[u8; HEAD_LEN]) -> Option<Head> {
        let [stored_len, content_len, sum, own_sum] = *bytes.as_chunks::<4>().0 else {
            return None;
        };
        let head = Head {
            stored_len: u32::from_le_bytes(stored_len) as usize,
            content_len: u32::from_le_bytes(content_len) as usize,
            sum: u32::from_le_bytes(sum),
        };
        let is_whole = crc32fast::hash(&bytes[..12]) == u32::from_le_bytes(own_sum);
        (is_whole && head.stored_len <= LEN_MAX && head.content_len <= LEN_MAX).then_some(head)
    }

    /// The content of the bytes that follow. `None` when they have changed.
    pub fn open(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if crc32fast::hash(stored) != self.sum {
            return None;
        }
        decompress(stored, self.content_len).ok().filter(|it| it.len() == self.content_len)
    }
}
