//! Metrics under kube-scheduler's names: labels, buckets, help and stability are those of 1.36, so
//! that dashboards and alerts go on working.
//!
//! ```
//! use loadmaster_daemon::metrics::{AttemptResult, Metrics, Settings};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let metrics = Metrics::new(&Settings::default())?;
//! metrics.scheduler.attempt(AttemptResult::Scheduled, "default-scheduler", 0.002);
//! assert!(metrics.text().contains(
//!     r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1"#
//! ));
//! # Ok(())
//! # }
//! ```
//!
//! [`Metrics`] is made once and shared; updating takes `&self`. `scheduler` holds what the engine and
//! its shell count, `own` what upstream does not, `shared` what every Kubernetes component has; `family` knows what flags do to
//! metrics, `labels` what their values may be, `text` how they are printed, `process` what the operating system counts.

mod family;
mod labels;
mod own;
mod process;
mod resources;
mod scheduler;
mod shared;
mod text;

use std::collections::BTreeMap;

use loadmaster_api::document::Document;
use loadmaster_config::{Gates, Stage};

pub use family::{Counters, Gauges, Histograms, Total};
pub use labels::{ApiCallResult, AttemptResult, CacheKind, PluginPoint, Queue};
pub use own::OwnMetrics;
pub use resources::{PodResources, resources_text};
pub use scheduler::SchedulerMetrics;
pub use shared::{
    AuthResult, AuthorizationResult, ElectionMetrics, RequestMetrics, ReviewMetrics,
    WorkqueueMetrics,
};
pub(crate) use text::CONTENT_TYPE;

use crate::flags::{KUBERNETES_VERSION, MetricsFlags, Versions, is_metric_label, platform};
use family::{Families, def};

/// What flags and configuration do to metrics.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Full names that are not shown.
    pub disabled: Vec<String>,
    /// `metric,label` -> the values that label may have, separated by commas.
    pub allowed_labels: BTreeMap<String, String>,
    /// Gates decide about some metrics and are shown themselves.
    pub gates: Gates,
    /// Shown in `version_info`.
    pub versions: Versions,
    /// Shown in `kubernetes_build_info`; empty: our own.
    pub reported_version: String,
}

/// A file of `--allow-metric-labels-manifest` that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It cannot be read.
    #[error("reading the allow list of metric labels")]
    Read(#[from] loadmaster_api::document::DocumentError),
    /// It is not as it should be.
    #[error("the allow list of metric labels: {0}")]
    Content(String),
}

/// An allow list is short.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

impl Settings {
    /// From the flags; reads the manifest if one is named.
    pub fn from_flags(
        flags: &MetricsFlags,
        gates: &Gates,
        versions: Versions,
        reported_version: &str,
    ) -> Result<Settings, ManifestError> {
        let mut allowed_labels = BTreeMap::new();
        if !flags.allow_metric_labels_manifest.is_empty() {
            allowed_labels = manifest(&flags.allow_metric_labels_manifest)?;
        }
        // Given by a flag, the list of the manifest counts for nothing, as upstream has it.
        if !flags.allow_metric_labels.is_empty() {
            allowed_labels = flags.allow_metric_labels.iter().flatten().cloned().collect();
        }
        Ok(Settings {
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
    /// Of the scheduler.
    pub scheduler: SchedulerMetrics,
    /// What kube-scheduler does not count.
    pub own: OwnMetrics,
    /// Requests to the API server.
    pub requests: RequestMetrics,
    /// Work queues.
    pub workqueues: WorkqueueMetrics,
    /// The lease.
    pub election: ElectionMetrics,
    /// Requests to our own endpoints.
    pub reviews: ReviewMetrics,
    families: Families,
    checks: Families,
    healthcheck: Gauges<2>,
    healthchecks: Counters<3>,
}

impl Metrics {
    /// Makes and registers all of them. Fails only if two metrics have one name.
    pub fn new(settings: &Settings) -> Result<Metrics, prometheus::Error> {
        let mut families = Families::new(settings)?;
        let mut checks = families.sibling();
        let metrics = Metrics {
            scheduler: SchedulerMetrics::new(&mut families, |gate| settings.gates.enabled(gate))?,
            own: OwnMetrics::new(&mut families)?,
            requests: RequestMetrics::new(&mut families)?,
            workqueues: WorkqueueMetrics::new(&mut families)?,
            election: ElectionMetrics::new(&mut families)?,
            reviews: ReviewMetrics::new(&mut families)?,
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
        };
        metrics.describe(settings)
    }

    /// What never changes: build, versions, gates.
    fn describe(mut self, settings: &Settings) -> Result<Metrics, prometheus::Error> {
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
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Stable => "",
                Stage::Deprecated => "DEPRECATED",
            };
            feature.set([name, stage], f64::from(u8::from(on)));
        }
        Ok(self)
    }

    /// `/metrics`.
    pub fn text(&self) -> String {
        self.scheduler.before_showing();
        let mut text = text::print(&self.families.gather());
        text.push_str(&process::text(self.families.disabled()));
        text.push_str(&text::print(&self.checks.gather()));
        text
    }

    /// `/metrics/slis`.
    pub fn slis_text(&self) -> String {
        text::print(&self.checks.gather())
    }

    /// `DELETE /metrics`: everything with labels starts anew, as upstream has it.
    pub fn reset(&self) {
        self.families.reset();
    }

    /// `DELETE /metrics/slis`.
    pub fn reset_slis(&self) {
        self.checks.reset();
    }

    /// Records that a health check was looked at; `endpoint` is `healthz`, `livez` or `readyz`.
    pub(crate) fn healthcheck(&self, name: &str, endpoint: &str, is_ok: bool) {
        let status = if is_ok { "success" } else { "error" };
        self.healthcheck.set([name, endpoint], f64::from(u8::from(is_ok)));
        self.healthchecks.inc([name, endpoint, status]);
    }
}

/// Seconds since 1970 at which this process began.
pub(crate) fn process_start_seconds() -> Option<f64> {
    process::start_seconds()
}

#[cfg(test)]
mod tests;
