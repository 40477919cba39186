//! Preemption: where a pod that fits nowhere would fit if pods of lower priority went, and which of them would have to go.
//!
//! Pure and public, so that a PostFilter from outside the tree uses what DefaultPreemption uses. A search asks one node after
//! the other in a [`DryRun`], which copies no node and changes nothing; [`best`] chooses; [`evict`] words the calls.
//!
//! | part of upstream's `framework/preemption`, 1.36 | here |
//! | --- | --- |
//! | `Evaluator.Preempt` | DefaultPreemption's own few lines over this module |
//! | `PodEligibleToPreemptOthers` | [`Preemptor::may_preempt`] |
//! | `DryRunPreemption` | [`Preemptor::search`] |
//! | `SelectVictimsOnNode` | [`DryRun::select_victims`] |
//! | `pickOneNodeForPreemption` | [`best`] |
//! | `Executor` | values of [`evict`], carried out by the engine; [`Underway`] |

mod budgets;
mod choice;
mod dry_run;
pub mod evict;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_stdx::Map;

use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::points::{Cx, Feasibility};
use crate::result::{Code, Reason, Rejection, nodes_are_unavailable};
use crate::table::Row;
use crate::world::World;

pub use budgets::Budgets;
pub use choice::best;
pub use dry_run::DryRun;

/// What upstream says of nodes that were not tried, because no eviction could help there.
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// The pods that must leave a node so that another fits there.
#[derive(Clone, Debug)]
pub struct Victims {
    /// The most important first.
    pub pods: Vec<Arc<PodInfo>>,
    /// How many of them a PodDisruptionBudget does not want to go.
    pub n_violations: usize,
}

/// A node on which the pod would fit without these pods, of which there is at least one.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub row: Row,
    /// Who would have to go.
    pub victims: Victims,
}

/// What a search came to.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Those that violate no budget first.
    pub candidates: Vec<Candidate>,
    /// Nodes that were tried in vain, and why.
    pub turned_down: Vec<(Row, Rejection)>,
}

/// How many of the nodes to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index of the first node; the search goes on from the front when it comes to the end.
    pub offset: usize,
    /// The search ends when so many candidates are found, and one of them violates no budget.
    pub n_wanted: usize,
}

impl Sample {
    /// Try them all.
    pub const ALL: Sample = Sample { offset: 0, n_wanted: usize::MAX };
}

/// The pod that needs room, and what it takes to ask for it.
#[derive(Clone, Copy)]
pub struct Preemptor<'a> {
    /// The cycle state is that in which the pod was found to fit nowhere.
    pub cx: Cx<'a>,
    /// For asking about nodes as they could be.
    pub feasibility: &'a dyn Feasibility,
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
}

impl<'a> Preemptor<'a> {
    /// Whether the other pod may be evicted for this one: its priority is lower.
    pub fn outranks(self, other: &PodInfo) -> bool {
        other.template.priority() < self.pod.template.priority()
    }

    /// Whether the pod may evict others now.
    ///
    /// # Errors
    ///
    /// The reason, when its policy is never to preempt, or pods that were evicted for it are still going from the node that was
    /// promised to it and that node is not beyond help.
    pub fn may_preempt(self, verdicts: &[(Row, Code)]) -> Result<(), Reason> {
        if self.pod.template.spec.preemption_policy.as_ref().is_some_and(|policy| policy == "Never")
        {
            return Err(Reason::Text("not eligible due to preemptionPolicy=Never."));
        }
        let nodes = self.cx.world.nodes();
        let Some(row) = nodes.row(&self.pod.nominated_node_name) else { return Ok(()) };
        if code_of(verdicts, row) == Some(Code::UnschedulableAndUnresolvable) {
            return Ok(());
        }
        let going = |other: &Arc<PodInfo>| self.outranks(other) && other.is_going_by_preemption();
        match nodes.pods(row).iter().any(going) {
            true => {
                Err(Reason::Text("not eligible due to a terminating pod on the nominated node."))
            }
            false => Ok(()),
        }
    }

    /// The node as it would be without some of its pods.
    pub fn dry_run(self, node: NodeInfo<'a>) -> DryRun<'a> {
        DryRun::new(self, node)
    }

    /// Tries nodes one after the other. `select` says which pods would have to leave a node, or why that does not help:
    /// usually [`DryRun::select_victims`] of [`DryRun::outranked`].
    pub fn search(
        self,
        rows: &[Row],
        sample: Sample,
        mut select: impl FnMut(&mut DryRun<'a>) -> Result<Victims, Rejection>,
    ) -> Found {
        let (mut found, mut violating) = (Found::default(), Vec::new());
        for at in 0..rows.len() {
            let row = rows[(sample.offset + at) % rows.len()];
            let Some(node) = self.cx.world.node(row) else { continue };
            match select(&mut self.dry_run(node)) {
                Ok(victims) => {
                    let kept = match victims.n_violations {
                        0 => &mut found.candidates,
                        _ => &mut violating,
                    };
                    if kept.len() < sample.n_wanted {
                        kept.push(Candidate { row, victims });
                    }
                }
                Err(rejection) => found.turned_down.push((row, rejection)),
            }
            let n_peaceful = found.candidates.len();
            if n_peaceful > 0 && n_peaceful + violating.len() >= sample.n_wanted {
                break;
            }
        }
        found.candidates.append(&mut violating);
        found
    }
}

/// The nodes that preemption may help on: those whose verdict is exactly `Unschedulable`.
pub fn helpable(verdicts: &[(Row, Code)]) -> Vec<Row> {
    verdicts.iter().filter(|(_, code)| *code == Code::Unschedulable).map(|(row, _)| *row).collect()
}

fn code_of(verdicts: &[(Row, Code)], row: Row) -> Option<Code> {
    verdicts.iter().find(|(known, _)| *known == row).map(|(_, code)| *code)
}

impl Found {
    /// Why no node would do: `0/5 nodes are available: 2 No preemption victims found for incoming pod, 3 Preemption is not
    /// helpful for scheduling.`, or the failure of a plugin.
    pub fn rejection(&self, n_nodes: usize) -> Rejection {
        let mut failures: Vec<String> = Vec::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, rejection) in &self.turned_down {
            match rejection {
                Rejection::Failed(failure) if failures.contains(&failure.to_string()) => {}
                Rejection::Failed(failure) => failures.push(failure.to_string()),
                other => other
                    .reasons()
                    .into_iter()
                    .for_each(|text| *counts.entry(text).or_default() += 1),
            }
        }
        match failures.as_slice() {
            [] => {}
            [one] => return Rejection::Failed(crate::Failure::new(one.clone())),
            several => {
                return Rejection::Failed(crate::Failure::new(format!("[{}]", several.join(", "))));
            }
        }
        let n_untried = n_nodes.saturating_sub(self.turned_down.len());
        if n_untried > 0 {
            *counts.entry(NOT_HELPFUL.to_owned()).or_default() += n_untried;
        }
        Rejection::unschedulable(nodes_are_unavailable(n_nodes, &counts))
    }
}

/// Orders pods by importance, the more important first: by priority, then who started earlier. Who has not started yet counts
/// as started last.
pub fn by_importance(a: &PodInfo, b: &PodInfo) -> Ordering {
    let started = |pod: &PodInfo| pod.started.map_or(i64::MAX, |started| started.0);
    b.template.priority().cmp(&a.template.priority()).then_with(|| started(a).cmp(&started(b)))
}

/// Everything a PostFilter could do for a pod, as `explain` shows it.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// Every node on which the pod would fit without some others; none left out by sampling.
    pub candidates: Vec<Candidate>,
    /// Indexes of the candidates of which one is chosen, by chance.
    pub best: Vec<usize>,
    /// Why there is none.
    pub rejection: Option<Rejection>,
}

/// Preemptions whose victims are still being evicted, by the uid of the pod that gets the room. Until its entry goes, that pod
/// is not tried again (upstream's asynchronous preemption, KEP-4832).
///
/// The engine [starts](Underway::start) an entry with the first eviction, says when it [comes to the last
/// victim](Underway::last_victim), whose disappearance is what makes the pod fit, and [ends](Underway::end) it when that call
/// has been answered or any has failed.
#[derive(Clone, Debug, Default)]
pub struct Underway(Map<Box<str>, Option<Box<str>>>);

impl Underway {
    /// Evictions for this pod begin.
    pub fn start(&mut self, preemptor: &str) {
        self.0.insert(preemptor.into(), None);
    }

    /// Only this victim is left.
    pub fn last_victim(&mut self, preemptor: &str, victim: &str) {
        if let Some(last) = self.0.get_mut(preemptor) {
            *last = Some(victim.into());
        }
    }

    /// All is done, or was given up.
    pub fn end(&mut self, preemptor: &str) {
        self.0.remove(preemptor);
    }

    /// Whether the pod must still wait. Not for a last victim that is gone or going already: its disappearance may have been
    /// reported before the call that caused it was answered, and would not be reported again.
    pub fn holds(&self, preemptor: &str, world: &World) -> bool {
        match self.0.get(preemptor) {
            None => false,
            Some(None) => true,
            Some(Some(victim)) => world.assigned(victim).is_some_and(|pod| !pod.terminating),
        }
    }
}

#[cfg(test)]
mod tests;
