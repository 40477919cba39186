//! Values by ids that are never reused.

use slab::Slab;

/// Number of bits of an id that say where its value is; the others are a serial number. There are never a million values at a time.
const SLOT_BITS: u32 = 20;
const SLOTS: u64 = (1 << SLOT_BITS) - 1;

/// Values by id. An id says where its value is: a decision looks one up several times, and hashes nothing for that.
pub(super) struct ById<T>(Slab<(u64, T)>);

impl<T> Default for ById<T> {
    fn default() -> Self {
        ById(Slab::new())
    }
}

/// Where the value with an id is, if it is there.
fn slot(id: u64) -> usize {
    (id & SLOTS) as usize
}

/// An id that no value has, with a serial number that no value has.
pub(super) fn id_without_value(serial: u64) -> u64 {
    serial << SLOT_BITS | SLOTS
}

impl<T> ById<T> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a value; returns its id, which is greater than those for lower serial numbers. No two values have the same number.
    pub fn insert(&mut self, serial: u64, value: T) -> u64 {
        let entry = self.0.vacant_entry();
        debug_assert!((entry.key() as u64) < SLOTS, "there are fewer values");
        let id = serial << SLOT_BITS | entry.key() as u64;
        entry.insert((id, value));
        id
    }

    #[inline]
    pub fn get(&self, id: u64) -> Option<&T> {
        let (known, value) = self.0.get(slot(id))?;
        (*known == id).then_some(value)
    }

    #[inline]
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let (known, value) = self.0.get_mut(slot(id))?;
        (*known == id).then_some(value)
    }

    pub fn remove(&mut self, id: u64) -> Option<T> {
        self.get(id)?;
        Some(self.0.remove(slot(id)).1)
    }

    /// In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.0.iter().map(|(_, (id, value))| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn equal_to_a_map() {
        let mut rng = Rng::new(7);
        let (mut values, mut twin) = (ById::default(), BTreeMap::new());
        let mut ids = vec![0];
        for serial in 1..=5_000 {
            if rng.one_in(2) {
                let id = values.insert(serial, serial);
                assert!(ids.iter().all(|known| *known < id));
                ids.push(id);
                twin.insert(id, serial);
            } else {
                let id = *rng.pick(&ids);
                assert_eq!(values.remove(id), twin.remove(&id));
            }
            let id = *rng.pick(&ids);
            assert_eq!(values.get(id), twin.get(&id));
            assert_eq!(values.get_mut(id), twin.get_mut(&id));
            assert_eq!(values.len(), twin.len());
        }
        assert_eq!(
            values.iter().collect::<BTreeMap<_, _>>(),
            twin.iter().map(|(id, it)| (*id, it)).collect()
        );
    }
}
