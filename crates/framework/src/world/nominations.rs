//! Pods that are nominated to nodes (upstream's nominator).

use std::sync::Arc;

use loadmaster_api::Str;

use super::{World, WorldChange};
use crate::node_row::NodeRow;
use crate::pod_info::PodInfo;
use crate::topology_counter::TopologyCounterSet;

impl World {
    /// Pods that are nominated to a node (upstream's `NominatedPodsForNode`).
    pub fn nominated_pods_for_node(&self, node: &str) -> &[Arc<PodInfo>] {
        self.nominated.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether pods are nominated to the node in this row.
    pub fn has_nominated_pods(&self, row: NodeRow) -> bool {
        let name = || self.node(row).map_or("", |node| node.name());
        self.nominates_any_pod() && !self.nominated_pods_for_node(name()).is_empty()
    }

    /// Whether a pod is nominated to any node.
    pub fn nominates_any_pod(&self) -> bool {
        !self.nominated.is_empty()
    }

    /// Names of the nodes that pods are nominated to, sorted.
    pub fn nominated_nodes(&self) -> impl Iterator<Item = &Str> {
        self.nominated.keys()
    }

    /// Nominates a pending pod to a node (upstream's `AddNominatedPod`).
    pub fn add_nominated_pod(&mut self, node: Str, pod: Arc<PodInfo>) {
        self.delete_nominated_pod(&pod.uid);
        self.undo.nominated(&node, self.nominations_version);
        self.change_nominations_version();
        self.nominated_nodes_by_uid.insert(pod.uid.clone(), node.clone());
        self.log_nomination(&node);
        self.nominated.entry(node).or_default().push(pod);
    }

    /// The node that a pod is nominated to.
    pub fn nominated_node(&self, uid: &str) -> Option<&Str> {
        self.nominated_nodes_by_uid.get(uid)
    }

    /// Changes with every change of a nomination, and is the old one again when such a change is undone; results that depend on
    /// nominations are valid while it is the same.
    pub fn nominations_version(&self) -> u64 {
        self.nominations_version
    }

    /// Deletes a pod's nomination, if it has one (upstream's `DeleteNominatedPodIfExists`).
    pub fn delete_nominated_pod(&mut self, uid: &str) {
        let Some(node) = self.nominated_nodes_by_uid.remove(uid) else { return };
        let Some(pods) = self.nominated.get_mut(&node) else { return };
        let Some(at) = pods.iter().position(|pod| &*pod.uid == uid) else { return };
        let pod = pods.remove(at);
        if pods.is_empty() {
            self.nominated.remove(&node);
        }
        self.log_nomination(&node);
        self.undo.nomination_deleted(&node, at, pod, self.nominations_version);
        self.change_nominations_version();
    }

    /// Evaluators may read the pods that are nominated to a node.
    pub(super) fn log_nomination(&mut self, node: &str) {
        if let Some(row) = self.nodes.row(node) {
            self.log_change(WorldChange::Pods(row, TopologyCounterSet::EMPTY));
        }
    }

    fn change_nominations_version(&mut self) {
        self.last_nominations_version += 1;
        self.nominations_version = self.last_nominations_version;
    }
}
