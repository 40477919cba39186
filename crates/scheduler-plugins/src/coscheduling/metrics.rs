//! Metrics of each group. Their number is that of the PodGroups that have pods.

use loadmaster_framework::{ExtensionPoints, PluginError, PluginGauge};

use super::groups::GroupValues;
use crate::pod_group::GroupKey;

/// The gauges. PodGroups of the older API group, whose names may be the same, have none.
pub(super) struct GroupMetrics {
    min_member: PluginGauge<2>,
    pods: PluginGauge<3>,
    failed_attempts: PluginGauge<2>,
}

/// Values of the label `state`.
const STATES: [&str; 3] = ["pending", "waiting", "bound"];

impl GroupMetrics {
    /// Declares the metrics.
    ///
    /// # Errors
    ///
    /// If another plugin has a metric of one of these names.
    pub fn new(points: &mut ExtensionPoints) -> Result<GroupMetrics, PluginError> {
        let labels = ["namespace", "pod_group"];
        Ok(GroupMetrics {
            min_member: points.gauge(
                "coscheduling_pod_group_min_member",
                "Number of pods of the PodGroup that must have a node before any of them is bound.",
                labels,
            )?,
            pods: points.gauge(
                "coscheduling_pod_group_pods",
                "Number of pods of the PodGroup: pending in the queue, waiting with a node for the others, or bound.",
                ["namespace", "pod_group", "state"],
            )?,
            failed_attempts: points.gauge(
                "coscheduling_pod_group_failed_attempts",
                "Number of attempts to schedule the PodGroup that have failed since the last one that succeeded.",
                labels,
            )?,
        })
    }

    /// Shows what has changed.
    pub fn show(&self, key: &GroupKey, old: Option<GroupValues>, new: Option<GroupValues>) {
        if old == new {
            return;
        }
        let labels = [key.namespace.as_str(), key.name.as_str()];
        let with_state = |at: usize| [labels[0], labels[1], STATES[at]];
        let Some(new) = new else {
            self.min_member.remove(labels);
            self.failed_attempts.remove(labels);
            return (0..STATES.len()).for_each(|at| self.pods.remove(with_state(at)));
        };
        if old.is_none_or(|old| old.min_member != new.min_member) {
            self.min_member.set(labels, f64::from(new.min_member));
        }
        if old.is_none_or(|old| old.n_failures != new.n_failures) {
            self.failed_attempts.set(labels, f64::from(new.n_failures));
        }
        for (at, n) in new.pods.into_iter().enumerate() {
            if old.is_none_or(|old| old.pods[at] != n) {
                self.pods.set(with_state(at), n as f64);
            }
        }
    }
}
