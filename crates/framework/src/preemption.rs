//! Preemption: on which nodes an unschedulable pod would fit if pods of lower priority were evicted, and which pods these are.
//!
//! Public for out-of-tree PostFilter plugins. The search begins a [`NodeDryRun`] per node, whose changes are undone before the next
//! one; [`pick_best_candidates`] compares the candidates; [`eviction`] builds the API requests.
//!
//! | upstream's `framework/preemption`, 1.36 | here |
//! | --- | --- |
//! | `Interface`, `Evaluator.Preempt` | [`Preemption`], which a plugin implements |
//! | `PodEligibleToPreemptOthers` | [`Preemptor::pod_eligible_to_preempt_others`] |
//! | `nodesWherePreemptionMightHelp` | [`nodes_where_preemption_might_help`] |
//! | `DryRunPreemption` | [`Preemptor::dry_run_preemption`] |
//! | `SelectVictimsOnNode` | [`NodeDryRun::select_victims_on_node`] |
//! | `pickOneNodeForPreemption` | [`pick_best_candidates`] |
//! | `Executor` | the requests of [`eviction`], sent by the engine; [`OngoingPreemptions`] |

mod disruption_budgets;
mod evaluator;
pub mod eviction;
mod node_dry_run;
mod pick_node;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::extension_points::{DryRunCx, FilterRunner};
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::result::{Code, Reason, Rejection, nodes_unavailable_message};
use crate::state::{CycleState, PluginStates};
use crate::world::World;

pub use crate::ongoing_preemptions::OngoingPreemptions;
pub use crate::preemption_candidate::{Candidate, PreemptionPreview, Victims};
pub use crate::victim_cache::VictimCache;
pub use disruption_budgets::DisruptionBudgets;
pub use evaluator::{Ineligible, Preemption, PreemptionArgs, REASON_VICTIMS_BEING_EVICTED};
pub use node_dry_run::{NO_VICTIMS, NodeDryRun};
pub use pick_node::{CandidateCost, pick_best_candidates};

/// Upstream's message for nodes that were not tried, because no eviction can help there.
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// The result of [`Preemptor::dry_run_preemption`].
#[derive(Clone, Debug, Default)]
pub struct DryRunResult {
    /// Candidates; those that violate no PodDisruptionBudget first.
    pub candidates: Vec<Candidate>,
    /// Nodes that are no candidates, and why.
    pub rejected_nodes: Vec<(NodeRow, Rejection)>,
}

/// Which of the nodes to try (upstream's `GetOffsetAndNumCandidates`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateSampling {
    /// Index of the first node; after the last node the search continues with the first one.
    pub offset: usize,
    /// The search ends when this many candidates are found and one of them violates no PodDisruptionBudget.
    pub n_candidates: usize,
}

impl CandidateSampling {
    /// Try all nodes.
    pub const ALL: CandidateSampling = CandidateSampling { offset: 0, n_candidates: usize::MAX };
}

/// The preemptor, with the context of its scheduling cycle.
pub struct Preemptor<'a> {
    /// Contains the cycle state of the failed scheduling cycle.
    pub cx: DryRunCx<'a>,
    /// Runs Filter plugins in dry runs.
    pub filter_runner: &'a dyn FilterRunner,
    /// The preemptor.
    pub pod: &'a Arc<PodInfo>,
}

/// The failed scheduling cycle of a preemptor, without the world.
#[derive(Clone, Copy)]
struct FailedScheduling<'a> {
    cycle: &'a CycleState,
    states: &'a PluginStates,
    filter_runner: &'a dyn FilterRunner,
    pod: &'a Arc<PodInfo>,
}

impl Preemptor<'_> {
    /// Whether the preemptor may evict other pods now (upstream's `PodEligibleToPreemptOthers`). `is_awaited_victim` says which of the
    /// terminating pods on its nominated node it waits for.
    ///
    /// # Errors
    ///
    /// The reason: its preemptionPolicy is `Never`, or a victim is still terminating on its nominated node, unless that node is
    /// `UnschedulableAndUnresolvable`.
    pub fn pod_eligible_to_preempt_others(
        &self,
        node_codes: &[(NodeRow, Code)],
        is_awaited_victim: impl Fn(&DryRunCx<'_>, &PodInfo) -> bool,
    ) -> Result<(), Reason> {
        if self.pod.template.never_preempts() {
            return Err(Reason::Text("not eligible due to preemptionPolicy=Never."));
        }
        let nodes = self.cx.world().nodes();
        let Some(row) = self.nominated_row(node_codes) else { return Ok(()) };
        let is_awaited =
            |other: &Arc<PodInfo>| other.terminating && is_awaited_victim(&self.cx, other);
        match nodes.pods(row).iter().any(is_awaited) {
            true => {
                Err(Reason::Text("not eligible due to a terminating pod on the nominated node."))
            }
            false => Ok(()),
        }
    }

    /// The node that the preemptor is nominated to, unless it is `UnschedulableAndUnresolvable`: only there it waits for victims.
    pub fn nominated_row(&self, node_codes: &[(NodeRow, Code)]) -> Option<NodeRow> {
        let row = self.cx.world().nodes().row(&self.pod.nominated_node_name)?;
        (code_of(node_codes, row) != Some(Code::UnschedulableAndUnresolvable)).then_some(row)
    }

    /// A dry run on a node; its changes are undone when it is dropped.
    pub fn new_node_dry_run(&mut self, row: NodeRow) -> NodeDryRun<'_> {
        let DryRunCx { cycle, states, .. } = self.cx;
        let scheduling =
            FailedScheduling { cycle, states, filter_runner: self.filter_runner, pod: self.pod };
        NodeDryRun::new(self.cx.dry_run(), row, scheduling)
    }

    /// Tries nodes one after the other (upstream's `DryRunPreemption`). `select` returns the victims on a node, or why there are
    /// none: usually [`NodeDryRun::select_victims_on_node`] with [`NodeDryRun::potential_victims`].
    pub fn dry_run_preemption(
        &mut self,
        rows: &[NodeRow],
        sample: CandidateSampling,
        mut select: impl FnMut(&mut NodeDryRun<'_>) -> Result<Victims, Rejection>,
    ) -> DryRunResult {
        self.try_nodes(rows, sample, |preemptor, row| select(&mut preemptor.new_node_dry_run(row)))
    }

    /// The same with the pods of lower priority as potential victims. Results of earlier searches are used where they still hold.
    pub fn dry_run_preemption_of_lower_priority(
        &mut self,
        rows: &[NodeRow],
        sample: CandidateSampling,
        budgets: &DisruptionBudgets,
    ) -> DryRunResult {
        let Some(cache) = self.filter_runner.victim_cache() else {
            return self.try_nodes(rows, sample, |preemptor, row| preemptor.victims(row, budgets));
        };
        cache.borrow_mut().begin(budgets.objects());
        self.try_nodes(rows, sample, |preemptor, row| {
            let pods = preemptor.cx.world().nodes().pods(row);
            if let Some(known) = cache.borrow().get(row, pods) {
                return known.clone();
            }
            let found = preemptor.victims(row, budgets);
            if !matches!(found, Err(Rejection::Failed(_))) {
                let pods = preemptor.cx.world().nodes().pods(row);
                cache.borrow_mut().insert(row, pods, found.clone());
            }
            found
        })
    }

    /// The pods of lower priority to evict from a node.
    fn victims(&mut self, row: NodeRow, budgets: &DisruptionBudgets) -> Result<Victims, Rejection> {
        let mut run = self.new_node_dry_run(row);
        run.select_victims_on_node(run.potential_victims(), budgets)
    }

    fn try_nodes(
        &mut self,
        rows: &[NodeRow],
        sample: CandidateSampling,
        mut victims: impl FnMut(&mut Self, NodeRow) -> Result<Victims, Rejection>,
    ) -> DryRunResult {
        let (mut result, mut violating) = (DryRunResult::default(), Vec::new());
        for at in 0..rows.len() {
            let row = rows[(sample.offset + at) % rows.len()];
            if self.cx.world().node(row).is_none() {
                continue;
            }
            match victims(self, row) {
                Ok(victims) => {
                    let candidates = match victims.n_pdb_violations {
                        0 => &mut result.candidates,
                        _ => &mut violating,
                    };
                    if candidates.len() < sample.n_candidates {
                        candidates.push(Candidate { row, victims });
                    }
                }
                Err(rejection) => result.rejected_nodes.push((row, rejection)),
            }
            let n_nonviolating = result.candidates.len();
            if n_nonviolating > 0 && n_nonviolating + violating.len() >= sample.n_candidates {
                break;
            }
        }
        result.candidates.append(&mut violating);
        result
    }
}

/// Whether the preemptor's priority is higher than the other pod's.
pub fn has_lower_priority(other: &PodInfo, preemptor: &PodInfo) -> bool {
    other.template.priority() < preemptor.template.priority()
}

/// The nodes with status code `Unschedulable` (upstream's `nodesWherePreemptionMightHelp`).
pub fn nodes_where_preemption_might_help(node_codes: &[(NodeRow, Code)]) -> Vec<NodeRow> {
    node_codes
        .iter()
        .filter(|(_, code)| *code == Code::Unschedulable)
        .map(|(row, _)| *row)
        .collect()
}

fn code_of(node_codes: &[(NodeRow, Code)], row: NodeRow) -> Option<Code> {
    node_codes.iter().find(|(known, _)| *known == row).map(|(_, code)| *code)
}

impl DryRunResult {
    /// Why there is no candidate: `0/5 nodes are available: 2 No preemption victims found for incoming pod, 3 Preemption is not
    /// helpful for scheduling.`, or the failure of a plugin.
    pub fn rejection(&self, n_nodes: usize) -> Rejection {
        if self.rejected_nodes.is_empty() && n_nodes > 0 {
            let text = format!("0/{n_nodes} nodes are available: {n_nodes} {NOT_HELPFUL}.");
            return Rejection::unschedulable(text);
        }
        let mut failures: Vec<String> = Vec::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        // Most often the next node has the same one.
        for nodes in self.rejected_nodes.chunk_by(|(_, one), (_, next)| one == next) {
            let [(_, rejection), ..] = nodes else { continue };
            match rejection {
                Rejection::Failed(failure) if failures.contains(&failure.to_string()) => {}
                Rejection::Failed(failure) => failures.push(failure.to_string()),
                other => other
                    .reasons()
                    .into_iter()
                    .for_each(|text| *counts.entry(text).or_default() += nodes.len()),
            }
        }
        match failures.as_slice() {
            [] => {}
            [one] => return Rejection::Failed(crate::Failure::new(one.clone())),
            several => {
                return Rejection::Failed(crate::Failure::new(format!("[{}]", several.join(", "))));
            }
        }
        let n_untried = n_nodes.saturating_sub(self.rejected_nodes.len());
        if n_untried > 0 {
            *counts.entry(NOT_HELPFUL.to_owned()).or_default() += n_untried;
        }
        Rejection::unschedulable(nodes_unavailable_message(n_nodes, &counts))
    }
}

/// Orders pods by importance, the most important first: by priority, then by start time (upstream's `MoreImportantPod`). A pod
/// that has not started counts as started last.
pub fn compare_pod_importance(a: &PodInfo, b: &PodInfo) -> Ordering {
    let started = |pod: &PodInfo| pod.started.get().map_or(i64::MAX, |started| started.0);
    b.template.priority().cmp(&a.template.priority()).then_with(|| started(a).cmp(&started(b)))
}

impl OngoingPreemptions {
    /// Whether the preemptor must still wait (upstream's `IsPodRunningPreemption`). It does not wait for a last victim that is
    /// deleted or terminating: the watch event may arrive before the response to the eviction, and there would be no further
    /// event.
    pub fn is_pod_running_preemption(&self, preemptor: &str, world: &World) -> bool {
        match self.last_victims.get(preemptor) {
            None => false,
            Some(None) => true,
            Some(Some(victim)) => world.assigned_pod(victim).is_some_and(|pod| !pod.terminating),
        }
    }
}

#[cfg(test)]
mod tests;
