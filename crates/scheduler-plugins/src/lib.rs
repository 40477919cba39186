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

use loadmaster_framework::{IgnoredArgument, PluginDef, Registry};

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

const ONE_CLIENT: &str =
    "the plugin uses the connection of the scheduler, clientConnection.kubeconfig";
const STATUS: &str =
    "finished and rejected groups are the controller's business, `loadmaster controllers`";

/// Arguments that plugins of the set had for configurations up to v1beta1.
const IGNORED_ARGUMENTS: &[IgnoredArgument] = &[
    ignored(capacity_scheduling::NAME, "kubeConfigPath", ONE_CLIENT),
    ignored(coscheduling::NAME, "kubeConfigPath", ONE_CLIENT),
    ignored(coscheduling::NAME, "kubeMaster", ONE_CLIENT),
    ignored(coscheduling::NAME, "deniedPGExpirationTimeSeconds", STATUS),
    ignored(coscheduling::NAME, "podGroupGCIntervalSeconds", STATUS),
    ignored(coscheduling::NAME, "podGroupExpirationTimeSeconds", STATUS),
];

const fn ignored(
    plugin: &'static str,
    argument: &'static str,
    reason: &'static str,
) -> IgnoredArgument {
    IgnoredArgument { plugin, argument, reason }
}

/// The registry with the plugins of the set added.
pub fn with_scheduler_plugins(registry: Registry) -> Registry {
    let registry = registry.with_ignored_arguments(IGNORED_ARGUMENTS);
    SCHEDULER_PLUGINS.iter().cloned().fold(registry, Registry::with)
}
