//! Binds claims to PersistentVolumes: to the best existing one, or to one from the claim's [provisioner](crate::csi).
//!
//! | | |
//! | --- | --- |
//! | writes | PersistentVolumes and PersistentVolumeClaims, Events |
//! | upstream | `pkg/controller/volume/persistentvolume`, 1.36 |
//! | deviations | nothing is recycled; the Event of a claim that waits for its first consumer does not name pods |

mod matching;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Cache;
use crate::claim_events::{ClaimEvent, ClaimEvents};
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{annotation_value, is_terminating};
use crate::result_builder::{ReconcileResultBuilder, omit_empty};
use crate::storage_objects::{
    PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, claim_ref, reference_to, storage_class_of,
    volume_name,
};

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The annotations that name the provisioner of a claim's volume.
const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", STORAGE_PROVISIONER];
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The controller of volumes and claims.
#[derive(Debug, Default)]
pub(crate) struct PersistentVolumeController {
    events: ClaimEvents,
}

impl Controller for PersistentVolumeController {
    fn name(&self) -> &'static str {
        "persistentvolume-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::PersistentVolumeClaim, Kind::PersistentVolume, Kind::StorageClass]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let claims = cache.store::<PersistentVolumeClaim>();
        let unbound = || {
            let unbound = claims.iter().filter(|one| volume_name(one).is_none());
            unbound.map(|one| Key::from_object(&**one)).collect::<Vec<Key>>()
        };
        let Some(object) = change.new_or_old() else { return Vec::new() };
        match object.kind() {
            Kind::PersistentVolumeClaim => {
                let mut keys = vec![object.key()];
                let volume = change
                    .new_or_old_typed::<PersistentVolumeClaim>()
                    .and_then(|claim| volume_name(claim));
                keys.extend(volume.map(|name| Key::new(Kind::PersistentVolume, "", name)));
                let claim = object.key();
                let volumes = cache.store::<PersistentVolume>();
                let meant = volumes
                    .by_index_key(&claim.name)
                    .filter(|volume| claim_ref(volume).is_some_and(|one| claim_key(one) == claim));
                keys.extend(meant.map(|volume| Key::from_object(&**volume)));
                keys
            }
            Kind::PersistentVolume => {
                let mut keys = vec![object.key()];
                match change.new_or_old_typed::<PersistentVolume>().and_then(claim_ref) {
                    Some(claim) => keys.push(claim_key(claim)),
                    None => keys.extend(unbound()),
                }
                keys
            }
            Kind::StorageClass => unbound(),
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        if key.kind == Kind::PersistentVolume {
            if let Some(volume) = cache.get::<PersistentVolume>("", &key.name) {
                keep_volume(volume, cache, &mut writes);
            }
        } else if let Some(claim) = cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name) {
            let event = keep_claim(claim, cache, &mut writes);
            self.events.record(claim, event, &mut writes);
        } else {
            self.events.forget(key);
        }
        writes.build()
    }
}

fn claim_key(claim: &ObjectReference) -> Key {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Key::new(Kind::PersistentVolumeClaim, text(&claim.namespace), text(&claim.name))
}

/// Whether a volume's claimRef names this claim, with its uid.
fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|one| {
        one.name == claim.metadata.name
            && one.namespace == claim.metadata.namespace
            && one
                .uid
                .as_ref()
                .is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_ref())
    })
}

fn keep_claim(
    claim: &PersistentVolumeClaim,
    cache: &Cache,
    writes: &mut ReconcileResultBuilder,
) -> Option<ClaimEvent> {
    if is_terminating(&claim.metadata) {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let Some(name) = volume_name(claim) else { return find_volume(claim, spec, cache, writes) };
    match cache.get::<PersistentVolume>("", name) {
        Some(volume) if is_for(volume, claim) => bind(claim, spec, volume, writes),
        Some(volume) if claim_ref(volume).is_none() => set_claim_ref(claim, volume, writes),
        None if annotation_value(&claim.metadata, COMPLETED).is_some() => {
            say_phase(claim, "Lost", writes);
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return Some(ClaimEvent::warning("ClaimLost", text));
        }
        // Another claim has it, or it does not exist yet.
        Some(_) | None => say_phase(claim, "Pending", writes),
    }
    None
}

/// Finds or provisions a volume for a claim.
fn find_volume(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    cache: &Cache,
    writes: &mut ReconcileResultBuilder,
) -> Option<ClaimEvent> {
    let volumes = cache.store::<PersistentVolume>();
    let mut with_claim_ref =
        volumes.by_index_key(claim.metadata.name.as_deref().unwrap_or_default());
    if let Some(volume) = with_claim_ref.find(|volume| is_for(volume, claim)) {
        bind(claim, spec, volume, writes);
        return None;
    }
    let class_name = storage_class_of(claim);
    let class = cache.get::<StorageClass>("", class_name).map(|class| &**class);
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    if waits && annotation_value(&claim.metadata, SELECTED_NODE).is_none() {
        say_phase(claim, "Pending", writes);
        let text = "waiting for first consumer to be created before binding";
        return Some(ClaimEvent::normal("WaitForFirstConsumer", text));
    }
    // Where a pod chose the node, the scheduler has looked at the volumes that are there.
    if !waits
        && let Some(volume) =
            matching::find_matching_volume(claim, spec, volumes.iter().map(|one| &**one))
    {
        set_claim_ref(claim, volume, writes);
        return None;
    }
    say_phase(claim, "Pending", writes);
    match class {
        Some(class) if class.provisioner != NO_PROVISIONER => {
            request_provisioning(claim, &class.provisioner, writes)
        }
        Some(_) => {
            let text = "no volume plugin matched name: kubernetes.io/no-provisioner";
            Some(ClaimEvent::warning("ProvisioningFailed", text))
        }
        None if class_name.is_empty() => {
            let text = "no persistent volumes available for this claim and no storage class is set";
            Some(ClaimEvent::normal("FailedBinding", text))
        }
        None => {
            let text = format!("storageclass.storage.k8s.io \"{class_name}\" not found");
            Some(ClaimEvent::warning("ProvisioningFailed", text))
        }
    }
}

/// Names the provisioner in the claim, for which the [provisioner](crate::csi) watches.
fn request_provisioning(
    claim: &PersistentVolumeClaim,
    driver: &str,
    writes: &mut ReconcileResultBuilder,
) -> Option<ClaimEvent> {
    if PROVISIONER.iter().any(|key| annotation_value(&claim.metadata, key) != Some(driver)) {
        let mut changed = claim.clone();
        PROVISIONER.iter().for_each(|key| annotate(&mut changed.metadata, key, driver));
        writes.update(&changed);
        return None;
    }
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{driver}' or manually by the system administrator. \
         If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    Some(ClaimEvent::normal("ExternalProvisioning", text))
}

/// Sets a claim's phase.
fn say_phase(claim: &PersistentVolumeClaim, phase: &str, writes: &mut ReconcileResultBuilder) {
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase) {
        let mut changed = claim.clone();
        changed.status.get_or_insert_default().phase = omit_empty(phase);
        writes.update_status(&changed);
    }
}

/// Sets a volume's claimRef; the binding is completed once the cache shows it.
fn set_claim_ref(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    writes: &mut ReconcileResultBuilder,
) {
    let mut changed = volume.clone();
    let Some(spec) = &mut changed.spec else { return };
    spec.claim_ref = Some(reference_to(claim));
    annotate(&mut changed.metadata, BY_CONTROLLER, "yes");
    writes.update(&changed);
}

fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) {
    meta.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

/// Completes a binding on both sides.
fn bind(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    volume: &PersistentVolume,
    writes: &mut ReconcileResultBuilder,
) {
    if claim_ref(volume).is_some_and(|one| one.uid.as_ref().is_none_or(String::is_empty)) {
        // Its claimRef had no uid; now it has this claim's.
        let mut changed = volume.clone();
        if let Some(spec) = &mut changed.spec {
            spec.claim_ref = Some(reference_to(claim));
        }
        return writes.update(&changed);
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    if spec.volume_name.as_deref() != Some(name)
        || annotation_value(&claim.metadata, COMPLETED).is_none()
    {
        let mut changed = claim.clone();
        if spec.volume_name.as_deref() != Some(name) {
            annotate(&mut changed.metadata, BY_CONTROLLER, "yes");
        }
        annotate(&mut changed.metadata, COMPLETED, "yes");
        changed.spec.get_or_insert_default().volume_name = omit_empty(name);
        return writes.update(&changed);
    }
    let of_volume = volume.spec.as_ref();
    let mut changed = claim.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = omit_empty("Bound");
    status.access_modes = of_volume.and_then(|spec| spec.access_modes.clone());
    status.capacity = of_volume.and_then(|spec| spec.capacity.clone());
    if changed.status != claim.status {
        writes.update_status(&changed);
    }
}

/// Whether a claimRef was written by someone who had seen more claims than the cache has.
fn is_newer_than_cache(claim: &ObjectReference, cache: &Cache) -> bool {
    let version = claim.resource_version.as_deref().and_then(|it| it.parse::<u64>().ok());
    version.is_some_and(|version| version > cache.version(Kind::PersistentVolumeClaim))
}

/// Releases a volume whose claim has another one.
fn unbind(volume: &PersistentVolume, writes: &mut ReconcileResultBuilder) {
    let mut changed = volume.clone();
    let Some(spec) = &mut changed.spec else { return };
    let annotations = changed.metadata.annotations.get_or_insert_default();
    if annotations.remove(BY_CONTROLLER).is_some() {
        spec.claim_ref = None;
    } else if let Some(claim) = &mut spec.claim_ref {
        // The user has reserved it for this claim.
        (claim.uid, claim.resource_version) = (None, None);
    }
    writes.update(&changed);
}

/// Sets a volume's phase, and reclaims it when its claim is deleted.
fn keep_volume(volume: &PersistentVolume, cache: &Cache, writes: &mut ReconcileResultBuilder) {
    let Some(spec) = &volume.spec else { return };
    let claim = spec.claim_ref.as_ref();
    let uid = claim.and_then(|one| one.uid.as_ref()).filter(|uid| !uid.is_empty());
    let owner = claim.map(claim_key);
    let owner = owner.and_then(|key| cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name));
    let owner = owner.filter(|one| one.metadata.uid.as_ref() == uid);
    let before = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_provisioned = annotation_value(&volume.metadata, PROVISIONED_BY).is_some();
    let is_deleted_with_claim = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    let phase = match (claim, uid, owner) {
        (None, ..) | (_, None, _) => "Available",
        (_, Some(_), Some(owner)) => match volume_name(owner) {
            // It is about to be given this one.
            None => return,
            Some(name) if Some(name) == volume.metadata.name.as_deref() => "Bound",
            Some(_) if is_provisioned && is_deleted_with_claim => "Released",
            Some(_) => return unbind(volume, writes),
        },
        // The scheduler may have seen a claim that is not in the cache yet.
        (Some(claim), Some(_), None)
            if before != Some("Bound") && is_newer_than_cache(claim, cache) =>
        {
            return;
        }
        (_, Some(_), None) => "Released",
    };
    if before != Some(phase) {
        let mut changed = volume.clone();
        changed.status = Some(PersistentVolumeStatus {
            phase: omit_empty(phase),
            ..volume.status.clone().unwrap_or_default()
        });
        return writes.update_status(&changed);
    }
    // Provisioned volumes are deleted by their provisioner; folders below /tmp are the only volumes that upstream's controller itself deletes.
    let is_folder = spec.host_path.as_ref().is_some_and(|it| it.path.starts_with("/tmp/"));
    if phase == "Released" && is_folder && is_deleted_with_claim {
        writes.delete(volume);
    }
}
