//! The network between the API server and the engine, with fault injection.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use loadmaster_engine::engine::{
    ApiError, ApiObject, ApiReply, ApiServerCall, DeletedObjectKey, EngineEvent,
};
use loadmaster_engine::{MonoTime, Now};
use loadmaster_framework::api_calls::Verb;
use loadmaster_stdx::Rng;

use crate::fake_api_server::{FakeApiServer, WatchEvent, WatchedKind};

/// The faults of a run. Each is drawn independently by the seed, so that all combinations occur.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Maximum delay of watch events, in milliseconds.
    watch_delay_ms: i64,
    /// Watch events are delivered in bursts.
    batches: bool,
    /// Watch events are delivered twice.
    duplicates: bool,
    /// Watches break, and the events until the next list are dropped.
    broken_watches: bool,
    /// Maximum delay of API calls in each direction, in milliseconds.
    call_delay_ms: i64,
    rejected_calls: bool,
    /// Patches and deletions are carried out although the response is an error.
    lost_responses: bool,
    pub leader_losses: bool,
    /// The engine stalls for minutes.
    pub stalls: bool,
}

impl Faults {
    pub fn random(rng: &mut Rng) -> Faults {
        let half = |rng: &mut Rng| rng.one_in(2);
        Faults {
            watch_delay_ms: *rng.pick(&[0, 20, 500, 5_000]),
            batches: half(rng),
            duplicates: half(rng),
            broken_watches: half(rng),
            call_delay_ms: *rng.pick(&[0, 10, 300, 3_000, 20_000]),
            rejected_calls: half(rng),
            lost_responses: half(rng),
            leader_losses: rng.one_in(3),
            stalls: rng.one_in(4),
        }
    }

    /// No faults.
    fn none() -> Faults {
        Faults {
            watch_delay_ms: 0,
            batches: false,
            duplicates: false,
            broken_watches: false,
            call_delay_ms: 0,
            rejected_calls: false,
            lost_responses: false,
            leader_losses: false,
            stalls: false,
        }
    }
}

/// The watch of one kind. Its events stay in order; different watches are not synchronized.
#[derive(Default)]
struct Watch {
    in_flight: VecDeque<(MonoTime, WatchEvent)>,
    /// The Delete event of each object that was delivered: a relist sends it for those that no longer exist.
    delivered: BTreeMap<Box<str>, EngineEvent>,
    /// When a broken watch relists.
    relist_at: Option<MonoTime>,
}

/// An API call in flight.
struct InFlightCall {
    /// Leader term of the engine that made it.
    term: u64,
    call: ApiServerCall,
    outcome: CallOutcome,
    /// When the request arrives, and after that when the reply does.
    due: MonoTime,
    reply: Option<ApiReply>,
}

enum CallOutcome {
    Done,
    /// It is rejected.
    Rejected(ApiError),
    /// It is carried out, but the response is lost.
    ResponseLost,
}

/// Something that was delivered.
pub(super) enum Delivery {
    WatchEvent(EngineEvent),
    /// The reply of an API call, for the engine of this leader term.
    Reply {
        term: u64,
        call: ApiServerCall,
        reply: ApiReply,
    },
    /// A request arrived at the API server.
    RequestArrived,
}

pub(super) struct FaultyNetwork {
    rng: Rng,
    pub faults: Faults,
    /// The kinds that the engine watches.
    kinds: Vec<WatchedKind>,
    watches: BTreeMap<WatchedKind, Watch>,
    calls: Vec<InFlightCall>,
    pub n_relists: u64,
    pub n_failed_calls: u64,
}

impl FaultyNetwork {
    pub fn new(mut rng: Rng, kinds: Vec<WatchedKind>) -> FaultyNetwork {
        FaultyNetwork {
            kinds,
            faults: Faults::random(&mut rng),
            rng,
            watches: BTreeMap::new(),
            calls: Vec::new(),
            n_relists: 0,
            n_failed_calls: 0,
        }
    }

    /// Ends the faults. What is in flight is delivered.
    pub fn end_faults(&mut self, now: MonoTime) {
        self.faults = Faults::none();
        for watch in self.watches.values_mut() {
            watch.relist_at = watch.relist_at.map(|_| now);
            watch.in_flight.iter_mut().for_each(|(due, _)| *due = (*due).min(now));
        }
    }

    /// The engine watches one more kind.
    pub fn watch(&mut self, now: MonoTime, kind: WatchedKind) {
        if !self.kinds.contains(&kind) {
            self.watches.insert(kind.clone(), Watch { relist_at: Some(now), ..Watch::default() });
            self.kinds.push(kind);
            self.kinds.sort();
        }
    }

    /// A new engine watches these kinds only.
    pub fn set_kinds(&mut self, kinds: Vec<WatchedKind>) {
        self.watches.retain(|kind, _| kinds.contains(kind));
        self.kinds = kinds;
    }

    /// Relists all kinds, for a new engine.
    pub fn relist_all(&mut self, now: MonoTime) {
        for kind in &self.kinds {
            let watch = Watch { relist_at: Some(now), ..Watch::default() };
            self.watches.insert(kind.clone(), watch);
        }
    }

    /// Sends the API server's watch events.
    pub fn send_watch_events(&mut self, now: MonoTime, events: Vec<WatchEvent>) {
        for event in events {
            if !self.kinds.contains(&event.kind) {
                continue;
            }
            let delay = self.random_delay(self.faults.watch_delay_ms);
            let is_late = self.faults.batches && self.rng.one_in(20);
            let delay = if is_late { delay * 4 + Duration::from_secs(1) } else { delay };
            let breaks = self.faults.broken_watches && self.rng.one_in(40);
            let pause = self.random_delay(5_000);
            let watch = self.watches.entry(event.kind.clone()).or_default();
            if watch.relist_at.is_some() {
                continue;
            }
            if breaks {
                watch.in_flight.clear();
                watch.relist_at = Some(now.after(pause));
                continue;
            }
            let before = watch.in_flight.back().map_or(now, |(due, _)| *due);
            watch.in_flight.push_back((now.after(delay).max(before), event));
        }
    }

    /// Sends an API call of the engine.
    pub fn send_call(&mut self, now: MonoTime, term: u64, call: ApiServerCall) {
        let outcome = self.draw_outcome(&call);
        let due = now.after(self.random_delay(self.faults.call_delay_ms));
        self.calls.push(InFlightCall { term, call, outcome, due, reply: None });
    }

    /// Draws the outcome of a call. The response of a bind is never lost: the real client reads the pod when the outcome of a bind
    /// is unknown, so the engine always gets the true result.
    fn draw_outcome(&mut self, call: &ApiServerCall) -> CallOutcome {
        if self.faults.rejected_calls && self.rng.one_in(8) {
            let (code, message) = *self.rng.pick(&[
                (0, "connection refused"),
                (409, "the object has been modified"),
                (429, "too many requests"),
                (500, "etcdserver: request timed out"),
            ]);
            self.n_failed_calls += 1;
            return CallOutcome::Rejected(ApiError { code, message: message.to_owned() });
        }
        let is_bind = call.request.subresource == "binding";
        if !is_bind && self.faults.lost_responses && self.rng.one_in(8) {
            self.n_failed_calls += 1;
            return CallOutcome::ResponseLost;
        }
        CallOutcome::Done
    }

    /// When the next delivery is due.
    pub fn next_delivery_due(&self) -> Option<MonoTime> {
        let events = self.watches.values().flat_map(|watch| {
            watch.relist_at.into_iter().chain(watch.in_flight.front().map(|(due, _)| *due))
        });
        events.chain(self.calls.iter().map(|call| call.due)).min()
    }

    /// Whether API calls of any engine are in flight.
    pub fn has_calls_in_flight(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Whether writes of PreBind are in flight.
    pub fn has_volume_writes_in_flight(&self) -> bool {
        self.calls.iter().any(|it| it.call.request.verb == Verb::Update)
    }

    /// Delivers one thing that is due, at random; only the events of one watch stay in order. Returns `false` when nothing is due.
    pub fn deliver_one(
        &mut self,
        now: Now,
        api_server: &mut FakeApiServer,
        out: &mut Vec<Delivery>,
    ) -> bool {
        let is_due = |due: &MonoTime| *due <= now.mono;
        let broken =
            self.watches.iter().filter(|(_, it)| it.relist_at.as_ref().is_some_and(is_due));
        let broken: Vec<WatchedKind> = broken.map(|(kind, _)| kind.clone()).collect();
        broken.into_iter().for_each(|kind| self.relist(now.mono, kind, api_server));
        let watches = self.watches.iter();
        let watches = watches
            .filter(|(_, watch)| watch.in_flight.front().is_some_and(|(due, _)| is_due(due)));
        let watches: Vec<WatchedKind> = watches.map(|(kind, _)| kind.clone()).collect();
        let calls = self.calls.iter().enumerate();
        let calls = calls.filter(|(_, call)| call.due <= now.mono);
        let calls: Vec<usize> = calls.map(|(at, _)| at).collect();
        let n_due = watches.len() + calls.len();
        if n_due == 0 {
            return false;
        }
        let at = self.rng.below(n_due as u64) as usize;
        match watches.get(at) {
            Some(kind) => self.deliver_watch_event(kind, out),
            None => out.push(self.deliver_call(now, calls[at - watches.len()], api_server)),
        }
        true
    }

    fn deliver_watch_event(&mut self, kind: &WatchedKind, out: &mut Vec<Delivery>) {
        let again = self.faults.duplicates && self.rng.one_in(6);
        let Some(watch) = self.watches.get_mut(kind) else { return };
        let Some((_, event)) = watch.in_flight.pop_front() else { return };
        match delete_event(&event.event) {
            Some(deletion) => drop(watch.delivered.insert(event.key, deletion)),
            None => drop(watch.delivered.remove(&event.key)),
        }
        if again {
            out.push(Delivery::WatchEvent(event.event.clone()));
        }
        out.push(Delivery::WatchEvent(event.event));
    }

    /// Relists a kind after its watch broke: Upsert events for all objects, Delete events for those that no longer exist.
    fn relist(&mut self, now: MonoTime, kind: WatchedKind, api_server: &FakeApiServer) {
        self.n_relists += 1;
        let deletes_first = self.rng.one_in(2);
        let watch = self.watches.entry(kind.clone()).or_default();
        watch.relist_at = None;
        let listed = api_server.list(&kind);
        let is_listed = |key: &str| listed.iter().any(|event| *event.key == *key);
        let deleted = watch.delivered.iter().filter(|(key, _)| !is_listed(key));
        let deleted = deleted.map(|(key, deletion)| WatchEvent {
            kind: kind.clone(),
            key: key.clone(),
            event: deletion.clone(),
        });
        let deleted: Vec<WatchEvent> = deleted.collect();
        let (first, then) = if deletes_first { (deleted, listed) } else { (listed, deleted) };
        let (group, resource) = kind.group_resource();
        let synced = kind.is_custom().then(|| WatchEvent {
            kind: kind.clone(),
            key: "".into(),
            event: EngineEvent::Synced {
                group: group.into(),
                resource: resource.into(),
                has_synced: true,
            },
        });
        let all = first.into_iter().chain(then).chain(synced);
        watch.in_flight = all.map(|event| (now, event)).collect();
    }

    /// A request arrives at the API server, or its reply at the engine.
    fn deliver_call(&mut self, now: Now, at: usize, api_server: &mut FakeApiServer) -> Delivery {
        let reply_due = now.mono.after(self.random_delay(self.faults.call_delay_ms));
        let call = &mut self.calls[at];
        if let Some(reply) = call.reply.take() {
            let InFlightCall { term, call, .. } = self.calls.swap_remove(at);
            return Delivery::Reply { term, call, reply };
        }
        call.reply = Some(match &call.outcome {
            CallOutcome::Done => api_server.handle_request(&call.call.request, now.wall),
            CallOutcome::Rejected(error) => Err(error.clone()),
            CallOutcome::ResponseLost => {
                let _ = api_server.handle_request(&call.call.request, now.wall);
                Err(ApiError { code: 0, message: "connection reset by peer".to_owned() })
            }
        });
        call.due = reply_due;
        Delivery::RequestArrived
    }

    fn random_delay(&mut self, ms_max: i64) -> Duration {
        Duration::from_millis(self.rng.range(0, ms_max) as u64)
    }
}

/// The event that deletes the object of an event; `None` if it was deleted by it, or the event has no object.
fn delete_event(event: &EngineEvent) -> Option<EngineEvent> {
    match event {
        EngineEvent::Upsert(object) => Some(EngineEvent::Delete(object_key(object))),
        EngineEvent::ObjectChanged { object, value: Some(_) } => {
            Some(EngineEvent::ObjectChanged { object: object.clone(), value: None })
        }
        _ => None,
    }
}

fn object_key(object: &ApiObject) -> DeletedObjectKey {
    match object {
        ApiObject::Node(node) => DeletedObjectKey::Node(node.metadata.name.as_ref().into()),
        ApiObject::Pod(pod) => DeletedObjectKey::Pod(pod.metadata.uid.clone()),
        ApiObject::PodDisruptionBudget(it) => DeletedObjectKey::PodDisruptionBudget(
            it.metadata.namespace.clone(),
            (&*it.metadata.name).into(),
        ),
        // Other kinds are not watched here.
        other => DeletedObjectKey::PriorityClass(format!("{other:?}").into()),
    }
}
