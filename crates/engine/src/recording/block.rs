//! Blocks: compressed bytes with their length and checksum.

use lz4_flex::block::{compress, decompress};

use super::header::RecordingHeader;
use super::{FORMAT, MAGIC};

/// Length of a block's header.
pub(super) const HEAD_LEN: usize = 16;

/// Maximal length of a block, compressed or not: about ten times the largest object that an API server sends.
pub(super) const LEN_MAX: usize = 256 << 20;

/// The beginning of a recording: magic bytes and header.
pub fn encode_preamble(header: &RecordingHeader) -> Vec<u8> {
    let mut bytes = [MAGIC, format!("{FORMAT}\n").as_bytes()].concat();
    // Strings and numbers can always be written as JSON.
    let text = serde_json::to_vec(header).unwrap_or_default();
    bytes.extend_from_slice(&encode_block(&text));
    bytes
}

/// Encodes a block with the content from [`RecordingWriter::take_block`](super::RecordingWriter::take_block).
pub fn encode_block(content: &[u8]) -> Vec<u8> {
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

/// The header of a block.
pub(super) struct BlockHeader {
    pub stored_len: usize,
    content_len: usize,
    sum: u32,
}

impl BlockHeader {
    /// `None` if the checksum is wrong.
    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Option<BlockHeader> {
        let [stored_len, content_len, sum, own_sum] = *bytes.as_chunks::<4>().0 else {
            return None;
        };
        let head = BlockHeader {
            stored_len: u32::from_le_bytes(stored_len) as usize,
            content_len: u32::from_le_bytes(content_len) as usize,
            sum: u32::from_le_bytes(sum),
        };
        let is_whole = crc32fast::hash(&bytes[..12]) == u32::from_le_bytes(own_sum);
        (is_whole && head.stored_len <= LEN_MAX && head.content_len <= LEN_MAX).then_some(head)
    }

    /// Decodes the content from the bytes that follow. `None` if they are corrupted.
    pub fn decode_content(&self, stored: &[u8]) -> Option<Vec<u8>> {
        if crc32fast::hash(stored) != self.sum {
            return None;
        }
        decompress(stored, self.content_len).ok().filter(|it| it.len() == self.content_len)
    }
}
