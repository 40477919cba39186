//! NodeDeclaredFeatures: a pod that needs a feature of the kubelet fits only on nodes that declare it (`status.declaredFeatures`).
//!
//! | | |
//! | --- | --- |
//! | extension points | PreFilter, Filter, Sign |
//! | woken by | node added or its declared features changed, required features of the pod changed |
//! | upstream | `plugins/nodedeclaredfeatures` and `component-helpers/nodedeclaredfeatures`, 1.36 |
//! | deviations | none |
//! | cost | nothing for a pod without required features; else O(declared features) per node, no allocation |
//!
//! Which features a pod needs follows from its spec alone; the gates of the features matter only to the API server and the kubelet. With the
//! gate `NodeDeclaredFeatures` off, the plugin is not among the default ones and, if enabled by name, checks nothing.

use std::sync::Arc;

use loadmaster_api::{Node, SharedPodSpec};
use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::extension_points::{SignFragment, UnsignablePod};
use loadmaster_framework::incremental::RowDependency;
use loadmaster_framework::{
    ActionType, ClusterEvent, Code, Cx, Detail, EvaluatorCx, EventResource, Explain,
    ExtensionPoints, Failure, Filter, Incremental, NodeInfo, NodeRow, PluginDef, PluginError,
    PodInfo, PreFilter, PreFilterResult, PrepareCx, PrepareResult, QueueingHint, Rejection,
    SerialCx, Sign,
};
use serde_json::Value;

use crate::DeclaredReasons;

pub const NAME: &str = "NodeDeclaredFeatures";

const REASON: &str = "node(s) didn't match Pod's required features";

/// The reasons with which this plugin rejects nodes.
pub(crate) const REASONS: DeclaredReasons = &[(Code::UnschedulableAndUnresolvable, REASON)];

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

/// A feature that nodes declare.
struct Feature {
    name: &'static str,
    /// Whether the scheduler looks for it on nodes. Other features matter only when a pod is updated.
    is_required_by: fn(&SharedPodSpec) -> bool,
}

/// The features of 1.36, by name; none has a last version in which it matters. Their order is that of a signature's digits.
const FEATURES: [Feature; 5] = [
    Feature { name: "ExtendWebSocketsToKubelet", is_required_by: |_| false },
    Feature { name: "InPlacePodLevelResourcesVerticalScaling", is_required_by: |_| false },
    Feature { name: "InPlacePodVerticalScalingInitContainers", is_required_by: |_| false },
    Feature {
        name: "RestartAllContainersOnContainerExits",
        is_required_by: restarts_all_containers,
    },
    Feature { name: "UserNamespacesHostNetworkSupport", is_required_by: has_own_users_on_host },
];

fn restarts_all_containers(spec: &SharedPodSpec) -> bool {
    let containers = spec.containers.iter().chain(&spec.init_containers);
    let mut rules = containers.flat_map(|container| &container.restart_policy_rules);
    rules.any(|rule| rule.action == "RestartAllContainers")
}

/// A user namespace of its own in the network of the host.
fn has_own_users_on_host(spec: &SharedPodSpec) -> bool {
    spec.host_network && spec.host_users == Some(false)
}

/// A set of [`FEATURES`], which are the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FeatureSet(u8);

impl FeatureSet {
    const NONE: FeatureSet = FeatureSet(0);

    fn required_by(spec: &SharedPodSpec) -> FeatureSet {
        let all = FEATURES.iter().enumerate();
        let required = all.filter(|(_, feature)| (feature.is_required_by)(spec));
        FeatureSet(required.fold(0, |set, (at, _)| set | 1 << at))
    }

    fn contains(self, at: usize) -> bool {
        self.0 & 1 << at != 0
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        let all = FEATURES.iter().enumerate();
        all.filter(move |(at, _)| self.contains(*at)).map(|(_, feature)| feature.name)
    }

    /// Those that the node does not declare.
    fn missing_on(self, node: &Node) -> impl Iterator<Item = &'static str> {
        self.names().filter(|name| !declares(node, name))
    }

    fn is_declared_by(self, node: &Node) -> bool {
        self.missing_on(node).next().is_none()
    }

    /// A digit per feature, the first feature first.
    fn digits(self) -> String {
        (0..FEATURES.len()).map(|at| if self.contains(at) { '1' } else { '0' }).collect()
    }
}

/// Whether the node declares the feature. Upstream reads the list, which is sorted, only up to the feature's place in it; the difference
/// shows in a list that is not sorted.
fn declares(node: &Node, feature: &str) -> bool {
    let mut declared = node.status.declared_features.iter();
    declared.find(|name| name.as_str() >= feature).is_some_and(|name| name == feature)
}

struct NodeDeclaredFeatures {
    is_enabled: bool,
}

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    let is_enabled = points.gates.node_declared_features;
    let plugin = Arc::new(NodeDeclaredFeatures { is_enabled });
    points.pre_filter = Some(plugin.clone());
    points.filter = Some(plugin.clone());
    points.sign = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.incremental = Some(plugin);
    if !is_enabled {
        points.register_no_events();
        return Ok(());
    }
    let node_actions = ActionType::ADD | ActionType::UPDATE_NODE_DECLARED_FEATURE;
    points.register_event(
        ClusterEvent::new(EventResource::Node, node_actions),
        Some(Arc::new(after_node_change)),
    );
    points.register_event(
        ClusterEvent::new(EventResource::Pod, ActionType::UPDATE),
        Some(Arc::new(after_pod_update)),
    );
    Ok(())
}

impl NodeDeclaredFeatures {
    fn required_by(&self, pod: &PodInfo) -> FeatureSet {
        match self.is_enabled {
            true => FeatureSet::required_by(&pod.template.spec),
            false => FeatureSet::NONE,
        }
    }
}

impl PreFilter for NodeDeclaredFeatures {
    fn pre_filter(&self, _cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        Ok(match self.required_by(pod) {
            FeatureSet::NONE => PreFilterResult::Skip,
            _ => PreFilterResult::All,
        })
    }
}

impl Filter for NodeDeclaredFeatures {
    fn filter(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection> {
        let fits = self.required_by(pod).is_declared_by(node.node());
        if fits { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }
}

fn after_node_change(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let (old, new) = hint_args.old_and_new_node()?;
    let is_same =
        old.is_some_and(|old| old.status.declared_features == new.status.declared_features);
    Ok(QueueingHint::queue_if(!is_same))
}

fn after_pod_update(hint_args: &QueueingHintArgs<'_>) -> Result<QueueingHint, Failure> {
    let (old, new) = (hint_args.old_pod()?, hint_args.new_pod()?);
    let [before, after] = [old, new].map(|pod| FeatureSet::required_by(&pod.template.spec));
    Ok(QueueingHint::queue_if(new.uid == hint_args.pod.uid && before != after))
}

impl Sign for NodeDeclaredFeatures {
    /// Upstream cannot sign a pod if the gate is off.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod> {
        if !self.is_enabled {
            return Err(UnsignablePod);
        }
        let value = Value::from(self.required_by(pod).digits());
        Ok(vec![SignFragment { key: "v1.Pod.Spec.RequiredFeatures()", value }])
    }
}

impl Explain for NodeDeclaredFeatures {
    fn pod_details(&self, _cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        list_detail("requiredFeatures", self.required_by(pod).names())
    }

    fn node_details(&self, _cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        list_detail("missingFeatures", self.required_by(pod).missing_on(node.node()))
    }
}

/// No detail for an empty list.
fn list_detail(name: &'static str, features: impl Iterator<Item = &'static str>) -> Vec<Detail> {
    let features: Vec<String> = features.map(str::to_owned).collect();
    if features.is_empty() { Vec::new() } else { vec![Detail::new(name, features)] }
}

impl Incremental for NodeDeclaredFeatures {
    /// The features that the pod needs.
    type Key = FeatureSet;

    fn key(&self, _cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<FeatureSet> {
        Some(self.required_by(pod))
    }

    fn key_is_of_spec(&self, _: &SharedPodSpec) -> bool {
        true
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, _cx: &mut PrepareCx<'_>, required: &FeatureSet) -> PrepareResult {
        let required = *required;
        if required == FeatureSet::NONE {
            return PrepareResult::Skip;
        }
        PrepareResult::row_local(RowDependency::Node, move |cx: EvaluatorCx<'_>, row: NodeRow| {
            let node = cx.nodes().node(row)?;
            required.is_declared_by(node).then_some(0)
        })
    }
}

#[cfg(test)]
mod tests;
