//! The binding cycle of an assumed pod: waiting on Permit, PreBind, then [`super::bind`] (upstream's `bindingCycle`).
//!
//! A binding cycle is a value that resumes with a reply, an object or a deadline; one that waits blocks no other pod.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::api_calls::{ObjectRef, PluginStep, PluginStepInput};
use loadmaster_framework::extension_points::{PreBindPreFlight, SerialCx};
use loadmaster_framework::{Code, Cx, Failure, PodInfo, Rejection};
use serde_json::Value;

use super::assumed_pod::{Binding, Stage};
use super::attempt_failure::AttemptFailure;
use super::call_owner::CallOwner;
use super::effect::{ApiServerCall, AttemptOutcome, CallId, Effect, Effects, Observation};
use super::event::{ApiReply, PermitDecision};
use super::extender_cycle::NO_REPLY_FROM_EXTENDER;
use super::nominator::Nomination;
use super::plugin_waits::PluginWait;
use super::{Engine, PLUGIN_SAMPLE_EVERY};
use crate::guard::guarded_points::{PointResult, SuccessCode};
use crate::guard::{ExtensionPoint, PluginExecutionDuration, PluginRef};
use crate::profile::Profile;
use crate::queue::ClusterEventOccurrence;
use crate::time::{MonoTime, Now};

/// Upstream's `maxTimeout` of Permit.
pub(super) const PERMIT_WAIT_MAX: Duration = Duration::from_secs(15 * 60);

impl Engine {
    /// Starts the binding cycle: the pod is assumed and reserved, and allowed or waiting on Permit.
    pub(super) fn start_binding_cycle(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let pre_flights = match self.run_pre_flights(uid) {
            Ok(pre_flights) => pre_flights,
            Err(failed) => return self.handle_binding_error(now, uid, failed, effects),
        };
        let Some(binding) = self.binding_mut(uid) else { return };
        let works = pre_flights.iter().any(|flight| *flight != PreBindPreFlight::Skip);
        binding.pre_flights = pre_flights;
        let node = binding.node.clone();
        let waits = binding.stage.waits_on_permit();
        if self.gates.nominated_node_name_for_expectation && (works || waits) {
            // Autoscalers see the node of the pod before it is bound.
            self.patch_status(now, uid, None, Some(node), effects);
        }
        if !waits {
            self.after_permit(now, uid, effects);
        }
    }

    /// Runs PreBindPreFlight. Without the feature gate it is not called, and all PreBind plugins run one after the other.
    fn run_pre_flights(&mut self, uid: &str) -> Result<Vec<PreBindPreFlight>, AttemptFailure> {
        let Some(assumed) = self.assumed.get_mut(uid) else { return Ok(Vec::new()) };
        let Some(binding) = &assumed.binding else { return Ok(Vec::new()) };
        let profile_scheduler = &self.profiles[binding.queued.profile_idx.0 as usize];
        let members = &profile_scheduler.profile.pre_bind;
        if !self.gates.nominated_node_name_for_expectation {
            return Ok(members
                .iter()
                .map(|_| PreBindPreFlight::Work { parallel: false })
                .collect());
        }
        let states = profile_scheduler.scheduler.plugin_states();
        let cx = Cx { world: &self.world, cycle: &binding.cycle, states };
        let results = members.iter().map(|member| {
            let flight = member.point.pre_flight(cx, &assumed.pod, &binding.node);
            flight.map_err(|rejection| {
                let name = member.name;
                AttemptFailure::error(format!(
                    "running PreBindPreFlight {name:?}: {}",
                    rejection.message()
                ))
            })
        });
        results.collect()
    }

    /// Continues after Permit. No failure from here on makes the pod unschedulable.
    fn after_permit(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        self.queue.done(uid);
        if let Some(binding) = self.binding_mut(uid) {
            binding.stage = Stage::PreBind { running: Vec::new(), next: 0 };
        }
        self.update_waiting_pod(uid);
        self.start_next_pre_binds(now, uid, effects);
    }

    /// The running plugins have finished, or the next ones are about to start: the pod counts against the bind window again.
    fn enter_bind_window(&mut self, uid: &str) {
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.is_stuck = false;
        self.count_against_bind_window(uid, true);
    }

    /// A pod counts unless a PreBind plugin waits for others, such as a provisioner, which can take minutes, or is stuck: otherwise a few
    /// hundred such pods would keep all others from being scheduled.
    fn count_against_bind_window(&mut self, uid: &str, counts: bool) {
        let Some(binding) = self.binding_mut(uid).filter(|binding| !binding.is_stuck) else {
            return;
        };
        match (std::mem::replace(&mut binding.in_window, counts), counts) {
            (false, true) => self.n_binding += 1,
            (true, false) => self.n_binding -= 1,
            _ => {}
        }
    }

    /// Starts the next PreBind plugins: one, or several neighbors that may run in parallel. Bind follows after the last group.
    fn start_next_pre_binds(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        self.enter_bind_window(uid);
        let Some(binding) = self.binding_mut(uid) else { return };
        let Stage::PreBind { running, next } = &mut binding.stage else { return };
        let pre_flights = &binding.pre_flights;
        while pre_flights.get(*next) == Some(&PreBindPreFlight::Skip) {
            *next += 1;
        }
        let first = *next;
        let Some(flight) = pre_flights.get(first) else {
            return self.start_bind(now, uid, effects);
        };
        let parallel_work = PreBindPreFlight::Work { parallel: true };
        let n_more = if *flight == parallel_work {
            pre_flights[first + 1..].iter().take_while(|flight| **flight == parallel_work).count()
        } else {
            0
        };
        let group: Vec<usize> = (first..=first + n_more).collect();
        binding.started = now.mono;
        running.clone_from(&group);
        *next = first + n_more + 1;
        let serial = binding.serial;
        self.add_binding_deadline(uid);
        for member in group {
            if !self.is_binding(uid, serial) {
                return;
            }
            self.step_pre_bind(now, uid, member, PluginStepInput::Start, effects);
        }
    }

    fn step_pre_bind(
        &mut self,
        now: Now,
        uid: &str,
        member: usize,
        input: PluginStepInput<'_>,
        effects: &mut Effects,
    ) {
        let ended = self.run_step(
            now,
            uid,
            (ExtensionPoint::PreBind, member),
            |profile, cx, pod, node| {
                let member = profile.pre_bind.get(member)?;
                Some((member.name, member.point.pre_bind(cx, pod, node, input)))
            },
            effects,
        );
        let Some((plugin, outcome)) = ended else { return };
        let Some(binding) = self.binding_mut(uid) else { return };
        let Stage::PreBind { running, .. } = &mut binding.stage else { return };
        running.retain(|at| *at != member);
        let is_group_over = running.is_empty();
        match outcome {
            Ok(()) if is_group_over => self.start_next_pre_binds(now, uid, effects),
            Ok(()) => {}
            Err(rejection) => {
                self.cancel_pre_bind(uid);
                let failed = AttemptFailure::binding_error("PreBind", plugin, rejection);
                self.handle_binding_error(now, uid, failed, effects);
            }
        }
    }

    /// Runs the next step of a plugin of a binding cycle, and registers the call or wait it requests. Once it has finished: its name and its
    /// result.
    pub(super) fn run_step<T: SuccessCode>(
        &mut self,
        now: Now,
        uid: &str,
        (extension_point, member): (ExtensionPoint, usize),
        run: impl FnOnce(
            &Profile,
            SerialCx<'_>,
            &Arc<PodInfo>,
            &str,
        ) -> Option<(&'static str, PluginStep<T>)>,
        effects: &mut Effects,
    ) -> Option<(&'static str, Result<T, Rejection>)> {
        let assumed = self.assumed.get_mut(uid)?;
        let binding = assumed.binding.as_mut()?;
        let profile_idx = binding.queued.profile_idx;
        let world = &self.world;
        let (plugin, mut step) = self.profiles.with_states(profile_idx, |profile, states| {
            let cx = SerialCx { world, cycle: &mut binding.cycle, states };
            run(profile, cx, &assumed.pod, &binding.node)
        })?;
        let profile = self.profiles[profile_idx.0 as usize].profile.clone();
        if let PluginStep::CallExtenders(_) = step {
            step = PluginStep::from_panic(Failure::new("only PostFilter can call extenders"));
        }
        if let Some(code) = step.code() {
            observe_step(now, binding, profile.plugin_ref(plugin), extension_point, code, effects);
        }
        let serial = binding.serial;
        let owner = match extension_point {
            ExtensionPoint::PreBind => CallOwner::PreBind { uid: uid.into(), serial, member },
            _ => CallOwner::Bind { uid: uid.into(), serial, member },
        };
        match step {
            PluginStep::Call(request) => {
                self.count_against_bind_window(uid, true);
                self.call(owner, request, effects);
            }
            PluginStep::Wait { on, until } => {
                let is_pre_bind = extension_point == ExtensionPoint::PreBind;
                self.plugin_waits.push(PluginWait { owner, on, until });
                if is_pre_bind {
                    self.count_against_bind_window(uid, false);
                }
            }
            PluginStep::Done(done) => return Some((plugin, Ok(done))),
            PluginStep::Fail(rejection) => return Some((plugin, Err(rejection))),
            PluginStep::CallExtenders(_) => {}
        }
        None
    }

    /// Cancels the running PreBind plugins.
    pub(super) fn cancel_pre_bind(&mut self, uid: &str) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = &mut assumed.binding else { return };
        let Stage::PreBind { running, .. } = &binding.stage else { return };
        let running = running.clone();
        let world = &self.world;
        self.profiles.with_states(binding.queued.profile_idx, |profile, states| {
            for member in running.into_iter().filter_map(|at| profile.pre_bind.get(at)) {
                let cx = SerialCx { world, cycle: &mut binding.cycle, states };
                let input = PluginStepInput::Cancelled;
                // The result is ignored: nothing waits for it any more.
                let _ = member.point.pre_bind(cx, &assumed.pod, &binding.node, input);
            }
        });
    }

    /// Runs Unreserve, forgets the pod and requeues it (upstream's `handleBindingCycleError`).
    pub(super) fn handle_binding_error(
        &mut self,
        now: Now,
        uid: &str,
        failed: AttemptFailure,
        effects: &mut Effects,
    ) {
        if self.has_suspended_attempt() {
            return self.defer_binding_error(uid, failed);
        }
        let Some(mut assumed) = self.assumed.remove(uid) else { return };
        let Some(mut binding) = assumed.binding.take() else { return };
        if binding.in_window {
            self.n_binding -= 1;
        }
        let pod = assumed.pod;
        self.update_waiting_pod(uid);
        self.unreserve(&mut binding, &pod);
        if !assumed.confirmed && !assumed.forgotten {
            self.remove_assigned_pod(uid);
        }
        self.report_unreserved(uid, binding.queued.profile_idx);
        let serial = binding.serial;
        self.plugin_waits.forget(|owner| owner.belongs_to(serial));
        let event = ClusterEventOccurrence::assigned_pod_deleted(pod);
        let nanos = now.mono.since(binding.began).as_nanos() as u64;
        let began = (self.options.stopwatch)().saturating_sub(nanos);
        let event = failed.except.iter().fold(event, |event, uid| event.except_pod(uid));
        if let Some(pending) = self.pending.get_mut(uid) {
            pending.rejected_for.clone_from(&failed.except);
        }
        let clear = Nomination::clear();
        if failed.outcome == AttemptOutcome::Unschedulable {
            self.handle_scheduling_failure(now, binding.queued, failed, &clear, began, effects);
            self.on_cluster_event(now, event.except_pod(uid));
        } else {
            self.on_cluster_event(now, event);
            self.handle_scheduling_failure(now, binding.queued, failed, &clear, began, effects);
        }
    }

    pub(super) fn handle_permit_decision(
        &mut self,
        now: Now,
        uid: &str,
        plugin: Option<&str>,
        decision: &PermitDecision,
        effects: &mut Effects,
    ) {
        let Some(binding) = self.binding_mut(uid).filter(|it| !it.is_failing) else { return };
        let Stage::Permit { waits, since } = &mut binding.stage else { return };
        let since = *since;
        if waits.is_empty() {
            return;
        }
        match decision {
            PermitDecision::Allow => {
                waits.retain(|wait| plugin.is_some_and(|plugin| plugin != wait.name));
                if waits.is_empty() {
                    observe_permit(now, since, true, effects);
                    self.after_permit(now, uid, effects);
                } else {
                    self.update_waiting_pod(uid);
                }
            }
            PermitDecision::Reject(reason) => {
                self.reject_waiting_pod(now, uid, plugin, reason.clone(), None, effects);
            }
        }
    }

    /// Rejects a pod that waits on Permit. The release of its resources does not requeue the pod `except`.
    pub(super) fn reject_waiting_pod(
        &mut self,
        now: Now,
        uid: &str,
        plugin: Option<&str>,
        reason: String,
        except: Option<Box<str>>,
        effects: &mut Effects,
    ) {
        let Some(binding) = self.binding_mut(uid).filter(|it| !it.is_failing) else { return };
        let Stage::Permit { waits, since } = &binding.stage else { return };
        if waits.is_empty() {
            return;
        }
        let rejecter = waits.iter().find(|wait| plugin.is_none_or(|it| it == wait.name));
        let rejecter = rejecter.map(|wait| wait.plugin);
        observe_permit(now, *since, false, effects);
        let rejection = Rejection::unschedulable(reason);
        let failed = AttemptFailure::single_node_rejected(rejecter, &rejection);
        self.handle_binding_error(now, uid, AttemptFailure { except, ..failed }, effects);
    }

    /// Updates the list of waiting pods that plugins see.
    pub(super) fn update_waiting_pod(&mut self, uid: &str) {
        let Some(assumed) = self.assumed.get(uid) else {
            return self.world.waiting_pods_mut().remove(uid);
        };
        let waits = match assumed.binding.as_ref().map(|binding| &binding.stage) {
            Some(Stage::Permit { waits, .. }) => waits.as_slice(),
            _ => &[],
        };
        self.world.waiting_pods_mut().upsert(&assumed.pod, waits.iter().map(|wait| wait.name));
    }

    /// Rejects pods that waited on Permit for too long, and resumes plugins whose deadline has passed.
    pub(super) fn handle_wait_timeouts(&mut self, now: Now, effects: &mut Effects) {
        let is_due = self.binding_due.is_some_and(|due| due <= now.mono);
        if is_due {
            for (uid, rejection, plugin, since) in self.permit_timeouts(now.mono) {
                observe_permit(now, since, false, effects);
                let failed = AttemptFailure::single_node_rejected(Some(plugin), &rejection);
                self.handle_binding_error(now, &uid, failed, effects);
            }
        }
        self.handle_extender_timeouts(now, effects);
        if is_due {
            self.report_stuck_bindings(now, effects);
            self.binding_due = self.first_binding_deadline();
        }
        self.report_stuck_post_filters(now, effects);
        let mut waits = std::mem::take(&mut self.plugin_waits);
        let due = waits.take_due(now.mono, |owner| !self.is_deferred(owner));
        self.plugin_waits = waits;
        for wait in due {
            self.resume(now, wait.owner, PluginStepInput::Deadline, effects);
        }
    }

    /// Pods whose Permit wait has timed out, each with the first plugin that timed out, ordered by pod.
    fn permit_timeouts(&self, now: MonoTime) -> Vec<(Box<str>, Rejection, usize, MonoTime)> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let timed_out = self.assumed.iter().filter_map(|(uid, assumed)| {
            let binding = assumed.binding.as_ref().filter(|binding| !binding.is_failing)?;
            let Stage::Permit { waits, since } = &binding.stage else { return None };
            let first = waits.iter().min_by_key(|wait| wait.until).filter(|it| it.until <= now)?;
            let time = loadmaster_config::Duration::from(first.time);
            let text =
                format!("rejected due to timeout after waiting {time} at plugin {}", first.name);
            Some((uid.clone(), Rejection::unschedulable(text), first.plugin, *since))
        });
        let mut timed_out: Vec<_> = timed_out.collect();
        timed_out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        timed_out
    }

    /// When the next Permit wait times out, or the next plugin is reported as stuck.
    fn first_binding_deadline(&self) -> Option<MonoTime> {
        #[expect(clippy::disallowed_methods, reason = "the least is the same in any order")]
        let bindings = self.assumed.values().filter_map(|assumed| assumed.binding.as_ref());
        bindings.filter_map(|binding| binding.deadline()).min()
    }

    /// A binding cycle has a new deadline.
    pub(super) fn add_binding_deadline(&mut self, uid: &str) {
        let deadline = self.binding_mut(uid).and_then(|binding| binding.deadline());
        self.binding_due = self.binding_due.into_iter().chain(deadline).min();
    }

    /// Handles the reply to a call.
    pub(super) fn handle_reply(
        &mut self,
        now: Now,
        call: CallId,
        reply: &ApiReply,
        effects: &mut Effects,
    ) {
        let Some(owner) = self.calls.remove(&call) else { return };
        let answer = match reply {
            Ok(value) => Ok(value),
            Err(error) => Err((error.code, error.message.as_str())),
        };
        match &owner {
            CallOwner::Status { uid } => self.handle_status_reply(uid, reply, effects),
            CallOwner::Evict { preemptor, victim, step } => {
                self.handle_eviction_reply(now, (preemptor, victim, *step), reply, effects);
            }
            _ => self.resume(now, owner, PluginStepInput::Reply(answer), effects),
        }
    }

    /// Resumes plugins that wait for this object.
    pub(super) fn resume_waiting_plugins(
        &mut self,
        now: Now,
        object: &ObjectRef,
        value: Option<&Value>,
        effects: &mut Effects,
    ) {
        for wait in self.plugin_waits.take_for_object(object) {
            self.resume(now, wait.owner, PluginStepInput::Changed(value), effects);
        }
    }

    /// Resumes a plugin, unless its cycle has ended meanwhile.
    fn resume(
        &mut self,
        now: Now,
        owner: CallOwner,
        input: PluginStepInput<'_>,
        effects: &mut Effects,
    ) {
        match owner {
            CallOwner::PreBind { uid, serial, member } => {
                if self.is_binding(&uid, serial) {
                    self.step_pre_bind(now, &uid, member, input, effects);
                }
            }
            CallOwner::Bind { uid, serial, member } => {
                if self.is_binding(&uid, serial) {
                    self.step_bind(now, &uid, member, input, effects);
                }
            }
            CallOwner::PostFilter { uid, serial } => {
                self.resume_post_filter(now, &uid, serial, input, effects);
            }
            CallOwner::ExtenderBind { .. } => {
                self.handle_extender_bind_reply(
                    now,
                    &owner,
                    Err(NO_REPLY_FROM_EXTENDER.to_owned()),
                    effects,
                );
            }
            CallOwner::ExtenderCycle | CallOwner::Status { .. } | CallOwner::Evict { .. } => {}
        }
    }

    pub(super) fn is_binding(&mut self, uid: &str, serial: u64) -> bool {
        let is_it = |binding: &mut Binding| binding.serial == serial && !binding.is_failing;
        self.binding_mut(uid).is_some_and(is_it)
    }

    pub(super) fn call(
        &mut self,
        owner: CallOwner,
        request: loadmaster_framework::api_calls::ApiRequest,
        effects: &mut Effects,
    ) {
        let id = self.next_call(owner);
        effects.push(Effect::Call(ApiServerCall { id, request }));
    }

    pub(super) fn binding_mut(&mut self, uid: &str) -> Option<&mut Binding> {
        self.assumed.get_mut(uid)?.binding.as_deref_mut()
    }
}

impl CallOwner {
    fn belongs_to(&self, cycle: u64) -> bool {
        match self {
            CallOwner::PreBind { serial, .. }
            | CallOwner::Bind { serial, .. }
            | CallOwner::ExtenderBind { serial, .. } => *serial == cycle,
            CallOwner::PostFilter { .. }
            | CallOwner::ExtenderCycle
            | CallOwner::Status { .. }
            | CallOwner::Evict { .. } => false,
        }
    }
}

/// A plugin that may have waited for replies has finished: records its duration, by the engine's clock, for a sample of the pods.
fn observe_step(
    now: Now,
    binding: &Binding,
    plugin: PluginRef,
    extension_point: ExtensionPoint,
    code: Code,
    effects: &mut Effects,
) {
    if binding.serial.is_multiple_of(PLUGIN_SAMPLE_EVERY) {
        let nanos = now.mono.since(binding.started).as_nanos() as u64;
        let call = PluginExecutionDuration { plugin, extension_point, code, nanos, event: None };
        effects.push(Effect::Observe(Observation::PluginExecutions(vec![call])));
    }
}

fn observe_permit(now: Now, since: MonoTime, allowed: bool, effects: &mut Effects) {
    let nanos = now.mono.since(since).as_nanos() as u64;
    effects.push(Effect::Observe(Observation::PermitWait { allowed, nanos }));
}
