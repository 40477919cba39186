//! The plugins of kubernetes-sigs/scheduler-plugins: one file or folder per plugin, and the list of all of them
//! ([`SCHEDULER_PLUGINS`]).
//!
//! Names, extension points, arguments and messages are those of scheduler-plugins 0.35. Its plugins that are not in the list yet are
//! rejected by name in a configuration (`loadmaster_config`'s list of what is not implemented).

pub mod capacity_scheduling;
pub mod coscheduling;
pub mod cross_node_preemption;
pub mod custom_resource_definitions;
pub mod elastic_quota;
pub mod node_resources_allocatable;
mod normalized_node_score;
pub mod pod_group;
pub mod pod_state;
pub mod preemption_toleration;
pub mod qos_sort;

use loadmaster_framework::{PluginDef, Registry};

/// Every plugin of the set.
pub const SCHEDULER_PLUGINS: &[PluginDef] = &[
    capacity_scheduling::DEF,
    coscheduling::DEF,
    cross_node_preemption::DEF,
    node_resources_allocatable::DEF,
    pod_state::DEF,
    preemption_toleration::DEF,
    qos_sort::DEF,
];

/// The registry with the plugins of the set added.
pub fn with_scheduler_plugins(registry: Registry) -> Registry {
    SCHEDULER_PLUGINS.iter().cloned().fold(registry, Registry::with)
}
