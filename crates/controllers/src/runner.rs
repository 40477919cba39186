//! Runs controllers: news of the cluster in, requests out. Pure; [`crate::driver`] and the bench of the tests move it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use loadmaster_stdx::caught::{Caught, catch};

use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::expect::{Expectations, Sight, Waiter};
use crate::kind::{Key, Kind, Object};
use crate::queue::{End, Queue, after, pause};
use crate::request::{Answer, Request};
use crate::served::Served;

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// An object is new, or not as it was.
    Set(Object),
    /// An object is gone.
    Gone(Key),
    /// All objects of the kind have been told.
    Synced(Kind),
    /// The kind cannot be read, be it only for now.
    Unavailable(Kind),
    /// What the server serves now.
    Served(Served),
}

/// A request to be sent. Its number comes back with the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its number.
    pub id: u64,
    /// What is asked.
    pub request: Request,
}

/// Controllers, what they see, and what they are waiting for.
pub struct Runner {
    cache: Cache,
    slots: Vec<Slot>,
    expectations: Expectations,
    /// Kinds that have been listed, or cannot be.
    tried: BTreeSet<Kind>,
    /// Requests that were handed out and are not answered.
    calls: BTreeMap<u64, (Waiter, Request)>,
    n_calls: u64,
    /// Whose turn it is.
    turn: usize,
}

/// A controller.
struct Slot {
    controller: Box<dyn Controller>,
    /// Kinds that have to be told before it is asked.
    unsynced: BTreeSet<Kind>,
    /// It reads all kinds, and which there are is not known yet.
    needs_served: bool,
    queue: Queue,
    /// Requests that wait for a place.
    outbox: VecDeque<(Waiter, Request)>,
    /// Changes of which the controller could not say whom they concern, by the object.
    unheard: BTreeMap<Key, Unheard>,
    n_panics: u64,
}

/// A change at which a controller panicked.
struct Unheard {
    old: Option<Object>,
    new: Option<Object>,
    n_failures: u32,
    /// The controller is asked again then.
    due: Timestamp,
}

/// Counts for logs and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests under way or waiting for a place.
    pub n_requests: usize,
    /// Kinds that have not been listed yet.
    pub n_unsynced: usize,
    /// How often a controller panicked so far.
    pub n_panics: u64,
}

impl Runner {
    /// Nothing is known yet.
    pub fn new(controllers: Vec<Box<dyn Controller>>) -> Runner {
        let slot = |controller: Box<dyn Controller>| {
            let unsynced = controller.watches().iter().copied().collect();
            let needs_served = controller.watches_all();
            let mut queue = Queue::default();
            for key in controller.at_start() {
                queue.touch(&key, Timestamp::UNIX_EPOCH);
            }
            let (outbox, unheard) = (VecDeque::new(), BTreeMap::new());
            Slot { controller, unsynced, needs_served, queue, outbox, unheard, n_panics: 0 }
        };
        Runner {
            cache: Cache::default(),
            slots: controllers.into_iter().map(slot).collect(),
            expectations: Expectations::default(),
            tried: BTreeSet::new(),
            calls: BTreeMap::new(),
            n_calls: 0,
            turn: 0,
        }
    }

    /// The kinds that must be watched.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        let named = self.slots.iter().flat_map(|slot| slot.controller.watches());
        named.chain(self.cache.served.watched()).copied().collect()
    }

    /// Whether somebody must find out what the server serves ([`News::Served`]).
    pub fn watches_all(&self) -> bool {
        self.slots.iter().any(|slot| slot.controller.watches_all())
    }

    /// What is known of the cluster.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Counts.
    pub fn stats(&self) -> Stats {
        let waiting: usize = self.slots.iter().map(|slot| slot.outbox.len()).sum();
        let unsynced: BTreeSet<Kind> =
            self.slots.iter().flat_map(|slot| &slot.unsynced).copied().collect();
        let n_panics = self.slots.iter().map(|slot| slot.n_panics).sum();
        Stats { n_requests: waiting + self.calls.len(), n_unsynced: unsynced.len(), n_panics }
    }

    /// Takes news.
    pub fn hear(&mut self, news: News, now: Timestamp) {
        let (key, old, new) = match news {
            News::Synced(kind) => {
                self.tried.insert(kind);
                for slot in &mut self.slots {
                    slot.unsynced.remove(&kind);
                }
                return;
            }
            News::Unavailable(kind) => {
                self.tried.insert(kind);
                for slot in &mut self.slots {
                    if !slot.controller.watches().contains(&kind) {
                        slot.unsynced.remove(&kind);
                    }
                }
                return;
            }
            News::Served(served) => return self.hear_served(served, now),
            News::Set(object) => (object.key(), self.cache.put(&object), Some(object)),
            News::Gone(key) => (key.clone(), self.cache.remove(&key), None),
        };
        for slot in &mut self.slots {
            if slot.watches(key.kind) {
                slot.hear(&key, old.as_ref(), new.as_ref(), &self.cache, now);
            }
        }
        for Waiter { slot, key, round } in self.expectations.seen(&key, &self.cache) {
            self.slots[slot].queue.seen(&key, round, now);
        }
    }

    /// Of kinds that are no longer served all objects are gone.
    fn hear_served(&mut self, served: Served, now: Timestamp) {
        let is_gone = |kind: &&Kind| !served.watched().contains(*kind);
        let gone: Vec<Kind> = self.cache.others.keys().filter(is_gone).copied().collect();
        for kind in gone {
            let keys: Vec<Key> = self.cache.objects(kind).map(|object| object.key()).collect();
            keys.into_iter().for_each(|key| self.hear(News::Gone(key), now));
            self.cache.others.remove(&kind);
            self.tried.remove(&kind);
        }
        for slot in &mut self.slots {
            if std::mem::take(&mut slot.needs_served) {
                slot.unsynced.extend(served.watched().difference(&self.tried));
            }
            // What comes later does not keep it waiting.
            slot.unsynced.retain(|kind| {
                slot.controller.watches().contains(kind) || served.watched().contains(kind)
            });
        }
        self.cache.served = served;
    }

    /// Reconciles what is due, and hands out requests, at most so many. Controllers take turns.
    pub fn run(&mut self, n_calls_max: usize, now: Timestamp) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut n_idle = 0;
        while calls.len() < n_calls_max && n_idle < self.slots.len() {
            let at = self.turn;
            self.turn = (at + 1) % self.slots.len();
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
            calls.push(Call { id: self.n_calls, request });
        }
        calls
    }

    /// When [`Runner::run`] should be called though nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let ready = self.slots.iter().filter(|slot| slot.is_ready());
        ready.filter_map(Slot::wake_at).min()
    }

    /// An answer has come.
    pub fn answered(&mut self, id: u64, answer: &Answer, now: Timestamp) {
        let Some((waiter, request)) = self.calls.remove(&id) else { return };
        let answer = &lenient(&request, answer);
        let slot = &mut self.slots[waiter.slot];
        let heard = catch(|| slot.controller.answered(&waiter.key, &request, answer, now));
        let is_heard = heard.map_err(|panic| slot.panicked(&waiter.key, &panic)).is_ok();
        let controller = slot.controller.name();
        let end = match answer {
            _ if !is_heard => End::Failed { hold: Duration::ZERO },
            Answer::Done(_) | Answer::Counted(_) => End::Done,
            Answer::Refused { status, message, retry_after, .. } => {
                tracing::debug!(controller, key = %waiter.key, status, message, "refused");
                End::Failed { hold: retry_after.unwrap_or_default() }
            }
            Answer::Lost { message } => {
                tracing::debug!(controller, key = %waiter.key, message, "no answer");
                End::Failed { hold: UNKNOWN }
            }
        };
        // Of an Event nobody cares what became of it.
        let end = if request.is_event() && is_heard { End::Done } else { end };
        let sight = Sight::after(&request, answer)
            .filter(|sight| slot.watches(sight.kind()) && !sight.is_seen(&self.cache));
        slot.queue.answered(&waiter.key, end, sight.is_some(), now);
        if let Some(sight) = sight {
            self.expectations.add(sight, waiter);
        }
    }
}

/// After a request of which nobody knows whether it was done, the watch is given so long to tell.
const UNKNOWN: Duration = Duration::from_secs(2);

/// That an object to be deleted is gone is as good as having deleted it; that one asked for is not there is an answer.
fn lenient(request: &Request, answer: &Answer) -> Answer {
    match (request, answer) {
        (
            Request::Get(_) | Request::Delete { .. } | Request::Evict { .. },
            Answer::Refused { status: 404, .. },
        ) => Answer::Done(None),
        (_, answer) => answer.clone(),
    }
}

impl Slot {
    fn watches(&self, kind: Kind) -> bool {
        self.controller.watches_all() && kind != Kind::Event
            || self.controller.watches().contains(&kind)
    }

    fn is_ready(&self) -> bool {
        self.unsynced.is_empty() && !self.needs_served
    }

    /// Asks the controller whom a change concerns; one at which it panicked before is part of it.
    fn hear(
        &mut self,
        key: &Key,
        old: Option<&Object>,
        new: Option<&Object>,
        cache: &Cache,
        now: Timestamp,
    ) {
        let before = self.unheard.remove(key);
        let old = before.as_ref().map_or(old, |it| it.old.as_ref());
        match catch(|| self.controller.concerns(&Change { old, new }, cache)) {
            Ok(keys) => keys.iter().for_each(|key| self.queue.touch(key, now)),
            Err(panic) => {
                let n_failures = before.as_ref().map_or(0, |it| it.n_failures);
                let due = after(now, pause(n_failures));
                let (old, new) = (old.cloned(), new.cloned());
                let unheard = Unheard { old, new, n_failures: n_failures + 1, due };
                self.unheard.insert(key.clone(), unheard);
                self.panicked(key, &panic);
            }
        }
    }

    /// Asks once more about changes at which the controller panicked.
    fn hear_again(&mut self, cache: &Cache, now: Timestamp) {
        let due = self.unheard.iter().filter(|(_, it)| it.due <= now);
        let due: Vec<(Key, Option<Object>)> =
            due.map(|(key, it)| (key.clone(), it.new.clone())).collect();
        for (key, new) in due {
            self.hear(&key, None, new.as_ref(), cache, now);
        }
    }

    fn wake_at(&self) -> Option<Timestamp> {
        let unheard = self.unheard.values().map(|it| it.due);
        unheard.chain(self.queue.wake_at()).min()
    }

    fn panicked(&mut self, key: &Key, panic: &Caught) {
        self.n_panics += 1;
        let controller = self.controller.name();
        tracing::error!(controller, %key, %panic, "a controller panicked, which is a bug; it is asked again");
    }

    /// Reconciles until there is something to send, or nothing is due.
    fn reconcile(&mut self, at: usize, cache: &Cache, now: Timestamp) {
        if !self.is_ready() {
            return;
        }
        self.hear_again(cache, now);
        while let Some(key) = self.queue.due(now) {
            let outcome = match catch(|| self.controller.reconcile(&key, cache, now)) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    self.panicked(&key, &panic);
                    self.queue.fail(&key, now);
                    continue;
                }
            };
            let Outcome { requests, again } = outcome;
            if requests.is_empty() {
                // A pause of nothing would never end.
                let again = again.map(|again| again.max(Duration::from_millis(1)));
                self.queue.rest(&key, again, now);
                continue;
            }
            let round = self.queue.begin(&key, requests.len(), again, now);
            let waiter = Waiter { slot: at, key, round };
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
    use crate::testkit::Bench;

    /// As many pods as a ConfigMap says, with no memory of its own.
    struct Replicas;

    impl Controller for Replicas {
        fn name(&self) -> &'static str {
            "replicas"
        }

        fn watches(&self) -> &'static [Kind] {
            &[Kind::ConfigMap, Kind::Pod]
        }

        fn concerns(&self, change: &Change<'_>, _: &Cache) -> Vec<Key> {
            if let Some(map) = change.of::<ConfigMap>() {
                return vec![Key::of(map)];
            }
            let Some(pod) = change.of::<Pod>() else { return Vec::new() };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            let owner = meta::controller_of(&pod.metadata);
            owner
                .map(|owner| Key::new(Kind::ConfigMap, namespace, &*owner.name))
                .into_iter()
                .collect()
        }

        fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> Outcome {
            let Some(map) = cache.get::<ConfigMap>(&key.namespace, &key.name) else {
                return Outcome::none();
            };
            let data = |name: &str| map.data.as_ref()?.get(name)?.parse::<usize>().ok();
            let Some(want) = data("n") else { return Outcome::none() };
            let uid = map.metadata.uid.as_deref().unwrap_or("");
            let pods: Vec<_> = cache.of::<Pod>().owned_by(uid).collect();
            let pod = json!({"metadata": {"namespace": &*key.namespace, "generateName": "p-",
                "ownerReferences": [meta::controller_reference(&**map)]},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let pod = || Object::from_json(Kind::Pod, pod.clone()).unwrap();
            let mut requests: Vec<_> = (pods.len()..want).map(|_| Request::Create(pod())).collect();
            requests.extend(pods.iter().skip(want).map(|pod| Request::delete(&***pod)));
            if data("seen") != Some(pods.len()) {
                let patch = json!({"data": {"seen": pods.len().to_string()}});
                requests.push(Request::patch(key.clone(), Patch::Merge(patch)));
            }
            Outcome::all(requests)
        }
    }

    fn map(n: usize) -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "m"},
            "data": {"n": n.to_string()}})
    }

    fn n_creates(bench: &Bench) -> usize {
        bench.sent.iter().filter(|it| matches!(it, Request::Create(_))).count()
    }

    #[test]
    fn nothing_is_made_twice() {
        let mut bench = Bench::new(vec![Box::new(Replicas)]);
        bench.create(map(5));
        bench.settle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (5, 5));
        let patch = Patch::Merge(json!({"data": {"n": "2"}}));
        bench.apply(&Request::patch(Key::new(Kind::ConfigMap, "default", "m"), patch));
        bench.settle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (2, 5));
        let seen = bench.get::<ConfigMap>("default", "m").unwrap().data.unwrap();
        assert_eq!(seen["seen"], "2");
    }

    #[test]
    fn what_fails_is_repeated_and_nothing_else_is() {
        let mut n = 0;
        let refuse = move |request: &Request| {
            n += usize::from(matches!(request, Request::Create(_)));
            let too_busy = Answer::Refused {
                status: 429,
                reason: "TooManyRequests".into(),
                message: String::new(),
                retry_after: Some(Duration::from_secs(1)),
            };
            (matches!(request, Request::Create(_)) && (n == 2 || n == 5)).then_some(too_busy)
        };
        let mut bench = Bench::new(vec![Box::new(Replicas)]).with_faults(refuse);
        bench.create(map(3));
        bench.settle();
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (2, 3));
        bench.pass(Duration::from_millis(999));
        assert_eq!(bench.list::<Pod>().len(), 2, "the server wants to be left alone");
        bench.pass(Duration::from_millis(1));
        assert_eq!((bench.list::<Pod>().len(), n_creates(&bench)), (3, 4));
    }

    fn is_here(map: &ConfigMap) -> bool {
        map.data.as_ref().is_some_and(|data| data.contains_key("here"))
    }

    /// Notes in a ConfigMap's data that it was here; may panic at one of them.
    struct Nervous {
        panics_at: fn(&str, &ConfigMap) -> bool,
    }

    impl Nervous {
        fn look(&self, place: &str, map: Option<&ConfigMap>) {
            assert!(!map.is_some_and(|map| (self.panics_at)(place, map)), "on purpose");
        }
    }

    impl Controller for Nervous {
        fn name(&self) -> &'static str {
            "nervous"
        }

        fn watches(&self) -> &'static [Kind] {
            &[Kind::ConfigMap]
        }

        fn concerns(&self, change: &Change<'_>, _: &Cache) -> Vec<Key> {
            self.look("concerns", change.of());
            change.object().map(Object::key).into_iter().collect()
        }

        fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> Outcome {
            let map = cache.get::<ConfigMap>(&key.namespace, &key.name);
            self.look("reconcile", map.map(|map| &**map));
            let is_new = |map: &Arc<ConfigMap>| !is_here(map);
            if !map.is_some_and(is_new) {
                return Outcome::none();
            }
            let patch = Patch::Merge(json!({"data": {"here": "yes"}}));
            Outcome::one(Request::patch(key.clone(), patch))
        }

        fn answered(&mut self, _: &Key, _: &Request, answer: &Answer, _: Timestamp) {
            let Answer::Done(Some(object)) = answer else { return };
            self.look("answered", object.typed::<ConfigMap>().map(|map| &**map));
        }
    }

    #[test]
    fn a_panic_costs_one_attempt() {
        #[track_caller]
        fn check(panics_at: fn(&str, &ConfigMap) -> bool, seen_at_once: &[&str], n_panics: u64) {
            loadmaster_stdx::caught::quiet_caught_panics();
            let mut bench = Bench::new(vec![Box::new(Nervous { panics_at }), Box::new(Replicas)]);
            let alike = |name: &str| {
                json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "default", "name": name}, "data": {"bad": name}})
            };
            bench.create(alike("a"));
            bench.create(alike("b"));
            bench.create(map(2));
            bench.settle();
            let seen = |bench: &Bench| {
                let maps = bench.list::<ConfigMap>().into_iter().filter(is_here);
                maps.map(|map| map.metadata.name.unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(seen(&bench), seen_at_once);
            assert_eq!(bench.list::<Pod>().len(), 2, "the others go on");
            bench.pass(Duration::from_millis(49));
            assert_eq!(bench.stats().n_panics, 1);
            bench.pass(Duration::from_secs(1));
            assert_eq!(bench.stats().n_panics, n_panics, "later each time");
            // What it stumbled over goes.
            let mended = Patch::Merge(json!({"data": {"bad": null}}));
            bench.apply(&Request::patch(Key::new(Kind::ConfigMap, "default", "a"), mended));
            bench.settle();
            assert_eq!(seen(&bench), ["a", "b", "m"]);
            bench.pass(Duration::from_secs(60));
            assert_eq!(bench.stats().n_panics, n_panics);
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
    fn nothing_is_done_before_all_kinds_are_known() {
        let now = Timestamp::UNIX_EPOCH;
        let mut runner = Runner::new(vec![Box::new(Replicas)]);
        runner.hear(News::Set(Object::from_json(Kind::ConfigMap, map(3)).unwrap()), now);
        runner.hear(News::Synced(Kind::ConfigMap), now);
        assert_eq!((runner.run(9, now), runner.wake_at()), (vec![], None));
        runner.hear(News::Synced(Kind::Pod), now);
        // A place less than there are requests: the last one waits for it.
        let calls = runner.run(3, now);
        assert_eq!((calls.len(), runner.run(3, now).len(), runner.run(3, now).len()), (3, 1, 0));
        assert_eq!(runner.stats(), Stats { n_requests: 4, n_unsynced: 0, n_panics: 0 });
    }
}
