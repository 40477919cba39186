//! The controllers' cache: the objects of each kind, with indexes. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use loadmaster_stdx::Map;

use crate::dynamic_kind::PartialObjectMetadata;
use crate::kind::{Kind, Stores, Typed, version_of};
use crate::meta::controller_of;
use crate::served_kinds::ServedKinds;

/// The objects of all watched kinds.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(crate) stores: Stores,
    /// Objects of dynamic kinds.
    pub(crate) others: BTreeMap<Kind, Store<PartialObjectMetadata>>,
    pub(crate) served: ServedKinds,
}

/// An object that can be stored in a [`Store`].
pub trait StoredObject {
    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;

    /// A second index key for [`Store::by_index_key`].
    fn index_key(&self) -> Option<&str> {
        None
    }
}

impl Cache {
    /// The kinds that the server serves; known only if a controller [watches all kinds](crate::Controller::watches_all_kinds).
    pub fn served_kinds(&self) -> &ServedKinds {
        &self.served
    }

    /// The objects of a kind.
    pub fn store<K: Typed>(&self) -> &Store<K> {
        K::store(self)
    }

    /// One object; the namespace is empty for kinds without.
    pub fn get<K: Typed>(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        K::store(self).get(namespace, name)
    }
}

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);

/// The objects of one kind. All iteration is by namespace and name.
#[derive(Clone, Debug)]
pub struct Store<K> {
    objects: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<K>>>,
    by_owner: Map<String, BTreeSet<Name>>,
    by_index_key: Map<String, BTreeSet<Name>>,
    n_objects: usize,
    version: u64,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Store {
            objects: BTreeMap::new(),
            by_owner: Map::default(),
            by_index_key: Map::default(),
            n_objects: 0,
            version: 0,
        }
    }
}

impl<K: StoredObject> Store<K> {
    /// One object; the namespace is empty for kinds without.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(namespace)?.get(name)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values().flat_map(BTreeMap::values)
    }

    /// The objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.objects.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    /// The objects that name this uid among their owners, whether as controller or not.
    pub fn owned_by<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.named(self.by_owner.get(uid))
    }

    /// The objects of a namespace without controller reference.
    pub fn orphans(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> + use<'_, K> {
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

    /// The objects with this [`StoredObject::index_key`]: pods and attachments of a node, claims of a volume, volumes with a `claimRef` of this name.
    pub fn by_index_key<'a>(
        &'a self,
        place: &str,
    ) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.named(self.by_index_key.get(place))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.n_objects
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.n_objects == 0
    }

    fn named<'a>(
        &'a self,
        names: Option<&'a BTreeSet<Name>>,
    ) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        names.into_iter().flatten().filter_map(|(namespace, name)| self.get(namespace, name))
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn upsert(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let metadata = object.meta();
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

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let of_namespace = self.objects.get_mut(namespace)?;
        let old = of_namespace.remove(name)?;
        if of_namespace.is_empty() {
            self.objects.remove(namespace);
        }
        self.n_objects -= 1;
        let name: Name = (namespace.into(), name.into());
        for owner in owners(old.meta()) {
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
    use crate::kind::{Key, Kind, Object};

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
