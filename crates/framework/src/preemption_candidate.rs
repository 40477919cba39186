//! What a search for preemption finds: nodes, and the pods to evict from each of them.

use std::sync::Arc;

use crate::node_row::NodeRow;
use crate::pod_info::PodInfo;
use crate::result::Rejection;

/// The pods that must be evicted so that the preemptor fits on a node: pods of that node, and perhaps of others.
#[derive(Clone, Debug)]
pub struct Victims {
    /// The most important first.
    pub pods: Vec<Arc<PodInfo>>,
    /// How many of these evictions violate a PodDisruptionBudget (upstream's `NumPDBViolations`).
    pub n_pdb_violations: usize,
}

/// A node on which the preemptor fits after the eviction of its victims; there is at least one victim.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub row: NodeRow,
    /// The pods to evict.
    pub victims: Victims,
}

/// All preemptions that are possible for a pod, as `explain` shows them.
#[derive(Clone, Debug, Default)]
pub struct PreemptionPreview {
    /// Every candidate, without sampling.
    pub candidates: Vec<Candidate>,
    /// Indexes of the equally good best candidates, of which one is selected at random.
    pub best: Vec<usize>,
    /// Why there is no candidate.
    pub rejection: Option<Rejection>,
}
