//! Nominated pods: the node that a pod is nominated to, and nodes that other nominated pods block.

use std::sync::Arc;

use loadmaster_framework::{NodeRow, PodInfo, Rejection, World};

use super::Scheduler;
use crate::evaluate::{PluginRejection, per_node};

impl Scheduler {
    /// The row of the pod's nominated node, if the pod fits there (upstream's `evaluateNominatedNode`).
    pub fn evaluate_nominated_node(&mut self, world: &mut World, pod: &PodInfo) -> Option<NodeRow> {
        self.cycle = None;
        self.node_order.rejected_nominated_node = None;
        if pod.nominated_node_name.is_empty() {
            return None;
        }
        self.filter_nominated_node(world, pod)
    }

    #[inline(never)]
    fn filter_nominated_node(&mut self, world: &mut World, pod: &PodInfo) -> Option<NodeRow> {
        let row = world.nodes().row(&pod.nominated_node_name)?;
        let states = &mut self.states;
        let results =
            per_node::filter_rows_with_nominated_pods(&self.profile, world, states, pod, &[row])
                .ok()?;
        let is_feasible = matches!(results.as_slice(), [Ok(())]);
        self.node_order.rejected_nominated_node = (!is_feasible).then_some(row);
        is_feasible.then_some(row)
    }

    /// Rows on which the pod does not fit because of pods that are nominated to them. Other rows with nominated pods are
    /// evaluated like any row.
    #[inline(never)]
    pub(super) fn rows_blocked_by_nominated_pods(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
    ) -> Result<Vec<NodeRow>, String> {
        let may_block = |other: &Arc<PodInfo>| {
            other.template.priority() >= pod.template.priority() && other.uid != pod.uid
        };
        let nodes = world.nominated_nodes();
        let nodes = nodes.filter(|node| world.nominated_pods_for_node(node).iter().any(may_block));
        let mut rows: Vec<NodeRow> = nodes.filter_map(|node| world.nodes().row(node)).collect();
        if rows.is_empty() {
            return Ok(rows);
        }
        rows.sort_unstable();
        let states = &mut self.states;
        match per_node::filter_rows_with_nominated_pods(&self.profile, world, states, pod, &rows) {
            Err(PluginRejection { rejection: Rejection::Failed(failure), .. }) => {
                Err(failure.to_string())
            }
            // The decision finds the same rejection.
            Err(_) => Ok(Vec::new()),
            Ok(results) => {
                let mut blocked = Vec::new();
                for (row, result) in rows.into_iter().zip(results) {
                    match result {
                        Ok(()) => {}
                        Err(PluginRejection { rejection: Rejection::Failed(failure), .. }) => {
                            return Err(failure.to_string());
                        }
                        Err(_) => blocked.push(row),
                    }
                }
                Ok(blocked)
            }
        }
    }
}
