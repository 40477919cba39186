//! Provisions the volumes of claims, deletes them when they are released, and publishes the capacity of a driver.
//!
//! | | |
//! | --- | --- |
//! | writes | PersistentVolumes, CSIStorageCapacities, the selected node of claims, Events |
//! | upstream | external-provisioner |
//! | deviations | immediate; for every provisioner; without capacity limits except for one driver; a released volume is deleted although it may still be attached |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use loadmaster_stdx::CollectByInsertion as _;

use super::CsiDriver;
use super::capacity::{self, REFRESH, UsedCapacity, shown_bytes};
use super::topology::{self, Segment};
use crate::cache::Cache;
use crate::claim_events::{ClaimEvent, ClaimEvents};
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object};
use crate::meta::{annotation_value, is_terminating};
use crate::request::{ControllerRequest, ControllerResponse};
use crate::result_builder::{ReconcileResultBuilder, fnv64, omit_empty};
use crate::storage_objects::{
    PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, reference_to, requested_bytes,
    storage_class_of, volume_name,
};
use crate::work_queue::saturating_add;

/// A claim that does not wait for a node is tried again after this time.
const RETRY: Duration = Duration::from_secs(10);

/// The provisioner of all classes.
#[derive(Debug)]
pub(crate) struct VolumeProvisioner {
    driver: Option<CsiDriver>,
    /// By driver.
    capacity: BTreeMap<String, UsedCapacity>,
    /// The capacity is not published again before this time.
    publish_due: Timestamp,
    events: ClaimEvents,
}

impl VolumeProvisioner {
    /// Publishes and limits the capacity of `driver`.
    pub fn new(driver: Option<CsiDriver>) -> VolumeProvisioner {
        VolumeProvisioner {
            driver,
            capacity: BTreeMap::new(),
            publish_due: Timestamp::UNIX_EPOCH,
            events: ClaimEvents::default(),
        }
    }

    fn capacity_key(&self) -> Option<Key> {
        self.driver.as_ref().map(|driver| Key::new(Kind::CSIDriver, "", &*driver.name))
    }

    /// Publishes the capacity that is free, at most once per second.
    fn publish_capacity(
        &mut self,
        cache: &Cache,
        now: Timestamp,
        writes: &mut ReconcileResultBuilder,
    ) {
        let Some(driver) = &self.driver else { return };
        if self.publish_due > now {
            return writes.requeue_after(now.duration_until(self.publish_due).unsigned_abs());
        }
        self.publish_due = saturating_add(now, REFRESH);
        let capacity = self.capacity.entry(driver.name.clone()).or_default();
        if !capacity.refresh(&driver.name, cache, now) {
            writes.requeue_after(REFRESH);
        }
        capacity::publish(driver, capacity, cache, writes);
    }

    /// Provisions the volume of a claim that requests one; returns why it could not.
    fn provision(
        &mut self,
        claim: &PersistentVolumeClaim,
        cache: &Cache,
        now: Timestamp,
        writes: &mut ReconcileResultBuilder,
    ) -> Option<ClaimEvent> {
        let driver = annotation_value(&claim.metadata, STORAGE_PROVISIONER)?;
        let class = cache.get::<StorageClass>("", storage_class_of(claim))?;
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        let node = annotation_value(&claim.metadata, SELECTED_NODE);
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        if is_terminating(&claim.metadata)
            || volume_name(claim).is_some()
            || class.provisioner != driver
            || waits && node.is_none()
            || cache.get::<PersistentVolume>("", &name).is_some()
        {
            return None;
        }
        match self.segment(claim, class, node, cache, now) {
            Ok(segment) => {
                writes.create(&volume(&name, claim, class, &segment));
                let text = format!("Successfully provisioned volume {name}");
                writes.event(claim, "ProvisioningSucceeded", text);
                self.capacity.entry(driver.to_owned()).or_default().add(
                    name,
                    segment,
                    requested_bytes(claim),
                );
                None
            }
            Err(reason) => {
                if node.is_some() {
                    // The scheduler selects a node again.
                    let mut changed = claim.clone();
                    changed.metadata.annotations.get_or_insert_default().remove(SELECTED_NODE);
                    writes.update(&changed);
                } else {
                    writes.requeue_after(RETRY);
                }
                let class = storage_class_of(claim);
                let text =
                    format!("failed to provision volume with StorageClass {class:?}: {reason}");
                Some(ClaimEvent::warning("ProvisioningFailed", text))
            }
        }
    }

    /// The topology segment for a new volume: that of the selected node, else one with enough capacity.
    fn segment(
        &mut self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        node: Option<&str>,
        cache: &Cache,
        now: Timestamp,
    ) -> Result<Segment, String> {
        let limited = self.driver.as_ref().filter(|it| it.name == class.provisioner);
        let capacity = self.capacity.entry(class.provisioner.clone()).or_default();
        capacity.refresh(&class.provisioner, cache, now);
        let segments: Vec<Segment> = match node {
            Some(name) => {
                let node = cache.get::<Node>("", name);
                let node = node.ok_or_else(|| {
                    format!("failed to get target node: nodes {name:?} not found")
                })?;
                vec![topology::segment_of_node(node, class, cache)?]
            }
            None => {
                let known = capacity.segments().iter();
                let mut all: Vec<Segment> =
                    known.filter(|it| topology::allows(class, it)).cloned().collect();
                if capacity.segments().is_empty() && limited.is_none() {
                    all = topology::allowed_segments(class).into_iter().collect();
                }
                spread(&mut all, claim);
                all
            }
        };
        if segments.is_empty() {
            return Err("error generating accessibility requirements: no available topology found"
                .to_owned());
        }
        let wanted = requested_bytes(claim);
        let free = |segment: &Segment| {
            limited.map(|it| it.segment_bytes.saturating_sub(capacity.used_bytes(segment)))
        };
        if let Some(found) = segments.iter().find(|it| free(it).is_none_or(|free| free >= wanted)) {
            return Ok(found.clone());
        }
        let shown = segments.iter().map(|segment| {
            let free = shown_bytes(free(segment).unwrap_or_default().max(0));
            format!("{free} free in {}", topology::shown(segment))
        });
        let (wanted, shown) = (shown_bytes(wanted), shown.collect::<Vec<String>>().join(", "));
        Err(format!(
            "rpc error: code = ResourceExhausted desc = not enough capacity for {wanted}: {shown}"
        ))
    }
}

impl Controller for VolumeProvisioner {
    fn name(&self) -> &'static str {
        "csi-provisioner"
    }

    fn watches(&self) -> &'static [Kind] {
        &[
            Kind::PersistentVolumeClaim,
            Kind::PersistentVolume,
            Kind::StorageClass,
            Kind::Node,
            Kind::CSINode,
            Kind::CSIStorageCapacity,
        ]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        let labels = |object: Option<&Object>| object.and_then(|it| it.metadata().labels.clone());
        let capacity = || self.capacity_key().into_iter().collect();
        match object.kind() {
            Kind::PersistentVolumeClaim => vec![object.key()],
            Kind::PersistentVolume => {
                let is_new = change.old.is_none() || change.new.is_none();
                let capacity = self.capacity_key().filter(|_| is_new);
                [object.key()].into_iter().chain(capacity).collect()
            }
            // Nodes are updated often, and only their labels count.
            Kind::Node if labels(change.old) == labels(change.new) => Vec::new(),
            _ => capacity(),
        }
    }

    fn initial_keys(&self) -> Vec<Key> {
        self.capacity_key().into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        match key.kind {
            Kind::PersistentVolumeClaim => {
                let claim = cache.get::<PersistentVolumeClaim>(&key.namespace, &key.name);
                if let Some(claim) = claim {
                    let event = self.provision(claim, cache, now, &mut writes);
                    self.events.record(claim, event, &mut writes);
                } else {
                    self.events.forget(key);
                }
            }
            Kind::PersistentVolume => {
                match cache.get::<PersistentVolume>("", &key.name) {
                    Some(volume) if is_to_be_deleted(volume) => writes.delete(&**volume),
                    Some(_) => {}
                    // It may have been deleted before the sums were computed again.
                    None => self.capacity.values_mut().for_each(|it| it.remove(&key.name)),
                }
            }
            _ => self.publish_capacity(cache, now, &mut writes),
        }
        writes.build()
    }

    fn on_response(
        &mut self,
        _: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _: Timestamp,
    ) {
        if matches!(response, ControllerResponse::Success(_)) {
            return;
        }
        if let ControllerRequest::Create(Object::PersistentVolume(volume)) = request {
            let driver = volume.spec.as_ref().and_then(|spec| Some(&spec.csi.as_ref()?.driver));
            if let Some(capacity) = driver.and_then(|driver| self.capacity.get_mut(driver)) {
                capacity.remove(volume.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }
}

/// Rotates the segments by the name of a claim, so that the volumes of a StatefulSet are spread over them, as external-provisioner does.
fn spread(segments: &mut [Segment], claim: &PersistentVolumeClaim) {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let (base, ordinal) = match name.rsplit_once('-') {
        Some((base, digits)) => digits.parse::<u64>().map_or((name, 0), |ordinal| (base, ordinal)),
        None => (name, 0),
    };
    if !segments.is_empty() {
        let n = segments.len() as u64;
        let shift = (fnv64(base.as_bytes()) % n + ordinal % n) % n;
        segments.rotate_left(shift as usize);
    }
}

/// Whether a provisioned volume was released and is to be deleted.
fn is_to_be_deleted(volume: &PersistentVolume) -> bool {
    let policy =
        volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Released")
        && policy == Some("Delete")
        && annotation_value(&volume.metadata, PROVISIONED_BY).is_some()
}

fn volume(
    name: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    segment: &Segment,
) -> PersistentVolume {
    let driver = &class.provisioner;
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|one| one.requests);
    let capacity =
        requests.into_iter().flatten().filter(|(key, _)| key == "storage").collect_by_insertion();
    let identity = "storage.kubernetes.io/csiProvisionerIdentity".to_owned();
    let policy = class.reclaim_policy.clone();
    PersistentVolume {
        metadata: ObjectMeta {
            name: omit_empty(name),
            annotations: Some([(PROVISIONED_BY.to_owned(), driver.clone())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(capacity),
            claim_ref: Some(reference_to(claim)),
            csi: Some(CSIPersistentVolumeSource {
                driver: driver.clone(),
                volume_handle: name.to_owned(),
                volume_attributes: Some([(identity, driver.clone())].into()),
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: topology::node_affinity(segment),
            persistent_volume_reclaim_policy: policy.or_else(|| omit_empty("Delete")),
            storage_class_name: class.metadata.name.clone(),
            volume_attributes_class_name: spec.volume_attributes_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}
