//! InterPodAffinity: filters nodes by required pod affinity and anti-affinity and scores them by preferred terms; the terms
//! of existing pods count too.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter (+ AddPod, RemovePod), Filter, PreScore, Score (+ NormalizeScore), Sign |
//! | woken by | pod added, deleted or relabeled; node added or relabeled |
//! | upstream | `plugins/interpodaffinity`, 1.36 |
//! | deviations | the signature does not distinguish empty labels from absent ones |
//! | cost | per-node form: O(pods · terms) in PreFilter and PreScore, then O(terms + labels) per node. Incremental form: a few additions per assigned pod that a term matches, O(classes · topology keys) per decision, no allocation |
//!
//! Terms apply in both directions: those of the incoming pod to existing pods, and those of existing
//! pods to the incoming pod. [`terms`] decides whether a term matches a pod, [`filter`] and [`score`]
//! are the per-node form, [`counters`] defines the sums that the world maintains for the incremental
//! form in [`evaluator`], and [`hints`] has the queueing hints.

mod counters;
mod evaluator;
mod explain;
mod filter;
mod hints;
#[cfg(test)]
mod incremental_tests;
mod score;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, CycleStateSlot, EventResource, ExtensionPoints, FeatureGates,
    FieldError, PluginDef, PluginError, PodInfo, PodTemplate, Sign, plugin_args,
};
use loadmaster_stdx::CollectByInsertion as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::filter::PreFilterState;
use self::score::PreScoreState;

use crate::DeclaredReasons;

pub const NAME: &str = "InterPodAffinity";

const REASON_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const REASON_ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const REASON_EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// The reasons with which this plugin rejects pods and nodes.
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
    /// Weight of a required affinity term of an existing pod that matches the incoming pod; 1 when absent.
    hard_pod_affinity_weight: Option<i32>,
    /// Do not score incoming pods without preferred terms of their own.
    ignore_preferred_terms_of_existing_pods: bool,
}

/// The default of `hardPodAffinityWeight`.
const HARD_WEIGHT: i32 = 1;

fn complete(given: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    let mut args: Args = plugin_args::decode_given_args(given)?;
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
    pre_filter_state: CycleStateSlot<PreFilterState>,
    pre_score_state: CycleStateSlot<PreScoreState>,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: Args = plugin_args::decode_json_value(args)
        .map_err(|error| PluginError::Args { plugin: NAME, error })?;
    let plugin = Arc::new(InterPodAffinity {
        hard_weight: i64::from(args.hard_pod_affinity_weight.unwrap_or(HARD_WEIGHT)),
        ignores_existing_preferences: args.ignore_preferred_terms_of_existing_pods,
        pre_filter_state: points.cycle_state_slot(),
        pre_score_state: points.cycle_state_slot(),
    });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.pre_score = Some(plugin.clone());
    points.score = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    points.register_event(
        ClusterEvent::new(
            EventResource::Pod,
            ActionType::ADD | ActionType::UPDATE_POD_LABEL | ActionType::DELETE,
        ),
        Some(Arc::new(hints::after_pod_change)),
    );
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD | ActionType::UPDATE_NODE_LABEL),
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
    /// Terms of existing pods may match this pod by its labels. A pod with terms of its own has no
    /// signature.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        let affinity = pod.template.spec.affinity.as_deref();
        if affinity.is_some_and(|a| a.pod_affinity.is_some() || a.pod_anti_affinity.is_some()) {
            return Err(UnsignablePod);
        }
        if self.ignores_existing_preferences {
            return Ok(Vec::new());
        }
        Ok(vec![SignFragment { key: "v1.Pod.Labels", value: labels_json(&pod.template) }])
    }
}

/// As Go encodes a map: absent labels are `null`.
fn labels_json(pod: &PodTemplate) -> Value {
    if pod.labels.is_empty() {
        return Value::Null;
    }
    let pairs = pod.labels.iter().map(|(key, value)| (key.to_string(), value.as_str().into()));
    Value::Object(pairs.collect_by_insertion())
}
