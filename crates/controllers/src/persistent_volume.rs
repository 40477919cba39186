//! Binds claims to PersistentVolumes: to the best existing one, or to one from a simulated provisioner.
//!
//! | | |
//! | --- | --- |
//! | writes | PersistentVolumes and PersistentVolumeClaims, Events |
//! | upstream | `pkg/controller/volume/persistentvolume`, 1.36 |
//! | deviations | every provisioner is simulated: volumes are created and deleted immediately; nothing is recycled |

mod matching;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, PersistentVolumeStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{annotation_value, is_terminating};
use crate::result_builder::{ReconcileResultBuilder, omit_empty};

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
/// The annotation in which the scheduler selects the node of a claim that waits for its first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The controller of volumes and claims.
#[derive(Debug, Default)]
pub(crate) struct PersistentVolumeController {
    /// The last Event about each waiting claim.
    last_events: BTreeMap<Key, WaitingClaimEvent>,
}

/// The reason why a claim waits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WaitingClaimEvent {
    is_warning: bool,
    reason: &'static str,
    text: String,
}

impl WaitingClaimEvent {
    fn warning(reason: &'static str, text: &str) -> Option<WaitingClaimEvent> {
        Some(WaitingClaimEvent { is_warning: true, reason, text: text.to_owned() })
    }
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
                let uid = object.metadata().uid.as_ref();
                let meant = cache.store::<PersistentVolume>().iter().filter(|volume| {
                    change.new.is_none()
                        && claim_ref(volume).is_some_and(|one| one.uid.as_ref() == uid)
                });
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
            match keep_claim(claim, cache, &mut writes) {
                None => {
                    self.last_events.remove(key);
                }
                Some(event) if self.last_events.get(key) == Some(&event) => {}
                Some(event) => {
                    let text = event.text.clone();
                    if event.is_warning {
                        writes.warning(&**claim, event.reason, text);
                    } else {
                        writes.event(&**claim, event.reason, text);
                    }
                    self.last_events.insert(key.clone(), event);
                }
            }
        } else {
            self.last_events.remove(key);
        }
        writes.build()
    }
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
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
) -> Option<WaitingClaimEvent> {
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
            return WaitingClaimEvent::warning("ClaimLost", text);
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
) -> Option<WaitingClaimEvent> {
    let volumes = cache.store::<PersistentVolume>();
    if let Some(volume) = volumes.iter().find(|volume| is_for(volume, claim)) {
        bind(claim, spec, volume, writes);
        return None;
    }
    let class_name = matching::storage_class_of(claim);
    let class = cache.get::<StorageClass>("", class_name).map(|class| &**class);
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    if waits && annotation_value(&claim.metadata, SELECTED_NODE).is_none() {
        say_phase(claim, "Pending", writes);
        let text = "waiting for first consumer to be created before binding".to_owned();
        return Some(WaitingClaimEvent { is_warning: false, reason: "WaitForFirstConsumer", text });
    }
    // Where a pod chose the node, the scheduler has looked at the volumes that are there.
    if !waits
        && let Some(volume) =
            matching::find_matching_volume(claim, spec, volumes.iter().map(|one| &**one))
    {
        set_claim_ref(claim, volume, writes);
        return None;
    }
    if let Some(class) = class.filter(|class| class.provisioner != NO_PROVISIONER) {
        provision(claim, spec, class, writes);
        return None;
    }
    say_phase(claim, "Pending", writes);
    if class_name.is_empty() {
        let text =
            "no persistent volumes available for this claim and no storage class is set".to_owned();
        return Some(WaitingClaimEvent { is_warning: false, reason: "FailedBinding", text });
    }
    if class.is_none() {
        let text = format!("storageclass.storage.k8s.io \"{class_name}\" not found");
        return WaitingClaimEvent::warning("ProvisioningFailed", &text);
    }
    WaitingClaimEvent::warning(
        "ProvisioningFailed",
        "no volume plugin matched name: kubernetes.io/no-provisioner",
    )
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
    spec.claim_ref = Some(reference(claim));
    annotate(&mut changed.metadata, BY_CONTROLLER, "yes");
    writes.update(&changed);
}

fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) {
    meta.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
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
            spec.claim_ref = Some(reference(claim));
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

/// Provisions a volume as the provisioner of the class would.
fn provision(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    class: &StorageClass,
    writes: &mut ReconcileResultBuilder,
) {
    let driver = class.provisioner.as_str();
    if PROVISIONER.iter().any(|key| annotation_value(&claim.metadata, key) != Some(driver)) {
        let mut changed = claim.clone();
        PROVISIONER.iter().for_each(|key| annotate(&mut changed.metadata, key, driver));
        return writes.update(&changed);
    }
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
    let requests = spec.resources.as_ref().and_then(|one| one.requests.clone());
    let capacity = requests.into_iter().flatten().filter(|(key, _)| key == "storage").collect();
    let attributes = BTreeMap::from([(
        "storage.kubernetes.io/csiProvisionerIdentity".to_owned(),
        driver.to_owned(),
    )]);
    writes.create(&PersistentVolume {
        metadata: ObjectMeta {
            name: omit_empty(&name),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), driver.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: Some(capacity),
            claim_ref: Some(reference(claim)),
            csi: Some(CSIPersistentVolumeSource {
                driver: driver.to_owned(),
                volume_handle: name.clone(),
                volume_attributes: Some(attributes),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            persistent_volume_reclaim_policy: class
                .reclaim_policy
                .clone()
                .or_else(|| omit_empty("Delete")),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    });
    writes.event(claim, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
}

/// Sets a volume's phase, and reclaims it when its claim is deleted.
fn keep_volume(volume: &PersistentVolume, cache: &Cache, writes: &mut ReconcileResultBuilder) {
    let Some(spec) = &volume.spec else { return };
    let claim = spec.claim_ref.as_ref();
    let uid = claim.and_then(|one| one.uid.as_ref()).filter(|uid| !uid.is_empty());
    let owner = claim.map(claim_key);
    let owner = owner.and_then(|key| cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name));
    let owner = owner.filter(|one| one.metadata.uid.as_ref() == uid);
    let phase = match (claim, uid, owner) {
        (None, ..) | (_, None, _) => "Available",
        (_, Some(_), Some(owner)) if volume_name(owner) == volume.metadata.name.as_deref() => {
            "Bound"
        }
        // Its claim has been given another, or is about to be given this one.
        (_, Some(_), Some(_)) => return,
        (_, Some(_), None) => "Released",
    };
    let before = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if before != Some(phase) {
        let mut changed = volume.clone();
        changed.status = Some(PersistentVolumeStatus {
            phase: omit_empty(phase),
            ..volume.status.clone().unwrap_or_default()
        });
        return writes.update_status(&changed);
    }
    let is_made = annotation_value(&volume.metadata, PROVISIONED_BY).is_some();
    // Folders below /tmp are the only volumes of people that upstream's controller itself deletes.
    let is_folder = spec.host_path.as_ref().is_some_and(|it| it.path.starts_with("/tmp/"));
    if phase == "Released"
        && (is_made || is_folder)
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
    {
        writes.delete(volume);
    }
}
