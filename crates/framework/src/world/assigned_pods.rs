//! The node of every assigned pod, by the pod's uid.

use std::hash::BuildHasher as _;
use std::hint::black_box;
use std::sync::Arc;

use hashbrown::HashTable;
use loadmaster_stdx::hash::SeededHashBuilder;

use super::World;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;

/// A map from uids to pods and their rows. The uids are those of the pods, and only half of the hash of each is stored.
///
/// The pods are also in the lists of their nodes. To find one there by its uid, each of the node's pods would have to come from memory, after
/// the list, which comes from memory after the row is known: here a pod is found first, and in the list by its address.
#[derive(Default)]
pub(super) struct AssignedPods {
    table: HashTable<AssignedPod>,
    hasher: SeededHashBuilder,
}

struct AssignedPod {
    row: NodeRow,
    hash: UidHash,
    pod: Arc<PodInfo>,
}

impl AssignedPod {
    fn has_uid(&self, hash: UidHash, uid: &str) -> bool {
        self.hash == hash && *self.pod.uid == *uid
    }
}

/// Half of the hash of a uid. Because it is stored, no pod has to be read when the table grows, and hardly one whose uid is another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct UidHash(u32);

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

    pub fn hash(&self, uid: &str) -> UidHash {
        UidHash((self.hasher.hash_one(uid) >> 32) as u32)
    }

    /// The pod with this uid, and its row. Calls `preload` with it before its uid is known, which has to come from memory.
    fn get(
        &self,
        hash: UidHash,
        uid: &str,
        preload: impl Fn(NodeRow, &PodInfo),
    ) -> Option<(NodeRow, &Arc<PodInfo>)> {
        let is_it = |known: &AssignedPod| {
            if known.hash == hash {
                preload(known.row, &known.pod);
            }
            known.has_uid(hash, uid)
        };
        let found = self.table.find(hash.of_table(), is_it);
        found.map(|known| (known.row, &known.pod))
    }

    /// Adds a pod that is not there.
    pub fn insert(&mut self, hash: UidHash, row: NodeRow, pod: Arc<PodInfo>) {
        let new = AssignedPod { row, hash, pod };
        self.table.insert_unique(hash.of_table(), new, |known| known.hash.of_table());
    }

    /// Replaces the pod with the same uid.
    pub fn replace(&mut self, hash: UidHash, pod: &Arc<PodInfo>) {
        let is_it = |known: &AssignedPod| known.has_uid(hash, &pod.uid);
        if let Some(known) = self.table.find_mut(hash.of_table(), is_it) {
            known.pod.clone_from(pod);
        }
    }

    /// Removes a pod, which is this very one.
    pub fn remove(&mut self, hash: UidHash, pod: &Arc<PodInfo>) {
        let is_it = |known: &AssignedPod| Arc::ptr_eq(&known.pod, pod);
        if let Ok(found) = self.table.find_entry(hash.of_table(), is_it) {
            found.remove();
        }
    }
}

impl World {
    /// The row of an assigned pod.
    pub fn row_of_pod(&self, uid: &str) -> Option<NodeRow> {
        self.position_of_hashed(self.assigned.hash(uid), uid).map(|(row, _)| row)
    }

    /// The row of a pod with this hash, and its index among the pods there.
    pub(super) fn position_of_hashed(&self, hash: UidHash, uid: &str) -> Option<(NodeRow, usize)> {
        // From the end: recently added pods are looked up most often. The lists are short.
        let position = |(row, pod): (NodeRow, &Arc<PodInfo>)| {
            let at = self.nodes.pods(row).iter().rposition(|other| Arc::ptr_eq(other, pod));
            at.map(|at| (row, at))
        };
        let preload = |row, pod: &PodInfo| {
            self.nodes.preload(row);
            black_box(pod.template.id);
        };
        let known = self.assigned.get(hash, uid, preload).and_then(position);
        if known.is_none() && self.undo.is_dry_run() {
            return self.position_in_dry_run(uid);
        }
        known
    }

    /// The same of a pod that a dry run added. Dry runs do not write the map, which would cost more than all other sums: a pod is where the map
    /// says, or where a step added it, if it is there.
    #[inline(never)]
    fn position_in_dry_run(&self, uid: &str) -> Option<(NodeRow, usize)> {
        let at = |row: NodeRow| self.nodes.pods(row).iter().rposition(|pod| *pod.uid == *uid);
        let mut rows = self.undo.rows_of_pods_added_in_dry_runs();
        rows.find_map(|row| Some((row, at(row)?)))
    }

    /// An assigned pod.
    pub fn assigned_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        let (row, at) = self.position_of_hashed(self.assigned.hash(uid), uid)?;
        self.nodes.pods(row).get(at)
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::{Node, Pod};
    use loadmaster_stdx::Map;
    use serde_json::json;

    use super::*;

    /// Two uids whose halves of hashes are equal.
    fn uids_with_equal_hashes() -> [String; 2] {
        let pods = AssignedPods::default();
        let mut known = Map::default();
        for n in 0..1_000_000 {
            let uid = format!("pod-{n}");
            if let Some(other) = known.insert(pods.hash(&uid).0, uid.clone()) {
                return [other, uid];
            }
        }
        unreachable!("a million hashes of 32 bits differ")
    }

    #[test]
    fn pods_with_equal_hashes_are_distinguished() {
        let uids = uids_with_equal_hashes();
        let mut world = World::default();
        let rows = ["a", "b"].map(|name| {
            let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            world.upsert_node(Arc::new(node))
        });
        for (uid, row) in uids.iter().zip(rows) {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": uid}})).unwrap();
            let pod = Arc::new(world.parse_pod(&pod).unwrap());
            world.add_pod(row, pod);
        }
        let rows_of = |world: &World| uids.each_ref().map(|uid| world.row_of_pod(uid));
        assert_eq!(rows_of(&world), rows.map(Some));
        // One is moved to the node of the other.
        let moved = world.assigned_pod(&uids[0]).unwrap().clone();
        world.add_pod(rows[1], moved);
        assert_eq!(rows_of(&world), [Some(rows[1]); 2]);
        assert_eq!(world.n_assigned_pods(), 2);
        assert_eq!(&*world.remove_pod(&uids[1]).unwrap().uid, uids[1]);
        assert_eq!(rows_of(&world), [Some(rows[1]), None]);
        assert!(world.remove_pod(&uids[1]).is_none());
    }

    #[test]
    fn a_refreshed_pod_is_found_and_removed() {
        let mut world = World::default();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let row = world.upsert_node(Arc::new(node));
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "1"}})).unwrap();
        let [old, new] = [0, 1].map(|_| Arc::new(world.parse_pod(&pod).unwrap()));
        world.add_pod(row, old.clone());
        assert!(world.refresh_pod(&new));
        assert!(Arc::ptr_eq(world.assigned_pod("1").unwrap(), &new));
        assert_eq!(Arc::strong_count(&old), 1);
        assert!(Arc::ptr_eq(&world.remove_pod("1").unwrap(), &new));
        assert!(world.assigned_pod("1").is_none());
        assert_eq!(Arc::strong_count(&new), 1);
    }
}
