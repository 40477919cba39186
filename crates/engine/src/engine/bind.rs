//! The end of a binding cycle: Bind, by an extender or by plugins, and PostBind.

use loadmaster_extender::messages::ExtenderBindingResult;
use loadmaster_extender::{ExtenderOperation, Verb};
use loadmaster_framework::api_calls::PluginStepInput;
use loadmaster_framework::extension_points::{BindResult, SerialCx};

use super::Engine;
use super::assumed_pod::Stage;
use super::attempt_failure::AttemptFailure;
use super::call_owner::CallOwner;
use super::effect::{AttemptOutcome, Effect, Effects, EventRecord, ExtenderCall, Observation};
use super::extender_cycle::{REPLY_GRACE, extender_request};
use super::plugin_waits::PluginWait;
use crate::guard::ExtensionPoint;
use crate::time::Now;

impl Engine {
    /// Starts Bind. An extender that binds such pods takes precedence over all plugins (upstream's `extendersBinding`).
    pub(super) fn start_bind(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        // A condition or a nominated node that is not written yet: the bind overrides both.
        self.forget_unsent_patch(uid);
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.stage = Stage::Bind { member: None };
        binding.started = now.mono;
        let (serial, profile_idx, node) =
            (binding.serial, binding.queued.profile_idx, binding.node.clone());
        let pod = binding.queued.info.pod.clone();
        let profile = &self.profile_scheduler(profile_idx).profile;
        let interested = profile.extenders.interested_in(Verb::Bind, &pod.template.spec);
        let Some((at, extender)) =
            interested.first().and_then(|at| Some((*at, profile.extenders.get(*at)?)))
        else {
            return self.run_bind_plugins(now, uid, 0, effects);
        };
        let owner = CallOwner::ExtenderBind { uid: uid.into(), serial };
        let until = now.mono.after(extender.timeout + REPLY_GRACE);
        self.plugin_waits.push(PluginWait { owner: owner.clone(), on: Vec::new(), until });
        let id = self.next_call(owner);
        let request = extender_request(at, &pod, ExtenderOperation::Bind(node));
        let configuration = self.profile_scheduler(profile_idx).configuration;
        effects.push(Effect::CallExtender(ExtenderCall { id, configuration, request }));
    }

    /// Handles the reply of the extender that binds.
    pub(super) fn handle_extender_bind_reply(
        &mut self,
        now: Now,
        owner: &CallOwner,
        response: Result<ExtenderBindingResult, String>,
        effects: &mut Effects,
    ) {
        self.plugin_waits.forget(|known| known == owner);
        let CallOwner::ExtenderBind { uid, serial } = owner else { return };
        if !self.is_binding(uid, *serial) {
            return;
        }
        let response =
            response.and_then(|it| if it.error.is_empty() { Ok(()) } else { Err(it.error) });
        let Some(binding) = self.binding_mut(uid) else { return };
        let (pod, profile_idx) = (binding.queued.info.pod.clone(), binding.queued.profile_idx);
        let extenders = &self.profile_scheduler(profile_idx).profile.extenders;
        let interested = extenders.interested_in(Verb::Bind, &pod.template.spec);
        let extender = interested.first().and_then(|at| extenders.get(*at));
        match response {
            Ok(()) => self.finish_binding(now, uid, effects),
            // There is no other one: at most one extender can bind.
            Err(_) if extender.is_some_and(|it| it.ignorable) => {
                self.run_bind_plugins(now, uid, 0, effects);
            }
            Err(error) => {
                self.record_failed_bind(uid, false, effects);
                self.handle_binding_error(now, uid, AttemptFailure::error(error), effects);
            }
        }
    }

    /// Runs Bind plugins from this one on, until one does not skip.
    fn run_bind_plugins(&mut self, now: Now, uid: &str, member: usize, effects: &mut Effects) {
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.started = now.mono;
        binding.is_stuck = false;
        binding.stage = Stage::Bind { member: Some(member) };
        let profile_idx = binding.queued.profile_idx;
        self.add_binding_deadline(uid);
        if member >= self.profile_scheduler(profile_idx).profile.bind.len() {
            let failed = AttemptFailure::error("no Bind plugin bound the pod");
            return self.handle_binding_error(now, uid, failed, effects);
        }
        self.step_bind(now, uid, member, PluginStepInput::Start, effects);
    }

    pub(super) fn step_bind(
        &mut self,
        now: Now,
        uid: &str,
        member: usize,
        input: PluginStepInput<'_>,
        effects: &mut Effects,
    ) {
        let is_conflict = matches!(input, PluginStepInput::Reply(Err((409, _))));
        let ended = self.run_step(
            now,
            uid,
            (ExtensionPoint::Bind, member),
            |profile, cx, pod, node| {
                let member = profile.bind.get(member)?;
                Some((member.name, member.point.bind(cx, pod, node, input)))
            },
            effects,
        );
        let Some((plugin, outcome)) = ended else { return };
        match outcome {
            Ok(BindResult::Done) => self.finish_binding(now, uid, effects),
            Ok(BindResult::Skip) => self.run_bind_plugins(now, uid, member + 1, effects),
            Err(rejection) => {
                let failed = AttemptFailure::binding_error("Bind", plugin, rejection);
                self.record_failed_bind(uid, is_conflict, effects);
                self.handle_binding_error(now, uid, failed, effects);
            }
        }
    }

    fn finish_binding(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(mut binding) = assumed.binding.take() else { return };
        let pod = assumed.pod.clone();
        if assumed.confirmed || assumed.forgotten {
            self.assumed.remove(uid);
        }
        if binding.in_window {
            self.n_binding -= 1;
        }
        let queued = &binding.queued;
        let nanos = now.mono.since(binding.began).as_nanos() as u64;
        self.observe_attempt(queued, AttemptOutcome::Scheduled, nanos, effects);
        let since = queued.info.initial_attempt.map_or(binding.began, |first| first.mono);
        effects.push(Effect::Observe(Observation::Bound {
            attempts: queued.info.attempts,
            nanos: now.mono.since(since).as_nanos() as u64,
            after_flush: queued.flushed_by_timeout,
        }));
        effects.push(Effect::RecordEvent(EventRecord {
            is_warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: format!("Successfully assigned {} to {}", pod.full_name(), binding.node),
            regarding: (&*pod).into(),
            related: None,
            controller: self.scheduler_name(queued.profile_idx),
        }));
        let world = &self.world;
        self.profiles.with_states(queued.profile_idx, |profile, states| {
            for member in &profile.post_bind {
                let cx = SerialCx { world, cycle: &mut binding.cycle, states };
                member.point.post_bind(cx, &pod, &binding.node);
            }
        });
    }
}
