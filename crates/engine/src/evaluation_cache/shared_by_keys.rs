//! Values that combinations of keys share.

use loadmaster_stdx::Map;
use slab::Slab;

use super::KeyId;

/// Values that combinations of keys share if these keys of theirs are equal.
pub(super) struct SharedByKeys<T> {
    values: Slab<Shared<T>>,
    ids: Map<Box<[KeyId]>, usize>,
}

struct Shared<T> {
    value: T,
    keys: Box<[KeyId]>,
    /// Number of cached combinations with these keys.
    users: u32,
}

impl<T> Default for SharedByKeys<T> {
    fn default() -> Self {
        SharedByKeys { values: Slab::new(), ids: Map::default() }
    }
}

impl<T> SharedByKeys<T> {
    pub fn acquire(&mut self, keys: Box<[KeyId]>, make: impl FnOnce() -> T) -> usize {
        let id = match self.ids.get(&keys) {
            Some(id) => *id,
            None => {
                let id = self.values.insert(Shared { value: make(), keys: keys.clone(), users: 0 });
                self.ids.insert(keys, id);
                id
            }
        };
        self.values[id].users += 1;
        id
    }

    pub fn release(&mut self, id: usize) {
        let Some(shared) = self.values.get_mut(id) else { return };
        shared.users -= 1;
        if shared.users == 0 {
            let shared = self.values.remove(id);
            self.ids.remove(&shared.keys);
        }
    }

    /// Whether only one cached combination has these keys.
    pub fn has_one_user(&self, id: usize) -> bool {
        self.values.get(id).is_some_and(|shared| shared.users == 1)
    }

    pub fn get(&self, id: usize) -> Option<&T> {
        self.values.get(id).map(|shared| &shared.value)
    }

    pub fn get_mut(&mut self, id: usize) -> Option<&mut T> {
        self.values.get_mut(id).map(|shared| &mut shared.value)
    }
}
