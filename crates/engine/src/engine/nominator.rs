//! Nominated nodes of pending pods (upstream's `nominator`).

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::PodInfo;

use super::Engine;
use crate::queue::SubQueue;

/// What a failed attempt does with the pod's nominated node (upstream's `NominatingInfo` and `NominatingMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// Keeps the node of the pod's status.
    Keep,
    /// Sets this node, or clears it when empty.
    Set(Str),
}

impl Nomination {
    pub fn clear() -> Nomination {
        Nomination::Set(Str::default())
    }

    /// The new value in the pod's status; `None` keeps it.
    pub fn new_status_value(&self) -> Option<Str> {
        match self {
            Nomination::Keep => None,
            Nomination::Set(node) => Some(node.clone()),
        }
    }
}

impl Engine {
    /// A pending pod was added or updated. While neither version's status names a node, a nomination in memory stays: its patch may still be
    /// in flight.
    pub(super) fn update_nomination(&mut self, old: Option<&PodInfo>, new: &Arc<PodInfo>) {
        let said_before = old.is_some_and(|old| !old.nominated_node_name.is_empty());
        let node = if new.nominated_node_name.is_empty() && !said_before {
            self.world.nominated_node(&new.uid).cloned()
        } else {
            Some(new.nominated_node_name.clone())
        };
        self.world.delete_nominated_pod(&new.uid);
        if let Some(node) = node.filter(|_| !self.is_gated(&new.uid)) {
            self.add_nomination(node, new);
        }
    }

    /// An attempt failed. The pod may be gated already: its eviction of a pod that waited at Permit requeued it, and PreEnqueue gates it until
    /// its other victims are deleted.
    pub(super) fn apply_nomination(&mut self, pod: &Arc<PodInfo>, nomination: &Nomination) {
        self.world.delete_nominated_pod(&pod.uid);
        let node = match nomination {
            Nomination::Keep => pod.nominated_node_name.clone(),
            Nomination::Set(node) => node.clone(),
        };
        self.add_nomination(node, pod);
    }

    /// Nominates a node for a pod, unless it was deleted or assigned.
    fn add_nomination(&mut self, node: Str, pod: &Arc<PodInfo>) {
        let waits = self.pending.contains_key(&pod.uid) && !self.assumed.contains_key(&pod.uid);
        if waits && !node.is_empty() {
            self.world.add_nominated_pod(node, pod.clone());
        }
    }

    fn is_gated(&self, uid: &str) -> bool {
        self.queue.get(uid).is_some_and(|(_, sub_queue)| sub_queue == SubQueue::Gated)
    }
}
