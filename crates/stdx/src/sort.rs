//! Sorting, and making sorted maps, with little code.

use std::cmp::Ordering;

/// Sorts where few items are sorted, or seldom: `sort_by` and `sort_by_key` of slices are some 5 kB of code for each type and order, these a twentieth.
pub trait SortCompactly<T> {
    /// As `sort_by`.
    fn sort_compactly_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// As `sort_by_key`.
    fn sort_compactly_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.sort_compactly_by(|a, b| key(a).cmp(&key(b)));
    }
}

impl<T> SortCompactly<T> for [T] {
    fn sort_compactly_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut order = sorted_order(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        for first in 0..order.len() {
            // Along the cycle, the item that was first goes on to where it belongs.
            let mut at = first;
            while order[at] != first {
                let from = std::mem::replace(&mut order[at], at);
                self.swap(at, from);
                at = from;
            }
            order[at] = at;
        }
    }
}

/// Makes maps where few items are collected, or seldom: `collect` sorts the items of a `BTreeMap` before it inserts them, which is some 5 kB of code for each
/// iterator.
pub trait CollectByInsertion: Iterator + Sized {
    /// As `collect`, inserting one item after the other.
    fn collect_by_insertion<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> CollectByInsertion for I {}

/// Where the items of a sorted list come from.
fn sorted_order(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|a, b| compare(*a, *b));
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Rng;

    #[test]
    fn lists_are_sorted_as_by_the_standard_library() {
        let mut rng = Rng::new(1);
        for len in 0..100 {
            let list: Vec<(u64, u64)> = (0..len).map(|nth| (rng.below(10), nth)).collect();
            let (mut want, mut by_key, mut by) = (list.clone(), list.clone(), list);
            want.sort_by_key(|it| it.0);
            by_key.sort_compactly_by_key(|it| it.0);
            by.sort_compactly_by(|a, b| a.0.cmp(&b.0));
            assert_eq!((&by_key, &by), (&want, &want), "{len} items");
            let map: BTreeMap<u64, u64> = want.iter().copied().collect();
            assert_eq!(want.into_iter().collect_by_insertion::<BTreeMap<_, _>>(), map);
        }
    }
}
