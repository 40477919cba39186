//! Claims get volumes: one that is there and fits best, or one that a pretended provisioner makes.
//!
//! | | |
//! | --- | --- |
//! | writes | PersistentVolumes and PersistentVolumeClaims, Events |
//! | upstream | `pkg/controller/volume/persistentvolume`, 1.36 |
//! | deviations | every provisioner is pretended, its volumes made and deleted at once; nothing is recycled |

mod fit;
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
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind};
use crate::meta::{annotation, is_terminating};
use crate::writes::{Writes, some};

const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
/// The scheduler says so where a claim that waited for a pod is to get its volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The controller of volumes and claims.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    /// What was last told about a claim that waits.
    told: BTreeMap<Key, Told>,
}

/// What is to be known about a claim that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    is_warning: bool,
    reason: &'static str,
    text: String,
}

impl Told {
    fn warning(reason: &'static str, text: &str) -> Option<Told> {
        Some(Told { is_warning: true, reason, text: text.to_owned() })
    }
}

impl Controller for Volumes {
    fn name(&self) -> &'static str {
        "persistentvolume-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::PersistentVolumeClaim, Kind::PersistentVolume, Kind::StorageClass]
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        let claims = cache.of::<PersistentVolumeClaim>();
        let unbound = || {
            let unbound = claims.iter().filter(|one| volume_name(one).is_none());
            unbound.map(|one| Key::of(&**one)).collect::<Vec<Key>>()
        };
        let Some(object) = change.object() else { return Vec::new() };
        match object.kind() {
            Kind::PersistentVolumeClaim => {
                let mut keys = vec![object.key()];
                let volume =
                    change.of::<PersistentVolumeClaim>().and_then(|claim| volume_name(claim));
                keys.extend(volume.map(|name| Key::new(Kind::PersistentVolume, "", name)));
                let uid = object.metadata().uid.as_ref();
                let meant = cache.of::<PersistentVolume>().iter().filter(|volume| {
                    change.new.is_none()
                        && claim_ref(volume).is_some_and(|one| one.uid.as_ref() == uid)
                });
                keys.extend(meant.map(|volume| Key::of(&**volume)));
                keys
            }
            Kind::PersistentVolume => {
                let mut keys = vec![object.key()];
                match change.of::<PersistentVolume>().and_then(claim_ref) {
                    Some(claim) => keys.push(claim_key(claim)),
                    None => keys.extend(unbound()),
                }
                keys
            }
            Kind::StorageClass => unbound(),
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        let mut writes = Writes::new(self.name(), now);
        if key.kind == Kind::PersistentVolume {
            if let Some(volume) = cache.get::<PersistentVolume>("", &key.name) {
                keep_volume(volume, cache, &mut writes);
            }
        } else if let Some(claim) = cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name) {
            match keep_claim(claim, cache, &mut writes) {
                None => {
                    self.told.remove(key);
                }
                Some(told) if self.told.get(key) == Some(&told) => {}
                Some(told) => {
                    let text = told.text.clone();
                    if told.is_warning {
                        writes.warning(&**claim, told.reason, text);
                    } else {
                        writes.event(&**claim, told.reason, text);
                    }
                    self.told.insert(key.clone(), told);
                }
            }
        } else {
            self.told.remove(key);
        }
        writes.done()
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

/// Whether a volume is promised to this claim and no other of its name.
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

fn keep_claim(claim: &PersistentVolumeClaim, cache: &Cache, writes: &mut Writes) -> Option<Told> {
    if is_terminating(&claim.metadata) {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let Some(name) = volume_name(claim) else { return find_volume(claim, spec, cache, writes) };
    match cache.get::<PersistentVolume>("", name) {
        Some(volume) if is_for(volume, claim) => bind(claim, spec, volume, writes),
        Some(volume) if claim_ref(volume).is_none() => promise(claim, volume, writes),
        None if annotation(&claim.metadata, COMPLETED).is_some() => {
            say_phase(claim, "Lost", writes);
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return Told::warning("ClaimLost", text);
        }
        // Another claim has it, or it does not exist yet.
        Some(_) | None => say_phase(claim, "Pending", writes),
    }
    None
}

/// A claim without a volume: looks for one, or has one made.
fn find_volume(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    cache: &Cache,
    writes: &mut Writes,
) -> Option<Told> {
    let volumes = cache.of::<PersistentVolume>();
    if let Some(volume) = volumes.iter().find(|volume| is_for(volume, claim)) {
        bind(claim, spec, volume, writes);
        return None;
    }
    let class_name = fit::class_of(claim);
    let class = cache.get::<StorageClass>("", class_name).map(|class| &**class);
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    if waits && annotation(&claim.metadata, SELECTED_NODE).is_none() {
        say_phase(claim, "Pending", writes);
        let text = "waiting for first consumer to be created before binding".to_owned();
        return Some(Told { is_warning: false, reason: "WaitForFirstConsumer", text });
    }
    // Where a pod chose the node, the scheduler has looked at the volumes that are there.
    if !waits && let Some(volume) = fit::best(claim, spec, volumes.iter().map(|one| &**one)) {
        promise(claim, volume, writes);
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
        return Some(Told { is_warning: false, reason: "FailedBinding", text });
    }
    if class.is_none() {
        let text = format!("storageclass.storage.k8s.io \"{class_name}\" not found");
        return Told::warning("ProvisioningFailed", &text);
    }
    Told::warning(
        "ProvisioningFailed",
        "no volume plugin matched name: kubernetes.io/no-provisioner",
    )
}

/// Sets a claim's phase.
fn say_phase(claim: &PersistentVolumeClaim, phase: &str, writes: &mut Writes) {
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase) {
        let mut changed = claim.clone();
        changed.status.get_or_insert_default().phase = some(phase);
        writes.update_status(&changed);
    }
}

/// Promises a volume to a claim; that it is bound is written once this is seen.
fn promise(claim: &PersistentVolumeClaim, volume: &PersistentVolume, writes: &mut Writes) {
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
        api_version: some("v1"),
        kind: some("PersistentVolumeClaim"),
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
    writes: &mut Writes,
) {
    if claim_ref(volume).is_some_and(|one| one.uid.as_ref().is_none_or(String::is_empty)) {
        // It was promised to a name; now it is this claim's.
        let mut changed = volume.clone();
        if let Some(spec) = &mut changed.spec {
            spec.claim_ref = Some(reference(claim));
        }
        return writes.update(&changed);
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    if spec.volume_name.as_deref() != Some(name) || annotation(&claim.metadata, COMPLETED).is_none()
    {
        let mut changed = claim.clone();
        if spec.volume_name.as_deref() != Some(name) {
            annotate(&mut changed.metadata, BY_CONTROLLER, "yes");
        }
        annotate(&mut changed.metadata, COMPLETED, "yes");
        changed.spec.get_or_insert_default().volume_name = some(name);
        return writes.update(&changed);
    }
    let of_volume = volume.spec.as_ref();
    let mut changed = claim.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = some("Bound");
    status.access_modes = of_volume.and_then(|spec| spec.access_modes.clone());
    status.capacity = of_volume.and_then(|spec| spec.capacity.clone());
    if changed.status != claim.status {
        writes.update_status(&changed);
    }
}

/// Makes a volume as the class's provisioner would.
fn provision(
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    class: &StorageClass,
    writes: &mut Writes,
) {
    let driver = class.provisioner.as_str();
    if PROVISIONER.iter().any(|key| annotation(&claim.metadata, key) != Some(driver)) {
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
            name: some(&name),
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
                .or_else(|| some("Delete")),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.volume_mode.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    });
    writes.event(claim, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
}

/// A volume's phase, and its end when its claim has gone.
fn keep_volume(volume: &PersistentVolume, cache: &Cache, writes: &mut Writes) {
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
            phase: some(phase),
            ..volume.status.clone().unwrap_or_default()
        });
        return writes.update_status(&changed);
    }
    let is_made = annotation(&volume.metadata, PROVISIONED_BY).is_some();
    // Folders below /tmp are the only volumes of people that upstream's controller itself deletes.
    let is_folder = spec.host_path.as_ref().is_some_and(|it| it.path.starts_with("/tmp/"));
    if phase == "Released"
        && (is_made || is_folder)
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
    {
        writes.delete(volume);
    }
}
