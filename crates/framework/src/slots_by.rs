//! Which slots of a list have something to do with a key, so that the others are not looked at.

use std::collections::BTreeSet;
use std::hash::Hash;

use loadmaster_stdx::Map;

/// Numbers of slots by key.
pub(crate) struct SlotsBy<K>(Map<K, BTreeSet<u32>>);

impl<K> Default for SlotsBy<K> {
    fn default() -> Self {
        SlotsBy(Map::default())
    }
}

impl<K: Hash + Eq> SlotsBy<K> {
    /// The slots of a key, ascending.
    pub fn get(&self, key: &K) -> impl Iterator<Item = u32> + use<'_, K> {
        self.0.get(key).into_iter().flatten().copied()
    }

    pub fn insert(&mut self, key: K, slot: u32) {
        self.0.entry(key).or_default().insert(slot);
    }

    pub fn remove(&mut self, key: &K, slot: u32) {
        let Some(slots) = self.0.get_mut(key) else { return };
        slots.remove(&slot);
        if slots.is_empty() {
            self.0.remove(key);
        }
    }

    /// Removes all slots of a key, and returns them.
    pub fn take(&mut self, key: &K) -> BTreeSet<u32> {
        self.0.remove(key).unwrap_or_default()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
