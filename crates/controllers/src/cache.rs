//! What controllers see of the cluster: the objects of each kind, with the look-ups that controllers need. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use loadmaster_stdx::Map;

use crate::kind::{Kind, Stores, Typed, version_of};
use crate::meta::controller_of;
use crate::other::Partial;
use crate::served::Served;

/// The objects of all kinds that are watched.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    pub(crate) stores: Stores,
    /// Of kinds that are not in the table.
    pub(crate) others: BTreeMap<Kind, Store<Partial>>,
    pub(crate) served: Served,
}

/// What can be kept in a [`Store`].
pub trait Stored {
    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;

    /// A name other than its own by which it is looked up ([`Store::at`]): the node of a pod.
    fn place(&self) -> Option<&str> {
        None
    }
}

impl Cache {
    /// What the server serves; only known when a controller [watches all kinds](crate::Controller::watches_all).
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The objects of a kind.
    pub fn of<K: Typed>(&self) -> &Store<K> {
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
    by_place: Map<String, BTreeSet<Name>>,
    n_objects: usize,
    version: u64,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Store {
            objects: BTreeMap::new(),
            by_owner: Map::default(),
            by_place: Map::default(),
            n_objects: 0,
            version: 0,
        }
    }
}

impl<K: Stored> Store<K> {
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

    /// The objects of a namespace that no owner controls.
    pub fn orphans(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> + use<'_, K> {
        let start: Name = (namespace.into(), "".into());
        let namespace: Arc<str> = namespace.into();
        let names =
            self.by_owner.get(NOBODY).into_iter().flat_map(move |all| all.range(start.clone()..));
        let here = names.take_while(move |(of, _)| *of == namespace);
        here.filter_map(|(namespace, name)| self.get(namespace, name))
    }

    /// The objects with this [`Stored::place`]: the pods of a node, the claims of a volume.
    pub fn at<'a>(&'a self, place: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.named(self.by_place.get(place))
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

    pub(crate) fn put(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let metadata = object.meta();
        self.version = self.version.max(version_of(metadata));
        let ObjectMeta { namespace, name, .. } = metadata;
        let (namespace, name) = (namespace.as_deref().unwrap_or(""), name.as_deref().unwrap_or(""));
        let old = self.remove(namespace, name);
        let name: Name = (namespace.into(), name.into());
        for owner in owners(metadata) {
            self.by_owner.entry_ref(owner).or_default().insert(name.clone());
        }
        if let Some(place) = object.place() {
            self.by_place.entry_ref(place).or_default().insert(name.clone());
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
        if let Some(place) = old.place() {
            forget(&mut self.by_place, place, &name);
        }
        Some(old)
    }
}

/// The uid under which objects are found that nobody controls.
const NOBODY: &str = "";

fn owners(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let nobody = controller_of(metadata).is_none().then_some(NOBODY);
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
    fn look_ups_follow_the_objects() {
        let mut cache = Cache::default();
        assert_eq!(cache.put(&pod("y", "n1", "o1", 4)), None);
        cache.put(&pod("x", "n1", "o2", 3));
        let pods = cache.of::<Pod>();
        assert_eq!((names(pods.iter()), names(pods.at("n1"))), ("x y".into(), "x y".into()));
        assert_eq!((names(pods.owned_by("o1")), pods.len()), ("y".into(), 2));
        assert_eq!((names(pods.orphans("a")), names(pods.orphans(""))), ("x y".into(), "".into()));
        assert_eq!(cache.version(Kind::Pod), 4);

        assert_eq!(cache.put(&pod("y", "n2", "o2", 5)), Some(pod("y", "n1", "o1", 4)));
        let pods = cache.of::<Pod>();
        assert_eq!((names(pods.at("n1")), names(pods.at("n2"))), ("x".into(), "y".into()));
        assert_eq!(
            (names(pods.owned_by("o1")), names(pods.owned_by("o2"))),
            ("".into(), "x y".into())
        );

        let key = Key::new(Kind::Pod, "a", "y");
        assert_eq!(cache.remove(&key), Some(pod("y", "n2", "o2", 5)));
        assert_eq!(cache.remove(&key), None);
        let pods = cache.of::<Pod>();
        assert_eq!(
            (names(pods.at("n2")), names(pods.in_namespace("a")), pods.len()),
            ("".into(), "x".into(), 1)
        );
        assert_eq!(names(pods.in_namespace("b")), "");
    }
}
