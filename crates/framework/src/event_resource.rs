//! The kinds of objects that cluster events are about.

use loadmaster_api::Str;

/// The kind of object that an event is about (upstream's `EventResource`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventResource {
    /// Any pod; used in registrations, matches the next two.
    Pod,
    /// A pod that is assigned to a node.
    AssignedPod,
    /// A pending pod.
    UnschedulablePod,
    /// A node.
    Node,
    /// A PersistentVolume.
    PersistentVolume,
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim,
    /// The CSI drivers of a node and their limits.
    CsiNode,
    /// A CSI driver.
    CsiDriver,
    /// The attachment of a volume to a node.
    VolumeAttachment,
    /// The available capacity of a storage class in a topology segment.
    CsiStorageCapacity,
    /// A storage class.
    StorageClass,
    /// A ResourceClaim (dynamic resource allocation).
    ResourceClaim,
    /// A ResourceSlice (dynamic resource allocation).
    ResourceSlice,
    /// A DeviceClass (dynamic resource allocation).
    DeviceClass,
    /// A group of pods that are scheduled together.
    PodGroup,
    /// Any other kind, as `<plural>.<version>.<group>`.
    Other(Str),
    /// All kinds of objects.
    WildCard,
}

impl EventResource {
    /// Upstream's name.
    pub fn name(&self) -> &str {
        match self {
            EventResource::Pod => "Pod",
            EventResource::AssignedPod => "AssignedPod",
            EventResource::UnschedulablePod => "UnschedulablePod",
            EventResource::Node => "Node",
            EventResource::PersistentVolume => "PersistentVolume",
            EventResource::PersistentVolumeClaim => "PersistentVolumeClaim",
            EventResource::CsiNode => "storage.k8s.io/CSINode",
            EventResource::CsiDriver => "storage.k8s.io/CSIDriver",
            EventResource::VolumeAttachment => "storage.k8s.io/VolumeAttachment",
            EventResource::CsiStorageCapacity => "storage.k8s.io/CSIStorageCapacity",
            EventResource::StorageClass => "storage.k8s.io/StorageClass",
            EventResource::ResourceClaim => "resource.k8s.io/ResourceClaim",
            EventResource::ResourceSlice => "resource.k8s.io/ResourceSlice",
            EventResource::DeviceClass => "resource.k8s.io/DeviceClass",
            EventResource::PodGroup => "scheduling.k8s.io/PodGroup",
            EventResource::Other(name) => name,
            EventResource::WildCard => "*",
        }
    }
}
