//! Expectations: writes that succeeded and that the cache does not show yet. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::Cache;
use crate::kind::{Key, Kind, Object};
use crate::request::{ControllerRequest, ControllerResponse};

/// The controller and key that wait for an expectation, and the round of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitingKey {
    /// Index of the controller.
    pub slot: usize,
    pub key: Key,
    pub round: u64,
}

/// What the cache must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
    object: Key,
    /// Satisfied when the kind's resourceVersion has reached this; 0 if it is unknown.
    version: u64,
    /// Satisfied when the object with this uid has been deleted.
    deleted_uid: Option<String>,
    /// Satisfied when the object has a deletionTimestamp.
    terminating_is_enough: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Expectations {
    all: BTreeMap<u64, (Expectation, WaitingKey)>,
    by_version: BTreeSet<(Kind, u64, u64)>,
    by_object: BTreeSet<(Key, u64)>,
    next: u64,
}

impl Expectation {
    /// The expectation that follows from a response.
    pub fn from_response(
        request: &ControllerRequest,
        response: &ControllerResponse,
    ) -> Option<Expectation> {
        let ControllerResponse::Success(object) = response else { return None };
        let version = object.as_ref().map_or(0, Object::version);
        match request {
            ControllerRequest::Delete { key, options }
            | ControllerRequest::Evict { key, options } => Some(Expectation {
                object: key.clone(),
                version,
                deleted_uid: Some(options.uid.clone().unwrap_or_default()),
                terminating_is_enough: version == 0 && options.grace_period_seconds != Some(0),
            }),
            ControllerRequest::Count { .. } | ControllerRequest::DeleteCollection { .. } => None,
            ControllerRequest::Get(_)
            | ControllerRequest::Create(_)
            | ControllerRequest::Update { .. }
            | ControllerRequest::Patch { .. } => {
                let object = object.as_ref()?;
                // Without its last finalizer an object may be deleted, and the kind's resourceVersion may never reach this one.
                let gone = match request {
                    ControllerRequest::Get(_) | ControllerRequest::Create(_) => None,
                    _ => Some(object.metadata().uid.clone().unwrap_or_default()),
                };
                Some(Expectation {
                    object: object.key(),
                    version,
                    deleted_uid: gone,
                    terminating_is_enough: false,
                })
            }
        }
    }

    /// The kind whose watch satisfies it.
    pub fn kind(&self) -> Kind {
        self.object.kind
    }

    /// Whether the cache satisfies it.
    pub fn is_satisfied(&self, cache: &Cache) -> bool {
        if self.version > 0 && cache.version(self.kind()) >= self.version {
            return true;
        }
        let Some(uid) = &self.deleted_uid else { return self.version == 0 };
        let Some(object) = cache.object(&self.object) else { return true };
        let metadata = object.metadata();
        let is_other = !uid.is_empty() && metadata.uid.as_ref() != Some(uid);
        is_other || self.terminating_is_enough && metadata.deletion_timestamp.is_some()
    }
}

impl Expectations {
    pub fn add(&mut self, expectation: Expectation, waiter: WaitingKey) {
        let id = self.next;
        self.next += 1;
        if expectation.version > 0 {
            self.by_version.insert((expectation.kind(), expectation.version, id));
        }
        self.by_object.insert((expectation.object.clone(), id));
        self.all.insert(id, (expectation, waiter));
    }

    /// Removes and returns the keys whose expectations are satisfied after an object changed.
    pub fn take_satisfied(&mut self, object: &Key, cache: &Cache) -> Vec<WaitingKey> {
        let kind = object.kind;
        let versions = (kind, 0, 0)..=(kind, cache.version(kind), u64::MAX);
        let mut ids: Vec<u64> = self.by_version.range(versions).map(|(_, _, id)| *id).collect();
        let of_object = (object.clone(), 0)..=(object.clone(), u64::MAX);
        ids.extend(self.by_object.range(of_object).map(|(_, id)| *id));
        let mut waiters = Vec::new();
        for id in ids {
            if self.all.get(&id).is_some_and(|(expectation, _)| expectation.is_satisfied(cache)) {
                waiters.extend(self.take(id));
            }
        }
        waiters
    }

    fn take(&mut self, id: u64) -> Option<WaitingKey> {
        let (expectation, waiter) = self.all.remove(&id)?;
        self.by_version.remove(&(expectation.kind(), expectation.version, id));
        self.by_object.remove(&(expectation.object, id));
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
    fn expectations() {
        #[track_caller]
        fn check(
            request: &ControllerRequest,
            response: Option<Object>,
            seen: &[(Option<Object>, bool)],
        ) {
            let expectation =
                Expectation::from_response(request, &ControllerResponse::Success(response))
                    .unwrap();
            for (object, want) in seen {
                let mut cache = Cache::default();
                if let Some(object) = object {
                    cache.upsert(object);
                }
                assert_eq!(expectation.is_satisfied(&cache), *want, "{object:?}");
            }
        }
        let key = pod("u", 1, false).key();
        let old = (Some(pod("u", 6, false)), false);
        let patch = ControllerRequest::patch(key.clone(), Patch::Merge(json!({})));
        check(
            &patch,
            Some(pod("u", 7, false)),
            &[old.clone(), (None, true), (Some(pod("u", 7, false)), true)],
        );
        let delete = |grace_period_seconds| ControllerRequest::Delete {
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
    fn a_satisfied_expectation_is_returned_once() {
        let (mut cache, mut all) = (Cache::default(), Expectations::default());
        let request = ControllerRequest::create(pod("u", 0, false));
        let expectation = Expectation::from_response(
            &request,
            &ControllerResponse::Success(Some(pod("u", 7, false))),
        )
        .unwrap();
        let key = expectation.object.clone();
        let waiter = WaitingKey { slot: 1, key: key.clone(), round: 3 };
        all.add(expectation, waiter.clone());
        cache.upsert(&pod("u", 6, false));
        assert_eq!(all.take_satisfied(&key, &cache), []);
        // A later resourceVersion of another object of the kind satisfies it.
        cache.upsert(&pod("u", 9, false));
        assert_eq!(all.take_satisfied(&Key::new(Kind::Pod, "b", "y"), &cache), [waiter]);
        assert_eq!(all.take_satisfied(&key, &cache), []);
        assert!(all.by_object.is_empty() && all.by_version.is_empty());
        assert_eq!(
            Expectation::from_response(
                &request,
                &ControllerResponse::NoResponse { message: String::new() }
            ),
            None
        );
    }
}
