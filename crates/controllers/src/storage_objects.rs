//! What several controllers read of claims and volumes.

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use loadmaster_api::Quantity as Size;

use crate::meta::annotation_value;
use crate::result_builder::omit_empty;

/// The annotation in which the scheduler selects the node of a claim that waits for its first consumer.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation with the provisioner of a provisioned volume.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The annotation that requests a volume for a claim from this provisioner.
pub(crate) const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The volumes of a pod.
pub(crate) fn volumes_of(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// The name of the claim of a volume: one that is named, or one that is made for the pod.
pub(crate) fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.metadata.name.as_deref()?, volume.name)),
        (None, None) => None,
    }
}

/// The volume that a claim names.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The claim that a volume is for.
pub(crate) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// A volume's `claimRef` for a claim.
pub(crate) fn reference_to(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: omit_empty("v1"),
        kind: omit_empty("PersistentVolumeClaim"),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// The storage class that a claim asks for; empty for none.
pub(crate) fn storage_class_of(claim: &PersistentVolumeClaim) -> &str {
    let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation_value(&claim.metadata, CLASS).or(named).unwrap_or_default()
}

/// The storage class of a volume; empty for none.
pub(crate) fn storage_class_of_volume(volume: &PersistentVolume) -> &str {
    let named = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation_value(&volume.metadata, CLASS).or(named).unwrap_or_default()
}

/// The size that a claim requests, in bytes.
pub(crate) fn requested_bytes(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    bytes(requests.and_then(|all| all.get("storage")))
}

/// The size of a volume, in bytes.
pub(crate) fn volume_bytes(volume: &PersistentVolume) -> i64 {
    bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage")))
}

fn bytes(size: Option<&Quantity>) -> i64 {
    size.and_then(|size| Size::parse(&size.0).ok()).map_or(0, |size| size.value())
}
