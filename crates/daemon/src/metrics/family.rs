//! Metrics with what Kubernetes adds to Prometheus: a stability level in the help text, disabled
//! metrics, allow lists for label values, and resettable vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_framework::plugin_metrics::{MetricError, PluginMetric};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Error, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    Opts, Registry,
};

use super::MetricsSettings;

/// The stability level of a metric.
#[derive(Clone, Copy)]
pub(super) struct Stability(&'static str);

pub(super) const STABLE: Stability = Stability("STABLE");
pub(super) const BETA: Stability = Stability("BETA");
pub(super) const ALPHA: Stability = Stability("ALPHA");

/// The definition of a metric.
pub(super) struct MetricDef<const N: usize> {
    name: &'static str,
    help: &'static str,
    stability: Stability,
    labels: [&'static str; N],
}

pub(super) const fn def<const N: usize>(
    name: &'static str,
    help: &'static str,
    stability: Stability,
    labels: [&'static str; N],
) -> MetricDef<N> {
    MetricDef { name, help, stability, labels }
}

impl<const N: usize> MetricDef<N> {
    fn help(&self) -> String {
        format!("[{}] {}", self.stability.0, self.help)
    }
}

/// The allowed values of each label; `None`: all.
struct Allowed<const N: usize> {
    values: Option<Box<[Option<BTreeSet<String>>; N]>>,
    unexpected: IntCounter,
}

impl<const N: usize> Allowed<N> {
    fn checked<'a>(&self, mut labels: [&'a str; N]) -> [&'a str; N] {
        let Some(values) = &self.values else { return labels };
        for (label, allowed) in labels.iter_mut().zip(values.iter()) {
            if allowed.as_ref().is_some_and(|allowed| !allowed.contains(*label)) {
                *label = "unexpected";
                self.unexpected.inc();
            }
        }
        labels
    }
}

/// A counter with `N` labels.
pub struct Counters<const N: usize> {
    vec: IntCounterVec,
    allowed: Allowed<N>,
}

impl<const N: usize> Counters<N> {
    /// Adds one.
    pub fn inc(&self, labels: [&str; N]) {
        self.add(labels, 1);
    }

    /// Adds `n`; with 0, the series is shown.
    pub fn add(&self, labels: [&str; N], n: u64) {
        if let Ok(counter) = self.vec.get_metric_with_label_values(&self.allowed.checked(labels)) {
            counter.inc_by(n);
        }
    }
}

/// A gauge with `N` labels.
pub struct Gauges<const N: usize> {
    vec: GaugeVec,
    allowed: Allowed<N>,
}

impl<const N: usize> Gauges<N> {
    /// Sets the value.
    pub fn set(&self, labels: [&str; N], value: f64) {
        if let Ok(gauge) = self.vec.get_metric_with_label_values(&self.allowed.checked(labels)) {
            gauge.set(value);
        }
    }

    /// Adds `difference`.
    pub fn add(&self, labels: [&str; N], difference: f64) {
        if let Ok(gauge) = self.vec.get_metric_with_label_values(&self.allowed.checked(labels)) {
            gauge.add(difference);
        }
    }
}

/// A histogram with `N` labels.
pub struct Histograms<const N: usize> {
    vec: HistogramVec,
    allowed: Allowed<N>,
}

impl<const N: usize> Histograms<N> {
    /// Records a value.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        if let Some(histogram) = self.with_labels(labels) {
            histogram.observe(value);
        }
    }

    /// The series of these labels, to be cached by callers on hot paths.
    pub fn with_labels(&self, labels: [&str; N]) -> Option<Histogram> {
        self.vec.get_metric_with_label_values(&self.allowed.checked(labels)).ok()
    }
}

/// A counter without labels.
#[derive(Clone)]
pub struct UnlabeledCounter(IntCounter);

impl UnlabeledCounter {
    /// Adds one.
    pub fn inc(&self) {
        self.0.inc();
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.inc_by(n);
    }
}

/// Creates and registers metrics.
pub(super) struct Families {
    registry: Registry,
    disabled: Arc<BTreeSet<String>>,
    /// Metric -> label -> values.
    allowed: Arc<BTreeMap<String, BTreeMap<String, BTreeSet<String>>>>,
    unexpected: IntCounter,
    registered: IntCounterVec,
    resets: Vec<Box<dyn Fn() + Send + Sync>>,
}

impl Families {
    pub fn new(settings: &MetricsSettings) -> Result<Families, Error> {
        let mut allowed: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (key, values) in &settings.allowed_labels {
            let (metric, label) = key.split_once(',').unwrap_or((key, ""));
            let values = values.split(',').map(str::to_owned).collect();
            allowed.entry(metric.to_owned()).or_default().insert(label.to_owned(), values);
        }
        let disabled: BTreeSet<String> =
            settings.disabled.iter().filter(|name| !name.is_empty()).cloned().collect();
        let registered = def(
            "registered_metrics_total",
            "The count of registered metrics broken by stability level and deprecation version.",
            BETA,
            ["stability_level", "deprecated_version"],
        );
        let unexpected = def(
            "cardinality_enforcement_unexpected_categorizations_total",
            "The count of unexpected categorizations during cardinality enforcement.",
            ALPHA,
            [],
        );
        let mut families = Families {
            registry: Registry::new(),
            disabled: Arc::new(disabled),
            allowed: Arc::new(allowed),
            unexpected: IntCounter::with_opts(Opts::new(unexpected.name, unexpected.help()))?,
            registered: IntCounterVec::new(
                Opts::new(registered.name, registered.help()),
                &registered.labels,
            )?,
            resets: Vec::new(),
        };
        let (own, counts) = (families.unexpected.clone(), families.registered.clone());
        families.register(&unexpected, own)?;
        families.register(&registered, counts)?;
        let disabled = def("disabled_metrics_total", "The count of disabled metrics.", BETA, []);
        let disabled = families.unlabeled_counter(disabled)?;
        disabled.add(families.disabled.len() as u64);
        families.unlabeled_counter(def(
            "hidden_metrics_total",
            "The count of hidden metrics.",
            BETA,
            [],
        ))?;
        Ok(families)
    }

    /// A registry for another endpoint, with the same flags.
    pub fn empty_copy(&self) -> Families {
        Families {
            registry: Registry::new(),
            disabled: self.disabled.clone(),
            allowed: self.allowed.clone(),
            unexpected: self.unexpected.clone(),
            registered: self.registered.clone(),
            resets: Vec::new(),
        }
    }

    pub fn counters<const N: usize>(&mut self, def: MetricDef<N>) -> Result<Counters<N>, Error> {
        let vec = IntCounterVec::new(Opts::new(def.name, def.help()), &def.labels)?;
        self.register(&def, vec.clone())?;
        let resettable = vec.clone();
        self.resets.push(Box::new(move || resettable.reset()));
        Ok(Counters { vec, allowed: self.allowed_of(&def) })
    }

    pub fn gauges<const N: usize>(&mut self, def: MetricDef<N>) -> Result<Gauges<N>, Error> {
        let vec = GaugeVec::new(Opts::new(def.name, def.help()), &def.labels)?;
        self.register(&def, vec.clone())?;
        let resettable = vec.clone();
        self.resets.push(Box::new(move || resettable.reset()));
        Ok(Gauges { vec, allowed: self.allowed_of(&def) })
    }

    pub fn histograms<const N: usize>(
        &mut self,
        def: MetricDef<N>,
        buckets: Vec<f64>,
    ) -> Result<Histograms<N>, Error> {
        let opts = HistogramOpts::new(def.name, def.help()).buckets(buckets);
        let vec = HistogramVec::new(opts, &def.labels)?;
        self.register(&def, vec.clone())?;
        let resettable = vec.clone();
        self.resets.push(Box::new(move || resettable.reset()));
        Ok(Histograms { vec, allowed: self.allowed_of(&def) })
    }

    pub fn unlabeled_counter(&mut self, def: MetricDef<0>) -> Result<UnlabeledCounter, Error> {
        let counter = IntCounter::with_opts(Opts::new(def.name, def.help()))?;
        self.register(&def, counter.clone())?;
        Ok(UnlabeledCounter(counter))
    }

    pub fn gauge(&mut self, def: MetricDef<0>) -> Result<Gauge, Error> {
        let gauge = Gauge::with_opts(Opts::new(def.name, def.help()))?;
        self.register(&def, gauge.clone())?;
        Ok(gauge)
    }

    pub fn histogram(&mut self, def: MetricDef<0>, buckets: Vec<f64>) -> Result<Histogram, Error> {
        let opts = HistogramOpts::new(def.name, def.help()).buckets(buckets);
        let histogram = Histogram::with_opts(opts)?;
        self.register(&def, histogram.clone())?;
        Ok(histogram)
    }

    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    pub fn disabled_metrics(&self) -> &BTreeSet<String> {
        &self.disabled
    }

    pub fn reset(&self) {
        self.resets.iter().for_each(|reset| reset());
    }

    /// Registers a metric of a plugin or a service, unless it is disabled.
    pub fn register_author_metric(&self, metric: &PluginMetric) -> Result<(), MetricError> {
        if self.disabled.contains(metric.name()) {
            return Ok(());
        }
        let registered = self.registry.register(metric.collector());
        registered.map_err(|error| MetricError::new(metric.name(), error.to_string()))
    }

    fn register<const N: usize>(
        &self,
        def: &MetricDef<N>,
        collector: impl Collector + 'static,
    ) -> Result<(), Error> {
        if self.disabled.contains(def.name) {
            return Ok(());
        }
        self.registered.get_metric_with_label_values(&[def.stability.0, ""])?.inc();
        self.registry.register(Box::new(collector))
    }

    fn allowed_of<const N: usize>(&self, def: &MetricDef<N>) -> Allowed<N> {
        let values = self
            .allowed
            .get(def.name)
            .map(|by_label| Box::new(def.labels.map(|label| by_label.get(label).cloned())));
        Allowed { values, unexpected: self.unexpected.clone() }
    }
}

/// `count` buckets, each `factor` times the one before.
pub(super) fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}
