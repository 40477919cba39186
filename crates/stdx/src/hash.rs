//! Hash maps whose order is never relied upon: fast, and with a seed, so that nobody can prepare keys that collide.
//!
//! A map takes the seed of the thread that creates it ([`HashSeed::enter`]). It affects the order in which a map is iterated, and so
//! nothing else: with any two seeds a run is the same.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

/// A hash map. Iterate it only where the order of the result does not matter.
pub type Map<K, V> = hashbrown::HashMap<K, V, SeededHashBuilder>;

/// A hash set. Iterate it only where the order of the result does not matter.
pub type Set<K> = hashbrown::HashSet<K, SeededHashBuilder>;

/// A seed of hash maps. One that others can guess, such as [`HashSeed::FIXED`], lets them choose keys with equal hashes, with which every
/// lookup in a map takes as long as a search of a list.
#[derive(Clone, Copy)]
pub struct HashSeed {
    number: u64,
    shared: &'static SharedSeed,
}

thread_local! {
    static SEED_OF_THREAD: Cell<HashSeed> = const { Cell::new(HashSeed::FIXED) };
}

impl HashSeed {
    /// The seed of a thread that has entered no other.
    pub const FIXED: HashSeed = HashSeed { number: 0, shared: SharedSeed::global_fixed() };

    /// The seed with this number; 0 is [`HashSeed::FIXED`]. Each call allocates 48 bytes that are never freed, because hashers refer to them:
    /// make one per process, not one per map.
    pub fn new(number: u64) -> HashSeed {
        match number {
            0 => HashSeed::FIXED,
            _ => HashSeed { number, shared: Box::leak(Box::new(SharedSeed::from_u64(number))) },
        }
    }

    /// A seed from the operating system.
    pub fn random() -> HashSeed {
        HashSeed::new(RandomState::new().hash_one(0))
    }

    /// The seed that this thread uses now.
    pub fn of_thread() -> HashSeed {
        SEED_OF_THREAD.get()
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Uses it for the maps that this thread creates until the returned value is dropped.
    pub fn enter(self) -> EnteredHashSeed {
        EnteredHashSeed { before: SEED_OF_THREAD.replace(self), _not_send: PhantomData }
    }

    /// Uses it for all maps that this thread creates from now on.
    pub fn set_for_thread(self) {
        SEED_OF_THREAD.set(self);
    }
}

impl Default for HashSeed {
    fn default() -> Self {
        HashSeed::FIXED
    }
}

/// Seeds with the same number are equal.
impl PartialEq for HashSeed {
    fn eq(&self, other: &HashSeed) -> bool {
        self.number == other.number
    }
}

impl Eq for HashSeed {}

/// Without the number: it is a secret.
impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.number == 0 { "HashSeed::FIXED" } else { "HashSeed(..)" })
    }
}

/// While it exists, its thread uses a seed ([`HashSeed::enter`]).
#[must_use = "dropping it restores the seed that the thread had before"]
pub struct EnteredHashSeed {
    before: HashSeed,
    _not_send: PhantomData<*const ()>,
}

impl Drop for EnteredHashSeed {
    fn drop(&mut self) {
        SEED_OF_THREAD.set(self.before);
    }
}

/// The hasher state of [`Map`] and [`Set`]. By default it has the seed of the thread.
#[derive(Clone, Copy)]
pub struct SeededHashBuilder(&'static SharedSeed);

impl Default for SeededHashBuilder {
    #[inline]
    fn default() -> Self {
        SeededHashBuilder(SEED_OF_THREAD.get().shared)
    }
}

impl From<HashSeed> for SeededHashBuilder {
    fn from(seed: HashSeed) -> Self {
        SeededHashBuilder(seed.shared)
    }
}

/// Without the seed, which is a secret.
impl fmt::Debug for SeededHashBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededHashBuilder(..)")
    }
}

impl BuildHasher for SeededHashBuilder {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        FoldHasher::with_seed(0, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: HashSeed) -> Vec<u32> {
        let _entered = seed.enter();
        let set: Set<u32> = (0..100).collect();
        set.into_iter().collect()
    }

    #[test]
    fn a_map_has_the_seed_of_its_thread() {
        let (first, second) = (HashSeed::new(1), HashSeed::new(2));
        assert_eq!(order(first), order(first));
        assert_eq!(order(first), order(HashSeed::new(1)));
        assert_ne!(order(first), order(second));
        assert_ne!(order(first), order(HashSeed::FIXED));
        assert_eq!(order(HashSeed::new(0)), order(HashSeed::FIXED));

        let hash = || SeededHashBuilder::default().hash_one("key");
        let fixed = hash();
        let outer = first.enter();
        let of_first = hash();
        assert_ne!(of_first, fixed);
        let panicked = std::panic::catch_unwind(|| {
            let _inner = second.enter();
            assert_ne!(hash(), of_first);
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err());
        assert_eq!(hash(), of_first, "as before the inner one");
        drop(outer);
        assert_eq!(hash(), fixed);

        let other_thread = std::thread::scope(|scope| {
            let hash_there = scope.spawn(|| {
                first.set_for_thread();
                SeededHashBuilder::default().hash_one("key")
            });
            hash_there.join().unwrap()
        });
        assert_eq!(other_thread, of_first);
        assert_eq!(hash(), fixed);
    }

    #[test]
    fn the_number_is_not_printed() {
        assert_eq!(format!("{:?}", HashSeed::new(4711)), "HashSeed(..)");
    }
}
