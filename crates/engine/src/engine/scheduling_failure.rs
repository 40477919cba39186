//! What happens to a pod whose attempt failed (upstream's `handleSchedulingFailure`): it is requeued first, then its nomination, the Event
//! and the condition are updated.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::api_calls::PluginStepInput;
use loadmaster_framework::world::KeyVersion;
use loadmaster_framework::{CycleState, PodInfo};

use super::attempt_failure::{AttemptFailure, UnschedulableAttempt};
use super::effect::{AttemptOutcome, Effect, Effects, EventRecord};
use super::last_attempt::FailedAttempt;
use super::node_filter_cache::{Explained, NodeFilterId, NodeFilterResults};
use super::nominator::Nomination;
use super::post_filter::PostFilterRun;
use super::profiles::ProfileScheduler;
use super::rejection_summary::RejectionSummary;
use super::status_patch::Condition;
use super::{Engine, PluginHandle};
use crate::diagnosis::Diagnosis;
use crate::evaluate::ExtenderResults;
use crate::evaluate::per_node::AttemptEvaluation;
use crate::node_rejections::NodeRejections;
use crate::queue::{PluginIdx, ProfileIdx, QueuedPod};
use crate::scheduler::SharedKeys;
use crate::time::Now;

/// Longest note of an Event, in bytes (upstream's `NoteLengthLimit`).
const NOTE_LEN_MAX: usize = 1024;

/// The last diagnosis: pods with equal keys get the same one while the world does not change, unless it names the pod.
pub(super) struct CachedDiagnosis {
    profile_idx: ProfileIdx,
    shared: SharedKeys,
    /// Decides which nominated pods count.
    priority: i32,
    state: DiagnosedState,
    unschedulable: Arc<UnschedulableAttempt>,
}

/// What a diagnosis was made of.
#[derive(PartialEq, Eq)]
struct DiagnosedState {
    next_change: u64,
    nominations: u64,
    plugin_states: u64,
    /// Version of the objects that keys in the pod's namespace depend on, which plugins also read in their messages.
    keys: KeyVersion,
}

impl Engine {
    /// No node is feasible: finds out why, and runs PostFilter.
    pub(super) fn handle_fit_error(
        &mut self,
        now: Now,
        queued: QueuedPod,
        began: u64,
        extended: &ExtenderResults,
        effects: &mut Effects,
    ) {
        let unschedulable = self.diagnose(&queued, extended);
        let failure = &unschedulable.diagnosis.failure;
        if failure.is_some() || self.world.nodes().is_empty() {
            let failed = match failure {
                Some(failure) => AttemptFailure::error(failure.clone()),
                None => AttemptFailure::fit_error(&unschedulable),
            };
            self.observe_algorithm(began, effects);
            return self.handle_scheduling_failure(
                now,
                queued,
                failed,
                &Nomination::clear(),
                began,
                effects,
            );
        }
        self.n_bindings += 1;
        let run = PostFilterRun::new(self.n_bindings, queued, unschedulable, began, now.mono);
        self.post_filter(now, run, PluginStepInput::Start, effects);
    }

    fn diagnose(
        &mut self,
        queued: &QueuedPod,
        extended: &ExtenderResults,
    ) -> Arc<UnschedulableAttempt> {
        let pod = &queued.info.pod;
        let profile_scheduler = &mut self.profiles[queued.profile_idx.0 as usize];
        let state = DiagnosedState {
            next_change: self.world.next_change_seq(),
            nominations: self.world.nominations_version(),
            plugin_states: profile_scheduler.scheduler.plugin_states().version(),
            keys: self.world.key_version(&pod.template),
        };
        let may_share = extended.is_empty()
            && pod.nominated_node_name.is_empty()
            && pod.node_name.is_empty()
            && pod.resized.is_none();
        let shared = profile_scheduler.scheduler.shared_keys(pod).filter(|_| may_share);
        if let Some(known) = &self.last_diagnosis
            && shared == Some(known.shared)
            && known.profile_idx == queued.profile_idx
            && known.priority == pod.template.priority()
            && known.state == state
        {
            return known.unschedulable.clone();
        }
        let id = profile_scheduler.scheduler.node_filter_keys(&self.world, pod);
        let id = id.filter(|_| may_share).map(|keys| NodeFilterId {
            profile_idx: queued.profile_idx,
            keys,
            priority: pod.template.priority(),
        });
        let updated = id.as_ref().and_then(|id| self.diagnose_changed_nodes(queued, id));
        let unschedulable =
            Arc::new(updated.unwrap_or_else(|| self.diagnose_all_nodes(queued, extended, id)));
        let names_pod = unschedulable.diagnosis.message.contains(&*pod.name);
        if let Some(shared) = shared.filter(|_| !names_pod) {
            let unschedulable = unschedulable.clone();
            self.last_diagnosis = Some(CachedDiagnosis {
                profile_idx: queued.profile_idx,
                shared,
                priority: pod.template.priority(),
                state,
                unschedulable,
            });
        }
        unschedulable
    }

    /// The diagnosis from the results of earlier pods, after the nodes that changed were filtered again. `None` if there are no such results,
    /// or most nodes must be evaluated.
    fn diagnose_changed_nodes(
        &mut self,
        queued: &QueuedPod,
        id: &NodeFilterId,
    ) -> Option<UnschedulableAttempt> {
        let mut known = self.node_filter_cache.take(id)?;
        let changed = known.changed_rows(&self.world)?;
        let pod = &queued.info.pod;
        let ProfileScheduler { profile, scheduler, .. } =
            &mut self.profiles[id.profile_idx.0 as usize];
        let rows = scheduler.update_rejections(&self.world, pod, &changed, &mut known.rejections);
        let mut cycle = None;
        if !rows.is_empty() {
            let filtered = scheduler.filter_rows(&mut self.world, pod, &rows)?;
            for (row, result) in rows.iter().zip(filtered.results) {
                known.rejections.set(*row, &result.err()?)?;
            }
            cycle = Some((filtered.cycle, filtered.skipped));
        }
        known.set_updated(&self.world, &changed);
        let Explained { diagnosis, reasons } = known.explain(profile, &self.world);
        let might_help = &diagnosis.rows_where_preemption_might_help;
        let mut post_filter = profile.post_filter.iter();
        if cycle.is_none() && post_filter.any(|it| it.point.reads_cycle_state(might_help)) {
            let filtered = scheduler.filter_rows(&mut self.world, pod, &[])?;
            cycle = Some((filtered.cycle, filtered.skipped));
        }
        let (cycle, skipped) = match cycle {
            Some((_, skipped)) if skipped != known.skipped => return None,
            Some(cycle) => cycle,
            None => (CycleState::default(), known.skipped.clone()),
        };
        let node_filter_id = Some(id.clone());
        let attempt = UnschedulableAttempt { cycle, skipped, node_filter_id, diagnosis, reasons };
        self.node_filter_cache.insert(&self.world, known);
        Some(attempt)
    }

    /// The diagnosis after an evaluation of all nodes, which is kept for pods with this id.
    fn diagnose_all_nodes(
        &mut self,
        queued: &QueuedPod,
        extended: &ExtenderResults,
        id: Option<NodeFilterId>,
    ) -> UnschedulableAttempt {
        let pod = &queued.info.pod;
        let profile_scheduler = &mut self.profiles[queued.profile_idx.0 as usize];
        let AttemptEvaluation { evaluation, cycle, skipped, .. } =
            profile_scheduler.scheduler.evaluate_attempt(&mut self.world, pod, extended);
        let (profile, world) = (&profile_scheduler.profile, &self.world);
        let rejections = NodeRejections::of_evaluation(world.nodes().n_rows(), &evaluation);
        let (node_filter_id, Explained { diagnosis, reasons }) = match (rejections, id) {
            (Some(rejections), Some(id)) => {
                let skipped = skipped.clone();
                let mut results = NodeFilterResults::new(id.clone(), world, skipped, rejections);
                let explained = results.explain(profile, world);
                self.node_filter_cache.insert(world, results);
                (Some(id), explained)
            }
            _ => {
                let diagnosis = Arc::new(Diagnosis::new(profile, world, pod, &evaluation));
                let reasons = Arc::new(RejectionSummary::from_evaluation(world, &evaluation));
                (None, Explained { diagnosis, reasons })
            }
        };
        UnschedulableAttempt { cycle, skipped, node_filter_id, diagnosis, reasons }
    }

    /// Drops all results of earlier attempts.
    pub(super) fn forget_diagnoses(&mut self) {
        self.last_diagnosis = None;
        self.node_filter_cache.clear();
    }

    /// Requeues the pod, records the Event and patches its status.
    pub(super) fn handle_scheduling_failure(
        &mut self,
        now: Now,
        mut queued: QueuedPod,
        failed: AttemptFailure,
        nomination: &Nomination,
        began: u64,
        effects: &mut Effects,
    ) {
        let nanos = (self.options.stopwatch)().saturating_sub(began);
        self.observe_attempt(&queued, failed.outcome, nanos, effects);
        let index = |plugins: &[usize]| plugins.iter().map(|at| PluginIdx(*at as u32)).collect();
        queued.set_rejecters(index(&failed.unschedulable), index(&failed.pending));
        let tried = queued.info.pod.clone();
        let profile_idx = queued.profile_idx;
        // The current version of the pod: it may have been updated, bound by another scheduler, or deleted.
        let pod = match self.pending.get_mut(&tried.uid) {
            Some(pending) => {
                let last = FailedAttempt::new(now.wall, queued.info.attempts, &failed, nomination);
                pending.last_attempt = Some(Box::new(last));
                let pod = pending.pod.clone();
                queued.info.pod = pod.clone();
                if self.profiles.is_replaced(profile_idx) {
                    let is_error = failed.outcome == AttemptOutcome::Error;
                    self.retry_under_new_profile(now, queued, is_error);
                } else {
                    let handle =
                        PluginHandle::new(&self.profiles, &self.registrations, &self.world);
                    self.queue.requeue(now, &handle, queued);
                }
                pod
            }
            None => {
                self.queue.done(&tried.uid);
                tried
            }
        };
        self.apply_nomination(&pod, nomination);
        effects.push(Effect::RecordEvent(failed_scheduling(
            &pod,
            &failed,
            self.scheduler_name(profile_idx),
        )));
        let reason = match failed.outcome {
            AttemptOutcome::Error => "SchedulerError",
            _ => "Unschedulable",
        };
        let condition = Condition {
            status: Str::new("False"),
            reason: Str::new(reason),
            message: failed.message.into(),
        };
        self.patch_status(now, &pod.uid, Some(condition), nomination.new_status_value(), effects);
    }
}

fn failed_scheduling(pod: &PodInfo, failed: &AttemptFailure, controller: Str) -> EventRecord {
    EventRecord {
        is_warning: true,
        reason: "FailedScheduling",
        action: "Scheduling",
        note: truncate_note(&failed.message),
        regarding: pod.into(),
        related: None,
        controller,
    }
}

/// The message, truncated to the length limit of an Event's note (upstream's `truncateMessage`).
fn truncate_note(message: &str) -> String {
    const MORE: &str = " ...";
    if message.len() <= NOTE_LEN_MAX {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(NOTE_LEN_MAX - MORE.len());
    format!("{}{MORE}", &message[..end])
}
