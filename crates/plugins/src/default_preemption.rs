//! DefaultPreemption: if a pod fits on no node, evicts pods of lower priority from a node where it fits without them.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue, PostFilter |
//! | woken by | no event: the hint for its event (assigned pod deleted) is always Skip |
//! | upstream | `plugins/defaultpreemption`, 1.36 |
//! | deviations | nodes are dry-run one after the other; victims that have not started are equally important, where upstream compares two clock readings |
//! | cost | dry-run nodes x victims per node x Filter plugins; only the cycle state is copied. What was found on a node holds for the next equal preemptors until the node or its pods change, unless Filter plugins look at other nodes, too |

use std::sync::Arc;

use loadmaster_framework::plugin_args;
use loadmaster_framework::preemption::{
    CandidateSampling, DisruptionBudgets, DryRunResult, Preemption, PreemptionArgs, Preemptor,
    REASON_VICTIMS_BEING_EVICTED, has_lower_priority,
};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, DryRunCx, EventResource, ExtensionPoints, NodeRow,
    PluginDef, PluginError, PodInfo, PreEnqueue, QueueingHint, Rejection,
};
use loadmaster_stdx::Rng;
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "DefaultPreemption";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<PreemptionArgs>),
};

/// The reasons of preemption without a candidate. [`REASON_VICTIMS_BEING_EVICTED`] is not included: in a scenario no eviction is in
/// progress.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::Unschedulable, "preemption: not eligible due to preemptionPolicy=Never."),
    (
        Code::Unschedulable,
        "preemption: not eligible due to a terminating pod on the nominated node.",
    ),
    (Code::Unschedulable, "No preemption victims found for incoming pod"),
    (Code::Unschedulable, "Preemption is not helpful for scheduling"),
];

struct DefaultPreemption {
    args: PreemptionArgs,
    /// Victims are evicted while other pods are scheduled, and the preemptor is not in activeQ until then (gate
    /// SchedulerAsyncPreemption).
    is_async: bool,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let is_async = points.gates.scheduler_async_preemption;
    let plugin = Arc::new(DefaultPreemption {
        args: plugin_args::decode_plugin_args(NAME, args)?,
        is_async,
    });
    points.pre_enqueue = Some(plugin.clone());
    points.post_filter = Some(plugin);
    // Registered so that pods rejected by PreEnqueue are checked again when a victim is deleted.
    points.events = Some(Vec::new());
    if is_async {
        points.register_event(
            ClusterEvent::new(EventResource::Pod, ActionType::DELETE),
            // The plugins that rejected the pod have better hints.
            Some(Arc::new(|_| Ok(QueueingHint::Skip))),
        );
    }
    Ok(())
}

impl PreEnqueue for DefaultPreemption {
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        if self.is_async
            && cx.world.ongoing_preemptions().is_pod_running_preemption(&pod.uid, cx.world)
        {
            return Err(Rejection::unresolvable(REASON_VICTIMS_BEING_EVICTED));
        }
        Ok(())
    }
}

impl Preemption for DefaultPreemption {
    fn message_prefix(&self) -> &'static str {
        "preemption: "
    }

    fn sample(&self, n_nodes: usize, rng: &mut Rng) -> CandidateSampling {
        self.args.sample(n_nodes, rng)
    }

    fn reads_cycle_state_without_nodes(&self) -> bool {
        false
    }

    fn is_awaited_victim(&self, _: &DryRunCx<'_>, preemptor: &PodInfo, other: &PodInfo) -> bool {
        has_lower_priority(other, preemptor) && other.is_terminating_by_preemption()
    }

    fn dry_run_preemption(
        &self,
        preemptor: &mut Preemptor<'_>,
        rows: &[NodeRow],
        sample: CandidateSampling,
        budgets: &DisruptionBudgets,
    ) -> DryRunResult {
        preemptor.dry_run_preemption_of_lower_priority(rows, sample, budgets)
    }
}

#[cfg(test)]
mod tests;
