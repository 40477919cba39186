//! How much of a driver's capacity its volumes use, and the CSIStorageCapacities that publish the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::CsiDriver;
use super::topology::{self, Segment};
use crate::cache::Cache;
use crate::meta::label_value;
use crate::result_builder::{ReconcileResultBuilder, fnv64};
use crate::storage_objects::volume_bytes;
use crate::work_queue::saturating_add;

/// The sums are computed again after this time: with thousands of volumes it takes longer than provisioning one.
pub(super) const REFRESH: Duration = Duration::from_secs(1);

const NAMESPACE: &str = "kube-system";
/// The labels of external-provisioner's objects.
const DRIVER_NAME: &str = "csi.storage.k8s.io/drivername";
const MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";
const MANAGER: &str = "loadmaster";

/// The topology segments of a driver, and the bytes of its volumes in each.
#[derive(Debug, Default)]
pub(super) struct UsedCapacity {
    computed_at: Option<Timestamp>,
    segments: BTreeSet<Segment>,
    used: BTreeMap<Segment, i64>,
    /// Volumes that were created and are not in the cache yet.
    unseen: BTreeMap<String, (Segment, i64)>,
}

impl UsedCapacity {
    /// Computes it from the cache, unless that was done less than [`REFRESH`] ago. Returns whether it was.
    pub fn refresh(&mut self, driver: &str, cache: &Cache, now: Timestamp) -> bool {
        if self.computed_at.is_some_and(|it| saturating_add(it, REFRESH) > now) {
            return false;
        }
        self.computed_at = Some(now);
        self.segments = topology::segments(driver, cache);
        let volumes = cache.store::<PersistentVolume>();
        self.unseen.retain(|name, _| volumes.get("", name).is_none());
        self.used.clear();
        let is_of_driver = |volume: &&std::sync::Arc<PersistentVolume>| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == driver)
        };
        let seen = volumes.iter().filter(is_of_driver);
        let seen = seen.map(|volume| (topology::segment_of_volume(volume), volume_bytes(volume)));
        for (segment, bytes) in seen.chain(self.unseen.values().cloned()) {
            *self.used.entry(segment).or_default() += bytes;
        }
        true
    }

    /// The segments of the nodes on which the driver is registered.
    pub fn segments(&self) -> &BTreeSet<Segment> {
        &self.segments
    }

    /// The bytes of the volumes in a segment.
    pub fn used_bytes(&self, segment: &Segment) -> i64 {
        self.used.get(segment).copied().unwrap_or_default()
    }

    /// A volume is created.
    pub fn add(&mut self, volume: String, segment: Segment, bytes: i64) {
        *self.used.entry(segment.clone()).or_default() += bytes;
        self.unseen.insert(volume, (segment, bytes));
    }

    /// A volume could not be created, or is deleted already.
    pub fn remove(&mut self, volume: &str) {
        if let Some((segment, bytes)) = self.unseen.remove(volume) {
            *self.used.entry(segment).or_default() -= bytes;
        }
    }
}

/// Publishes the free capacity of each segment for each class of the driver.
pub(super) fn publish(
    driver: &CsiDriver,
    capacity: &UsedCapacity,
    cache: &Cache,
    writes: &mut ReconcileResultBuilder,
) {
    let known = cache.store::<CSIStorageCapacity>();
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let classes = cache.store::<StorageClass>().iter().filter(|it| it.provisioner == driver.name);
    for class in classes.filter_map(|class| class.metadata.name.as_deref()) {
        for segment in capacity.segments() {
            let free = driver.segment_bytes.saturating_sub(capacity.used_bytes(segment)).max(0);
            let object = object(driver, class, segment, free);
            let name = object.metadata.name.clone().unwrap_or_default();
            match known.get(NAMESPACE, &name) {
                None => writes.create(&object),
                Some(found) if found.capacity != object.capacity => {
                    let mut changed = CSIStorageCapacity::clone(found);
                    changed.capacity = object.capacity;
                    writes.update(&changed);
                }
                Some(_) => {}
            }
            wanted.insert(name);
        }
    }
    let is_own = |it: &&std::sync::Arc<CSIStorageCapacity>| {
        label_value(&it.metadata, DRIVER_NAME) == Some(&driver.name)
            && label_value(&it.metadata, MANAGED_BY) == Some(MANAGER)
    };
    let is_wanted = |it: &CSIStorageCapacity| {
        it.metadata.name.as_ref().is_some_and(|name| wanted.contains(name))
    };
    for unwanted in known.in_namespace(NAMESPACE).filter(is_own).filter(|it| !is_wanted(it)) {
        writes.delete(&**unwanted);
    }
}

fn object(driver: &CsiDriver, class: &str, segment: &Segment, free: i64) -> CSIStorageCapacity {
    let labels = [(DRIVER_NAME, &*driver.name), (MANAGED_BY, MANAGER)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let hash = fnv64(format!("{}\n{class}\n{}", driver.name, topology::shown(segment)).as_bytes());
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(format!("csisc-{hash:016x}")),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        storage_class_name: class.to_owned(),
        node_topology: Some(LabelSelector {
            match_labels: Some(segment.clone()).filter(|it| !it.is_empty()),
            match_expressions: None,
        }),
        capacity: Some(Quantity(shown_bytes(free))),
        maximum_volume_size: None,
    }
}

/// Bytes as a quantity in Kubernetes' canonical form.
pub(super) fn shown_bytes(bytes: i64) -> String {
    let units = [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}
