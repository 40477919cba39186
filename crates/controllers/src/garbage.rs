//! Garbage collection: what is owned goes with its owners, or is let go.
//!
//! | | |
//! | --- | --- |
//! | reads | metadata of all kinds that the server serves, but Events |
//! | writes | deletes dependents, takes finalizers and references to owners away |
//! | upstream | `pkg/controller/garbagecollector`, 1.36 |
//! | deviations | when a definition goes, what its objects owned goes, too |

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
/// More owners than that are forgotten, and asked about again if need be.
const GONE_MAX: usize = 100_000;
/// An owner's kind may be defined later.
const UNKNOWN: Duration = Duration::from_secs(30);

/// An owner as a reference names it. Another object may carry its uid in a reference that is wrong about the rest.
type Name = (Key, String);

/// The garbage collector.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Owners that the server said are gone. That the cache does not show an owner says little: kinds are watched
    /// separately, and an object may be seen before its owner.
    gone: BTreeSet<Name>,
    /// Owners that the server was asked about.
    asked: BTreeSet<Name>,
}

/// What an owner is to its dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is there.
    Solid,
    /// It is gone.
    Absent,
    /// It goes once its dependents have gone.
    Waiting,
    /// It is not seen; the server must be asked.
    Unseen,
    /// There can be no such object, as far as is known: its kind is not served, or is in namespaces and the dependent is not.
    Unknown,
}

impl Controller for Garbage {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn watches(&self) -> &'static [Kind] {
        &[]
    }

    fn watches_all(&self) -> bool {
        true
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.object() else { return Vec::new() };
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
            let owners = owners.filter_map(|owner| owner_key(owner, state, cache));
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
        let Request::Get(owner) = request else { return };
        let of_owner = (owner.clone(), String::new())..;
        let asked = self.asked.range(of_owner).take_while(|(key, _)| key == owner);
        let asked: Vec<Name> = asked.cloned().collect();
        for name in asked {
            self.asked.remove(&name);
            let is_gone = match answer {
                Answer::Done(Some(found)) => found.metadata().uid.as_ref() != Some(&name.1),
                Answer::Done(None) => true,
                // It says nothing about the owner.
                Answer::Counted(_) | Answer::Refused { .. } | Answer::Lost { .. } => false,
            };
            if is_gone {
                if self.gone.len() >= GONE_MAX {
                    self.gone.clear();
                }
                self.gone.insert(name);
            }
        }
    }
}

impl Garbage {
    fn owner(&self, owner: &OwnerReference, of: &ObjectMeta, cache: &Cache) -> Owner {
        let Some(key) = owner_key(owner, of, cache) else { return Owner::Unknown };
        match cache.object(&key) {
            Some(found) if found.metadata().uid.as_ref() == Some(&owner.uid) => {
                let is_waiting =
                    is_terminating(found.metadata()) && has_finalizer(found.metadata(), FOREGROUND);
                if is_waiting { Owner::Waiting } else { Owner::Solid }
            }
            _ if self.gone.contains(&(key, owner.uid.clone())) => Owner::Absent,
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
        let in_state = |state: Owner| {
            let with = owners.iter().zip(&states).filter(move |(_, one)| **one == state);
            with.map(|(owner, _)| owner)
        };
        if states.contains(&Owner::Unknown) {
            return Outcome::later(UNKNOWN);
        }
        if states.contains(&Owner::Unseen) {
            let unseen = in_state(Owner::Unseen)
                .filter_map(|owner| Some((owner_key(owner, meta, cache)?, owner.uid.clone())));
            let new = unseen.filter(|name| self.asked.insert(name.clone()));
            let requests: Vec<Request> = new.map(|(key, _)| Request::Get(key)).collect();
            // Who else asks for the same owner waits for the answer.
            let again = requests.is_empty().then_some(Duration::from_millis(50));
            return Outcome { requests, again: again.or(Some(Duration::ZERO)) };
        }
        if states.contains(&Owner::Solid) {
            let kept: Vec<&OwnerReference> = in_state(Owner::Solid).collect();
            if kept.len() == owners.len() {
                return Outcome::none();
            }
            return Outcome::one(patch(object, json!({"ownerReferences": kept})));
        }
        let mut dependents = dependents(meta, cache).peekable();
        let propagation = if states.contains(&Owner::Waiting) && dependents.peek().is_some() {
            // An owner further up may be among those that wait for this one.
            let may_be_circle = dependents.any(|one| is_held(one.metadata()));
            if may_be_circle && owners.iter().any(blocks) {
                return Outcome::one(unblock(object, owners));
            }
            "Foreground"
        } else if has_finalizer(meta, FOREGROUND) {
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

fn blocks(owner: &OwnerReference) -> bool {
    owner.block_owner_deletion == Some(true)
}

/// An owner is in its dependent's namespace, or in none.
fn owner_key(owner: &OwnerReference, of: &ObjectMeta, cache: &Cache) -> Option<Key> {
    let kind = cache.served().find(&owner.api_version, &owner.kind)?;
    let namespace = match kind.info().is_namespaced {
        true => of.namespace.as_deref().filter(|it| !it.is_empty())?,
        false => "",
    };
    Some(Key::new(kind, namespace, &*owner.name))
}

/// All objects that name an object as an owner.
fn dependents<'a>(meta: &'a ObjectMeta, cache: &'a Cache) -> impl Iterator<Item = Object> + 'a {
    let uid = meta.uid.as_deref().filter(|uid| !uid.is_empty());
    let kinds = cache.served().watched();
    uid.into_iter().flat_map(move |uid| kinds.iter().flat_map(move |kind| cache.owned(*kind, uid)))
}

/// A change of metadata, refused if the object has changed meanwhile.
fn patch(object: &Object, mut meta: serde_json::Value) -> Request {
    meta["resourceVersion"] = json!(object.metadata().resource_version);
    Request::patch(object.key(), Patch::Merge(json!({"metadata": meta})))
}

/// Its owners no longer wait for the object.
fn unblock(object: &Object, owners: &[OwnerReference]) -> Request {
    let free = |owner: &OwnerReference| OwnerReference {
        block_owner_deletion: Some(false),
        ..owner.clone()
    };
    let owners: Vec<OwnerReference> = owners.iter().map(free).collect();
    patch(object, json!({"ownerReferences": owners}))
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
    let waits_for = |one: &Object| {
        let mut owners = one.metadata().owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == uid && blocks(owner))
    };
    match dependents(object.metadata(), cache).find(waits_for) {
        Some(_) => Outcome::none(),
        None => Outcome::one(without(object, FOREGROUND)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use serde_json::Value;

    use super::*;
    use crate::player::bench;
    use crate::testkit::Bench;

    /// Lease `owner`, config maps `a` and `b` owned by it, and `c` owned by `a`.
    fn family() -> Bench {
        let mut bench = bench(vec![Box::<Garbage>::default()]);
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "owner", "namespace": "default"}});
        let owner = bench.create(lease).metadata().uid.clone();
        let a = child(
            &mut bench,
            "a",
            &[("coordination.k8s.io/v1", "Lease", "owner", owner.as_deref().unwrap())],
        );
        child(
            &mut bench,
            "b",
            &[("coordination.k8s.io/v1", "Lease", "owner", owner.as_deref().unwrap())],
        );
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
        bench.apply(&Request::Delete { key: Key::new(Kind::Lease, "default", "owner"), options });
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
        assert_eq!(bench.names::<Lease>(), ["owner"]);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "c"]);
        bench.merge(Kind::ConfigMap, "c", json!({"metadata": {"finalizers": null}}));
        bench.wait(1);
        assert_eq!((bench.list::<Lease>().len(), bench.list::<ConfigMap>().len()), (0, 0));
    }

    #[test]
    fn orphans_stay() {
        let mut bench = family();
        remove(&mut bench, "Orphan");
        assert_eq!(bench.list::<Lease>().len(), 0);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        let owned = |one: &&ConfigMap| one.metadata.owner_references.is_some();
        assert_eq!(bench.list::<ConfigMap>().iter().filter(owned).count(), 1);
    }

    #[test]
    fn an_owner_that_never_was_is_none() {
        let mut bench = family();
        child(&mut bench, "d", &[("coordination.k8s.io/v1", "Lease", "owner", "another-uid")]);
        child(&mut bench, "e", &[("example.com/v1", "Unknown", "x", "1")]);
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c", "e"]);
    }

    #[test]
    fn one_owner_is_enough_to_stay() {
        let mut bench = family();
        let owner: Lease = bench.get("default", "owner").unwrap();
        let uid = owner.metadata.uid.unwrap();
        child(
            &mut bench,
            "d",
            &[("coordination.k8s.io/v1", "Lease", "owner", &uid), ("v1", "ConfigMap", "x", "1")],
        );
        bench.wait(1);
        let d: ConfigMap = bench.get("default", "d").unwrap();
        assert_eq!(d.metadata.owner_references.unwrap().len(), 1);
    }

    const FOOS: &str = "/apis/example.com/v1/namespaces/default/foos";

    fn foos(bench: &Bench) -> Vec<String> {
        let (_, list) = bench.http("GET", FOOS, &Value::Null);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Foo `top`, whose definition was made while the collector ran; config map `a` and Foo `low` are owned by it, a pod by `low`.
    fn custom_family() -> Bench {
        let mut bench = bench(vec![Box::<Garbage>::default()]);
        bench.settle();
        bench.define("Foo", "foos", "Namespaced");
        bench.settle();
        let foo = |bench: &mut Bench, name: &str, owners: Value| {
            let meta = json!({"name": name, "namespace": "default", "ownerReferences": owners});
            let made = bench.create(json!({"apiVersion": "example.com/v1", "kind": "Foo",
                "metadata": meta, "spec": {"size": 3}}));
            made.metadata().uid.clone().unwrap()
        };
        let owner = |name: &str, uid: &str| {
            json!([{"apiVersion": "example.com/v1", "kind": "Foo",
            "name": name, "uid": uid, "blockOwnerDeletion": true}])
        };
        let top = foo(&mut bench, "top", json!([]));
        let low = foo(&mut bench, "low", owner("top", &top));
        child(&mut bench, "a", &[("example.com/v1", "Foo", "top", &top)]);
        bench.create(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "ownerReferences": owner("low", &low)},
            "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}}));
        bench.settle();
        assert_eq!(
            (foos(&bench), bench.names::<ConfigMap>()),
            (names(&["low", "top"]), names(&["a"]))
        );
        bench
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn remove_top(bench: &mut Bench, propagation: &str) {
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation});
        let (status, answer) = bench.http("DELETE", &format!("{FOOS}/top"), &options);
        assert_eq!(status, 200, "{answer}");
        bench.wait(1);
    }

    #[test]
    fn custom_objects_own_and_are_owned() {
        for propagation in ["Background", "Foreground"] {
            let mut bench = custom_family();
            remove_top(&mut bench, propagation);
            assert_eq!(foos(&bench), names(&[]), "{propagation}");
            assert_eq!((bench.names::<ConfigMap>(), bench.names::<Pod>()), (vec![], vec![]));
        }
        let mut bench = custom_family();
        remove_top(&mut bench, "Orphan");
        assert_eq!((foos(&bench), bench.names::<ConfigMap>()), (names(&["low"]), names(&["a"])));
        let (_, low) = bench.http("GET", &format!("{FOOS}/low"), &Value::Null);
        assert_eq!(
            (&low["metadata"]["ownerReferences"], &low["spec"]["size"]),
            (&Value::Null, &json!(3))
        );
        bench.wait(60);
        assert_eq!(bench.names::<Pod>(), ["p"]);
    }

    #[test]
    fn in_the_foreground_a_custom_owner_waits_for_its_pod() {
        let mut bench = custom_family();
        bench.merge(Kind::Pod, "p", json!({"metadata": {"finalizers": ["example.com/wait"]}}));
        remove_top(&mut bench, "Foreground");
        assert_eq!((foos(&bench), bench.names::<ConfigMap>()), (names(&["low", "top"]), vec![]));
        bench.merge(Kind::Pod, "p", json!({"metadata": {"finalizers": null}}));
        bench.wait(1);
        assert_eq!((foos(&bench), bench.names::<Pod>()), (vec![], vec![]));
    }

    #[test]
    fn with_its_definition_an_owner_goes() {
        let mut bench = custom_family();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.example.com";
        let (status, _) = bench.http("DELETE", path, &json!({}));
        assert_eq!(status, 200);
        bench.wait(60);
        assert_eq!((bench.names::<ConfigMap>(), bench.names::<Pod>()), (vec![], vec![]));
    }

    #[test]
    fn an_owner_of_a_kind_to_come_is_waited_for() {
        let mut bench = family();
        child(&mut bench, "d", &[("example.com/v1", "Foo", "x", "1")]);
        bench.wait(100);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c", "d"]);
        bench.define("Foo", "foos", "Namespaced");
        bench.settle();
        bench.wait(31);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
    }

    /// Such an object is left alone, as upstream does.
    #[test]
    fn an_owner_in_no_namespace_has_none_in_one() {
        let mut bench = family();
        bench.define("Bar", "bars", "Cluster");
        bench.settle();
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "1"});
        bench.create(json!({"apiVersion": "example.com/v1", "kind": "Bar",
            "metadata": {"name": "bar", "ownerReferences": [owner]}}));
        bench.wait(100);
        let (status, _) = bench.http("GET", "/apis/example.com/v1/bars/bar", &Value::Null);
        assert_eq!(status, 200);
    }

    /// A reference that is right about the uid alone does not make its true owner look gone.
    #[test]
    fn owners_are_told_apart_by_all_that_names_them() {
        let mut bench = family();
        let owner: Lease = bench.get("default", "owner").unwrap();
        let uid = owner.metadata.uid.unwrap();
        child(&mut bench, "d", &[("coordination.k8s.io/v1", "Lease", "misnamed", &uid)]);
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        bench.restart(vec![Box::<Garbage>::default()]);
        bench.wait(100);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
    }

    #[test]
    fn owners_in_a_circle_go() {
        let mut bench = bench(vec![Box::<Garbage>::default()]);
        let a = child(&mut bench, "a", &[]);
        let b = child(&mut bench, "b", &[("v1", "ConfigMap", "a", &a)]);
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": b, "blockOwnerDeletion": true});
        bench.merge(Kind::ConfigMap, "a", json!({"metadata": {"ownerReferences": [owner]}}));
        bench.settle();
        let options = DeleteOptions { propagation: Some("Foreground"), ..Default::default() };
        let key = Key::new(Kind::ConfigMap, "default", "a");
        bench.apply(&Request::Delete { key, options });
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), [] as [&str; 0]);
    }
}
