//! Metrics of plugins, shown on `/metrics` under the names that they were declared with.
//!
//! ```
//! # use loadmaster_framework::*;
//! # struct Plugin { rejected: PluginCounter<1> }
//! fn build(points: &mut ExtensionPoints, _: &serde_json::Value) -> Result<(), PluginError> {
//!     let rejected =
//!         points.counter("quota_rejected_pods_total", "Number of rejected pods.", ["namespace"])?;
//!     let plugin = Plugin { rejected };
//! # Ok(())
//! # }
//! # impl Plugin {
//! fn reject(&self, pod: &PodInfo) {
//!     self.rejected.inc([&pod.template.namespace]);
//!     // quota_rejected_pods_total{namespace="shop",profile="default-scheduler"} 1
//! }
//! # }
//! ```
//!
//! Plugins only write metrics: there is no way to read a value, so that no decision depends on one. Every series has the label `profile`,
//! because a plugin is built once per profile. Each combination of label values is a series that stays, except those of gauges that are
//! [removed](PluginGauge::remove): use labels with few values, such as namespaces, not pods.

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts};

/// A metric cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metric {name:?}: {text}")]
pub struct MetricError {
    /// The name of the metric.
    pub name: String,
    /// What is wrong.
    pub text: String,
}

impl MetricError {
    /// An error about this metric.
    pub fn new(name: &str, text: impl Into<String>) -> MetricError {
        MetricError { name: name.to_owned(), text: text.into() }
    }
}

/// A counter with `N` labels. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginCounter<const N: usize>(IntCounterVec);

impl<const N: usize> PluginCounter<N> {
    /// Adds one.
    pub fn inc(&self, labels: [&str; N]) {
        self.add(labels, 1);
    }

    /// Adds `n`.
    pub fn add(&self, labels: [&str; N], n: u64) {
        if let Ok(counter) = self.0.get_metric_with_label_values(&labels) {
            counter.inc_by(n);
        }
    }
}

/// A gauge with `N` labels. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginGauge<const N: usize>(GaugeVec);

impl<const N: usize> PluginGauge<N> {
    /// Sets the value.
    pub fn set(&self, labels: [&str; N], value: f64) {
        if let Ok(gauge) = self.0.get_metric_with_label_values(&labels) {
            gauge.set(value);
        }
    }

    /// Adds `difference`, which may be negative.
    pub fn add(&self, labels: [&str; N], difference: f64) {
        if let Ok(gauge) = self.0.get_metric_with_label_values(&labels) {
            gauge.add(difference);
        }
    }

    /// Removes the series with these labels, for example of a deleted object, if there is one.
    pub fn remove(&self, labels: [&str; N]) {
        // The error means that there is none.
        let _ = self.0.remove_label_values(&labels);
    }
}

/// A histogram with `N` labels. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PluginHistogram<const N: usize>(HistogramVec);

impl<const N: usize> PluginHistogram<N> {
    /// Records a value.
    pub fn observe(&self, labels: [&str; N], value: f64) {
        if let Ok(histogram) = self.0.get_metric_with_label_values(&labels) {
            histogram.observe(value);
        }
    }
}

/// A declared metric, with its values.
#[derive(Clone, Debug)]
pub struct PluginMetric {
    name: String,
    collector: MetricVec,
}

#[derive(Clone, Debug)]
enum MetricVec {
    Counter(IntCounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
}

/// What a metric is declared with.
#[derive(Clone, Copy, Debug)]
pub struct MetricDef<'a, const N: usize> {
    /// The full name, as shown on `/metrics`.
    pub name: &'a str,
    /// The help text.
    pub help: &'a str,
    /// The names of the labels.
    pub labels: [&'a str; N],
    /// A label with a constant value: its name and value.
    pub constant: Option<(&'a str, &'a str)>,
}

/// The beginnings of names of metrics that every Kubernetes component, kube-scheduler or Loadmaster has.
const RESERVED_PREFIXES: [&str; 18] = [
    "aggregator_",
    "apiserver_",
    "authentication_",
    "authorization_",
    "cardinality_enforcement_",
    "disabled_metrics_",
    "event_",
    "go_",
    "hidden_metrics_",
    "kubernetes_",
    "leader_election_",
    "loadmaster_",
    "process_",
    "registered_metrics_",
    "rest_client_",
    "scheduler_",
    "version_info",
    "workqueue_",
];

/// The reserved beginning of a metric's name, if it has one: such names are those of kube-scheduler and Loadmaster.
pub fn reserved_metric_prefix(name: &str) -> Option<&'static str> {
    RESERVED_PREFIXES.into_iter().find(|prefix| name.starts_with(prefix))
}

impl<const N: usize> MetricDef<'_, N> {
    fn check(&self) -> Result<(), MetricError> {
        if let Some(prefix) = reserved_metric_prefix(self.name) {
            let text = format!(
                "names that begin with {prefix:?} are reserved for kube-scheduler and Loadmaster"
            );
            return Err(MetricError::new(self.name, text));
        }
        let mut seen = vec!["le"];
        seen.extend(self.constant.map(|(label, _)| label));
        for label in self.labels {
            if seen.contains(&label) {
                let text = format!("the label {label:?} is reserved, or there twice");
                return Err(MetricError::new(self.name, text));
            }
            seen.push(label);
        }
        Ok(())
    }

    fn opts(&self) -> Opts {
        let opts = Opts::new(self.name, self.help);
        self.constant.into_iter().fold(opts, |opts, (label, value)| opts.const_label(label, value))
    }

    fn metric(&self, collector: MetricVec) -> PluginMetric {
        PluginMetric { name: self.name.to_owned(), collector }
    }

    fn invalid(&self, error: &prometheus::Error) -> MetricError {
        MetricError::new(self.name, error.to_string())
    }

    /// A counter, and the metric to register.
    ///
    /// # Errors
    ///
    /// If the name is invalid or reserved, or a label is.
    pub fn counter(&self) -> Result<(PluginCounter<N>, PluginMetric), MetricError> {
        self.check()?;
        let vec = IntCounterVec::new(self.opts(), &self.labels).map_err(|it| self.invalid(&it))?;
        if N == 0 {
            vec.get_metric_with_label_values::<&str>(&[]).map_err(|it| self.invalid(&it))?;
        }
        Ok((PluginCounter(vec.clone()), self.metric(MetricVec::Counter(vec))))
    }

    /// A gauge, and the metric to register.
    ///
    /// # Errors
    ///
    /// If the name is invalid or reserved, or a label is.
    pub fn gauge(&self) -> Result<(PluginGauge<N>, PluginMetric), MetricError> {
        self.check()?;
        let vec = GaugeVec::new(self.opts(), &self.labels).map_err(|it| self.invalid(&it))?;
        if N == 0 {
            vec.get_metric_with_label_values::<&str>(&[]).map_err(|it| self.invalid(&it))?;
        }
        Ok((PluginGauge(vec.clone()), self.metric(MetricVec::Gauge(vec))))
    }

    /// A histogram with these upper bounds of its buckets, and the metric to register.
    ///
    /// # Errors
    ///
    /// If the name is invalid or reserved, or a label is, or the bounds are not in ascending order.
    pub fn histogram(
        &self,
        buckets: &[f64],
    ) -> Result<(PluginHistogram<N>, PluginMetric), MetricError> {
        self.check()?;
        let common_opts = self.opts();
        let opts = HistogramOpts { common_opts, buckets: buckets.to_vec() };
        let vec = HistogramVec::new(opts, &self.labels).map_err(|it| self.invalid(&it))?;
        if N == 0 {
            vec.get_metric_with_label_values::<&str>(&[]).map_err(|it| self.invalid(&it))?;
        }
        Ok((PluginHistogram(vec.clone()), self.metric(MetricVec::Histogram(vec))))
    }
}

impl PluginMetric {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The collector to register.
    pub fn collector(&self) -> Box<dyn Collector> {
        match &self.collector {
            MetricVec::Counter(vec) => Box::new(vec.clone()),
            MetricVec::Gauge(vec) => Box::new(vec.clone()),
            MetricVec::Histogram(vec) => Box::new(vec.clone()),
        }
    }

    /// Removes all series with labels, as `DELETE /metrics` does.
    pub fn reset(&self) {
        match &self.collector {
            MetricVec::Counter(vec) => vec.reset(),
            MetricVec::Gauge(vec) => vec.reset(),
            MetricVec::Histogram(vec) => vec.reset(),
        }
    }

    /// Whether both have the same name, help text and labels.
    pub fn has_same_definition(&self, other: &PluginMetric) -> bool {
        let ids = |metric: &PluginMetric| -> Vec<(u64, u64)> {
            let collector = metric.collector();
            collector.desc().into_iter().map(|desc| (desc.id, desc.dim_hash)).collect()
        };
        let kind = |metric: &PluginMetric| std::mem::discriminant(&metric.collector);
        kind(self) == kind(other) && ids(self) == ids(other)
    }

    /// The counter, if the metric is a counter.
    pub fn as_counter<const N: usize>(&self) -> Option<PluginCounter<N>> {
        match &self.collector {
            MetricVec::Counter(vec) => Some(PluginCounter(vec.clone())),
            _ => None,
        }
    }

    /// The gauge, if the metric is a gauge.
    pub fn as_gauge<const N: usize>(&self) -> Option<PluginGauge<N>> {
        match &self.collector {
            MetricVec::Gauge(vec) => Some(PluginGauge(vec.clone())),
            _ => None,
        }
    }

    /// The histogram, if the metric is a histogram.
    pub fn as_histogram<const N: usize>(&self) -> Option<PluginHistogram<N>> {
        match &self.collector {
            MetricVec::Histogram(vec) => Some(PluginHistogram(vec.clone())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def<'a, const N: usize>(name: &'a str, labels: [&'a str; N]) -> MetricDef<'a, N> {
        MetricDef { name, help: "Help.", labels, constant: Some(("profile", "default-scheduler")) }
    }

    /// `labels value` of every series of a counter.
    fn series(metric: &PluginMetric) -> Vec<String> {
        let families = metric.collector().collect();
        let of_metric = |it: &prometheus::proto::Metric| {
            let labels =
                it.get_label().iter().map(|pair| format!("{}={}", pair.name(), pair.value()));
            let labels: Vec<String> = labels.collect();
            format!("{} {}", labels.join(","), it.get_counter().get_value())
        };
        families.iter().flat_map(|family| family.get_metric().iter().map(of_metric)).collect()
    }

    #[test]
    fn counters_have_the_label_of_the_profile() {
        let (counter, metric) = def("quota_rejected_total", ["namespace"]).counter().unwrap();
        counter.inc(["shop"]);
        counter.add(["shop"], 2);
        assert_eq!(series(&metric), ["namespace=shop,profile=default-scheduler 3"]);
        let same = def("quota_rejected_total", ["namespace"]).counter().unwrap().1;
        assert!(metric.has_same_definition(&same));
        assert!(!metric.has_same_definition(&def("quota_rejected_total", []).counter().unwrap().1));
        assert!(
            !metric.has_same_definition(
                &def("quota_rejected_total", ["namespace"]).gauge().unwrap().1
            )
        );
        metric.reset();
        assert!(series(&metric).is_empty());
        // Without labels there is one series, from the beginning.
        let (_, metric) = def("quota_total", []).counter().unwrap();
        assert_eq!(series(&metric), ["profile=default-scheduler 0"]);
    }

    #[test]
    fn gauges_and_histograms_store_values() {
        let (gauge, metric) = def("quota_used", []).gauge().unwrap();
        gauge.set([], 2.5);
        gauge.add([], -1.0);
        assert_eq!(metric.collector().collect()[0].get_metric()[0].get_gauge().get_value(), 1.5);
        let (histogram, metric) =
            def("quota_wait_seconds", ["queue"]).histogram(&[1.0, 2.0]).unwrap();
        histogram.observe(["a"], 1.5);
        let families = metric.collector().collect();
        let stored = families[0].get_metric()[0].get_histogram();
        assert_eq!((stored.get_sample_count(), stored.get_sample_sum()), (1, 1.5));
        assert!(metric.as_counter::<1>().is_none() && metric.as_gauge::<1>().is_none());
    }

    #[test]
    fn invalid_metrics_are_rejected() {
        #[track_caller]
        fn check<const N: usize>(name: &str, labels: [&str; N], want: &str) {
            let error = def(name, labels).counter().unwrap_err().to_string();
            assert!(error.starts_with(&format!("metric {name:?}: ")), "{error}");
            assert!(error.contains(want), "{error}");
            assert_eq!(def(name, labels).gauge().unwrap_err().to_string(), error);
            assert_eq!(def(name, labels).histogram(&[1.0]).unwrap_err().to_string(), error);
        }
        let reserved = "are reserved for kube-scheduler and Loadmaster";
        check("scheduler_pending_pods", [], reserved);
        check("loadmaster_quota_total", [], reserved);
        check("workqueue_depth", ["name"], reserved);
        check("my quota", [], "is not a valid metric name");
        check("quota_total", ["a b"], "is not a valid label name");
        check("quota_total", ["profile"], "the label \"profile\" is reserved, or there twice");
        check("quota_total", ["a", "a"], "the label \"a\" is reserved, or there twice");
        check("quota_total", ["le"], "the label \"le\" is reserved, or there twice");
        let error = def("quota_seconds", []).histogram(&[2.0, 1.0]).unwrap_err().to_string();
        assert!(error.contains("histogram buckets must be in increasing order"), "{error}");
    }
}
