//! Which pods a Job creates and deletes.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodSpec,
};

use super::backoff::{Backoff, finished_at, left};
use super::pod_tracking::{FAILURES, IGNORED, number};
use super::{FINALIZER, INDEX, JobSync, free, is_tracked};
use crate::meta::is_terminating;
use crate::replica_set::BURST;
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{is_terminal, pod_from_template, sort_for_deletion};

const ENVIRONMENT: &str = "JOB_COMPLETION_INDEX";
/// Maximum length of the prefix of a generated name.
const BASE_MAX: usize = 58;

/// Pods to create, by completion index if there are indexes, and pods to delete.
#[derive(Debug, Default)]
pub(super) struct PodPlan<'a> {
    pub make: Vec<Option<i32>>,
    pub delete: Vec<&'a Pod>,
}

impl<'a> JobSync<'a> {
    /// Pods to create and delete to reach the desired parallelism. `n_leaving` pods are terminating.
    pub(super) fn plan(
        &self,
        succeeded: i32,
        n_leaving: usize,
        backoff: &Backoff,
        writes: &mut ReconcileResultBuilder,
    ) -> PodPlan<'a> {
        let active = self.active();
        if self.is_suspended() {
            return PodPlan { make: Vec::new(), delete: active };
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            // Once a pod has succeeded no further ones are begun.
            None if succeeded > 0 => active.len(),
            None => usize::try_from(parallelism).unwrap_or(0),
            Some(all) => usize::try_from((all - succeeded).min(parallelism)).unwrap_or(0),
        };
        let delete = self.excess(&active, active.len().saturating_sub(wanted));
        if !delete.is_empty() {
            return PodPlan { make: Vec::new(), delete };
        }
        let n_awaited = if self.replaces_only_failed() { n_leaving } else { 0 };
        let missing = wanted.saturating_sub(n_awaited + active.len()).min(BURST);
        let mut make = vec![None; missing];
        if self.is_indexed {
            make = self.free_indexes(&active, missing).into_iter().map(Some).collect();
        }
        if self.spec.backoff_limit_per_index.is_some() && self.is_indexed {
            let waits = |index: &Option<i32>| index.and_then(|index| self.wait_of(index));
            if let Some(wait) = make.iter().filter_map(waits).min() {
                writes.requeue_after(wait);
            }
            make.retain(|index| waits(index).is_none());
        } else if let Some(wait) = backoff.left(self.now).filter(|_| !make.is_empty()) {
            writes.requeue_after(wait);
            make.clear();
        }
        PodPlan { make, delete: Vec::new() }
    }

    /// How long an index whose pod failed must wait.
    fn wait_of(&self, index: i32) -> Option<Duration> {
        let last = self.predecessor(index)?;
        let n_failures = number(last, FAILURES) + number(last, IGNORED) + 1;
        left(u32::try_from(n_failures).unwrap_or(0), finished_at(last), self.now)
    }

    /// Active pods to delete: at least `at_least`, and all with an invalid or duplicate index.
    fn excess(&self, active: &[&'a Pod], at_least: usize) -> Vec<&'a Pod> {
        let mut order = active.to_vec();
        sort_for_deletion(&mut order, &[], self.now);
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        if self.is_indexed {
            let mut taken = BTreeSet::new();
            // The last in the order stays.
            for pod in order.into_iter().rev() {
                let is_first = self.index(pod).is_some_and(|index| taken.insert(index));
                if is_first { left.push(pod) } else { gone.push(pod) }
            }
            left.reverse();
        } else {
            left = order;
        }
        let more = at_least.saturating_sub(gone.len());
        gone.extend(left.into_iter().take(more));
        gone.truncate(BURST);
        gone
    }

    /// The lowest indexes that have no active pod and are not finished.
    fn free_indexes(&self, active: &[&Pod], most: usize) -> Vec<i32> {
        let is_leaving = |pod: &&&Pod| is_terminating(&pod.metadata) && !is_terminal(pod);
        let leaving = self.pods.iter().filter(|_| self.replaces_only_failed()).filter(is_leaving);
        let busy: BTreeSet<i32> =
            active.iter().chain(leaving).filter_map(|pod| self.index(pod)).collect();
        let is_free = |index: &i32| {
            !busy.contains(index) && !self.succeeded.contains(index) && !self.failed.contains(index)
        };
        (0..self.spec.completions.unwrap_or(0)).filter(is_free).take(most).collect()
    }

    pub(super) fn manage_pods(
        &self,
        step: &PodPlan<'_>,
        has_trouble: bool,
        writes: &mut ReconcileResultBuilder,
    ) {
        for pod in &step.delete {
            // Such a pod is not to be counted as failed.
            if is_tracked(pod) {
                free(pod, writes);
            }
            writes.delete(*pod);
        }
        let burst = if has_trouble { 1 } else { BURST };
        for index in step.make.iter().take(burst) {
            writes.create(&self.pod(*index));
        }
    }

    fn pod(&self, index: Option<i32>) -> Pod {
        let mut pod = pod_from_template(&self.spec.template, self.job);
        let finalizers = pod.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        let Some(index) = index else { return pod };
        let name = self.job.metadata.name.as_deref().unwrap_or_default();
        let tail = format!("-{index}-");
        let base: String = name.chars().take(BASE_MAX - tail.len()).collect();
        pod.metadata.generate_name = Some(format!("{base}{tail}"));
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(INDEX.to_owned(), index.to_string());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX.to_owned(), index.to_string());
        if self.spec.backoff_limit_per_index.is_some() {
            let last = self.predecessor(index);
            let counts = last.is_some_and(|last| self.counts(last));
            let before = |key| last.map_or(0, |last| number(last, key));
            let failures = before(FAILURES) + i32::from(counts);
            let ignored = before(IGNORED) + i32::from(last.is_some() && !counts);
            annotations.insert(FAILURES.to_owned(), failures.to_string());
            if ignored > 0 {
                annotations.insert(IGNORED.to_owned(), ignored.to_string());
            }
        }
        if let Some(spec) = &mut pod.spec {
            spec.hostname = Some(format!("{name}-{index}"));
            set_index_environment(spec);
        }
        pod
    }
}

/// Gives every container its pod's index in the environment.
fn set_index_environment(spec: &mut PodSpec) {
    let set_index = |container: &mut Container| {
        let all = container.env.get_or_insert_default();
        if all.iter().all(|one| one.name != ENVIRONMENT) {
            let field_path = format!("metadata.labels['{INDEX}']");
            let field_ref = ObjectFieldSelector { field_path, api_version: None };
            let source = EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() };
            all.push(EnvVar {
                name: ENVIRONMENT.to_owned(),
                value: None,
                value_from: Some(source),
            });
        }
    };
    spec.init_containers.iter_mut().flatten().for_each(set_index);
    spec.containers.iter_mut().for_each(set_index);
}
