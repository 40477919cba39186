//! The pods that are queued, and which of two goes first.

use std::cmp::Ordering;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use loadmaster_framework::QueueSort;
use slab::Slab;

use super::Place;
use super::backoff::Options;
use super::heap::Slot;
use super::pod::QueuedPod;

/// A pod and where it is. While it is on its way its place is that from which it comes.
pub(super) struct Entry {
    pub pod: QueuedPod,
    pub place: Place,
}

/// All of them.
pub(super) struct Pods {
    entries: Slab<Entry>,
    sort: Arc<dyn QueueSort>,
    /// Whether QueueSort decides between backoffs that end together.
    sorts_backoff: bool,
}

impl Pods {
    pub fn new(sort: Arc<dyn QueueSort>, options: &Options) -> Pods {
        Pods { entries: Slab::new(), sort, sorts_backoff: options.pop_from_backoff }
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
    pub fn first_active(&self, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a].pod, &self[b].pod);
        self.compare(a, b).then(a.nth.cmp(&b.nth)).is_lt()
    }

    /// Whether `a` goes before `b` among rejected pods in backoffQ.
    pub fn first_backoff(&self, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a].pod, &self[b].pod);
        let by_end = a.backoff_until.cmp(&b.backoff_until);
        let by_sort = || if self.sorts_backoff { self.compare(a, b) } else { Ordering::Equal };
        by_end.then_with(by_sort).then(a.nth.cmp(&b.nth)).is_lt()
    }

    /// Whether `a` goes before `b` among failed pods in backoffQ.
    pub fn first_error_backoff(&self, a: Slot, b: Slot) -> bool {
        let key = |slot: Slot| (self[slot].pod.backoff_until, self[slot].pod.nth);
        key(a) < key(b)
    }

    fn compare(&self, a: &QueuedPod, b: &QueuedPod) -> Ordering {
        self.sort.compare(&a.info, &b.info)
    }
}

impl Index<Slot> for Pods {
    type Output = Entry;
    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot]
    }
}

impl IndexMut<Slot> for Pods {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot]
    }
}
