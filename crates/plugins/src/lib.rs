//! The in-tree plugins: one file or folder per plugin, and the list of all of them ([`IN_TREE_PLUGINS`]).

mod column_filter;
mod csi_migration;
pub mod default_binder;
pub mod default_preemption;
mod dynamic_resources;
mod explain_text;
pub mod image_locality;
pub mod inter_pod_affinity;
#[cfg(test)]
mod key_tests;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources;
pub mod node_unschedulable;
pub mod node_volume_limits;
mod normalize;
pub mod pod_topology_spread;
pub mod priority_sort;
pub mod scheduling_gates;
pub mod taint_toleration;
mod tolerations;
pub mod utilization_shape;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;
pub mod volumes;

use loadmaster_framework::{Code, PluginDef, Registry};

/// Every in-tree plugin, in upstream's default order.
pub const IN_TREE_PLUGINS: &[PluginDef] = &[
    scheduling_gates::DEF,
    priority_sort::DEF,
    node_unschedulable::DEF,
    node_name::DEF,
    taint_toleration::DEF,
    node_affinity::DEF,
    node_ports::DEF,
    node_resources::fit::DEF,
    volume_restrictions::DEF,
    node_volume_limits::DEF,
    volume_binding::DEF,
    volume_zone::DEF,
    pod_topology_spread::DEF,
    inter_pod_affinity::DEF,
    dynamic_resources::DEF,
    default_preemption::DEF,
    node_resources::balanced_allocation::DEF,
    image_locality::DEF,
    default_binder::DEF,
    node_declared_features::DEF,
];

/// The reasons with which a plugin rejects pods or nodes (the whole text or its beginning), with their status codes.
pub type DeclaredReasons = &'static [(Code, &'static str)];

/// By plugin, the reasons that equal kube-scheduler's. Each reason has a scenario that shows it.
pub const DECLARED_REASONS: &[(&str, DeclaredReasons)] = &[
    (scheduling_gates::NAME, scheduling_gates::REASONS),
    (node_unschedulable::NAME, node_unschedulable::REASONS),
    (node_name::NAME, node_name::REASONS),
    (taint_toleration::NAME, taint_toleration::REASONS),
    (node_affinity::NAME, node_affinity::REASONS),
    (node_ports::NAME, node_ports::REASONS),
    (node_resources::fit::NAME, node_resources::fit::REASONS),
    (volume_restrictions::NAME, volume_restrictions::REASONS),
    (node_volume_limits::NAME, node_volume_limits::REASONS),
    (volume_zone::NAME, volume_zone::REASONS),
    (pod_topology_spread::NAME, pod_topology_spread::REASONS),
    (inter_pod_affinity::NAME, inter_pod_affinity::REASONS),
    (volume_binding::NAME, volume_binding::REASONS),
    (default_preemption::NAME, default_preemption::REASONS),
    (node_declared_features::NAME, node_declared_features::REASONS),
];

/// A registry of all in-tree plugins.
pub fn in_tree_registry() -> Registry {
    Registry::new(IN_TREE_PLUGINS.iter().cloned())
}
