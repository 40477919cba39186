//! Pods that were popped and not requeued or done yet, and the events since the first of them was popped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use loadmaster_framework::{ClusterEvent, PodInfo};
use loadmaster_stdx::Map;

use super::event::{EnqueueCause, OwnedEventObject};

/// Pods in flight, and the events that are checked when they are requeued.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pops: Map<Box<str>, Pop>,
    /// The newest versions of the pods, in the order in which they were popped.
    pods: BTreeMap<Pop, Arc<PodInfo>>,
    events: VecDeque<InFlightEvent>,
    /// Sequence number of the first of `events`.
    first: u64,
    n_popped: u64,
}

/// When a pod was popped: the sequence number of the first event after it, and of the pop.
type Pop = (u64, u64);

/// An event that is stored for pods in flight.
#[derive(Debug)]
pub(super) struct InFlightEvent {
    pub cause: EnqueueCause,
    pub event: ClusterEvent,
    pub old: Option<OwnedEventObject>,
    pub new: Option<OwnedEventObject>,
}

impl InFlight {
    pub fn contains(&self, uid: &str) -> bool {
        self.pops.contains_key(uid)
    }

    /// All pods, in the order in which they were popped.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }

    /// The newest version of a pod.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(self.pops.get(uid)?)
    }

    /// Adds a popped pod.
    pub fn insert(&mut self, uid: Box<str>, pod: Arc<PodInfo>) {
        self.n_popped += 1;
        let pop = (self.end(), self.n_popped);
        self.pops.insert(uid, pop);
        self.pods.insert(pop, pod);
    }

    /// Replaces a pod by a newer version, and returns the old one. `None` if it is not in flight.
    pub fn replace(&mut self, pod: &Arc<PodInfo>) -> Option<Arc<PodInfo>> {
        let known = self.pods.get_mut(self.pops.get(&*pod.uid)?)?;
        Some(std::mem::replace(known, pod.clone()))
    }

    /// Removes a pod, and drops events that no other pod needs. Returns the key for reuse.
    pub fn remove(&mut self, uid: &str) -> Option<Box<str>> {
        let (uid, pop) = self.pops.remove_entry(uid)?;
        self.pods.remove(&pop);
        let needed = self.pods.first_key_value().map_or(self.end(), |((start, _), _)| *start);
        self.events.drain(..(needed - self.first) as usize);
        self.first = needed;
        Some(uid)
    }

    /// Stores an event, if any pod is in flight.
    pub fn record(&mut self, recorded: InFlightEvent) {
        if !self.pods.is_empty() {
            self.events.push_back(recorded);
        }
    }

    /// The events since the pod was popped; `None` if it is not in flight.
    pub fn events_since_pop(&self, uid: &str) -> Option<impl Iterator<Item = &InFlightEvent>> {
        let (start, _) = self.pops.get(uid)?;
        // Only events from before every pod's pop are dropped, so this does not go below zero.
        Some(self.events.range((start - self.first) as usize..))
    }

    /// All stored events.
    pub fn events(&self) -> impl Iterator<Item = &InFlightEvent> {
        self.events.iter()
    }

    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}
