//! The reference model of the queue: a list of pods and a list of events, with every rule written out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::{ClusterEvent, PodInfo, QueuedPodInfo, QueueingHint};

use super::super::testkit::{FakePlugins, unregistered_event};
use super::super::{
    ClusterEventOccurrence, EnqueueCause, OwnedEventObject, PluginIdx, ProfileIdx, QueueOptions,
    QueuePlugins, pod_update_events,
};
use crate::time::Now;

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLocation {
    Active,
    Backoff,
    Unschedulable,
    InFlight,
    /// Bound, or being bound.
    Done,
}

#[derive(Clone)]
pub struct ReferencePod {
    pub info: QueuedPodInfo,
    pub at: PodLocation,
    pub profile_idx: ProfileIdx,
    pub since: u64,
    pub unschedulable_count: u32,
    pub consecutive_errors: u32,
    pub unschedulable: BTreeSet<u32>,
    pub pending: BTreeSet<u32>,
    pub gating: Option<u32>,
    pub flushed: bool,
    pub initial_attempt: Option<u64>,
    pub nth: u64,
}

impl ReferencePod {
    pub fn uid(&self) -> &str {
        &self.info.pod.uid
    }

    fn rejecters(&self) -> BTreeSet<u32> {
        self.unschedulable.union(&self.pending).copied().collect()
    }
}

/// An entry of the list of events.
pub enum EventListEntry {
    Popped(String),
    Event {
        label: String,
        event: ClusterEvent,
        old: Option<OwnedEventObject>,
        new: Option<OwnedEventObject>,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Worth {
    No,
    AfterBackoff,
    Immediately,
}

pub struct ReferenceQueue {
    pub options: QueueOptions,
    pub pods: Vec<ReferencePod>,
    pub events: Vec<EventListEntry>,
    pub incoming: BTreeMap<(&'static str, String), u64>,
    pub n_added: u64,
    pub last_tick: u64,
}

impl ReferenceQueue {
    pub fn find(&mut self, uid: &str) -> Option<&mut ReferencePod> {
        self.pods.iter_mut().find(|pod| pod.uid() == uid)
    }

    pub fn pod_location(&self, uid: &str) -> Option<PodLocation> {
        self.pods.iter().find(|pod| pod.uid() == uid).map(|pod| pod.at)
    }

    fn window(&self, nanos: u64) -> u64 {
        if self.options.pop_from_backoff { nanos / SECOND * SECOND } else { nanos }
    }

    pub fn backoff_end(&self, pod: &ReferencePod) -> Option<u64> {
        let n = if pod.consecutive_errors > 0 {
            pod.consecutive_errors
        } else {
            pod.unschedulable_count
        };
        let [initial, max] = [self.options.initial_backoff, self.options.max_backoff]
            .map(|duration| duration.as_nanos() as u64);
        if n == 0 || max == 0 {
            return None;
        }
        let duration = (1..n).fold(initial, |duration, _| (duration * 2).min(max)).min(max);
        Some(self.window(pod.since + duration))
    }

    fn is_backing_off(&self, pod: &ReferencePod, now: Now) -> bool {
        self.backoff_end(pod).is_some_and(|end| end >= self.window(now.mono.0))
    }

    fn add_new(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        profile_idx: ProfileIdx,
        pod: Arc<PodInfo>,
        label: &str,
    ) {
        self.pods.retain(|known| *known.uid() != *pod.uid);
        self.n_added += 1;
        let pod = ReferencePod {
            info: QueuedPodInfo { pod, queued: now.wall, initial_attempt: None, attempts: 0 },
            at: PodLocation::Done,
            profile_idx,
            since: now.mono.0,
            unschedulable_count: 0,
            consecutive_errors: 0,
            unschedulable: BTreeSet::new(),
            pending: BTreeSet::new(),
            gating: None,
            flushed: false,
            initial_attempt: None,
            nth: self.n_added,
        };
        let pod = self.move_to_active(now, plugins, pod, label, false);
        self.pods.push(pod);
    }

    pub fn add(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        profile_idx: ProfileIdx,
        pod: Arc<PodInfo>,
    ) {
        if self.pod_location(&pod.uid) == Some(PodLocation::InFlight) {
            return self.update(now, plugins, profile_idx, pod);
        }
        self.add_new(now, plugins, profile_idx, pod, "UnschedulablePodAdd");
    }

    pub fn update(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        profile_idx: ProfileIdx,
        new: Arc<PodInfo>,
    ) {
        let known = self.find(&new.uid).filter(|pod| pod.at != PodLocation::Done);
        let Some(known) = known else {
            return self.add_new(now, plugins, profile_idx, new, "UnschedulablePodUpdate");
        };
        let old = std::mem::replace(&mut known.info.pod, new.clone());
        let mut pod = known.clone();
        let events = pod_update_events(&old, &new);
        let [old, new] = [Some(OwnedEventObject::Pod(old)), Some(OwnedEventObject::Pod(new))];
        match pod.at {
            PodLocation::InFlight => {
                for event in events {
                    self.record(
                        EnqueueCause::Event(event.clone()),
                        event,
                        old.clone(),
                        new.clone(),
                    );
                }
            }
            PodLocation::Unschedulable => {
                for event in events {
                    let worth = worth_requeuing(plugins, &pod, &event, &old, &new);
                    let label = EnqueueCause::Event(event).to_string();
                    pod = self.requeue_by(now, plugins, pod, worth, &label, true);
                    if pod.at != PodLocation::Unschedulable {
                        break;
                    }
                }
                self.put_back(pod);
            }
            _ => {}
        }
    }

    fn put_back(&mut self, pod: ReferencePod) {
        self.pods.retain(|known| known.uid() != pod.uid());
        self.pods.push(pod);
    }

    pub fn delete(&mut self, uid: &str) {
        self.pods.retain(|pod| {
            pod.uid() != uid || matches!(pod.at, PodLocation::InFlight | PodLocation::Done)
        });
    }

    pub fn pop(&mut self, plugins: &FakePlugins) -> Option<String> {
        let first =
            |at: PodLocation, key: &dyn Fn(&ReferencePod, &ReferencePod) -> std::cmp::Ordering| {
                let there = self.pods.iter().filter(|pod| pod.at == at);
                there.min_by(|a, b| key(a, b)).map(|pod| pod.uid().to_string())
            };
        let by_sort = |a: &ReferencePod, b: &ReferencePod| {
            plugins.compare(&a.info, &b.info).then(a.nth.cmp(&b.nth))
        };
        let mut uid = first(PodLocation::Active, &by_sort);
        if uid.is_none() && self.options.pop_from_backoff {
            let rejected = self
                .pods
                .iter()
                .filter(|pod| pod.at == PodLocation::Backoff && !pod.rejecters().is_empty());
            let by_end = |a: &&ReferencePod, b: &&ReferencePod| {
                self.backoff_end(a).cmp(&self.backoff_end(b)).then_with(|| by_sort(a, b))
            };
            uid = rejected.min_by(by_end).map(|pod| pod.uid().to_string());
            if uid.is_some() {
                self.count("active", "PopFromBackoffQ");
            }
        }
        let uid = uid?;
        let pod = self.find(&uid)?;
        pod.at = PodLocation::InFlight;
        pod.info.attempts += 1;
        self.events.push(EventListEntry::Popped(uid.clone()));
        Some(uid)
    }

    pub fn done(&mut self, uid: &str) {
        if let Some(pod) = self.find(uid)
            && pod.at == PodLocation::InFlight
        {
            pod.at = PodLocation::Done;
            self.land(uid);
        }
    }

    /// Removes the pod's mark from the list of events, and the events that no other pod precedes.
    fn land(&mut self, uid: &str) {
        self.events
            .retain(|entry| !matches!(entry, EventListEntry::Popped(popped) if popped == uid));
        while matches!(self.events.first(), Some(EventListEntry::Event { .. })) {
            self.events.remove(0);
        }
    }

    /// `taken` is the pod as it was popped, which is used if the pod was done meanwhile.
    pub fn requeue(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        taken: ReferencePod,
        unschedulable: &BTreeSet<u32>,
        pending: &BTreeSet<u32>,
    ) {
        let mut pod = match self.pod_location(taken.uid()) {
            Some(PodLocation::Active | PodLocation::Backoff | PodLocation::Unschedulable) => return,
            Some(PodLocation::InFlight) => {
                self.find(taken.uid()).map(|pod| pod.clone()).unwrap_or(taken)
            }
            _ => taken,
        };
        pod.unschedulable = unschedulable.clone();
        pod.pending = pending.clone();
        pod.gating = None;
        if pod.rejecters().is_empty() {
            pod.consecutive_errors += 1;
        } else {
            pod.unschedulable_count += 1;
            pod.consecutive_errors = 0;
        }
        pod.since = now.mono.0;
        pod.info.queued = now.wall;
        pod.flushed = false;
        let popped = |entry: &EventListEntry| matches!(entry, EventListEntry::Popped(uid) if *uid == pod.uid());
        let worth = match self.events.iter().position(popped) {
            Some(at) if !pod.rejecters().is_empty() => {
                let answers = self.events[at..].iter().filter_map(|entry| match entry {
                    EventListEntry::Popped(_) => None,
                    EventListEntry::Event { event, old, new, .. } => {
                        Some(worth_requeuing(plugins, &pod, event, old, new))
                    }
                });
                strongest(answers)
            }
            _ => Worth::AfterBackoff,
        };
        let pod = self.requeue_by(now, plugins, pod, worth, "ScheduleAttemptFailure", false);
        let uid = pod.uid().to_string();
        self.put_back(pod);
        self.land(&uid);
    }

    pub fn on_cluster_event(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        occurrence: ClusterEventOccurrence,
    ) {
        let ClusterEventOccurrence { event, old, new, max_priority, except } = occurrence;
        if event == unregistered_event() {
            return;
        }
        let label = EnqueueCause::Event(event.clone()).to_string();
        for pod in self.waiting() {
            let is_excepted = except.iter().any(|uid| **uid == *pod.uid());
            let max_priority = max_priority.filter(|_| !ignores_priority(plugins, &pod, &event));
            if is_excepted || max_priority.is_some_and(|max| pod.info.pod.template.priority() > max)
            {
                continue;
            }
            self.wake(now, plugins, pod, &event, &old, &new, &label);
        }
        self.record(EnqueueCause::Event(event.clone()), event, old, new);
    }

    #[expect(clippy::too_many_arguments)]
    fn wake(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: ReferencePod,
        event: &ClusterEvent,
        old: &Option<OwnedEventObject>,
        new: &Option<OwnedEventObject>,
        label: &str,
    ) {
        if let Some(gating) = pod.gating {
            let is_registered = match plugins.events(pod.profile_idx, PluginIdx(gating)) {
                Some(events) => events.iter().any(|known| known.event.matches(event)),
                None => !event.is_wildcard(),
            };
            if !is_registered {
                return;
            }
        }
        let worth = worth_requeuing(plugins, &pod, event, old, new);
        if worth != Worth::No {
            let pod = self.requeue_by(now, plugins, pod, worth, label, false);
            self.put_back(pod);
        }
    }

    pub fn activate(&mut self, now: Now, plugins: &FakePlugins, uid: &str) {
        let Some(pod) = self.find(uid).map(|pod| pod.clone()) else { return };
        match pod.at {
            PodLocation::InFlight => {
                let new = Some(OwnedEventObject::Pod(pod.info.pod));
                self.record(EnqueueCause::ForceActivate, ClusterEvent::wildcard(), None, new);
            }
            PodLocation::Backoff | PodLocation::Unschedulable => {
                let waited = pod.at == PodLocation::Unschedulable;
                let was_checked = pod.at == PodLocation::Backoff && self.options.pop_from_backoff;
                let pod = match was_checked {
                    true => self.move_past_pre_enqueue(now, pod, "ForceActivate"),
                    false => self.move_to_active(now, plugins, pod, "ForceActivate", waited),
                };
                self.put_back(pod);
            }
            PodLocation::Active | PodLocation::Done => {}
        }
    }

    pub fn flush(&mut self, now: Now, plugins: &FakePlugins) {
        let tick = now.mono.0 / SECOND * SECOND;
        let over: Vec<ReferencePod> =
            self.pods.iter().filter(|pod| pod.at == PodLocation::Backoff).cloned().collect();
        for pod in over {
            if self.backoff_end(&pod).is_none_or(|end| end < tick) {
                let pod = match self.options.pop_from_backoff {
                    true => self.move_past_pre_enqueue(now, pod, "BackoffComplete"),
                    false => self.move_to_active(now, plugins, pod, "BackoffComplete", false),
                };
                self.put_back(pod);
            }
        }
        let tick = now.mono.0 / (30 * SECOND) * (30 * SECOND);
        if tick <= self.last_tick {
            return;
        }
        self.last_tick = tick;
        let timed_out: Vec<ReferencePod> =
            self.waiting().into_iter().filter(|pod| self.is_timed_out(pod, tick)).collect();
        if timed_out.is_empty() {
            return;
        }
        let event = ClusterEvent::wildcard();
        for mut pod in timed_out {
            pod.flushed = true;
            self.put_back(pod.clone());
            self.wake(now, plugins, pod, &event, &None, &None, "UnschedulableTimeout");
        }
        self.record(EnqueueCause::UnschedulableTimeout, event, None, None);
    }

    fn is_timed_out(&self, pod: &ReferencePod, tick: u64) -> bool {
        tick.saturating_sub(pod.since) > self.options.max_in_unschedulable.as_nanos() as u64
    }

    /// The next tick at which a flush does something, found by trying all ticks.
    pub fn next_flush(&self) -> Option<u64> {
        let over = |end: u64| (end / SECOND..).map(|nth| nth * SECOND).find(|tick| end < *tick);
        let backoffs = self.pods.iter().filter(|pod| pod.at == PodLocation::Backoff);
        let seconds = backoffs.filter_map(|pod| self.backoff_end(pod)).filter_map(over).min();
        let waiting = self.waiting();
        let timed_out = |tick: &u64| waiting.iter().any(|pod| self.is_timed_out(pod, *tick));
        let tick = (1..1_000).map(|nth| self.last_tick + nth * 30 * SECOND).find(timed_out);
        seconds.into_iter().chain(tick).min()
    }

    fn waiting(&self) -> Vec<ReferencePod> {
        let mut pods: Vec<ReferencePod> =
            self.pods.iter().filter(|pod| pod.at == PodLocation::Unschedulable).cloned().collect();
        pods.sort_by_key(|pod| pod.nth);
        pods
    }

    fn requeue_by(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: ReferencePod,
        worth: Worth,
        label: &str,
        waited: bool,
    ) -> ReferencePod {
        match worth {
            Worth::No => self.move_to_unschedulable(pod, label, waited),
            Worth::AfterBackoff if self.is_backing_off(&pod, now) => {
                let mut pod = pod;
                if self.options.pop_from_backoff {
                    pod = run_pre_enqueue(plugins, pod);
                    if pod.gating.is_some() {
                        return self.move_to_unschedulable(pod, label, waited);
                    }
                }
                self.count("backoff", label);
                ReferencePod { at: PodLocation::Backoff, ..pod }
            }
            _ => self.move_to_active(now, plugins, pod, label, waited),
        }
    }

    fn move_to_active(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: ReferencePod,
        label: &str,
        waited: bool,
    ) -> ReferencePod {
        let pod = run_pre_enqueue(plugins, pod);
        match pod.gating {
            Some(_) => self.move_to_unschedulable(pod, label, waited),
            None => self.move_past_pre_enqueue(now, pod, label),
        }
    }

    fn move_past_pre_enqueue(&mut self, now: Now, pod: ReferencePod, label: &str) -> ReferencePod {
        self.count("active", label);
        let initial_attempt = pod.initial_attempt.or(Some(now.mono.0));
        ReferencePod { at: PodLocation::Active, initial_attempt, ..pod }
    }

    fn move_to_unschedulable(
        &mut self,
        pod: ReferencePod,
        label: &str,
        waited: bool,
    ) -> ReferencePod {
        if !waited {
            self.count("unschedulable", label);
        }
        ReferencePod { at: PodLocation::Unschedulable, ..pod }
    }

    fn count(&mut self, queue: &'static str, label: &str) {
        *self.incoming.entry((queue, label.to_string())).or_default() += 1;
    }

    fn record(
        &mut self,
        cause: EnqueueCause,
        event: ClusterEvent,
        old: Option<OwnedEventObject>,
        new: Option<OwnedEventObject>,
    ) {
        if self.events.iter().any(|entry| matches!(entry, EventListEntry::Popped(_))) {
            self.events.push(EventListEntry::Event { label: cause.to_string(), event, old, new });
        }
    }
}

fn run_pre_enqueue(plugins: &FakePlugins, mut pod: ReferencePod) -> ReferencePod {
    let first = pod.gating.map(PluginIdx);
    pod.gating = plugins
        .pre_enqueue(pod.profile_idx, &pod.info.pod, first)
        .err()
        .map(|rejection| rejection.plugin.0);
    pod.unschedulable.extend(pod.gating);
    pod
}

fn strongest(answers: impl Iterator<Item = Worth>) -> Worth {
    let answers: Vec<Worth> = answers.collect();
    [Worth::Immediately, Worth::AfterBackoff]
        .into_iter()
        .find(|worth| answers.contains(worth))
        .unwrap_or(Worth::No)
}

/// Whether a plugin that rejected the pod wants the event for pods of every priority.
fn ignores_priority(plugins: &FakePlugins, pod: &ReferencePod, event: &ClusterEvent) -> bool {
    pod.rejecters().into_iter().any(|plugin| {
        let events = plugins.events(pod.profile_idx, PluginIdx(plugin)).unwrap_or_default();
        events.iter().any(|known| known.event.matches(event) && known.ignores_priority)
    })
}

fn worth_requeuing(
    plugins: &FakePlugins,
    pod: &ReferencePod,
    event: &ClusterEvent,
    old: &Option<OwnedEventObject>,
    new: &Option<OwnedEventObject>,
) -> Worth {
    if pod.rejecters().is_empty() {
        return Worth::AfterBackoff;
    }
    if event.is_wildcard() {
        return match new {
            None => Worth::AfterBackoff,
            Some(OwnedEventObject::Pod(new)) if *new.uid == *pod.uid() => Worth::AfterBackoff,
            Some(_) => Worth::No,
        };
    }
    let question = QueueingHintArgs {
        pod: &pod.info.pod,
        event,
        old: old.as_ref().map(OwnedEventObject::as_event_object),
        new: new.as_ref().map(OwnedEventObject::as_event_object),
        world: plugins.world(),
        states: plugins.states(pod.profile_idx),
    };
    let answers = pod.rejecters().into_iter().map(|plugin| {
        let says_yes = match plugins.events(pod.profile_idx, PluginIdx(plugin)) {
            None => true,
            Some(events) => events.iter().any(|known| {
                known.event.matches(event)
                    && known
                        .hint
                        .as_ref()
                        .is_none_or(|hint| hint(&question) != Ok(QueueingHint::Skip))
            }),
        };
        match (says_yes, pod.pending.contains(&plugin)) {
            (false, _) => Worth::No,
            (true, false) => Worth::AfterBackoff,
            (true, true) => Worth::Immediately,
        }
    });
    strongest(answers)
}
