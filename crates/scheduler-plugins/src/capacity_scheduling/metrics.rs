//! The metrics of quotas: what each uses, and its bounds.

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::Str;
use loadmaster_framework::{
    ExtensionPoints, PluginError, PluginGauge, PluginStateSlot, PluginStates, World,
};

use super::quota::{ElasticQuota, amounts};
use super::quotas::ElasticQuotas;

/// Three gauges with a series for each quota and resource. The series of a deleted quota are removed.
pub(super) struct QuotaMetrics {
    used: PluginGauge<2>,
    min: PluginGauge<2>,
    max: PluginGauge<2>,
    /// The resources that have series, by namespace.
    shown: PluginStateSlot<BTreeMap<Str, BTreeSet<Str>>>,
}

const LABELS: [&str; 2] = ["namespace", "resource"];

impl QuotaMetrics {
    /// Declares the metrics.
    pub fn declare(points: &mut ExtensionPoints) -> Result<QuotaMetrics, PluginError> {
        let mut gauge = |name: &str, help: &str| points.gauge(name, help, LABELS);
        Ok(QuotaMetrics {
            used: gauge(
                "capacity_scheduling_quota_used",
                "What the assigned pods of a namespace with an ElasticQuota request, in cores, bytes or numbers.",
            )?,
            min: gauge(
                "capacity_scheduling_quota_min",
                "What an ElasticQuota guarantees, in cores, bytes or numbers.",
            )?,
            max: gauge(
                "capacity_scheduling_quota_max",
                "What an ElasticQuota allows, in cores, bytes or numbers. Without a limit there is no series.",
            )?,
            shown: points.plugin_state_slot(BTreeMap::new()),
        })
    }

    /// The quota of a namespace, or what its pods use, may have changed.
    pub fn update(
        &self,
        quotas: &ElasticQuotas,
        world: &World,
        states: &mut PluginStates,
        namespace: &Str,
    ) {
        let shown = states.get(self.shown).and_then(|shown| shown.get(namespace));
        let Some((_, quota)) = quotas.of_namespace(world, namespace) else {
            if let Some(names) = shown {
                self.remove(namespace, names);
                states.get_mut(self.shown).map(|shown| shown.remove(namespace));
            }
            return;
        };
        let ElasticQuota { min, max, .. } = quota;
        let used = quotas.used(world, namespace);
        let lists = [used, min.amounts(), max.amounts()].into_iter().flat_map(amounts);
        let nonzero = lists.filter(|(_, amount)| !matches!(amount, 0 | &i64::MAX));
        let is_new = |name: &&str| shown.is_none_or(|names| !names.contains(*name));
        let new: Vec<Str> = nonzero.map(|(name, _)| name).filter(is_new).map(Str::new).collect();
        if !new.is_empty()
            && let Some(shown) = states.get_mut(self.shown)
        {
            shown.entry(namespace.clone()).or_default().extend(new);
        }
        let shown = states.get(self.shown).and_then(|shown| shown.get(namespace));
        for name in shown.into_iter().flatten() {
            let labels = [namespace.as_str(), name.as_str()];
            self.used.set(labels, value(name, used.amount(name)));
            self.min.set(labels, value(name, min.amount(name)));
            match max.amount(name) {
                i64::MAX => self.max.remove(labels),
                amount => self.max.set(labels, value(name, amount)),
            }
        }
    }

    fn remove(&self, namespace: &str, names: &BTreeSet<Str>) {
        for name in names {
            for gauge in [&self.used, &self.min, &self.max] {
                gauge.remove([namespace, name]);
            }
        }
    }
}

/// An amount in cores, bytes or numbers.
fn value(resource: &str, amount: i64) -> f64 {
    if resource == "cpu" { amount as f64 / 1_000.0 } else { amount as f64 }
}
