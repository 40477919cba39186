//! The controllers' cache: the objects of each kind, with indexes. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use loadmaster_stdx::Map;

use crate::kind::{Key, Kind, Object, Typed, version_of};
use crate::meta::controller_of;
use crate::served_kinds::ServedKinds;

/// The objects of all watched kinds.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// One type for all kinds: a tree map of each would be compiled again per kind.
    stores: BTreeMap<Kind, ObjectStore>,
    pub(crate) served: ServedKinds,
}

impl Cache {
    /// The kinds that the server serves; known only if a controller [watches all kinds](crate::Controller::watches_all_kinds).
    pub fn served_kinds(&self) -> &ServedKinds {
        &self.served
    }

    /// The objects of a kind.
    pub fn store<K: Typed>(&self) -> Store<'_, K> {
        Store { objects: self.stores.get(&K::IS), kind: PhantomData }
    }

    /// One object; the namespace is empty for kinds without.
    pub fn get<K: Typed>(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.store().get(namespace, name)
    }

    /// Adds or replaces an object. Returns the old object.
    pub fn upsert(&mut self, object: &Object) -> Option<Object> {
        self.stores.entry(object.kind()).or_default().upsert(object.clone())
    }

    /// Removes an object and returns it.
    pub fn remove(&mut self, key: &Key) -> Option<Object> {
        self.stores.get_mut(&key.kind)?.remove(&key.namespace, &key.name)
    }

    /// An object of any kind.
    pub fn object(&self, key: &Key) -> Option<Object> {
        self.stores.get(&key.kind)?.get(&key.namespace, &key.name).cloned()
    }

    /// All objects of a kind, by namespace and name.
    pub fn objects(&self, kind: Kind) -> impl Iterator<Item = Object> {
        self.stores.get(&kind).into_iter().flat_map(ObjectStore::iter).cloned()
    }

    /// The objects of a kind in a namespace.
    pub fn objects_in(&self, kind: Kind, namespace: &str) -> impl Iterator<Item = Object> {
        let store = self.stores.get(&kind).into_iter();
        store.flat_map(move |store| store.in_namespace(namespace)).cloned()
    }

    /// The objects of a kind that name this uid among their owners.
    pub fn owned(&self, kind: Kind, uid: &str) -> impl Iterator<Item = Object> {
        let store = self.stores.get(&kind).into_iter();
        store.flat_map(move |store| store.owned_by(uid)).cloned()
    }

    /// The highest resourceVersion that was seen of a kind.
    pub(crate) fn version(&self, kind: Kind) -> u64 {
        self.stores.get(&kind).map_or(0, |store| store.version)
    }

    /// The kinds that are not built in and had objects, in order.
    pub(crate) fn other_kinds(&self) -> Vec<Kind> {
        let is_other = |kind: &&Kind| matches!(kind, Kind::Other(_));
        self.stores.keys().filter(is_other).copied().collect()
    }

    /// Removes a kind and its objects.
    pub(crate) fn forget_kind(&mut self, kind: Kind) {
        self.stores.remove(&kind);
    }
}

/// The objects of one kind, as their type. All iteration is by namespace and name.
#[derive(Debug)]
pub struct Store<'a, K> {
    objects: Option<&'a ObjectStore>,
    kind: PhantomData<K>,
}

impl<K> Clone for Store<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Store<'_, K> {}

impl<'a, K: Typed> Store<'a, K> {
    /// One object; the namespace is empty for kinds without.
    pub fn get(self, namespace: &str, name: &str) -> Option<&'a Arc<K>> {
        self.objects?.get(namespace, name).and_then(K::of)
    }

    /// All objects.
    pub fn iter(self) -> impl Iterator<Item = &'a Arc<K>> {
        self.objects.into_iter().flat_map(ObjectStore::iter).filter_map(K::of)
    }

    /// The objects of a namespace.
    pub fn in_namespace(self, namespace: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.objects
            .map(|store| store.in_namespace(namespace))
            .into_iter()
            .flatten()
            .filter_map(K::of)
    }

    /// The objects that name this uid among their owners, whether as controller or not.
    pub fn owned_by(self, uid: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.objects.map(|store| store.owned_by(uid)).into_iter().flatten().filter_map(K::of)
    }

    /// The objects of a namespace without controller reference.
    pub fn orphans(self, namespace: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.objects.map(|store| store.orphans(namespace)).into_iter().flatten().filter_map(K::of)
    }

    /// The objects with this [`Object::index_key`]: pods and attachments of a node, claims of a volume, volumes with a `claimRef` of this name.
    pub fn by_index_key(self, place: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.objects.map(|store| store.by_index_key(place)).into_iter().flatten().filter_map(K::of)
    }

    /// Number of objects.
    pub fn len(self) -> usize {
        self.objects.map_or(0, |store| store.n_objects)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);

/// The objects of one kind, with indexes.
#[derive(Clone, Debug, Default)]
struct ObjectStore {
    objects: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Object>>,
    by_owner: Map<String, BTreeSet<Name>>,
    by_index_key: Map<String, BTreeSet<Name>>,
    n_objects: usize,
    version: u64,
}

impl ObjectStore {
    fn get(&self, namespace: &str, name: &str) -> Option<&Object> {
        self.objects.get(namespace)?.get(name)
    }

    fn iter(&self) -> impl Iterator<Item = &Object> {
        self.objects.values().flat_map(BTreeMap::values)
    }

    fn in_namespace<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
        self.objects.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    fn owned_by<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
        self.named(self.by_owner.get(uid))
    }

    fn orphans<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
        let start: Name = (namespace.into(), "".into());
        let namespace: Arc<str> = namespace.into();
        let names = self
            .by_owner
            .get(NO_CONTROLLER)
            .into_iter()
            .flat_map(move |all| all.range(start.clone()..));
        let here = names.take_while(move |(of, _)| *of == namespace);
        here.filter_map(|(namespace, name)| self.get(namespace, name))
    }

    fn by_index_key<'a>(&'a self, place: &str) -> impl Iterator<Item = &'a Object> + use<'a> {
        self.named(self.by_index_key.get(place))
    }

    fn named<'a>(&'a self, names: Option<&'a BTreeSet<Name>>) -> impl Iterator<Item = &'a Object> {
        names.into_iter().flatten().filter_map(|(namespace, name)| self.get(namespace, name))
    }

    fn upsert(&mut self, object: Object) -> Option<Object> {
        let metadata = object.metadata();
        self.version = self.version.max(version_of(metadata));
        let ObjectMeta { namespace, name, .. } = metadata;
        let (namespace, name) = (namespace.as_deref().unwrap_or(""), name.as_deref().unwrap_or(""));
        let old = self.remove(namespace, name);
        let name: Name = (namespace.into(), name.into());
        for owner in owners(metadata) {
            self.by_owner.entry_ref(owner).or_default().insert(name.clone());
        }
        if let Some(place) = object.index_key() {
            self.by_index_key.entry_ref(place).or_default().insert(name.clone());
        }
        let (namespace, name) = name;
        self.objects.entry(namespace).or_default().insert(name, object);
        self.n_objects += 1;
        old
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<Object> {
        let of_namespace = self.objects.get_mut(namespace)?;
        let old = of_namespace.remove(name)?;
        if of_namespace.is_empty() {
            self.objects.remove(namespace);
        }
        self.n_objects -= 1;
        let name: Name = (namespace.into(), name.into());
        for owner in owners(old.metadata()) {
            forget(&mut self.by_owner, owner, &name);
        }
        if let Some(place) = old.index_key() {
            forget(&mut self.by_index_key, place, &name);
        }
        Some(old)
    }
}

/// The index key of objects without controller reference.
const NO_CONTROLLER: &str = "";

fn owners(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let nobody = controller_of(metadata).is_none().then_some(NO_CONTROLLER);
    metadata.owner_references.iter().flatten().map(|owner| owner.uid.as_str()).chain(nobody)
}

fn forget(index: &mut Map<String, BTreeSet<Name>>, key: &str, name: &Name) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: &str, owner: &str, version: u64) -> Object {
        let value = json!({"metadata": {"namespace": "a", "name": name, "resourceVersion": version.to_string(),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Foo", "name": owner, "uid": owner}]},
            "spec": {"nodeName": node, "containers": []}});
        Object::from_json(Kind::Pod, value).unwrap()
    }

    fn names<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> String {
        pods.map(|pod| pod.metadata.name.clone().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn indexes_follow_the_objects() {
        let mut cache = Cache::default();
        assert_eq!(cache.upsert(&pod("y", "n1", "o1", 4)), None);
        cache.upsert(&pod("x", "n1", "o2", 3));
        let pods = cache.store::<Pod>();
        assert_eq!(
            (names(pods.iter()), names(pods.by_index_key("n1"))),
            ("x y".into(), "x y".into())
        );
        assert_eq!((names(pods.owned_by("o1")), pods.len()), ("y".into(), 2));
        assert_eq!((names(pods.orphans("a")), names(pods.orphans(""))), ("x y".into(), "".into()));
        assert_eq!(cache.version(Kind::Pod), 4);

        assert_eq!(cache.upsert(&pod("y", "n2", "o2", 5)), Some(pod("y", "n1", "o1", 4)));
        let pods = cache.store::<Pod>();
        assert_eq!(
            (names(pods.by_index_key("n1")), names(pods.by_index_key("n2"))),
            ("x".into(), "y".into())
        );
        assert_eq!(
            (names(pods.owned_by("o1")), names(pods.owned_by("o2"))),
            ("".into(), "x y".into())
        );

        let key = Key::new(Kind::Pod, "a", "y");
        assert_eq!(cache.remove(&key), Some(pod("y", "n2", "o2", 5)));
        assert_eq!(cache.remove(&key), None);
        let pods = cache.store::<Pod>();
        assert_eq!(
            (names(pods.by_index_key("n2")), names(pods.in_namespace("a")), pods.len()),
            ("".into(), "x".into(), 1)
        );
        assert_eq!(names(pods.in_namespace("b")), "");
    }
}
