//! ServiceAffinity: the pods of a Service run on nodes with equal values of some labels; prefers to spread them over the values of others.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter (+ AddPod, RemovePod), Filter, Score (+ NormalizeScore) |
//! | woken by | pod with the labels of this one deleted or relabeled; node added or one of the labels changed on it |
//! | upstream | `plugins/serviceaffinity`, 1.22 |
//! | deviations | changes of Services wake no pod; of several Services, the first to be added gives the selector of the score, upstream takes any; the node of a nominated pod is the one to which it is nominated, upstream fails the attempt |
//! | cost | O(pods) in PreFilter, O(labels) per node in Filter, O(pods of the node) in Score; no incremental form |
//!
//! Filter: of the labels of `affinityLabels`, a node must have those of the pod's node selector, and for the others, if a Service selects
//! the pod, the values of the node of the first pod with the labels of this pod; a label that neither has is not required.
//!
//! Score: for each label of `antiAffinityLabelsPreference` that the node has, `100 * (all - here) / all`, where `all` is the number of
//! pods of the Service on feasible nodes and `here` of those on nodes with the same value; the mean over the labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::meta::nullable;
use loadmaster_api::{Labels, Node, Str};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::plugin_args::{self, PluginArgs};
use loadmaster_framework::{
    ActionType, ClusterEvent, Cx, CycleState, CycleStateSlot, EventObject, EventResource,
    ExtensionPoints, Failure, Filter, MAX_NODE_SCORE, NodeInfo, NodeScore, PluginDef, PluginError,
    PodInfo, PodTemplate, PreFilter, PreFilterResult, QueueingHint, Rejection, Score, SerialCx,
    World,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const NAME: &str = "ServiceAffinity";

const REASON: &str = "node(s) didn't match service affinity";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Args {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    affinity_labels: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    anti_affinity_labels_preference: Vec<String>,
}

impl PluginArgs for Args {}

struct ServiceAffinity {
    args: Args,
    state: CycleStateSlot<PreFilterState>,
}

/// What Filter reads of other pods (upstream's `preFilterState`).
#[derive(Clone)]
struct PreFilterState {
    /// The pods with all labels of the incoming pod, in its namespace, each with its node.
    matching_pods: Vec<(Arc<PodInfo>, Str)>,
    /// Whether a Service selects the incoming pod.
    has_services: bool,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let args: Args = plugin_args::decode_plugin_args(NAME, args)?;
    register_events(points, &args.affinity_labels);
    let plugin = Arc::new(ServiceAffinity { args, state: points.cycle_state_slot() });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.score = Some(plugin);
    Ok(())
}

/// Upstream registers all updates of pods, and updates and deletions of Services as well, which have no events here.
fn register_events(points: &mut ExtensionPoints, affinity_labels: &[String]) {
    if affinity_labels.is_empty() {
        return points.register_no_events();
    }
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::UPDATE_POD_LABEL | ActionType::DELETE),
        Some(Arc::new(after_pod_change)),
    );
    let affinity_labels = affinity_labels.to_vec();
    points.register_event(
        ClusterEvent::new(EventResource::Node, ActionType::ADD | ActionType::UPDATE_NODE_LABEL),
        Some(Arc::new(move |hint_args| after_node_change(&affinity_labels, hint_args))),
    );
}

/// Whether the other pod has all labels of this one, in its namespace.
fn has_labels_of(pod: &PodTemplate, other: &PodTemplate) -> bool {
    pod.namespace == other.namespace && contains_all(&other.labels, &pod.labels)
}

fn contains_all(labels: &Labels, pairs: &Labels) -> bool {
    pairs.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The selectors of the Services that select the pod (upstream's `GetPodServices`). A Service without selector selects none.
fn service_selectors<'a>(
    cluster: &'a ClusterObjects,
    pod: &'a PodTemplate,
) -> impl Iterator<Item = &'a Labels> {
    let services = cluster.services.get(&pod.namespace).into_iter().flatten();
    let selectors = services.map(|service| &service.spec.selector);
    selectors.filter(|pairs| !pairs.is_empty() && contains_all(&pod.labels, pairs))
}

impl PreFilterState {
    /// Nodes in upstream's order, in which it takes the first pod.
    fn new(world: &World, pod: &PodTemplate) -> PreFilterState {
        let mut matching_pods = Vec::new();
        for row in world.nodes().node_tree().rows() {
            let Some(node) = world.node(row) else { continue };
            let matching = node.pods().filter(|other| has_labels_of(pod, &other.template));
            let mut name = None;
            for other in matching {
                let name = name.get_or_insert_with(|| Str::new(node.name()));
                matching_pods.push((other.clone(), name.clone()));
            }
        }
        let has_services = service_selectors(world.cluster_objects(), pod).next().is_some();
        PreFilterState { matching_pods, has_services }
    }
}

impl PreFilter for ServiceAffinity {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        if self.args.affinity_labels.is_empty() {
            return Ok(PreFilterResult::Skip);
        }
        cx.cycle.set(self.state, PreFilterState::new(cx.world, &pod.template));
        Ok(PreFilterResult::All)
    }

    fn add_pod(
        &self,
        cycle: &mut CycleState,
        _: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        if let Some(state) = cycle.get_mut(self.state)
            && has_labels_of(&pod.template, &other.template)
        {
            state.matching_pods.push((other.clone(), Str::new(node.name())));
        }
        Ok(())
    }

    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        _: &World,
        _: &PodInfo,
        other: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        if let Some(state) = cycle.get_mut(self.state)
            && let Some(at) = state.matching_pods.iter().position(|(pod, _)| pod.uid == other.uid)
        {
            state.matching_pods.remove(at);
        }
        Ok(())
    }
}

impl Filter for ServiceAffinity {
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        if self.args.affinity_labels.is_empty() {
            return Ok(());
        }
        let state = cx.cycle.get(self.state).ok_or_else(|| {
            Failure::new(format!("error reading \"PreFilter{NAME}\" from cycleState: not found"))
        })?;
        let first = state.matching_pods.first().filter(|_| state.has_services);
        let of_service = match first {
            None => None,
            Some((_, name)) => {
                let other = cx.world.nodes().row(name).and_then(|row| cx.world.node(row));
                Some(other.ok_or_else(|| Failure::new("node not found"))?.labels())
            }
        };
        let own = &pod.template.spec.node_selector;
        let matches = |label: &String| {
            let required = own.get(label).or_else(|| of_service?.get(label));
            required.is_none_or(|value| node.labels().get(label) == Some(value))
        };
        match self.args.affinity_labels.iter().all(matches) {
            true => Ok(()),
            false => Err(Rejection::unschedulable(REASON)),
        }
    }
}

impl Score for ServiceAffinity {
    /// The number of pods of the Service on the node, without terminating ones.
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure> {
        let template = &*pod.template;
        let mut selectors = service_selectors(cx.world.cluster_objects(), template);
        let Some(selector) = selectors.next() else { return Ok(0) };
        let counts = |other: &&Arc<PodInfo>| {
            !other.terminating
                && other.template.namespace == template.namespace
                && contains_all(&other.template.labels, selector)
        };
        Ok(node.pods().filter(counts).count() as i64)
    }

    fn normalize(&self, cx: Cx<'_>, _: &PodInfo, scores: &mut [NodeScore]) -> Result<(), Failure> {
        let labels = &self.args.anti_affinity_labels_preference;
        let mut results = vec![0.0; scores.len()];
        for label in labels {
            add_scores_of_label(cx.world, label, labels.len(), scores, &mut results);
        }
        for (node, result) in scores.iter_mut().zip(results) {
            node.score = result as i64;
        }
        Ok(())
    }
}

/// Adds to the results what one of so many labels contributes. Upstream's order of evaluation.
fn add_scores_of_label(
    world: &World,
    label: &str,
    n_labels: usize,
    counts: &[NodeScore],
    results: &mut [f64],
) {
    let value = |row| world.node(row).and_then(|node| node.labels().get(label));
    let n_all: i64 = counts.iter().map(|node| node.score).sum();
    let mut by_value: BTreeMap<&Str, i64> = BTreeMap::new();
    for node in counts {
        if let Some(value) = value(node.row) {
            *by_value.entry(value).or_default() += node.score;
        }
    }
    let max_score = MAX_NODE_SCORE as f64;
    for (node, result) in counts.iter().zip(results) {
        let Some(n_here) = value(node.row).and_then(|value| by_value.get(value)) else { continue };
        let score = match n_all > 0 {
            true => max_score * ((n_all - n_here) as f64 / n_all as f64),
            false => max_score,
        };
        *result += score / n_labels as f64;
    }
}

/// Wakes the pod when a pod is deleted or relabeled with which it had to share the values of labels, or its own labels change.
fn after_pod_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let old = hint_args.old_pod()?;
    let pod = &hint_args.pod.template;
    let did_match = has_labels_of(pod, &old.template);
    let helps = match hint_args.new.and_then(EventObject::pod) {
        None => did_match && !(old.node_name.is_empty() && old.nominated_node_name.is_empty()),
        Some(new) => {
            new.uid == hint_args.pod.uid || did_match && !has_labels_of(pod, &new.template)
        }
    };
    Ok(QueueingHint::queue_if(helps))
}

/// Wakes the pod when one of these labels changes on a node, where a pod of the Service may run.
fn after_node_change(
    affinity_labels: &[String],
    hint_args: &QueueingHintArgs<'_>,
) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let changed = |old: &Node| {
        let value = |node: &Node, label: &str| node.metadata.labels.get(label).cloned();
        affinity_labels.iter().any(|label| value(old, label) != value(new, label))
    };
    Ok(QueueingHint::queue_if(old.is_none_or(changed)))
}

#[cfg(test)]
mod tests;
