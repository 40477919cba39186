//! InterPodAffinity: pods near the pods they ask for, away from those they, or which themselves,
//! refuse company.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter (+ AddPod, RemovePod), Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | pod added, deleted or relabeled; node added or relabeled |
//! | upstream | `plugins/interpodaffinity`, 1.36 |
//! | deviations | the signature does not tell empty labels from absent ones |
//! | cost | node by node: O(pods · terms) in PreFilter and PreScore, then O(terms + labels) a node. Incremental: a few additions a placed pod that any term speaks of, O(classes · topology keys) a decision, no allocation |
//!
//! Terms work in both directions: those of the pod at hand about pods on nodes, and those of pods
//! on nodes about it. [`terms`] says when a term speaks of a pod, [`filter`] and [`score`] answer
//! node by node, [`counted`] describes the sums that the world keeps for [`run`], the answer in
//! parts, and [`hints`] wakes pods.

mod counted;
mod filter;
mod hints;
mod run;
mod score;
mod terms;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use std::sync::Arc;

use loadmaster_framework::points::{Fragment, Unsignable};
use loadmaster_framework::{
    Action, ClusterEvent, Code, EventResource, FeatureGates, FieldError, PluginDef, PluginError,
    PodInfo, PodTemplate, Points, Sign, Slot, args,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::filter::Required;
use self::score::Preferred;

use crate::DeclaredReasons;

pub const NAME: &str = "InterPodAffinity";

const REASON_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const REASON_ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const REASON_EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// What it turns pods and nodes down with.
pub(crate) const REASONS: DeclaredReasons = &[
    (Code::UnschedulableAndUnresolvable, REASON_AFFINITY),
    (Code::Unschedulable, REASON_ANTI_AFFINITY),
    (Code::Unschedulable, REASON_EXISTING),
];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: Some(complete) };

/// Upstream's `InterPodAffinityArgs`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    /// What a required affinity term of a pod on a node is worth to the pod at hand; 1 when absent.
    hard_pod_affinity_weight: Option<i32>,
    /// Score only pods that have preferred terms of their own.
    ignore_preferred_terms_of_existing_pods: bool,
}

/// What a required term is worth unless the configuration says otherwise.
const HARD_WEIGHT: i32 = 1;

fn complete(given: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = args::decode(given).map_err(|error| vec![error])?;
    let weight = *args.hard_pod_affinity_weight.get_or_insert(HARD_WEIGHT);
    if !(0..=100).contains(&weight) {
        let error =
            FieldError::invalid("hardPodAffinityWeight", weight, "not in valid range [0, 100]");
        return Err(vec![error]);
    }
    let unwritable = |error: serde_json::Error| {
        vec![FieldError { path: String::new(), text: error.to_string() }]
    };
    serde_json::to_value(&args).map_err(unwritable)
}

struct InterPodAffinity {
    hard_weight: i64,
    ignores_existing_preferences: bool,
    required: Slot<Required>,
    preferred: Slot<Preferred>,
}

fn build(points: &mut Points, args: &Value) -> Result<(), PluginError> {
    let args: Args =
        args::decode(args).map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let plugin = Arc::new(InterPodAffinity {
        hard_weight: i64::from(args.hard_pod_affinity_weight.unwrap_or(HARD_WEIGHT)),
        ignores_existing_preferences: args.ignore_preferred_terms_of_existing_pods,
        required: points.slot(),
        preferred: points.slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.prepare = Some(plugin);
    points.wake_on(
        ClusterEvent::new(
            EventResource::Pod,
            Action::ADD | Action::UPDATE_POD_LABEL | Action::DELETE,
        ),
        Some(Arc::new(hints::after_pod_change)),
    );
    points.wake_on(
        ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_NODE_LABEL),
        Some(Arc::new(hints::after_node_change)),
    );
    Ok(())
}

impl InterPodAffinity {
    /// Whether nodes are scored for this pod at all.
    fn scores(&self, pod: &PodTemplate) -> bool {
        !self.ignores_existing_preferences || has_preferred_terms(pod)
    }
}

fn has_preferred_terms(pod: &PodTemplate) -> bool {
    !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty()
}

impl Sign for InterPodAffinity {
    /// Pods on nodes may speak of this pod by its labels. A pod with terms of its own shares
    /// nothing.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable> {
        let affinity = pod.template.spec.affinity.as_deref();
        if affinity.is_some_and(|a| a.pod_affinity.is_some() || a.pod_anti_affinity.is_some()) {
            return Err(Unsignable);
        }
        if self.ignores_existing_preferences {
            return Ok(Vec::new());
        }
        Ok(vec![Fragment { key: "v1.Pod.Labels", value: labels_json(&pod.template) }])
    }
}

/// As Go writes a map: absent labels are `null`.
fn labels_json(pod: &PodTemplate) -> Value {
    if pod.labels.is_empty() {
        return Value::Null;
    }
    let pairs = pod.labels.iter().map(|(key, value)| (key.to_string(), value.as_str().into()));
    Value::Object(pairs.collect())
}
