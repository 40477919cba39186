//! The disks that a pod's volume or a PersistentVolume names itself, of the kinds that some volume plugin reads.

use serde::{Deserialize, Serialize};

use crate::go_json::{list, nullable};
use crate::interned_str::Str;

/// A disk, identified as far as the volume plugins need it. Valid objects name exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskSource {
    GcePersistentDisk(GcePersistentDisk),
    AwsElasticBlockStore(VolumeId),
    AzureDisk(AzureDisk),
    AzureFile(AzureFile),
    Cinder(VolumeId),
    VsphereVolume(VsphereVolume),
    PortworxVolume(VolumeId),
    Iscsi(Iscsi),
    Rbd(Rbd),
    /// In a pod, a volume that exists only as long as the pod, and has no handle.
    Csi(Csi),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GcePersistentDisk {
    #[serde(deserialize_with = "nullable")]
    pub pd_name: Str,
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
}

/// AWS EBS, Cinder, Portworx.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default)]
pub struct VolumeId {
    #[serde(rename = "volumeID", deserialize_with = "nullable")]
    pub volume_id: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default)]
pub struct AzureDisk {
    #[serde(rename = "diskURI", deserialize_with = "nullable")]
    pub disk_uri: Str,
    /// `Shared` when absent in what is sent to the API server, which sets it.
    pub kind: Option<Str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AzureFile {
    #[serde(deserialize_with = "nullable")]
    pub share_name: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VsphereVolume {
    #[serde(deserialize_with = "nullable")]
    pub volume_path: Str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Iscsi {
    #[serde(deserialize_with = "nullable")]
    pub iqn: Str,
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rbd {
    #[serde(deserialize_with = "list")]
    pub monitors: Vec<Str>,
    /// `rbd` when absent in what is sent to the API server, which sets it.
    #[serde(deserialize_with = "nullable")]
    pub pool: Str,
    #[serde(deserialize_with = "nullable")]
    pub image: Str,
    #[serde(deserialize_with = "nullable")]
    pub read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Csi {
    #[serde(deserialize_with = "nullable")]
    pub driver: Str,
    #[serde(deserialize_with = "nullable")]
    pub volume_handle: Str,
}

/// Defines a struct with these fields beside one for each kind of disk, and `take_disk`, which takes the disk out of it. (With
/// `serde(flatten)` every field of a volume that is not read would be copied, and errors would not say where they are.)
macro_rules! struct_with_disk_fields {
    ($(#[$attribute:meta])* struct $name:ident { $($fields:tt)* }) => {
        $(#[$attribute])*
        #[derive(Default, serde::Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct $name {
            $($fields)*
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            gce_persistent_disk: Option<crate::disk_source::GcePersistentDisk>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            aws_elastic_block_store: Option<crate::disk_source::VolumeId>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            azure_disk: Option<crate::disk_source::AzureDisk>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            azure_file: Option<crate::disk_source::AzureFile>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            cinder: Option<crate::disk_source::VolumeId>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            vsphere_volume: Option<crate::disk_source::VsphereVolume>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            portworx_volume: Option<crate::disk_source::VolumeId>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            iscsi: Option<crate::disk_source::Iscsi>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            rbd: Option<crate::disk_source::Rbd>,
            #[serde(deserialize_with = "crate::go_json::optional_object")]
            csi: Option<crate::disk_source::Csi>,
        }

        impl $name {
            fn take_disk(&mut self) -> Option<Box<crate::disk_source::DiskSource>> {
                use crate::disk_source::DiskSource::{
                    AwsElasticBlockStore, AzureDisk, AzureFile, Cinder, Csi, GcePersistentDisk, Iscsi,
                    PortworxVolume, Rbd, VsphereVolume,
                };
                let taken = self.gce_persistent_disk.take().map(GcePersistentDisk);
                let taken = taken.or_else(|| self.aws_elastic_block_store.take().map(AwsElasticBlockStore));
                let taken = taken.or_else(|| self.azure_disk.take().map(AzureDisk));
                let taken = taken.or_else(|| self.azure_file.take().map(AzureFile));
                let taken = taken.or_else(|| self.cinder.take().map(Cinder));
                let taken = taken.or_else(|| self.vsphere_volume.take().map(VsphereVolume));
                let taken = taken.or_else(|| self.portworx_volume.take().map(PortworxVolume));
                let taken = taken.or_else(|| self.iscsi.take().map(Iscsi));
                let taken = taken.or_else(|| self.rbd.take().map(Rbd));
                taken.or_else(|| self.csi.take().map(Csi)).map(Box::new)
            }
        }
    };
}

pub(crate) use struct_with_disk_fields;
