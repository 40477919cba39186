//! The built-in kinds: one table, from which [`Kind`] and [`Object`] are generated. Of all
//! [other kinds](crate::dynamic_kind) only metadata is read.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as discovery, policy::v1 as policy, resource::v1 as resource,
    storage::v1 as storage,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{
    ClusterResourceScope, Metadata, NamespaceResourceScope, Resource, ResourceScope,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::dynamic_kind::{DynamicKind, PartialObjectMetadata};
use crate::elastic_quota::ElasticQuota;
use crate::pod_group::PodGroup;

/// A typed object of a built-in kind.
pub trait Typed:
    Metadata<Ty = ObjectMeta>
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
}

/// Group, version, kind and resource of a kind.
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
    ($($kind:ident $type:ty $(, index $index:expr)?;)*) => {
        /// A kind of object.
        #[expect(missing_docs, reason = "the names are Kubernetes'")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($kind,)*
            /// A kind that is not built in.
            Other(DynamicKind),
        }

        impl Kind {
            /// All built-in kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Its group, version, kind and resource.
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
            /// The metadata of an object of a kind that is not built in.
            Other(Arc<PartialObjectMetadata>),
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

            /// A second key, by which [`Store::by_index_key`](crate::Store::by_index_key) finds it.
            pub fn index_key(&self) -> Option<&str> {
                match self {
                    $($(Object::$kind(object) => {
                        let index: fn(&$type) -> Option<&str> = $index;
                        index(object)
                    })?)*
                    _ => None,
                }
            }

            /// In JSON, with its apiVersion and kind; only the metadata for a kind that is not built in.
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
                    Kind::Other(_) => Object::Other(Arc::new(PartialObjectMetadata::from_json(kind, value)?)),
                })
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
    Namespace core::Namespace;
    Node core::Node;
    Pod core::Pod, index |pod| pod.spec.as_ref()?.node_name.as_deref();
    ServiceAccount core::ServiceAccount;
    ConfigMap core::ConfigMap;
    Event core::Event;
    ReplicationController core::ReplicationController;
    PersistentVolume core::PersistentVolume,
        index |volume| volume.spec.as_ref()?.claim_ref.as_ref()?.name.as_deref();
    PersistentVolumeClaim core::PersistentVolumeClaim,
        index |claim| claim.spec.as_ref()?.volume_name.as_deref();
    Service core::Service;
    EndpointSlice discovery::EndpointSlice;
    ResourceQuota core::ResourceQuota;
    ResourceClaim resource::ResourceClaim;
    Deployment apps::Deployment;
    ReplicaSet apps::ReplicaSet;
    StatefulSet apps::StatefulSet;
    DaemonSet apps::DaemonSet;
    ControllerRevision apps::ControllerRevision;
    Job batch::Job;
    CronJob batch::CronJob;
    PodDisruptionBudget policy::PodDisruptionBudget;
    Lease coordination::Lease;
    StorageClass storage::StorageClass;
    VolumeAttributesClass storage::VolumeAttributesClass;
    CSIDriver storage::CSIDriver;
    CSINode storage::CSINode;
    CSIStorageCapacity storage::CSIStorageCapacity;
    VolumeAttachment storage::VolumeAttachment,
        index |attachment| Some(&attachment.spec.node_name);
    PodGroup PodGroup;
    ElasticQuota ElasticQuota;
}

impl Kind {
    /// The kind with this apiVersion and kind, as owner references and manifests write it.
    pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|it| {
            let info = it.info();
            info.kind == kind && info.api_version == api_version
        })
    }

    /// The URL path of all its objects, or of those in a namespace if one is given.
    pub fn api_path(self, namespace: &str) -> String {
        let KindInfo { api_version, group, resource, .. } = self.info();
        let root = if group.is_empty() { "api" } else { "apis" };
        match namespace {
            "" => format!("/{root}/{api_version}/{resource}"),
            namespace => format!("/{root}/{api_version}/namespaces/{namespace}/{resource}"),
        }
    }
}

/// The key of an object: kind, namespace (empty for cluster-scoped kinds) and name. Cheap to clone.
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

    /// The key of an object.
    pub fn from_object<K: Typed>(object: &K) -> Key {
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
    /// Its key.
    pub fn key(&self) -> Key {
        let ObjectMeta { namespace, name, .. } = self.metadata();
        let (namespace, name) = (namespace.as_deref(), name.as_deref());
        Key::new(self.kind(), namespace.unwrap_or(""), name.unwrap_or(""))
    }

    /// Its resourceVersion as a number; 0 for an object that was never stored.
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
    use crate::cache::Cache;

    #[test]
    fn paths() {
        assert_eq!(Kind::Pod.api_path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(Kind::Node.api_path(""), "/api/v1/nodes");
        assert_eq!(Kind::CronJob.api_path(""), "/apis/batch/v1/cronjobs");
        let foos = Kind::dynamic(("example.com", "v1"), ("Foo", "foos"), true);
        assert_eq!(foos.api_path("a"), "/apis/example.com/v1/namespaces/a/foos");
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
    fn objects_have_keys_and_versions() {
        let json = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "a", "name": "b", "resourceVersion": "7"}});
        let object = Object::from_json(Kind::Pod, json.clone()).unwrap();
        assert_eq!(object.key().to_string(), "Pod a/b");
        assert_eq!(object.version(), 7);
        assert_eq!(object.to_json().unwrap(), json);
        assert!(Object::from_json(Kind::Node, json).is_err());
    }

    #[test]
    fn dynamic_kinds_contain_only_metadata() {
        let foos = Kind::dynamic(("example.com", "v1"), ("Foo", "foos"), true);
        let mut json = json!({"apiVersion": "example.com/v1", "kind": "Foo", "spec": {"a": 1},
            "metadata": {"namespace": "a", "name": "b", "resourceVersion": "7"}});
        let object = Object::from_json(foos, json.clone()).unwrap();
        assert_eq!(object.key().to_string(), "Foo a/b");
        json.as_object_mut().unwrap().remove("spec");
        assert_eq!(object.to_json().unwrap(), json);
        let mut cache = Cache::default();
        assert_eq!((cache.object(&object.key()), cache.version(foos)), (None, 0));
        assert_eq!(cache.upsert(&object), None);
        assert_eq!((cache.objects(foos).count(), cache.version(foos)), (1, 7));
        assert_eq!(["a", "b"].map(|place| cache.objects_in(foos, place).count()), [1, 0]);
        assert_eq!(cache.owned(foos, "u").count(), 0);
        assert_eq!(cache.remove(&object.key()), Some(object));
    }
}
