//! A dry run of preemption on one node.

use std::sync::Arc;

use crate::extension_points::Cx;
use crate::node_info::{NodeInfo, NodeOverlay};
use crate::pod_info::PodInfo;
use crate::result::{Failure, Rejection};
use crate::state::CycleState;

use super::{DisruptionBudgets, Preemptor, Victims, compare_pod_importance};

/// Upstream's message for a node without pods of lower priority.
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// A node with some pods removed or added, and the corresponding cycle state. Copies nothing but that state.
pub struct NodeDryRun<'a> {
    preemptor: Preemptor<'a>,
    node: NodeInfo<'a>,
    /// Cloned at the first change; a node without potential victims needs no copy.
    cycle: Option<CycleState>,
    overlay: NodeOverlay,
}

impl<'a> NodeDryRun<'a> {
    pub(super) fn new(preemptor: Preemptor<'a>, node: NodeInfo<'a>) -> Self {
        let overlay = node.overlay().cloned().unwrap_or_default();
        NodeDryRun { preemptor, node, cycle: None, overlay }
    }

    /// The node in its current state in the dry run.
    pub fn node(&self) -> NodeInfo<'_> {
        self.node.with_overlay(&self.overlay)
    }

    /// The pods on the node that the preemptor may evict: those of lower priority.
    pub fn potential_victims(&self) -> Vec<Arc<PodInfo>> {
        self.node().pods().filter(|other| self.preemptor.can_preempt(other)).cloned().collect()
    }

    /// Removes a pod from the node.
    ///
    /// # Errors
    ///
    /// When a plugin fails to update its cycle state.
    pub fn remove_pod(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        self.overlay.remove(other.clone());
        let (preemptor, node) = (self.preemptor, self.node.with_overlay(&self.overlay));
        let world = preemptor.cx.world;
        let cycle = self.cycle.get_or_insert_with(|| preemptor.cx.cycle.clone());
        preemptor.filter_runner.remove_pod(cycle, world, preemptor.pod, other, node)
    }

    /// Adds a pod to the node, or adds a removed one again.
    ///
    /// # Errors
    ///
    /// When a plugin fails to update its cycle state.
    pub fn add_pod(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        self.overlay.add(other.clone());
        let (preemptor, node) = (self.preemptor, self.node.with_overlay(&self.overlay));
        let world = preemptor.cx.world;
        let cycle = self.cycle.get_or_insert_with(|| preemptor.cx.cycle.clone());
        preemptor.filter_runner.add_pod(cycle, world, preemptor.pod, other, node)
    }

    /// Whether the preemptor fits on the node now, with and without the pods that are nominated to the node.
    ///
    /// # Errors
    ///
    /// The rejection of the first Filter plugin that rejects the node.
    pub fn preemptor_fits(&self) -> Result<(), Rejection> {
        let cycle = self.cycle.as_ref().unwrap_or(self.preemptor.cx.cycle);
        let cx = Cx { cycle, ..self.preemptor.cx };
        self.preemptor.filter_runner.run_filters_with_nominated_pods(
            cx,
            self.preemptor.pod,
            self.node(),
        )
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
        mut potential: Vec<Arc<PodInfo>>,
        budgets: &DisruptionBudgets,
    ) -> Result<Victims, Rejection> {
        if potential.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        for pod in &potential {
            self.remove_pod(pod)?;
        }
        self.preemptor_fits()?;
        potential.sort_by(|a, b| compare_pod_importance(a, b));
        let violates = budgets.violations(&potential);
        let in_group = |wanted: bool| {
            let all = potential.iter().zip(&violates);
            all.filter(move |(_, violates)| **violates == wanted).map(|(pod, _)| pod)
        };
        let mut victims = Victims { pods: self.reprieve(in_group(true))?, n_pdb_violations: 0 };
        victims.n_pdb_violations = victims.pods.len();
        victims.pods.extend(self.reprieve(in_group(false))?);
        victims.pods.sort_by(|a, b| compare_pod_importance(a, b));
        if victims.pods.is_empty() {
            let name = self.node.name();
            let text = format!("expected at least one victim pod on node {name:?}");
            return Err(Failure::new(text).into());
        }
        Ok(victims)
    }

    /// Adds each pod again if the preemptor still fits; returns the victims: the pods with which it does not.
    fn reprieve<'p>(
        &mut self,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
    ) -> Result<Vec<Arc<PodInfo>>, Failure> {
        let mut victims = Vec::new();
        for pod in pods {
            self.add_pod(pod)?;
            if self.preemptor_fits().is_err() {
                self.remove_pod(pod)?;
                victims.push(pod.clone());
            }
        }
        Ok(victims)
    }
}
