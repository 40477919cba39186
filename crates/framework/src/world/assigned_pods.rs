//! The node of every assigned pod, by the pod's uid.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::HashTable;
use loadmaster_stdx::hash::SeededHashBuilder;

use super::World;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;

/// A map from uids to rows. It has neither the uids nor the pods, which would need several times as much memory as the map itself, and one
/// more cache line of each placement: of a uid it knows half of a hash, and so in which rows the pod may be. The pods of these rows say
/// where it is, most often in the only one.
#[derive(Default)]
pub(super) struct AssignedPods {
    table: HashTable<AssignedPod>,
    hasher: SeededHashBuilder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct AssignedPod {
    row: NodeRow,
    hash: UidHash,
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

    /// The rows where the pod with this uid may be; none if it is nowhere.
    pub fn rows(&self, hash: UidHash) -> impl Iterator<Item = NodeRow> + '_ {
        let same_bucket = self.table.iter_hash(hash.of_table());
        same_bucket.filter(move |known| known.hash == hash).map(|known| known.row)
    }

    /// Adds a pod that is not there.
    pub fn insert(&mut self, hash: UidHash, row: NodeRow) {
        let new = AssignedPod { row, hash };
        self.table.insert_unique(hash.of_table(), new, |known| known.hash.of_table());
    }

    /// Removes a pod, which is in this row.
    pub fn remove(&mut self, hash: UidHash, row: NodeRow) {
        let pod = AssignedPod { row, hash };
        if let Ok(found) = self.table.find_entry(hash.of_table(), |known| *known == pod) {
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
        // Dry runs do not write the map, which would cost more than all other sums: a pod is where the map says, or where a step added it, if
        // it is there.
        let rows = self.assigned.rows(hash).chain(self.undo.rows_of_pods_added_in_dry_runs());
        // From the end: recently added pods are looked up most often. The lists are short.
        let at = |row: &NodeRow| self.nodes.pods(*row).iter().rposition(|pod| &*pod.uid == uid);
        let mut positions = rows.filter_map(|row| Some((row, at(&row)?)));
        positions.next()
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
}
