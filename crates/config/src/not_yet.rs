//! What kube-scheduler has and this version of Loadmaster does not have yet. Nothing else in this
//! crate knows it.
//!
//! Whoever builds one of these things deletes its entry here. Two kinds: what would change
//! placements, which is refused so that nobody believes it took effect; and what changes nothing here,
//! which is accepted and noted.

use loadmaster_framework::Registry;
use loadmaster_framework::args::FieldError;

use crate::v1::{SchedulerConfiguration, SchedulerProfile};
use crate::{defaults, in_tree};

/// Gates that kube-scheduler reads and whose other side is not built: they must keep their
/// defaults.
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
    "StorageCapacityScoring",
    "TopologyAwareWorkloadScheduling",
    "VolumeLimitScaling",
    "WorkloadAwarePreemption",
];

/// Gates that endpoints, logs and watches read.
pub(crate) const DAEMON_GATES: &[&str] = &[
    "ComponentFlagz",
    "ComponentStatusz",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "WatchListClient",
];

/// Gates of kube-scheduler that change nothing here, and no placement: accepted and noted.
pub(crate) const IDLE_GATES: &[&str] = &["CoordinatedLeaderElection", "NativeHistograms"];

/// `path: Unsupported value: <value>: cannot take effect in this version of Loadmaster: <what
/// happens instead>`.
fn refused(path: impl Into<String>, value: impl std::fmt::Display, instead: &str) -> FieldError {
    let text = format!(
        "Unsupported value: {value}: cannot take effect in this version of Loadmaster: {instead}"
    );
    FieldError { path: path.into(), text }
}

/// Plugins that kube-scheduler has and the registry has not: accepted where they run by default,
/// else refused.
pub(crate) fn refused_plugin(path: String, name: &str) -> FieldError {
    refused(path, format_args!("{name:?}"), "the plugin is not built")
}

/// Whether this is a plugin of kube-scheduler that is not built here.
pub(crate) fn is_unbuilt(name: &str, registry: &Registry) -> bool {
    registry.get(name).is_none() && in_tree::points(name).is_some()
}

/// The note on default plugins that are not built, once for all profiles.
pub(crate) fn plugin_note(profiles: &[SchedulerProfile], registry: &Registry) -> Option<String> {
    let enabled =
        |name: &str| profiles.iter().any(|profile| profile.plugins.enabled_names().contains(&name));
    let names: Vec<&str> =
        in_tree::names().filter(|name| is_unbuilt(name, registry) && enabled(name)).collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("plugins that are enabled and not built in this version of Loadmaster: {names}"))
}

/// The note on values that change nothing here and are not the defaults: how many goroutines search, and a profiler of Go's.
pub(crate) fn idle_note(config: &SchedulerConfiguration) -> Option<String> {
    let changed = [
        ("parallelism", config.parallelism != defaults::PARALLELISM),
        ("enableContentionProfiling", !config.enable_contention_profiling),
    ];
    let names: Vec<&str> =
        changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("fields that have no effect here: {names}"))
}
