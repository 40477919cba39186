//! What the cache should soon show, because the server said that it was done. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::Cache;
use crate::kind::{Key, Kind, Object};
use crate::request::{Answer, Request};

/// Who waits: a controller's key, since a round of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Which controller.
    pub slot: usize,
    pub key: Key,
    pub round: u64,
}

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    object: Key,
    /// The kind has been seen at this version; 0 if none is known.
    version: u64,
    /// It is enough that the object with this uid is gone.
    gone: Option<String>,
    /// It is enough that it is marked.
    or_terminating: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Expectations {
    all: BTreeMap<u64, (Sight, Waiter)>,
    by_version: BTreeSet<(Kind, u64, u64)>,
    by_object: BTreeSet<(Key, u64)>,
    next: u64,
}

impl Sight {
    /// What an answer makes one wait for.
    pub fn after(request: &Request, answer: &Answer) -> Option<Sight> {
        let Answer::Done(object) = answer else { return None };
        let version = object.as_ref().map_or(0, Object::version);
        match request {
            Request::Delete { key, options } | Request::Evict { key, options } => Some(Sight {
                object: key.clone(),
                version,
                gone: Some(options.uid.clone().unwrap_or_default()),
                or_terminating: version == 0 && options.grace_period_seconds != Some(0),
            }),
            Request::Count { .. } | Request::DeleteCollection { .. } => None,
            Request::Get(_)
            | Request::Create(_)
            | Request::Update { .. }
            | Request::Patch { .. } => {
                let object = object.as_ref()?;
                // Without its last finalizer an object may be gone, and nothing of its kind ever shows the version.
                let gone = match request {
                    Request::Get(_) | Request::Create(_) => None,
                    _ => Some(object.metadata().uid.clone().unwrap_or_default()),
                };
                Some(Sight { object: object.key(), version, gone, or_terminating: false })
            }
        }
    }

    /// The kind that must be watched.
    pub fn kind(&self) -> Kind {
        self.object.kind
    }

    /// Whether the cache shows it.
    pub fn is_seen(&self, cache: &Cache) -> bool {
        if self.version > 0 && cache.version(self.kind()) >= self.version {
            return true;
        }
        let Some(uid) = &self.gone else { return self.version == 0 };
        let Some(object) = cache.object(&self.object) else { return true };
        let metadata = object.metadata();
        let is_other = !uid.is_empty() && metadata.uid.as_ref() != Some(uid);
        is_other || self.or_terminating && metadata.deletion_timestamp.is_some()
    }
}

impl Expectations {
    pub fn add(&mut self, sight: Sight, waiter: Waiter) {
        let id = self.next;
        self.next += 1;
        if sight.version > 0 {
            self.by_version.insert((sight.kind(), sight.version, id));
        }
        self.by_object.insert((sight.object.clone(), id));
        self.all.insert(id, (sight, waiter));
    }

    /// Who has waited for what the cache shows since an object changed.
    pub fn seen(&mut self, object: &Key, cache: &Cache) -> Vec<Waiter> {
        let kind = object.kind;
        let versions = (kind, 0, 0)..=(kind, cache.version(kind), u64::MAX);
        let mut ids: Vec<u64> = self.by_version.range(versions).map(|(_, _, id)| *id).collect();
        let of_object = (object.clone(), 0)..=(object.clone(), u64::MAX);
        ids.extend(self.by_object.range(of_object).map(|(_, id)| *id));
        let mut waiters = Vec::new();
        for id in ids {
            if self.all.get(&id).is_some_and(|(sight, _)| sight.is_seen(cache)) {
                waiters.extend(self.take(id));
            }
        }
        waiters
    }

    fn take(&mut self, id: u64) -> Option<Waiter> {
        let (sight, waiter) = self.all.remove(&id)?;
        self.by_version.remove(&(sight.kind(), sight.version, id));
        self.by_object.remove(&(sight.object, id));
        Some(waiter)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{DeleteOptions, Patch};

    fn pod(uid: &str, version: u64, is_terminating: bool) -> Object {
        let at = is_terminating.then_some("2026-01-01T00:00:00Z");
        let metadata = json!({"namespace": "a", "name": "x", "uid": uid, "deletionTimestamp": at,
            "resourceVersion": version.to_string()});
        Object::from_json(Kind::Pod, json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn sights() {
        #[track_caller]
        fn check(request: &Request, answer: Option<Object>, seen: &[(Option<Object>, bool)]) {
            let sight = Sight::after(request, &Answer::Done(answer)).unwrap();
            for (object, want) in seen {
                let mut cache = Cache::default();
                if let Some(object) = object {
                    cache.put(object);
                }
                assert_eq!(sight.is_seen(&cache), *want, "{object:?}");
            }
        }
        let key = pod("u", 1, false).key();
        let old = (Some(pod("u", 6, false)), false);
        let patch = Request::patch(key.clone(), Patch::Merge(json!({})));
        check(
            &patch,
            Some(pod("u", 7, false)),
            &[old.clone(), (None, true), (Some(pod("u", 7, false)), true)],
        );
        let delete = |grace_period_seconds| Request::Delete {
            key: key.clone(),
            options: DeleteOptions {
                uid: Some("u".into()),
                grace_period_seconds,
                ..Default::default()
            },
        };
        let marked = |is_enough| (Some(pod("u", 7, true)), is_enough);
        let (gone, other) = ((None, true), (Some(pod("v", 5, false)), true));
        check(&delete(None), None, &[old.clone(), marked(true), gone.clone(), other.clone()]);
        check(&delete(Some(0)), None, &[old.clone(), marked(false), gone.clone(), other.clone()]);
        check(&delete(Some(0)), Some(pod("u", 8, true)), &[old, marked(false), gone, other]);
    }

    #[test]
    fn waiters_are_told_once() {
        let (mut cache, mut all) = (Cache::default(), Expectations::default());
        let request = Request::create(pod("u", 0, false));
        let sight = Sight::after(&request, &Answer::Done(Some(pod("u", 7, false)))).unwrap();
        let key = sight.object.clone();
        let waiter = Waiter { slot: 1, key: key.clone(), round: 3 };
        all.add(sight, waiter.clone());
        cache.put(&pod("u", 6, false));
        assert_eq!(all.seen(&key, &cache), []);
        // Another object of the kind tells how far the watch has come.
        cache.put(&pod("u", 9, false));
        assert_eq!(all.seen(&Key::new(Kind::Pod, "b", "y"), &cache), [waiter]);
        assert_eq!(all.seen(&key, &cache), []);
        assert!(all.by_object.is_empty() && all.by_version.is_empty());
        assert_eq!(Sight::after(&request, &Answer::Lost { message: String::new() }), None);
    }
}
