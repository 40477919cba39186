//! Frames of watches, made once for all who want the same.

use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
use std::sync::Mutex;

use loadmaster_stdx::Map;

use crate::request::Encoding;
use crate::schema::Kind;

/// What a frame depends on. A revision belongs to one object; whether it was added or modified may differ between watchers, and
/// so may the version of its kind.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FrameKey {
    revision: u64,
    event: &'static str,
    encoding: Encoding,
    kind: [&'static str; 3],
}

impl FrameKey {
    /// `event` is as in `{"type": ..}`.
    pub fn new(revision: u64, event: &'static str, encoding: Encoding, kind: &Kind) -> FrameKey {
        FrameKey { revision, event, encoding, kind: [kind.group, kind.version, kind.resource] }
    }
}

/// Frames of the last changes: many watchers want the same one at the same time.
#[derive(Default)]
pub(super) struct FrameCache {
    #[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
    known: Mutex<Frames>,
}

#[derive(Default)]
struct Frames {
    by_key: Map<FrameKey, Arc<Vec<u8>>>,
    n_bytes: usize,
}

/// How many frames, and how many bytes of them, are known before all are forgotten.
const N_FRAMES_MAX: usize = 4096;
const FRAME_BYTES_MAX: usize = 32 << 20;

impl FrameCache {
    /// The frame of this key; `make` is asked if it is not known.
    pub fn get(&self, key: FrameKey, make: impl FnOnce() -> Vec<u8>) -> Arc<Vec<u8>> {
        let lock = || self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(frame) = lock().by_key.get(&key) {
            return Arc::clone(frame);
        }
        let frame = Arc::new(make());
        let mut known = lock();
        if known.by_key.len() >= N_FRAMES_MAX || known.n_bytes + frame.len() > FRAME_BYTES_MAX {
            *known = Frames::default();
        }
        known.n_bytes += frame.len();
        known.by_key.insert(key, Arc::clone(&frame));
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Kinds;
    use crate::store::{Limits, Store};

    #[test]
    fn only_those_who_want_the_same_share_a_frame() {
        let kinds = Kinds::new(&mut Store::new(Limits::default()), &[]);
        let events: Vec<&Kind> = kinds.iter().filter(|it| it.resource == "events").collect();
        assert_eq!(events.len(), 2, "one plural in two groups");
        let frames = FrameCache::default();
        let of = |revision, event, encoding, kind: &Kind| {
            let made = format!("{revision} {event} {encoding:?} {}", kind.group);
            let key = FrameKey::new(revision, event, encoding, kind);
            let frame = frames.get(key.clone(), || made.clone().into_bytes());
            assert_eq!(frame.as_slice(), made.as_bytes());
            assert_eq!(frames.get(key, || panic!("it is known")), frame);
        };
        for revision in [7, 8] {
            for event in ["ADDED", "MODIFIED"] {
                for encoding in [Encoding::Json, Encoding::Protobuf] {
                    events.iter().for_each(|kind| of(revision, event, encoding, kind));
                }
            }
        }
    }
}
