//! Frames: bytes with their length and checksums, one behind the other.
//!
//! A frame is written when the one before is on disk. So a frame with something valid behind it was whole once, and is
//! damaged if it is not whole now; only the last one can have been cut off while it was written.

/// At the start of every file.
pub(super) const MAGIC: &[u8; 8] = b"LMDATA1\n";

/// Before each payload: its length, its checksum, and the checksum of these two.
pub(super) const HEAD_BYTES: usize = 12;

/// A disk writes sectors whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// What the head of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub len: u32,
    checksum: u32,
}

impl Head {
    /// None if the bytes are not a head.
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let bytes: &[u8; HEAD_BYTES] = bytes.get(..HEAD_BYTES)?.try_into().ok()?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        (word(8) == crc32fast::hash(&bytes[..8])).then(|| Head { len: word(0), checksum: word(4) })
    }

    /// Whether a payload is the one that was written.
    pub fn fits(self, payload: &[u8]) -> bool {
        payload.len() == self.len as usize && crc32fast::hash(payload) == self.checksum
    }
}

/// Appends a frame. The payload must be shorter than 4 GiB; frames here have some megabytes.
pub(super) fn append(out: &mut Vec<u8>, payload: &[u8]) {
    let at = out.len();
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let checksum = crc32fast::hash(&out[at..]);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Whether a frame that is not whole was cut off while it was written, by the process or the machine; else it is damaged.
/// `tail` is all there is of the file from the frame on, which begins at byte `at`.
pub(super) fn is_torn(tail: &[u8], at: u64) -> bool {
    if tail.len() < HEAD_BYTES {
        return true;
    }
    match Head::read(tail) {
        Some(head) => match (HEAD_BYTES + head.len as usize).cmp(&tail.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => has_unwritten_sector(tail, at),
            std::cmp::Ordering::Less => false,
        },
        None => has_unwritten_sector(tail, at) && !has_frame(tail),
    }
}

/// Sectors that never came to the disk read as zeros; what is written has no such runs.
fn has_unwritten_sector(tail: &[u8], at: u64) -> bool {
    const RUN_BYTES_MIN: usize = 16;
    let first = usize::try_from(SECTOR_BYTES - at % SECTOR_BYTES).unwrap_or(0).min(tail.len());
    let (head, rest) = tail.split_at(first);
    let mut sectors = std::iter::once(head).chain(rest.chunks(SECTOR_BYTES as usize));
    sectors.any(|it| it.len() >= RUN_BYTES_MIN && it.iter().all(|byte| *byte == 0))
}

/// Whether a whole frame begins anywhere.
fn has_frame(tail: &[u8]) -> bool {
    (0..tail.len()).any(|at| {
        Head::read(&tail[at..]).is_some_and(|head| {
            let payload = &tail[at + HEAD_BYTES..];
            payload.get(..head.len as usize).is_some_and(|it| !it.is_empty() && head.fits(it))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 8;

    fn frames(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        payloads.iter().for_each(|it| append(&mut bytes, it));
        bytes
    }

    #[test]
    fn frames_round_trip() {
        let bytes = frames(&[b"hello"]);
        let head = Head::read(&bytes).expect("a head");
        assert_eq!(head.len, 5);
        assert!(head.fits(&bytes[HEAD_BYTES..]) && !head.fits(b"hallo") && !head.fits(b"hell"));
    }

    #[test]
    fn every_prefix_of_the_last_frame_is_torn() {
        let whole = frames(&[&[b'x'; 2_000]]);
        for len in 0..whole.len() {
            assert!(is_torn(&whole[..len], AT), "{len} bytes");
        }
    }

    #[test]
    fn unwritten_sectors_are_torn_and_changed_bits_are_damage() {
        let whole = frames(&[&[b'x'; 2_000]]);
        let mut lost = whole.clone();
        lost[504..1016].fill(0);
        assert!(is_torn(&lost, AT), "a sector in the middle");
        let mut lost = whole.clone();
        lost[..504].fill(0);
        assert!(is_torn(&lost, AT), "the first sector with the head");
        for at in [0, 3, 5, 9, 12, 700, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert!(!is_torn(&changed, AT), "byte {at}");
        }
    }

    #[test]
    fn only_the_last_frame_can_be_torn() {
        let whole = frames(&[&[b'x'; 1_500], b"later"]);
        let mut lost = whole.clone();
        lost[..504].fill(0);
        assert!(!is_torn(&lost, AT));
        let mut lost = whole;
        lost[504..1016].fill(0);
        assert!(!is_torn(&lost, AT));
    }
}
