//! Metrics that plugins and services declare. Their names begin with none of the prefixes of kube-scheduler's and Loadmaster's metrics.

#![expect(clippy::disallowed_types, reason = "services declare metrics in several threads")]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use loadmaster_framework::plugin_metrics::{MetricError, PluginMetric};

use super::Metrics;

/// The declared metrics.
#[derive(Default)]
pub(super) struct AuthorMetrics {
    by_name: Mutex<BTreeMap<String, Declared>>,
}

/// The metrics of one name: of a service, or of a plugin, one for each profile.
struct Declared {
    /// `None`: a service.
    plugin: Option<&'static str>,
    metrics: Vec<PluginMetric>,
}

impl AuthorMetrics {
    fn by_name(&self) -> MutexGuard<'_, BTreeMap<String, Declared>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reset(&self) {
        let by_name = self.by_name();
        by_name.values().flat_map(|declared| &declared.metrics).for_each(PluginMetric::reset);
    }
}

fn declared_by(plugin: Option<&str>) -> String {
    match plugin {
        Some(plugin) => format!("plugin {plugin:?} has declared it"),
        None => "a service has declared it".to_owned(),
    }
}

impl Metrics {
    /// Registers a metric of a plugin, which declares it once per profile.
    ///
    /// # Errors
    ///
    /// If another plugin or a service has a metric of this name, or this plugin one with other labels or another help text.
    pub(crate) fn register_plugin_metric(
        &self,
        plugin: &'static str,
        metric: &PluginMetric,
    ) -> Result<(), MetricError> {
        let mut by_name = self.plugins.by_name();
        if let Some(known) = by_name.get(metric.name())
            && known.plugin != Some(plugin)
        {
            return Err(MetricError::new(metric.name(), declared_by(known.plugin)));
        }
        self.families.register_author_metric(metric)?;
        let declared = by_name.entry(metric.name().to_owned());
        let declared =
            declared.or_insert(Declared { plugin: Some(plugin), metrics: Vec::default() });
        declared.metrics.push(metric.clone());
        Ok(())
    }

    /// Registers a metric of a service, or returns the equal one that was registered before.
    ///
    /// # Errors
    ///
    /// If there is another metric of this name.
    pub(crate) fn get_or_register_service_metric(
        &self,
        metric: PluginMetric,
    ) -> Result<PluginMetric, MetricError> {
        let mut by_name = self.plugins.by_name();
        match by_name.get(metric.name()) {
            Some(Declared { plugin: None, metrics }) => {
                let known = metrics.iter().find(|known| known.has_same_definition(&metric));
                let different = || MetricError::new(metric.name(), "it was declared differently");
                known.cloned().ok_or_else(different)
            }
            Some(known) => Err(MetricError::new(metric.name(), declared_by(known.plugin))),
            None => {
                self.families.register_author_metric(&metric)?;
                let declared = Declared { plugin: None, metrics: vec![metric.clone()] };
                by_name.insert(metric.name().to_owned(), declared);
                Ok(metric)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::plugin_metrics::{MetricDef, reserved_metric_prefix};

    use super::*;
    use crate::metrics::MetricsSettings;

    fn def<'a>(name: &'a str, help: &'a str, profile: &'a str) -> MetricDef<'a, 1> {
        MetricDef { name, help, labels: ["namespace"], constant: Some(("profile", profile)) }
    }

    #[test]
    fn the_names_of_all_other_metrics_are_reserved() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let text = metrics.text();
        let names = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
        let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
        assert!(names.len() > 10, "{text}");
        let free = names.iter().filter(|name| reserved_metric_prefix(name).is_none());
        assert_eq!(free.collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn a_plugin_has_a_series_per_profile() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        for profile in ["default-scheduler", "batch"] {
            let def = def("quota_rejected_total", "Number of rejected pods.", profile);
            let (counter, metric) = def.counter().unwrap();
            metrics.register_plugin_metric("Quota", &metric).unwrap();
            counter.inc(["shop"]);
        }
        let text = metrics.text();
        let shown: Vec<&str> = text.lines().filter(|line| line.contains("quota_")).collect();
        assert_eq!(
            shown,
            [
                "# HELP quota_rejected_total Number of rejected pods.",
                "# TYPE quota_rejected_total counter",
                r#"quota_rejected_total{namespace="shop",profile="batch"} 1"#,
                r#"quota_rejected_total{namespace="shop",profile="default-scheduler"} 1"#,
            ]
        );
        let other = def("quota_rejected_total", "Number of rejected pods.", "third");
        let (_, metric) = other.counter().unwrap();
        let error = metrics.register_plugin_metric("Other", &metric).unwrap_err();
        assert!(error.to_string().contains("plugin \"Quota\" has declared it"), "{error}");
        let error = metrics.get_or_register_service_metric(metric).unwrap_err();
        assert!(error.to_string().contains("plugin \"Quota\" has declared it"), "{error}");
        let (_, metric) = def("quota_rejected_total", "Other.", "third").counter().unwrap();
        let error = metrics.register_plugin_metric("Quota", &metric).unwrap_err();
        assert!(error.to_string().contains("quota_rejected_total"), "{error}");
    }

    #[test]
    fn a_disabled_metric_is_not_shown() {
        let settings =
            MetricsSettings { disabled: vec!["quota_total".to_owned()], ..Default::default() };
        let metrics = Metrics::new(&settings).unwrap();
        let (counter, metric) = def("quota_total", "Help.", "p").counter().unwrap();
        metrics.register_plugin_metric("Quota", &metric).unwrap();
        counter.inc(["shop"]);
        assert!(!metrics.text().contains("quota_total"));
    }
}
