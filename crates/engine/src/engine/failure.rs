//! What becomes of a pod whose attempt ended without a node (upstream's `handleSchedulingFailure`): back to the queue first, then the
//! promise, the Event and the condition.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::request::Input;
use loadmaster_framework::template::TemplateId;
use loadmaster_framework::{Failure, PodInfo, Rejection};

use super::effect::{Effect, Effects, Outcome, Tell};
use super::last::{Evidence, Last, Reasons};
use super::nominations::Nomination;
use super::post_filter::PostFiltering;
use super::status::Condition;
use super::{Asking, Engine};
use crate::diagnosis::{self, Diagnosis};
use crate::evaluate::one_by_one::Attempted;
use crate::evaluate::{Extended, Rejected};
use crate::profile::Profile;
use crate::queue::{PluginIdx, QueuedPod};
use crate::time::Now;

/// Longest note of an Event, in bytes (upstream's `NoteLengthLimit`).
const NOTE_LEN_MAX: usize = 1024;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// `Unschedulable` when somebody turned the pod down, `Error` when something went wrong.
    pub outcome: Outcome,
    pub message: String,
    /// Plugins that turned it down, by index. Nobody: the pod comes back after its backoff.
    pub unschedulable: Vec<usize>,
    /// Plugins that wait for something outside.
    pub pending: Vec<usize>,
    /// What is kept of it.
    pub evidence: Evidence,
}

impl Failed {
    pub fn error(message: impl Into<String>) -> Failed {
        Failed {
            outcome: Outcome::Error,
            message: message.into(),
            unschedulable: Vec::new(),
            pending: Vec::new(),
            evidence: Evidence::default(),
        }
    }

    /// No node is feasible.
    pub fn unfit(unplaced: &Unplaced) -> Failed {
        let diagnosis = &unplaced.diagnosis;
        Failed {
            outcome: Outcome::Unschedulable,
            message: diagnosis.message.clone(),
            unschedulable: diagnosis.unschedulable.clone(),
            pending: diagnosis.pending.clone(),
            evidence: Evidence::of(&unplaced.reasons),
        }
    }

    /// A plugin turned down the only node that was asked about.
    pub fn rejected(plugin: Option<usize>, rejection: &Rejection) -> Failed {
        let mut failed = Failed {
            outcome: Outcome::Unschedulable,
            ..Failed::error(diagnosis::message_of_one(rejection))
        };
        match rejection {
            Rejection::Pending(_) => failed.pending.extend(plugin),
            _ => failed.unschedulable.extend(plugin),
        }
        failed
    }

    /// What a plugin said in Reserve or Permit.
    pub fn at(point: &str, name: &str, plugin: usize, rejection: &Rejection) -> Failed {
        match rejection {
            Rejection::Failed(Failure(text)) => {
                Failed::error(format!("running {point} plugin {name:?}: {text}"))
            }
            rejection => Failed::rejected(Some(plugin), rejection),
        }
    }

    /// What a plugin said in PreBind or Bind: whatever it was, the pod comes back after its backoff.
    pub fn late(point: &str, name: &str, rejection: Rejection) -> Failed {
        match rejection {
            Rejection::Failed(Failure(text)) => {
                Failed::error(format!("running {point} plugin {name:?}: {text}"))
            }
            rejection => {
                Failed { outcome: Outcome::Unschedulable, ..Failed::error(rejection.message()) }
            }
        }
    }

    /// A plugin said yes when it was decided and something else when it was asked again.
    pub fn again(profile: &Profile, rejected: &Rejected) -> Failed {
        let named = |name: &str| profile.plugins.iter().position(|plugin| plugin.name == name);
        match &rejected.rejection {
            Rejection::Failed(failure) => Failed::error(failure.to_string()),
            rejection => Failed::rejected(rejected.plugin.and_then(named), rejection),
        }
    }
}

/// What is known about a pod that fits nowhere.
pub(super) struct Unplaced {
    pub attempted: Attempted,
    pub diagnosis: Diagnosis,
    pub reasons: Arc<Reasons>,
}

/// The last pod that fit nowhere: those like it in the same world are told the same.
pub(super) struct Diagnosed {
    template: TemplateId,
    /// Numbers of the world's last change and last promise.
    state: (u64, u64),
    unplaced: Arc<Unplaced>,
}

impl Engine {
    /// No node is feasible: finds out why, and asks PostFilter to make room.
    pub(super) fn nothing_fits(
        &mut self,
        now: Now,
        queued: QueuedPod,
        began: u64,
        extended: &Extended,
        effects: &mut Effects,
    ) {
        let unplaced = self.diagnose(&queued, extended);
        let failure = &unplaced.diagnosis.failure;
        if failure.is_some() || self.world.nodes().is_empty() {
            let failed = match failure {
                Some(failure) => Failed::error(failure.clone()),
                None => Failed::unfit(&unplaced),
            };
            self.observe_algorithm(began, effects);
            return self.fail(now, queued, failed, &Nomination::clear(), began, effects);
        }
        self.n_bindings += 1;
        let asked = PostFiltering::new(self.n_bindings, queued, unplaced, began, now.mono);
        self.post_filter(now, asked, Input::Start, effects);
    }

    fn diagnose(&mut self, queued: &QueuedPod, extended: &Extended) -> Arc<Unplaced> {
        let pod = &queued.info.pod;
        let state = (self.world.now(), self.world.n_promises());
        let seat = &mut self.seats[queued.seat.0 as usize];
        let is_shared = extended.is_empty()
            && pod.nominated_node_name.is_empty()
            && pod.node_name.is_empty()
            && pod.resized.is_none()
            && seat.scheduler.answers_by_template(pod);
        if let Some(known) = &self.diagnosed
            && is_shared
            && known.template == pod.template.id
            && known.state == state
        {
            return known.unplaced.clone();
        }
        let attempted = seat.scheduler.attempt(&self.world, pod, extended);
        let evaluation = &attempted.evaluation;
        let diagnosis = Diagnosis::new(&seat.profile, &self.world, pod, evaluation);
        let reasons = Arc::new(Reasons::of(&self.world, evaluation));
        let unplaced = Arc::new(Unplaced { attempted, diagnosis, reasons });
        if is_shared {
            let unplaced = unplaced.clone();
            self.diagnosed = Some(Diagnosed { template: pod.template.id, state, unplaced });
        }
        unplaced
    }

    /// Sends the pod back to the queue, and tells everybody why.
    pub(super) fn fail(
        &mut self,
        now: Now,
        mut queued: QueuedPod,
        failed: Failed,
        nomination: &Nomination,
        began: u64,
        effects: &mut Effects,
    ) {
        let nanos = (self.options.ticks)().saturating_sub(began);
        self.observe_attempt(&queued, failed.outcome, nanos, effects);
        let index = |plugins: &[usize]| plugins.iter().map(|at| PluginIdx(*at as u32)).collect();
        queued.set_rejecters(index(&failed.unschedulable), index(&failed.pending));
        let tried = queued.info.pod.clone();
        let seat = queued.seat;
        // The pod as it is now: it may have changed, have got a node from somebody else, or be gone.
        let pod = match self.pending.get_mut(&tried.uid) {
            Some(pending) => {
                let last = Last::new(now.wall, queued.info.attempts, &failed, nomination);
                pending.last = Some(Box::new(last));
                queued.info.pod = pending.pod.clone();
                let asking = Asking::new(&self.seats, &self.interests, &self.world);
                self.queue.requeue(now, &asking, queued);
                pending.pod.clone()
            }
            None => {
                self.queue.done(&tried.uid);
                tried
            }
        };
        self.nominate(&pod, nomination);
        effects.push(Effect::Tell(failed_scheduling(&pod, &failed, self.scheduler_name(seat))));
        let reason = match failed.outcome {
            Outcome::Error => "SchedulerError",
            _ => "Unschedulable",
        };
        let condition = Condition {
            status: Str::new("False"),
            reason: Str::new(reason),
            message: failed.message.into(),
        };
        self.patch_status(now, &pod.uid, Some(condition), nomination.for_status(), effects);
    }
}

fn failed_scheduling(pod: &PodInfo, failed: &Failed, controller: Str) -> Tell {
    Tell {
        is_warning: true,
        reason: "FailedScheduling",
        action: "Scheduling",
        note: shortened(&failed.message),
        regarding: pod.into(),
        related: None,
        controller,
    }
}

/// The message as far as it fits into an Event.
fn shortened(message: &str) -> String {
    const MORE: &str = " ...";
    if message.len() <= NOTE_LEN_MAX {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(NOTE_LEN_MAX - MORE.len());
    format!("{}{MORE}", &message[..end])
}
