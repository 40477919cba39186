//! Storage of the queued pods, and their order in the sub-queues.

use std::cmp::Ordering;
use std::ops::{Index, IndexMut};

use slab::Slab;

use super::backoff::QueueOptions;
use super::heap::Slot;
use super::queued_pod::QueuedPod;
use super::{QueuePlugins, SubQueue};

/// A pod and its sub-queue. While it is moved this is still the old sub-queue.
pub(super) struct Entry {
    pub pod: QueuedPod,
    pub sub_queue: SubQueue,
}

/// All queued pods.
pub(super) struct PodSlab {
    entries: Slab<Entry>,
    /// Whether QueueSort orders pods whose backoffs end together.
    sorts_backoff: bool,
}

impl PodSlab {
    pub fn new(options: &QueueOptions) -> PodSlab {
        PodSlab { entries: Slab::new(), sorts_backoff: options.pop_from_backoff }
    }

    pub fn insert(&mut self, entry: Entry) -> Slot {
        self.entries.insert(entry)
    }

    pub fn remove(&mut self, slot: Slot) -> QueuedPod {
        self.entries.remove(slot).pod
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Whether `a` goes before `b` in activeQ.
    pub fn first_active(&self, plugins: &dyn QueuePlugins, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a].pod, &self[b].pod);
        plugins.compare(&a.info, &b.info).then(a.nth.cmp(&b.nth)).is_lt()
    }

    /// Whether `a` goes before `b` in backoffQ, for pods in backoff after a rejection.
    pub fn first_backoff(&self, plugins: &dyn QueuePlugins, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a].pod, &self[b].pod);
        let by_end = a.backoff_until.cmp(&b.backoff_until);
        let by_sort =
            || if self.sorts_backoff { plugins.compare(&a.info, &b.info) } else { Ordering::Equal };
        by_end.then_with(by_sort).then(a.nth.cmp(&b.nth)).is_lt()
    }

    /// Whether `a` goes before `b` in backoffQ, for pods in backoff after an error.
    pub fn first_error_backoff(&self, a: Slot, b: Slot) -> bool {
        let key = |slot: Slot| (self[slot].pod.backoff_until, self[slot].pod.nth);
        key(a) < key(b)
    }
}

impl Index<Slot> for PodSlab {
    type Output = Entry;
    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot]
    }
}

impl IndexMut<Slot> for PodSlab {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot]
    }
}
