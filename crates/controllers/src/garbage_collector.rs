//! The garbage collector: dependents are deleted with their owners, or orphaned.
//!
//! | | |
//! | --- | --- |
//! | reads | metadata of all kinds that the server serves, but Events |
//! | writes | deletes dependents, takes finalizers and references to owners away |
//! | upstream | `pkg/controller/garbagecollector`, 1.36 |
//! | deviations | when a CustomResourceDefinition is deleted, the dependents of its objects are deleted, too |

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object};
use crate::meta::is_terminating;
use crate::request::{ControllerRequest, ControllerResponse, DeleteOptions, Patch};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Maximum number of remembered absent owners; then all are forgotten and looked up again.
const ABSENT_OWNERS_MAX: usize = 100_000;
/// An owner's kind may be defined later.
const UNKNOWN: Duration = Duration::from_secs(30);

/// An owner as named by a reference. Another, wrong reference may contain the same uid.
type Name = (Key, String);

/// The garbage collector.
#[derive(Debug, Default)]
pub(crate) struct GarbageCollector {
    /// Owners for which the server returned 404. An owner that is missing in the cache may exist: kinds are watched
    /// separately, and an object may be seen before its owner.
    absent_owners: BTreeSet<Name>,
    /// Owners with a read request in flight.
    asked: BTreeSet<Name>,
}

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It is there.
    Solid,
    /// It does not exist.
    Absent,
    /// It is deleted in the foreground: it waits for its dependents.
    Waiting,
    /// It is not in the cache; it must be read from the server.
    Unseen,
    /// There can be no such object, as far as is known: its kind is not served, or is in namespaces and the dependent is not.
    Unknown,
}

impl Controller for GarbageCollector {
    fn name(&self) -> &'static str {
        "garbage-collector"
    }

    fn watches(&self) -> &'static [Kind] {
        &[]
    }

    fn watches_all_kinds(&self) -> bool {
        true
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
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

    fn reconcile(&mut self, key: &Key, cache: &Cache, _now: Timestamp) -> ReconcileResult {
        let Some(object) = cache.object(key) else { return ReconcileResult::none() };
        let meta = object.metadata();
        if has_finalizer(meta, ORPHAN) && is_terminating(meta) {
            return orphan(&object, cache);
        }
        if has_finalizer(meta, FOREGROUND) && is_terminating(meta) {
            return wait_for_dependents(&object, cache);
        }
        self.reconcile_owners(&object, cache)
    }

    fn on_response(
        &mut self,
        _key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _now: Timestamp,
    ) {
        let ControllerRequest::Get(owner) = request else { return };
        let of_owner = (owner.clone(), String::new())..;
        let asked = self.asked.range(of_owner).take_while(|(key, _)| key == owner);
        let asked: Vec<Name> = asked.cloned().collect();
        for name in asked {
            self.asked.remove(&name);
            let is_gone = match response {
                ControllerResponse::Success(Some(found)) => {
                    found.metadata().uid.as_ref() != Some(&name.1)
                }
                ControllerResponse::Success(None) => true,
                // The error does not show whether the owner exists.
                ControllerResponse::Count(_)
                | ControllerResponse::Rejected { .. }
                | ControllerResponse::NoResponse { .. } => false,
            };
            if is_gone {
                if self.absent_owners.len() >= ABSENT_OWNERS_MAX {
                    self.absent_owners.clear();
                }
                self.absent_owners.insert(name);
            }
        }
    }
}

impl GarbageCollector {
    fn owner(&self, owner: &OwnerReference, of: &ObjectMeta, cache: &Cache) -> Owner {
        let Some(key) = owner_key(owner, of, cache) else { return Owner::Unknown };
        match cache.object(&key) {
            Some(found) if found.metadata().uid.as_ref() == Some(&owner.uid) => {
                let is_waiting =
                    is_terminating(found.metadata()) && has_finalizer(found.metadata(), FOREGROUND);
                if is_waiting { Owner::Waiting } else { Owner::Solid }
            }
            _ if self.absent_owners.contains(&(key, owner.uid.clone())) => Owner::Absent,
            _ => Owner::Unseen,
        }
    }

    /// Deletes an object without any existing owner, or removes references to absent owners.
    fn reconcile_owners(&mut self, object: &Object, cache: &Cache) -> ReconcileResult {
        let meta = object.metadata();
        let owners = meta.owner_references.as_deref().unwrap_or_default();
        if owners.is_empty() || is_terminating(meta) {
            return ReconcileResult::none();
        }
        let states: Vec<Owner> =
            owners.iter().map(|owner| self.owner(owner, meta, cache)).collect();
        let in_state = |state: Owner| {
            let with = owners.iter().zip(&states).filter(move |(_, one)| **one == state);
            with.map(|(owner, _)| owner)
        };
        if states.contains(&Owner::Unknown) {
            return ReconcileResult::requeue_after(UNKNOWN);
        }
        if states.contains(&Owner::Unseen) {
            let unseen = in_state(Owner::Unseen)
                .filter_map(|owner| Some((owner_key(owner, meta, cache)?, owner.uid.clone())));
            let new = unseen.filter(|name| self.asked.insert(name.clone()));
            let requests: Vec<ControllerRequest> =
                new.map(|(key, _)| ControllerRequest::Get(key)).collect();
            // Other dependents of the owner wait for the same response.
            let again = requests.is_empty().then_some(Duration::from_millis(50));
            return ReconcileResult { requests, requeue_after: again.or(Some(Duration::ZERO)) };
        }
        if states.contains(&Owner::Solid) {
            let kept: Vec<&OwnerReference> = in_state(Owner::Solid).collect();
            if kept.len() == owners.len() {
                return ReconcileResult::none();
            }
            return ReconcileResult::with_request(patch(object, json!({"ownerReferences": kept})));
        }
        let mut dependents = dependents(meta, cache).peekable();
        let propagation = if states.contains(&Owner::Waiting) && dependents.peek().is_some() {
            // An owner further up may be among those that wait for this one.
            let may_be_circle = dependents.any(|one| is_held(one.metadata()));
            if may_be_circle && owners.iter().any(blocks) {
                return ReconcileResult::with_request(unblock(object, owners));
            }
            "Foreground"
        } else if has_finalizer(meta, FOREGROUND) {
            "Foreground"
        } else if has_finalizer(meta, ORPHAN) {
            "Orphan"
        } else {
            "Background"
        };
        ReconcileResult::with_request(delete(object, propagation))
    }
}

fn has_finalizer(meta: &ObjectMeta, name: &str) -> bool {
    meta.finalizers.iter().flatten().any(|one| one == name)
}

/// Whether a finalizer delays the deletion until the dependents are handled.
fn is_held(meta: &ObjectMeta) -> bool {
    is_terminating(meta) && (has_finalizer(meta, FOREGROUND) || has_finalizer(meta, ORPHAN))
}

fn blocks(owner: &OwnerReference) -> bool {
    owner.block_owner_deletion == Some(true)
}

/// An owner is in its dependent's namespace, or in none.
fn owner_key(owner: &OwnerReference, of: &ObjectMeta, cache: &Cache) -> Option<Key> {
    let kind = cache.served_kinds().find(&owner.api_version, &owner.kind)?;
    let namespace = match kind.info().is_namespaced {
        true => of.namespace.as_deref().filter(|it| !it.is_empty())?,
        false => "",
    };
    Some(Key::new(kind, namespace, &*owner.name))
}

/// All objects that name an object as an owner.
fn dependents<'a>(meta: &'a ObjectMeta, cache: &'a Cache) -> impl Iterator<Item = Object> + 'a {
    let uid = meta.uid.as_deref().filter(|uid| !uid.is_empty());
    let kinds = cache.served_kinds().watchable();
    uid.into_iter().flat_map(move |uid| kinds.iter().flat_map(move |kind| cache.owned(*kind, uid)))
}

/// A patch of the metadata, rejected with a conflict if the object has changed meanwhile.
fn patch(object: &Object, mut meta: serde_json::Value) -> ControllerRequest {
    meta["resourceVersion"] = json!(object.metadata().resource_version);
    ControllerRequest::patch(object.key(), Patch::Merge(json!({"metadata": meta})))
}

/// Clears `blockOwnerDeletion`.
fn unblock(object: &Object, owners: &[OwnerReference]) -> ControllerRequest {
    let free = |owner: &OwnerReference| OwnerReference {
        block_owner_deletion: Some(false),
        ..owner.clone()
    };
    let owners: Vec<OwnerReference> = owners.iter().map(free).collect();
    patch(object, json!({"ownerReferences": owners}))
}

fn delete(object: &Object, propagation: &'static str) -> ControllerRequest {
    let ObjectMeta { uid, resource_version, .. } = object.metadata().clone();
    let options = DeleteOptions {
        uid,
        resource_version,
        propagation: Some(propagation),
        ..Default::default()
    };
    ControllerRequest::Delete { key: object.key(), options }
}

fn without(object: &Object, finalizer: &str) -> ControllerRequest {
    let all = object.metadata().finalizers.iter().flatten();
    let left: Vec<&String> = all.filter(|one| *one != finalizer).collect();
    patch(object, json!({"finalizers": left}))
}

/// Orphans the dependents of an owner.
fn orphan(object: &Object, cache: &Cache) -> ReconcileResult {
    let uid = object.metadata().uid.as_ref();
    let release = |one: Object| {
        let kept = one.metadata().owner_references.iter().flatten();
        let kept: Vec<&OwnerReference> = kept.filter(|owner| Some(&owner.uid) != uid).collect();
        patch(&one, json!({"ownerReferences": kept}))
    };
    let requests: Vec<ControllerRequest> =
        dependents(object.metadata(), cache).map(release).collect();
    if requests.is_empty() {
        ReconcileResult::with_request(without(object, ORPHAN))
    } else {
        ReconcileResult::with_requests(requests)
    }
}

/// Removes the finalizer of an owner when no dependent blocks it. The dependents observe the waiting owner themselves.
fn wait_for_dependents(object: &Object, cache: &Cache) -> ReconcileResult {
    let uid = object.metadata().uid.as_ref();
    let waits_for = |one: &Object| {
        let mut owners = one.metadata().owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == uid && blocks(owner))
    };
    match dependents(object.metadata(), cache).find(waits_for) {
        Some(_) => ReconcileResult::none(),
        None => ReconcileResult::with_request(without(object, FOREGROUND)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use serde_json::Value;

    use super::*;
    use crate::test_kubelet::bench;
    use crate::testkit::ControllerBench;

    /// Lease `owner`, config maps `a` and `b` owned by it, and `c` owned by `a`.
    fn family() -> ControllerBench {
        let mut bench = bench(vec![Box::<GarbageCollector>::default()]);
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
        bench.run_until_idle();
        bench
    }

    fn child(
        bench: &mut ControllerBench,
        name: &str,
        owners: &[(&str, &str, &str, &str)],
    ) -> String {
        let owner = |(version, kind, name, uid): &(&str, &str, &str, &str)| json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": true});
        let owners: Vec<Value> = owners.iter().map(owner).collect();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": owners}});
        bench.create(map).metadata().uid.clone().unwrap()
    }

    fn remove(bench: &mut ControllerBench, propagation: &'static str) {
        let options = DeleteOptions { propagation: Some(propagation), ..Default::default() };
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Lease, "default", "owner"),
            options,
        });
        bench.wait(1);
    }

    #[test]
    fn background_deletion_deletes_dependents_after_their_owner() {
        let mut bench = family();
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        remove(&mut bench, "Background");
        assert_eq!(bench.names::<ConfigMap>(), [] as [&str; 0]);
    }

    #[test]
    fn foreground_deletion_deletes_dependents_first() {
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
    fn orphaned_dependents_are_not_deleted() {
        let mut bench = family();
        remove(&mut bench, "Orphan");
        assert_eq!(bench.list::<Lease>().len(), 0);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        let owned = |one: &&ConfigMap| one.metadata.owner_references.is_some();
        assert_eq!(bench.list::<ConfigMap>().iter().filter(owned).count(), 1);
    }

    #[test]
    fn a_nonexistent_owner_is_absent() {
        let mut bench = family();
        child(&mut bench, "d", &[("coordination.k8s.io/v1", "Lease", "owner", "another-uid")]);
        child(&mut bench, "e", &[("example.com/v1", "Unknown", "x", "1")]);
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c", "e"]);
    }

    #[test]
    fn one_existing_owner_keeps_an_object() {
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

    fn foos(bench: &ControllerBench) -> Vec<String> {
        let (_, list) = bench.http("GET", FOOS, &Value::Null);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Foo `top`, whose definition was made while the collector ran; config map `a` and Foo `low` are owned by it, a pod by `low`.
    fn custom_family() -> ControllerBench {
        let mut bench = bench(vec![Box::<GarbageCollector>::default()]);
        bench.run_until_idle();
        bench.define("Foo", "foos", "Namespaced");
        bench.run_until_idle();
        let foo = |bench: &mut ControllerBench, name: &str, owners: Value| {
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
        bench.run_until_idle();
        assert_eq!(
            (foos(&bench), bench.names::<ConfigMap>()),
            (names(&["low", "top"]), names(&["a"]))
        );
        bench
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn remove_top(bench: &mut ControllerBench, propagation: &str) {
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation});
        let (status, response) = bench.http("DELETE", &format!("{FOOS}/top"), &options);
        assert_eq!(status, 200, "{response}");
        bench.wait(1);
    }

    #[test]
    fn custom_objects_can_be_owners_and_dependents() {
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
    fn foreground_deletion_of_a_custom_owner_waits_for_its_pod() {
        let mut bench = custom_family();
        bench.merge(Kind::Pod, "p", json!({"metadata": {"finalizers": ["example.com/wait"]}}));
        remove_top(&mut bench, "Foreground");
        assert_eq!((foos(&bench), bench.names::<ConfigMap>()), (names(&["low", "top"]), vec![]));
        bench.merge(Kind::Pod, "p", json!({"metadata": {"finalizers": null}}));
        bench.wait(1);
        assert_eq!((foos(&bench), bench.names::<Pod>()), (vec![], vec![]));
    }

    #[test]
    fn deleting_a_custom_resource_definition_deletes_owners() {
        let mut bench = custom_family();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.example.com";
        let (status, _) = bench.http("DELETE", path, &json!({}));
        assert_eq!(status, 200);
        bench.wait(60);
        assert_eq!((bench.names::<ConfigMap>(), bench.names::<Pod>()), (vec![], vec![]));
    }

    #[test]
    fn an_owner_of_an_unknown_kind_is_looked_up_later() {
        let mut bench = family();
        child(&mut bench, "d", &[("example.com/v1", "Foo", "x", "1")]);
        bench.wait(100);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c", "d"]);
        bench.define("Foo", "foos", "Namespaced");
        bench.run_until_idle();
        bench.wait(31);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
    }

    /// Such an object is left alone, as upstream does.
    #[test]
    fn a_cluster_scoped_object_cannot_have_a_namespaced_owner() {
        let mut bench = family();
        bench.define("Bar", "bars", "Cluster");
        bench.run_until_idle();
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "1"});
        bench.create(json!({"apiVersion": "example.com/v1", "kind": "Bar",
            "metadata": {"name": "bar", "ownerReferences": [owner]}}));
        bench.wait(100);
        let (status, _) = bench.http("GET", "/apis/example.com/v1/bars/bar", &Value::Null);
        assert_eq!(status, 200);
    }

    /// A reference with the right uid but a wrong name does not mark the real owner as absent.
    #[test]
    fn owners_are_identified_by_the_whole_reference() {
        let mut bench = family();
        let owner: Lease = bench.get("default", "owner").unwrap();
        let uid = owner.metadata.uid.unwrap();
        child(&mut bench, "d", &[("coordination.k8s.io/v1", "Lease", "misnamed", &uid)]);
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
        bench.restart(vec![Box::<GarbageCollector>::default()]);
        bench.wait(100);
        assert_eq!(bench.names::<ConfigMap>(), ["a", "b", "c"]);
    }

    #[test]
    fn owner_cycles_are_deleted() {
        let mut bench = bench(vec![Box::<GarbageCollector>::default()]);
        let a = child(&mut bench, "a", &[]);
        let b = child(&mut bench, "b", &[("v1", "ConfigMap", "a", &a)]);
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": b, "blockOwnerDeletion": true});
        bench.merge(Kind::ConfigMap, "a", json!({"metadata": {"ownerReferences": [owner]}}));
        bench.run_until_idle();
        let options = DeleteOptions { propagation: Some("Foreground"), ..Default::default() };
        let key = Key::new(Kind::ConfigMap, "default", "a");
        bench.send_as_client(&ControllerRequest::Delete { key, options });
        bench.wait(1);
        assert_eq!(bench.names::<ConfigMap>(), [] as [&str; 0]);
    }
}
