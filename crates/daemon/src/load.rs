//! From the command line to a configuration that can be run.

use loadmaster_api::document::{Document, DocumentError, Located};
use loadmaster_config::v1::PluginConfig;
use loadmaster_config::{
    Checked, Duration, GateError, Gates, Profile, SchedulerConfiguration, check_adjusted,
    check_default_adjusted,
};
use loadmaster_framework::{FieldError, Registry};
use serde_json::json;

use crate::flags::{Options, Versions, VersionsError};

/// A file larger than this is no configuration.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Everything that flags and file say together.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The whole configuration, all defaults filled in: `/configz`, `--write-config-to`.
    pub config: SchedulerConfiguration,
    /// Its profiles, ready to be built.
    pub profiles: Vec<Profile>,
    /// What is on.
    pub gates: Gates,
    /// What this scheduler stands in for.
    pub versions: Versions,
    /// Overrides the address of the kubeconfig; empty: does not.
    pub master: String,
    /// Longest stay of a pod among the unschedulable ones.
    pub pod_max_in_unschedulable_pods: Duration,
    /// What was accepted and has no effect, or is older than it should be; one sentence each.
    pub notes: Vec<String>,
}

/// Why nothing can be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Flags that contradict each other or say too much.
    #[error("{}", .0.join("; "))]
    Flags(Vec<String>),
    /// `--feature-gates`.
    #[error("{}", join(.0))]
    Gates(Vec<GateError>),
    /// `--emulated-version`, `--min-compatibility-version`.
    #[error(transparent)]
    Versions(#[from] VersionsError),
    /// `--config` names what cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// `--config` names what cannot be run: one line an error, with its place.
    #[error("{}", join(.0))]
    File(Vec<Located>),
    /// The flags alone make a configuration that cannot be run.
    #[error("{}", join(.0))]
    Fields(Vec<FieldError>),
}

fn join<E: ToString>(errors: &[E]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Options {
    /// Reads the file of `--config` and merges the flags over it. Without a file, the deprecated flags
    /// and those of leader election make the configuration; with one, only those of leader election
    /// that were given count.
    pub fn load(&self, registry: &Registry) -> Result<Loaded, LoadError> {
        let errors = self.validate();
        if !errors.is_empty() {
            return Err(LoadError::Flags(errors));
        }
        let features = &self.features;
        let versions =
            Versions::parse(&features.emulated_version, &features.min_compatibility_version)?;
        let gates = features.feature_gates.iter().map(String::as_str);
        let gates = Gates::parse(gates).map_err(LoadError::Gates)?;
        let Checked { config, profiles, notes } = if self.misc.config.is_empty() {
            check_default_adjusted(registry, &gates, |config| {
                self.apply_deprecated(config);
                self.apply_leader_election(config);
            })
            .map_err(LoadError::Fields)?
        } else {
            let document = Document::read(&self.misc.config, Some(CONFIG_BYTES_MAX))?;
            check_adjusted(&document, registry, &gates, |config| self.apply_leader_election(config))
                .map_err(LoadError::File)?
        };
        Ok(Loaded {
            config,
            profiles,
            versions,
            master: self.misc.master.clone(),
            pod_max_in_unschedulable_pods: self.deprecated.pod_max_in_unschedulable_pods_duration,
            notes: [self.warnings.clone(), self.ignored(), notes, emulation_note(versions)]
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

    fn apply_deprecated(&self, config: &mut SchedulerConfiguration) {
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
            if let Some(name) = &self.older.scheduler_name {
                profile.scheduler_name.clone_from(name);
            }
            if let Some(weight) = self.older.hard_pod_affinity_weight {
                let args = json!({"hardPodAffinityWeight": weight});
                let name = "InterPodAffinity".to_owned();
                profile.plugin_config.push(PluginConfig { name, args });
            }
        }
    }

    /// What was given beside `--config` and is in the file's hands.
    fn ignored(&self) -> Vec<String> {
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
            ("scheduler-name", self.older.scheduler_name.is_some()),
            ("hard-pod-affinity-symmetric-weight", self.older.hard_pod_affinity_weight.is_some()),
        ];
        let older = older.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag);
        let note = |flag| format!("--{flag} is ignored beside --config, which decides this");
        given.chain(older).map(note).collect()
    }
}

fn emulation_note(versions: Versions) -> Vec<String> {
    let note = (versions.emulated != versions.binary).then(|| {
        format!("emulated version {}: feature gates keep their defaults of 1.36", versions.emulated)
    });
    note.into_iter().collect()
}

#[cfg(test)]
mod tests;
