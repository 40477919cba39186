//! The feature gates that change what the scheduler decides, with upstream's defaults for 1.36.

/// One bool a gate; plugins read them once, when they are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    pub pod_level_resources: bool,
    pub in_place_pod_level_resources_vertical_scaling: bool,
    pub match_label_keys_in_pod_topology_spread: bool,
    pub match_label_keys_in_pod_topology_spread_selector_merge: bool,
    pub taint_toleration_comparison_operators: bool,
    pub opportunistic_batching: bool,
    pub pop_from_backoff_q: bool,
    pub nominated_node_name_for_expectation: bool,
    pub scheduler_async_preemption: bool,
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
        }
    }
}
