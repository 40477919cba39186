//! Cutting a watch stream into its frames.

use super::ProtoError;

/// Bytes of the length in front of a frame.
const HEADER_LEN: usize = 4;

/// Splits a stream of frames, each led by its length in four bytes (big endian), as the API server sends it
/// for `application/vnd.kubernetes.protobuf;stream=watch`. Takes pieces of any size, does no I/O.
#[derive(Debug)]
pub struct WatchFrames {
    buffer: Vec<u8>,
    /// Where the next frame begins in the buffer.
    start: usize,
    frame_bytes_max: usize,
}

impl WatchFrames {
    /// A splitter that rejects frames of more than `frame_bytes_max` bytes.
    pub fn new(frame_bytes_max: usize) -> WatchFrames {
        WatchFrames { buffer: Vec::new(), start: 0, frame_bytes_max }
    }

    /// Takes the next piece of the stream. Holds what is not taken by [`WatchFrames::next`]: call that until it
    /// has no more frames before the next push.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// The next frame, without its length; None until more has been pushed.
    ///
    /// # Errors
    ///
    /// When the frame is larger than allowed. The stream cannot be followed any further then.
    #[expect(clippy::should_implement_trait, reason = "a frame borrows from its splitter")]
    pub fn next(&mut self) -> Result<Option<&[u8]>, ProtoError> {
        let rest = &self.buffer[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let len = u32::from_be_bytes(*header) as usize;
        if len > self.frame_bytes_max {
            return Err(ProtoError::FrameTooLarge { len, len_max: self.frame_bytes_max });
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        self.start += HEADER_LEN + len;
        Ok(Some(frame))
    }

    /// Whether the stream ended in the middle of a frame if it ends now.
    pub fn is_mid_frame(&self) -> bool {
        self.start < self.buffer.len()
    }
}
