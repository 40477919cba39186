//! How long a Job waits before it replaces pods that failed.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use loadmaster_stdx::SortCompactly as _;

use crate::workload::{condition, phase};

const FIRST: Duration = Duration::from_secs(10);
const LAST: Duration = Duration::from_secs(10 * 60);

/// Failures since the last success.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    n_failures: u32,
    last: Option<Timestamp>,
    /// Uids of the pods that count already.
    seen: BTreeSet<String>,
}

impl Backoff {
    /// Records finished pods; pods that were recorded before are ignored.
    pub(super) fn record_finished<'a>(&mut self, finished: impl IntoIterator<Item = &'a Pod>) {
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let mut pods: Vec<&Pod> = finished.into_iter().collect();
        let all: BTreeSet<String> = pods.iter().map(|pod| uid(pod)).collect();
        pods.retain(|pod| !self.seen.contains(&uid(pod)));
        // A failure in the moment of a success does not count.
        pods.sort_compactly_by_key(|pod| (finished_at(pod), phase(pod) == "Succeeded"));
        for pod in pods {
            if phase(pod) == "Succeeded" {
                (self.n_failures, self.last) = (0, None);
            } else {
                self.n_failures += 1;
                self.last = finished_at(pod).max(self.last);
            }
        }
        self.seen = all;
    }

    /// The remaining backoff.
    pub(super) fn left(&self, now: Timestamp) -> Option<Duration> {
        left(self.n_failures, self.last, now)
    }
}

/// The remaining backoff after `n_failures`, the last one at `last`; None when it has passed.
pub(super) fn left(n_failures: u32, last: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let pause = FIRST.saturating_mul(1 << n_failures.checked_sub(1)?.min(10)).min(LAST);
    let passed = now.duration_since(last?);
    let left = SignedDuration::try_from(pause).ok()?.checked_sub(passed)?;
    (left.is_positive()).then(|| left.unsigned_abs())
}

/// When a pod finished, as far as its status shows.
pub(super) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let meta = &pod.metadata;
    let ended = |one: &ContainerStatus| {
        Some(one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
    };
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let containers: Option<Vec<Timestamp>> =
        containers.unwrap_or_default().iter().map(ended).collect();
    let unready = condition(pod, "Ready").filter(|one| one.status == "False");
    let unready = || unready.and_then(|one| Some(one.last_transition_time.as_ref()?.0));
    let deleted = || {
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        meta.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
    };
    let made = || Some(meta.creation_timestamp.as_ref()?.0);
    containers.and_then(|all| all.into_iter().max()).or_else(unready).or_else(deleted).or_else(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn pod(uid: &str, phase: &str, seconds: i64) -> Pod {
        from_value(json!({"metadata": {"uid": uid}, "status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": at(seconds).to_string()}]}}))
        .unwrap()
    }

    #[test]
    fn backoff_doubles() {
        let seconds = |n| left(n, Some(at(0)), at(0)).map(|left| left.as_secs());
        let all: Vec<_> = (0..9).map(seconds).collect();
        let want = [10, 20, 40, 80, 160, 320, 600, 600].map(Some);
        assert_eq!(all[0], None);
        assert_eq!(all[1..], want);
        assert_eq!(left(1, Some(at(0)), at(9)), Some(Duration::from_secs(1)));
        assert_eq!(left(1, Some(at(0)), at(10)), None);
        assert_eq!(left(40, Some(at(0)), at(0)), Some(LAST));
    }

    #[test]
    fn a_success_resets_the_backoff() {
        let mut backoff = Backoff::default();
        let (one, two) = (pod("1", "Failed", 0), pod("2", "Failed", 5));
        backoff.record_finished([&one, &two]);
        backoff.record_finished([&one, &two]);
        assert_eq!(backoff.left(at(5)), Some(Duration::from_secs(20)));
        let good = pod("3", "Succeeded", 6);
        backoff.record_finished([&good, &two]);
        assert_eq!(backoff.left(at(6)), None);
        let (same, later) = (pod("4", "Failed", 9), pod("5", "Succeeded", 9));
        backoff.record_finished([&later, &same]);
        assert_eq!(backoff.left(at(9)), None);
        backoff.record_finished([&pod("6", "Failed", 10)]);
        assert_eq!(backoff.left(at(10)), Some(Duration::from_secs(10)));
    }

    #[test]
    fn pods_finish_when_their_containers_do() {
        let mut one = pod("1", "Failed", 3);
        assert_eq!(finished_at(&one), Some(at(3)));
        let state = |seconds| {
            json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": at(seconds).to_string()}}})
        };
        let statuses = from_value(json!([state(1), state(2)])).unwrap();
        one.status.as_mut().unwrap().container_statuses = Some(statuses);
        assert_eq!(finished_at(&one), Some(at(2)));
        let gone = from_value(json!({"metadata": {"deletionTimestamp": at(40).to_string(),
            "deletionGracePeriodSeconds": 30, "creationTimestamp": at(0).to_string()}}));
        assert_eq!(finished_at(&gone.unwrap()), Some(at(10)));
    }
}
