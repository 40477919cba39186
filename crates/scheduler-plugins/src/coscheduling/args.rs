//! CoschedulingArgs.

use std::time::Duration;

use loadmaster_framework::FieldError;
use loadmaster_framework::plugin_args::PluginArgs;
use serde::{Deserialize, Serialize};

use crate::pod_group::PodGroupSpec;

/// Upstream's `DefaultWaitTime`.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// The arguments of the plugin.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Args {
    /// How long a member waits at Permit if its PodGroup does not say.
    permit_waiting_time_seconds: i64,
    /// How long a group waits after a failed attempt; 0: a tenth of a second, doubled up to ten seconds with every failure in which no more members had a node.
    pod_group_backoff_seconds: i64,
    /// If a member fits on no node, and at most this percentage of `minMember` is missing, other members are tried before the attempt fails.
    pod_group_reject_percentage: i32,
}

impl Default for Args {
    /// Upstream's `SetDefaults_CoschedulingArgs`.
    fn default() -> Self {
        Args {
            permit_waiting_time_seconds: 60,
            pod_group_backoff_seconds: 0,
            pod_group_reject_percentage: 10,
        }
    }
}

impl PluginArgs for Args {
    fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let seconds = [
            ("permitWaitingTimeSeconds", self.permit_waiting_time_seconds),
            ("podGroupBackoffSeconds", self.pod_group_backoff_seconds),
        ];
        for (path, value) in seconds.into_iter().filter(|(_, value)| *value < 0) {
            errors.push(FieldError::invalid(path, value, "must be greater than 0"));
        }
        let percentage = self.pod_group_reject_percentage;
        if !(0..=100).contains(&percentage) {
            let expected = "must be between 0 and 100";
            errors.push(FieldError::invalid("podGroupRejectPercentage", percentage, expected));
        }
        errors
    }
}

impl Args {
    /// How long a member of the group waits at Permit (upstream's `GetWaitTimeDuration`).
    pub fn permit_wait(&self, spec: &PodGroupSpec) -> Duration {
        let of_group = spec.schedule_timeout_seconds.map_or(0, i64::from);
        let of_args = self.permit_waiting_time_seconds;
        [of_group, of_args].into_iter().find_map(positive_seconds).unwrap_or(DEFAULT_WAIT)
    }

    /// Whether all backoffs are equally long.
    pub fn has_fixed_backoff(&self) -> bool {
        self.pod_group_backoff_seconds > 0
    }

    /// How long a group waits whose attempts have been in vain for this time.
    pub fn backoff(&self, in_vain: Duration) -> Duration {
        let (shortest, longest) = (Duration::from_millis(100), Duration::from_secs(10));
        positive_seconds(self.pod_group_backoff_seconds)
            .unwrap_or_else(|| (in_vain / 4).clamp(shortest, longest))
    }

    /// Whether other members are tried when one fits on no node and so many of `n_min` members are missing.
    pub fn tries_others(&self, n_missing: usize, n_min: usize) -> bool {
        n_missing as f64 / n_min as f64 <= f64::from(self.pod_group_reject_percentage) / 100.0
    }
}

fn positive_seconds(seconds: i64) -> Option<Duration> {
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
