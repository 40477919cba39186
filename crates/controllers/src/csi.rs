//! Simulated CSI drivers: volumes are provisioned, attached and deleted as by the sidecars of a driver, without storage.
//!
//! | controller | upstream | what it does |
//! | --- | --- | --- |
//! | [`CsiNodeController`](crate::kubelet::CsiNodeController) | kubelet, node-driver-registrar | CSINodes of simulated nodes |
//! | `VolumeProvisioner` | external-provisioner | PersistentVolumes of claims, CSIStorageCapacities |
//! | `VolumeAttachmentController` | attach-detach controller, external-attacher | VolumeAttachments of pods on nodes |
//!
//! Every provisioner that a StorageClass names is simulated. One driver, [`CsiDriver`], has CSINodes, topology and limited capacity in addition.

mod attachment;
mod capacity;
mod provisioner;
#[cfg(test)]
mod tests;
mod topology;

pub(crate) use attachment::VolumeAttachmentController;
pub(crate) use provisioner::VolumeProvisioner;

/// A simulated CSI driver with topology, capacity and a limit of volumes per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// Its name: the `provisioner` of StorageClasses.
    pub name: String,
    /// The node label whose values are its topology segments: a volume is accessible from the nodes of one segment. It is accessible from all
    /// nodes if it is provisioned for a node without this label.
    pub topology_key: String,
    /// The number of volumes that can be attached to a node: `allocatable.count` of its CSINode.
    pub n_volumes_max: i32,
    /// The capacity of each topology segment, in bytes.
    pub segment_bytes: i64,
}

impl Default for CsiDriver {
    fn default() -> CsiDriver {
        CsiDriver {
            name: "disk.csi.loadmaster.io".to_owned(),
            topology_key: "topology.kubernetes.io/zone".to_owned(),
            n_volumes_max: 24,
            segment_bytes: 64 << 40,
        }
    }
}
