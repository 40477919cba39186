//! The volumes of a pod that count against a limit.

use std::sync::Arc;

use loadmaster_api::{DiskSource, PersistentVolume, PersistentVolumeClaim, Str, Volume};
use loadmaster_framework::{ClaimName, Failure, PodInfo, Rejection};

use super::View;
use crate::csi_migration::{self, CsiVolume};
use crate::volumes::{self, NotFound};

/// A volume of a CSI driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CountedVolume {
    pub driver: Str,
    /// In a key, `None` for a volume that is attached to no node.
    pub handle: Option<Handle>,
    /// It was translated from an in-tree volume: it counts only on nodes with a CSINode.
    pub is_translated: bool,
}

/// What distinguishes the volumes of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Handle {
    /// The handle in a PersistentVolume.
    Volume(Str),
    /// The volume that will be provisioned for a claim.
    Claim { namespace: Str, name: Str },
}

/// Why a volume cannot be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeError {
    /// A claim without a name.
    NoClaimName,
    /// The claim does not exist.
    ClaimNotFound(Str),
    /// The claim of an ephemeral volume belongs to another pod; upstream's text.
    NotOwner(String),
    /// A disk that the pod names cannot be translated; upstream's text.
    Translation(String),
}

pub(super) type PodVolume = Result<CountedVolume, VolumeError>;

impl VolumeError {
    /// The result of Filter for a pod to schedule with such a volume.
    pub fn rejection(&self, pod: &PodInfo) -> Rejection {
        match self {
            VolumeError::ClaimNotFound(name) => {
                let error = NotFound { resource: "persistentvolumeclaim", name };
                let namespace = &pod.template.namespace;
                Rejection::unresolvable(format!("looking up PVC {namespace}/{name}: {error}"))
            }
            VolumeError::NoClaimName => Failure::new("PersistentVolumeClaim had no name").into(),
            VolumeError::NotOwner(text) | VolumeError::Translation(text) => {
                Failure::new(text.clone()).into()
            }
        }
    }
}

/// Whether a volume of the pod may count.
pub(super) fn has_any(pod: &PodInfo) -> bool {
    pod.template.spec.volumes.iter().any(may_count)
}

/// Whether the volume has a claim, or is a disk that a CSI driver may serve.
pub(super) fn may_count(volume: &Volume) -> bool {
    let is_translatable =
        || volume.disk.as_deref().and_then(csi_migration::in_tree_plugin).is_some();
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || is_translatable()
}

impl View<'_> {
    /// The volumes of a pod, up to the first that ends its evaluation.
    pub fn volumes(&self, pod: &PodInfo) -> Arc<[PodVolume]> {
        let mut all = Vec::new();
        for volume in &pod.template.spec.volumes {
            let counted = self.volume(pod, volume);
            let is_end =
                matches!(&counted, Err(error) if !matches!(error, VolumeError::Translation(_)));
            all.extend(counted.transpose());
            if is_end {
                break;
            }
        }
        all.into()
    }

    /// What counts for a volume of a pod.
    pub fn volume(
        &self,
        pod: &PodInfo,
        volume: &Volume,
    ) -> Result<Option<CountedVolume>, VolumeError> {
        let Some(ClaimName { name, is_ephemeral }) = pod.claim_name(volume) else {
            return translated_disk(volume);
        };
        if name.is_empty() {
            return Err(VolumeError::NoClaimName);
        }
        let claims = self.world.watched_objects().lister(&self.slots.claims);
        let Some(claim) = claims.get(&pod.template.namespace, &name) else {
            return Err(VolumeError::ClaimNotFound(name));
        };
        if is_ephemeral {
            volumes::check_is_for_pod(pod, claim).map_err(VolumeError::NotOwner)?;
        }
        Ok(self.volume_of_claim(claim))
    }

    /// The volume that a claim is bound to, or the one that its class provisions.
    pub fn volume_of_claim(&self, claim: &PersistentVolumeClaim) -> Option<CountedVolume> {
        let name = &claim.spec.volume_name;
        let volumes = self.world.watched_objects().lister(&self.slots.volumes);
        match volumes.get("", name).filter(|_| !name.is_empty()) {
            Some(volume) => counted_volume(volume),
            None => self.volume_of_class(claim),
        }
    }

    fn volume_of_class(&self, claim: &PersistentVolumeClaim) -> Option<CountedVolume> {
        let class = claim.class();
        let classes = self.world.watched_objects().lister(&self.slots.classes);
        let provisioner = &classes.get("", class).filter(|_| !class.is_empty())?.provisioner;
        let (driver, is_translated) = match csi_migration::driver_of_in_tree_plugin(provisioner) {
            None => (provisioner.clone(), false),
            Some(driver) if csi_migration::is_migrated_plugin(provisioner) => (driver.into(), true),
            Some(_) => return None,
        };
        let (namespace, name) = (claim.metadata.namespace.clone(), claim.metadata.name.clone());
        let handle = Some(Handle::Claim { namespace, name });
        (!driver.is_empty()).then_some(CountedVolume { driver, handle, is_translated })
    }
}

/// The CSI volume of a PersistentVolume; `None` for volumes that do not count.
pub(super) fn counted_volume(volume: &PersistentVolume) -> Option<CountedVolume> {
    let disk = volume.spec.disk.as_deref()?;
    let (driver, handle, is_translated) = match disk {
        DiskSource::Csi(csi) => (csi.driver.clone(), csi.volume_handle.clone(), false),
        disk => {
            let CsiVolume { driver, handle } =
                csi_migration::csi_volume(disk, Some(&volume.metadata.labels)).ok()??;
            (driver.into(), handle.into(), true)
        }
    };
    if driver.is_empty() || handle.is_empty() {
        return None;
    }
    Some(CountedVolume { driver, handle: Some(Handle::Volume(handle)), is_translated })
}

/// The CSI volume of a disk that a pod names.
fn translated_disk(volume: &Volume) -> Result<Option<CountedVolume>, VolumeError> {
    let Some(disk) = volume.disk.as_deref() else { return Ok(None) };
    let translated = csi_migration::csi_volume(disk, None).map_err(|why| {
        let name = &volume.name;
        VolumeError::Translation(format!("converting volume({name}) from inline to csi: {why}"))
    })?;
    Ok(translated.map(|CsiVolume { driver, handle }| CountedVolume {
        driver: driver.into(),
        handle: Some(Handle::Volume(handle.into())),
        is_translated: true,
    }))
}
