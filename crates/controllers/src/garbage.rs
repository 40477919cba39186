//! Garbage collection: what is owned goes with its owners, or is let go.
//!
//! | | |
//! | --- | --- |
//! | writes | deletes dependents, takes finalizers and references to owners away |
//! | upstream | `pkg/controller/garbagecollector`, 1.36 |
//! | deviations | owners and dependents of kinds that the program does not know are left alone |

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind, Object};
use crate::meta::is_terminating;
use crate::request::{Answer, DeleteOptions, Patch, Request};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// More uids than that are forgotten, and asked about again if need be.
const GONE_MAX: usize = 100_000;

/// The garbage collector.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Uids of owners that the server said are gone. That the cache does not show an owner says little: kinds are watched
    /// separately, and an object may be seen before its owner.
    gone: BTreeSet<String>,
    /// Uids that the server was asked about.
    asked: BTreeSet<String>,
}

/// What an owner is to its dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is there, or cannot be known to be gone.
    Solid,
    /// It is gone.
    Absent,
    /// It goes once its dependents have gone.
    Waiting,
    /// It is not seen; the server must be asked.
    Unseen,
}

impl Controller for Garbage {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn watches(&self) -> &'static [Kind] {
        Kind::ALL
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.object() else { return Vec::new() };
        if object.kind() == Kind::Event {
            return Vec::new();
        }
        let meta = object.metadata();
        let mut keys = Vec::new();
        if change.new.is_some() && (meta.owner_references.is_some() || is_held(meta)) {
            keys.push(object.key());
        }
        if change.new.is_none() || is_held(meta) {
            keys.extend(dependents(meta, cache).map(|one| one.key()));
        }
        // An owner that waits for its dependents, be it that one has just let go of it.
        for state in change.old.into_iter().chain(change.new).map(Object::metadata) {
            let owners = state.owner_references.iter().flatten();
            let owners = owners.filter_map(|owner| owner_key(owner, state));
            let is_waiting = |key: &Key| cache.object(key).is_some_and(|it| is_held(it.metadata()));
            keys.extend(owners.filter(is_waiting));
        }
        keys
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, _now: Timestamp) -> Outcome {
        let Some(object) = cache.object(key) else { return Outcome::none() };
        let meta = object.metadata();
        if has_finalizer(meta, ORPHAN) && is_terminating(meta) {
            return orphan(&object, cache);
        }
        if has_finalizer(meta, FOREGROUND) && is_terminating(meta) {
            return wait_for_dependents(&object, cache);
        }
        self.follow_owners(&object, cache)
    }

    fn answered(&mut self, _key: &Key, request: &Request, answer: &Answer, _now: Timestamp) {
        let Some(uid) = question(request) else { return };
        self.asked.remove(uid);
        // Other refusals, such as a race with another writer, say nothing about the owner.
        let is_gone = match answer {
            Answer::Refused { status: 404, .. } => true,
            Answer::Refused { status: 409 | 422, message, .. } => {
                message.contains("UID in precondition") || message.contains("metadata.uid")
            }
            _ => false,
        };
        if is_gone {
            if self.gone.len() >= GONE_MAX {
                self.gone.clear();
            }
            self.gone.insert(uid.to_owned());
        }
    }
}

impl Garbage {
    fn owner(&self, owner: &OwnerReference, of: &ObjectMeta, cache: &Cache) -> Owner {
        let Some(key) = owner_key(owner, of) else { return Owner::Solid };
        match cache.object(&key) {
            Some(found) if found.metadata().uid.as_ref() == Some(&owner.uid) => {
                let is_waiting =
                    is_terminating(found.metadata()) && has_finalizer(found.metadata(), FOREGROUND);
                if is_waiting { Owner::Waiting } else { Owner::Solid }
            }
            _ if self.gone.contains(&owner.uid) => Owner::Absent,
            _ => Owner::Unseen,
        }
    }

    /// Deletes an object that has no owner left, or lets go of owners that are gone.
    fn follow_owners(&mut self, object: &Object, cache: &Cache) -> Outcome {
        let meta = object.metadata();
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        if owners.is_empty() || is_terminating(meta) {
            return Outcome::none();
        }
        let states: Vec<Owner> =
            owners.iter().map(|owner| self.owner(owner, meta, cache)).collect();
        if states.contains(&Owner::Unseen) {
            let unseen = owners.iter().zip(&states).filter(|(_, state)| **state == Owner::Unseen);
            let new = unseen.filter(|(owner, _)| self.asked.insert(owner.uid.clone()));
            let ask = new.filter_map(|(owner, _)| Some(ask(owner, owner_key(owner, meta)?)));
            let requests: Vec<Request> = ask.collect();
            // Who else asks for the same owner waits for the answer.
            let again = requests.is_empty().then_some(Duration::from_millis(50));
            return Outcome { requests, again };
        }
        if states.contains(&Owner::Solid) {
            let kept = owners.iter().zip(&states).filter(|(_, state)| **state == Owner::Solid);
            let kept: Vec<&OwnerReference> = kept.map(|(owner, _)| owner).collect();
            if kept.len() == owners.len() {
                return Outcome::none();
            }
            return Outcome::one(patch(object, json!({"ownerReferences": kept})));
        }
        let has_dependents = dependents(meta, cache).next().is_some();
        let propagation = if states.contains(&Owner::Waiting) && has_dependents
            || has_finalizer(meta, FOREGROUND)
        {
            "Foreground"
        } else if has_finalizer(meta, ORPHAN) {
            "Orphan"
        } else {
            "Background"
        };
        Outcome::one(delete(object, propagation))
    }
}

fn has_finalizer(meta: &ObjectMeta, name: &str) -> bool {
    meta.finalizers.iter().flatten().any(|one| one == name)
}

/// Whether an object is kept from going until something has been done about its dependents.
fn is_held(meta: &ObjectMeta) -> bool {
    is_terminating(meta) && (has_finalizer(meta, FOREGROUND) || has_finalizer(meta, ORPHAN))
}

fn owner_key(owner: &OwnerReference, of: &ObjectMeta) -> Option<Key> {
    let kind = Kind::find(&owner.api_version, &owner.kind)?;
    let namespace = of.namespace.as_deref().filter(|_| kind.info().is_namespaced);
    Some(Key::new(kind, namespace.unwrap_or_default(), &*owner.name))
}

/// All objects that name an object as an owner.
fn dependents<'a>(meta: &'a ObjectMeta, cache: &'a Cache) -> impl Iterator<Item = Object> + 'a {
    let uid = meta.uid.as_deref().filter(|uid| !uid.is_empty());
    uid.into_iter()
        .flat_map(move |uid| Kind::ALL.iter().flat_map(move |kind| cache.owned(*kind, uid)))
}

/// A change of metadata, refused if the object has changed meanwhile.
fn patch(object: &Object, mut meta: serde_json::Value) -> Request {
    meta["resourceVersion"] = json!(object.metadata().resource_version);
    Request::patch(object.key(), Patch::Merge(json!({"metadata": meta})))
}

fn delete(object: &Object, propagation: &'static str) -> Request {
    let ObjectMeta { uid, resource_version, .. } = object.metadata().clone();
    let options = DeleteOptions {
        uid,
        resource_version,
        propagation: Some(propagation),
        ..Default::default()
    };
    Request::Delete { key: object.key(), options }
}

fn without(object: &Object, finalizer: &str) -> Request {
    let all = object.metadata().finalizers.iter().flatten();
    let left: Vec<&String> = all.filter(|one| *one != finalizer).collect();
    patch(object, json!({"finalizers": left}))
}

/// Asks the server for an owner: a patch that changes nothing and is refused if there is no object with this uid.
fn ask(owner: &OwnerReference, key: Key) -> Request {
    Request::patch(key, Patch::Merge(json!({"metadata": {"uid": owner.uid}})))
}

/// The uid that [`ask`] asked for.
fn question(request: &Request) -> Option<&str> {
    let Request::Patch { patch: Patch::Merge(patch), .. } = request else { return None };
    let meta = patch.get("metadata")?.as_object()?;
    (meta.len() == 1).then(|| meta.get("uid")?.as_str())?
}

/// Makes dependents forget an owner that goes alone.
fn orphan(object: &Object, cache: &Cache) -> Outcome {
    let uid = object.metadata().uid.as_ref();
    let release = |one: Object| {
        let kept = one.metadata().owner_references.iter().flatten();
        let kept: Vec<&OwnerReference> = kept.filter(|owner| Some(&owner.uid) != uid).collect();
        patch(&one, json!({"ownerReferences": kept}))
    };
    let requests: Vec<Request> = dependents(object.metadata(), cache).map(release).collect();
    if requests.is_empty() { Outcome::one(without(object, ORPHAN)) } else { Outcome::all(requests) }
}

/// Lets an owner go when no dependent is left that blocks it. The dependents see themselves that it waits.
fn wait_for_dependents(object: &Object, cache: &Cache) -> Outcome {
    let uid = object.metadata().uid.as_ref();
    let blocks = |one: &Object| {
        let mut owners = one.metadata().owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == uid && owner.block_owner_deletion == Some(true))
    };
    match dependents(object.metadata(), cache).find(blocks) {
        Some(_) => Outcome::none(),
        None => Outcome::one(without(object, FOREGROUND)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use serde_json::Value;

    use super::*;
    use crate::player::bench;
    use crate::testkit::Bench;

    /// Secret `owner`, config maps `a` and `b` owned by it, and `c` owned by `a`.
    fn family() -> Bench {
        let mut bench = bench(vec![Box::<Garbage>::default()]);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "owner", "namespace": "default"}});
        let owner = bench.create(secret).metadata().uid.clone();
        let a = child(&mut bench, "a", &[("v1", "Secret", "owner", owner.as_deref().unwrap())]);
        child(&mut bench, "b", &[("v1", "Secret", "owner", owner.as_deref().unwrap())]);
        child(&mut bench, "c", &[("v1", "ConfigMap", "a", &a)]);
        bench.settle();
        bench
    }

    fn child(bench: &mut Bench, name: &str, owners: &[(&str, &str, &str, &str)]) -> String {
        let owner = |(version, kind, name, uid): &(&str, &str, &str, &str)| json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true});
        let owners: Vec<Value> = owners.iter().map(owner).collect();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": owners}});
        bench.create(map).metadata().uid.clone().unwrap()
    }

    fn remove(bench: &mut Bench, propagation: &'static str) {
        let options = DeleteOptions { propagation: Some(propagation), ..Default::default() };
        bench.apply(&Request::Delete { key: Key::new(Kind::Secret, "default", "owner"), options });
        bench.wait(1);
    }

    #[test]
    fn in_the_background_dependents_go_after_their_owner() {
        let mut bench = family();
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        remove(&mut bench, "Background");
        assert_eq!(bench.names::<ConfigMap>(), [] as [&str; 0]);
    }

    #[test]
    fn in_the_foreground_they_go_before_it() {
        let mut bench = family();
        bench.merge(
            Kind::ConfigMap,
            "c",
            json!({"metadata": {"finalizers": ["example.com/wait"]}}),
        );
        remove(&mut bench, "Foreground");
        assert_eq!(bench.names::<Secret>(), ["owner"]);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "c"]);
        bench.merge(Kind::ConfigMap, "c", json!({"metadata": {"finalizers": null}}));
        bench.wait(1);
        assert_eq!((bench.list::<Secret>().len(), bench.list::<ConfigMap>().len()), (0, 0));
    }

    #[test]
    fn orphans_stay() {
        let mut bench = family();
        remove(&mut bench, "Orphan");
        assert_eq!(bench.list::<Secret>().len(), 0);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        let owned = |one: &&ConfigMap| one.metadata.owner_references.is_some();
        assert_eq!(bench.list::<ConfigMap>().iter().filter(owned).count(), 1);
    }

    #[test]
    fn an_owner_that_never_was_is_none() {
        let mut bench = family();
        child(&mut bench, "d", &[("v1", "Secret", "owner", "another-uid")]);
        child(&mut bench, "e", &[("example.com/v1", "Unknown", "x", "1")]);
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c", "e"]);
    }

    #[test]
    fn one_owner_is_enough_to_stay() {
        let mut bench = family();
        let owner: Secret = bench.get("default", "owner").unwrap();
        let uid = owner.metadata.uid.unwrap();
        child(&mut bench, "d", &[("v1", "Secret", "owner", &uid), ("v1", "ConfigMap", "x", "1")]);
        bench.wait(1);
        let d: ConfigMap = bench.get("default", "d").unwrap();
        assert_eq!(d.metadata.owner_references.unwrap().len(), 1);
    }
}
