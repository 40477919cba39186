//! PreemptionToleration: preempts pods as DefaultPreemption does, except pods that tolerate it for some time or from some priorities, by
//! annotations of their PriorityClass.
//!
//! | | |
//! | --- | --- |
//! | extension points | PostFilter |
//! | woken by | no event: the plugins that rejected the pod wake it |
//! | upstream | `pkg/preemptiontoleration` of scheduler-plugins 0.35 |
//! | deviations | victims are evicted while other pods are scheduled, as DefaultPreemption does; a toleration of more than 292 years lasts, where upstream's overflows |
//! | cost | as DefaultPreemption, and one look-up of a PriorityClass per pod of lower priority |

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Timestamp;
use loadmaster_framework::plugin_args;
use loadmaster_framework::preemption::{
    CandidateSampling, DisruptionBudgets, NodeDryRun, Preemption, PreemptionArgs, Victims,
    has_lower_priority,
};
use loadmaster_framework::{
    DryRunCx, ExtensionPoints, Failure, Gvr, ObjectSlot, PluginDef, PluginError, PodInfo,
    Rejection, WatchRequirement,
};
use loadmaster_stdx::Rng;
use serde::Deserialize;
use serde_json::Value;

pub const NAME: &str = "PreemptionToleration";

pub const DEF: PluginDef = PluginDef {
    name: NAME,
    build,
    args: Some(plugin_args::default_and_validate_args::<PreemptionArgs>),
};

const MINIMUM_PREEMPTABLE_PRIORITY: &str =
    "preemption-toleration.scheduling.x-k8s.io/minimum-preemptable-priority";
const TOLERATION_SECONDS: &str = "preemption-toleration.scheduling.x-k8s.io/toleration-seconds";

/// What the plugin reads of a PriorityClass.
#[derive(Deserialize)]
struct PriorityClass {
    metadata: PriorityClassMetadata,
    #[serde(default)]
    value: i32,
}

#[derive(Deserialize)]
struct PriorityClassMetadata {
    annotations: Option<BTreeMap<String, String>>,
}

/// How long, and from which priorities on, pods of a PriorityClass tolerate preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TolerationPolicy {
    /// Pods of this priority and above preempt at once.
    minimum_preemptable_priority: i32,
    /// Other pods preempt so long after the pod was scheduled; never if it is negative.
    toleration_seconds: i64,
}

impl TolerationPolicy {
    /// `None` if an annotation is no number: then nothing is tolerated.
    fn of(class: &PriorityClass) -> Option<TolerationPolicy> {
        let annotation = |key: &str| class.metadata.annotations.as_ref()?.get(key);
        Some(TolerationPolicy {
            minimum_preemptable_priority: match annotation(MINIMUM_PREEMPTABLE_PRIORITY) {
                Some(text) => text.parse().ok()?,
                None => class.value.wrapping_add(1),
            },
            toleration_seconds: match annotation(TOLERATION_SECONDS) {
                Some(text) => text.parse().ok()?,
                None => 0,
            },
        })
    }

    /// Whether a pod that was scheduled then tolerates preemption by a pod of this priority now (upstream's `ExemptedFromPreemption`). A
    /// pod that is not known to be scheduled does.
    fn tolerates(self, preemptor: i32, scheduled: Option<Timestamp>, now: Timestamp) -> bool {
        if preemptor >= self.minimum_preemptable_priority {
            return false;
        }
        let Some(scheduled) = scheduled else { return true };
        let nanos = self.toleration_seconds.saturating_mul(1_000_000_000);
        self.toleration_seconds < 0 || scheduled.0.saturating_add(nanos) > now.0
    }
}

struct PreemptionToleration {
    args: PreemptionArgs,
    classes: ObjectSlot<PriorityClass>,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args = plugin_args::decode_plugin_args(NAME, args)?;
    let kind = Gvr::new("scheduling.k8s.io", "v1", "priorityclasses");
    let classes = points.watch(kind, WatchRequirement::Required);
    points.post_filter = Some(Arc::new(PreemptionToleration { args, classes }));
    points.register_no_events();
    Ok(())
}

impl PreemptionToleration {
    /// Whether the preemptor may not evict this pod of lower priority.
    fn is_exempted(&self, run: &NodeDryRun<'_>, other: &PodInfo) -> Result<bool, Failure> {
        let name = &other.template.spec.priority_class_name;
        if name.is_empty() {
            return Ok(false);
        }
        let cx = run.cx();
        let class = cx.objects(&self.classes).get("", name).ok_or_else(|| {
            Failure::new(format!("priorityclass.scheduling.k8s.io {name:?} not found"))
        })?;
        let preemptor = run.preemptor().template.priority();
        let policy = TolerationPolicy::of(class);
        Ok(policy.is_some_and(|it| it.tolerates(preemptor, other.scheduled.get(), cx.now().wall)))
    }
}

impl Preemption for PreemptionToleration {
    fn sample(&self, n_nodes: usize, rng: &mut Rng) -> CandidateSampling {
        self.args.sample(n_nodes, rng)
    }

    fn is_awaited_victim(&self, _: &DryRunCx<'_>, preemptor: &PodInfo, other: &PodInfo) -> bool {
        has_lower_priority(other, preemptor)
    }

    fn select_victims_on_node(
        &self,
        run: &mut NodeDryRun<'_>,
        budgets: &DisruptionBudgets,
    ) -> Result<Victims, Rejection> {
        let mut potential = Vec::new();
        for other in run.potential_victims() {
            if !self.is_exempted(run, &other)? {
                potential.push(other);
            }
        }
        if potential.is_empty() {
            let node = run.node().map_or("", |node| node.name());
            let preemptor = &run.preemptor().name;
            let text = format!("No victims found on node {node} for preemptor pod {preemptor}");
            return Err(Rejection::unresolvable(text));
        }
        run.select_victims_on_node(potential, budgets)
    }
}

#[cfg(test)]
mod tests;
