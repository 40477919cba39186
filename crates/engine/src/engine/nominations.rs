//! Nodes that were promised to pending pods (upstream's nominator).

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::PodInfo;

use super::Engine;
use crate::queue::Place;

/// What an attempt that failed does about the pod's promised node (upstream's `NominatingMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// It stays as the pod's status has it.
    Keep,
    /// This node, or none when empty.
    Set(Str),
}

impl Nomination {
    pub fn clear() -> Nomination {
        Nomination::Set(Str::default())
    }

    /// What the status must say; `None` when it stays.
    pub fn for_status(&self) -> Option<Str> {
        match self {
            Nomination::Keep => None,
            Nomination::Set(node) => Some(node.clone()),
        }
    }
}

impl Engine {
    /// A pending pod is new or changed. While neither status names a node, a promise made in memory stays: its patch may
    /// still be on the way.
    pub(super) fn renominate(&mut self, old: Option<&PodInfo>, new: &Arc<PodInfo>) {
        let said_before = old.is_some_and(|old| !old.nominated_node_name.is_empty());
        let node = if new.nominated_node_name.is_empty() && !said_before {
            self.world.nomination(&new.uid).cloned()
        } else {
            Some(new.nominated_node_name.clone())
        };
        self.world.forget_nomination(&new.uid);
        if let Some(node) = node {
            self.promise(node, new);
        }
    }

    /// An attempt ended without a node.
    pub(super) fn nominate(&mut self, pod: &Arc<PodInfo>, nomination: &Nomination) {
        self.world.forget_nomination(&pod.uid);
        let node = match nomination {
            Nomination::Keep => pod.nominated_node_name.clone(),
            Nomination::Set(node) => node.clone(),
        };
        self.promise(node, pod);
    }

    /// Only pods that wait in the queue can be promised a node: not those that are gone, assigned, or held by PreEnqueue before
    /// they were ever tried.
    fn promise(&mut self, node: Str, pod: &Arc<PodInfo>) {
        let waits = self.pending.contains_key(&pod.uid) && !self.assumed.contains_key(&pod.uid);
        if waits && !node.is_empty() && !self.is_gated(&pod.uid) {
            self.world.nominate(node, pod.clone());
        }
    }

    fn is_gated(&self, uid: &str) -> bool {
        self.queue.get(uid).is_some_and(|(_, place)| place == Place::Gated)
    }
}
