//! The in-tree plugins that kube-scheduler had in the time of its configurations v1alpha1 to v1beta3 and of the Policy, and removed since:
//! one file per plugin, and the list of all of them ([`LEGACY_PLUGINS`]).
//!
//! Names, extension points, arguments and messages are those of kube-scheduler 1.22, the last release that had them all; those of the
//! plugins for volume limits are of 1.25.

pub mod azure_disk_limits;
pub mod cinder_limits;
pub mod ebs_limits;
pub mod gce_pd_limits;
pub mod in_tree_volume_limits;
pub mod node_label;
pub mod node_prefer_avoid_pods;
pub mod node_resources_least_allocated;
pub mod node_resources_most_allocated;
pub mod requested_to_capacity_ratio;
mod resource_args;
pub mod selector_spread;
pub mod service_affinity;

use loadmaster_framework::{PluginDef, Registry};

/// Every plugin of the set.
pub const LEGACY_PLUGINS: &[PluginDef] = &[
    node_label::DEF,
    service_affinity::DEF,
    node_prefer_avoid_pods::DEF,
    selector_spread::DEF,
    requested_to_capacity_ratio::DEF,
    node_resources_least_allocated::DEF,
    node_resources_most_allocated::DEF,
    ebs_limits::DEF,
    gce_pd_limits::DEF,
    azure_disk_limits::DEF,
    cinder_limits::DEF,
];

/// The registry with the plugins of the set added.
pub fn with_legacy_plugins(registry: Registry) -> Registry {
    LEGACY_PLUGINS.iter().cloned().fold(registry, Registry::with)
}
