//! CronJobs: a Job at each scheduled time.
//!
//! | | |
//! | --- | --- |
//! | writes | Jobs, status of CronJobs, Events |
//! | upstream | `pkg/controller/cronjob`, 1.36 |
//! | deviations | time zones are those that the program has; without a database of them, UTC |

mod schedule;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::job::{has_succeeded, is_finished};
use crate::kind::{Key, Kind};
use crate::meta::{annotation_value, controller_reference, is_controlled_by, is_terminating};
use crate::result_builder::{ReconcileResultBuilder, omit_empty};
use crate::workload::controller_key;
use schedule::Schedule;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Added to the next start time, because clocks differ a little.
const SLACK: Duration = Duration::from_millis(100);
/// From this number of missed start times on, a warning Event is recorded.
const MISSED_MAX: i64 = 100;

/// The controller of CronJobs.
#[derive(Debug, Default)]
pub(crate) struct CronJobController;

impl Controller for CronJobController {
    fn name(&self) -> &'static str {
        "cronjob-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::CronJob, Kind::Job]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        if object.kind() == Kind::CronJob {
            return vec![object.key()];
        }
        controller_key(object.metadata(), Kind::CronJob).into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(cron) = cache.get::<CronJob>(&key.namespace, &key.name) else {
            return ReconcileResult::none();
        };
        let spec = &cron.spec;
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs = cache.store::<Job>().owned_by(uid).map(|job| &**job);
        let jobs = jobs.filter(|job| is_controlled_by(&job.metadata, uid)).collect();
        let is_taken = |name: &str| cache.get::<Job>(&key.namespace, name).is_some();
        let status = cron.status.clone().unwrap_or_default();
        let mut look = CronJobSync { cron, spec, jobs, status, now };
        look.reconcile(&is_taken, &mut writes);
        writes.build()
    }
}

/// One sync of a CronJob.
struct CronJobSync<'a> {
    cron: &'a CronJob,
    spec: &'a CronJobSpec,
    jobs: Vec<&'a Job>,
    /// The desired state.
    status: CronJobStatus,
    now: Timestamp,
}

fn name_of(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// The scheduled time for which a Job was made.
fn scheduled(job: &Job) -> Option<Timestamp> {
    annotation_value(&job.metadata, SCHEDULED)?.parse().ok()
}

impl CronJobSync<'_> {
    fn reconcile(&mut self, is_taken: &dyn Fn(&str) -> bool, writes: &mut ReconcileResultBuilder) {
        self.follow(writes);
        self.clean_up(writes);
        if !is_terminating(&self.cron.metadata) {
            self.start(is_taken, writes);
        }
        if Some(&self.status) != self.cron.status.as_ref()
            && self.status != CronJobStatus::default()
            || self.cron.status.as_ref().is_some_and(|before| *before != self.status)
        {
            let mut changed = self.cron.clone();
            changed.status = Some(self.status.clone());
            writes.update_status(&changed);
        }
    }

    /// Brings the list of active Jobs and the times in the status up to date.
    fn follow(&mut self, writes: &mut ReconcileResultBuilder) {
        let mut active = self.status.active.take().unwrap_or_default();
        let mut last = self.status.last_schedule_time.as_ref().map(|time| time.0);
        let mut good = self.status.last_successful_time.as_ref().map(|time| time.0);
        for job in &self.jobs {
            let place = active.iter().position(|one| one.uid == job.metadata.uid);
            let time = scheduled(job).filter(|time| self.job_name(*time) == name_of(&job.metadata));
            match (place, is_finished(job)) {
                (Some(place), true) => {
                    active.remove(place);
                    let end = if has_succeeded(job) { "Complete" } else { "Failed" };
                    let text =
                        format!("Saw completed job: {}, condition: {end}", name_of(&job.metadata));
                    writes.event(self.cron, "SawCompletedJob", text);
                }
                (None, false) if time.is_some() => active.push(reference(job)),
                _ => {}
            }
            last = last.max(time);
            let end = job.status.as_ref().and_then(|status| status.completion_time.as_ref());
            good = good.max(end.map(|time| time.0).filter(|_| has_succeeded(job)));
        }
        active.retain(|one| {
            let is_there = self.jobs.iter().any(|job| job.metadata.uid == one.uid);
            if !is_there {
                let text =
                    format!("Active job went missing: {}", one.name.as_deref().unwrap_or_default());
                writes.event(self.cron, "MissingJob", text);
            }
            is_there
        });
        self.status.active = Some(active).filter(|all| !all.is_empty());
        self.status.last_schedule_time = last.map(Time);
        self.status.last_successful_time = good.map(Time);
    }

    /// Deletes the oldest finished Jobs above the history limits.
    fn clean_up(&self, writes: &mut ReconcileResultBuilder) {
        let finished = |is_good: bool| {
            let jobs = self.jobs.iter().copied();
            let mut jobs: Vec<&Job> =
                jobs.filter(|job| is_finished(job) && has_succeeded(job) == is_good).collect();
            let start =
                |job: &Job| job.status.as_ref().and_then(|status| status.start_time.clone());
            jobs.sort_by_key(|job| (start(job).is_none(), start(job), job.metadata.name.clone()));
            jobs
        };
        let limits = [
            (true, self.spec.successful_jobs_history_limit),
            (false, self.spec.failed_jobs_history_limit),
        ];
        for (is_good, limit) in limits {
            let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
            let jobs = finished(is_good);
            let excess = jobs.len().saturating_sub(limit);
            jobs.into_iter().take(excess).for_each(|job| self.delete(job, writes));
        }
    }

    fn delete(&self, job: &Job, writes: &mut ReconcileResultBuilder) {
        if !is_terminating(&job.metadata) {
            writes.delete_in_background(job);
            let text = format!("Deleted job {}", name_of(&job.metadata));
            writes.event(self.cron, "SuccessfulDelete", text);
        }
    }

    /// Starts a Job if one is due.
    fn start(&mut self, is_taken: &dyn Fn(&str) -> bool, writes: &mut ReconcileResultBuilder) {
        if self.spec.suspend == Some(true) {
            return;
        }
        let zone_name = self.spec.time_zone.as_deref().unwrap_or("UTC");
        let Some(zone) = zone(zone_name) else {
            let text = format!("invalid timeZone: {zone_name:?}: unknown time zone {zone_name}");
            return writes.warning(self.cron, "UnknownTimeZone", text);
        };
        let schedule = match Schedule::parse(&self.spec.schedule) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: {:?} : {error}", self.spec.schedule);
                return writes.warning(self.cron, "UnparseableSchedule", text);
            }
        };
        let Some(next) = schedule.next(self.now, &zone) else {
            let text = format!("invalid schedule: {} : it never comes", self.spec.schedule);
            return writes.warning(self.cron, "InvalidSchedule", text);
        };
        writes.requeue_after(next.duration_since(self.now).unsigned_abs() + SLACK);
        let Some((due, n_missed)) = self.due(&schedule, &zone) else { return };
        let name = self.job_name(due);
        let until = self.deadline().and_then(|deadline| due.checked_add(deadline).ok());
        let is_late = until.is_some_and(|until| until < self.now);
        if is_late || is_taken(&name) {
            return;
        }
        if n_missed > MISSED_MAX {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            writes.warning(self.cron, "TooManyMissedTimes", text);
        }
        let policy = self.spec.concurrency_policy.as_deref();
        if policy == Some("Forbid") && self.status.active.is_some() {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            return writes.event(self.cron, "JobAlreadyActive", text);
        }
        if policy == Some("Replace") {
            let active = self.status.active.take().unwrap_or_default();
            let is_active = |job: &&&Job| active.iter().any(|one| one.uid == job.metadata.uid);
            self.jobs.iter().filter(is_active).for_each(|job| self.delete(job, writes));
        }
        writes.create(&self.job(&name, due, &zone));
        writes.event(self.cron, "SuccessfulCreate", format!("Created job {name}"));
    }

    fn deadline(&self) -> Option<SignedDuration> {
        self.spec.starting_deadline_seconds.map(SignedDuration::from_secs)
    }

    /// The most recent missed start time, and about how many start times were missed.
    fn due(&self, schedule: &Schedule, zone: &TimeZone) -> Option<(Timestamp, i64)> {
        let made = self.cron.metadata.creation_timestamp.as_ref();
        let last = self.status.last_schedule_time.as_ref().or(made)?.0;
        let horizon = self.deadline().and_then(|deadline| self.now.checked_sub(deadline).ok());
        let first = schedule.next(horizon.map_or(last, |horizon| horizon.max(last)), zone)?;
        if first > self.now {
            return None;
        }
        let Some(second) = schedule.next(first, zone).filter(|second| *second <= self.now) else {
            return Some((first, 1));
        };
        let step = second.duration_since(first).as_secs().max(1);
        let n_missed = self.now.duration_since(first).as_secs() / step + 1;
        // Not all of them are visited: there may be very many.
        let skipped = SignedDuration::from_secs((n_missed - 2).max(0) * step);
        let mut due = first;
        let mut at = schedule.next(first.checked_add(skipped).ok()?, zone);
        while let Some(next) = at.filter(|next| *next <= self.now) {
            due = next;
            at = schedule.next(next, zone);
        }
        Some((due, n_missed))
    }

    /// The name contains the scheduled time, so that no Job is created twice.
    fn job_name(&self, time: Timestamp) -> String {
        format!("{}-{}", name_of(&self.cron.metadata), time.as_second() / 60)
    }

    fn job(&self, name: &str, time: Timestamp, zone: &TimeZone) -> Job {
        let template = &self.spec.job_template;
        let meta = template.metadata.clone().unwrap_or_default();
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.insert(SCHEDULED.to_owned(), print(time, zone));
        Job {
            metadata: ObjectMeta {
                name: omit_empty(name),
                namespace: self.cron.metadata.namespace.clone(),
                labels: meta.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference(self.cron)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    }
}

/// A time as RFC 3339 in a zone.
fn print(time: Timestamp, zone: &TimeZone) -> String {
    let offset = zone.to_offset(time);
    if offset == jiff::tz::Offset::UTC {
        time.to_string()
    } else {
        time.display_with_offset(offset).to_string()
    }
}

fn zone(name: &str) -> Option<TimeZone> {
    match name {
        "" | "UTC" | "Etc/UTC" => Some(TimeZone::UTC),
        _ => TimeZone::get(name).ok(),
    }
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: omit_empty("batch/v1"),
        kind: omit_empty("Job"),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        field_path: None,
    }
}
