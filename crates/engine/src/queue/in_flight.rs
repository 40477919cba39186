//! Pods that were popped and not requeued or done yet, and what happened since the first of them was popped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use loadmaster_framework::{ClusterEvent, PodInfo};
use loadmaster_stdx::Map;

use super::event::{Cause, Object};

/// Pods in flight, and the events they will be asked about if they come back.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pops: Map<Box<str>, Pop>,
    /// Pods as their last updates told them, the one popped first in front.
    pods: BTreeMap<Pop, Arc<PodInfo>>,
    events: VecDeque<Recorded>,
    /// Number of the first of `events`.
    first: u64,
    n_popped: u64,
}

/// When a pod was popped: the number of the first event after it, and of the pop.
type Pop = (u64, u64);

/// An event, kept for pods in flight.
#[derive(Debug)]
pub(super) struct Recorded {
    pub cause: Cause,
    pub event: ClusterEvent,
    pub old: Option<Object>,
    pub new: Option<Object>,
}

impl InFlight {
    pub fn contains(&self, uid: &str) -> bool {
        self.pops.contains_key(uid)
    }

    /// Every pod, the one popped first in front.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }

    /// The pod as its last update told it.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(self.pops.get(uid)?)
    }

    /// A pod was popped.
    pub fn insert(&mut self, uid: Box<str>, pod: Arc<PodInfo>) {
        self.n_popped += 1;
        let pop = (self.end(), self.n_popped);
        self.pops.insert(uid, pop);
        self.pods.insert(pop, pod);
    }

    /// A pod changed: keeps it, and returns it as it was. `None` if it is not in flight.
    pub fn replace(&mut self, pod: &Arc<PodInfo>) -> Option<Arc<PodInfo>> {
        let known = self.pods.get_mut(self.pops.get(&*pod.uid)?)?;
        Some(std::mem::replace(known, pod.clone()))
    }

    /// The pod is no longer in flight. Drops events that nobody needs any more; returns the key for the next map.
    pub fn remove(&mut self, uid: &str) -> Option<Box<str>> {
        let (uid, pop) = self.pops.remove_entry(uid)?;
        self.pods.remove(&pop);
        let needed = self.pods.first_key_value().map_or(self.end(), |((start, _), _)| *start);
        self.events.drain(..(needed - self.first) as usize);
        self.first = needed;
        Some(uid)
    }

    /// Keeps an event, if there is anybody to keep it for.
    pub fn record(&mut self, recorded: Recorded) {
        if !self.pods.is_empty() {
            self.events.push_back(recorded);
        }
    }

    /// What happened since the pod was popped; `None` if it is not in flight.
    pub fn since_pop(&self, uid: &str) -> Option<impl Iterator<Item = &Recorded>> {
        let (start, _) = self.pops.get(uid)?;
        // Only events from before every pod's pop are dropped, so this does not go below zero.
        Some(self.events.range((start - self.first) as usize..))
    }

    /// All events that are kept.
    pub fn events(&self) -> impl Iterator<Item = &Recorded> {
        self.events.iter()
    }

    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}
