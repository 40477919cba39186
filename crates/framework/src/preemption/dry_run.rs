//! Trying a node without some of its pods.

use std::sync::Arc;

use crate::node::{NodeInfo, Overlay};
use crate::pod::PodInfo;
use crate::points::Cx;
use crate::result::{Failure, Rejection};
use crate::state::CycleState;

use super::{Budgets, Preemptor, Victims, by_importance};

/// Upstream's text for a node whose pods are all too important.
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// A node with pods taken off and put back, and the cycle state that goes with it. Nothing is copied but that state.
pub struct DryRun<'a> {
    preemptor: Preemptor<'a>,
    node: NodeInfo<'a>,
    /// Cloned at the first change: a node without victims needs none.
    cycle: Option<CycleState>,
    overlay: Overlay,
}

impl<'a> DryRun<'a> {
    pub(super) fn new(preemptor: Preemptor<'a>, node: NodeInfo<'a>) -> Self {
        let overlay = node.overlay().cloned().unwrap_or_default();
        DryRun { preemptor, node, cycle: None, overlay }
    }

    /// The node as it is now in the dry run.
    pub fn node(&self) -> NodeInfo<'_> {
        self.node.with(&self.overlay)
    }

    /// The pods on the node that the preemptor may evict.
    pub fn outranked(&self) -> Vec<Arc<PodInfo>> {
        self.node().pods().filter(|other| self.preemptor.outranks(other)).cloned().collect()
    }

    /// Takes a pod off the node.
    ///
    /// # Errors
    ///
    /// When a plugin cannot bring its cycle state up to date.
    pub fn remove(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        self.overlay.remove(other.clone());
        let (preemptor, node) = (self.preemptor, self.node.with(&self.overlay));
        let world = preemptor.cx.world;
        let cycle = self.cycle.get_or_insert_with(|| preemptor.cx.cycle.clone());
        preemptor.feasibility.remove_pod(cycle, world, preemptor.pod, other, node)
    }

    /// Puts a pod on the node, or back on it.
    ///
    /// # Errors
    ///
    /// When a plugin cannot bring its cycle state up to date.
    pub fn add(&mut self, other: &Arc<PodInfo>) -> Result<(), Failure> {
        self.overlay.add(other.clone());
        let (preemptor, node) = (self.preemptor, self.node.with(&self.overlay));
        let world = preemptor.cx.world;
        let cycle = self.cycle.get_or_insert_with(|| preemptor.cx.cycle.clone());
        preemptor.feasibility.add_pod(cycle, world, preemptor.pod, other, node)
    }

    /// Whether the preemptor would fit now, with and without the pods that are nominated to the node.
    ///
    /// # Errors
    ///
    /// What the first Filter says that turns it down.
    pub fn fits(&self) -> Result<(), Rejection> {
        let cycle = self.cycle.as_ref().unwrap_or(self.preemptor.cx.cycle);
        let cx = Cx { cycle, ..self.preemptor.cx };
        self.preemptor.feasibility.fits(cx, self.preemptor.pod, self.node())
    }

    /// Which of these pods must leave the node so that the preemptor fits: with all of them gone it must, and then they come
    /// back one by one while it still does. Those whose eviction violates a budget come back first, and among them, as among
    /// the others, the more important ones.
    ///
    /// # Errors
    ///
    /// When there are no such pods, or the preemptor does not fit without them, or fits with all of them.
    pub fn select_victims(
        &mut self,
        mut potential: Vec<Arc<PodInfo>>,
        budgets: &Budgets,
    ) -> Result<Victims, Rejection> {
        if potential.is_empty() {
            return Err(Rejection::unresolvable(NO_VICTIMS));
        }
        for pod in &potential {
            self.remove(pod)?;
        }
        self.fits()?;
        potential.sort_by(|a, b| by_importance(a, b));
        let violates = budgets.violations(&potential);
        let in_group = |wanted: bool| {
            let all = potential.iter().zip(&violates);
            all.filter(move |(_, violates)| **violates == wanted).map(|(pod, _)| pod)
        };
        let mut victims = Victims { pods: self.reprieve(in_group(true))?, n_violations: 0 };
        victims.n_violations = victims.pods.len();
        victims.pods.extend(self.reprieve(in_group(false))?);
        victims.pods.sort_by(|a, b| by_importance(a, b));
        if victims.pods.is_empty() {
            let name = self.node.name();
            let text = format!("expected at least one victim pod on node {name:?}");
            return Err(Failure::new(text).into());
        }
        Ok(victims)
    }

    /// Puts pods back as long as the preemptor fits beside them; answers those that cannot stay.
    fn reprieve<'p>(
        &mut self,
        pods: impl Iterator<Item = &'p Arc<PodInfo>>,
    ) -> Result<Vec<Arc<PodInfo>>, Failure> {
        let mut gone = Vec::new();
        for pod in pods {
            self.add(pod)?;
            if self.fits().is_err() {
                self.remove(pod)?;
                gone.push(pod.clone());
            }
        }
        Ok(gone)
    }
}
