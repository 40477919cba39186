//! A dry run of preemption on one node.

use std::sync::Arc;

use crate::context::{Cx, DryRunCx};
use crate::node_info::NodeInfo;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::result::{Failure, Rejection};
use crate::state::CycleState;
use crate::world::{Checkpoint, DryRun};

use super::{
    DisruptionBudgets, FailedScheduling, Victims, compare_pod_importance, has_lower_priority,
};

/// Upstream's message for a node without pods of lower priority.
pub const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// A dry run for one node, in which pods are removed and added again, and the corresponding cycle state. Nothing but that state is
/// copied. Usually the pods are those of the node; pods of other nodes may be removed, too.
pub struct NodeDryRun<'a> {
    world: DryRun<'a>,
    start: Checkpoint,
    row: NodeRow,
    scheduling: FailedScheduling<'a>,
    /// The pods that were removed and not added again, and their nodes.
    removed: Vec<(NodeRow, Arc<PodInfo>)>,
    /// Cloned at the first change; a node without potential victims needs no copy.
    cycle: Option<CycleState>,
}

impl<'a> NodeDryRun<'a> {
    pub(super) fn new(world: DryRun<'a>, row: NodeRow, scheduling: FailedScheduling<'a>) -> Self {
        let start = world.checkpoint();
        NodeDryRun { world, start, row, scheduling, removed: Vec::new(), cycle: None }
    }

    /// The preemptor.
    pub fn preemptor(&self) -> &'a Arc<PodInfo> {
        self.scheduling.pod
    }

    /// The world in its current state in the dry run, with the cycle state.
    pub fn cx(&self) -> Cx<'_> {
        let FailedScheduling { cycle, states, .. } = self.scheduling;
        Cx { world: &self.world, cycle: self.cycle.as_ref().unwrap_or(cycle), states }
    }

    /// The node in its current state in the dry run; `None` for a free row.
    pub fn node(&self) -> Option<NodeInfo<'_>> {
        self.world.node(self.row)
    }

    /// The pods on the node in its current state in the dry run.
    pub fn pods(&self) -> &[Arc<PodInfo>] {
        self.world.nodes().pods(self.row)
    }

    /// The pods on the node that the preemptor may evict: those of lower priority.
    pub fn potential_victims(&self) -> Vec<Arc<PodInfo>> {
        let preemptor = self.scheduling.pod;
        self.pods().iter().filter(|other| has_lower_priority(other, preemptor)).cloned().collect()
    }

    /// Removes a pod from its node: this one, or another one.
    ///
    /// # Errors
    ///
    /// When a plugin fails to update its cycle state.
    pub fn remove_pod(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        let elsewhere = self.world.nodes().row(&other.node_name).filter(|row| *row != self.row);
        let mut rows = [Some(self.row), elsewhere].into_iter().flatten();
        let row = match rows.find(|row| self.world.evict_from(*row, other)) {
            Some(row) => {
                self.removed.push((row, other.clone()));
                row
            }
            None => {
                let row = self.world.row_of_pod(&other.uid).unwrap_or(self.row);
                self.world.evict(&other.uid);
                row
            }
        };
        let FailedScheduling { filter_runner, pod, cycle, .. } = self.scheduling;
        let cycle = self.cycle.get_or_insert_with(|| cycle.clone());
        let Some(node) = self.world.node(row) else { return Ok(()) };
        filter_runner.remove_pod(cycle, &self.world, pod, other, node)
    }

    /// Adds a removed pod again, or another pod to the node.
    ///
    /// PodTopologySpread, as upstream's, stores the two domains with the fewest matching pods. So that these are right, pods that a
    /// constraint counts are added again in at most one of its domains; else [undo](NodeDryRun::undo) everything.
    ///
    /// # Errors
    ///
    /// When a plugin fails to update its cycle state.
    pub fn add_pod(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        let row = match self.removed.iter().position(|(_, removed)| Arc::ptr_eq(removed, other)) {
            Some(at) => {
                let (row, pod) = self.removed.swap_remove(at);
                self.world.assume_unassigned(row, pod);
                row
            }
            None => {
                self.world.assume(self.row, other.clone());
                self.row
            }
        };
        let FailedScheduling { filter_runner, pod, cycle, .. } = self.scheduling;
        let cycle = self.cycle.get_or_insert_with(|| cycle.clone());
        let Some(node) = self.world.node(row) else { return Ok(()) };
        filter_runner.add_pod(cycle, &self.world, pod, other, node)
    }

    /// Undoes all changes.
    pub fn undo(&mut self) {
        self.world.undo_to(self.start);
        self.removed.clear();
        self.cycle = None;
    }

    /// Whether the preemptor fits on the node now, with and without the pods that are nominated to the node.
    ///
    /// # Errors
    ///
    /// The rejection of the first Filter plugin that rejects the node.
    pub fn preemptor_fits(&mut self) -> Result<(), Rejection> {
        let FailedScheduling { filter_runner, pod, cycle, states } = self.scheduling;
        let cycle = self.cycle.as_ref().unwrap_or(cycle);
        let cx = DryRunCx::new(self.world.world_mut(), cycle, states);
        filter_runner.run_filters_with_nominated_pods(cx, pod, self.row)
    }

    /// Selects victims among the potential ones (upstream's `SelectVictimsOnNode`): removes all of them, and, if the preemptor
    /// then fits, reprieves each pod with which it still fits. Pods whose eviction violates a PodDisruptionBudget are tried
    /// first, and more important pods before less important ones.
    ///
    /// # Errors
    ///
    /// When there are no potential victims, when the preemptor does not fit without them, or when it fits with all of them.
    pub fn select_victims_on_node(
        &mut self,
        potential: Vec<Arc<PodInfo>>,
        budgets: &DisruptionBudgets,
    ) -> Result<Victims, Rejection> {
        if potential.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        for pod in &potential {
            self.remove_pod(pod)?;
        }
        self.preemptor_fits()?;
        self.reprieve_removed_pods(potential, budgets, |_| true)
    }

    /// The second half of [`NodeDryRun::select_victims_on_node`], after these pods were removed and the preemptor fits: adds each one
    /// again with which the preemptor still fits and `may_stay` is true.
    ///
    /// # Errors
    ///
    /// When a plugin fails to update its cycle state, or all pods may stay.
    pub fn reprieve_removed_pods(
        &mut self,
        mut potential: Vec<Arc<PodInfo>>,
        budgets: &DisruptionBudgets,
        may_stay: impl Fn(&NodeDryRun<'_>) -> bool,
    ) -> Result<Victims, Rejection> {
        potential.sort_by(|a, b| compare_pod_importance(a, b));
        let violates = budgets.violations(&potential);
        let in_group = |wanted: bool| {
            let all = potential.iter().zip(&violates);
            all.filter(move |(_, violates)| **violates == wanted).map(|(pod, _)| pod)
        };
        let pods = self.reprieve(in_group(true), &may_stay)?;
        let mut victims = Victims { n_pdb_violations: pods.len(), pods };
        victims.pods.extend(self.reprieve(in_group(false), &may_stay)?);
        victims.pods.sort_by(|a, b| compare_pod_importance(a, b));
        if victims.pods.is_empty() {
            let name = self.node().map_or("", |node| node.name());
            let text = format!("expected at least one victim pod on node {name:?}");
            return Err(Failure::new(text).into());
        }
        Ok(victims)
    }

    /// Adds each pod again if the preemptor still fits; returns the victims: the pods with which it does not.
    fn reprieve<'p>(
        &mut self,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
        may_stay: &impl Fn(&NodeDryRun<'_>) -> bool,
    ) -> Result<Vec<Arc<PodInfo>>, Failure> {
        let mut victims = Vec::new();
        for pod in pods {
            self.add_pod(pod)?;
            if self.preemptor_fits().is_err() || !may_stay(self) {
                self.remove_pod(pod)?;
                victims.push(pod.clone());
            }
        }
        Ok(victims)
    }
}
