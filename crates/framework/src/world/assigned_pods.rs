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
    table: HashTable<AssignedPod>,
    hasher: SeededHashBuilder,
}

struct AssignedPod {
    pod: Arc<PodInfo>,
    row: NodeRow,
    hash: UidHash,
}

/// Half of the hash of a uid. Because it is stored, no pod has to be read when the table grows, and hardly one whose uid is another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct UidHash(u32);

impl UidHash {
    /// The hash for the table, which uses its lowest and its highest bits.
    fn of_table(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl AssignedPods {
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The row of the pod with this uid.
    pub fn row(&self, uid: &str) -> Option<NodeRow> {
        let hash = self.hash(uid);
        self.table.find(hash.of_table(), |known| known.is(uid, hash)).map(|known| known.row)
    }

    /// Adds a pod; returns the one with the same uid whose place it takes, if there was one.
    pub fn insert(&mut self, pod: Arc<PodInfo>, row: NodeRow) -> Option<(Arc<PodInfo>, NodeRow)> {
        let hash = self.hash(&pod.uid);
        let known = self.table.find_mut(hash.of_table(), |known| known.is(&pod.uid, hash));
        match known {
            Some(known) => {
                let before = std::mem::replace(known, AssignedPod { pod, row, hash });
                Some((before.pod, before.row))
            }
            None => {
                let new = AssignedPod { pod, row, hash };
                self.table.insert_unique(hash.of_table(), new, |known| known.hash.of_table());
                None
            }
        }
    }

    /// Removes the pod with this uid; returns its row.
    pub fn remove(&mut self, uid: &str) -> Option<NodeRow> {
        let hash = self.hash(uid);
        let found = self.table.find_entry(hash.of_table(), |known| known.is(uid, hash));
        let (removed, _) = found.ok()?.remove();
        Some(removed.row)
    }

    fn hash(&self, uid: &str) -> UidHash {
        UidHash((self.hasher.hash_one(uid) >> 32) as u32)
    }
}

impl AssignedPod {
    fn is(&self, uid: &str, hash: UidHash) -> bool {
        self.hash == hash && *self.pod.uid == *uid
    }
}
