//! Tracks finished pods with finalizers, so that each is counted exactly once.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::{FailureAction, Finish, JobSync, free, indexes, is_tracked, policy};
use crate::meta::{annotation_value, is_terminating};
use crate::result_builder::{ReconcileResultBuilder, omit_zero};
use crate::workload::{is_active, phase};

/// Failures of the pods before this one that had its index.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Likewise, failures that do not count.
pub(super) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// Maximum number of uids in `uncountedTerminatedPods`.
const UNCOUNTED_MAX: usize = 500;

/// A number that a pod's annotation has.
pub(super) fn number(pod: &Pod, key: &str) -> i32 {
    annotation_value(&pod.metadata, key).and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl<'a> JobSync<'a> {
    /// Whether a pod's failure is the last one that its index is allowed.
    pub(super) fn has_index_failed(&self, pod: &Pod) -> bool {
        let Some(limit) = self.spec.backoff_limit_per_index else { return false };
        self.has_failed(pod)
            && match policy::match_pod_failure_policy(self.spec, pod) {
                FailureAction::FailIndex => true,
                FailureAction::Ignore => false,
                FailureAction::Count | FailureAction::FailJob(_) => number(pod, FAILURES) >= limit,
            }
    }

    /// The failed pod whose count of failures the next pod of its index is to take over.
    pub(super) fn predecessor(&self, index: i32) -> Option<&'a Pod> {
        let failed = self.pods.iter().copied().filter(|pod| {
            is_tracked(pod) && self.has_failed(pod) && self.index(pod) == Some(index)
        });
        failed.max_by_key(|pod| number(pod, FAILURES) + number(pod, IGNORED))
    }

    /// Whether a failed pod must stay until the next one of its index is there.
    fn is_awaited(&self, pod: &Pod) -> bool {
        let Some(index) = self.index(pod).filter(|_| self.spec.backoff_limit_per_index.is_some())
        else {
            return false;
        };
        let is_settled = self.succeeded.contains(&index) || self.failed.contains(&index);
        let has_next = self.pods.iter().any(|one| is_active(one) && self.index(one) == Some(index));
        let is_last = self.predecessor(index).is_some_and(|one| std::ptr::eq(one, pod));
        !is_settled && !has_next && is_last
    }

    /// Adds finished pods to `uncountedTerminatedPods`, removes their finalizers, then counts them.
    pub(super) fn track_finished_pods(
        &mut self,
        finish: Option<&Finish>,
        writes: &mut ReconcileResultBuilder,
    ) {
        let before = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let tracked: Vec<&'a Pod> =
            self.pods.iter().copied().filter(|pod| is_tracked(pod)).collect();
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let kept: BTreeSet<String> = tracked.iter().map(|pod| uid(pod)).collect();
        let (mut good, mut bad) = (
            before.succeeded.clone().unwrap_or_default(),
            before.failed.clone().unwrap_or_default(),
        );
        let move_on = |uids: &mut Vec<String>| {
            let n_before = uids.len();
            uids.retain(|uid| kept.contains(uid));
            (n_before - uids.len()) as i32
        };
        let (n_good, n_bad) = (move_on(&mut good), move_on(&mut bad));
        self.status.failed = omit_zero(self.status.failed.unwrap_or(0) + n_bad);
        self.status.succeeded = omit_zero(self.status.succeeded.unwrap_or(0) + n_good);
        let written = indexes::parse(
            self.status.completed_indexes.as_deref().unwrap_or_default(),
            self.spec.completions.unwrap_or(0),
        );
        let mut indexes = written.clone();
        let is_lost = finish.is_some_and(|finish| !finish.is_success);
        let is_won = finish.is_some_and(|finish| finish.is_success);
        for pod in tracked {
            let has_succeeded = phase(pod) == "Succeeded";
            // Pods that a success makes superfluous have not failed.
            let fails =
                if is_won { phase(pod) == "Failed" } else { is_lost || self.has_failed(pod) };
            let has_failed = !has_succeeded && fails;
            let ends = has_succeeded || finish.is_some() || is_terminating(&self.job.metadata);
            if !ends && (!self.has_failed(pod) || self.is_awaited(pod)) {
                continue;
            }
            if good.len() + bad.len() + indexes.len() - written.len() >= UNCOUNTED_MAX {
                break;
            }
            let index = self.index(pod);
            // Whether the status as it is shows the pod.
            let is_written = if has_succeeded && self.is_indexed {
                index.is_none_or(|index| !indexes.insert(index) && written.contains(&index))
            } else if has_succeeded {
                add_uid(&mut good, uid(pod))
            } else if has_failed && (!self.is_indexed || index.is_some()) && self.counts(pod) {
                add_uid(&mut bad, uid(pod))
            } else {
                true
            };
            // A pod that still runs loses its finalizer only when it is on its way out.
            if is_written && (!is_active(pod) || is_won || is_terminating(&self.job.metadata)) {
                free(pod, writes);
            }
        }
        if self.is_indexed {
            self.status.succeeded = omit_zero(indexes.len() as i32);
            self.status.completed_indexes =
                Some(indexes::print(&indexes)).filter(|text| !text.is_empty());
            if self.spec.backoff_limit_per_index.is_some() {
                self.status.failed_indexes = Some(indexes::print(&self.failed));
            }
        }
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        uncounted.succeeded = Some(good).filter(|uids| !uids.is_empty());
        uncounted.failed = Some(bad).filter(|uids| !uids.is_empty());
    }
}

/// Puts a uid into a list; true if it was there.
fn add_uid(uids: &mut Vec<String>, uid: String) -> bool {
    let is_there = uids.contains(&uid);
    if !is_there {
        uids.push(uid);
    }
    is_there
}
