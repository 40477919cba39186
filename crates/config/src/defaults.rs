//! Fills in the defaults of a configuration: values of absent fields, and the default plugins, with which its plugin sets are
//! merged.

use crate::default_values::{
    BURST, CONTENT_TYPE, EXTENDER_HTTP_TIMEOUT, GATED_PLUGINS, LEASE_DURATION, PARALLELISM,
    PLUGINS, POD_INITIAL_BACKOFF_SECONDS, POD_MAX_BACKOFF_SECONDS, QPS, RENEW_DEADLINE,
    RESOURCE_LOCK, RESOURCE_NAME, RESOURCE_NAMESPACE, RETRY_PERIOD, SCHEDULER_NAME,
};
use crate::duration::Duration;
use crate::gates::AllFeatureGates;
use crate::merge::{MergeRule, merge_plugin_set};
use crate::v1::{
    ClientConnection, Extender, LeaderElection, Plugin, Plugins, SchedulerConfiguration,
    SchedulerProfile, WrittenConfiguration, WrittenProfile,
};
use crate::version::ConfigVersion;

/// The default plugins of a profile, all of them enabled in `multiPoint`.
pub fn default_plugins(gates: &AllFeatureGates) -> Vec<Plugin> {
    let gated = GATED_PLUGINS
        .iter()
        .filter(|(gate, ..)| gates.enabled(gate))
        .map(|(_, name, weight)| (name, weight));
    let plugins = PLUGINS.iter().map(|(name, weight)| (name, weight)).chain(gated);
    plugins.map(|(name, weight)| Plugin { name: (*name).to_owned(), weight: *weight }).collect()
}

/// The default plugins of v1beta3: those of v1, and the limits of in-tree volumes.
fn v1beta3_default_plugins(gates: &AllFeatureGates) -> Vec<Plugin> {
    let plugin = |name: &str| Plugin { name: name.to_owned(), weight: 0 };
    default_plugins(gates)
        .into_iter()
        .flat_map(|default| match &*default.name {
            "NodeVolumeLimits" => {
                vec![plugin("EBSLimits"), plugin("GCEPDLimits"), default, plugin("AzureDiskLimits")]
            }
            _ => vec![default],
        })
        .collect()
}

/// Fills in all defaults, except those of plugin arguments.
pub(crate) fn complete(
    written: WrittenConfiguration,
    version: ConfigVersion,
    gates: &AllFeatureGates,
) -> SchedulerConfiguration {
    let enable_profiling = written.enable_profiling.unwrap_or(true);
    let default_plugins = if version == ConfigVersion::V1Beta3 {
        v1beta3_default_plugins(gates)
    } else {
        default_plugins(gates)
    };
    let mut profiles = written.profiles;
    if profiles.is_empty() {
        profiles.push(WrittenProfile::default());
    }
    // Only a single profile gets the default name; with several, validation requires a name in each.
    let scheduler_name = if profiles.len() == 1 { SCHEDULER_NAME } else { "" };
    SchedulerConfiguration {
        parallelism: written.parallelism.unwrap_or(PARALLELISM),
        leader_election: leader_election(written.leader_election),
        client_connection: client_connection(written.client_connection),
        enable_profiling,
        enable_contention_profiling: written
            .enable_contention_profiling
            .unwrap_or(enable_profiling),
        percentage_of_nodes_to_score: written.percentage_of_nodes_to_score.unwrap_or(0),
        pod_initial_backoff_seconds: written
            .pod_initial_backoff_seconds
            .unwrap_or(POD_INITIAL_BACKOFF_SECONDS),
        pod_max_backoff_seconds: written.pod_max_backoff_seconds.unwrap_or(POD_MAX_BACKOFF_SECONDS),
        profiles: profiles
            .into_iter()
            .map(|profile| complete_profile(profile, scheduler_name, &default_plugins))
            .collect(),
        extenders: written.extenders.into_iter().map(extender).collect(),
        delay_cache_until_active: written.delay_cache_until_active,
    }
}

fn complete_profile(
    written: WrittenProfile,
    scheduler_name: &str,
    default_plugins: &[Plugin],
) -> SchedulerProfile {
    SchedulerProfile {
        scheduler_name: written.scheduler_name.unwrap_or_else(|| scheduler_name.to_owned()),
        percentage_of_nodes_to_score: written.percentage_of_nodes_to_score,
        plugins: merge(default_plugins.to_vec(), written.plugins),
        plugin_config: written.plugin_config,
    }
}

/// Leader election with defaults for what is empty or zero.
pub(crate) fn leader_election(mut it: LeaderElection) -> LeaderElection {
    let zero = Duration::default();
    for (duration, default) in [
        (&mut it.lease_duration, LEASE_DURATION),
        (&mut it.renew_deadline, RENEW_DEADLINE),
        (&mut it.retry_period, RETRY_PERIOD),
    ] {
        if *duration == zero {
            *duration = default;
        }
    }
    for (name, default) in [
        (&mut it.resource_lock, RESOURCE_LOCK),
        (&mut it.resource_name, RESOURCE_NAME),
        (&mut it.resource_namespace, RESOURCE_NAMESPACE),
    ] {
        if name.is_empty() {
            default.clone_into(name);
        }
    }
    it
}

/// An extender with the default timeout if its own is zero.
fn extender(mut it: Extender) -> Extender {
    if it.http_timeout == Duration::default() {
        it.http_timeout = EXTENDER_HTTP_TIMEOUT;
    }
    it
}

/// Client connection settings with defaults for what is empty or zero.
pub(crate) fn client_connection(mut it: ClientConnection) -> ClientConnection {
    if it.content_type.is_empty() {
        CONTENT_TYPE.clone_into(&mut it.content_type);
    }
    if it.qps == 0.0 {
        it.qps = QPS;
    }
    if it.burst == 0 {
        it.burst = BURST;
    }
    it
}

/// Merges the plugin sets of a profile with the default ones. Only `multiPoint` has defaults.
fn merge(defaults: Vec<Plugin>, written: Plugins) -> Plugins {
    let mut merged = written;
    let multi_point = merge_plugin_set(defaults, &merged.multi_point, MergeRule::ReplaceInPlace);
    merged.multi_point.enabled = multi_point.into_iter().map(|(plugin, _)| plugin).collect();
    // The weight of a disabled plugin has no effect and is removed, at every extension point.
    for set in merged.sets_mut() {
        for plugin in &mut set.disabled {
            plugin.weight = 0;
        }
    }
    merged
}
