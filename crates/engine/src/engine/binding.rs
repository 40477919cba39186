//! What happens to a pod once it has a node in our books: Permit's wait, PreBind, then [`super::bind`] (upstream's `bindingCycle`).
//!
//! A binding cycle is a value that goes on when an answer, an object or a deadline comes; one that waits holds up nobody else.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::points::{PreFlight, SerialCx};
use loadmaster_framework::request::{Input, ObjectRef, Step};
use loadmaster_framework::{Code, Cx, CycleState, Failure, PodInfo, Rejection};
use serde_json::Value;

use super::effect::{Call, CallId, Effect, Effects, Observation, Outcome};
use super::eviction::EvictionStep;
use super::extending::NO_ANSWER;
use super::failure::Failed;
use super::news::{Reply, Verdict};
use super::nominations::Nomination;
use super::{Engine, TIMED_EVERY};
use crate::guard::points::{Answer, Yes};
use crate::guard::{Site, Timed, Who};
use crate::profile::Profile;
use crate::queue::{Happened, QueuedPod, SeatIdx};
use crate::time::{Mono, Now};

/// Upstream's `maxTimeout` of Permit.
pub(super) const PERMIT_WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// A pod that this engine put on a node.
pub(super) struct Assumed {
    pub pod: Arc<PodInfo>,
    pub seat: SeatIdx,
    /// That of its binding cycle: later ones are greater.
    pub serial: u64,
    /// Its binding cycle; `None` once it is bound and only the news of it is missing.
    pub binding: Option<Box<Binding>>,
    /// The API server's own news say that it is on a node.
    pub confirmed: bool,
    /// It was deleted meanwhile, and its room is free already.
    pub forgotten: bool,
    /// Somebody else took its room, and people were told.
    pub lost_room: bool,
}

impl Assumed {
    pub fn waits_on_permit(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| binding.stage.waits_on_permit())
    }
}

/// One binding cycle.
pub(super) struct Binding {
    /// Tells answers to this cycle from late ones to an earlier cycle of the pod.
    pub serial: u64,
    pub queued: QueuedPod,
    pub node: loadmaster_api::Str,
    pub cycle: CycleState,
    pub stage: Stage,
    /// What each PreBind plugin said it will do, in order.
    pub flights: Vec<PreFlight>,
    /// It has a place in the bind window.
    pub in_window: bool,
    /// The plugins at work now have been named for taking long.
    pub is_overdue: bool,
    /// It failed while the world was pinned, and ends when that is over.
    pub is_failing: bool,
    /// Somebody else bound the pod, and that has been counted.
    pub lost: bool,
    pub began: Mono,
    /// When the plugins at work now were asked.
    pub asked: Mono,
}

/// How far a binding cycle is.
pub(super) enum Stage {
    Permit {
        waits: Vec<PermitWait>,
        since: Mono,
    },
    /// Members of PreBind that are at work, and the first one that has not begun.
    PreBind {
        running: Vec<usize>,
        next: usize,
    },
    /// The plugin that is asked; `None` for an extender.
    Bind {
        member: Option<usize>,
    },
}

impl Stage {
    fn waits_on_permit(&self) -> bool {
        matches!(self, Stage::Permit { waits, .. } if !waits.is_empty())
    }
}

/// A plugin that holds the pod.
pub(super) struct PermitWait {
    pub plugin: usize,
    pub name: &'static str,
    pub time: Duration,
    pub until: Mono,
}

/// Who made a call or waits for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    PreBind {
        uid: Box<str>,
        serial: u64,
        member: usize,
    },
    Bind {
        uid: Box<str>,
        serial: u64,
        member: usize,
    },
    PostFilter {
        uid: Box<str>,
        serial: u64,
    },
    /// The attempt that waits for extenders.
    Extended,
    /// The extender that binds.
    Binder {
        uid: Box<str>,
        serial: u64,
    },
    Status {
        uid: Box<str>,
    },
    Evict {
        preemptor: Box<str>,
        victim: Box<str>,
        step: EvictionStep,
    },
}

/// A plugin waits for one of these objects to change, or for the time.
pub(super) struct Awaited {
    pub owner: Owner,
    pub on: Vec<ObjectRef>,
    pub until: Mono,
}

impl Engine {
    /// The pod is assumed, reserved, and allowed or held by Permit.
    pub(super) fn begin_binding(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let flights = match self.pre_flights(uid) {
            Ok(flights) => flights,
            Err(failed) => return self.binding_failed(now, uid, failed, effects),
        };
        let Some(binding) = self.binding_mut(uid) else { return };
        let works = flights.iter().any(|flight| *flight != PreFlight::Skip);
        binding.flights = flights;
        let node = binding.node.clone();
        let waits = binding.stage.waits_on_permit();
        if self.gates.nominated_node_name_for_expectation && (works || waits) {
            // Autoscalers see where the pod will be while it is not there yet.
            self.patch_status(now, uid, None, Some(node), effects);
        }
        if !waits {
            self.after_permit(now, uid, effects);
        }
    }

    /// What PreBind will have to do. Without the gate nobody is asked, and all are called one after the other.
    fn pre_flights(&mut self, uid: &str) -> Result<Vec<PreFlight>, Failed> {
        let Some(assumed) = self.assumed.get_mut(uid) else { return Ok(Vec::new()) };
        let Some(binding) = &assumed.binding else { return Ok(Vec::new()) };
        let seat = &self.seats[binding.queued.seat.0 as usize];
        let members = &seat.profile.pre_bind;
        if !self.gates.nominated_node_name_for_expectation {
            return Ok(members.iter().map(|_| PreFlight::Work { parallel: false }).collect());
        }
        let states = seat.scheduler.states();
        let cx = Cx { world: &self.world, cycle: &binding.cycle, states };
        let asked = members.iter().map(|member| {
            let flight = member.point.pre_flight(cx, &assumed.pod, &binding.node);
            flight.map_err(|rejection| {
                let name = member.name;
                Failed::error(format!("running PreBindPreFlight {name:?}: {}", rejection.message()))
            })
        });
        asked.collect()
    }

    /// Nothing that fails from here on says that the pod is unschedulable.
    fn after_permit(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        self.queue.done(uid);
        if let Some(binding) = self.binding_mut(uid) {
            binding.stage = Stage::PreBind { running: Vec::new(), next: 0 };
        }
        self.show_wait(uid);
        self.next_group(now, uid, effects);
    }

    /// The plugins at work have finished, or are about to begin.
    fn is_in_time(&mut self, uid: &str) {
        let Some(binding) = self.binding_mut(uid) else { return };
        binding.is_overdue = false;
        if !std::mem::replace(&mut binding.in_window, true) {
            self.n_binding += 1;
        }
    }

    /// Starts the next PreBind plugins: one, or neighbors that may work side by side. After the last ones comes Bind.
    fn next_group(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        self.is_in_time(uid);
        let Some(binding) = self.binding_mut(uid) else { return };
        let Stage::PreBind { running, next } = &mut binding.stage else { return };
        let flights = &binding.flights;
        while flights.get(*next) == Some(&PreFlight::Skip) {
            *next += 1;
        }
        let first = *next;
        let Some(flight) = flights.get(first) else {
            return self.begin_bind(now, uid, effects);
        };
        let side_by_side = PreFlight::Work { parallel: true };
        let n_more = if *flight == side_by_side {
            flights[first + 1..].iter().take_while(|flight| **flight == side_by_side).count()
        } else {
            0
        };
        let group: Vec<usize> = (first..=first + n_more).collect();
        binding.asked = now.mono;
        running.clone_from(&group);
        *next = first + n_more + 1;
        let serial = binding.serial;
        for member in group {
            if !self.is_binding(uid, serial) {
                return;
            }
            self.step_pre_bind(now, uid, member, Input::Start, effects);
        }
    }

    fn step_pre_bind(
        &mut self,
        now: Now,
        uid: &str,
        member: usize,
        input: Input<'_>,
        effects: &mut Effects,
    ) {
        let ended = self.step(
            now,
            uid,
            (Site::PreBind, member),
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
            Ok(()) if is_group_over => self.next_group(now, uid, effects),
            Ok(()) => {}
            Err(rejection) => {
                self.cancel_pre_bind(uid);
                let failed = Failed::late("PreBind", plugin, rejection);
                self.binding_failed(now, uid, failed, effects);
            }
        }
    }

    /// Lets a plugin of a binding cycle go on, and arranges what it waits for. Once it has ended: its name, and what it came to.
    pub(super) fn step<T: Yes>(
        &mut self,
        now: Now,
        uid: &str,
        (site, member): (Site, usize),
        ask: impl FnOnce(&Profile, SerialCx<'_>, &Arc<PodInfo>, &str) -> Option<(&'static str, Step<T>)>,
        effects: &mut Effects,
    ) -> Option<(&'static str, Result<T, Rejection>)> {
        let assumed = self.assumed.get_mut(uid)?;
        let binding = assumed.binding.as_mut()?;
        let seat = &mut self.seats[binding.queued.seat.0 as usize];
        let profile = seat.profile.clone();
        let states = seat.scheduler.states_mut();
        let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
        let (plugin, mut step) = ask(&profile, cx, &assumed.pod, &binding.node)?;
        if let Step::AskExtenders(_) = step {
            step = Step::failed(Failure::new("only PostFilter can ask extenders"));
        }
        if let Some(code) = step.code() {
            observe_step(now, binding, profile.who(plugin), site, code, effects);
        }
        let (uid, serial) = (uid.into(), binding.serial);
        let owner = match site {
            Site::PreBind => Owner::PreBind { uid, serial, member },
            _ => Owner::Bind { uid, serial, member },
        };
        match step {
            Step::Call(request) => self.call(owner, request, effects),
            Step::Wait { on, timeout } => {
                self.awaited.push(Awaited { owner, on, until: now.mono.after(timeout) });
            }
            Step::Done(done) => return Some((plugin, Ok(done))),
            Step::Fail(rejection) => return Some((plugin, Err(rejection))),
            Step::AskExtenders(_) => {}
        }
        None
    }

    /// Tells the PreBind plugins at work that it is over.
    pub(super) fn cancel_pre_bind(&mut self, uid: &str) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = &mut assumed.binding else { return };
        let Stage::PreBind { running, .. } = &binding.stage else { return };
        let running = running.clone();
        let seat = &mut self.seats[binding.queued.seat.0 as usize];
        let profile = seat.profile.clone();
        for member in running.into_iter().filter_map(|at| profile.pre_bind.get(at)) {
            let states = seat.scheduler.states_mut();
            let cx = SerialCx { world: &self.world, cycle: &mut binding.cycle, states };
            // Whatever it answers, nobody waits for it any more.
            let _ = member.point.pre_bind(cx, &assumed.pod, &binding.node, Input::Cancelled);
        }
    }

    /// Takes everything back and sends the pod to the queue (upstream's `handleBindingCycleError`).
    pub(super) fn binding_failed(
        &mut self,
        now: Now,
        uid: &str,
        failed: Failed,
        effects: &mut Effects,
    ) {
        if self.is_suspended() {
            return self.fail_binding_later(uid, failed);
        }
        let Some(mut assumed) = self.assumed.remove(uid) else { return };
        let Some(mut binding) = assumed.binding.take() else { return };
        if binding.in_window {
            self.n_binding -= 1;
        }
        let pod = assumed.pod;
        self.show_wait(uid);
        self.unreserve(&mut binding, &pod);
        if !assumed.confirmed && !assumed.forgotten {
            self.remove_assigned(uid);
        }
        let serial = binding.serial;
        self.awaited.retain(|awaited| !awaited.owner.is_of(serial));
        let happened = Happened::assigned_pod_deleted(pod);
        let nanos = now.mono.since(binding.began).as_nanos() as u64;
        let began = (self.options.ticks)().saturating_sub(nanos);
        let clear = Nomination::clear();
        if failed.outcome == Outcome::Unschedulable {
            self.fail(now, binding.queued, failed, &clear, began, effects);
            self.happened(now, happened.to_others_than(uid));
        } else {
            self.happened(now, happened);
            self.fail(now, binding.queued, failed, &clear, began, effects);
        }
    }

    pub(super) fn permitted(
        &mut self,
        now: Now,
        uid: &str,
        plugin: Option<&str>,
        verdict: &Verdict,
        effects: &mut Effects,
    ) {
        let Some(binding) = self.binding_mut(uid).filter(|it| !it.is_failing) else { return };
        let Stage::Permit { waits, since } = &mut binding.stage else { return };
        let since = *since;
        if waits.is_empty() {
            return;
        }
        match verdict {
            Verdict::Allow => {
                waits.retain(|wait| plugin.is_some_and(|plugin| plugin != wait.name));
                if waits.is_empty() {
                    observe_permit(now, since, true, effects);
                    self.after_permit(now, uid, effects);
                } else {
                    self.show_wait(uid);
                }
            }
            Verdict::Reject(why) => {
                let plugin = waits.iter().find(|wait| plugin.is_none_or(|it| it == wait.name));
                let plugin = plugin.map(|wait| wait.plugin);
                observe_permit(now, since, false, effects);
                let rejection = Rejection::unschedulable(why.clone());
                let failed = Failed::rejected(plugin, &rejection);
                self.binding_failed(now, uid, failed, effects);
            }
        }
    }

    /// Shows plugins who holds the pod.
    pub(super) fn show_wait(&mut self, uid: &str) {
        let Some(assumed) = self.assumed.get(uid) else {
            return self.world.waiting_pods_mut().remove(uid);
        };
        let waits = match assumed.binding.as_ref().map(|binding| &binding.stage) {
            Some(Stage::Permit { waits, .. }) => waits.as_slice(),
            _ => &[],
        };
        self.world.waiting_pods_mut().set(&assumed.pod, waits.iter().map(|wait| wait.name));
    }

    /// Gives up on whom Permit held too long, and tells plugins whose deadline passed.
    pub(super) fn time_out(&mut self, now: Now, effects: &mut Effects) {
        for (uid, rejection, plugin, since) in self.overdue(now.mono) {
            observe_permit(now, since, false, effects);
            let failed = Failed::rejected(Some(plugin), &rejection);
            self.binding_failed(now, &uid, failed, effects);
        }
        self.extenders_time_out(now, effects);
        self.name_overdue(now, effects);
        let (due, later): (Vec<Awaited>, Vec<Awaited>) = std::mem::take(&mut self.awaited)
            .into_iter()
            .partition(|it| it.until <= now.mono && !self.is_pinned(&it.owner));
        self.awaited = later;
        for awaited in due {
            self.resume(now, awaited.owner, Input::Deadline, effects);
        }
    }

    /// The first plugin of each pod whose time is over, ordered by pod.
    fn overdue(&self, now: Mono) -> Vec<(Box<str>, Rejection, usize, Mono)> {
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let overdue = self.assumed.iter().filter_map(|(uid, assumed)| {
            let binding = assumed.binding.as_ref().filter(|binding| !binding.is_failing)?;
            let Stage::Permit { waits, since } = &binding.stage else { return None };
            let first = waits.iter().min_by_key(|wait| wait.until).filter(|it| it.until <= now)?;
            let time = loadmaster_config::Duration::from(first.time);
            let text =
                format!("rejected due to timeout after waiting {time} at plugin {}", first.name);
            Some((uid.clone(), Rejection::unschedulable(text), first.plugin, *since))
        });
        let mut overdue: Vec<_> = overdue.collect();
        overdue.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        overdue
    }

    /// When Permit's patience with some pod ends, or a plugin is to be named for taking long.
    pub(super) fn binding_deadline(&self) -> Option<Mono> {
        #[expect(clippy::disallowed_methods, reason = "the least is the same in any order")]
        let stages = self.assumed.values().filter_map(|assumed| assumed.binding.as_ref());
        let stages = stages.filter(|binding| !binding.is_failing);
        let waits = stages.filter_map(|binding| match &binding.stage {
            Stage::Permit { waits, .. } => waits.iter().map(|wait| wait.until).min(),
            _ => binding.overdue_at(),
        });
        waits.min()
    }

    /// An answer came.
    pub(super) fn replied(&mut self, now: Now, call: CallId, reply: &Reply, effects: &mut Effects) {
        let Some(owner) = self.calls.remove(&call) else { return };
        let answer = match reply {
            Ok(value) => Ok(value),
            Err(error) => Err((error.code, error.message.as_str())),
        };
        match &owner {
            Owner::Status { uid } => self.status_patched(uid, reply, effects),
            Owner::Evict { preemptor, victim, step } => {
                self.eviction_replied(now, (preemptor, victim, *step), reply, effects);
            }
            _ => self.resume(now, owner, Input::Reply(answer), effects),
        }
    }

    /// An object changed that somebody may wait for.
    pub(super) fn changed(
        &mut self,
        now: Now,
        object: &ObjectRef,
        value: Option<&Value>,
        effects: &mut Effects,
    ) {
        let (woken, rest): (Vec<Awaited>, Vec<Awaited>) =
            std::mem::take(&mut self.awaited).into_iter().partition(|it| it.on.contains(object));
        self.awaited = rest;
        for awaited in woken {
            self.resume(now, awaited.owner, Input::Changed(value), effects);
        }
    }

    /// Goes on with a plugin, unless its cycle ended meanwhile.
    fn resume(&mut self, now: Now, owner: Owner, input: Input<'_>, effects: &mut Effects) {
        match owner {
            Owner::PreBind { uid, serial, member } => {
                if self.is_binding(&uid, serial) {
                    self.step_pre_bind(now, &uid, member, input, effects);
                }
            }
            Owner::Bind { uid, serial, member } => {
                if self.is_binding(&uid, serial) {
                    self.step_bind(now, &uid, member, input, effects);
                }
            }
            Owner::PostFilter { uid, serial } => {
                self.resume_post_filter(now, &uid, serial, input, effects);
            }
            Owner::Binder { .. } => {
                self.binder_answered(now, &owner, Err(NO_ANSWER.to_owned()), effects);
            }
            Owner::Extended | Owner::Status { .. } | Owner::Evict { .. } => {}
        }
    }

    pub(super) fn is_binding(&mut self, uid: &str, serial: u64) -> bool {
        let is_it = |binding: &mut Binding| binding.serial == serial && !binding.is_failing;
        self.binding_mut(uid).is_some_and(is_it)
    }

    pub(super) fn call(
        &mut self,
        owner: Owner,
        request: loadmaster_framework::request::ApiRequest,
        effects: &mut Effects,
    ) {
        let id = self.next_call(owner);
        effects.push(Effect::Call(Call { id, request }));
    }

    pub(super) fn binding_mut(&mut self, uid: &str) -> Option<&mut Binding> {
        self.assumed.get_mut(uid)?.binding.as_deref_mut()
    }
}

impl Owner {
    fn is_of(&self, cycle: u64) -> bool {
        match self {
            Owner::PreBind { serial, .. }
            | Owner::Bind { serial, .. }
            | Owner::Binder { serial, .. } => *serial == cycle,
            Owner::PostFilter { .. }
            | Owner::Extended
            | Owner::Status { .. }
            | Owner::Evict { .. } => false,
        }
    }
}

/// A plugin that may have waited for answers has ended: how long it took by the time the engine was told, for some pods.
fn observe_step(
    now: Now,
    binding: &Binding,
    who: Who,
    site: Site,
    code: Code,
    effects: &mut Effects,
) {
    if binding.serial.is_multiple_of(TIMED_EVERY) {
        let nanos = now.mono.since(binding.asked).as_nanos() as u64;
        let call = Timed { who, site, code, nanos, event: None };
        effects.push(Effect::Observe(Observation::Timed(vec![call])));
    }
}

fn observe_permit(now: Now, since: Mono, allowed: bool, effects: &mut Effects) {
    let nanos = now.mono.since(since).as_nanos() as u64;
    effects.push(Effect::Observe(Observation::PermitWait { allowed, nanos }));
}
