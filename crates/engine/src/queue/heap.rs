//! A binary heap of slots with removal of any slot.
//!
//! The caller passes the comparison of two slots, so that the heap contains no pods and no comparator. No library fits: those with
//! removal order by `Ord` of their elements, and QueueSort is a plugin.

/// Index of a pod's data.
pub(super) type Slot = usize;

/// Marks slots that are not in the heap.
const ABSENT: usize = usize::MAX;

/// A heap of slots, the first in order on top.
#[derive(Debug, Default)]
pub(super) struct Heap {
    order: Vec<Slot>,
    /// Position in `order` by slot.
    at: Vec<usize>,
}

impl Heap {
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The first slot.
    pub fn peek(&self) -> Option<Slot> {
        self.order.first().copied()
    }

    /// Adds a slot that is not in the heap. `first(a, b)` says whether `a` comes before `b`.
    pub fn push(&mut self, slot: Slot, first: impl Fn(Slot, Slot) -> bool) {
        if self.at.len() <= slot {
            self.at.resize(slot + 1, ABSENT);
        }
        debug_assert_eq!(self.at[slot], ABSENT, "slot {slot} is in the heap already");
        self.at[slot] = self.order.len();
        self.order.push(slot);
        self.rise(self.order.len() - 1, first);
    }

    /// Removes a slot. Returns whether it was in the heap.
    pub fn remove(&mut self, slot: Slot, first: impl Fn(Slot, Slot) -> bool) -> bool {
        let Some(at) = self.position(slot) else { return false };
        self.order.swap_remove(at);
        self.at[slot] = ABSENT;
        if at < self.order.len() {
            self.at[self.order[at]] = at;
            self.settle(at, first);
        }
        true
    }

    /// Restores the order after the pod of a slot has changed.
    pub fn update(&mut self, slot: Slot, first: impl Fn(Slot, Slot) -> bool) {
        if let Some(at) = self.position(slot) {
            self.settle(at, first);
        }
    }

    /// Restores the order after the comparison has changed.
    pub fn sort(&mut self, first: impl Fn(Slot, Slot) -> bool) {
        for at in (0..self.order.len() / 2).rev() {
            self.sink(at, &first);
        }
    }

    fn position(&self, slot: Slot) -> Option<usize> {
        self.at.get(slot).copied().filter(|at| *at != ABSENT)
    }

    fn settle(&mut self, at: usize, first: impl Fn(Slot, Slot) -> bool) {
        let at = self.rise(at, &first);
        self.sink(at, first);
    }

    fn rise(&mut self, mut at: usize, first: impl Fn(Slot, Slot) -> bool) -> usize {
        while at > 0 {
            let above = (at - 1) / 2;
            if !first(self.order[at], self.order[above]) {
                break;
            }
            self.swap(at, above);
            at = above;
        }
        at
    }

    fn sink(&mut self, mut at: usize, first: impl Fn(Slot, Slot) -> bool) {
        loop {
            let [left, right] = [2 * at + 1, 2 * at + 2];
            if left >= self.order.len() {
                return;
            }
            let right_is_first =
                right < self.order.len() && first(self.order[right], self.order[left]);
            let below = if right_is_first { right } else { left };
            if !first(self.order[below], self.order[at]) {
                return;
            }
            self.swap(at, below);
            at = below;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.order.swap(a, b);
        self.at[self.order[a]] = a;
        self.at[self.order[b]] = b;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Random pushes, removals, changes of keys and of the comparison against a plain list.
    fn agrees_with_a_list(steps: &[(u8, usize, u32)]) {
        let mut keys: Vec<(u32, usize)> = (0..8).map(|slot| (0, slot)).collect();
        let (mut heap, mut list) = (Heap::default(), Vec::<usize>::new());
        for (operation, slot, key) in steps {
            let present = list.contains(slot);
            match operation {
                0 if !present => {
                    keys[*slot].0 = *key;
                    heap.push(*slot, |a, b| keys[a] < keys[b]);
                    list.push(*slot);
                }
                1 => {
                    assert_eq!(heap.remove(*slot, |a, b| keys[a] < keys[b]), present);
                    list.retain(|known| known != slot);
                }
                2 => {
                    keys.iter_mut().for_each(|(key, _)| *key = 5 - *key);
                    heap.sort(|a, b| keys[a] < keys[b]);
                }
                _ => {
                    keys[*slot].0 = *key;
                    heap.update(*slot, |a, b| keys[a] < keys[b]);
                }
            }
            list.sort_by_key(|slot| keys[*slot]);
            assert_eq!(heap.peek(), list.first().copied());
            assert_eq!(heap.len(), list.len());
        }
        for want in list {
            assert_eq!(heap.peek(), Some(want));
            heap.remove(want, |a, b| keys[a] < keys[b]);
        }
        assert_eq!(heap.peek(), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec((0u8..4, 0usize..8, 0u32..5), 0..60)) {
            agrees_with_a_list(&steps);
        }
    }
}
