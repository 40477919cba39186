//! Answers that hold for a while.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use ring::{digest, hmac, rand};
use tokio::time::Instant;

/// Answers kept at most; beyond that, one that expires soonest makes room.
const ENTRIES_MAX: usize = 4096;

type Key = [u8; 32];

/// A bounded map whose entries expire. Keys are digests under a secret of this process, so that
/// memory holds no tokens.
pub(super) struct Cache<V> {
    secret: hmac::Key,
    entries: RwLock<BTreeMap<Key, (Instant, V)>>,
}

impl<V: Clone> Cache<V> {
    pub fn new() -> Result<Cache<V>, ring::error::Unspecified> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())?;
        Ok(Cache { secret, entries: RwLock::default() })
    }

    fn key(&self, question: &[u8]) -> Key {
        let mut key = Key::default();
        let tag = hmac::sign(&self.secret, question);
        key.copy_from_slice(&tag.as_ref()[..digest::SHA256_OUTPUT_LEN]);
        key
    }

    /// The answer, if it still holds.
    pub fn get(&self, question: &[u8]) -> Option<V> {
        let key = self.key(question);
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.get(&key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Keeps an answer for `ttl`; not at all if that is zero.
    pub fn put(&self, question: &[u8], value: V, ttl: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else { return };
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, (until, _)| now < *until);
        }
        if entries.len() >= ENTRIES_MAX {
            let soonest = entries.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| *key);
            soonest.and_then(|key| entries.remove(&key));
        }
        entries.insert(self.key(question), (until, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_expire_and_make_room() {
        let cache = Cache::new().unwrap();
        cache.put(b"a", 1, Duration::from_secs(10));
        cache.put(b"b", 2, Duration::ZERO);
        assert_eq!((cache.get(b"a"), cache.get(b"b")), (Some(1), None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get(b"a"), None);
        for i in 0..=ENTRIES_MAX {
            cache.put(&i.to_le_bytes(), 3, Duration::from_secs(60 + i as u64));
        }
        assert_eq!(cache.get(&0usize.to_le_bytes()), None, "it expired soonest");
        assert_eq!(cache.get(&1usize.to_le_bytes()), Some(3));
        assert_eq!(cache.entries.read().unwrap().len(), ENTRIES_MAX);
    }
}
