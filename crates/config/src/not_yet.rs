//! What kube-scheduler has and this version of Loadmaster does not have yet. Nothing else in this
//! crate knows it.
//!
//! Whoever builds one of these things deletes its entry here. Two kinds: what would change
//! placements, which is refused so that nobody believes it took effect; and what only matters to a
//! scheduler that runs as a daemon, which is accepted and noted.

use loadmaster_framework::args::{FieldError, decode};
use loadmaster_framework::registry::ArgsFn;
use loadmaster_framework::{FeatureGates, Registry};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::v1::{ClientConnection, LeaderElection, SchedulerConfiguration, SchedulerProfile};
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
    "NominatedNodeNameForExpectation",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "StorageCapacityScoring",
    "TopologyAwareWorkloadScheduling",
    "VolumeLimitScaling",
    "WorkloadAwarePreemption",
];

/// Gates that matter only to a scheduler that runs as a daemon: endpoints, metrics, leader
/// election, watches.
pub(crate) const DAEMON_GATES: &[&str] = &[
    "ComponentFlagz",
    "ComponentStatusz",
    "CoordinatedLeaderElection",
    "NativeHistograms",
    "WatchListClient",
];

/// How the arguments of a plugin are checked that is not built.
pub(crate) fn args_of(name: &str) -> Option<ArgsFn> {
    (name == "DefaultPreemption").then_some(default_preemption_args as ArgsFn)
}

/// `DefaultPreemptionArgs`: which share of the nodes the search for victims looks at.
#[derive(Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct DefaultPreemptionArgs {
    min_candidate_nodes_percentage: i32,
    min_candidate_nodes_absolute: i32,
}

impl Default for DefaultPreemptionArgs {
    fn default() -> Self {
        DefaultPreemptionArgs {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

fn default_preemption_args(value: &Value, _gates: &FeatureGates) -> Result<Value, Vec<FieldError>> {
    const PERCENTAGE: &str = "minCandidateNodesPercentage";
    const ABSOLUTE: &str = "minCandidateNodesAbsolute";
    let args: DefaultPreemptionArgs = decode(value).map_err(|error| vec![error])?;
    let (percentage, absolute) =
        (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute);
    let mut errors = Vec::new();
    if !(0..=100).contains(&percentage) {
        errors.push(FieldError::invalid(PERCENTAGE, percentage, "not in valid range [0, 100]"));
    }
    if absolute < 0 {
        errors.push(FieldError::invalid(ABSOLUTE, absolute, "not in valid range [0, inf)"));
    }
    if percentage == 0 && absolute == 0 {
        let not_both = |other| format!("cannot be zero at the same time as {other}");
        errors.push(FieldError::invalid(PERCENTAGE, percentage, not_both(ABSOLUTE)));
        errors.push(FieldError::invalid(ABSOLUTE, absolute, not_both(PERCENTAGE)));
    }
    let defaults = DefaultPreemptionArgs::default();
    if errors.is_empty() {
        if percentage != defaults.min_candidate_nodes_percentage {
            errors.push(refused(PERCENTAGE, percentage, "nothing is preempted"));
        }
        if absolute != defaults.min_candidate_nodes_absolute {
            errors.push(refused(ABSOLUTE, absolute, "nothing is preempted"));
        }
    }
    if errors.is_empty() {
        serde_json::to_value(args)
            .map_err(|error| vec![FieldError { path: String::new(), text: error.to_string() }])
    } else {
        Err(errors)
    }
}

/// `path: Unsupported value: <value>: cannot take effect in this version of Loadmaster: <what
/// happens instead>`.
fn refused(path: impl Into<String>, value: impl std::fmt::Display, instead: &str) -> FieldError {
    let text = format!(
        "Unsupported value: {value}: cannot take effect in this version of Loadmaster: {instead}"
    );
    FieldError { path: path.into(), text }
}

/// Values of a valid configuration that would change placements and cannot.
pub(crate) fn refusals(config: &SchedulerConfiguration) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let all_nodes = "all nodes are always evaluated (use 0 or 100)";
    if !matches!(config.percentage_of_nodes_to_score, 0 | 100) {
        errors.push(refused(
            "percentageOfNodesToScore",
            config.percentage_of_nodes_to_score,
            all_nodes,
        ));
    }
    for (i, profile) in config.profiles.iter().enumerate() {
        if let Some(percentage) =
            profile.percentage_of_nodes_to_score.filter(|it| !matches!(it, 0 | 100))
        {
            errors.push(refused(
                format!("profiles[{i}].percentageOfNodesToScore"),
                percentage,
                all_nodes,
            ));
        }
    }
    for (i, extender) in config.extenders.iter().enumerate() {
        let url = format!("{:?}", extender.url_prefix);
        errors.push(refused(format!("extenders[{i}]"), url, "no extender is called"));
    }
    if config.delay_cache_until_active {
        errors.push(refused("delayCacheUntilActive", true, "watches start at once"));
    }
    errors
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

/// The note on values that only a scheduler that runs as a daemon reads and that are not the
/// defaults.
pub(crate) fn daemon_note(config: &SchedulerConfiguration) -> Option<String> {
    let changed = [
        ("parallelism", config.parallelism != defaults::PARALLELISM),
        (
            "leaderElection",
            config.leader_election != defaults::leader_election(LeaderElection::default()),
        ),
        (
            "clientConnection",
            config.client_connection != defaults::client_connection(ClientConnection::default()),
        ),
        ("enableProfiling", !config.enable_profiling),
        ("enableContentionProfiling", !config.enable_contention_profiling),
        (
            "podInitialBackoffSeconds",
            config.pod_initial_backoff_seconds != defaults::POD_INITIAL_BACKOFF_SECONDS,
        ),
        (
            "podMaxBackoffSeconds",
            config.pod_max_backoff_seconds != defaults::POD_MAX_BACKOFF_SECONDS,
        ),
    ];
    let names: Vec<&str> =
        changed.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("fields that matter only to a scheduler that runs as a daemon: {names}"))
}
