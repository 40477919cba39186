//! Jobs: pods that are to end well, so many times.
//!
//! | | |
//! | --- | --- |
//! | writes | pods, status of Jobs, Events; deletes Jobs whose time after the end is over |
//! | upstream | `pkg/controller/job`, `pkg/controller/ttlafterfinished`, 1.36 |
//! | deviations | none known |
//!
//! A pod keeps a finalizer until it has been counted. Counting takes three looks: its uid (or index) is written into the status; what
//! the status shows loses its finalizer; a uid whose pod has none any more becomes a number.

mod backoff;
mod indexes;
mod pod_plan;
mod pod_tracking;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{
    annotation_value, controller_of, controller_reference, is_terminating, selector_matches,
};
use crate::request::{ControllerRequest, ControllerResponse, DeleteOptions, Patch};
use crate::result_builder::{ReconcileResultBuilder, omit_empty};
use crate::workload::{
    Claim, PodControlEvents, candidates, claim, controller_key, is_active, is_ready, is_terminal,
    keys_for_change, phase, stamp,
};
use backoff::Backoff;
use policy::FailureAction;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const MANAGER: &str = "kubernetes.io/job-controller";

/// The controller of Jobs.
#[derive(Debug, Default)]
pub(crate) struct JobController {
    pod_events: PodControlEvents,
    backoffs: BTreeMap<Key, Backoff>,
}

fn selector(job: &Job) -> Option<&LabelSelector> {
    job.spec.as_ref()?.selector.as_ref()
}

impl Controller for JobController {
    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Job, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let mut keys = keys_for_change::<Job>(change, cache, selector);
        // Pods of a finished or deleted Job must not keep a finalizer that no controller would remove.
        if let Some(job) = change.new_or_old_typed::<Job>() {
            if change.new.is_none() || is_finished(job) {
                let uid = job.metadata.uid.as_deref().unwrap_or_default();
                let pods = cache.store::<Pod>().owned_by(uid).filter(|pod| is_tracked(pod));
                keys.extend(pods.map(|pod| Key::from_object(&**pod)));
            }
        } else if let Some(pod) = change.new::<Pod>().filter(|pod| is_tracked(pod)) {
            keys.push(Key::from_object(pod));
        }
        keys
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        if key.kind == Kind::Pod {
            if let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name)
                && is_abandoned(pod, cache)
            {
                free(pod, &mut writes);
            }
            return writes.build();
        }
        let Some(job) = cache.get::<Job>(&key.namespace, &key.name) else {
            self.pod_events.forget(key);
            self.backoffs.remove(key);
            return ReconcileResult::none();
        };
        self.pod_events.record_events(&**job, &mut writes);
        let Some(spec) = job.spec.as_ref().filter(|spec| is_ours(spec)) else {
            return writes.build();
        };
        if is_finished(job) {
            self.backoffs.remove(key);
            expire(job, spec, now, &mut writes);
            return writes.build();
        }
        let all: Vec<&Pod> = candidates(&job.metadata, cache);
        let Some(pods) = claimed(job, spec, &all, &mut writes) else { return writes.build() };
        let backoff = self.backoffs.entry(key.clone()).or_default();
        let mut look = JobSync::new(job, spec, pods, now);
        backoff.record_finished(look.finished());
        look.reconcile(backoff, self.pod_events.last_failure(key).is_some(), &mut writes);
        writes.build()
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _now: Timestamp,
    ) {
        self.pod_events.handle_response(key, request, response);
    }
}

/// Whether the Job is not another controller's.
fn is_ours(spec: &JobSpec) -> bool {
    spec.managed_by.as_deref().is_none_or(|name| name == MANAGER)
}

fn status_of(job: &Job) -> JobStatus {
    job.status.clone().unwrap_or_default()
}

fn find<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == kind && one.status == "True")
}

/// Whether a Job is over, well or not.
pub(crate) fn is_finished(job: &Job) -> bool {
    job.status
        .as_ref()
        .is_some_and(|status| find(status, "Complete").or_else(|| find(status, "Failed")).is_some())
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|one| one == FINALIZER)
}

/// Whether no Job will ever count a pod.
fn is_abandoned(pod: &Pod, cache: &Cache) -> bool {
    let Some(owner) = controller_of(&pod.metadata) else { return is_tracked(pod) };
    let Some(key) = controller_key(&pod.metadata, Kind::Job) else { return false };
    let job = cache.get::<Job>(&key.namespace, &key.name);
    let job = job.filter(|job| job.metadata.uid.as_ref() == Some(&owner.uid));
    is_tracked(pod)
        && job.is_none_or(|job| job.spec.as_ref().is_none_or(is_ours) && is_finished(job))
}

/// Takes a pod's finalizer away, whatever else changes about the pod meanwhile.
fn free(pod: &Pod, writes: &mut ReconcileResultBuilder) {
    let meta = json!({"uid": pod.metadata.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]});
    writes.push(ControllerRequest::patch(
        Key::from_object(pod),
        Patch::Strategic(json!({"metadata": meta})),
    ));
}

/// Deletes a Job when its time after the end is over.
fn expire(job: &Job, spec: &JobSpec, now: Timestamp, writes: &mut ReconcileResultBuilder) {
    let Some(seconds) = spec.ttl_seconds_after_finished else { return };
    let status = status_of(job);
    let end = find(&status, "Complete").or_else(|| find(&status, "Failed"));
    let Some(end) = end.and_then(|end| end.last_transition_time.as_ref()) else { return };
    let left = SignedDuration::from_secs(seconds.into()) - now.duration_since(end.0);
    if left.is_positive() {
        writes.requeue_after(left.unsigned_abs());
    } else if !is_terminating(&job.metadata) {
        let uid = job.metadata.uid.clone();
        let options = DeleteOptions { uid, propagation: Some("Foreground"), ..Default::default() };
        writes.push(ControllerRequest::Delete { key: Key::from_object(job), options });
    }
}

/// The pods of a Job; None if some must be adopted or released first. Releasing also removes the finalizer.
fn claimed<'a>(
    job: &Job,
    spec: &JobSpec,
    pods: &[&'a Pod],
    writes: &mut ReconcileResultBuilder,
) -> Option<Vec<&'a Pod>> {
    let before = writes.len();
    let mut mine = Vec::new();
    for pod in pods {
        let ObjectMeta { labels, owner_references, finalizers, .. } = &pod.metadata;
        let selected =
            spec.selector.as_ref().is_some_and(|one| selector_matches(one, labels.as_ref()));
        let mut owners = owner_references.clone().unwrap_or_default();
        owners.retain(|one| Some(&one.uid) != job.metadata.uid.as_ref());
        let mut marks = finalizers.clone().unwrap_or_default();
        marks.retain(|one| one != FINALIZER);
        match claim(&job.metadata, &pod.metadata, selected) {
            Claim::Keep => mine.push(*pod),
            Claim::Ignore => continue,
            Claim::Release => {}
            Claim::Adopt => {
                owners.push(controller_reference(job));
                marks.push(FINALIZER.to_owned());
            }
        }
        if mine.last().is_none_or(|last| !std::ptr::eq(*last, *pod)) {
            writes.patch_meta(*pod, json!({"ownerReferences": owners, "finalizers": marks}));
        }
    }
    (writes.len() == before).then_some(mine)
}

/// How a Job comes to its end.
#[derive(Clone, Debug)]
struct Finish {
    is_success: bool,
    /// The status shows it already.
    is_declared: bool,
    reason: String,
    message: String,
}

/// One sync of a Job.
struct JobSync<'a> {
    job: &'a Job,
    spec: &'a JobSpec,
    pods: Vec<&'a Pod>,
    /// The desired state.
    status: JobStatus,
    is_indexed: bool,
    /// Indexes that have succeeded, those not written down yet included.
    succeeded: BTreeSet<i32>,
    /// Likewise, those that have failed for good.
    failed: BTreeSet<i32>,
    now: Timestamp,
}

impl<'a> JobSync<'a> {
    fn new(job: &'a Job, spec: &'a JobSpec, pods: Vec<&'a Pod>, now: Timestamp) -> JobSync<'a> {
        let mut look = JobSync {
            job,
            spec,
            pods,
            status: status_of(job),
            is_indexed: spec.completion_mode.as_deref() == Some("Indexed"),
            succeeded: BTreeSet::new(),
            failed: BTreeSet::new(),
            now,
        };
        look.status.uncounted_terminated_pods.get_or_insert_default();
        if look.is_indexed {
            look.read_indexes();
        }
        look
    }

    fn read_indexes(&mut self) {
        let completions = self.spec.completions.unwrap_or(0);
        let read =
            |text: Option<&String>| indexes::parse(text.map_or("", String::as_str), completions);
        self.succeeded = read(self.status.completed_indexes.as_ref());
        self.failed = read(self.status.failed_indexes.as_ref());
        let tracked: Vec<&Pod> = self.pods.iter().copied().filter(|pod| is_tracked(pod)).collect();
        for pod in tracked {
            let Some(index) = self.index(pod) else { continue };
            if phase(pod) == "Succeeded" {
                self.succeeded.insert(index);
            } else if self.has_index_failed(pod) {
                self.failed.insert(index);
            }
        }
    }

    /// A pod's index; none if it has none that counts.
    fn index(&self, pod: &Pod) -> Option<i32> {
        let index: i32 = annotation_value(&pod.metadata, INDEX)?.parse().ok()?;
        (0..self.spec.completions.unwrap_or(0)).contains(&index).then_some(index)
    }

    /// Whether a terminating pod is replaced only when it has been deleted (`podReplacementPolicy: Failed`).
    fn replaces_only_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
            || self.spec.pod_failure_policy.is_some()
    }

    /// Whether a pod counts as failed. A terminating one does, since it may be deleted before it reports a failure.
    fn has_failed(&self, pod: &Pod) -> bool {
        phase(pod) == "Failed"
            || !self.replaces_only_failed()
                && is_terminating(&pod.metadata)
                && phase(pod) != "Succeeded"
    }

    fn counts(&self, pod: &Pod) -> bool {
        policy::match_pod_failure_policy(self.spec, pod) != FailureAction::Ignore
    }

    /// Pods that have finished and are not counted for good.
    fn finished(&self) -> Vec<&'a Pod> {
        let is_new = |pod: &&Pod| {
            is_tracked(pod)
                && (!self.is_indexed || self.index(pod).is_some())
                && (phase(pod) == "Succeeded" || self.has_failed(pod))
        };
        self.pods.iter().copied().filter(is_new).collect()
    }

    fn active(&self) -> Vec<&'a Pod> {
        self.pods.iter().copied().filter(|pod| is_active(pod)).collect()
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Pods that succeeded or failed, counted or not.
    fn totals(&self) -> (i32, i32) {
        let uncounted = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let good = uncounted.succeeded.unwrap_or_default();
        let bad = uncounted.failed.unwrap_or_default();
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let new = self.finished();
        let is_new_good = |pod: &&&Pod| phase(pod) == "Succeeded" && !good.contains(&uid(pod));
        let is_new_bad =
            |pod: &&&Pod| self.has_failed(pod) && !bad.contains(&uid(pod)) && self.counts(pod);
        let succeeded = new.iter().filter(is_new_good).count() + good.len();
        let failed = new.iter().filter(is_new_bad).count() + bad.len();
        let succeeded = self.status.succeeded.unwrap_or(0) + succeeded as i32;
        let succeeded = if self.is_indexed { self.succeeded.len() as i32 } else { succeeded };
        (succeeded, self.status.failed.unwrap_or(0) + failed as i32)
    }

    fn reconcile(
        &mut self,
        backoff: &Backoff,
        has_trouble: bool,
        writes: &mut ReconcileResultBuilder,
    ) {
        let active = self.active();
        let mut n_active = active.len();
        let mut n_ready = active.iter().filter(|pod| is_ready(pod)).count();
        let mut n_leaving = self
            .pods
            .iter()
            .filter(|pod| is_terminating(&pod.metadata) && !is_terminal(pod))
            .count();
        if self.status.start_time.is_none() && !self.is_suspended() {
            self.status.start_time = Some(stamp(self.now));
        }
        let (succeeded, failed) = self.totals();
        let mut finish = self.finish(failed, writes);
        if finish.is_some() {
            active.iter().for_each(|pod| writes.delete(*pod));
            n_leaving += n_active;
            (n_active, n_ready) = (0, 0);
        } else {
            let is_going = is_terminating(&self.job.metadata);
            let step = if is_going {
                pod_plan::PodPlan::default()
            } else {
                self.plan(succeeded, n_leaving, backoff, writes)
            };
            n_active = n_active + step.make.len() - step.delete.len();
            n_ready -= step.delete.iter().filter(|pod| is_ready(pod)).count();
            n_leaving += step.delete.len();
            self.manage_pods(&step, has_trouble, writes);
            let is_enough = match self.spec.completions {
                None => succeeded > 0,
                Some(wanted) => succeeded >= wanted,
            };
            if is_enough && n_active == 0 {
                finish = Some(Finish {
                    is_success: true,
                    is_declared: false,
                    reason: "CompletionsReached".to_owned(),
                    message: "Reached expected number of succeeded pods".to_owned(),
                });
            } else if !is_going {
                self.mark_suspension(writes);
            }
        }
        self.status.active = some_count(n_active);
        self.status.ready = Some(n_ready as i32);
        self.status.terminating = Some(n_leaving as i32);
        self.track_finished_pods(finish.as_ref(), writes);
        if let Some(finish) = finish {
            self.declare(&finish, n_leaving, writes);
        }
        if self.status != status_of(self.job) {
            let mut changed = self.job.clone();
            changed.status = Some(self.status.clone());
            writes.update_status(&changed);
        }
    }

    /// Whether the Job finishes: it was decided before, or it must fail, or its success policy is met.
    fn finish(&self, failed: i32, writes: &mut ReconcileResultBuilder) -> Option<Finish> {
        let said = |one: &JobCondition, is_success| Finish {
            is_success,
            is_declared: true,
            reason: one.reason.clone().unwrap_or_default(),
            message: one.message.clone().unwrap_or_default(),
        };
        if let Some(one) = find(&self.status, "SuccessCriteriaMet") {
            return Some(said(one, true));
        }
        if let Some(one) = find(&self.status, "FailureTarget") {
            return Some(said(one, false));
        }
        let new = |is_success, reason: &str, message: &str| {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            Some(Finish { is_success, is_declared: false, reason, message })
        };
        let verdicts = self.pods.iter().filter(|pod| self.has_failed(pod));
        let verdicts = verdicts.map(|pod| policy::match_pod_failure_policy(self.spec, pod));
        for verdict in verdicts {
            if let FailureAction::FailJob(message) = verdict {
                return new(false, "PodFailurePolicy", &message);
            }
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if failed > limit || self.has_restarted_too_often(limit) {
            return new(
                false,
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
        }
        if let Some(left) = self.until_deadline() {
            if !left.is_positive() {
                return new(
                    false,
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                );
            }
            writes.requeue_after(left.unsigned_abs());
        }
        if self.spec.backoff_limit_per_index.is_some() && self.is_indexed {
            let n_failed = self.failed.len() as i32;
            if self.spec.max_failed_indexes.is_some_and(|most| n_failed > most) {
                let text = "Job has exceeded the specified maximal number of failed indexes";
                return new(false, "MaxFailedIndexesExceeded", text);
            }
            let n_done = n_failed + self.succeeded.len() as i32;
            if n_failed > 0 && n_done >= self.spec.completions.unwrap_or(0) {
                return new(false, "FailedIndexes", "Job has failed indexes");
            }
        }
        let message =
            policy::match_success_policy(self.spec, &self.succeeded).filter(|_| self.is_indexed)?;
        new(true, "SuccessPolicy", &message)
    }

    /// Containers that are restarted in place count against the limit, too.
    fn has_restarted_too_often(&self, limit: i32) -> bool {
        let spec = self.spec.template.spec.as_ref();
        if spec.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let alive = self.pods.iter().filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let statuses = alive.filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        let restarts: i64 = statuses.map(|one| i64::from(one.restart_count)).sum();
        if limit == 0 { restarts > 0 } else { restarts >= i64::from(limit) }
    }

    fn until_deadline(&self) -> Option<SignedDuration> {
        let allowed = self.spec.active_deadline_seconds.filter(|_| !self.is_suspended())?;
        let passed = self.now.duration_since(self.status.start_time.as_ref()?.0);
        Some(SignedDuration::from_secs(allowed).saturating_sub(passed))
    }

    fn mark_suspension(&mut self, writes: &mut ReconcileResultBuilder) {
        let before = self.status.conditions.iter().flatten().find(|one| one.type_ == "Suspended");
        let was = before.map(|one| one.status == "True");
        match (self.is_suspended(), was) {
            (true, Some(true)) | (false, None | Some(false)) => {}
            (true, _) => {
                self.set("Suspended", "True", "JobSuspended", "Job suspended");
                writes.event(self.job, "Suspended", "Job suspended");
                self.status.start_time = None;
            }
            (false, _) => {
                self.set("Suspended", "False", "JobResumed", "Job resumed");
                writes.event(self.job, "Resumed", "Job resumed");
                self.status.start_time = Some(stamp(self.now));
            }
        }
    }

    fn set(&mut self, kind: &str, value: &str, reason: &str, message: &str) {
        let condition = JobCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: omit_empty(reason),
            message: omit_empty(message),
            last_probe_time: Some(stamp(self.now)),
            last_transition_time: Some(stamp(self.now)),
        };
        let all = self.status.conditions.get_or_insert_default();
        match all.iter_mut().find(|one| one.type_ == kind) {
            Some(before) => *before = condition,
            None => all.push(condition),
        }
    }

    /// Sets the interim condition first, and the final one once all pods are deleted and counted.
    fn declare(&mut self, finish: &Finish, n_leaving: usize, writes: &mut ReconcileResultBuilder) {
        let Finish { is_success, is_declared, reason, message } = finish;
        if !is_declared {
            let kind = if *is_success { "SuccessCriteriaMet" } else { "FailureTarget" };
            return self.set(kind, "True", reason, message);
        }
        let uncounted = self.status.uncounted_terminated_pods.as_ref();
        let is_counted =
            uncounted.is_none_or(|one| one.succeeded.is_none() && one.failed.is_none());
        if !is_counted || n_leaving > 0 || self.pods.iter().any(|pod| is_tracked(pod)) {
            return;
        }
        self.set(if *is_success { "Complete" } else { "Failed" }, "True", reason, message);
        if *is_success {
            self.status.completion_time = Some(stamp(self.now));
            writes.event(self.job, "Completed", "Job completed");
        } else {
            writes.warning(self.job, reason, message);
        }
    }
}

fn some_count(number: usize) -> Option<i32> {
    crate::result_builder::omit_zero(number as i32)
}

/// Whether a Job is over and all went well.
pub(crate) fn has_succeeded(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| find(status, "Complete").is_some())
}
