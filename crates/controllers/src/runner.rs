//! Runs controllers: watch events in, API requests out. No I/O: [`crate::driver`] and the tests' bench call it.

mod stats;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use loadmaster_stdx::catch_panic::{CaughtPanic, catch_panic};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::expectations::{Expectation, Expectations, WaitingKey};
use crate::kind::{Key, Kind, Object};
use crate::request::{ControllerRequest, ControllerResponse};
use crate::served_kinds::ServedKinds;
use crate::work_queue::{RequestResult, WorkQueue, backoff_delay, saturating_add};
pub use stats::{ControllerStats, RunnerStats};

/// An event for the controllers, mostly from a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerEvent {
    /// An object was added or changed.
    Upsert(Object),
    /// An object was deleted.
    Delete(Key),
    /// All objects of the kind have been listed.
    Synced(Kind),
    /// The kind cannot be listed, possibly only for now.
    Unavailable(Kind),
    /// The kinds that the server serves now.
    Served(ServedKinds),
}

/// A request to be sent. Its id is passed back with the response.
#[derive(Clone, Debug, PartialEq)]
pub struct OutgoingRequest {
    /// Its number.
    pub id: u64,
    /// The request.
    pub request: ControllerRequest,
}

/// Controllers with their cache, work queues and expectations.
pub struct ControllerRunner {
    cache: Cache,
    slots: Vec<Slot>,
    expectations: Expectations,
    /// Kinds that have been listed, or that cannot be.
    listed_or_unavailable: BTreeSet<Kind>,
    /// Requests that were sent and have no response yet.
    calls: BTreeMap<u64, (WaitingKey, ControllerRequest)>,
    n_calls: u64,
    /// The controller that runs next.
    next_slot: usize,
}

/// A controller.
struct Slot {
    controller: Box<dyn Controller>,
    /// Kinds that must be listed before the controller is called.
    unsynced: BTreeSet<Kind>,
    /// It watches all kinds, and discovery is not complete yet.
    needs_served: bool,
    queue: WorkQueue,
    /// Requests that wait to be sent.
    outbox: VecDeque<(WaitingKey, ControllerRequest)>,
    /// Changes for which the controller panicked, by object.
    failed_changes: BTreeMap<Key, FailedChange>,
    stats: ControllerStats,
}

/// A change at which a controller panicked.
struct FailedChange {
    old: Option<Object>,
    new: Option<Object>,
    n_failures: u32,
    /// When the change is passed to the controller again.
    due: Timestamp,
}

impl ControllerRunner {
    /// A runner with an empty cache.
    pub fn new(controllers: Vec<Box<dyn Controller>>) -> ControllerRunner {
        let slot = |controller: Box<dyn Controller>| {
            let unsynced = controller.watches().iter().copied().collect();
            let needs_served = controller.watches_all_kinds();
            let stats = ControllerStats { name: controller.name(), ..ControllerStats::default() };
            let mut queue = WorkQueue::default();
            for key in controller.initial_keys() {
                queue.add(&key, Timestamp::UNIX_EPOCH);
            }
            let (outbox, failed_changes) = (VecDeque::new(), BTreeMap::new());
            Slot { controller, unsynced, needs_served, queue, outbox, failed_changes, stats }
        };
        ControllerRunner {
            cache: Cache::default(),
            slots: controllers.into_iter().map(slot).collect(),
            expectations: Expectations::default(),
            listed_or_unavailable: BTreeSet::new(),
            calls: BTreeMap::new(),
            n_calls: 0,
            next_slot: 0,
        }
    }

    /// The kinds to watch.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        let named = self.slots.iter().flat_map(|slot| slot.controller.watches());
        named.chain(self.cache.served.watchable()).copied().collect()
    }

    /// Whether a controller needs the served kinds ([`ControllerEvent::Served`]).
    pub fn watches_all_kinds(&self) -> bool {
        self.slots.iter().any(|slot| slot.controller.watches_all_kinds())
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Counts.
    pub fn stats(&self) -> RunnerStats {
        let waiting: usize = self.slots.iter().map(|slot| slot.outbox.len()).sum();
        let unsynced: BTreeSet<Kind> =
            self.slots.iter().flat_map(|slot| &slot.unsynced).copied().collect();
        RunnerStats {
            n_requests: waiting + self.calls.len(),
            n_unsynced: unsynced.len(),
            controllers: self.slots.iter().map(|slot| slot.stats).collect(),
        }
    }

    /// Handles an event: updates the cache and enqueues the keys that it affects.
    pub fn handle_event(&mut self, event: ControllerEvent, now: Timestamp) {
        let (key, old, new) = match event {
            ControllerEvent::Synced(kind) => {
                self.listed_or_unavailable.insert(kind);
                for slot in &mut self.slots {
                    slot.unsynced.remove(&kind);
                }
                return;
            }
            ControllerEvent::Unavailable(kind) => {
                self.listed_or_unavailable.insert(kind);
                for slot in &mut self.slots {
                    if !slot.controller.watches().contains(&kind) {
                        slot.unsynced.remove(&kind);
                    }
                }
                return;
            }
            ControllerEvent::Served(served) => return self.handle_served_kinds(served, now),
            ControllerEvent::Upsert(object) => {
                (object.key(), self.cache.upsert(&object), Some(object))
            }
            ControllerEvent::Delete(key) => (key.clone(), self.cache.remove(&key), None),
        };
        for slot in &mut self.slots {
            if slot.watches(key.kind) {
                slot.enqueue_for_change(&key, old.as_ref(), new.as_ref(), &self.cache, now);
            }
        }
        for WaitingKey { slot, key, round } in self.expectations.take_satisfied(&key, &self.cache) {
            self.slots[slot].queue.expectation_satisfied(&key, round, now);
        }
    }

    /// Deletes all objects of kinds that are no longer served.
    fn handle_served_kinds(&mut self, served: ServedKinds, now: Timestamp) {
        let is_gone = |kind: &Kind| !served.watchable().contains(kind);
        let gone: Vec<Kind> = self.cache.other_kinds().into_iter().filter(is_gone).collect();
        for kind in gone {
            let keys: Vec<Key> = self.cache.objects(kind).map(|object| object.key()).collect();
            keys.into_iter().for_each(|key| self.handle_event(ControllerEvent::Delete(key), now));
            self.cache.forget_kind(kind);
            self.listed_or_unavailable.remove(&kind);
        }
        for slot in &mut self.slots {
            if std::mem::take(&mut slot.needs_served) {
                slot.unsynced.extend(served.watchable().difference(&self.listed_or_unavailable));
            }
            // Kinds that appear later do not delay it.
            slot.unsynced.retain(|kind| {
                slot.controller.watches().contains(kind) || served.watchable().contains(kind)
            });
        }
        self.cache.served = served;
    }

    /// Reconciles the keys that are due, and returns at most `n_calls_max` requests. Controllers take turns.
    pub fn run(&mut self, n_calls_max: usize, now: Timestamp) -> Vec<OutgoingRequest> {
        let mut calls = Vec::new();
        let mut n_idle = 0;
        while calls.len() < n_calls_max && n_idle < self.slots.len() {
            let at = self.next_slot;
            self.next_slot = (at + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if slot.outbox.is_empty() {
                slot.reconcile(at, &self.cache, now);
            }
            let Some((waiter, request)) = slot.outbox.pop_front() else {
                n_idle += 1;
                continue;
            };
            n_idle = 0;
            self.n_calls += 1;
            self.calls.insert(self.n_calls, (waiter, request.clone()));
            calls.push(OutgoingRequest { id: self.n_calls, request });
        }
        calls
    }

    /// When [`ControllerRunner::run`] must be called even if no event comes.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let ready = self.slots.iter().filter(|slot| slot.is_ready());
        ready.filter_map(Slot::wake_at).min()
    }

    /// Handles the response to a request.
    pub fn handle_response(&mut self, id: u64, response: &ControllerResponse, now: Timestamp) {
        let Some((waiter, request)) = self.calls.remove(&id) else { return };
        let response = &treat_not_found_as_success(&request, response);
        let slot = &mut self.slots[waiter.slot];
        let handled =
            catch_panic(|| slot.controller.on_response(&waiter.key, &request, response, now));
        let is_handled = handled.map_err(|panic| slot.panicked(&waiter.key, &panic)).is_ok();
        let controller = slot.controller.name();
        let end = match response {
            _ if !is_handled => RequestResult::Failed { retry_after: Duration::ZERO },
            ControllerResponse::Success(_) | ControllerResponse::Count(_) => RequestResult::Done,
            ControllerResponse::Rejected { status, message, retry_after, .. } => {
                tracing::debug!(controller, key = %waiter.key, status, message, "request rejected");
                RequestResult::Failed { retry_after: retry_after.unwrap_or_default() }
            }
            ControllerResponse::NoResponse { message } => {
                tracing::debug!(controller, key = %waiter.key, message, "no response to a request");
                RequestResult::Failed { retry_after: UNKNOWN_RESULT_DELAY }
            }
        };
        // Events are best effort: a failure is not retried.
        let end = if request.is_event() && is_handled { RequestResult::Done } else { end };
        slot.stats.n_failed_requests += u64::from(matches!(end, RequestResult::Failed { .. }));
        let expectation = Expectation::from_response(&request, response).filter(|expectation| {
            slot.watches(expectation.kind()) && !expectation.is_satisfied(&self.cache)
        });
        slot.queue.handle_response(&waiter.key, end, expectation.is_some(), now);
        if let Some(expectation) = expectation {
            self.expectations.add(expectation, waiter);
        }
    }
}

/// Delay after a request whose result is unknown, so that the watch can show it.
const UNKNOWN_RESULT_DELAY: Duration = Duration::from_secs(2);

/// Not found counts as success when an object is read, deleted or evicted.
fn treat_not_found_as_success(
    request: &ControllerRequest,
    response: &ControllerResponse,
) -> ControllerResponse {
    match (request, response) {
        (
            ControllerRequest::Get(_)
            | ControllerRequest::Delete { .. }
            | ControllerRequest::Evict { .. },
            ControllerResponse::Rejected { status: 404, .. },
        ) => ControllerResponse::Success(None),
        (_, response) => response.clone(),
    }
}

impl Slot {
    fn watches(&self, kind: Kind) -> bool {
        self.controller.watches_all_kinds() && kind != Kind::Event
            || self.controller.watches().contains(&kind)
    }

    fn is_ready(&self) -> bool {
        self.unsynced.is_empty() && !self.needs_served
    }

    /// Enqueues the keys that a change affects; a change at which the controller panicked before is included.
    fn enqueue_for_change(
        &mut self,
        key: &Key,
        old: Option<&Object>,
        new: Option<&Object>,
        cache: &Cache,
        now: Timestamp,
    ) {
        let before = self.failed_changes.remove(key);
        let old = before.as_ref().map_or(old, |it| it.old.as_ref());
        match catch_panic(|| self.controller.keys_to_enqueue(&ObjectChange { old, new }, cache)) {
            Ok(keys) => keys.iter().for_each(|key| self.queue.add(key, now)),
            Err(panic) => {
                let n_failures = before.as_ref().map_or(0, |it| it.n_failures);
                let due = saturating_add(now, backoff_delay(n_failures));
                let (old, new) = (old.cloned(), new.cloned());
                let change = FailedChange { old, new, n_failures: n_failures + 1, due };
                self.failed_changes.insert(key.clone(), change);
                self.panicked(key, &panic);
            }
        }
    }

    /// Retries the changes at which the controller panicked.
    fn retry_failed_changes(&mut self, cache: &Cache, now: Timestamp) {
        let due = self.failed_changes.iter().filter(|(_, it)| it.due <= now);
        let due: Vec<(Key, Option<Object>)> =
            due.map(|(key, it)| (key.clone(), it.new.clone())).collect();
        for (key, new) in due {
            self.enqueue_for_change(&key, None, new.as_ref(), cache, now);
        }
    }

    fn wake_at(&self) -> Option<Timestamp> {
        let retries = self.failed_changes.values().map(|it| it.due);
        retries.chain(self.queue.next_wakeup()).min()
    }

    fn panicked(&mut self, key: &Key, panic: &CaughtPanic) {
        self.stats.n_panics += 1;
        let controller = self.controller.name();
        tracing::error!(controller, %key, %panic, "controller panicked, which is a bug; retrying");
    }

    /// Reconciles until there are requests to send, or no key is due.
    fn reconcile(&mut self, at: usize, cache: &Cache, now: Timestamp) {
        if !self.is_ready() {
            return;
        }
        self.retry_failed_changes(cache, now);
        while let Some(key) = self.queue.next_due(now) {
            self.stats.n_reconciled += 1;
            let outcome = match catch_panic(|| self.controller.reconcile(&key, cache, now)) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    self.panicked(&key, &panic);
                    self.queue.add_rate_limited(&key, now);
                    continue;
                }
            };
            let ReconcileResult { requests, requeue_after: again } = outcome;
            if requests.is_empty() {
                // A delay of zero would loop for ever.
                let again = again.map(|again| again.max(Duration::from_millis(1)));
                self.queue.finish(&key, again, now);
                continue;
            }
            let round = self.queue.start_requests(&key, requests.len(), again, now);
            let waiter = WaitingKey { slot: at, key, round };
            self.outbox.extend(requests.into_iter().map(|request| (waiter.clone(), request)));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use serde_json::json;

    use super::*;
    use crate::meta;
    use crate::request::Patch;
    use crate::testkit::ControllerBench;

    /// Creates as many pods as a ConfigMap requests; has no state of its own.
    struct Replicas;

    impl Controller for Replicas {
        fn name(&self) -> &'static str {
            "replicas"
        }

        fn watches(&self) -> &'static [Kind] {
            &[Kind::ConfigMap, Kind::Pod]
        }

        fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
            if let Some(map) = change.new_or_old_typed::<ConfigMap>() {
                return vec![Key::from_object(map)];
            }
            let Some(pod) = change.new_or_old_typed::<Pod>() else { return Vec::new() };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            let owner = meta::controller_of(&pod.metadata);
            owner
                .map(|owner| Key::new(Kind::ConfigMap, namespace, &*owner.name))
                .into_iter()
                .collect()
        }

        fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> ReconcileResult {
            let Some(map) = cache.get::<ConfigMap>(&key.namespace, &key.name) else {
                return ReconcileResult::none();
            };
            let data = |name: &str| map.data.as_ref()?.get(name)?.parse::<usize>().ok();
            let Some(want) = data("n") else { return ReconcileResult::none() };
            let uid = map.metadata.uid.as_deref().unwrap_or("");
            let pods: Vec<_> = cache.store::<Pod>().owned_by(uid).collect();
            let pod = json!({"metadata": {"namespace": &*key.namespace, "generateName": "p-",
                "ownerReferences": [meta::controller_reference(&**map)]},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let pod = || Object::from_json(Kind::Pod, pod.clone()).unwrap();
            let mut requests: Vec<_> =
                (pods.len()..want).map(|_| ControllerRequest::Create(pod())).collect();
            requests.extend(pods.iter().skip(want).map(|pod| ControllerRequest::delete(&***pod)));
            if data("seen") != Some(pods.len()) {
                let patch = json!({"data": {"seen": pods.len().to_string()}});
                requests.push(ControllerRequest::patch(key.clone(), Patch::Merge(patch)));
            }
            ReconcileResult::with_requests(requests)
        }
    }

    fn map(n: usize) -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "m"},
            "data": {"n": n.to_string()}})
    }

    fn n_creates(bench: &ControllerBench) -> usize {
        bench.sent.iter().filter(|it| matches!(it, ControllerRequest::Create(_))).count()
    }

    #[test]
    fn no_object_is_created_twice() {
        let mut bench = ControllerBench::new(vec![Box::new(Replicas)]);
        bench.create(map(5));
        bench.run_until_idle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (5, 5));
        let patch = Patch::Merge(json!({"data": {"n": "2"}}));
        bench.send_as_client(&ControllerRequest::patch(
            Key::new(Kind::ConfigMap, "default", "m"),
            patch,
        ));
        bench.run_until_idle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (2, 5));
        let seen = bench.get::<ConfigMap>("default", "m").unwrap().data.unwrap();
        assert_eq!(seen["seen"], "2");
    }

    #[test]
    fn only_failed_requests_are_retried() {
        let mut n = 0;
        let refuse = move |request: &ControllerRequest| {
            n += usize::from(matches!(request, ControllerRequest::Create(_)));
            let too_busy = ControllerResponse::Rejected {
                status: 429,
                reason: "TooManyRequests".into(),
                message: String::new(),
                retry_after: Some(Duration::from_secs(1)),
            };
            (matches!(request, ControllerRequest::Create(_)) && (n == 2 || n == 5))
                .then_some(too_busy)
        };
        let mut bench = ControllerBench::new(vec![Box::new(Replicas)]).with_faults(refuse);
        bench.create(map(3));
        bench.run_until_idle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (2, 3));
        bench.advance_time(Duration::from_millis(999));
        assert_eq!(bench.list::<Pod>().len(), 2, "the server wants to be left alone");
        bench.advance_time(Duration::from_millis(1));
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (3, 4));
    }

    fn is_here(map: &ConfigMap) -> bool {
        map.data.as_ref().is_some_and(|data| data.contains_key("here"))
    }

    /// Notes in a ConfigMap's data that it was here; may panic at one of them.
    struct Panicking {
        panics_at: fn(&str, &ConfigMap) -> bool,
    }

    impl Panicking {
        fn look(&self, place: &str, map: Option<&ConfigMap>) {
            assert!(!map.is_some_and(|map| (self.panics_at)(place, map)), "on purpose");
        }
    }

    impl Controller for Panicking {
        fn name(&self) -> &'static str {
            "panicking"
        }

        fn watches(&self) -> &'static [Kind] {
            &[Kind::ConfigMap]
        }

        fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
            self.look("concerns", change.new_or_old_typed());
            change.new_or_old().map(Object::key).into_iter().collect()
        }

        fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> ReconcileResult {
            let map = cache.get::<ConfigMap>(&key.namespace, &key.name);
            self.look("reconcile", map.map(|map| &**map));
            let is_new = |map: &Arc<ConfigMap>| !is_here(map);
            if !map.is_some_and(is_new) {
                return ReconcileResult::none();
            }
            let patch = Patch::Merge(json!({"data": {"here": "yes"}}));
            ReconcileResult::with_request(ControllerRequest::patch(key.clone(), patch))
        }

        fn on_response(
            &mut self,
            _: &Key,
            _: &ControllerRequest,
            response: &ControllerResponse,
            _: Timestamp,
        ) {
            let ControllerResponse::Success(Some(object)) = response else { return };
            self.look("answered", object.typed::<ConfigMap>().map(|map| &**map));
        }
    }

    #[test]
    fn a_panic_is_retried() {
        #[track_caller]
        fn check(panics_at: fn(&str, &ConfigMap) -> bool, seen_at_once: &[&str], n_panics: u64) {
            loadmaster_stdx::catch_panic::silence_caught_panics();
            let mut bench =
                ControllerBench::new(vec![Box::new(Panicking { panics_at }), Box::new(Replicas)]);
            let alike = |name: &str| {
                json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "default", "name": name}, "data": {"bad": name}})
            };
            bench.create(alike("a"));
            bench.create(alike("b"));
            bench.create(map(2));
            bench.run_until_idle();
            let seen = |bench: &ControllerBench| {
                let maps = bench.list::<ConfigMap>().into_iter().filter(is_here);
                maps.map(|map| map.metadata.name.unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(seen(&bench), seen_at_once);
            assert_eq!(bench.list::<Pod>().len(), 2, "the others go on");
            bench.advance_time(Duration::from_millis(49));
            assert_eq!(bench.stats().n_panics(), 1);
            bench.advance_time(Duration::from_secs(1));
            assert_eq!(bench.stats().n_panics(), n_panics, "later each time");
            // The object at which it panicked is deleted.
            let mended = Patch::Merge(json!({"data": {"bad": null}}));
            bench.send_as_client(&ControllerRequest::patch(
                Key::new(Kind::ConfigMap, "default", "a"),
                mended,
            ));
            bench.run_until_idle();
            assert_eq!(seen(&bench), ["a", "b", "m"]);
            bench.advance_time(Duration::from_secs(60));
            assert_eq!(bench.stats().n_panics(), n_panics);
        }
        fn is_bad(map: &ConfigMap) -> bool {
            map.data.as_ref().and_then(|data| data.get("bad")).is_some_and(|bad| bad == "a")
        }
        // 50, 150, 350 and 750 ms after the first one.
        check(|place, map| place == "reconcile" && is_bad(map), &["b", "m"], 5);
        check(|place, map| place == "concerns" && is_bad(map), &["b", "m"], 5);
        check(|place, map| place == "answered" && is_bad(map), &["a", "b", "m"], 1);
    }

    #[test]
    fn nothing_is_reconciled_before_all_kinds_are_synced() {
        let now = Timestamp::UNIX_EPOCH;
        let mut runner = ControllerRunner::new(vec![Box::new(Replicas)]);
        runner.handle_event(
            ControllerEvent::Upsert(Object::from_json(Kind::ConfigMap, map(3)).unwrap()),
            now,
        );
        runner.handle_event(ControllerEvent::Synced(Kind::ConfigMap), now);
        assert_eq!((runner.run(9, now), runner.next_wakeup()), (vec![], None));
        runner.handle_event(ControllerEvent::Synced(Kind::Pod), now);
        // A place less than there are requests: the last one waits for it.
        let calls = runner.run(3, now);
        assert_eq!((calls.len(), runner.run(3, now).len(), runner.run(3, now).len()), (3, 1, 0));
        let stats = runner.stats();
        assert_eq!((stats.n_requests, stats.n_unsynced, stats.n_panics()), (4, 0, 0));
    }
}
