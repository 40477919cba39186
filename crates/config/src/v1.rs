//! The types of `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`, with every field.
//!
//! `WrittenConfiguration` and `WrittenProfile` are decoded from a file; [`SchedulerConfiguration`] and
//! [`SchedulerProfile`] are the same with all defaults filled in. The rest is shared. Field order
//! and field names are upstream's.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::duration::Duration;
use crate::extension_point::ExtensionPoint;

/// `apiVersion` of the configuration.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// `kind` of the configuration.
pub const KIND: &str = "KubeSchedulerConfiguration";

/// The configuration as decoded from a file: absent fields are `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct WrittenConfiguration {
    pub parallelism: Option<i32>,
    pub leader_election: LeaderElection,
    pub client_connection: ClientConnection,
    pub enable_profiling: Option<bool>,
    pub enable_contention_profiling: Option<bool>,
    pub percentage_of_nodes_to_score: Option<i32>,
    pub pod_initial_backoff_seconds: Option<i64>,
    pub pod_max_backoff_seconds: Option<i64>,
    pub profiles: Vec<WrittenProfile>,
    pub extenders: Vec<Extender>,
    pub delay_cache_until_active: bool,
}

/// A profile as decoded from a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct WrittenProfile {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i32>,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
}

/// The whole configuration, with defaults.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfiguration {
    /// Number of goroutines in kube-scheduler; no effect in Loadmaster.
    pub parallelism: i32,
    /// Leader election settings.
    pub leader_election: LeaderElection,
    /// Settings of the connection to the API server.
    pub client_connection: ClientConnection,
    /// Serve profiling data at `/debug/pprof/`.
    pub enable_profiling: bool,
    /// Serve lock contention profiles; has an effect in a Go process only.
    pub enable_contention_profiling: bool,
    /// Percentage of nodes that must be feasible before the search ends; 0 lets the scheduler choose.
    pub percentage_of_nodes_to_score: i32,
    /// Backoff after the first failed attempt, in seconds.
    pub pod_initial_backoff_seconds: i64,
    /// Maximum backoff, in seconds.
    pub pod_max_backoff_seconds: i64,
    /// The profiles, at least one.
    pub profiles: Vec<SchedulerProfile>,
    /// Scheduler extenders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<Extender>,
    /// Start no watches before this scheduler is the leader.
    #[serde(skip_serializing_if = "is_false")]
    pub delay_cache_until_active: bool,
}

/// A profile: the plugins for the pods of one scheduler name, and their arguments.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerProfile {
    /// The `spec.schedulerName` of its pods.
    pub scheduler_name: String,
    /// Overrides the value for all profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// The sets of plugins, merged with the default ones, not expanded.
    pub plugins: Plugins,
    /// Plugin arguments, with defaults for plugins of the registry, else as in the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugin_config: Vec<PluginConfig>,
}

/// A set of plugins per extension point, and one for all extension points (`multiPoint`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Plugins {
    /// PreEnqueue.
    pub pre_enqueue: PluginSet,
    /// QueueSort.
    pub queue_sort: PluginSet,
    /// PreFilter.
    pub pre_filter: PluginSet,
    /// Filter.
    pub filter: PluginSet,
    /// PostFilter.
    pub post_filter: PluginSet,
    /// PreScore.
    pub pre_score: PluginSet,
    /// Score.
    pub score: PluginSet,
    /// Reserve.
    pub reserve: PluginSet,
    /// Permit.
    pub permit: PluginSet,
    /// PreBind.
    pub pre_bind: PluginSet,
    /// Bind.
    pub bind: PluginSet,
    /// PostBind.
    pub post_bind: PluginSet,
    /// Every extension point that a plugin implements.
    pub multi_point: PluginSet,
    /// PlacementGenerate.
    pub placement_generate: PluginSet,
    /// PlacementScore.
    pub placement_score: PluginSet,
}

impl Plugins {
    /// The plugin set of one extension point.
    pub fn at_extension_point(&self, point: ExtensionPoint) -> &PluginSet {
        match point {
            ExtensionPoint::PreEnqueue => &self.pre_enqueue,
            ExtensionPoint::QueueSort => &self.queue_sort,
            ExtensionPoint::PreFilter => &self.pre_filter,
            ExtensionPoint::Filter => &self.filter,
            ExtensionPoint::PostFilter => &self.post_filter,
            ExtensionPoint::PreScore => &self.pre_score,
            ExtensionPoint::Score => &self.score,
            ExtensionPoint::Reserve => &self.reserve,
            ExtensionPoint::Permit => &self.permit,
            ExtensionPoint::PreBind => &self.pre_bind,
            ExtensionPoint::Bind => &self.bind,
            ExtensionPoint::PostBind => &self.post_bind,
            ExtensionPoint::PlacementGenerate => &self.placement_generate,
            ExtensionPoint::PlacementScore => &self.placement_score,
        }
    }

    /// Every plugin set, `multiPoint` last, with its name in the file.
    pub fn plugin_sets(&self) -> impl Iterator<Item = (&'static str, &PluginSet)> {
        ExtensionPoint::ALL
            .into_iter()
            .map(|point| (point.field_name(), self.at_extension_point(point)))
            .chain([("multiPoint", &self.multi_point)])
    }

    /// As [`Plugins::plugin_sets`], mutable.
    pub(crate) fn sets_mut(&mut self) -> [&mut PluginSet; ExtensionPoint::ALL.len() + 1] {
        [
            &mut self.pre_enqueue,
            &mut self.queue_sort,
            &mut self.pre_filter,
            &mut self.filter,
            &mut self.post_filter,
            &mut self.pre_score,
            &mut self.score,
            &mut self.reserve,
            &mut self.permit,
            &mut self.pre_bind,
            &mut self.bind,
            &mut self.post_bind,
            &mut self.multi_point,
            &mut self.placement_generate,
            &mut self.placement_score,
        ]
    }

    /// The names of all enabled plugins, sorted, without duplicates.
    pub fn enabled_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .plugin_sets()
            .flat_map(|(_, set)| &set.enabled)
            .map(|plugin| plugin.name.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// The plugins that are enabled and disabled at one extension point.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PluginSet {
    /// Enabled plugins, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enabled: Vec<Plugin>,
    /// Disabled default plugins; `*` means all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<Plugin>,
}

impl PluginSet {
    /// Whether this plugin is disabled, by name or by `*`.
    pub fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*")
    }
}

/// A plugin in a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// Weight of its score; 0 means 1.
    pub weight: i32,
}

/// The arguments of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PluginConfig {
    /// The plugin's name.
    pub name: String,
    /// Its arguments, with `apiVersion` and `kind` for plugins that have typed arguments.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub args: Value,
}

/// Leader election (component-base's `LeaderElectionConfiguration`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LeaderElection {
    /// Enable leader election: only the leader schedules.
    pub leader_elect: bool,
    /// How long other candidates wait before they acquire a lease that is not renewed.
    pub lease_duration: Duration,
    /// How long the leader retries renewing before it stops leading.
    pub renew_deadline: Duration,
    /// Time between attempts.
    pub retry_period: Duration,
    /// Kind of the lock object; only `leases` is supported.
    pub resource_lock: String,
    /// The lock's name.
    pub resource_name: String,
    /// The lock's namespace.
    pub resource_namespace: String,
}

/// The connection to the API server (component-base's `ClientConnectionConfiguration`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClientConnection {
    /// Path of a kubeconfig file.
    pub kubeconfig: String,
    /// The Accept header of requests.
    pub accept_content_types: String,
    /// The content type of requests.
    pub content_type: String,
    /// Requests per second; negative for no limit.
    #[serde(deserialize_with = "finite", serialize_with = "shortest")]
    pub qps: f32,
    /// Maximum burst of requests.
    pub burst: i32,
}

/// A scheduler extender. Its `Debug` form has no keys and passwords.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Extender {
    /// URL prefix of all requests.
    pub url_prefix: String,
    /// URL suffix of filter calls; empty when the extender does not support them. Likewise the other verbs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_verb: String,
    /// URL suffix of preempt calls.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preempt_verb: String,
    /// URL suffix of prioritize calls.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prioritize_verb: String,
    /// Weight of its scores.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: i64,
    /// URL suffix of bind calls.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_verb: String,
    /// Use HTTPS.
    #[serde(rename = "enableHTTPS", skip_serializing_if = "is_false")]
    pub enable_https: bool,
    /// TLS settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<ExtenderTlsConfig>,
    /// Timeout of a call.
    pub http_timeout: Duration,
    /// The extender caches nodes: calls contain node names only.
    #[serde(skip_serializing_if = "is_false")]
    pub node_cache_capable: bool,
    /// It is called for pods that request one of these resources; for all pods when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_resources: Vec<ExtenderManagedResource>,
    /// A failed call does not fail the scheduling attempt.
    #[serde(skip_serializing_if = "is_false")]
    pub ignorable: bool,
}

/// An extended resource that is managed by an extender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExtenderManagedResource {
    /// The resource's name.
    pub name: String,
    /// NodeResourcesFit ignores it.
    #[serde(skip_serializing_if = "is_false")]
    pub ignored_by_scheduler: bool,
}

/// TLS settings for an extender. Their `Debug` form has no keys.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExtenderTlsConfig {
    /// Skip verification of the server certificate (insecure).
    #[serde(skip_serializing_if = "is_false")]
    pub insecure: bool,
    /// Name that the server certificate is verified for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
    /// Path of the client certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_file: String,
    /// Path of the client key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
    /// Path of the trusted CA certificates.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// PEM of the client certificate, in base64 as in the file. Likewise the next two.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub cert_data: String,
    /// PEM of the client key.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub key_data: String,
    /// PEM of the trusted CA certificates.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub ca_data: String,
}

impl Default for LeaderElection {
    /// Only `leaderElect` has its default here: empty names and zero durations count as absent.
    fn default() -> Self {
        LeaderElection {
            leader_elect: true,
            lease_duration: Duration::default(),
            renew_deadline: Duration::default(),
            retry_period: Duration::default(),
            resource_lock: String::new(),
            resource_name: String::new(),
            resource_namespace: String::new(),
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn finite<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(deserializer)?;
    if value.is_finite() {
        Ok(value)
    } else {
        Err(serde::de::Error::custom("number too large for 32 bits"))
    }
}

/// Encodes `50` and `0.1` as Go does, not `50.0` and `0.10000000149011612`.
fn shortest<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT_MAX: f32 = 16_777_216.0;
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        return serializer.serialize_i64(*value as i64);
    }
    serializer.serialize_f64(value.to_string().parse().unwrap_or(f64::from(*value)))
}

/// Accepts what Go's standard base64 decoding accepts: padded groups of four, line ends ignored.
fn base64<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let padded: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let data = padded.trim_end_matches('=');
    let n_padding = padded.len() - data.len();
    let fits = padded.len().is_multiple_of(4)
        && n_padding <= 2
        && data.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    if fits { Ok(text) } else { Err(serde::de::Error::custom("illegal base64 data")) }
}
