//! The naive queue: a list of pods and a list of what happened, every rule spelled out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::{ClusterEvent, Hint, PodInfo, QueueSort, QueuedPodInfo};

use super::super::testkit::{FakePlugins, boring};
use super::super::{
    Cause, Happened, Object, Options, PluginIdx, Plugins, SeatIdx, pod_update_events,
};
use crate::time::Now;

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Active,
    Backoff,
    Unschedulable,
    InFlight,
    /// Bound, or being bound.
    Gone,
}

#[derive(Clone)]
pub struct TwinPod {
    pub info: QueuedPodInfo,
    pub at: At,
    pub seat: SeatIdx,
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

impl TwinPod {
    pub fn uid(&self) -> &str {
        &self.info.pod.uid
    }

    fn rejecters(&self) -> BTreeSet<u32> {
        self.unschedulable.union(&self.pending).copied().collect()
    }
}

/// What the list of what happened holds.
pub enum Entry {
    Popped(String),
    Event { label: String, event: ClusterEvent, old: Option<Object>, new: Option<Object> },
}

#[derive(Clone, Copy, PartialEq)]
enum Worth {
    No,
    AfterBackoff,
    Immediately,
}

pub struct Twin {
    pub options: Options,
    pub sort: Arc<dyn QueueSort>,
    pub pods: Vec<TwinPod>,
    pub happened: Vec<Entry>,
    pub incoming: BTreeMap<(&'static str, String), u64>,
    pub n_came: u64,
    pub last_tick: u64,
}

impl Twin {
    pub fn find(&mut self, uid: &str) -> Option<&mut TwinPod> {
        self.pods.iter_mut().find(|pod| pod.uid() == uid)
    }

    pub fn at(&self, uid: &str) -> Option<At> {
        self.pods.iter().find(|pod| pod.uid() == uid).map(|pod| pod.at)
    }

    fn window(&self, nanos: u64) -> u64 {
        if self.options.pop_from_backoff { nanos / SECOND * SECOND } else { nanos }
    }

    pub fn backoff_end(&self, pod: &TwinPod) -> Option<u64> {
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

    fn is_backing_off(&self, pod: &TwinPod, now: Now) -> bool {
        self.backoff_end(pod).is_some_and(|end| end >= self.window(now.mono.0))
    }

    fn enter(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        seat: SeatIdx,
        pod: Arc<PodInfo>,
        label: &str,
    ) {
        self.pods.retain(|known| *known.uid() != *pod.uid);
        self.n_came += 1;
        let pod = TwinPod {
            info: QueuedPodInfo { pod, queued: now.wall, attempts: 0 },
            at: At::Gone,
            seat,
            since: now.mono.0,
            unschedulable_count: 0,
            consecutive_errors: 0,
            unschedulable: BTreeSet::new(),
            pending: BTreeSet::new(),
            gating: None,
            flushed: false,
            initial_attempt: None,
            nth: self.n_came,
        };
        let pod = self.move_to_active(now, plugins, pod, label, false);
        self.pods.push(pod);
    }

    pub fn add(&mut self, now: Now, plugins: &FakePlugins, seat: SeatIdx, pod: Arc<PodInfo>) {
        if self.at(&pod.uid) == Some(At::InFlight) {
            return self.update(now, plugins, seat, pod);
        }
        self.enter(now, plugins, seat, pod, "UnschedulablePodAdd");
    }

    pub fn update(&mut self, now: Now, plugins: &FakePlugins, seat: SeatIdx, new: Arc<PodInfo>) {
        let known = self.find(&new.uid).filter(|pod| pod.at != At::Gone);
        let Some(known) = known else {
            return self.enter(now, plugins, seat, new, "UnschedulablePodUpdate");
        };
        let old = std::mem::replace(&mut known.info.pod, new.clone());
        let mut pod = known.clone();
        let events = pod_update_events(&old, &new);
        let [old, new] = [Some(Object::Pod(old)), Some(Object::Pod(new))];
        match pod.at {
            At::InFlight => {
                for event in events {
                    self.record(Cause::Event(event.clone()), event, old.clone(), new.clone());
                }
            }
            At::Unschedulable => {
                for event in events {
                    let worth = worth_requeuing(plugins, &pod, &event, &old, &new);
                    let label = Cause::Event(event).to_string();
                    pod = self.requeue_by(now, plugins, pod, worth, &label, true);
                    if pod.at != At::Unschedulable {
                        break;
                    }
                }
                self.put_back(pod);
            }
            _ => {}
        }
    }

    fn put_back(&mut self, pod: TwinPod) {
        self.pods.retain(|known| known.uid() != pod.uid());
        self.pods.push(pod);
    }

    pub fn delete(&mut self, uid: &str) {
        self.pods.retain(|pod| pod.uid() != uid || matches!(pod.at, At::InFlight | At::Gone));
    }

    pub fn pop(&mut self) -> Option<String> {
        let first = |at: At, key: &dyn Fn(&TwinPod, &TwinPod) -> std::cmp::Ordering| {
            let there = self.pods.iter().filter(|pod| pod.at == at);
            there.min_by(|a, b| key(a, b)).map(|pod| pod.uid().to_string())
        };
        let by_sort =
            |a: &TwinPod, b: &TwinPod| self.sort.compare(&a.info, &b.info).then(a.nth.cmp(&b.nth));
        let mut uid = first(At::Active, &by_sort);
        if uid.is_none() && self.options.pop_from_backoff {
            let rejected =
                self.pods.iter().filter(|pod| pod.at == At::Backoff && !pod.rejecters().is_empty());
            let by_end = |a: &&TwinPod, b: &&TwinPod| {
                self.backoff_end(a).cmp(&self.backoff_end(b)).then_with(|| by_sort(a, b))
            };
            uid = rejected.min_by(by_end).map(|pod| pod.uid().to_string());
            if uid.is_some() {
                self.count("active", "PopFromBackoffQ");
            }
        }
        let uid = uid?;
        let pod = self.find(&uid)?;
        pod.at = At::InFlight;
        pod.info.attempts += 1;
        self.happened.push(Entry::Popped(uid.clone()));
        Some(uid)
    }

    pub fn done(&mut self, uid: &str) {
        if let Some(pod) = self.find(uid)
            && pod.at == At::InFlight
        {
            pod.at = At::Gone;
            self.land(uid);
        }
    }

    /// Takes the pod's mark out of what happened, and the events in front that no pod precedes.
    fn land(&mut self, uid: &str) {
        self.happened.retain(|entry| !matches!(entry, Entry::Popped(popped) if popped == uid));
        while matches!(self.happened.first(), Some(Entry::Event { .. })) {
            self.happened.remove(0);
        }
    }

    /// `taken` is the pod as it was popped; of a pod that was done meanwhile it is all that is left.
    pub fn requeue(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        taken: TwinPod,
        unschedulable: &BTreeSet<u32>,
        pending: &BTreeSet<u32>,
    ) {
        let mut pod = match self.at(taken.uid()) {
            Some(At::Active | At::Backoff | At::Unschedulable) => return,
            Some(At::InFlight) => self.find(taken.uid()).map(|pod| pod.clone()).unwrap_or(taken),
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
        let popped = |entry: &Entry| matches!(entry, Entry::Popped(uid) if *uid == pod.uid());
        let worth = match self.happened.iter().position(popped) {
            Some(at) if !pod.rejecters().is_empty() => {
                let answers = self.happened[at..].iter().filter_map(|entry| match entry {
                    Entry::Popped(_) => None,
                    Entry::Event { event, old, new, .. } => {
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

    pub fn happened(&mut self, now: Now, plugins: &FakePlugins, happened: Happened) {
        let Happened { event, old, new, max_priority, except } = happened;
        if event == boring() {
            return;
        }
        let label = Cause::Event(event.clone()).to_string();
        for pod in self.waiting() {
            let is_excepted = except.as_deref() == Some(pod.uid());
            if is_excepted || max_priority.is_some_and(|max| pod.info.pod.template.priority() > max)
            {
                continue;
            }
            self.wake(now, plugins, pod, &event, &old, &new, &label);
        }
        self.record(Cause::Event(event.clone()), event, old, new);
    }

    #[expect(clippy::too_many_arguments)]
    fn wake(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: TwinPod,
        event: &ClusterEvent,
        old: &Option<Object>,
        new: &Option<Object>,
        label: &str,
    ) {
        if let Some(gating) = pod.gating {
            let heard = match plugins.events(pod.seat, PluginIdx(gating)) {
                Some(events) => events.iter().any(|known| known.event.matches(event)),
                None => !event.is_wildcard(),
            };
            if !heard {
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
            At::InFlight => {
                let new = Some(Object::Pod(pod.info.pod));
                self.record(Cause::ForceActivate, ClusterEvent::wildcard(), None, new);
            }
            At::Backoff | At::Unschedulable => {
                let waited = pod.at == At::Unschedulable;
                let asked = pod.at == At::Backoff && self.options.pop_from_backoff;
                let pod = match asked {
                    true => self.move_past_pre_enqueue(now, pod, "ForceActivate"),
                    false => self.move_to_active(now, plugins, pod, "ForceActivate", waited),
                };
                self.put_back(pod);
            }
            At::Active | At::Gone => {}
        }
    }

    pub fn flush(&mut self, now: Now, plugins: &FakePlugins) {
        let tick = now.mono.0 / SECOND * SECOND;
        let over: Vec<TwinPod> =
            self.pods.iter().filter(|pod| pod.at == At::Backoff).cloned().collect();
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
        let overdue: Vec<TwinPod> =
            self.waiting().into_iter().filter(|pod| self.is_overdue(pod, tick)).collect();
        if overdue.is_empty() {
            return;
        }
        let event = ClusterEvent::wildcard();
        for mut pod in overdue {
            pod.flushed = true;
            self.put_back(pod.clone());
            self.wake(now, plugins, pod, &event, &None, &None, "UnschedulableTimeout");
        }
        self.record(Cause::UnschedulableTimeout, event, None, None);
    }

    fn is_overdue(&self, pod: &TwinPod, tick: u64) -> bool {
        tick.saturating_sub(pod.since) > self.options.max_in_unschedulable.as_nanos() as u64
    }

    /// The next tick at which a flush does something, found by trying one after the other.
    pub fn deadline(&self) -> Option<u64> {
        let over = |end: u64| (end / SECOND..).map(|nth| nth * SECOND).find(|tick| end < *tick);
        let backoffs = self.pods.iter().filter(|pod| pod.at == At::Backoff);
        let seconds = backoffs.filter_map(|pod| self.backoff_end(pod)).filter_map(over).min();
        let waiting = self.waiting();
        let overdue = |tick: &u64| waiting.iter().any(|pod| self.is_overdue(pod, *tick));
        let tick = (1..1_000).map(|nth| self.last_tick + nth * 30 * SECOND).find(overdue);
        seconds.into_iter().chain(tick).min()
    }

    fn waiting(&self) -> Vec<TwinPod> {
        let mut pods: Vec<TwinPod> =
            self.pods.iter().filter(|pod| pod.at == At::Unschedulable).cloned().collect();
        pods.sort_by_key(|pod| pod.nth);
        pods
    }

    fn requeue_by(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: TwinPod,
        worth: Worth,
        label: &str,
        waited: bool,
    ) -> TwinPod {
        match worth {
            Worth::No => self.move_to_unschedulable(pod, label, waited),
            Worth::AfterBackoff if self.is_backing_off(&pod, now) => {
                let mut pod = pod;
                if self.options.pop_from_backoff {
                    pod = ask_pre_enqueue(plugins, pod);
                    if pod.gating.is_some() {
                        return self.move_to_unschedulable(pod, label, waited);
                    }
                }
                self.count("backoff", label);
                TwinPod { at: At::Backoff, ..pod }
            }
            _ => self.move_to_active(now, plugins, pod, label, waited),
        }
    }

    fn move_to_active(
        &mut self,
        now: Now,
        plugins: &FakePlugins,
        pod: TwinPod,
        label: &str,
        waited: bool,
    ) -> TwinPod {
        let pod = ask_pre_enqueue(plugins, pod);
        match pod.gating {
            Some(_) => self.move_to_unschedulable(pod, label, waited),
            None => self.move_past_pre_enqueue(now, pod, label),
        }
    }

    fn move_past_pre_enqueue(&mut self, now: Now, pod: TwinPod, label: &str) -> TwinPod {
        self.count("active", label);
        let initial_attempt = pod.initial_attempt.or(Some(now.mono.0));
        TwinPod { at: At::Active, initial_attempt, ..pod }
    }

    fn move_to_unschedulable(&mut self, pod: TwinPod, label: &str, waited: bool) -> TwinPod {
        if !waited {
            self.count("unschedulable", label);
        }
        TwinPod { at: At::Unschedulable, ..pod }
    }

    fn count(&mut self, queue: &'static str, label: &str) {
        *self.incoming.entry((queue, label.to_string())).or_default() += 1;
    }

    fn record(
        &mut self,
        cause: Cause,
        event: ClusterEvent,
        old: Option<Object>,
        new: Option<Object>,
    ) {
        if self.happened.iter().any(|entry| matches!(entry, Entry::Popped(_))) {
            self.happened.push(Entry::Event { label: cause.to_string(), event, old, new });
        }
    }
}

fn ask_pre_enqueue(plugins: &FakePlugins, mut pod: TwinPod) -> TwinPod {
    let first = pod.gating.map(PluginIdx);
    pod.gating =
        plugins.pre_enqueue(pod.seat, &pod.info.pod, first).err().map(|held| held.plugin.0);
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

fn worth_requeuing(
    plugins: &FakePlugins,
    pod: &TwinPod,
    event: &ClusterEvent,
    old: &Option<Object>,
    new: &Option<Object>,
) -> Worth {
    if pod.rejecters().is_empty() {
        return Worth::AfterBackoff;
    }
    if event.is_wildcard() {
        return match new {
            None => Worth::AfterBackoff,
            Some(Object::Pod(new)) if *new.uid == *pod.uid() => Worth::AfterBackoff,
            Some(_) => Worth::No,
        };
    }
    let question = HintQuestion {
        pod: &pod.info.pod,
        event,
        old: old.as_ref().map(Object::as_event_object),
        new: new.as_ref().map(Object::as_event_object),
        world: plugins.world(),
    };
    let answers = pod.rejecters().into_iter().map(|plugin| {
        let says_yes = match plugins.events(pod.seat, PluginIdx(plugin)) {
            None => true,
            Some(events) => events.iter().any(|known| {
                known.event.matches(event)
                    && known.hint.as_ref().is_none_or(|hint| hint(&question) != Ok(Hint::Skip))
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
