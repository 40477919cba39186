//! PostFilter: tries to make an unschedulable pod schedulable, usually by preemption. A plugin that calls the API server resumes with the
//! reply; other pods are scheduled meanwhile, and this one stays in flight.

use std::sync::Arc;

use loadmaster_extender::Verb;
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::{
    CycleState, FitError, PodInfo, PostFilterCx, PostFilterResult, Rejection,
};

use super::Engine;
use super::attempt_failure::{AttemptFailure, UnschedulableAttempt};
use super::call_owner::CallOwner;
use super::effect::{ApiServerCall, Effect, Effects, Observation};
use super::nominator::Nomination;
use super::plugin_waits::PluginWait;
use crate::evaluate::filter_runner::ProfileFilters;
use crate::queue::QueuedPod;
use crate::time::{MonoTime, Now};

/// An attempt without a feasible node, while PostFilter plugins run.
pub(super) struct PostFilterRun {
    /// Distinguishes replies to this attempt from late replies to an earlier attempt of the pod.
    pub serial: u64,
    pub queued: QueuedPod,
    pub unschedulable: Arc<UnschedulableAttempt>,
    pub cycle: CycleState,
    /// When the attempt began, by the stopwatch.
    pub began: u64,
    /// When the first plugin was started.
    pub started: MonoTime,
    /// A plugin has been reported as stuck.
    pub is_stuck: bool,
    /// The running plugin.
    pub member: usize,
    /// The reasons of the plugins before it.
    reasons: Vec<String>,
    nomination: Nomination,
    /// The victims of preemption.
    victims: Vec<Arc<PodInfo>>,
}

impl PostFilterRun {
    pub fn new(
        serial: u64,
        queued: QueuedPod,
        unschedulable: Arc<UnschedulableAttempt>,
        began: u64,
        started: MonoTime,
    ) -> Self {
        PostFilterRun {
            started,
            is_stuck: false,
            serial,
            queued,
            cycle: unschedulable.cycle.clone(),
            unschedulable,
            began,
            member: 0,
            reasons: Vec::new(),
            nomination: Nomination::Keep,
            victims: Vec::new(),
        }
    }
}

impl Engine {
    /// Runs the current plugin and those after it, until one succeeds or all have rejected the pod.
    pub(super) fn post_filter(
        &mut self,
        now: Now,
        mut run: PostFilterRun,
        mut input: PluginStepInput<'_>,
        effects: &mut Effects,
    ) {
        let profile = self.profile_scheduler(run.queued.profile_idx).profile.clone();
        if profile.post_filter.is_empty() {
            return self.finish_post_filter(now, run, Nomination::clear(), effects);
        }
        let preempt_extenders =
            profile.extenders.interested_in(Verb::Preempt, &run.queued.info.pod.template.spec);
        while let Some(member) = profile.post_filter.get(run.member) {
            let id = run.unschedulable.node_filter_id.as_ref();
            let filters = ProfileFilters {
                profile: &profile,
                skipped: &run.unschedulable.skipped,
                victims: id.and_then(|id| self.node_filter_cache.victims(id, &self.world)),
            };
            let fit_error = FitError {
                node_codes: &run.unschedulable.diagnosis.node_codes,
                rows_where_preemption_might_help: &run
                    .unschedulable
                    .diagnosis
                    .rows_where_preemption_might_help,
                filter_runner: &filters,
                has_preempting_extenders: !preempt_extenders.is_empty(),
            };
            let pod = &run.queued.info.pod;
            let step_input = std::mem::replace(&mut input, PluginStepInput::Start);
            let (world, rng, cycle) = (&mut self.world, &mut self.rng, &mut run.cycle);
            let step = self.profiles.with_states(run.queued.profile_idx, |_, states| {
                let cx = PostFilterCx::new(world, cycle, states);
                member.point.post_filter(cx, pod, fit_error, rng, step_input)
            });
            let filtered = match step {
                PluginStep::Done(filtered) => filtered,
                PluginStep::Fail(rejection) => {
                    PostFilterResult { rejection: Some(rejection), ..PostFilterResult::default() }
                }
                PluginStep::CallExtenders(candidates) => {
                    return self.call_preempt_extenders(
                        now,
                        run,
                        &candidates,
                        preempt_extenders,
                        effects,
                    );
                }
                PluginStep::Call(request) => {
                    let id = self.next_call(owner(&run));
                    effects.push(Effect::Call(ApiServerCall { id, request }));
                    self.post_filter_runs.insert(pod.uid.clone(), run);
                    return;
                }
                PluginStep::Wait { on, until } => {
                    self.plugin_waits.push(PluginWait { owner: owner(&run), on, until });
                    self.post_filter_runs.insert(pod.uid.clone(), run);
                    return;
                }
            };
            let counts = member.point.counts_as_preemption();
            let victims = filtered.rejection.is_none().then_some(filtered.victims.len());
            effects.push(Effect::Observe(Observation::Preemption { counts, victims }));
            if self.handle_post_filter_result(now, &mut run, filtered, effects) {
                break;
            }
            run.member += 1;
        }
        let nomination = run.nomination.clone();
        self.finish_post_filter(now, run, nomination, effects);
    }

    /// Handles the result of one plugin. Returns whether the remaining plugins are not run (upstream's `RunPostFilterPlugins`).
    fn handle_post_filter_result(
        &mut self,
        now: Now,
        run: &mut PostFilterRun,
        filtered: PostFilterResult,
        effects: &mut Effects,
    ) -> bool {
        let nominated = filtered.nominated_node.clone().map(Nomination::Set);
        match &filtered.rejection {
            None => {
                run.reasons.clear();
                run.nomination = nominated.unwrap_or(Nomination::Keep);
                self.evict(now, &run.queued, &filtered, effects);
                run.victims = filtered.victims;
                true
            }
            Some(Rejection::Unresolvable(_)) => {
                run.reasons = filtered.rejection.iter().flat_map(Rejection::reasons).collect();
                run.nomination = nominated.unwrap_or(Nomination::Keep);
                true
            }
            Some(Rejection::Failed(failure)) => {
                run.reasons = vec![failure.to_string()];
                run.nomination = Nomination::Keep;
                true
            }
            Some(rejection) => {
                run.reasons.extend(rejection.reasons());
                if let Some(nomination) = nominated {
                    run.nomination = nomination;
                }
                false
            }
        }
    }

    fn finish_post_filter(
        &mut self,
        now: Now,
        run: PostFilterRun,
        nomination: Nomination,
        effects: &mut Effects,
    ) {
        let mut failed = AttemptFailure::fit_error(&run.unschedulable);
        failed.details.set_victims(&run.victims);
        let reasons = run.reasons.join(", ");
        if !reasons.is_empty() {
            failed.message.push(' ');
            failed.message.push_str(&reasons);
        }
        self.observe_algorithm(run.began, effects);
        self.handle_scheduling_failure(now, run.queued, failed, &nomination, run.began, effects);
    }

    /// Resumes a plugin that waited for a reply, an object or a deadline.
    pub(super) fn resume_post_filter(
        &mut self,
        now: Now,
        uid: &str,
        serial: u64,
        input: PluginStepInput<'_>,
        effects: &mut Effects,
    ) {
        if self.post_filter_runs.get(uid).is_none_or(|run| run.serial != serial) {
            return;
        }
        if let Some(run) = self.post_filter_runs.remove(uid) {
            self.post_filter(now, run, input, effects);
        }
    }
}

fn owner(run: &PostFilterRun) -> CallOwner {
    CallOwner::PostFilter { uid: run.queued.info.pod.uid.clone(), serial: run.serial }
}
