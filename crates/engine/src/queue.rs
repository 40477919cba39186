//! The scheduling queue: every pending pod of our profiles is here exactly once, or in flight.
//!
//! ```text
//!            add ──► PreEnqueue ──► activeQ ──pop──► in flight ──done──► (bound, or gone)
//!                        │             ▲  ▲              │
//!                        │    backoff  │  │ event, no    │ requeue: who rejected it, and what
//!                        │    is over  │  │ backoff left │ happened since it was popped?
//!                        ▼             │  │              ▼
//!               unschedulablePods ──event──► backoffQ ◄──┘ error, or an event that may help
//!               (waiting, or gated)                        nothing that may help: unschedulablePods
//! ```
//!
//! | structure | order |
//! | --- | --- |
//! | activeQ | QueueSort, then the order in which the pods came |
//! | backoffQ, after a rejection | end of backoff; within a window of one second as activeQ |
//! | backoffQ, after an error | end of backoff; never tried early |
//! | unschedulablePods | none; grouped by who must be asked about events |
//! | in flight | popped pods, and the events since the first of them was popped |
//!
//! Pure: whoever owns it says what time it is and calls [`Queue::flush`] at [`Queue::deadline`]. Upstream's timers tick every whole
//! second for backoffs and every 30 s for pods that waited too long; what a flush does hangs on the last tick, not on the moment of
//! the call. Differences to upstream: pods are known by uid; pods that are equal for QueueSort leave in the order in which they came;
//! node conditions and declared features, and claims generated for a pod, are not kept and make no events; annotations are
//! where a plugin needs them.

mod backoff;
mod event;
mod heap;
mod hints;
mod in_flight;
mod incoming;
mod pod;
mod pods;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::event::EventWithHint;
use loadmaster_framework::{
    Action, ClusterEvent, EventResource, PodInfo, QueueSort, Rejection, World,
};
use loadmaster_stdx::Map;

pub use backoff::Options;
pub use event::{Cause, Events, Happened, Object, node_update_events, pod_update_events};
pub use incoming::{IncomingPods, IncomingQueue};
pub use pod::{Held, PluginIdx, PluginSet, QueuedPod, SeatIdx};

use backoff::WINDOW;
use heap::{Heap, Slot};
use hints::{Listeners, Strategy, may_ungate};
use in_flight::{InFlight, Recorded};
use incoming::Incoming;
use pods::{Entry, Pods};
use waiting::{Group, Member, Waiting};

use crate::time::{Mono, Now};

/// How often pods that waited too long are looked for.
const TIMEOUT_TICK: Duration = Duration::from_secs(30);

/// What the queue asks of plugins.
pub trait Plugins {
    /// Asks PreEnqueue of the pod's profile, `first` before the others. The first that says no holds the pod.
    fn pre_enqueue(
        &self,
        seat: SeatIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), Held>;

    /// What may wake pods that the plugin rejected; `None` means everything.
    fn events(&self, seat: SeatIdx, plugin: PluginIdx) -> Option<&[EventWithHint]>;

    /// Whether some plugin of some profile registered such events; others are not even kept for pods in flight.
    fn is_of_interest(&self, event: &ClusterEvent) -> bool;

    /// What hints look at.
    fn world(&self) -> &World;
}

/// Where a pod is that is not in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Active,
    Backoff,
    Unschedulable,
    /// In unschedulablePods, held by PreEnqueue.
    Gated,
}

/// Number of pods by place: `scheduler_pending_pods`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// The scheduling queue.
pub struct Queue {
    options: Options,
    pods: Pods,
    slots: Map<Box<str>, Slot>,
    active: Heap,
    backoff: Heap,
    error_backoff: Heap,
    waiting: Waiting,
    in_flight: InFlight,
    incoming: Incoming,
    n_came: u64,
    /// The last tick at which pods that waited too long were moved.
    timeout_tick: Mono,
}

/// A pod is on its way from one place to another.
#[derive(Clone, Copy)]
struct Move<'a> {
    now: Now,
    plugins: &'a dyn Plugins,
    cause: &'a Cause,
    origin: Origin,
}

/// Where it comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Outside, or unschedulablePods because of an event about another object: ending up there counts as coming in.
    Anywhere,
    Backoff,
    /// unschedulablePods: if it ends up there again it does not count as coming in.
    Waiting,
}

impl Queue {
    /// An empty queue. `sort` is the QueueSort plugin, the same in all profiles.
    pub fn new(options: Options, sort: Arc<dyn QueueSort>) -> Queue {
        Queue {
            pods: Pods::new(sort, &options),
            options,
            slots: Map::default(),
            active: Heap::default(),
            backoff: Heap::default(),
            error_backoff: Heap::default(),
            waiting: Waiting::default(),
            in_flight: InFlight::default(),
            incoming: Incoming::default(),
            n_came: 0,
            timeout_tick: Mono::default(),
        }
    }

    /// A pending pod appeared. One that is queued already starts anew; one in flight is updated.
    pub fn add(&mut self, now: Now, plugins: &dyn Plugins, seat: SeatIdx, pod: Arc<PodInfo>) {
        if self.in_flight.contains(&pod.uid) {
            return self.update(now, plugins, seat, pod);
        }
        self.delete(&pod.uid);
        self.enter(now, plugins, seat, pod, Action::ADD);
    }

    /// A pending pod changed. It stays where it is, unless it waits and one of its rejecters says that the change may help. One that
    /// is not known is added.
    pub fn update(&mut self, now: Now, plugins: &dyn Plugins, seat: SeatIdx, pod: Arc<PodInfo>) {
        if let Some(old) = self.in_flight.replace(&pod) {
            for event in pod_update_events(&old, &pod) {
                let [old, new] = [&old, &pod].map(|pod| Some(Object::Pod(pod.clone())));
                let cause = Cause::Event(event.clone());
                self.in_flight.record(Recorded { cause, event, old, new });
            }
            return;
        }
        let Some(slot) = self.slots.get(&*pod.uid).copied() else {
            return self.enter(now, plugins, seat, pod, Action::UPDATE);
        };
        let entry = &mut self.pods[slot];
        let old = std::mem::replace(&mut entry.pod.info.pod, pod.clone());
        match entry.place {
            Place::Active => self.active.update(slot, |a, b| self.pods.first_active(a, b)),
            // What orders failed pods does not change.
            Place::Backoff => self.backoff.update(slot, |a, b| self.pods.first_backoff(a, b)),
            Place::Unschedulable | Place::Gated => self.wake_itself(now, plugins, slot, old, pod),
        }
    }

    /// Puts a pod in the place of itself when nothing changed that could wake it or move it.
    pub fn renew(&mut self, pod: &Arc<PodInfo>) {
        if self.in_flight.replace(pod).is_some() {
            return;
        }
        if let Some(slot) = self.slots.get(&*pod.uid).copied() {
            self.pods[slot].pod.info.pod = pod.clone();
        }
    }

    /// A pending pod is gone, or was bound by somebody else. A pod in flight stays so until [`Queue::done`] or [`Queue::requeue`].
    pub fn delete(&mut self, uid: &str) -> Option<QueuedPod> {
        let slot = self.slots.remove(uid)?;
        self.detach(slot);
        Some(self.pods.remove(slot))
    }

    /// The pod to try next, now in flight; `None` if nobody is ready. With nobody else to try, a rejected pod does not wait for the
    /// end of its backoff.
    pub fn pop(&mut self) -> Option<QueuedPod> {
        let slot = match self.active.peek() {
            Some(slot) => slot,
            None if self.options.pop_from_backoff => {
                let slot = self.backoff.peek()?;
                self.incoming.count(IncomingQueue::Active, &Cause::PopFromBackoffQ);
                slot
            }
            None => return None,
        };
        self.detach(slot);
        let mut pod = self.pods.remove(slot);
        pod.info.attempts += 1;
        let (uid, _) = self.slots.remove_entry(&*pod.info.pod.uid)?;
        self.in_flight.insert(uid, pod.info.pod.clone());
        Some(pod)
    }

    /// Whether [`Queue::pop`] would give a pod.
    pub fn is_ready(&self) -> bool {
        self.active.len() > 0 || self.options.pop_from_backoff && self.backoff.len() > 0
    }

    /// A pod is no longer in flight: it is going to be bound, or it is gone.
    pub fn done(&mut self, uid: &str) {
        self.in_flight.remove(uid);
    }

    /// An attempt failed; [`QueuedPod::set_rejecters`] said who rejected the pod. It is asked about what happened since it was popped:
    /// back to activeQ or backoffQ if that may help, else it waits. Errors, and pods that were [done](Queue::done) with already
    /// (a failed binding), go through backoff. The pod is kept as the last [`Queue::update`] told it. If it is queued already, that
    /// stands and this is dropped.
    pub fn requeue(&mut self, now: Now, plugins: &dyn Plugins, mut pod: QueuedPod) {
        if let Some(newest) = self.in_flight.pod(&pod.info.pod.uid) {
            pod.info.pod = newest.clone();
        }
        let uid = pod.info.pod.uid.clone();
        if self.slots.contains_key(&uid) {
            return self.done(&uid);
        }
        if pod.has_rejecters() {
            pod.unschedulable_count += 1;
            pod.consecutive_errors = 0;
        } else {
            pod.consecutive_errors += 1;
        }
        pod.info.queued = now.wall;
        pod.queued_at = now.mono;
        pod.backoff_until = self.options.backoff_until(&pod);
        pod.flushed_by_timeout = false;
        let strategy = self.replay(plugins, &pod);
        let uid = self.in_flight.remove(&uid).unwrap_or(uid);
        // The place is set when the pod arrives.
        let slot = self.pods.insert(Entry { pod, place: Place::Unschedulable });
        self.slots.insert(uid, slot);
        let cause = &Cause::ScheduleAttemptFailure;
        self.send(slot, strategy, Move { now, plugins, cause, origin: Origin::Anywhere });
    }

    /// Something happened: pods that wait for it go to activeQ or backoffQ, pods in flight will be asked about it if they come back.
    pub fn happened(&mut self, now: Now, plugins: &dyn Plugins, happened: Happened) {
        let Happened { event, old, new, max_priority, except } = happened;
        if !event.is_wildcard() && !plugins.is_of_interest(&event) {
            return;
        }
        let mut woken: Vec<(Member, Strategy)> = Vec::new();
        for (group, members) in self.waiting.groups() {
            if !may_ungate(plugins, group, &event) {
                continue;
            }
            let listeners = Listeners::new(plugins, group, &event, old.as_ref(), new.as_ref());
            if listeners.is_empty() {
                continue;
            }
            for member in members {
                let pod = &self.pods[member.1].pod.info.pod;
                if max_priority.is_some_and(|max| pod.template.priority() > max)
                    || except.as_deref() == Some(&*pod.uid)
                {
                    continue;
                }
                let strategy = listeners.strategy(pod);
                if strategy != Strategy::Skip {
                    woken.push((*member, strategy));
                }
            }
        }
        woken.sort_unstable_by_key(|((nth, _), _)| *nth);
        let cause = Cause::Event(event.clone());
        let step = Move { now, plugins, cause: &cause, origin: Origin::Anywhere };
        for ((_, slot), strategy) in woken {
            self.detach(slot);
            self.send(slot, strategy, step);
        }
        self.in_flight.record(Recorded { cause, event, old, new });
    }

    /// A plugin asks to try these pods now, whatever they wait for. PreEnqueue can still hold them. Those in flight are tried again
    /// after their backoff if they come back.
    pub fn activate(&mut self, now: Now, plugins: &dyn Plugins, uids: &[&str]) {
        let cause = &Cause::ForceActivate;
        for uid in uids {
            if let Some(pod) = self.in_flight.pod(uid) {
                let new = Some(Object::Pod(pod.clone()));
                let (cause, event) = (cause.clone(), ClusterEvent::wildcard());
                self.in_flight.record(Recorded { cause, event, old: None, new });
            }
            let Some(slot) = self.slots.get(*uid).copied() else { continue };
            let origin = match self.pods[slot].place {
                Place::Active => continue,
                Place::Backoff => Origin::Backoff,
                Place::Unschedulable | Place::Gated => Origin::Waiting,
            };
            self.detach(slot);
            self.move_to_active(slot, Move { now, plugins, cause, origin });
        }
    }

    /// Moves pods whose backoff is over, and pods that waited too long for an event. To be called at [`Queue::deadline`]; calls at
    /// other times do no harm.
    pub fn flush(&mut self, now: Now, plugins: &dyn Plugins) {
        let tick = now.mono.floor(WINDOW);
        let mut over = Vec::new();
        while let Some(slot) = self.first_over(tick) {
            self.detach(slot);
            over.push(slot);
        }
        let cause = &Cause::BackoffComplete;
        for slot in over {
            self.move_to_active(slot, Move { now, plugins, cause, origin: Origin::Backoff });
        }
        let tick = now.mono.floor(TIMEOUT_TICK);
        if tick > self.timeout_tick {
            self.timeout_tick = tick;
            self.flush_waiting(now, plugins, tick);
        }
    }

    /// When [`Queue::flush`] has something to do next.
    pub fn deadline(&self) -> Option<Mono> {
        let heads = [&self.backoff, &self.error_backoff].map(Heap::peek);
        let ends = heads.into_iter().flatten().filter_map(|slot| self.pods[slot].pod.backoff_until);
        let over = ends.map(|end| end.floor(WINDOW).after(WINDOW)).min();
        let too_long = self.waiting.oldest().map(|since| {
            let tick = since.after(self.options.max_in_unschedulable).floor(TIMEOUT_TICK);
            tick.max(self.timeout_tick).after(TIMEOUT_TICK)
        });
        over.into_iter().chain(too_long).min()
    }

    /// A pod that is queued, and where.
    pub fn get(&self, uid: &str) -> Option<(&QueuedPod, Place)> {
        let entry = &self.pods[*self.slots.get(uid)?];
        Some((&entry.pod, entry.place))
    }

    /// Every pod that is queued, and where, in no meaningful order.
    pub fn iter(&self) -> impl Iterator<Item = (&QueuedPod, Place)> {
        self.pods.iter().map(|entry| (&entry.pod, entry.place))
    }

    /// Number of pods by place.
    pub fn counts(&self) -> Counts {
        Counts {
            active: self.active.len(),
            backoff: self.backoff.len() + self.error_backoff.len(),
            unschedulable: self.waiting.n_unschedulable(),
            gated: self.waiting.n_gated(),
        }
    }

    /// Whether the pod was popped and is neither requeued nor done.
    pub fn is_in_flight(&self, uid: &str) -> bool {
        self.in_flight.contains(uid)
    }

    /// Pods in flight as their last updates told them, the one popped first in front.
    pub fn in_flight(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.in_flight.pods()
    }

    /// Why the events that are kept for pods in flight were kept: `scheduler_inflight_events` counts them, beside the pods.
    pub fn in_flight_events(&self) -> impl Iterator<Item = &Cause> {
        self.in_flight.events().map(|recorded| &recorded.cause)
    }

    /// How many pods came into which queue and why, since the last call.
    pub fn take_incoming(&mut self) -> Vec<IncomingPods> {
        self.incoming.take()
    }

    fn enter(
        &mut self,
        now: Now,
        plugins: &dyn Plugins,
        seat: SeatIdx,
        pod: Arc<PodInfo>,
        action: Action,
    ) {
        let uid = pod.uid.clone();
        self.n_came += 1;
        let pod = QueuedPod::new(now, seat, pod, self.n_came);
        // The place is set when the pod arrives.
        let slot = self.pods.insert(Entry { pod, place: Place::Unschedulable });
        self.slots.insert(uid, slot);
        let cause = &Cause::Event(ClusterEvent::new(EventResource::UnschedulablePod, action));
        self.move_to_active(slot, Move { now, plugins, cause, origin: Origin::Anywhere });
    }

    /// A waiting pod changed itself: its rejecters say whether that helps. Gated pods are asked too.
    fn wake_itself(
        &mut self,
        now: Now,
        plugins: &dyn Plugins,
        slot: Slot,
        old: Arc<PodInfo>,
        new: Arc<PodInfo>,
    ) {
        let events = pod_update_events(&old, &new);
        let [old, new] = [old, new].map(Object::Pod);
        for event in events {
            let pod = &self.pods[slot].pod;
            let listeners =
                Listeners::new(plugins, &Group::of(pod), &event, Some(&old), Some(&new));
            let strategy = listeners.strategy(&pod.info.pod);
            if strategy == Strategy::Skip {
                continue;
            }
            self.detach(slot);
            let cause = &Cause::Event(event.clone());
            self.send(slot, strategy, Move { now, plugins, cause, origin: Origin::Waiting });
            if matches!(self.pods[slot].place, Place::Active | Place::Backoff) {
                return;
            }
        }
    }

    /// What happened since the pod was popped, as its rejecters see it.
    fn replay(&self, plugins: &dyn Plugins, pod: &QueuedPod) -> Strategy {
        if !pod.has_rejecters() {
            return Strategy::AfterBackoff;
        }
        let Some(events) = self.in_flight.since_pop(&pod.info.pod.uid) else {
            return Strategy::AfterBackoff;
        };
        let enough = match pod.pending_plugins.is_empty() {
            true => Strategy::AfterBackoff,
            false => Strategy::Immediately,
        };
        let group = Group::of(pod);
        let mut strategy = Strategy::Skip;
        for Recorded { event, old, new, .. } in events {
            let listeners = Listeners::new(plugins, &group, event, old.as_ref(), new.as_ref());
            strategy = strategy.max(listeners.strategy(&pod.info.pod));
            if strategy >= enough {
                break;
            }
        }
        strategy
    }

    /// Pods that wait for too long by this tick are tried without an event. Gated ones are marked only, unless their gating plugin
    /// listens to everything or failed.
    fn flush_waiting(&mut self, now: Now, plugins: &dyn Plugins, tick: Mono) {
        let overdue = self.waiting.older_than(tick.before(self.options.max_in_unschedulable));
        if overdue.is_empty() {
            return;
        }
        let (cause, event) = (Cause::UnschedulableTimeout, ClusterEvent::wildcard());
        for (_, slot) in overdue {
            let pod = &mut self.pods[slot].pod;
            pod.flushed_by_timeout = true;
            // A plugin that failed holds no pod for ever: no event may come that it registered.
            let has_failed = |held: &Held| matches!(held.rejection, Rejection::Failed(_));
            if may_ungate(plugins, &Group::of(pod), &event)
                || pod.gating.as_ref().is_some_and(has_failed)
            {
                self.detach(slot);
                let step = Move { now, plugins, cause: &cause, origin: Origin::Anywhere };
                self.send(slot, Strategy::AfterBackoff, step);
            }
        }
        self.in_flight.record(Recorded { cause, event, old: None, new: None });
    }

    /// The first pod whose backoff was over at this tick.
    fn first_over(&self, tick: Mono) -> Option<Slot> {
        let heads = [&self.backoff, &self.error_backoff].map(Heap::peek);
        let over = |slot: &Slot| self.pods[*slot].pod.backoff_until.is_none_or(|end| end < tick);
        heads.into_iter().flatten().find(over)
    }

    /// Takes a pod out of the place where it is; it must be put somewhere then.
    fn detach(&mut self, slot: Slot) {
        let pods = &self.pods;
        match pods[slot].place {
            Place::Active => drop(self.active.remove(slot, |a, b| pods.first_active(a, b))),
            Place::Backoff => {
                let _ = self.backoff.remove(slot, |a, b| pods.first_backoff(a, b))
                    || self.error_backoff.remove(slot, |a, b| pods.first_error_backoff(a, b));
            }
            Place::Unschedulable | Place::Gated => self.waiting.remove(slot, &pods[slot].pod),
        }
    }

    /// Puts a pod where the strategy says.
    fn send(&mut self, slot: Slot, strategy: Strategy, step: Move<'_>) {
        let pod = &self.pods[slot].pod;
        match strategy {
            Strategy::Skip => self.move_to_waiting(slot, step),
            Strategy::AfterBackoff if self.options.is_backing_off(pod, step.now.mono) => {
                self.move_to_backoff(slot, step);
            }
            Strategy::AfterBackoff | Strategy::Immediately => self.move_to_active(slot, step),
        }
    }

    fn move_to_active(&mut self, slot: Slot, step: Move<'_>) {
        // With PopFromBackoffQ a pod was asked when it came to backoffQ.
        let was_asked = self.options.pop_from_backoff && step.origin == Origin::Backoff;
        if !was_asked && !self.passes_pre_enqueue(slot, step.plugins) {
            return self.move_to_waiting(slot, step);
        }
        let entry = &mut self.pods[slot];
        entry.pod.initial_attempt.get_or_insert(step.now.mono);
        entry.place = Place::Active;
        self.active.push(slot, |a, b| self.pods.first_active(a, b));
        self.incoming.count(IncomingQueue::Active, step.cause);
    }

    fn move_to_backoff(&mut self, slot: Slot, step: Move<'_>) {
        // It may be popped from there.
        if self.options.pop_from_backoff && !self.passes_pre_enqueue(slot, step.plugins) {
            return self.move_to_waiting(slot, step);
        }
        let entry = &mut self.pods[slot];
        entry.place = Place::Backoff;
        if entry.pod.has_rejecters() {
            self.backoff.push(slot, |a, b| self.pods.first_backoff(a, b));
        } else {
            self.error_backoff.push(slot, |a, b| self.pods.first_error_backoff(a, b));
        }
        self.incoming.count(IncomingQueue::Backoff, step.cause);
    }

    fn move_to_waiting(&mut self, slot: Slot, step: Move<'_>) {
        let entry = &mut self.pods[slot];
        entry.place = if entry.pod.gating.is_some() { Place::Gated } else { Place::Unschedulable };
        self.waiting.insert(slot, &entry.pod);
        if step.origin != Origin::Waiting {
            self.incoming.count(IncomingQueue::Unschedulable, step.cause);
        }
    }

    /// Asks PreEnqueue, the plugin that held the pod last before the others.
    fn passes_pre_enqueue(&mut self, slot: Slot, plugins: &dyn Plugins) -> bool {
        let pod = &mut self.pods[slot].pod;
        let answer = plugins.pre_enqueue(pod.seat, &pod.info.pod, pod.gating_plugin());
        if let Err(held) = &answer {
            pod.unschedulable_plugins.insert(held.plugin);
        }
        pod.gating = answer.err();
        pod.gating.is_none()
    }
}
