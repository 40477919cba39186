//! Kubernetes objects as a scheduler keeps them: only the fields that are read, with their upstream names.
//!
//! Three ways in: JSON and YAML through serde ([`snapshot`]), protobuf through [`proto`]. Nothing here
//! applies defaults of the API server unless its documentation says so.

pub mod document;
pub mod extra;
mod go;
pub mod meta;
pub mod names;
pub mod node;
pub mod pod;
pub mod proto;
pub mod quantity;
pub mod quota;
pub mod raw;
pub mod selector;
pub mod snapshot;
mod sorted;
pub mod text;
pub mod workload;

pub use extra::{Extra, Needs, Parts};
pub use meta::{Labels, ObjectMeta, OwnerReference, Timestamp};
pub use node::{ContainerImage, Node, NodeSpec, NodeStatus, Taint};
pub use pod::{
    Affinity, Container, ContainerPort, ContainerResources, Pod, PodAffinity, PodAffinityTerm,
    PodSpec, PodStatus, Toleration, TopologySpreadConstraint, Volume, WeightedPodAffinityTerm,
};
pub use quantity::Quantity;
pub use raw::{Encoding, Raw};
pub use selector::{LabelSelector, NodeSelector, NodeSelectorTerm, Selector};
pub use text::Str;
pub use workload::{
    Deployment, Job, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet,
    ReplicationController, Service, StatefulSet,
};

/// Amounts by resource name, sorted by name.
pub type ResourceList = meta::Sorted<Quantity>;
