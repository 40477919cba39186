//! CrossNodePreemption: preempts pods of lower priority as DefaultPreemption does, also on several nodes at once, for pods that do not fit on
//! a node because of pods on other nodes: inter-pod anti-affinity and topology spread constraints.
//!
//! | | |
//! | --- | --- |
//! | extension points | PostFilter |
//! | woken by | no event: the plugins that rejected the pod wake it |
//! | upstream | `pkg/crossnodepreemption` of scheduler-plugins 0.35, in comments there and not in its binary |
//! | deviations | it exists; the search is bounded, and considers only pods whose eviction can help; PodDisruptionBudgets count |
//! | cost | a scan of the assigned pods per attempt, and at most [`N_STEPS_MAX`] steps of dry runs |
//!
//! For one node, the potential victims are the pods of lower priority on it, and [those on other nodes](related_pods) whose eviction can make
//! it feasible. The [search](search) finds the cheapest set of them by the order in which candidates are compared. It is exact unless
//! it ends early, after [`N_NODE_STEPS_MAX`] steps for a node; then the result is the best set so far, the first of which is DefaultPreemption's. A
//! step adds a pod, removes it, or runs the Filter plugins.

mod related_pods;
mod search;

use std::sync::Arc;

use loadmaster_framework::preemption::{
    CandidateSampling, DisruptionBudgets, DryRunResult, NodeDryRun, Preemption, PreemptionArgs,
    Preemptor, Victims, has_lower_priority,
};
use loadmaster_framework::{
    DryRunCx, ExtensionPoints, NodeRow, PluginDef, PluginError, PodInfo, Rejection,
};
use loadmaster_stdx::Rng;
use serde_json::Value;

use related_pods::RelatedPods;
use search::VictimSearch;

pub const NAME: &str = "CrossNodePreemption";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

/// Steps of one attempt, for all nodes together.
const N_STEPS_MAX: usize = 50_000;

/// Steps for one node.
const N_NODE_STEPS_MAX: usize = 5_000;

/// Potential victims on other nodes than the one that the preemptor is to fit on; more important ones are not considered.
const N_RELATED_MAX: usize = 500;

const REASON_SEARCH_ENDED: &str = "node(s) not tried because there are too many potential victims";

struct CrossNodePreemption;

fn build(points: &mut ExtensionPoints, _: &Value) -> Result<(), PluginError> {
    points.post_filter = Some(Arc::new(CrossNodePreemption));
    points.register_no_events();
    Ok(())
}

impl Preemption for CrossNodePreemption {
    fn message_prefix(&self) -> &'static str {
        "cross-node preemption: "
    }

    /// As many candidates as DefaultPreemption chooses from by default.
    fn sample(&self, n_nodes: usize, rng: &mut Rng) -> CandidateSampling {
        PreemptionArgs::default().sample(n_nodes, rng)
    }

    fn is_awaited_victim(&self, _: &DryRunCx<'_>, preemptor: &PodInfo, other: &PodInfo) -> bool {
        is_awaited_victim(preemptor, other)
    }

    /// A second search would choose other victims while those of the first one terminate.
    fn awaits_victim_elsewhere(
        &self,
        cx: &DryRunCx<'_>,
        preemptor: &PodInfo,
        row: NodeRow,
    ) -> bool {
        let Some(node) = cx.world().node(row) else { return false };
        let related = RelatedPods::new(cx.world(), preemptor);
        related.of_node(node).into_iter().any(|other| is_awaited_victim(preemptor, &other.pod))
    }

    /// The nodes with the fewest potential victims on other nodes first, and those on which the pod cannot fit last.
    fn dry_run_preemption(
        &self,
        preemptor: &mut Preemptor<'_>,
        rows: &[NodeRow],
        sample: CandidateSampling,
        budgets: &DisruptionBudgets,
    ) -> DryRunResult {
        let related = RelatedPods::new(preemptor.cx.world(), preemptor.pod);
        let mut rows = rows.to_vec();
        rows.rotate_left(sample.offset);
        let world = preemptor.cx.world();
        rows.sort_by_cached_key(|row| {
            let node = world.node(*row);
            node.map(|node| (related.keep_away(node), related.number_in_domains(node)))
        });
        let mut n_steps_left = N_STEPS_MAX;
        preemptor.dry_run_preemption(&rows, CandidateSampling { offset: 0, ..sample }, |run| {
            select_victims(run, &related, budgets, &mut n_steps_left)
        })
    }
}

fn is_awaited_victim(preemptor: &PodInfo, other: &PodInfo) -> bool {
    has_lower_priority(other, preemptor) && other.is_terminating_by_preemption()
}

/// The cheapest victims that make the node feasible.
fn select_victims(
    run: &mut NodeDryRun<'_>,
    related: &RelatedPods,
    budgets: &DisruptionBudgets,
    n_steps_left: &mut usize,
) -> Result<Victims, Rejection> {
    if *n_steps_left == 0 {
        return Err(Rejection::unschedulable(REASON_SEARCH_ENDED));
    }
    let Some(node) = run.node() else { return Err(Rejection::unresolvable("no such node")) };
    let potential = related.potential_victims(node, run.potential_victims(), N_RELATED_MAX);
    let n_steps = N_NODE_STEPS_MAX.min(*n_steps_left);
    let search = VictimSearch::new(run, potential, budgets, n_steps);
    let (found, n_unused) = search.run();
    *n_steps_left -= n_steps - n_unused;
    found
}

#[cfg(test)]
mod tests;
