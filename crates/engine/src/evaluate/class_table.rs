//! The node classes of a decision.

use loadmaster_framework::incremental::ClassKey;
use loadmaster_stdx::Map;

/// The node classes of one decision, and the score offset of each.
#[derive(Default)]
pub(crate) struct ClassTable {
    pub(super) keys: Vec<i64>,
    /// Number of rows per class that passed every row-local filter.
    pub rows: Vec<u32>,
    /// By key, once there were more than [`LISTED_MAX`] classes.
    ids: Map<ClassKey, u32>,
    free: Vec<u32>,
    /// Number of times that a class got a key.
    n_keys_set: u64,
    /// By class: result of the last [`Evaluator::filter_classes`](super::incremental::Evaluator::filter_classes).
    pub feasible: Vec<bool>,
    /// By class: result of the last [`Evaluator::score_classes`](super::incremental::Evaluator::score_classes).
    pub offsets: Vec<i64>,
    pub(super) scratch: Vec<i64>,
    /// Scratch space of [`ClassTable::count_rows`], by class.
    lanes: Vec<[u32; LANES]>,
}

/// In so many places the rows of a class are counted.
const LANES: usize = 4;

/// The keys of up to so many classes are looked at one after the other, which is faster than hashing the key that is looked for.
const LISTED_MAX: usize = 16;

impl ClassTable {
    pub fn clear(&mut self) {
        self.keys.clear();
        self.rows.clear();
        self.ids.clear();
        self.free.clear();
    }

    /// Adds a row to the class with this key; returns the class.
    pub fn insert_row(&mut self, key: &ClassKey) -> u32 {
        self.insert_rows(key, 1)
    }

    /// The same for so many rows.
    pub fn insert_rows(&mut self, key: &ClassKey, n: u32) -> u32 {
        if let Some(id) = self.find(key) {
            self.rows[id as usize] += n;
            return id;
        }
        self.add_class(key, n)
    }

    /// Adds a class with this key and so many rows.
    #[inline(never)]
    fn add_class(&mut self, key: &ClassKey, n: u32) -> u32 {
        let stride = key.len();
        self.n_keys_set += 1;
        let id = match self.free.pop() {
            Some(id) => {
                let start = id as usize * stride;
                self.keys[start..start + stride].copy_from_slice(key);
                self.rows[id as usize] = n;
                id
            }
            None => {
                self.keys.extend_from_slice(key);
                self.rows.push(n);
                self.rows.len() as u32 - 1
            }
        };
        match self.rows.len() {
            0..=LISTED_MAX => {}
            _ if self.ids.is_empty() => self.ids = self.used_ids(stride).collect(),
            _ => _ = self.ids.insert(key.clone(), id),
        }
        id
    }

    /// The class with this key.
    fn find(&self, key: &ClassKey) -> Option<u32> {
        if self.rows.len() > LISTED_MAX {
            return self.find_hashed(key);
        }
        // The first element most often differs: not a comparison of bytes by a call.
        let is_it = |id: &u32| self.key(*id, key.len()).iter().eq(key);
        (0..self.rows.len() as u32).filter(is_it).find(|id| !self.free.contains(id))
    }

    #[inline(never)]
    fn find_hashed(&self, key: &ClassKey) -> Option<u32> {
        self.ids.get(key).copied()
    }

    /// The keys of all classes, with their ids.
    fn used_ids(&self, stride: usize) -> impl Iterator<Item = (ClassKey, u32)> + '_ {
        let used = (0..self.rows.len() as u32).filter(|id| !self.free.contains(id));
        used.map(move |id| (ClassKey::from_slice(self.key(id, stride)), id))
    }

    /// Removes a row from its class; the id of an empty class is reused.
    pub fn remove_row(&mut self, id: u32, stride: usize) {
        let rows = &mut self.rows[id as usize];
        *rows -= 1;
        if *rows == 0 {
            let start = id as usize * stride;
            self.ids.remove(&self.keys[start..start + stride]);
            self.free.push(id);
        }
    }

    /// Makes this a table of the classes of two tables, always the same ones: first those of `shared`, each with so many rows less, then those
    /// of `own`, whose keys have one more element. Returns whether a class has a key that it had not before.
    pub fn combine(
        &mut self,
        shared: &ClassTable,
        n_less: &[u32],
        own: &ClassTable,
        stride: usize,
    ) -> bool {
        // Most often the rows alone are others than before.
        let n_keys_set = shared.n_keys_set + own.n_keys_set;
        let has_new_keys = n_keys_set != self.n_keys_set;
        if has_new_keys {
            self.n_keys_set = n_keys_set;
            self.combine_keys(shared, own, stride);
        }
        self.rows.clear();
        self.rows.extend(shared.rows.iter().zip(n_less).map(|(rows, less)| rows - less));
        self.rows.extend_from_slice(&own.rows);
        has_new_keys
    }

    #[cold]
    fn combine_keys(&mut self, shared: &ClassTable, own: &ClassTable, stride: usize) {
        self.keys.clone_from(&shared.keys);
        for key in own.keys_of(stride + 1) {
            self.keys.extend_from_slice(&key[..stride]);
        }
    }

    /// Takes over the keys of another table.
    pub fn copy_keys(&mut self, other: &ClassTable) {
        self.keys.clone_from(&other.keys);
        self.rows.resize(other.rows.len(), 0);
    }

    /// Counts the members of each class anew. `class_of` has the class of each row, and is empty if there is only one; `set` has a 1 for each
    /// member. A row that is no member may have a class that is not in the table.
    pub fn count_rows(&mut self, class_of: &[u32], set: &[u8]) {
        if class_of.is_empty() {
            let n = set.iter().map(|member| u32::from(*member)).sum();
            self.rows.iter_mut().for_each(|rows| *rows = n);
            return;
        }
        // Without a branch that depends on the row: members and others alternate. Neighboring rows often have the same class; they are counted
        // apart, so that an addition does not wait for the one before.
        self.lanes.clear();
        self.lanes.resize(self.rows.len() + 1, [0; LANES]);
        let others = self.rows.len();
        for (classes, members) in class_of.chunks(LANES).zip(set.chunks(LANES)) {
            for (lane, (class, member)) in classes.iter().zip(members).enumerate() {
                self.lanes[(*class as usize).min(others)][lane] += u32::from(*member);
            }
        }
        for (rows, lanes) in self.rows.iter_mut().zip(&self.lanes) {
            *rows = lanes.iter().sum();
        }
    }

    /// Number of class ids, unused ones included.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The keys of all class ids, which have this length.
    pub fn keys_of(&self, stride: usize) -> impl Iterator<Item = &[i64]> {
        self.keys.chunks_exact(stride)
    }

    pub fn key(&self, id: u32, stride: usize) -> &[i64] {
        let start = id as usize * stride;
        &self.keys[start..start + stride]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn rows_with_equal_keys_have_the_same_class() {
        // With few keys, they are not hashed.
        for n_keys in [3, LISTED_MAX as u64, LISTED_MAX as u64 + 1, 60] {
            let mut rng = Rng::new(n_keys);
            let (mut table, mut twin) = (ClassTable::default(), BTreeMap::new());
            for _ in 0..4_000 {
                let key = ClassKey::from_slice(&[7, rng.below(n_keys) as i64]);
                if rng.one_in(2) {
                    let class = table.insert_row(&key);
                    let (known, n_rows) = twin.entry(key.clone()).or_insert((class, 0));
                    *n_rows += 1;
                    assert_eq!((class, table.key(class, 2)), (*known, &key[..]), "{n_keys} keys");
                } else if let Some((class, n_rows)) = twin.get_mut(&key) {
                    table.remove_row(*class, 2);
                    *n_rows -= 1;
                    if *n_rows == 0 {
                        twin.remove(&key);
                    }
                }
                assert!(table.len() <= n_keys as usize);
                for (class, n_rows) in twin.values() {
                    assert_eq!(table.rows[*class as usize], *n_rows, "{n_keys} keys");
                }
            }
        }
    }
}
