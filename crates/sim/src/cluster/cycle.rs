//! What happens to a pod between its creation and its node: the queue, attempts, and waiting for an event.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_engine::Decision;
use loadmaster_framework::event::HintQuestion;
use loadmaster_framework::{
    Action, ClusterEvent, Cx, CycleState, EventObject, EventResource, Hint, PodInfo, QueuedPodInfo,
    Row,
};

use super::queue::Rejecters;
use super::why::{Listeners, listeners};
use super::{Cluster, Millis, Outcome, PodId, RECENT_MAX, Recent, State, Timer, Why};

impl Cluster {
    /// Asks PreEnqueue, and lets the pod into the queue or holds it.
    pub(super) fn enqueue(&mut self, id: PodId) {
        let Some(record) = self.pods.get(&id) else { return };
        let pod = record.pod.clone();
        let Some(seat_idx) = record.seat else {
            let message = format!("no profile is called {:?}", pod.template.scheduler_name());
            return self.hold(
                id,
                State::Unschedulable,
                Arc::new(Why::of(message, Rejecters::default())),
            );
        };
        let profile = &self.seats[seat_idx].profile;
        let cx = Cx { world: &self.world, cycle: &CycleState::default(), states: &profile.states };
        let held = profile.pre_enqueue.iter().find_map(|member| {
            let rejection = member.point.pre_enqueue(cx, &pod).err()?;
            Some((member.plugin, rejection))
        });
        match held {
            Some((plugin, rejection)) => {
                let by = Rejecters { seat: seat_idx, plugins: vec![plugin] };
                self.hold(id, State::Gated, Arc::new(Why::of(rejection.message(), by)));
            }
            None => {
                let sort = profile.queue_sort.first().map(|member| member.point.clone());
                let attempts = record.attempts;
                let queued = QueuedPodInfo { pod, queued: self.timestamp(), attempts };
                self.set_state(id, State::Active);
                self.active.push(id, queued, sort);
            }
        }
    }

    pub(super) fn attempt(&mut self, id: PodId) {
        let now_ms = self.now_ms;
        let Some(record) = self.pods.get_mut(&id) else { return };
        record.attempts += 1;
        record.tried_ms = now_ms;
        let pod = record.pod.clone();
        let Some(seat_idx) = record.seat else { return };
        let before = (self.options.ticks)();
        let decision = self.seats[seat_idx].scheduler.decide(&mut self.world, &pod);
        // Nobody waits at Permit here, and nobody writes Events.
        self.seats[seat_idx].scheduler.states_mut().take_interventions();
        self.tally.decide_ns += (self.options.ticks)().saturating_sub(before);
        self.tally.decisions += 1;
        let outcome = match decision {
            Decision::Place { row, total, n_ties } => {
                let node =
                    self.world.node(row).map(|node| Str::new(node.name())).unwrap_or_default();
                self.bind(id, row, &node);
                Outcome::Placed { node, total, n_ties }
            }
            Decision::Unschedulable => {
                let why = self.diagnose(seat_idx, &pod);
                self.hold(id, State::Unschedulable, why.clone());
                Outcome::TurnedDown(why)
            }
            Decision::Failed(message) => {
                let by = Rejecters { seat: seat_idx, plugins: Vec::new() };
                let why = Arc::new(Why::of(message, by));
                self.hold(id, State::Unschedulable, why.clone());
                Outcome::TurnedDown(why)
            }
        };
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { at_ms: now_ms, pod, outcome });
    }

    fn bind(&mut self, id: PodId, row: Row, node: &Str) {
        let Some(record) = self.pods.get_mut(&id) else { return };
        let bound = Arc::new(PodInfo { node_name: node.clone(), ..(*record.pod).clone() });
        record.pod = bound.clone();
        record.why = None;
        self.tally.placed += 1;
        self.set_state(id, State::Starting);
        // A container starts in under two seconds when its image is there; nothing is pulled here.
        let start_ms = 300 + self.chance("start", &bound).below(1_500);
        self.set_timer(self.now_ms + start_ms, Timer::Started(id));
        self.run_on(id, row, bound, start_ms);
    }

    /// Puts the pod on its node; a Job's pod ends after a while.
    pub(super) fn run_on(&mut self, id: PodId, row: Row, pod: Arc<PodInfo>, start_ms: Millis) {
        self.world.add_pod(row, pod.clone());
        let owner =
            self.pods.get(&id).and_then(|record| record.owner).map(|owner| &self.owners[owner.0]);
        if let Some(run_ms) = owner.and_then(|owner| owner.run_ms(|| self.chance("run", &pod))) {
            self.set_timer(self.now_ms + start_ms + run_ms, Timer::Succeeded(id));
        }
        self.happened(EventResource::AssignedPod, Action::ADD, None, Some(EventObject::Pod(&pod)));
    }

    /// Keeps a pod out of the queue until something happens that may help.
    fn hold(&mut self, id: PodId, state: State, why: Arc<Why>) {
        self.set_state(id, state);
        let Some(record) = self.pods.get_mut(&id) else { return };
        if record.seat.is_some() {
            self.waiting.insert(&why.by, id);
        }
        record.why = Some(why);
        self.pending.insert(id);
    }

    fn diagnose(&mut self, seat_idx: usize, pod: &PodInfo) -> Arc<Why> {
        let state = (pod.template.id, self.world.now());
        if let Some((template, change, why)) = &self.diagnosed
            && (*template, *change) == state
        {
            return why.clone();
        }
        let before = (self.options.ticks)();
        let seat = &mut self.seats[seat_idx];
        let evaluation = seat.scheduler.evaluate(&self.world, pod);
        let why = Arc::new(Why::new(seat_idx, &seat.profile, &self.world, pod, &evaluation));
        self.tally.diagnose_ns += (self.options.ticks)().saturating_sub(before);
        self.diagnosed = Some((state.0, state.1, why.clone()));
        why
    }

    /// Tells the pods that wait for such an event.
    pub(super) fn happened(
        &mut self,
        resource: EventResource,
        action: Action,
        old: Option<EventObject<'_>>,
        new: Option<EventObject<'_>>,
    ) {
        let event = ClusterEvent::new(resource, action);
        let mut woken = Vec::new();
        for (by, ids) in self.waiting.iter() {
            let profile = &self.seats[by.seat].profile;
            let hints = match listeners(profile, by, &event) {
                Listeners::Nobody => continue,
                Listeners::Everybody => {
                    woken.extend(ids.iter().copied());
                    continue;
                }
                Listeners::Hints(hints) => hints,
            };
            for id in ids {
                let Some(record) = self.pods.get(id) else { continue };
                let world = &self.world;
                let question = HintQuestion { pod: &record.pod, event: &event, old, new, world };
                if hints.iter().any(|hint| !matches!(hint(&question), Ok(Hint::Skip))) {
                    woken.push(*id);
                }
            }
        }
        for id in woken {
            self.wake(id);
        }
    }

    /// A pod may fit now: it is tried again, once its penalty is over.
    fn wake(&mut self, id: PodId) {
        let Some(record) = self.pods.get(&id) else { return };
        if let Some(why) = &record.why {
            self.waiting.remove(&why.by, id);
        }
        let (first_ms, most_ms) = self.options.backoff_ms;
        let doubled = record.attempts.saturating_sub(1).min(30);
        let ready_ms = match record.attempts {
            0 => 0,
            _ => record.tried_ms + first_ms.saturating_mul(1 << doubled).min(most_ms),
        };
        if ready_ms <= self.now_ms {
            return self.enqueue(id);
        }
        self.set_state(id, State::Backoff);
        self.set_timer(ready_ms, Timer::BackedOff(id));
    }
}
