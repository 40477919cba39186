//! `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`: every field, as it stands in a
//! file.
//!
//! `Written` and `WrittenProfile` are what a file says; [`SchedulerConfiguration`] and
//! [`SchedulerProfile`] are the same with all defaults filled in. The rest is shared. Field order
//! and field names are upstream's.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::duration::Duration;
use crate::point::Point;

/// `apiVersion` of the configuration.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// `kind` of the configuration.
pub const KIND: &str = "KubeSchedulerConfiguration";

/// The configuration as it was written: what is absent is `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub(crate) struct Written {
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

/// A profile as it was written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub(crate) struct WrittenProfile {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i32>,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
}

/// The whole configuration, defaults filled in, valid.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerConfiguration {
    /// How many nodes a parallel step may look at at once.
    pub parallelism: i32,
    /// Who of several schedulers is active.
    pub leader_election: LeaderElection,
    /// How the API server is talked to.
    pub client_connection: ClientConnection,
    /// Serve profiles of the process.
    pub enable_profiling: bool,
    /// Serve lock contention profiles; means something to a Go process only.
    pub enable_contention_profiling: bool,
    /// How many of the nodes must be feasible before the search ends; 0 leaves it to the scheduler.
    pub percentage_of_nodes_to_score: i32,
    /// Backoff after the first failed attempt.
    pub pod_initial_backoff_seconds: i64,
    /// Longest backoff.
    pub pod_max_backoff_seconds: i64,
    /// The profiles, at least one.
    pub profiles: Vec<SchedulerProfile>,
    /// Webhooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extenders: Vec<Extender>,
    /// Watch nothing before this scheduler leads.
    #[serde(skip_serializing_if = "is_false")]
    pub delay_cache_until_active: bool,
}

/// A profile: which plugins run for pods of one scheduler name, and how.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerProfile {
    /// Pods say it in `spec.schedulerName`.
    pub scheduler_name: String,
    /// Overrides the value for all profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    /// The sets of plugins, merged with the default ones, not expanded.
    pub plugins: Plugins,
    /// Arguments, complete for plugins this scheduler knows, else as they were written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugin_config: Vec<PluginConfig>,
}

/// One set of plugins an extension point, and one for all points together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
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
    /// Every point at which a plugin does something.
    pub multi_point: PluginSet,
    /// PlacementGenerate.
    pub placement_generate: PluginSet,
    /// PlacementScore.
    pub placement_score: PluginSet,
}

impl Plugins {
    /// The set of one extension point.
    pub fn at(&self, point: Point) -> &PluginSet {
        match point {
            Point::PreEnqueue => &self.pre_enqueue,
            Point::QueueSort => &self.queue_sort,
            Point::PreFilter => &self.pre_filter,
            Point::Filter => &self.filter,
            Point::PostFilter => &self.post_filter,
            Point::PreScore => &self.pre_score,
            Point::Score => &self.score,
            Point::Reserve => &self.reserve,
            Point::Permit => &self.permit,
            Point::PreBind => &self.pre_bind,
            Point::Bind => &self.bind,
            Point::PostBind => &self.post_bind,
            Point::PlacementGenerate => &self.placement_generate,
            Point::PlacementScore => &self.placement_score,
        }
    }

    /// Every set, `multiPoint` last, with its name in the file.
    pub fn sets(&self) -> impl Iterator<Item = (&'static str, &PluginSet)> {
        Point::ALL
            .into_iter()
            .map(|point| (point.field(), self.at(point)))
            .chain([("multiPoint", &self.multi_point)])
    }

    /// As [`Plugins::sets`], to be changed.
    pub(crate) fn sets_mut(&mut self) -> [&mut PluginSet; Point::ALL.len() + 1] {
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

    /// The names enabled anywhere, sorted, each once.
    pub fn enabled_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .sets()
            .flat_map(|(_, set)| &set.enabled)
            .map(|plugin| plugin.name.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// What is switched on and off at one point.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct PluginSet {
    /// In this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enabled: Vec<Plugin>,
    /// Default plugins that do not run here; `*` is all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<Plugin>,
}

impl PluginSet {
    /// Whether this plugin is switched off by name, or all are.
    pub fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*")
    }
}

/// A plugin in a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct Plugin {
    /// Its name.
    pub name: String,
    /// Factor of its score; 0 counts as 1.
    pub weight: i32,
}

/// The arguments of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct PluginConfig {
    /// The plugin's name.
    pub name: String,
    /// Its arguments, with `apiVersion` and `kind` for plugins that have a kind of arguments.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub args: Value,
}

/// Leader election (component-base's `LeaderElectionConfiguration`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct LeaderElection {
    /// Only the leader of several schedulers schedules.
    pub leader_elect: bool,
    /// How long others wait before they take over a lease that is not renewed.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Pause between attempts.
    pub retry_period: Duration,
    /// Kind of the lock; only `leases` is left.
    pub resource_lock: String,
    /// The lock's name.
    pub resource_name: String,
    /// The lock's namespace.
    pub resource_namespace: String,
}

/// How the API server is talked to (component-base's `ClientConnectionConfiguration`).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct ClientConnection {
    /// File that says how to reach the API server.
    pub kubeconfig: String,
    /// Overrides the Accept header.
    pub accept_content_types: String,
    /// How objects are sent.
    pub content_type: String,
    /// Requests a second; negative for no limit.
    #[serde(deserialize_with = "finite", serialize_with = "shortest")]
    pub qps: f32,
    /// Requests beyond that, when some were saved.
    pub burst: i32,
}

/// A webhook that takes part in scheduling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct Extender {
    /// Where it is reached.
    pub url_prefix: String,
    /// Appended to the prefix to filter; empty when it does not; so are the other verbs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_verb: String,
    /// For preemption.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preempt_verb: String,
    /// For scores.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prioritize_verb: String,
    /// Factor of its scores.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: i64,
    /// For binding.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_verb: String,
    /// Speak HTTPS.
    #[serde(rename = "enableHTTPS", skip_serializing_if = "is_false")]
    pub enable_https: bool,
    /// How.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<ExtenderTlsConfig>,
    /// How long a call may take; zero leaves it to the scheduler.
    pub http_timeout: Duration,
    /// It knows the nodes: names are enough.
    #[serde(skip_serializing_if = "is_false")]
    pub node_cache_capable: bool,
    /// It is asked about pods that request one of these; about all when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_resources: Vec<ExtenderManagedResource>,
    /// Its failures fail no pod.
    #[serde(skip_serializing_if = "is_false")]
    pub ignorable: bool,
}

/// An extended resource that an extender looks after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct ExtenderManagedResource {
    /// The resource's name.
    pub name: String,
    /// NodeResourcesFit does not look at it.
    #[serde(skip_serializing_if = "is_false")]
    pub ignored_by_scheduler: bool,
}

/// TLS towards an extender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct ExtenderTlsConfig {
    /// Do not verify its certificate.
    #[serde(skip_serializing_if = "is_false")]
    pub insecure: bool,
    /// Name that the certificate is checked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
    /// Own certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_file: String,
    /// Own key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
    /// Authorities to trust.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// PEM of the own certificate, in base64 as in the file; so are the next two.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub cert_data: String,
    /// PEM of the own key.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub key_data: String,
    /// PEM of the authorities.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "base64")]
    pub ca_data: String,
}

impl Default for LeaderElection {
    /// Nothing but `leaderElect` has its default here: empty names and zero durations count as
    /// absent.
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

/// Writes `50` and `0.1`, as Go does, not `50.0` and `0.10000000149011612`.
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
