//! The node of every assigned pod, by the pod's uid.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::HashTable;
use loadmaster_stdx::hash::SeededHashBuilder;

use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;

/// A map from uids to rows. It has no copies of the uids, which would need more memory than the map itself: it finds them in the pods.
#[derive(Default)]
pub(super) struct AssignedPods {
    table: HashTable<(Arc<PodInfo>, NodeRow)>,
    hasher: SeededHashBuilder,
}

impl AssignedPods {
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The row of the pod with this uid.
    pub fn row(&self, uid: &str) -> Option<NodeRow> {
        let found = self.table.find(self.hasher.hash_one(uid), |(pod, _)| &*pod.uid == uid);
        found.map(|(_, row)| *row)
    }

    /// Adds a pod; returns the one with the same uid whose place it takes, if there was one.
    pub fn insert(&mut self, pod: Arc<PodInfo>, row: NodeRow) -> Option<(Arc<PodInfo>, NodeRow)> {
        let AssignedPods { table, hasher } = self;
        let hash = hasher.hash_one(&*pod.uid);
        match table.find_mut(hash, |(known, _)| known.uid == pod.uid) {
            Some(known) => Some(std::mem::replace(known, (pod, row))),
            None => {
                table.insert_unique(hash, (pod, row), |(pod, _)| hasher.hash_one(&*pod.uid));
                None
            }
        }
    }

    /// Removes the pod with this uid; returns its row.
    pub fn remove(&mut self, uid: &str) -> Option<NodeRow> {
        let found = self.table.find_entry(self.hasher.hash_one(uid), |(pod, _)| &*pod.uid == uid);
        let ((_, row), _) = found.ok()?.remove();
        Some(row)
    }
}
