//! Why nodes rejected the last pods, and the victims that preemption found there.
//!
//! Most Filter plugins look at one node only ([`FilterScope::Node`](loadmaster_framework::incremental::FilterScope::Node)). What they found
//! holds for the next pod with equal keys, except on nodes that changed: a Deployment of pods that preempt others costs the evaluation of all
//! nodes once.

use std::cell::RefCell;
use std::sync::Arc;

use loadmaster_framework::World;
use loadmaster_framework::preemption::VictimCache;
use loadmaster_framework::world::WorldChange;

use super::rejection_summary::RejectionSummary;
use crate::diagnosis::Diagnosis;
use crate::evaluation_cache::NodeFilterKeys;
use crate::node_rejections::{ChangedRow, NodeRejections};
use crate::profile::Profile;
use crate::queue::ProfileIdx;

/// Number of rows in all results together; about 150 bytes each if pods preempt others, else four.
const N_ROWS_MAX: usize = 1 << 18;
/// But at least so many results are kept.
const N_RESULTS_MIN: usize = 4;
/// And at most so many.
const N_RESULTS_MAX: usize = 64;
/// With more than one changed row per this many, all nodes are evaluated.
const ROWS_PER_CHANGE: usize = 4;

/// The pods that share results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFilterId {
    pub profile_idx: ProfileIdx,
    pub keys: NodeFilterKeys,
    /// Decides which nominated pods count, and which pods may be evicted.
    pub priority: i32,
}

/// The last results, the most recently used first.
#[derive(Default)]
pub(super) struct NodeFilterCache(Vec<NodeFilterResults>);

/// What Filter plugins and preemption found on every node.
pub(super) struct NodeFilterResults {
    id: NodeFilterId,
    /// Sequence number of the world's changes up to which the results hold.
    next_change: u64,
    /// Indexes of plugins whose PreFilter returned Skip.
    pub skipped: Vec<usize>,
    pub rejections: NodeRejections,
    /// What the rejections mean, and their number of changes when it was made.
    explained: Option<(u64, Explained)>,
    victims: RefCell<VictimCache>,
}

/// What the rejections of all nodes mean.
#[derive(Clone)]
pub(super) struct Explained {
    pub diagnosis: Arc<Diagnosis>,
    pub reasons: Arc<RejectionSummary>,
}

impl Explained {
    fn new(profile: &Profile, world: &World, rejections: &NodeRejections) -> Explained {
        let groups = rejections.groups();
        let diagnosis = Diagnosis::of_rejections(profile, world, rejections, &groups);
        let reasons = RejectionSummary::from_groups(world, groups);
        Explained { diagnosis: Arc::new(diagnosis), reasons: Arc::new(reasons) }
    }
}

impl NodeFilterCache {
    /// Takes the results of these pods, which may be out of date.
    pub fn take(&mut self, id: &NodeFilterId) -> Option<NodeFilterResults> {
        let at = self.0.iter().position(|known| known.id == *id)?;
        Some(self.0.remove(at))
    }

    pub fn insert(&mut self, world: &World, results: NodeFilterResults) {
        let n_max = N_ROWS_MAX / world.nodes().n_rows().max(1);
        self.0.insert(0, results);
        self.0.truncate(n_max.clamp(N_RESULTS_MIN, N_RESULTS_MAX));
    }

    /// The victims found for these pods, if nothing changed since their results were updated.
    pub fn victims(&self, id: &NodeFilterId, world: &World) -> Option<&RefCell<VictimCache>> {
        let known = self.0.iter().find(|known| known.id == *id)?;
        (known.next_change == world.next_change_seq()).then_some(&known.victims)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl NodeFilterResults {
    pub fn new(
        id: NodeFilterId,
        world: &World,
        skipped: Vec<usize>,
        rejections: NodeRejections,
    ) -> NodeFilterResults {
        let (next_change, victims) = (world.next_change_seq(), RefCell::default());
        NodeFilterResults { id, next_change, skipped, rejections, explained: None, victims }
    }

    /// What the rejections mean. Most often no node has another one since it was asked for last.
    pub fn explain(&mut self, profile: &Profile, world: &World) -> Explained {
        let n_changes = self.rejections.n_changes();
        match &self.explained {
            Some((at, explained)) if *at == n_changes => explained.clone(),
            _ => {
                let explained = Explained::new(profile, world, &self.rejections);
                self.explained = Some((n_changes, explained.clone()));
                explained
            }
        }
    }

    /// The rows that changed since the results were updated, ascending. `None` if these are too many, or nodes were added or deleted.
    pub fn changed_rows(&self, world: &World) -> Option<Vec<ChangedRow>> {
        let mut rows = Vec::new();
        for change in world.changes_since(self.next_change)? {
            rows.push(match change {
                WorldChange::Pods(row, _) => ChangedRow { row: *row, only_pods: true },
                WorldChange::Node(row) => ChangedRow { row: *row, only_pods: false },
                WorldChange::NodeSet => return None,
            });
        }
        // A changed node comes before changes of its pods.
        rows.sort_unstable();
        rows.dedup_by_key(|changed| changed.row);
        (rows.len() <= world.nodes().n_rows() / ROWS_PER_CHANGE).then_some(rows)
    }

    /// Drops the victims that were found on these nodes: now all results hold.
    pub fn set_updated(&mut self, world: &World, changed: &[ChangedRow]) {
        let victims = self.victims.get_mut();
        changed.iter().for_each(|changed| victims.forget(changed.row));
        self.next_change = world.next_change_seq();
    }
}
