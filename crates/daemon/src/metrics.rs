//! Metrics with the names, labels, buckets, help texts and stability levels of kube-scheduler 1.36, so
//! that dashboards and alerts keep working.
//!
//! ```
//! use loadmaster_daemon::metrics::{AttemptResult, Metrics, MetricsSettings};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let metrics = Metrics::new(&MetricsSettings::default())?;
//! metrics.scheduler.scheduling_attempt(AttemptResult::Scheduled, "default-scheduler", 0.002);
//! assert!(metrics.text().contains(
//!     r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1"#
//! ));
//! # Ok(())
//! # }
//! ```
//!
//! [`Metrics`] is created once and shared; updating takes `&self`. `scheduler` holds what the engine and
//! its loop record, `loadmaster` our own metrics, `component_base` those of every Kubernetes component; `family` applies
//! the metrics flags, `labels` has label values, `text_format` prints metrics, `process` has the metrics of the operating system.

mod component_base;
mod family;
mod labels;
mod loadmaster;
mod plugins;
mod process;
mod resources;
mod scheduler;
mod text_format;

use std::collections::BTreeMap;

use loadmaster_api::document::Document;
use loadmaster_config::{AllFeatureGates, FeatureStage};

pub use component_base::{
    AuthMetrics, AuthenticationResult, AuthorizationResult, LeaderElectionMetrics,
    RestClientMetrics, WorkqueueMetrics,
};
pub use family::{Counters, Gauges, Histograms, UnlabeledCounter};
pub use labels::{
    ApiCallResult, AttemptResult, BindResult, CacheKind, EvaluatedExtensionPoint, EventResult,
    QueueLabel,
};
pub use loadmaster::LoadmasterMetrics;
pub use resources::{PodResources, resource_metrics_text};
pub use scheduler::SchedulerMetrics;
pub(crate) use text_format::CONTENT_TYPE;

use crate::flags::{KUBERNETES_VERSION, MetricsFlags, Versions, is_metric_label, platform};
use family::{Families, def};

/// Settings of metrics from flags and configuration.
#[derive(Clone, Debug, Default)]
pub struct MetricsSettings {
    /// The full names of disabled metrics.
    pub disabled: Vec<String>,
    /// `metric,label` -> the allowed values of the label, separated by commas.
    pub allowed_labels: BTreeMap<String, String>,
    /// Feature gates: they enable some metrics, and each is itself shown in a metric.
    pub gates: AllFeatureGates,
    /// Shown in `version_info`.
    pub versions: Versions,
    /// Shown in `kubernetes_build_info`; the default version if empty.
    pub reported_version: String,
}

/// An invalid file of `--allow-metric-labels-manifest`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It cannot be read.
    #[error("reading the allow list of metric labels")]
    Read(#[from] loadmaster_api::document::DocumentError),
    /// Its content is invalid.
    #[error("the allow list of metric labels: {0}")]
    Content(String),
}

/// The maximum size of the manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

impl MetricsSettings {
    /// From the flags; reads the manifest if there is one.
    pub fn from_flags(
        flags: &MetricsFlags,
        gates: &AllFeatureGates,
        versions: Versions,
        reported_version: &str,
    ) -> Result<MetricsSettings, ManifestError> {
        let mut allowed_labels = BTreeMap::new();
        if !flags.allow_metric_labels_manifest.is_empty() {
            allowed_labels = manifest(&flags.allow_metric_labels_manifest)?;
        }
        // The flag replaces the list of the manifest, as upstream.
        if !flags.allow_metric_labels.is_empty() {
            allowed_labels = flags.allow_metric_labels.iter().flatten().cloned().collect();
        }
        Ok(MetricsSettings {
            disabled: flags.disabled_metrics.clone(),
            allowed_labels,
            gates: gates.clone(),
            versions,
            reported_version: reported_version.to_owned(),
        })
    }
}

fn manifest(file: &str) -> Result<BTreeMap<String, String>, ManifestError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Manifest {
        allow_list_mapping: BTreeMap<String, String>,
    }
    let document = Document::read(file, Some(MANIFEST_BYTES_MAX))?;
    let manifest: Manifest =
        document.decode().map_err(|error| ManifestError::Content(error.to_string()))?;
    match manifest.allow_list_mapping.keys().find(|key| !is_metric_label(key)) {
        Some(key) => Err(ManifestError::Content(format!("{key:?} is not metric,label"))),
        None => Ok(manifest.allow_list_mapping),
    }
}

/// All metrics of the process.
pub struct Metrics {
    /// Metrics of the scheduler.
    pub scheduler: SchedulerMetrics,
    /// Metrics that kube-scheduler does not have.
    pub loadmaster: LoadmasterMetrics,
    /// Requests to the API server.
    pub requests: RestClientMetrics,
    /// Work queues.
    pub workqueues: WorkqueueMetrics,
    /// Leader election.
    pub election: LeaderElectionMetrics,
    /// Requests to our own endpoints.
    pub reviews: AuthMetrics,
    families: Families,
    checks: Families,
    healthcheck: Gauges<2>,
    healthchecks: Counters<3>,
    plugins: plugins::AuthorMetrics,
}

impl Metrics {
    /// Creates and registers all metrics. Fails only if two metrics have the same name.
    pub fn new(settings: &MetricsSettings) -> Result<Metrics, prometheus::Error> {
        let mut families = Families::new(settings)?;
        let mut checks = families.empty_copy();
        let metrics = Metrics {
            scheduler: SchedulerMetrics::new(&mut families, |gate| settings.gates.enabled(gate))?,
            loadmaster: LoadmasterMetrics::new(&mut families)?,
            requests: RestClientMetrics::new(&mut families)?,
            workqueues: WorkqueueMetrics::new(&mut families)?,
            election: LeaderElectionMetrics::new(&mut families)?,
            reviews: AuthMetrics::new(&mut families)?,
            healthcheck: checks.gauges(def(
                "kubernetes_healthcheck",
                "This metric records the result of a single healthcheck.",
                family::STABLE,
                ["name", "type"],
            ))?,
            healthchecks: checks.counters(def(
                "kubernetes_healthchecks_total",
                "This metric records the results of all healthcheck.",
                family::STABLE,
                ["name", "type", "status"],
            ))?,
            checks,
            families,
            plugins: plugins::AuthorMetrics::default(),
        };
        metrics.describe(settings)
    }

    /// Sets the constant metrics: build, versions, feature gates.
    fn describe(mut self, settings: &MetricsSettings) -> Result<Metrics, prometheus::Error> {
        let build = self.families.gauges(def(
            "kubernetes_build_info",
            "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
            family::BETA,
            ["major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"],
        ))?;
        let version = match settings.reported_version.as_str() {
            "" => KUBERNETES_VERSION,
            reported => reported,
        };
        let Versions { binary, emulated, min_compatibility } = settings.versions;
        let (major, minor) = (binary.major.to_string(), binary.minor.to_string());
        build.set([&major, &minor, version, "", "", "", "", "rustc", &platform()], 1.0);
        let info = self.families.gauges(def(
            "version_info",
            "Provides the compatibility version info of the component. The component label is the name of the component, usually kube, but is relevant for aggregated-apiservers.",
            family::ALPHA,
            ["component", "binary", "emulation", "min_compat"],
        ))?;
        let release = version.trim_start_matches('v').split(['+', '-']).next().unwrap_or_default();
        info.set(["kube", release, &emulated.to_string(), &min_compatibility.to_string()], 1.0);
        let feature = self.families.gauges(def(
            "kubernetes_feature_enabled",
            "This metric records the data about the stage and enablement of a k8s feature.",
            family::BETA,
            ["name", "stage"],
        ))?;
        for (name, stage, _, on) in settings.gates.iter() {
            let stage = match stage {
                FeatureStage::Alpha => "ALPHA",
                FeatureStage::Beta => "BETA",
                FeatureStage::Stable => "",
                FeatureStage::Deprecated => "DEPRECATED",
            };
            feature.set([name, stage], f64::from(u8::from(on)));
        }
        Ok(self)
    }

    /// `/metrics`.
    pub fn text(&self) -> String {
        self.scheduler.init_gauges();
        self.loadmaster.init();
        let mut text = text_format::print(&self.families.gather());
        text.push_str(&process::text(self.families.disabled_metrics()));
        text.push_str(&text_format::print(&self.checks.gather()));
        text
    }

    /// `/metrics/slis`.
    pub fn slis_text(&self) -> String {
        text_format::print(&self.checks.gather())
    }

    /// `DELETE /metrics`: resets all metrics with labels, as upstream.
    pub fn reset(&self) {
        self.families.reset();
        self.plugins.reset();
    }

    /// `DELETE /metrics/slis`.
    pub fn reset_slis(&self) {
        self.checks.reset();
    }

    /// Records the result of a health check; `endpoint` is `healthz`, `livez` or `readyz`.
    pub(crate) fn healthcheck(&self, name: &str, endpoint: &str, is_ok: bool) {
        let status = if is_ok { "success" } else { "error" };
        self.healthcheck.set([name, endpoint], f64::from(u8::from(is_ok)));
        self.healthchecks.inc([name, endpoint, status]);
    }
}

/// The start time of this process in seconds since 1970.
pub(crate) fn process_start_seconds() -> Option<f64> {
    process::start_seconds()
}

#[cfg(test)]
mod tests;
