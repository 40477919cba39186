//! The keys of small maps.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use loadmaster_stdx::Set;

use crate::interned_str::Str;

/// How many sets of keys a thread remembers before it starts over; forgetting only costs sharing.
const SETS_MAX: usize = 1 << 14;

/// Number of slots of a set; most sets have ten keys or fewer.
const SLOTS: usize = 128;
/// No key has this slot.
const NONE: u8 = u8::MAX;
/// Several keys have this slot, or a key whose position is not below this number.
const SEVERAL: u8 = u8::MAX - 1;

thread_local! {
    static SETS: RefCell<Set<KeySet>> = RefCell::new(Set::default());
}

/// Different keys, ascending, shared by all maps that have the same ones. Labels are looked up for one node after the other: a key is found,
/// or found to be missing, by its slot, without looking at other keys.
#[derive(Clone)]
pub(super) struct KeySet(Arc<Slotted>);

struct Slotted {
    /// By [`slot_of`]: the position of the key with this slot, or [`NONE`], or [`SEVERAL`].
    positions: [u8; SLOTS],
    keys: Box<[Str]>,
}

impl KeySet {
    /// The shared set of these keys, which are ascending.
    pub fn shared(keys: &[Str]) -> KeySet {
        SETS.with_borrow_mut(|sets| {
            if let Some(known) = sets.get(keys) {
                return known.clone();
            }
            if sets.len() >= SETS_MAX {
                sets.clear();
            }
            let fresh = KeySet::new(keys.into());
            sets.insert(fresh.clone());
            fresh
        })
    }

    fn new(keys: Box<[Str]>) -> KeySet {
        let mut positions = [NONE; SLOTS];
        for (at, key) in keys.iter().enumerate() {
            let position = &mut positions[slot_of(key)];
            let is_first = *position == NONE && at < usize::from(SEVERAL);
            *position = if is_first { at as u8 } else { SEVERAL };
        }
        KeySet(Arc::new(Slotted { positions, keys }))
    }

    /// The position of a key.
    #[inline]
    pub fn position(&self, key: &str) -> Option<usize> {
        let at = self.0.positions[slot_of(key)];
        if at == NONE {
            return None;
        }
        // Most often it is the text of an equal `Str`.
        let is_it =
            self.0.keys.get(usize::from(at)).is_some_and(|known| std::ptr::eq(&**known, key));
        if is_it { Some(usize::from(at)) } else { self.0.find(key, at) }
    }
}

impl Slotted {
    /// The position of a key whose text is elsewhere, or that shares its slot, given what `positions` has for it. Not part of each caller,
    /// which would become slower.
    #[inline(never)]
    fn find(&self, key: &str, at: u8) -> Option<usize> {
        if at == SEVERAL {
            return self.keys.binary_search_by(|known| known.as_str().cmp(key)).ok();
        }
        let at = usize::from(at);
        (self.keys[at].as_str() == key).then_some(at)
    }
}

/// A number below [`SLOTS`], from what most often differs in names of labels and resources.
#[inline]
fn slot_of(key: &str) -> usize {
    key.as_bytes().last().map_or(0, |last| 13 * key.len() + usize::from(*last)) % SLOTS
}

impl Default for KeySet {
    fn default() -> Self {
        static EMPTY: LazyLock<KeySet> = LazyLock::new(|| KeySet::new(Box::default()));
        EMPTY.clone()
    }
}

impl Deref for KeySet {
    type Target = [Str];
    fn deref(&self) -> &[Str] {
        &self.0.keys
    }
}

impl Borrow<[Str]> for KeySet {
    fn borrow(&self) -> &[Str] {
        self
    }
}

impl PartialEq for KeySet {
    fn eq(&self, other: &KeySet) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl Eq for KeySet {}

/// As its slice is.
impl Hash for KeySet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn a_key_is_found_where_it_is() {
        // The longest sets have more keys than slots, and positions that a slot cannot have.
        for n_keys in [0, 1, 6, 40, 300] {
            let mut rng = Rng::new(n_keys);
            let mut keys: Vec<Str> =
                (0..n_keys).map(|_| Str::from(format!("example.com/{}", rng.below(600)))).collect();
            keys.push(Str::default());
            keys.sort();
            keys.dedup();
            let set = KeySet::shared(&keys);
            for key in (0..600).map(|n| format!("example.com/{n}")).chain([String::new()]) {
                let expected = keys.iter().position(|known| known.as_str() == key);
                assert_eq!(set.position(&key), expected, "{key} of {n_keys} keys");
                let interned = Str::from(key);
                assert_eq!(set.position(&interned), expected, "{interned} of {n_keys} keys");
            }
        }
    }

    #[test]
    fn common_labels_of_nodes_have_slots_of_their_own() {
        let labels = [
            "beta.kubernetes.io/arch",
            "beta.kubernetes.io/os",
            "kubernetes.io/arch",
            "kubernetes.io/hostname",
            "kubernetes.io/os",
            "node.kubernetes.io/instance-type",
            "topology.kubernetes.io/region",
            "topology.kubernetes.io/zone",
        ];
        let mut slots = labels.map(slot_of).to_vec();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), labels.len(), "{slots:?}");
    }
}
