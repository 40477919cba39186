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
    /// Its order by QueueSort while it is in activeQ or backoffQ; `None` if the plugin has to compare pods.
    sort_key: Option<[i64; 2]>,
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

    /// Adds a pod, whose sub-queue is set when it is moved there.
    pub fn insert(&mut self, pod: QueuedPod) -> Slot {
        self.entries.insert(Entry { pod, sub_queue: SubQueue::Unschedulable, sort_key: None })
    }

    /// To be called before the pod is added to a heap, and after a change of a pod in one.
    pub fn set_sort_key(&mut self, slot: Slot, plugins: &dyn QueuePlugins) {
        let entry = &mut self.entries[slot];
        entry.sort_key = plugins.sort_key(&entry.pod.info);
    }

    /// To be called when the order of QueueSort has changed.
    pub fn set_all_sort_keys(&mut self, plugins: &dyn QueuePlugins) {
        for (_, entry) in &mut self.entries {
            entry.sort_key = plugins.sort_key(&entry.pod.info);
        }
    }

    pub fn remove(&mut self, slot: Slot) -> QueuedPod {
        self.entries.remove(slot).pod
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Whether `a` goes before `b` in activeQ.
    pub fn first_active(&self, plugins: &dyn QueuePlugins, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a], &self[b]);
        by_queue_sort(plugins, a, b).then(a.pod.nth.cmp(&b.pod.nth)).is_lt()
    }

    /// Whether `a` goes before `b` in backoffQ, for pods in backoff after a rejection.
    pub fn first_backoff(&self, plugins: &dyn QueuePlugins, a: Slot, b: Slot) -> bool {
        let (a, b) = (&self[a], &self[b]);
        let by_end = a.pod.backoff_until.cmp(&b.pod.backoff_until);
        let by_sort =
            || if self.sorts_backoff { by_queue_sort(plugins, a, b) } else { Ordering::Equal };
        by_end.then_with(by_sort).then(a.pod.nth.cmp(&b.pod.nth)).is_lt()
    }

    /// Whether `a` goes before `b` in backoffQ, for pods in backoff after an error.
    pub fn first_error_backoff(&self, a: Slot, b: Slot) -> bool {
        let key = |slot: Slot| (self[slot].pod.backoff_until, self[slot].pod.nth);
        key(a) < key(b)
    }
}

fn by_queue_sort(plugins: &dyn QueuePlugins, a: &Entry, b: &Entry) -> Ordering {
    match (a.sort_key, b.sort_key) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => plugins.compare(&a.pod.info, &b.pod.info),
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
