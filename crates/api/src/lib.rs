//! Kubernetes objects as a scheduler keeps them: only the fields that are read, with their upstream names.
//!
//! Three ways in: JSON and YAML through serde ([`snapshot`]), protobuf through [`proto`]. Nothing here
//! applies defaults of the API server unless its documentation says so.

pub mod disk_source;
pub mod document;
pub mod extra_fields;
mod go_json;
pub mod interned_str;
pub mod meta;
pub mod node;
pub mod pod;
pub mod pod_spec;
pub mod proto;
pub mod quantity;
pub mod quota;
pub mod raw_object;
pub mod resource_names;
pub mod selector;
pub mod snapshot;
mod sorted_map;
pub mod storage;
pub mod workload;

pub use disk_source::DiskSource;
pub use extra_fields::{ExtraFieldSelection, ExtraFields, ExtraFieldsByKind};
pub use interned_str::Str;
pub use meta::{Labels, ObjectMeta, OptionalTimestamp, OwnerReference, Timestamp};
pub use node::{ContainerImage, Node, NodeSpec, NodeStatus, Taint};
pub use pod::{
    Affinity, Container, ContainerPort, ContainerResources, Pod, PodAffinity, PodAffinityTerm,
    PodStatus, Toleration, TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
pub use pod_spec::{InternedPodSpec, PodSpec, SharedPodSpec, SpecWithoutResources};
pub use quantity::Quantity;
pub use raw_object::{Encoding, RawObject};
pub use selector::{LabelSelector, NodeSelector, NodeSelectorTerm, Selector};
pub use storage::{
    CsiDriver, CsiNode, CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment,
};
pub use workload::{
    Deployment, Job, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet,
    ReplicationController, Service, StatefulSet,
};

/// Amounts by resource name, sorted by name.
pub type ResourceList = meta::SortedMap<Quantity>;
