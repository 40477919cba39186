//! Features of kube-scheduler that this version of Loadmaster does not implement. This is the only
//! list of them in this crate; an entry is deleted when its feature is implemented.
//!
//! There are two kinds: values that would change placements are rejected, so that no user relies on them;
//! values without effect on placements are accepted with a note.

use loadmaster_framework::Registry;
use loadmaster_framework::plugin_args::FieldError;

use crate::v1::{SchedulerConfiguration, SchedulerProfile};
use crate::{default_values, in_tree_plugins};

/// Gates of kube-scheduler whose features are not implemented: they must keep their defaults.
pub(crate) const GATES: &[&str] = &[
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DRASchedulerFilterTimeout",
    "DRAWorkloadResourceClaims",
    "GangScheduling",
    "GenericWorkload",
    "SchedulerAsyncAPICalls",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
];

/// Gates that are read by the HTTP endpoints, logging and watches.
pub(crate) const DAEMON_GATES: &[&str] = &[
    "ComponentFlagz",
    "ComponentStatusz",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "WatchListClient",
];

/// Gates of kube-scheduler that have no effect in Loadmaster and do not change placements: accepted
/// with a note.
pub(crate) const NO_EFFECT_GATES: &[&str] = &["CoordinatedLeaderElection", "NativeHistograms"];

/// Plugins of kubernetes-sigs/scheduler-plugins that are not implemented.
const SCHEDULER_PLUGINS: &[&str] = &[
    "LoadVariationRiskBalancing",
    "LowRiskOverCommitment",
    "NetworkOverhead",
    "NodeMetadata",
    "NodeResourceTopologyMatch",
    "Peaks",
    "SySched",
    "TargetLoadPacking",
    "TopologicalSort",
];

/// `path: Unsupported value: <value>: cannot take effect in this version of Loadmaster: <reason>`.
fn unsupported_value(
    path: impl Into<String>,
    value: impl std::fmt::Display,
    reason: &str,
) -> FieldError {
    let text = format!(
        "Unsupported value: {value}: cannot take effect in this version of Loadmaster: {reason}"
    );
    FieldError { path: path.into(), text }
}

/// Plugins of kube-scheduler or of scheduler-plugins that are not in the registry: accepted where they are enabled by
/// default, else rejected.
pub(crate) fn unsupported_plugin(path: String, name: &str) -> FieldError {
    unsupported_value(path, format_args!("{name:?}"), "the plugin is not implemented")
}

/// Whether this is a plugin of kube-scheduler or of scheduler-plugins that is not implemented.
pub(crate) fn is_unimplemented(name: &str, registry: &Registry) -> bool {
    let is_in_tree = in_tree_plugins::in_tree_extension_points(name).is_some();
    (is_in_tree && registry.get(name).is_none()) || has_unknown_points(name, registry)
}

/// Whether this is a plugin of scheduler-plugins that is not implemented: nothing says which extension points it has.
pub(crate) fn has_unknown_points(name: &str, registry: &Registry) -> bool {
    SCHEDULER_PLUGINS.contains(&name) && registry.get(name).is_none()
}

/// The note on default plugins that are not implemented, one for all profiles.
pub(crate) fn plugin_note(profiles: &[SchedulerProfile], registry: &Registry) -> Option<String> {
    let enabled =
        |name: &str| profiles.iter().any(|profile| profile.plugins.enabled_names().contains(&name));
    let names: Vec<&str> = in_tree_plugins::in_tree_plugin_names()
        .filter(|name| is_unimplemented(name, registry) && enabled(name))
        .collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("enabled plugins that this version of Loadmaster does not implement: {names}"))
}

/// The note on plugins of older versions in a v1 configuration, which kube-scheduler would reject.
pub(crate) fn old_plugin_note(profiles: &[SchedulerProfile]) -> Option<String> {
    let names: Vec<&str> = in_tree_plugins::old_plugin_names()
        .filter(|name| {
            profiles.iter().any(|profile| profile.plugins.enabled_names().contains(name))
        })
        .collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("enabled plugins that kube-scheduler 1.36 does not have: {names}"))
}

/// The note on fields that are not at their defaults and have no effect: the number of goroutines, and Go's contention profiler.
pub(crate) fn no_effect_note(config: &SchedulerConfiguration) -> Option<String> {
    let changed = [
        ("parallelism", config.parallelism != default_values::PARALLELISM),
        ("enableContentionProfiling", !config.enable_contention_profiling),
    ];
    let names: Vec<&str> =
        changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("fields that have no effect in Loadmaster: {names}"))
}
