//! Hash maps whose order is never relied upon: fast, and keyed with a fixed seed so that a run can be repeated.

use std::hash::BuildHasherDefault;

/// The hasher state of [`Map`] and [`Set`].
pub type FixedHashBuilder = foldhash::fast::FixedState;

/// A hash map. Iterate it only where the order of the result does not matter.
pub type Map<K, V> = hashbrown::HashMap<K, V, FixedHashBuilder>;

/// A hash set. Iterate it only where the order of the result does not matter.
pub type Set<K> = hashbrown::HashSet<K, FixedHashBuilder>;

/// A map whose keys are already well mixed numbers.
pub type IdMap<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<mix::IdHasher>>;

mod mix {
    use std::hash::Hasher;

    /// One multiplication: enough for dense ids.
    #[derive(Default)]
    pub struct IdHasher(u64);

    impl Hasher for IdHasher {
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.write_u64(u64::from(*byte));
            }
        }
        fn write_u32(&mut self, value: u32) {
            self.write_u64(u64::from(value));
        }
        fn write_u64(&mut self, value: u64) {
            self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        fn finish(&self) -> u64 {
            self.0 ^ (self.0 >> 29)
        }
    }
}
