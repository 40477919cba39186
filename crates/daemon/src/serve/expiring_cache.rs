//! A cache for the results of token and access reviews.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use ring::{digest, hmac, rand};
use tokio::time::Instant;

/// The maximum number of entries; if it is exceeded, the entry that expires first is evicted.
const ENTRIES_MAX: usize = 4096;

type Key = [u8; 32];

/// A bounded map whose entries expire. Keys are HMACs with a secret of this process, so that no tokens are
/// kept in memory.
pub(super) struct ExpiringCache<V> {
    secret: hmac::Key,
    entries: RwLock<BTreeMap<Key, (Instant, V)>>,
}

impl<V: Clone> ExpiringCache<V> {
    pub fn new() -> Result<ExpiringCache<V>, ring::error::Unspecified> {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())?;
        Ok(ExpiringCache { secret, entries: RwLock::default() })
    }

    fn key(&self, request: &[u8]) -> Key {
        let mut key = Key::default();
        let tag = hmac::sign(&self.secret, request);
        key.copy_from_slice(&tag.as_ref()[..digest::SHA256_OUTPUT_LEN]);
        key
    }

    /// The value, if it has not expired.
    pub fn get(&self, request: &[u8]) -> Option<V> {
        let key = self.key(request);
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.get(&key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Stores a value for `ttl`; does nothing if that is zero.
    pub fn insert(&self, request: &[u8], value: V, ttl: Duration) {
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
        entries.insert(self.key(request), (until, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_expire_and_the_oldest_is_evicted() {
        let cache = ExpiringCache::new().unwrap();
        cache.insert(b"a", 1, Duration::from_secs(10));
        cache.insert(b"b", 2, Duration::ZERO);
        assert_eq!((cache.get(b"a"), cache.get(b"b")), (Some(1), None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get(b"a"), None);
        for i in 0..=ENTRIES_MAX {
            cache.insert(&i.to_le_bytes(), 3, Duration::from_secs(60 + i as u64));
        }
        assert_eq!(cache.get(&0usize.to_le_bytes()), None, "it expired soonest");
        assert_eq!(cache.get(&1usize.to_le_bytes()), Some(3));
        assert_eq!(cache.entries.read().unwrap().len(), ENTRIES_MAX);
    }
}
