//! The rows of the pods of a contribution class.

use crate::node_table::NodeRow;

/// Among so many rows that of a removed pod is searched.
const N_SEARCHED: usize = 32;

/// So many rows of removed pods are kept at least.
const REMOVED_MIN: usize = 64;

/// The rows of pods, once for each pod. They are needed only when a new counter has to count all pods, while pods come and go all the time,
/// so that adding and removing one is an append, and what cancels out is dropped now and then.
#[derive(Default)]
pub(super) struct PodRows {
    /// In no order.
    pub added: Vec<NodeRow>,
    /// To be subtracted from `added`, which contains all of them.
    pub removed: Vec<NodeRow>,
}

impl PodRows {
    pub fn add(&mut self, row: NodeRow) {
        self.added.push(row);
    }

    /// Removes a pod that was added.
    pub fn remove(&mut self, row: NodeRow) {
        // Often the last one: an assumed pod that is forgotten.
        let n_last = self.added.len().min(N_SEARCHED);
        let before = self.added.len() - n_last;
        if let Some(at) = self.added[before..].iter().rposition(|added| *added == row) {
            self.added.swap_remove(before + at);
            return;
        }
        self.removed.push(row);
        if self.removed.len() > REMOVED_MIN.max(self.added.len() / 2) {
            self.compact();
        }
    }

    /// Drops what cancels out, and sorts the rows that are left.
    pub fn compact(&mut self) {
        // The first ones are sorted since the last time, which a stable sort makes use of.
        self.added.sort();
        self.removed.sort_unstable();
        let mut removed = self.removed.iter().copied().peekable();
        self.added.retain(|row| removed.next_if_eq(row).is_none());
        self.removed.clear();
        if self.added.len() < self.added.capacity() / 4 {
            self.added.shrink_to(2 * self.added.len());
            self.removed.shrink_to(self.added.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn rows_are_those_of_the_pods_that_are_left() {
        let mut rng = Rng::new(1);
        let (mut rows, mut want) = (PodRows::default(), Vec::new());
        for step in 0..20_000 {
            // Grows, shrinks, and grows again.
            if want.is_empty() || rng.below(10) < [7, 3][step / 5_000 % 2] {
                let row = NodeRow(rng.below(50) as u32);
                rows.add(row);
                want.push(row);
            } else {
                rows.remove(want.swap_remove(rng.below(want.len() as u64) as usize));
            }
            assert_eq!(rows.added.len() - rows.removed.len(), want.len());
            assert!(rows.removed.len() <= REMOVED_MIN.max(want.len() + 1), "step {step}");
            if step % 500 == 0 {
                let mut sorted = want.clone();
                sorted.sort_unstable();
                rows.compact();
                assert_eq!(rows.added, sorted, "step {step}");
            }
        }
    }
}
