//! Pods that wait: those ready to be decided, in the order of the profiles' QueueSort plugin, and those that wait for an event.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use loadmaster_framework::{QueueSort, QueuedPodInfo};

use super::PodId;

/// Pods that are ready, first in first out where QueueSort sees no difference.
#[derive(Default)]
pub(super) struct ActiveQ {
    heap: BinaryHeap<Entry>,
    n_pushed: u64,
}

struct Entry {
    id: PodId,
    pod: QueuedPodInfo,
    nth: u64,
    sort: Option<Arc<dyn QueueSort>>,
}

impl ActiveQ {
    /// Adds a pod. All pods of a queue come with the same plugin.
    pub fn push(&mut self, id: PodId, pod: QueuedPodInfo, sort: Option<Arc<dyn QueueSort>>) {
        self.n_pushed += 1;
        self.heap.push(Entry { id, pod, nth: self.n_pushed, sort });
    }

    /// Takes the pod that is decided next. It may be one that was deleted meanwhile.
    pub fn pop(&mut self) -> Option<PodId> {
        Some(self.heap.pop()?.id)
    }
}

/// The heap gives its greatest entry first, so what comes first is greatest.
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        let by_plugin = match &self.sort {
            Some(sort) => sort.compare(&other.pod, &self.pod),
            None => Ordering::Equal,
        };
        by_plugin.then(other.nth.cmp(&self.nth))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Who turned a pod down: the profile and its plugins, by index. Pods with the same rejecters listen to the same events.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rejecters {
    pub seat: usize,
    pub plugins: Vec<usize>,
}

/// Pods that wait for something to happen: turned down by Filter or held by PreEnqueue.
#[derive(Default)]
pub(super) struct Waiting(BTreeMap<Rejecters, BTreeSet<PodId>>);

impl Waiting {
    /// A pod begins to wait.
    pub fn insert(&mut self, by: &Rejecters, id: PodId) {
        match self.0.get_mut(by) {
            Some(pods) => drop(pods.insert(id)),
            None => drop(self.0.insert(by.clone(), BTreeSet::from([id]))),
        }
    }

    /// A pod waits no longer.
    pub fn remove(&mut self, by: &Rejecters, id: PodId) {
        if let Some(pods) = self.0.get_mut(by) {
            pods.remove(&id);
            if pods.is_empty() {
                self.0.remove(by);
            }
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Rejecters, &BTreeSet<PodId>)> {
        self.0.iter()
    }
}
