//! The feature gates that affect scheduling, with upstream's defaults for 1.36.

/// The state of the feature gates; plugins read them when they are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// `PodLevelResources`: requests in `spec.resources` count.
    pub pod_level_resources: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: those requests may be resized in place.
    pub in_place_pod_level_resources_vertical_scaling: bool,
    /// `MatchLabelKeysInPodTopologySpread`: constraints may name label keys of the pod.
    pub match_label_keys_in_pod_topology_spread: bool,
    /// `MatchLabelKeysInPodTopologySpreadSelectorMerge`: the API server has merged those keys into the selector.
    pub match_label_keys_in_pod_topology_spread_selector_merge: bool,
    /// `TaintTolerationComparisonOperators`: tolerations may compare numbers with `Lt` and `Gt`.
    pub taint_toleration_comparison_operators: bool,
    /// `OpportunisticBatching`: scheduling results are reused for pods with equal signatures.
    pub opportunistic_batching: bool,
    /// `SchedulerPopFromBackoffQ`: pods are popped from the backoffQ when the activeQ is empty.
    pub pop_from_backoff_q: bool,
    /// `NominatedNodeNameForExpectation`: a pod's `nominatedNodeName` is set before a long binding cycle.
    pub nominated_node_name_for_expectation: bool,
    /// `SchedulerAsyncPreemption`: victims are evicted asynchronously while other pods are scheduled.
    pub scheduler_async_preemption: bool,
    /// `NodeDeclaredFeatures`: pods fit only on nodes that declare the features that they need.
    pub node_declared_features: bool,
    /// `StorageCapacityScoring`: nodes are scored by how full their storage would be.
    pub storage_capacity_scoring: bool,
    /// `VolumeLimitScaling`: pods are not placed on nodes without the CSI driver of their volumes, if the driver says so.
    pub volume_limit_scaling: bool,
    /// `LoadmasterAdaptiveNodeSampling`, not an upstream gate: a percentageOfNodesToScore of 0 means upstream's formula instead
    /// of all nodes.
    pub adaptive_node_sampling: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        FeatureGates {
            pod_level_resources: true,
            in_place_pod_level_resources_vertical_scaling: true,
            match_label_keys_in_pod_topology_spread: true,
            match_label_keys_in_pod_topology_spread_selector_merge: true,
            taint_toleration_comparison_operators: false,
            opportunistic_batching: true,
            pop_from_backoff_q: true,
            nominated_node_name_for_expectation: true,
            scheduler_async_preemption: true,
            node_declared_features: true,
            storage_capacity_scoring: false,
            volume_limit_scaling: false,
            adaptive_node_sampling: false,
        }
    }
}
