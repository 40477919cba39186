//! How long a pod waits after failed attempts.

use std::time::Duration;

use super::queued_pod::QueuedPod;
use crate::time::MonoTime;

/// Backoffs that end within the same window end together, so that the pod with the higher priority goes first (upstream's
/// `backoffQOrderingWindowDuration`).
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// Settings of the queue, with upstream's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// `podInitialBackoffSeconds`.
    pub initial_backoff: Duration,
    /// `podMaxBackoffSeconds`; zero disables backoff.
    pub max_backoff: Duration,
    /// `--pod-max-in-unschedulable-pods-duration`: a pod that stays longer in unschedulablePods is requeued without an event.
    pub max_in_unschedulable: Duration,
    /// The feature gate SchedulerPopFromBackoffQ: if activeQ is empty, pods are popped before their backoff is completed.
    pub pop_from_backoff: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            max_in_unschedulable: Duration::from_secs(5 * 60),
            pop_from_backoff: true,
        }
    }
}

impl QueueOptions {
    /// When the backoff of a pod that was just requeued ends; `None` if it has none.
    pub(super) fn backoff_until(&self, pod: &QueuedPod) -> Option<MonoTime> {
        let n_failures = match pod.consecutive_errors {
            0 => pod.unschedulable_count,
            n_errors => n_errors,
        };
        if self.max_backoff.is_zero() || n_failures == 0 {
            return None;
        }
        let factor = 1u32.checked_shl(n_failures - 1);
        let doubled = factor.and_then(|factor| self.initial_backoff.checked_mul(factor));
        let backoff = doubled.unwrap_or(self.max_backoff).min(self.max_backoff);
        Some(self.to_window(pod.queued_at.after(backoff)))
    }

    /// Whether the backoff is not completed. A backoff that ends in the current window is not completed.
    pub(super) fn is_backing_off(&self, pod: &QueuedPod, now: MonoTime) -> bool {
        pod.backoff_until.is_some_and(|until| until >= self.to_window(now))
    }

    fn to_window(&self, moment: MonoTime) -> MonoTime {
        if self.pop_from_backoff { moment.floor(WINDOW) } else { moment }
    }
}
