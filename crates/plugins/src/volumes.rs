//! What several volume plugins share: the kinds that they watch, and the claims of a pod.

use std::fmt;

use loadmaster_api::storage::StorageMeta;
use loadmaster_api::{PersistentVolumeClaim, StorageClass, Volume};
use loadmaster_framework::extension_points::SignFragment;
use loadmaster_framework::watched_objects::ObjectLister;
use loadmaster_framework::{ExtensionPoints, Gvr, ObjectSlot, PodInfo, WatchRequirement};
use serde::de::DeserializeOwned;
use serde_json::json;

pub(crate) const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";

/// A kind around volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StorageKind {
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CsiNode,
    CsiDriver,
    CsiStorageCapacity,
    #[allow(dead_code, reason = "NodeVolumeLimits watches it")]
    VolumeAttachment,
}

impl StorageKind {
    pub(crate) fn gvr(self) -> Gvr {
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

/// The pod's volumes as a fragment of its signature: the claims, sorted. Upstream's has the JSON of all volumes but secrets and config
/// maps; of those, Loadmaster does not store what decides nothing.
pub(crate) fn signed_volumes(pod: &PodInfo) -> SignFragment {
    let claims = claim_names(pod).map(|claim| match claim.is_ephemeral {
        false => json!({"persistentVolumeClaim": {"claimName": claim.name}}).to_string(),
        true => json!({"ephemeral": claim.name}).to_string(),
    });
    let disks = pod.template.spec.volumes.iter().filter_map(|volume| volume.disk.as_deref());
    let mut texts: Vec<String> = claims.chain(disks.map(|disk| format!("{disk:?}"))).collect();
    texts.sort_unstable();
    SignFragment { key: "v1.Pod.Spec.Volumes.NonSyntheticSources()", value: json!(texts) }
}

/// The name of a claim that a volume of a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimName {
    pub name: String,
    /// Whether the claim is made for this pod, which must then be its controller.
    pub is_ephemeral: bool,
}

/// The claim of a volume, if it has one. The claim of an ephemeral volume is named after the pod and the volume.
pub(crate) fn claim_name(pod: &PodInfo, volume: &Volume) -> Option<ClaimName> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => {
            Some(ClaimName { name: claim.claim_name.to_string(), is_ephemeral: false })
        }
        (None, Some(_)) => {
            Some(ClaimName { name: format!("{}-{}", pod.name, volume.name), is_ephemeral: true })
        }
        (None, None) => None,
    }
}

/// The claims that a pod's volumes use, in the order of the volumes.
pub(crate) fn claim_names(pod: &PodInfo) -> impl Iterator<Item = ClaimName> + '_ {
    pod.template.spec.volumes.iter().filter_map(|volume| claim_name(pod, volume))
}

/// Whether a volume of the pod uses this claim.
pub(crate) fn uses_claim(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    pod.template.namespace == claim.metadata.namespace
        && claim_names(pod).any(|used| used.name == *claim.metadata.name)
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
pub(crate) struct NotFound<'a> {
    /// The singular name of the resource, such as `persistentvolumeclaim`.
    pub resource: &'static str,
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
pub(crate) fn check_is_for_pod(pod: &PodInfo, claim: &PersistentVolumeClaim) -> Result<(), String> {
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
