//! A cache of encoded watch events, so that each is encoded once for all watchers with the same representation.

use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
use std::sync::Mutex;

use loadmaster_stdx::Map;

use crate::request::Encoding;
use crate::schema::Kind;

/// The key of an encoded event. A revision belongs to one object; the event type and the API version may differ
/// between watchers.
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

/// The encoded events of the latest changes.
#[derive(Default)]
pub(super) struct WatchFrameCache {
    #[expect(clippy::disallowed_types, reason = "a shell: watchers run on many threads")]
    known: Mutex<Frames>,
}

#[derive(Default)]
struct Frames {
    by_key: Map<FrameKey, Arc<Vec<u8>>>,
    n_bytes: usize,
}

/// How many events and bytes are cached before the cache is cleared.
const N_FRAMES_MAX: usize = 4096;
const FRAME_BYTES_MAX: usize = 32 << 20;

impl WatchFrameCache {
    /// The encoded event of this key; `make` encodes it if it is not cached.
    pub fn get_or_encode(&self, key: FrameKey, make: impl FnOnce() -> Vec<u8>) -> Arc<Vec<u8>> {
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
    use crate::store::{Store, StoreLimits};

    #[test]
    fn watchers_with_the_same_representation_share_a_frame() {
        let kinds = Kinds::new(&mut Store::new(StoreLimits::default()), &[]);
        let events: Vec<&Kind> = kinds.iter().filter(|it| it.resource == "events").collect();
        assert_eq!(events.len(), 2, "one plural in two groups");
        let frames = WatchFrameCache::default();
        let of = |revision, event, encoding, kind: &Kind| {
            let made = format!("{revision} {event} {encoding:?} {}", kind.group);
            let key = FrameKey::new(revision, event, encoding, kind);
            let frame = frames.get_or_encode(key.clone(), || made.clone().into_bytes());
            assert_eq!(frame.as_slice(), made.as_bytes());
            assert_eq!(frames.get_or_encode(key, || panic!("it is known")), frame);
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
