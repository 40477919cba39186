//! The victims that were found on nodes in earlier searches.

use std::sync::Arc;

use loadmaster_api::PodDisruptionBudget;

use crate::node_row::NodeRow;
use crate::pod_info::PodInfo;
use crate::preemption_candidate::Victims;
use crate::result::Rejection;

/// The results of `NodeDryRun::select_victims_on_node` with the pods of lower priority, for preemptors of one priority that are rejected by
/// the same nodes for the same reasons, because their Filter plugins see nothing but their keys, the node and its pods (`FilterScope::Node`).
///
/// Its owner drops what was found on a node when the node, its pods or the pods that are nominated to it change.
#[derive(Debug, Default)]
pub struct VictimCache {
    /// The budgets with which the victims were selected.
    budgets: Vec<Arc<PodDisruptionBudget>>,
    by_row: Vec<Option<KnownVictims>>,
}

#[derive(Debug)]
struct KnownVictims {
    /// All pods of the node: their start times, which order victims, may change without a change of the node's sums.
    pods: Box<[Arc<PodInfo>]>,
    result: Result<Victims, Rejection>,
}

impl VictimCache {
    /// Drops what was found on a node.
    pub fn forget(&mut self, row: NodeRow) {
        if let Some(known) = self.by_row.get_mut(row.index()) {
            *known = None;
        }
    }

    /// Begins a search; drops everything if the budgets are not the same as before.
    pub(crate) fn begin<'b>(
        &mut self,
        budgets: impl ExactSizeIterator<Item = &'b Arc<PodDisruptionBudget>> + Clone,
    ) {
        let is_same = self.budgets.len() == budgets.len()
            && self.budgets.iter().zip(budgets.clone()).all(|(known, it)| Arc::ptr_eq(known, it));
        if !is_same {
            self.budgets = budgets.cloned().collect();
            self.by_row.clear();
        }
    }

    /// What was found on the node with these pods.
    pub(crate) fn get(
        &self,
        row: NodeRow,
        pods: &[Arc<PodInfo>],
    ) -> Option<&Result<Victims, Rejection>> {
        let known = self.by_row.get(row.index())?.as_ref()?;
        let is_same = known.pods.len() == pods.len()
            && known.pods.iter().zip(pods).all(|(known, pod)| Arc::ptr_eq(known, pod));
        is_same.then_some(&known.result)
    }

    pub(crate) fn insert(
        &mut self,
        row: NodeRow,
        pods: &[Arc<PodInfo>],
        result: Result<Victims, Rejection>,
    ) {
        if self.by_row.len() <= row.index() {
            self.by_row.resize_with(row.index() + 1, || None);
        }
        self.by_row[row.index()] = Some(KnownVictims { pods: pods.into(), result });
    }
}
