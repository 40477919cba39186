//! The end of a binding cycle: Bind, by an extender or by plugins, and PostBind.

use loadmaster_extender::messages::ExtenderBindingResult;
use loadmaster_extender::{Question, Verb};
use loadmaster_framework::points::{Bound, SerialCx};
use loadmaster_framework::request::Input;

use super::Engine;
use super::binding::{Awaited, Owner, Stage};
use super::effect::{Effect, Effects, Extend, Observation, Outcome, Tell};
use super::extending::{ANSWER_GRACE, ask};
use super::failure::Failed;
use crate::guard::Site;
use crate::time::Now;

impl Engine {
    /// The extender that binds such pods goes before all plugins (upstream's `extendersBinding`).
    pub(super) fn begin_bind(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.stage = Stage::Bind { member: None };
        binding.asked = now.mono;
        let (serial, seat, node) = (binding.serial, binding.queued.seat, binding.node.clone());
        let pod = binding.queued.info.pod.clone();
        let profile = &self.seat(seat).profile;
        let asked = profile.extenders.asked(Verb::Bind, &pod.template.spec);
        let Some((at, extender)) =
            asked.first().and_then(|at| Some((*at, profile.extenders.get(*at)?)))
        else {
            return self.ask_binder(now, uid, 0, effects);
        };
        let owner = Owner::Binder { uid: uid.into(), serial };
        let until = now.mono.after(extender.timeout + ANSWER_GRACE);
        self.awaited.push(Awaited { owner: owner.clone(), on: Vec::new(), until });
        let id = self.next_call(owner);
        let ask = ask(at, &pod, Question::Bind(node));
        effects.push(Effect::Extend(Extend { id, ask }));
    }

    /// It answered.
    pub(super) fn binder_answered(
        &mut self,
        now: Now,
        owner: &Owner,
        answer: Result<ExtenderBindingResult, String>,
        effects: &mut Effects,
    ) {
        self.awaited.retain(|awaited| awaited.owner != *owner);
        let Owner::Binder { uid, serial } = owner else { return };
        if !self.is_binding(uid, *serial) {
            return;
        }
        let answer = answer.and_then(|it| if it.error.is_empty() { Ok(()) } else { Err(it.error) });
        let Some(binding) = self.binding_mut(uid) else { return };
        let (pod, seat) = (binding.queued.info.pod.clone(), binding.queued.seat);
        let extenders = &self.seat(seat).profile.extenders;
        let asked = extenders.asked(Verb::Bind, &pod.template.spec);
        let extender = asked.first().and_then(|at| extenders.get(*at));
        match answer {
            Ok(()) => self.bound(now, uid, effects),
            // There is no other: one extender at most can bind.
            Err(_) if extender.is_some_and(|it| it.ignorable) => {
                self.ask_binder(now, uid, 0, effects);
            }
            Err(error) => {
                self.bind_failed(uid, false, effects);
                self.binding_failed(now, uid, Failed::error(error), effects);
            }
        }
    }

    /// Asks Bind plugins from this one on until one does not pass.
    fn ask_binder(&mut self, now: Now, uid: &str, member: usize, effects: &mut Effects) {
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.asked = now.mono;
        binding.is_overdue = false;
        binding.stage = Stage::Bind { member: Some(member) };
        let seat = binding.queued.seat;
        if member >= self.seat(seat).profile.bind.len() {
            let failed = Failed::error("no Bind plugin bound the pod");
            return self.binding_failed(now, uid, failed, effects);
        }
        self.step_bind(now, uid, member, Input::Start, effects);
    }

    pub(super) fn step_bind(
        &mut self,
        now: Now,
        uid: &str,
        member: usize,
        input: Input<'_>,
        effects: &mut Effects,
    ) {
        let is_refused = matches!(input, Input::Reply(Err((409, _))));
        let ended = self.step(
            now,
            uid,
            (Site::Bind, member),
            |profile, cx, pod, node| {
                let member = profile.bind.get(member)?;
                Some((member.name, member.point.bind(cx, pod, node, input)))
            },
            effects,
        );
        let Some((plugin, outcome)) = ended else { return };
        match outcome {
            Ok(Bound::Done) => self.bound(now, uid, effects),
            Ok(Bound::Skip) => self.ask_binder(now, uid, member + 1, effects),
            Err(rejection) => {
                let failed = Failed::late("Bind", plugin, rejection);
                self.bind_failed(uid, is_refused, effects);
                self.binding_failed(now, uid, failed, effects);
            }
        }
    }

    fn bound(&mut self, now: Now, uid: &str, effects: &mut Effects) {
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
        self.observe_attempt(queued, Outcome::Scheduled, nanos, effects);
        let since = queued.initial_attempt.unwrap_or(binding.began);
        effects.push(Effect::Observe(Observation::Bound {
            attempts: queued.info.attempts,
            nanos: now.mono.since(since).as_nanos() as u64,
            after_flush: queued.flushed_by_timeout,
        }));
        effects.push(Effect::Tell(Tell {
            is_warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: format!("Successfully assigned {} to {}", pod.full_name(), binding.node),
            regarding: (&*pod).into(),
            related: None,
            controller: self.scheduler_name(queued.seat),
        }));
        let seat = &mut self.seats[queued.seat.0 as usize];
        let profile = seat.profile.clone();
        for member in &profile.post_bind {
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            member.point.post_bind(cx, &pod, &binding.node);
        }
    }
}
