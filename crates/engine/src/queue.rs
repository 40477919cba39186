//! The scheduling queue: every pending pod of our profiles is here exactly once, or in flight (upstream's `PriorityQueue`).
//!
//! ```text
//!            add ──► PreEnqueue ──► activeQ ──pop──► in flight ──done──► (bound, or deleted)
//!                        │             ▲  ▲              │
//!                        │    backoff  │  │ event, no    │ requeue: which plugins rejected it,
//!                        │    is over  │  │ backoff left │ and which events came since its pop?
//!                        ▼             │  │              ▼
//!               unschedulablePods ──event──► backoffQ ◄──┘ error, or an event that may help
//!               (waiting, or gated)                        nothing that may help: unschedulablePods
//! ```
//!
//! | structure | order |
//! | --- | --- |
//! | activeQ | QueueSort, then the order of arrival |
//! | backoffQ, after a rejection | end of backoff; within a window of one second as activeQ |
//! | backoffQ, after an error | end of backoff; never tried early |
//! | unschedulablePods | none; grouped by the plugins that rejected them |
//! | in flight | popped pods, and the events since the first of them was popped |
//!
//! The queue reads no clock: its owner passes the time and calls [`Queue::flush`] at [`Queue::next_flush`]. Upstream's timers tick every
//! second for backoffs and every 30 s for pods that stay too long in unschedulablePods; a flush depends on the last tick, not on the exact
//! time of the call. Differences from upstream: pods are identified by uid; pods that are equal for QueueSort are popped in order of arrival;
//! node conditions, declared features and ResourceClaims generated for a pod cause no events; changes of annotations do where a plugin
//! needs them.

mod backoff;
mod event;
mod flush;
mod heap;
mod in_flight;
mod incoming;
#[cfg(test)]
mod model_tests;
mod pod_slab;
mod queued_pod;
mod queueing_hints;
mod reconfigure;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod unschedulable_pods;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_framework::cluster_event::ClusterEventWithHint;
use loadmaster_framework::{
    ActionType, ClusterEvent, EventResource, PluginStates, PodInfo, QueuedPodInfo, World,
};
use loadmaster_stdx::Map;

pub use backoff::QueueOptions;
pub use event::{
    ClusterEventOccurrence, ClusterEvents, EnqueueCause, OwnedEventObject, node_update_events,
    pod_update_events,
};
pub use incoming::{IncomingPods, IncomingQueue};
pub use queued_pod::{PluginIdx, PluginIdxSet, PreEnqueueRejection, ProfileIdx, QueuedPod};

use backoff::WINDOW;
use heap::{Heap, Slot};
use in_flight::{InFlight, InFlightEvent};
use incoming::Incoming;
use pod_slab::PodSlab;
use queueing_hints::{EventHints, QueueingStrategy, may_ungate};
use unschedulable_pods::{Member, RejecterGroup, UnschedulablePods};

use crate::time::{MonoTime, Now};

/// Interval at which pods that stay too long in unschedulablePods are moved (upstream's `flushUnschedulablePodsLeftover`).
const TIMEOUT_TICK: Duration = Duration::from_secs(30);

/// How the queue calls plugins.
pub trait QueuePlugins {
    /// Runs the PreEnqueue plugins of the pod's profile, `first` before the others. The first one that rejects the pod gates it.
    fn pre_enqueue(
        &self,
        profile_idx: ProfileIdx,
        pod: &PodInfo,
        first: Option<PluginIdx>,
    ) -> Result<(), PreEnqueueRejection>;

    /// Events that may requeue pods that the plugin rejected; `None` means all events.
    fn events(&self, profile_idx: ProfileIdx, plugin: PluginIdx)
    -> Option<&[ClusterEventWithHint]>;

    /// Whether any plugin of any profile registered such events (upstream's `isEventOfInterest`). Others are ignored.
    fn is_event_of_interest(&self, event: &ClusterEvent) -> bool;

    /// The order of QueueSort: `Less` if `a` is scheduled before `b`. It may change only before a call of [`Queue::sort`].
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering;

    /// Numbers that order pods as [`QueuePlugins::compare`] does, if the plugin has such; they change only with the pod, or as `compare`.
    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]>;

    /// The world that hints read.
    fn world(&self) -> &World;

    /// The states of a profile's plugins, which hints read.
    fn states(&self, profile_idx: ProfileIdx) -> &PluginStates;
}

/// The part of the queue that holds a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubQueue {
    Active,
    Backoff,
    Unschedulable,
    /// In unschedulablePods, gated by PreEnqueue.
    Gated,
}

/// Number of pods by sub-queue: `scheduler_pending_pods`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingCounts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// The scheduling queue.
pub struct Queue {
    options: QueueOptions,
    pods: PodSlab,
    slots: Map<Box<str>, Slot>,
    active: Heap,
    backoff: Heap,
    error_backoff: Heap,
    unschedulable: UnschedulablePods,
    in_flight: InFlight,
    incoming: Incoming,
    n_added: u64,
    /// The last tick at which pods that stayed too long in unschedulablePods were moved.
    timeout_tick: MonoTime,
}

/// Context of a move of a pod from one sub-queue to another.
#[derive(Clone, Copy)]
struct MoveContext<'a> {
    now: Now,
    plugins: &'a dyn QueuePlugins,
    cause: &'a EnqueueCause,
    origin: Origin,
}

/// Where a moved pod comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A new pod, or one from unschedulablePods after an event about another object: moving (back) there counts as incoming.
    Anywhere,
    Backoff,
    /// unschedulablePods: moving back there does not count as incoming.
    UnschedulablePods,
}

impl Queue {
    /// An empty queue.
    pub fn new(options: QueueOptions) -> Queue {
        Queue {
            pods: PodSlab::new(&options),
            options,
            slots: Map::default(),
            active: Heap::default(),
            backoff: Heap::default(),
            error_backoff: Heap::default(),
            unschedulable: UnschedulablePods::default(),
            in_flight: InFlight::default(),
            incoming: Incoming::default(),
            n_added: 0,
            timeout_tick: MonoTime::default(),
        }
    }

    /// Adds a pending pod. One that is already queued starts from the beginning; one in flight is updated.
    pub fn add(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        profile_idx: ProfileIdx,
        pod: Arc<PodInfo>,
    ) {
        if self.in_flight.contains(&pod.uid) {
            return self.update(now, plugins, profile_idx, pod);
        }
        self.delete(plugins, &pod.uid);
        self.add_new(now, plugins, profile_idx, pod, ActionType::ADD);
    }

    /// Updates a pending pod. It stays in its sub-queue, unless it is unschedulable and a hint says that the change may help. An unknown pod is
    /// added.
    pub fn update(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        profile_idx: ProfileIdx,
        pod: Arc<PodInfo>,
    ) {
        if let Some(old) = self.in_flight.replace(&pod) {
            for event in pod_update_events(&old, &pod) {
                let [old, new] = [&old, &pod].map(|pod| Some(OwnedEventObject::Pod(pod.clone())));
                let cause = EnqueueCause::Event(event.clone());
                self.in_flight.record(InFlightEvent { cause, event, old, new });
            }
            return;
        }
        let Some(slot) = self.slots.get(&*pod.uid).copied() else {
            return self.add_new(now, plugins, profile_idx, pod, ActionType::UPDATE);
        };
        let entry = &mut self.pods[slot];
        let old = std::mem::replace(&mut entry.pod.info.pod, pod.clone());
        match entry.sub_queue {
            SubQueue::Active => {
                self.pods.set_sort_key(slot, plugins);
                self.active.update(slot, |a, b| self.pods.first_active(plugins, a, b))
            }
            // The order of pods after an error does not depend on the pod.
            SubQueue::Backoff => {
                self.pods.set_sort_key(slot, plugins);
                self.backoff.update(slot, |a, b| self.pods.first_backoff(plugins, a, b))
            }
            SubQueue::Unschedulable | SubQueue::Gated => {
                self.requeue_on_own_update(now, plugins, slot, old, pod)
            }
        }
    }

    /// Replaces a pod by a newer version that differs in nothing that could requeue or reorder it.
    pub fn refresh_pod(&mut self, pod: &Arc<PodInfo>) {
        if self.in_flight.replace(pod).is_some() {
            return;
        }
        if let Some(slot) = self.slots.get(&*pod.uid).copied() {
            self.pods[slot].pod.info.pod = pod.clone();
        }
    }

    /// Removes a pod that was deleted or bound by another scheduler. A pod in flight stays so until [`Queue::done`] or [`Queue::requeue`].
    pub fn delete(&mut self, plugins: &dyn QueuePlugins, uid: &str) -> Option<QueuedPod> {
        let slot = self.slots.remove(uid)?;
        self.detach(slot, plugins);
        Some(self.pods.remove(slot))
    }

    /// Pops the next pod, which is in flight from now on; `None` if no pod is ready. If activeQ is empty, a pod in backoff after a rejection is
    /// popped before its backoff ends (feature gate SchedulerPopFromBackoffQ).
    pub fn pop(&mut self, plugins: &dyn QueuePlugins) -> Option<QueuedPod> {
        let slot = match self.active.peek() {
            Some(slot) => slot,
            None if self.options.pop_from_backoff => {
                let slot = self.backoff.peek()?;
                self.incoming.count(IncomingQueue::Active, &EnqueueCause::PopFromBackoffQ);
                slot
            }
            None => return None,
        };
        self.detach(slot, plugins);
        let mut pod = self.pods.remove(slot);
        pod.info.attempts += 1;
        let (uid, _) = self.slots.remove_entry(&*pod.info.pod.uid)?;
        self.in_flight.insert(uid, pod.info.pod.clone());
        Some(pod)
    }

    /// Restores the order after QueueSort has changed it ([`QueuePlugins::compare`]).
    pub fn sort(&mut self, plugins: &dyn QueuePlugins) {
        self.pods.set_all_sort_keys(plugins);
        let pods = &self.pods;
        self.active.sort(|a, b| pods.first_active(plugins, a, b));
        self.backoff.sort(|a, b| pods.first_backoff(plugins, a, b));
    }

    /// Whether [`Queue::pop`] would return a pod.
    pub fn can_pop(&self) -> bool {
        self.active.len() > 0 || self.options.pop_from_backoff && self.backoff.len() > 0
    }

    /// The pod is no longer in flight: it is being bound, or was deleted.
    pub fn done(&mut self, uid: &str) {
        self.in_flight.remove(uid);
    }

    /// Requeues a pod after a failed attempt; [`QueuedPod::set_rejecters`] must have set the plugins that rejected it (upstream's
    /// `AddUnschedulableIfNotPresent`). If an event since its pop may help, it moves to activeQ or backoffQ, otherwise to unschedulablePods.
    /// After an error, or when the pod was already [done](Queue::done) (a failed binding), it moves to backoffQ. Updates of the pod while it
    /// was in flight are preserved. If the pod is already queued, nothing happens.
    pub fn requeue(&mut self, now: Now, plugins: &dyn QueuePlugins, mut pod: QueuedPod) {
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
        let strategy = self.strategy_of_in_flight_pod(plugins, &pod);
        let uid = self.in_flight.remove(&uid).unwrap_or(uid);
        // The sub-queue is set by the move.
        let slot = self.pods.insert(pod);
        self.slots.insert(uid, slot);
        let cause = &EnqueueCause::ScheduleAttemptFailure;
        self.requeue_with_strategy(
            slot,
            strategy,
            MoveContext { now, plugins, cause, origin: Origin::Anywhere },
        );
    }

    /// Moves pods for which the event may help from unschedulablePods to activeQ or backoffQ (upstream's `MoveAllToActiveOrBackoffQueue`), and
    /// records the event for pods in flight.
    pub fn on_cluster_event(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        occurrence: ClusterEventOccurrence,
    ) {
        let ClusterEventOccurrence { event, old, new, max_priority, except } = occurrence;
        if !event.is_wildcard() && !plugins.is_event_of_interest(&event) {
            return;
        }
        let mut woken: Vec<(Member, QueueingStrategy)> = Vec::new();
        for (group, members) in self.unschedulable.groups() {
            if !may_ungate(plugins, group, &event) {
                continue;
            }
            let hints = EventHints::new(plugins, group, &event, old.as_ref(), new.as_ref());
            if hints.is_empty() {
                continue;
            }
            let max_priority = max_priority.filter(|_| !hints.ignores_priority);
            for member in members {
                let pod = &self.pods[member.1].pod.info.pod;
                if max_priority.is_some_and(|max| pod.template.priority() > max)
                    || except.contains(&pod.uid)
                {
                    continue;
                }
                let strategy = hints.queueing_strategy(pod);
                if strategy != QueueingStrategy::Skip {
                    woken.push((*member, strategy));
                }
            }
        }
        woken.sort_unstable_by_key(|((nth, _), _)| *nth);
        let cause = EnqueueCause::Event(event.clone());
        let step = MoveContext { now, plugins, cause: &cause, origin: Origin::Anywhere };
        for ((_, slot), strategy) in woken {
            self.detach(slot, plugins);
            self.requeue_with_strategy(slot, strategy, step);
        }
        self.in_flight.record(InFlightEvent { cause, event, old, new });
    }

    /// Moves pods to activeQ on request of a plugin. PreEnqueue can still gate them. Pods in flight are retried after their backoff if their
    /// attempt fails.
    pub fn activate(&mut self, now: Now, plugins: &dyn QueuePlugins, uids: &[&str]) {
        let cause = &EnqueueCause::ForceActivate;
        for uid in uids {
            if let Some(pod) = self.in_flight.pod(uid) {
                let new = Some(OwnedEventObject::Pod(pod.clone()));
                let (cause, event) = (cause.clone(), ClusterEvent::wildcard());
                self.in_flight.record(InFlightEvent { cause, event, old: None, new });
            }
            let Some(slot) = self.slots.get(*uid).copied() else { continue };
            let origin = match self.pods[slot].sub_queue {
                SubQueue::Active => continue,
                SubQueue::Backoff => Origin::Backoff,
                SubQueue::Unschedulable | SubQueue::Gated => Origin::UnschedulablePods,
            };
            self.detach(slot, plugins);
            self.move_to_active(slot, MoveContext { now, plugins, cause, origin });
        }
    }

    /// A queued pod and its sub-queue.
    pub fn get(&self, uid: &str) -> Option<(&QueuedPod, SubQueue)> {
        let entry = &self.pods[*self.slots.get(uid)?];
        Some((&entry.pod, entry.sub_queue))
    }

    /// All queued pods with their sub-queues, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = (&QueuedPod, SubQueue)> {
        self.pods.iter().map(|entry| (&entry.pod, entry.sub_queue))
    }

    /// Number of pods by sub-queue.
    pub fn counts(&self) -> PendingCounts {
        PendingCounts {
            active: self.active.len(),
            backoff: self.backoff.len() + self.error_backoff.len(),
            unschedulable: self.unschedulable.n_unschedulable(),
            gated: self.unschedulable.n_gated(),
        }
    }

    /// Whether the pod was popped and is neither requeued nor done.
    pub fn is_in_flight(&self, uid: &str) -> bool {
        self.in_flight.contains(uid)
    }

    /// Pods in flight, in their newest versions, in the order in which they were popped.
    pub fn in_flight_pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.in_flight.pods()
    }

    /// The causes of the events that are stored for pods in flight; `scheduler_inflight_events` counts them and the pods.
    pub fn in_flight_events(&self) -> impl Iterator<Item = &EnqueueCause> {
        self.in_flight.events().map(|recorded| &recorded.cause)
    }

    /// How many pods were added to which queue and why, since the last call.
    pub fn take_incoming_counts(&mut self) -> Vec<IncomingPods> {
        self.incoming.take()
    }

    fn add_new(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        profile_idx: ProfileIdx,
        pod: Arc<PodInfo>,
        action: ActionType,
    ) {
        let uid = pod.uid.clone();
        self.n_added += 1;
        let pod = QueuedPod::new(now, profile_idx, pod, self.n_added);
        // The sub-queue is set by the move.
        let slot = self.pods.insert(pod);
        self.slots.insert(uid, slot);
        let cause =
            &EnqueueCause::Event(ClusterEvent::new(EventResource::UnschedulablePod, action));
        self.move_to_active(slot, MoveContext { now, plugins, cause, origin: Origin::Anywhere });
    }

    /// An unschedulable or gated pod was updated: requeues it if the hints of its rejecters say that the update may help.
    fn requeue_on_own_update(
        &mut self,
        now: Now,
        plugins: &dyn QueuePlugins,
        slot: Slot,
        old: Arc<PodInfo>,
        new: Arc<PodInfo>,
    ) {
        let events = pod_update_events(&old, &new);
        let [old, new] = [old, new].map(OwnedEventObject::Pod);
        for event in events {
            let pod = &self.pods[slot].pod;
            let hints = EventHints::new(
                plugins,
                &RejecterGroup::of_pod(pod),
                &event,
                Some(&old),
                Some(&new),
            );
            let strategy = hints.queueing_strategy(&pod.info.pod);
            if strategy == QueueingStrategy::Skip {
                continue;
            }
            self.detach(slot, plugins);
            let cause = &EnqueueCause::Event(event.clone());
            self.requeue_with_strategy(
                slot,
                strategy,
                MoveContext { now, plugins, cause, origin: Origin::UnschedulablePods },
            );
            if matches!(self.pods[slot].sub_queue, SubQueue::Active | SubQueue::Backoff) {
                return;
            }
        }
    }

    /// The queueing strategy from the events since the pod was popped (upstream's `determineSchedulingHintForInFlightPod`).
    fn strategy_of_in_flight_pod(
        &self,
        plugins: &dyn QueuePlugins,
        pod: &QueuedPod,
    ) -> QueueingStrategy {
        if !pod.has_rejecters() {
            return QueueingStrategy::AfterBackoff;
        }
        let Some(events) = self.in_flight.events_since_pop(&pod.info.pod.uid) else {
            return QueueingStrategy::AfterBackoff;
        };
        let enough = match pod.pending_plugins.is_empty() {
            true => QueueingStrategy::AfterBackoff,
            false => QueueingStrategy::Immediately,
        };
        let group = RejecterGroup::of_pod(pod);
        let mut strategy = QueueingStrategy::Skip;
        for InFlightEvent { event, old, new, .. } in events {
            let hints = EventHints::new(plugins, &group, event, old.as_ref(), new.as_ref());
            strategy = strategy.max(hints.queueing_strategy(&pod.info.pod));
            if strategy >= enough {
                break;
            }
        }
        strategy
    }

    /// Removes a pod from its sub-queue; the caller must move it to another one.
    fn detach(&mut self, slot: Slot, plugins: &dyn QueuePlugins) {
        let pods = &self.pods;
        match pods[slot].sub_queue {
            SubQueue::Active => {
                let _ = self.active.remove(slot, |a, b| pods.first_active(plugins, a, b));
            }
            SubQueue::Backoff => {
                let _ = self.backoff.remove(slot, |a, b| pods.first_backoff(plugins, a, b))
                    || self.error_backoff.remove(slot, |a, b| pods.first_error_backoff(a, b));
            }
            SubQueue::Unschedulable | SubQueue::Gated => {
                self.unschedulable.remove(slot, &pods[slot].pod)
            }
        }
    }

    /// Moves a pod according to the strategy (upstream's `requeuePodWithQueueingStrategy`).
    fn requeue_with_strategy(
        &mut self,
        slot: Slot,
        strategy: QueueingStrategy,
        step: MoveContext<'_>,
    ) {
        let pod = &self.pods[slot].pod;
        match strategy {
            QueueingStrategy::Skip => self.move_to_unschedulable(slot, step),
            QueueingStrategy::AfterBackoff if self.options.is_backing_off(pod, step.now.mono) => {
                self.move_to_backoff(slot, step);
            }
            QueueingStrategy::AfterBackoff | QueueingStrategy::Immediately => {
                self.move_to_active(slot, step)
            }
        }
    }

    fn move_to_active(&mut self, slot: Slot, step: MoveContext<'_>) {
        // With PopFromBackoffQ, PreEnqueue ran when the pod moved to backoffQ.
        let was_asked = self.options.pop_from_backoff && step.origin == Origin::Backoff;
        if !was_asked && !self.run_pre_enqueue(slot, step.plugins) {
            return self.move_to_unschedulable(slot, step);
        }
        let entry = &mut self.pods[slot];
        entry.pod.info.initial_attempt.get_or_insert(step.now);
        entry.sub_queue = SubQueue::Active;
        self.pods.set_sort_key(slot, step.plugins);
        self.active.push(slot, |a, b| self.pods.first_active(step.plugins, a, b));
        self.incoming.count(IncomingQueue::Active, step.cause);
    }

    fn move_to_backoff(&mut self, slot: Slot, step: MoveContext<'_>) {
        // It may be popped from there.
        if self.options.pop_from_backoff && !self.run_pre_enqueue(slot, step.plugins) {
            return self.move_to_unschedulable(slot, step);
        }
        let entry = &mut self.pods[slot];
        entry.sub_queue = SubQueue::Backoff;
        if entry.pod.has_rejecters() {
            self.pods.set_sort_key(slot, step.plugins);
            self.backoff.push(slot, |a, b| self.pods.first_backoff(step.plugins, a, b));
        } else {
            self.error_backoff.push(slot, |a, b| self.pods.first_error_backoff(a, b));
        }
        self.incoming.count(IncomingQueue::Backoff, step.cause);
    }

    fn move_to_unschedulable(&mut self, slot: Slot, step: MoveContext<'_>) {
        let entry = &mut self.pods[slot];
        entry.sub_queue =
            if entry.pod.gating.is_some() { SubQueue::Gated } else { SubQueue::Unschedulable };
        self.unschedulable.insert(slot, &entry.pod);
        if step.origin != Origin::UnschedulablePods {
            self.incoming.count(IncomingQueue::Unschedulable, step.cause);
        }
    }

    /// Runs PreEnqueue, first the plugin that gated the pod last.
    fn run_pre_enqueue(&mut self, slot: Slot, plugins: &dyn QueuePlugins) -> bool {
        let pod = &mut self.pods[slot].pod;
        let answer = plugins.pre_enqueue(pod.profile_idx, &pod.info.pod, pod.gating_plugin());
        if let Err(rejection) = &answer {
            pod.unschedulable_plugins.insert(rejection.plugin);
        }
        pod.gating = answer.err();
        pod.gating.is_none()
    }
}
