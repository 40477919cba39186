//! The status of Deployments: counts, conditions, progress.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSetStatus,
};

use super::{Rollout, Set};
use crate::result_builder::{omit_empty, omit_zero};
use crate::workload::stamp;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const FAILURE: &str = "ReplicaFailure";
const PAUSED: &str = "DeploymentPaused";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const COMPLETE: &str = "NewReplicaSetAvailable";

/// The condition `Progressing`.
pub(super) fn progressing(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == PROGRESSING)
}

/// Whether all replicas are updated and available according to a status.
pub(super) fn is_complete(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    status: &DeploymentStatus,
) -> bool {
    let wanted = spec.replicas.unwrap_or(1);
    let counts = [status.updated_replicas, status.replicas, status.available_replicas];
    counts.into_iter().all(|count| count.unwrap_or(0) == wanted)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Whether the rollout progressed from one status to the next.
fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| {
        status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0)
    };
    after.updated_replicas > before.updated_replicas
        || old(after) < old(before)
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

/// Sets a condition; an equal one stays unchanged.
fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    let all = status.conditions.get_or_insert_default();
    if let Some(before) = all.iter().find(|one| one.type_ == condition.type_) {
        if before.status == condition.status && before.reason == condition.reason {
            return;
        }
        if before.status == condition.status {
            condition.last_transition_time = before.last_transition_time.clone();
        }
    }
    all.retain(|one| one.type_ != condition.type_);
    all.push(condition);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(all) = &mut status.conditions {
        all.retain(|one| one.type_ != kind);
    }
}

impl Rollout<'_> {
    pub(super) fn has_deadline(&self) -> bool {
        self.spec.progress_deadline_seconds.is_some_and(|seconds| seconds != i32::MAX)
    }

    pub(super) fn set_progressing(&mut self, value: &str, reason: &str, message: String) {
        let condition = self.condition(PROGRESSING, value, reason, message);
        set(&mut self.status, condition);
    }

    fn condition(
        &self,
        kind: &str,
        value: &str,
        reason: &str,
        message: String,
    ) -> DeploymentCondition {
        DeploymentCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: omit_empty(reason),
            message: Some(message),
            last_update_time: Some(stamp(self.now)),
            last_transition_time: Some(stamp(self.now)),
        }
    }

    /// Records that the Deployment was paused or resumed, so that the time between does not count against the progress deadline.
    pub(super) fn mark_pause(&mut self) {
        let reason = progressing(&self.status).and_then(|one| one.reason.as_deref());
        if !self.has_deadline() || reason == Some(TIMED_OUT) {
            return;
        }
        let is_marked = reason == Some(PAUSED);
        match (self.spec.paused == Some(true), is_marked) {
            (true, false) => {
                self.set_progressing("Unknown", PAUSED, "Deployment is paused".to_owned());
            }
            (false, true) => {
                let text = "Deployment is resumed".to_owned();
                self.set_progressing("Unknown", "DeploymentResumed", text);
            }
            _ => {}
        }
    }

    /// The counts, and whether enough replicas are available.
    pub(super) fn counted(&self) -> DeploymentStatus {
        let of = |get: &dyn Fn(&ReplicaSetStatus) -> i32, set: &Set| {
            set.set.status.as_ref().map_or(0, get)
        };
        let sum = |get: &dyn Fn(&ReplicaSetStatus) -> i32| {
            self.sets.iter().map(|set| of(get, set)).sum::<i32>()
        };
        let available = sum(&|status| status.available_replicas.unwrap_or(0));
        let updated = self.new.map_or(0, |idx| self.sets[idx].replicas());
        let mut status = DeploymentStatus {
            observed_generation: self.meta.generation,
            replicas: omit_zero(sum(&|status| status.replicas)),
            updated_replicas: omit_zero(updated),
            ready_replicas: omit_zero(sum(&|status| status.ready_replicas.unwrap_or(0))),
            available_replicas: omit_zero(available),
            unavailable_replicas: omit_zero((self.total() - available).max(0)),
            terminating_replicas: self.terminating(),
            collision_count: self.status.collision_count,
            conditions: self.status.conditions.clone(),
        };
        let (value, reason, text) = if available >= self.rollout_limits.min_available() {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        };
        set(&mut status, self.condition(AVAILABLE, value, reason, text.to_owned()));
        status
    }

    /// Terminating pods; None while a ReplicaSet does not report their number.
    fn terminating(&self) -> Option<i32> {
        let mut sum = 0;
        for set in &self.sets {
            let status = set.set.status.clone().unwrap_or_default();
            match status.terminating_replicas {
                Some(count) => sum += count,
                None if status.observed_generation.unwrap_or(0) == 0 => {}
                None => return None,
            }
        }
        Some(sum)
    }

    /// The status of a rollout: the counts, and whether it gets on.
    pub(super) fn track_progress(&mut self) {
        let mut status = self.counted();
        if !self.has_deadline() {
            remove(&mut status, PROGRESSING);
        }
        let current = progressing(&self.status).cloned();
        let reason = current.as_ref().and_then(|one| one.reason.as_deref());
        let was_complete = status.replicas == status.updated_replicas && reason == Some(COMPLETE);
        if self.has_deadline() && !was_complete {
            let said = |what: &str| match self.new {
                Some(idx) => format!("ReplicaSet \"{}\" {what}", self.sets[idx].name()),
                None => {
                    let name = self.meta.name.as_deref().unwrap_or_default();
                    format!("Deployment \"{name}\" {what}")
                }
            };
            if is_complete(self.before, self.spec, &status) {
                let text = said("has successfully progressed.");
                set(&mut status, self.condition(PROGRESSING, "True", COMPLETE, text));
            } else if has_progressed(&self.status, &status) {
                let text = said("is progressing.");
                let mut next = self.condition(PROGRESSING, "True", "ReplicaSetUpdated", text);
                if let Some(current) = current.filter(|one| one.status == "True") {
                    next.last_transition_time = current.last_transition_time;
                }
                // The time of the last progress is updated even if the reason is the same.
                remove(&mut status, PROGRESSING);
                set(&mut status, next);
            } else if self.has_timed_out(&status) {
                let text = said("has timed out progressing.");
                set(&mut status, self.condition(PROGRESSING, "False", TIMED_OUT, text));
            }
        }
        match self.failure() {
            Some(failure) => set(&mut status, failure),
            None => remove(&mut status, FAILURE),
        }
        self.status = status;
    }

    fn has_timed_out(&self, status: &DeploymentStatus) -> bool {
        let Some(condition) = progressing(status) else { return false };
        match condition.reason.as_deref() {
            Some(COMPLETE) => false,
            Some(TIMED_OUT) => true,
            _ => self.deadline(condition).is_some_and(|deadline| deadline < self.now),
        }
    }

    fn deadline(&self, condition: &DeploymentCondition) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(self.spec.progress_deadline_seconds?.into());
        condition.last_update_time.as_ref()?.0.checked_add(seconds).ok()
    }

    /// How long until the progress deadline of a rollout must be checked again.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let condition = progressing(&self.status)?;
        let is_over = condition.reason.as_deref() == Some(TIMED_OUT)
            || is_complete(self.before, self.spec, &self.status);
        if is_over || !self.has_deadline() {
            return None;
        }
        let left = self.deadline(condition)?.duration_since(self.now).max(SignedDuration::ZERO);
        Some(left.unsigned_abs() + Duration::from_secs(1))
    }

    /// The reason why a ReplicaSet cannot create or delete pods, that of the new ReplicaSet first.
    fn failure(&self) -> Option<DeploymentCondition> {
        let new = self.new.map(|idx| &self.sets[idx]);
        let sets = new.into_iter().chain(&self.sets);
        let all = sets.filter_map(|set| set.set.status.as_ref()?.conditions.as_ref());
        let one = all.flatten().find(|one| one.type_ == FAILURE)?;
        Some(DeploymentCondition {
            type_: one.type_.clone(),
            status: one.status.clone(),
            reason: one.reason.clone(),
            message: one.message.clone(),
            last_update_time: one.last_transition_time.clone(),
            last_transition_time: one.last_transition_time.clone(),
        })
    }
}
