//! What several volume plugins share: the kinds that they watch, and the claims of a pod.

use std::fmt;

use loadmaster_api::storage::StorageMeta;
use loadmaster_api::{CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass, Str, Volume};
use loadmaster_framework::extension_points::SignFragment;
use loadmaster_framework::watched_objects::ObjectLister;
use loadmaster_framework::{
    ExtensionPoints, Gvr, ObjectSlot, PodInfo, PodTemplate, WatchRequirement,
};
use serde::de::DeserializeOwned;
use serde_json::json;

pub(crate) const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";

/// A kind around volumes.
#[derive(Clone, Copy, Debug)]
pub enum StorageKind {
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    VolumeAttachment,
}

impl StorageKind {
    /// Group, version and resource.
    pub fn gvr(self) -> Gvr {
        let (group, resource) = match self {
            StorageKind::PersistentVolumeClaim => ("", "persistentvolumeclaims"),
            StorageKind::PersistentVolume => ("", "persistentvolumes"),
            StorageKind::StorageClass => ("storage.k8s.io", "storageclasses"),
            StorageKind::CsiNode => ("storage.k8s.io", "csinodes"),
            StorageKind::CsiDriver => ("storage.k8s.io", "csidrivers"),
            StorageKind::CsiStorageCapacity => ("storage.k8s.io", "csistoragecapacities"),
            StorageKind::VolumeAttachment => ("storage.k8s.io", "volumeattachments"),
        };
        Gvr::new(group, "v1", resource)
    }

    /// Watches the kind for keys and for extension points that are not incremental. As upstream's informers, the initial list is waited
    /// for.
    pub(crate) fn watch_in_keys<T>(self, points: &mut ExtensionPoints) -> ObjectSlot<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        points.watch_in_keys(self.gvr(), WatchRequirement::Required)
    }
}

/// Watches claims, volumes and classes for keys. Not generic, so that the decoders of these objects are compiled in this crate only.
pub fn watch_volumes(
    points: &mut ExtensionPoints,
) -> (ObjectSlot<PersistentVolumeClaim>, ObjectSlot<PersistentVolume>, ObjectSlot<StorageClass>) {
    (
        StorageKind::PersistentVolumeClaim.watch_in_keys(points),
        StorageKind::PersistentVolume.watch_in_keys(points),
        StorageKind::StorageClass.watch_in_keys(points),
    )
}

/// Watches CSINodes. Each concerns the node of its name.
pub fn watch_csi_nodes(points: &mut ExtensionPoints) -> ObjectSlot<CsiNode> {
    let nodes = |node: &CsiNode| vec![node.metadata.name.clone()];
    points.watch_per_node(StorageKind::CsiNode.gvr(), WatchRequirement::Required, nodes)
}

/// The claims that a pod's volumes name, in order; not those of ephemeral volumes.
pub(crate) fn named_claims(pod: &PodTemplate) -> impl Iterator<Item = &Str> {
    let claims = pod.spec.volumes.iter().filter_map(|it| it.persistent_volume_claim.as_ref());
    claims.map(|claim| &claim.claim_name)
}

/// Whether a volume of the pod names this claim.
pub(crate) fn names_claim(pod: &PodTemplate, claim: &PersistentVolumeClaim) -> bool {
    pod.namespace == claim.metadata.namespace
        && named_claims(pod).any(|name| *name == claim.metadata.name)
}

/// The same for an ephemeral volume, too.
pub(crate) fn uses_claim(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    pod.template.namespace == claim.metadata.namespace
        && pod.claim_names().any(|used| used.name == claim.metadata.name)
}

/// The part of the pod's signature about its volumes, which all volume plugins sign with (upstream's `VolumesSigner`): the sources of the
/// volumes that decide where the pod can go, as JSON.
pub(crate) fn volumes_fragment(pod: &PodInfo) -> SignFragment {
    let mut sources: Vec<String> = pod.template.spec.volumes.iter().map(source_json).collect();
    sources.sort();
    SignFragment { key: "v1.Pod.Spec.Volumes.NonSyntheticSources()", value: json!(sources) }
}

fn source_json(volume: &Volume) -> String {
    let Volume { name: _, persistent_volume_claim, ephemeral, image, disk } = volume;
    let source = if let Some(claim) = persistent_volume_claim {
        json!({"persistentVolumeClaim": {"claimName": claim.claim_name}})
    } else if ephemeral.is_some() {
        json!({"ephemeral": {}})
    } else if let Some(image) = image {
        json!({"image": {"reference": image.reference}})
    } else {
        json!(disk)
    };
    source.to_string()
}

/// Upstream's error of a lister for an object that does not exist.
pub struct NotFound<'a> {
    /// The singular name of the resource, such as `persistentvolumeclaim`.
    pub resource: &'static str,
    /// The name of the object.
    pub name: &'a str,
}

impl fmt::Display for NotFound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} not found", self.resource, self.name)
    }
}

/// Whether the claim was made for this pod (upstream's `VolumeIsForPod`).
///
/// # Errors
///
/// Upstream's text if it was not.
pub fn check_is_for_pod(pod: &PodInfo, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let StorageMeta { namespace, name, owner_references, .. } = &claim.metadata;
    let mut owners = owner_references.iter();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let is_owner = controller.is_some_and(|owner| *owner.uid == *pod.uid);
    if is_owner && *namespace == pod.template.namespace {
        return Ok(());
    }
    let (pod_namespace, pod_name) = (&pod.template.namespace, &pod.name);
    Err(format!(
        "PVC {namespace}/{name} was not created for pod {pod_namespace}/{pod_name} (pod is not owner)"
    ))
}

/// Whether an unbound claim is bound when a pod that uses it is scheduled (upstream's `IsDelayBindingMode`).
///
/// # Errors
///
/// Upstream's text for a class without a binding mode.
pub(crate) fn is_delay_binding(
    claim: &PersistentVolumeClaim,
    classes: &ObjectLister<'_, StorageClass>,
) -> Result<bool, String> {
    let name = claim.class();
    if name.is_empty() {
        return Ok(false);
    }
    let Some(class) = classes.get("", name) else { return Ok(false) };
    match &class.volume_binding_mode {
        None => Err(binding_mode_not_set(name)),
        Some(mode) => Ok(*mode == WAIT_FOR_FIRST_CONSUMER),
    }
}

/// Upstream's text for a class without a binding mode.
pub(crate) fn binding_mode_not_set(class: &str) -> String {
    format!("VolumeBindingMode not set for StorageClass {class:?}")
}
