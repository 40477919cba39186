//! Loads the configuration: merges flags and the configuration file, and validates the result.

mod policy;

use loadmaster_api::document::{Document, DocumentError};
use loadmaster_config::v1::{PluginConfig, SchedulerProfile};
use loadmaster_config::{
    AllFeatureGates, CheckedConfiguration, ConfigurationDocuments, ConfigurationError, Duration,
    FeatureGateError, ResolvedProfile, SchedulerConfiguration, VOLUME_LIMIT_PLUGINS,
    check_documents_with_overrides,
};
use loadmaster_framework::Registry;
use serde_json::{Value, json};

use crate::flags::{Options, Versions, VersionsError};

pub use policy::{ReadConfigMapError, ReadPolicyError};

/// The maximum size of a configuration file.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// The configuration that results from flags and file.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The complete configuration with all defaults: `/configz`, `--write-config-to`.
    pub config: SchedulerConfiguration,
    /// Its profiles, validated.
    pub profiles: Vec<ResolvedProfile>,
    /// The feature gates.
    pub gates: AllFeatureGates,
    /// Binary, emulation and minimum compatibility version.
    pub versions: Versions,
    /// `--master`: overrides the server address of the kubeconfig unless empty.
    pub master: String,
    /// The maximum time that a pod stays in unschedulablePods.
    pub pod_max_in_unschedulable_pods: Duration,
    /// Warnings: accepted flags and fields that have no effect or are deprecated; one sentence each.
    pub notes: Vec<String>,
}

/// Why the configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadConfigError {
    /// Invalid flags or invalid combinations of flags.
    #[error("{}", .0.join("; "))]
    Flags(Vec<String>),
    /// `--feature-gates`.
    #[error("{}", join(.0))]
    Gates(Vec<FeatureGateError>),
    /// `--emulated-version`, `--min-compatibility-version`.
    #[error(transparent)]
    Versions(#[from] VersionsError),
    /// The file of `--config` cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The Policy cannot be read.
    #[error(transparent)]
    Policy(#[from] ReadPolicyError),
    /// The configuration is invalid: one line per error, with its position if it is in a file.
    #[error("{}", join(.0))]
    Configuration(Vec<ConfigurationError>),
}

fn join<E: ToString>(errors: &[E]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Options {
    /// Reads the file of `--config` and merges the flags into it. Without a file, the configuration is made
    /// of the deprecated flags and the leader election flags; with a file, only leader election flags
    /// that were set override it.
    pub fn load_config(&self, registry: &Registry) -> Result<LoadedConfig, LoadConfigError> {
        self.load_config_or(registry, None)
    }

    /// The same, with a configuration that counts as the file of `--config` if the flag is not set.
    ///
    /// # Errors
    ///
    /// As [`Options::load_config`].
    pub fn load_config_or(
        &self,
        registry: &Registry,
        default: Option<&Document>,
    ) -> Result<LoadedConfig, LoadConfigError> {
        let errors = self.validate();
        if !errors.is_empty() {
            return Err(LoadConfigError::Flags(errors));
        }
        let features = &self.features;
        let versions =
            Versions::parse(&features.emulated_version, &features.min_compatibility_version)?;
        let gates = features.feature_gates.iter().map(String::as_str);
        let gates = AllFeatureGates::parse(gates).map_err(LoadConfigError::Gates)?;
        let document = match &*self.misc.config {
            "" => default.cloned(),
            file => Some(Document::read(file, Some(CONFIG_BYTES_MAX))?),
        };
        let policy = self.read_policy(document.as_ref())?;
        let documents =
            ConfigurationDocuments { configuration: document.as_ref(), policy: policy.as_ref() };
        let checked = check_documents_with_overrides(documents, registry, &gates, |config| {
            if document.is_none() {
                self.apply_deprecated(config, policy.is_some());
            }
            self.apply_leader_election(config);
            apply_max_volumes(config, max_volumes_variable().as_deref());
        });
        let CheckedConfiguration { config, profiles, notes } =
            checked.map_err(LoadConfigError::Configuration)?;
        Ok(LoadedConfig {
            config,
            profiles,
            versions,
            master: self.misc.master.clone(),
            pod_max_in_unschedulable_pods: self.deprecated.pod_max_in_unschedulable_pods_duration,
            notes: [self.warnings.clone(), self.ignored_flags(), notes, emulation_note(versions)]
                .concat(),
            gates,
        })
    }

    fn apply_leader_election(&self, config: &mut SchedulerConfiguration) {
        let flags = &self.leader_election;
        let it = &mut config.leader_election;
        if self.is_given("leader-elect") {
            it.leader_elect = flags.leader_elect;
        }
        if self.is_given("leader-elect-lease-duration") {
            it.lease_duration = flags.leader_elect_lease_duration;
        }
        if self.is_given("leader-elect-renew-deadline") {
            it.renew_deadline = flags.leader_elect_renew_deadline;
        }
        if self.is_given("leader-elect-retry-period") {
            it.retry_period = flags.leader_elect_retry_period;
        }
        if self.is_given("leader-elect-resource-lock") {
            it.resource_lock.clone_from(&flags.leader_elect_resource_lock);
        }
        if self.is_given("leader-elect-resource-name") {
            it.resource_name.clone_from(&flags.leader_elect_resource_name);
        }
        if self.is_given("leader-elect-resource-namespace") {
            it.resource_namespace.clone_from(&flags.leader_elect_resource_namespace);
        }
    }

    fn apply_deprecated(&self, config: &mut SchedulerConfiguration, has_policy: bool) {
        let flags = &self.deprecated;
        let client = &mut config.client_connection;
        if self.is_given("profiling") {
            config.enable_profiling = flags.profiling;
        }
        if self.is_given("contention-profiling") {
            config.enable_contention_profiling = flags.contention_profiling;
        }
        if self.is_given("kubeconfig") {
            client.kubeconfig.clone_from(&flags.kubeconfig);
        }
        if self.is_given("kube-api-content-type") {
            client.content_type.clone_from(&flags.kube_api_content_type);
        }
        if self.is_given("kube-api-qps") {
            client.qps = flags.kube_api_qps;
        }
        if self.is_given("kube-api-burst") {
            client.burst = flags.kube_api_burst;
        }
        for profile in &mut config.profiles {
            if let Some(name) = &self.legacy.scheduler_name {
                profile.scheduler_name.clone_from(name);
            }
            if let Some(weight) = self.legacy.hard_pod_affinity_weight {
                let args = json!({"hardPodAffinityWeight": weight});
                add_arguments(profile, "InterPodAffinity", args);
            }
            if self.legacy.prefers_used_nodes && !has_policy {
                let resources =
                    json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
                let strategy = json!({"type": "MostAllocated", "resources": resources});
                add_arguments(profile, "NodeResourcesFit", json!({"scoringStrategy": strategy}));
            }
        }
    }

    /// Warnings about flags that are ignored because `--config` is set.
    fn ignored_flags(&self) -> Vec<String> {
        if self.misc.config.is_empty() {
            return Vec::new();
        }
        let deprecated = [
            "profiling",
            "contention-profiling",
            "kubeconfig",
            "kube-api-content-type",
            "kube-api-qps",
            "kube-api-burst",
        ];
        let given = deprecated.into_iter().filter(|flag| self.is_given(flag));
        let older = [
            ("scheduler-name", self.legacy.scheduler_name.is_some()),
            ("hard-pod-affinity-symmetric-weight", self.legacy.hard_pod_affinity_weight.is_some()),
            ("algorithm-provider", self.legacy.prefers_used_nodes),
        ];
        let older = older.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag);
        let note = |flag| format!("--{flag} is ignored because --config is set");
        given.chain(older).map(note).collect()
    }
}

/// The environment variable from which old releases read the limit of in-tree volumes for nodes that do not have one themselves.
const MAX_VOLUMES_VARIABLE: &str = "KUBE_MAX_PD_VOLS";

/// Its value.
fn max_volumes_variable() -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "an input of old releases beside flags and files"
    )]
    std::env::var(MAX_VOLUMES_VARIABLE).ok()
}

/// Passes the value of [`MAX_VOLUMES_VARIABLE`] to the limits of in-tree volumes that are enabled. As upstream, one that is no number above 0
/// has no effect.
fn apply_max_volumes(config: &mut SchedulerConfiguration, value: Option<&str>) {
    let max = value.and_then(|value| value.parse::<i64>().ok()).filter(|max| *max > 0);
    let Some(max) = max else { return };
    for profile in &mut config.profiles {
        for plugin in VOLUME_LIMIT_PLUGINS {
            if profile.plugins.enabled_names().contains(plugin) {
                add_arguments(profile, plugin, json!({"maxVolumes": max}));
            }
        }
    }
}

/// Adds arguments of a plugin, unless it has some.
fn add_arguments(profile: &mut SchedulerProfile, plugin: &str, args: Value) {
    if !profile.plugin_config.iter().any(|config| config.name == plugin) {
        profile.plugin_config.push(PluginConfig { name: plugin.to_owned(), args });
    }
}

fn emulation_note(versions: Versions) -> Vec<String> {
    let note = (versions.emulated != versions.binary).then(|| {
        format!("emulated version {}: feature gates keep the defaults of 1.36", versions.emulated)
    });
    note.into_iter().collect()
}

#[cfg(test)]
mod tests;
