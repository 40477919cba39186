//! The kinds around volumes: the fields that the volume plugins read.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::ResourceList;
use crate::disk_source::{DiskSource, struct_with_disk_fields};
use crate::go_json::{list, nullable, object, objects, optional_object};
use crate::interned_str::Str;
use crate::meta::{Labels, OwnerReference, Timestamp};
use crate::quantity::Quantity;
use crate::selector::{LabelSelector, NodeSelector};

/// Older than `spec.storageClassName`, and read first: the class of a claim or a volume.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Of a claim: its binding is complete. The value does not matter.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Of a volume: it was not bound to its claim by the user. The value does not matter.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Of a claim: the node that the scheduler selected, for which a volume is to be provisioned.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Of a claim: who is to provision a volume for it. Read only to know whether a claim has annotations at all.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Of a CSINode: the in-tree volume plugins, separated by commas, whose volumes a CSI driver serves on this node.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// The annotations that are read; the others are not stored.
const READ_ANNOTATIONS: [&str; 6] = [
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    MIGRATED_PLUGINS,
    BETA_STORAGE_CLASS,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
];

/// `metadata`, with the annotations that are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageMeta {
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    #[serde(deserialize_with = "nullable")]
    pub namespace: Str,
    #[serde(deserialize_with = "nullable")]
    pub uid: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub resource_version: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    #[serde(deserialize_with = "read_annotations")]
    pub annotations: Labels,
    pub deletion_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "objects")]
    pub owner_references: Vec<OwnerReference>,
}

/// A piece of storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "object")]
    pub spec: PersistentVolumeSpec,
    #[serde(deserialize_with = "object")]
    pub status: PhaseStatus,
}

impl PersistentVolume {
    /// Its class (upstream's `GetPersistentVolumeClass`); empty if it has none.
    pub fn class(&self) -> &Str {
        let annotation = self.metadata.annotations.get(BETA_STORAGE_CLASS);
        annotation.unwrap_or(&self.spec.storage_class_name)
    }

    /// Its capacity; zero if it has none.
    pub fn capacity(&self) -> Quantity {
        self.spec.capacity.get("storage").copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "PersistentVolumeFields")]
pub struct PersistentVolumeSpec {
    pub capacity: ResourceList,
    pub access_modes: Vec<Str>,
    pub claim_ref: Option<Box<ClaimReference>>,
    pub storage_class_name: Str,
    /// `Filesystem` when absent.
    pub volume_mode: Option<Str>,
    pub volume_attributes_class_name: Option<Str>,
    /// `nodeAffinity.required`.
    pub required_node_affinity: Option<Box<NodeSelector>>,
    /// `None` for sources that no plugin reads.
    pub disk: Option<Box<DiskSource>>,
}

struct_with_disk_fields! {
    /// [`PersistentVolumeSpec`] as it is written.
    struct PersistentVolumeFields {
        #[serde(deserialize_with = "nullable")]
        capacity: ResourceList,
        #[serde(deserialize_with = "list")]
        access_modes: Vec<Str>,
        #[serde(deserialize_with = "optional_object")]
        claim_ref: Option<Box<ClaimReference>>,
        #[serde(deserialize_with = "nullable")]
        storage_class_name: Str,
        volume_mode: Option<Str>,
        volume_attributes_class_name: Option<Str>,
        #[serde(deserialize_with = "object")]
        node_affinity: VolumeNodeAffinity,
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeNodeAffinity {
    #[serde(deserialize_with = "optional_object")]
    required: Option<Box<NodeSelector>>,
}

impl From<PersistentVolumeFields> for PersistentVolumeSpec {
    fn from(mut fields: PersistentVolumeFields) -> Self {
        PersistentVolumeSpec {
            disk: fields.take_disk(),
            capacity: fields.capacity,
            access_modes: fields.access_modes,
            claim_ref: fields.claim_ref,
            storage_class_name: fields.storage_class_name,
            volume_mode: fields.volume_mode,
            volume_attributes_class_name: fields.volume_attributes_class_name,
            required_node_affinity: fields.node_affinity.required,
        }
    }
}

/// The claim to which a volume is bound, or for which it is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimReference {
    #[serde(deserialize_with = "nullable")]
    pub namespace: Str,
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    /// Empty while the volume is only reserved.
    #[serde(deserialize_with = "nullable")]
    pub uid: Box<str>,
}

/// A status of which only the phase is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PhaseStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: Str,
}

/// A request for storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "object")]
    pub spec: PersistentVolumeClaimSpec,
    #[serde(deserialize_with = "object")]
    pub status: PhaseStatus,
}

impl PersistentVolumeClaim {
    /// Its class (upstream's `GetPersistentVolumeClaimClass`); empty if it has none.
    pub fn class(&self) -> &str {
        let annotation = self.metadata.annotations.get(BETA_STORAGE_CLASS);
        annotation.or(self.spec.storage_class_name.as_ref()).map_or("", Str::as_str)
    }

    /// The requested size, if one is requested.
    pub fn request(&self) -> Option<Quantity> {
        self.spec.resources.requests.get("storage").copied()
    }

    /// Whether it is bound and the binding is complete (upstream's `isPVCFullyBound`).
    pub fn is_fully_bound(&self) -> bool {
        !self.spec.volume_name.is_empty() && self.metadata.annotations.contains_key(BIND_COMPLETED)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeClaimSpec {
    #[serde(deserialize_with = "list")]
    pub access_modes: Vec<Str>,
    #[serde(deserialize_with = "optional_object")]
    pub selector: Option<Box<LabelSelector>>,
    #[serde(deserialize_with = "object")]
    pub resources: ClaimResources,
    /// The volume that it is bound to, or that the user wants.
    #[serde(deserialize_with = "nullable")]
    pub volume_name: Str,
    pub storage_class_name: Option<Str>,
    /// `Filesystem` when absent.
    pub volume_mode: Option<Str>,
    pub volume_attributes_class_name: Option<Str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    #[serde(deserialize_with = "nullable")]
    pub requests: ResourceList,
}

/// How volumes are provisioned and bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageClass {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "nullable")]
    pub provisioner: Str,
    /// `Immediate` or `WaitForFirstConsumer`; the API server sets it.
    pub volume_binding_mode: Option<Str>,
    /// Terms of which a node must match one; without terms, every node does.
    #[serde(deserialize_with = "objects")]
    pub allowed_topologies: Vec<TopologySelectorTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopologySelectorTerm {
    #[serde(deserialize_with = "objects")]
    pub match_label_expressions: Vec<TopologySelectorRequirement>,
}

/// A label that must have one of these values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct TopologySelectorRequirement {
    #[serde(deserialize_with = "nullable")]
    pub key: Str,
    #[serde(deserialize_with = "list")]
    pub values: Vec<Str>,
}

/// The CSI drivers on a node, with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "object")]
    pub spec: CsiNodeSpec,
}

impl CsiNode {
    /// Whether a CSI driver serves the volumes of an in-tree volume plugin on this node.
    pub fn is_migrated(&self, in_tree_plugin: &str) -> bool {
        let migrated = self.metadata.annotations.get(MIGRATED_PLUGINS);
        migrated.is_some_and(|names| names.split(',').any(|name| name == in_tree_plugin))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    #[serde(deserialize_with = "objects")]
    pub drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriver {
    #[serde(deserialize_with = "nullable")]
    pub name: Str,
    #[serde(deserialize_with = "object")]
    pub allocatable: VolumeNodeResources,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeNodeResources {
    /// How many volumes of the driver can be attached to the node; no limit when absent.
    pub count: Option<i32>,
}

/// What a CSI driver can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "object")]
    pub spec: CsiDriverSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiDriverSpec {
    /// Whether the driver publishes CSIStorageCapacity objects, which must then be respected.
    #[serde(deserialize_with = "nullable")]
    pub storage_capacity: bool,
    /// Whether pods with volumes of the driver must not be placed on a node without it (gate VolumeLimitScaling).
    #[serde(deserialize_with = "nullable")]
    pub prevent_pod_scheduling_if_missing: bool,
}

/// How much storage of a class is left for new volumes in one part of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiStorageCapacity {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    /// The nodes that have access; none when absent.
    #[serde(deserialize_with = "optional_object")]
    pub node_topology: Option<Box<LabelSelector>>,
    #[serde(deserialize_with = "nullable")]
    pub storage_class_name: Str,
    pub capacity: Option<Quantity>,
    pub maximum_volume_size: Option<Quantity>,
}

impl CsiStorageCapacity {
    /// The size of the largest volume that can be created, if it is known (upstream's `volumeLimit`).
    pub fn volume_limit(&self) -> Option<Quantity> {
        self.maximum_volume_size.or(self.capacity)
    }
}

/// A volume that is, or is to be, attached to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    #[serde(deserialize_with = "object")]
    pub metadata: StorageMeta,
    #[serde(deserialize_with = "object")]
    pub spec: VolumeAttachmentSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeAttachmentSpec {
    /// The CSI driver.
    #[serde(deserialize_with = "nullable")]
    pub attacher: Str,
    #[serde(deserialize_with = "nullable")]
    pub node_name: Str,
    #[serde(deserialize_with = "object")]
    pub source: VolumeAttachmentSource,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeAttachmentSource {
    pub persistent_volume_name: Option<Str>,
}

/// Reads the annotations that are stored, and passes over the others without copying them.
fn read_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
    struct ReadAnnotations;
    impl<'de> Visitor<'de> for ReadAnnotations {
        type Value = Labels;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_none<E>(self) -> Result<Labels, E> {
            Ok(Labels::default())
        }

        fn visit_unit<E>(self) -> Result<Labels, E> {
            Ok(Labels::default())
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Labels, D::Error> {
            deserializer.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Labels, A::Error> {
            let mut read = Vec::new();
            while let Some(key) = entries.next_key::<std::borrow::Cow<'_, str>>()? {
                if READ_ANNOTATIONS.contains(&&*key) {
                    let value = entries.next_value::<Option<Str>>()?.unwrap_or_default();
                    read.push((Str::new(&key), value));
                } else {
                    entries.next_value::<serde::de::IgnoredAny>()?;
                }
            }
            Ok(read.into_iter().collect())
        }
    }
    deserializer.deserialize_option(ReadAnnotations)
}

#[cfg(test)]
mod tests;
