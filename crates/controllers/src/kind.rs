//! The kinds that controllers know: one table, from which come [`Kind`], [`Object`] and the stores of a [`Cache`]. All
//! [others](crate::other) are metadata.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    policy::v1 as policy, resource::v1 as resource, storage::v1 as storage,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{
    ClusterResourceScope, Metadata, NamespaceResourceScope, Resource, ResourceScope,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache::{Cache, Store, Stored};
use crate::other::{OtherKind, Partial};

/// An object of a kind in the table.
pub trait Typed:
    Stored
    + Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + Clone
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// Its kind.
    const IS: Kind;

    /// The object, if it is of this type.
    fn of(object: &Object) -> Option<&Arc<Self>>;

    /// The object without its type.
    fn into_object(this: Arc<Self>) -> Object;

    /// All that are known.
    fn store(cache: &Cache) -> &Store<Self>;

    #[doc(hidden)]
    fn store_mut(cache: &mut Cache) -> &mut Store<Self>;
}

/// How a kind is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindInfo {
    /// Empty for core.
    pub group: &'static str,
    /// Such as `v1`.
    pub version: &'static str,
    /// Such as `apps/v1`.
    pub api_version: &'static str,
    /// Such as `Deployment`.
    pub kind: &'static str,
    /// Such as `deployments`.
    pub resource: &'static str,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

trait Scope: ResourceScope {
    const IS_NAMESPACED: bool;
}

impl Scope for NamespaceResourceScope {
    const IS_NAMESPACED: bool = true;
}

impl Scope for ClusterResourceScope {
    const IS_NAMESPACED: bool = false;
}

const fn info<T: Resource>() -> KindInfo
where
    T::Scope: Scope,
{
    KindInfo {
        group: T::GROUP,
        version: T::VERSION,
        api_version: T::API_VERSION,
        kind: T::KIND,
        resource: T::URL_PATH_SEGMENT,
        is_namespaced: <T::Scope as Scope>::IS_NAMESPACED,
    }
}

macro_rules! kinds {
    ($($kind:ident $field:ident $type:ty $(, place $place:expr)?;)*) => {
        /// A kind of object.
        #[expect(missing_docs, reason = "the names are Kubernetes'")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($kind,)*
            /// One that is not in the table.
            Other(OtherKind),
        }

        impl Kind {
            /// Every kind of the table.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// How it is asked for.
            pub const fn info(self) -> KindInfo {
                match self {
                    $(Kind::$kind => info::<$type>(),)*
                    Kind::Other(other) => other.info(),
                }
            }
        }

        /// An object of any kind. Clones share it.
        #[expect(missing_docs, reason = "the names are Kubernetes'")]
        #[derive(Clone, Debug, PartialEq)]
        pub enum Object {
            $($kind(Arc<$type>),)*
            /// Of one that is not in the table.
            Other(Arc<Partial>),
        }

        impl Object {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Object::$kind(_) => Kind::$kind,)*
                    Object::Other(object) => object.kind,
                }
            }

            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(Object::$kind(object) => &object.metadata,)*
                    Object::Other(object) => &object.metadata,
                }
            }

            /// In JSON, with its apiVersion and kind; of a kind that is not in the table only the metadata.
            ///
            /// # Errors
            ///
            /// Never for objects that were read from JSON.
            pub fn to_json(&self) -> Result<Value, serde_json::Error> {
                match self {
                    $(Object::$kind(object) => serde_json::to_value(&**object),)*
                    Object::Other(object) => {
                        let KindInfo { api_version, kind, .. } = object.kind.info();
                        let metadata = &object.metadata;
                        Ok(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
                    }
                }
            }

            /// Reads an object of a kind.
            ///
            /// # Errors
            ///
            /// When it is not of that kind.
            pub fn from_json(kind: Kind, value: Value) -> Result<Object, serde_json::Error> {
                Ok(match kind {
                    $(Kind::$kind => Object::$kind(Arc::new(serde_json::from_value(value)?)),)*
                    Kind::Other(_) => Object::Other(Arc::new(Partial::from_json(kind, value)?)),
                })
            }
        }

        /// What a controller sees of the cluster.
        #[derive(Clone, Debug, Default)]
        pub struct Stores {
            $($field: Store<$type>,)*
        }

        impl Cache {
            /// Takes an object as it is now. Answers what was there before under its name.
            pub fn put(&mut self, object: &Object) -> Option<Object> {
                match object {
                    $(Object::$kind(object) => self.stores.$field.put(object.clone()).map(Object::$kind),)*
                    Object::Other(object) => {
                        let store = self.others.entry(object.kind).or_default();
                        store.put(object.clone()).map(Object::Other)
                    }
                }
            }

            /// Takes an object away.
            pub fn remove(&mut self, key: &Key) -> Option<Object> {
                match key.kind {
                    $(Kind::$kind => self.stores.$field.remove(&key.namespace, &key.name).map(Object::$kind),)*
                    Kind::Other(_) => {
                        let store = self.others.get_mut(&key.kind)?;
                        store.remove(&key.namespace, &key.name).map(Object::Other)
                    }
                }
            }

            /// An object of any kind.
            pub fn object(&self, key: &Key) -> Option<Object> {
                match key.kind {
                    $(Kind::$kind => {
                        self.stores.$field.get(&key.namespace, &key.name).cloned().map(Object::$kind)
                    })*
                    Kind::Other(_) => {
                        let store = self.others.get(&key.kind)?;
                        store.get(&key.namespace, &key.name).cloned().map(Object::Other)
                    }
                }
            }

            /// All objects of a kind, by namespace and name.
            pub fn objects(&self, kind: Kind) -> Box<dyn Iterator<Item = Object> + '_> {
                match kind {
                    $(Kind::$kind => Box::new(self.stores.$field.iter().cloned().map(Object::$kind)),)*
                    Kind::Other(_) => {
                        let store = self.others.get(&kind).into_iter();
                        Box::new(store.flat_map(Store::iter).cloned().map(Object::Other))
                    }
                }
            }

            /// The objects of a kind in a namespace.
            pub fn objects_in<'a>(
                &'a self,
                kind: Kind,
                namespace: &'a str,
            ) -> Box<dyn Iterator<Item = Object> + 'a> {
                match kind {
                    $(Kind::$kind => {
                        Box::new(self.stores.$field.in_namespace(namespace).cloned().map(Object::$kind))
                    })*
                    Kind::Other(_) => {
                        let store = self.others.get(&kind).into_iter();
                        let here = store.flat_map(move |store| store.in_namespace(namespace));
                        Box::new(here.cloned().map(Object::Other))
                    }
                }
            }

            /// The objects of a kind that name this uid among their owners.
            pub fn owned<'a>(&'a self, kind: Kind, uid: &str) -> Box<dyn Iterator<Item = Object> + 'a> {
                match kind {
                    $(Kind::$kind => Box::new(self.stores.$field.owned_by(uid).cloned().map(Object::$kind)),)*
                    Kind::Other(_) => match self.others.get(&kind) {
                        Some(store) => Box::new(store.owned_by(uid).cloned().map(Object::Other)),
                        None => Box::new(std::iter::empty()),
                    },
                }
            }

            /// The newest resourceVersion that was seen of a kind.
            pub(crate) fn version(&self, kind: Kind) -> u64 {
                match kind {
                    $(Kind::$kind => self.stores.$field.version(),)*
                    Kind::Other(_) => self.others.get(&kind).map_or(0, Store::version),
                }
            }
        }

        $(
            impl Typed for $type {
                const IS: Kind = Kind::$kind;

                fn of(object: &Object) -> Option<&Arc<Self>> {
                    if let Object::$kind(object) = object { Some(object) } else { None }
                }

                fn into_object(this: Arc<Self>) -> Object {
                    Object::$kind(this)
                }

                fn store(cache: &Cache) -> &Store<Self> {
                    &cache.stores.$field
                }

                fn store_mut(cache: &mut Cache) -> &mut Store<Self> {
                    &mut cache.stores.$field
                }
            }

            impl Stored for $type {
                fn meta(&self) -> &ObjectMeta {
                    &self.metadata
                }

                $(fn place(&self) -> Option<&str> {
                    let place: fn(&Self) -> Option<&str> = $place;
                    place(self)
                })?
            }

            impl From<$type> for Object {
                fn from(object: $type) -> Object {
                    Object::$kind(Arc::new(object))
                }
            }
        )*
    };
}

kinds! {
    Namespace namespaces core::Namespace;
    Node nodes core::Node;
    Pod pods core::Pod, place |pod| pod.spec.as_ref()?.node_name.as_deref();
    ServiceAccount service_accounts core::ServiceAccount;
    ConfigMap config_maps core::ConfigMap;
    Event events core::Event;
    ReplicationController replication_controllers core::ReplicationController;
    PersistentVolume persistent_volumes core::PersistentVolume;
    PersistentVolumeClaim persistent_volume_claims core::PersistentVolumeClaim,
        place |claim| claim.spec.as_ref()?.volume_name.as_deref();
    Service services core::Service;
    ResourceQuota resource_quotas core::ResourceQuota;
    ResourceClaim resource_claims resource::ResourceClaim;
    Deployment deployments apps::Deployment;
    ReplicaSet replica_sets apps::ReplicaSet;
    StatefulSet stateful_sets apps::StatefulSet;
    DaemonSet daemon_sets apps::DaemonSet;
    ControllerRevision controller_revisions apps::ControllerRevision;
    Job jobs batch::Job;
    CronJob cron_jobs batch::CronJob;
    PodDisruptionBudget pod_disruption_budgets policy::PodDisruptionBudget;
    Lease leases coordination::Lease;
    StorageClass storage_classes storage::StorageClass;
    VolumeAttributesClass volume_attributes_classes storage::VolumeAttributesClass;
}

impl Kind {
    /// The kind with this apiVersion and kind, as owner references and manifests write it.
    pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|it| {
            let info = it.info();
            info.kind == kind && info.api_version == api_version
        })
    }

    /// The path of all its objects, or of those in a namespace if one is given.
    pub fn path(self, namespace: &str) -> String {
        let KindInfo { api_version, group, resource, .. } = self.info();
        let root = if group.is_empty() { "api" } else { "apis" };
        match namespace {
            "" => format!("/{root}/{api_version}/{resource}"),
            namespace => format!("/{root}/{api_version}/namespaces/{namespace}/{resource}"),
        }
    }
}

/// Which object: kind, namespace (empty for kinds without) and name. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Empty for kinds without namespaces.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// The object of this name.
    pub fn new(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Key {
        Key { kind, namespace: namespace.into(), name: name.into() }
    }

    /// An object's own.
    pub fn of<K: Typed>(object: &K) -> Key {
        let ObjectMeta { namespace, name, .. } = object.metadata();
        Key::new(K::IS, namespace.as_deref().unwrap_or(""), name.as_deref().unwrap_or(""))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kind, namespace, name } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {namespace}{slash}{name}", kind.info().kind)
    }
}

impl Object {
    /// Which object it is.
    pub fn key(&self) -> Key {
        let ObjectMeta { namespace, name, .. } = self.metadata();
        let (namespace, name) = (namespace.as_deref(), name.as_deref());
        Key::new(self.kind(), namespace.unwrap_or(""), name.unwrap_or(""))
    }

    /// Its resourceVersion; 0 for an object that was never stored. They are numbers on every server there is.
    pub fn version(&self) -> u64 {
        version_of(self.metadata())
    }

    /// As its type.
    pub fn typed<K: Typed>(&self) -> Option<&Arc<K>> {
        K::of(self)
    }
}

pub(crate) fn version_of(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|it| it.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(Kind::Pod.path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(Kind::Node.path(""), "/api/v1/nodes");
        assert_eq!(Kind::CronJob.path(""), "/apis/batch/v1/cronjobs");
        let foos = Kind::other(("example.com", "v1"), ("Foo", "foos"), true);
        assert_eq!(foos.path("a"), "/apis/example.com/v1/namespaces/a/foos");
    }

    #[test]
    fn kinds_are_found_by_their_names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::find(kind.info().api_version, kind.info().kind), Some(*kind));
        }
        assert_eq!(Kind::find("apps/v1beta1", "Deployment"), None);
        assert!(Kind::Pod.info().is_namespaced && !Kind::Node.info().is_namespaced);
    }

    #[test]
    fn objects_know_who_they_are() {
        let json = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "a", "name": "b", "resourceVersion": "7"}});
        let object = Object::from_json(Kind::Pod, json.clone()).unwrap();
        assert_eq!(object.key().to_string(), "Pod a/b");
        assert_eq!(object.version(), 7);
        assert_eq!(object.to_json().unwrap(), json);
        assert!(Object::from_json(Kind::Node, json).is_err());
    }

    #[test]
    fn of_kinds_beyond_the_table_metadata_are_kept() {
        let foos = Kind::other(("example.com", "v1"), ("Foo", "foos"), true);
        let mut json = json!({"apiVersion": "example.com/v1", "kind": "Foo", "spec": {"a": 1},
            "metadata": {"namespace": "a", "name": "b", "resourceVersion": "7"}});
        let object = Object::from_json(foos, json.clone()).unwrap();
        assert_eq!(object.key().to_string(), "Foo a/b");
        json.as_object_mut().unwrap().remove("spec");
        assert_eq!(object.to_json().unwrap(), json);
        let mut cache = Cache::default();
        assert_eq!((cache.object(&object.key()), cache.version(foos)), (None, 0));
        assert_eq!(cache.put(&object), None);
        assert_eq!((cache.objects(foos).count(), cache.version(foos)), (1, 7));
        assert_eq!(["a", "b"].map(|place| cache.objects_in(foos, place).count()), [1, 0]);
        assert_eq!(cache.owned(foos, "u").count(), 0);
        assert_eq!(cache.remove(&object.key()), Some(object));
    }
}
