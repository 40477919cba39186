//! A CSI driver's provisioner (upstream's external-provisioner) with topology and capacity. While there are faults it is slow, and fails.

use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::controllers::reference_to;
use super::{
    DRIVER, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER, Storage, VolumeKind, ZONE, ZONES,
    annotation, gi, is_for, is_terminating, size, text, uid,
};

pub(in crate::simulate) struct Provisioner {
    rng: Rng,
    /// A request is handled in one of so many steps.
    slowness: u64,
    /// One in so many requests fails.
    failures: u64,
    /// GiB in each zone, if capacity is tracked.
    capacity: Option<[i64; 3]>,
    pub n_failed: u64,
    /// What failed since the last call of [`Provisioner::take_events`].
    events: Vec<String>,
}

impl Provisioner {
    pub fn new(mut rng: Rng, storage: &mut Storage<'_>) -> Provisioner {
        let capacity = rng.one_in(2).then(|| ZONES.map(|_| rng.range(0, 30)));
        storage.put(
            VolumeKind::CsiDriver,
            json!({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": capacity.is_some()}}),
        );
        let slowness = *rng.pick(&[1, 4, 20, 100]);
        let failures = *rng.pick(&[2, 5, 1_000]);
        Provisioner { rng, slowness, failures, capacity, n_failed: 0, events: Vec::new() }
    }

    /// The Events since the last call.
    pub fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Changes the capacity of a zone.
    pub fn resize(&mut self) {
        if let Some(capacity) = &mut self.capacity {
            capacity[self.rng.below(3) as usize] = self.rng.range(0, 60);
        }
    }

    fn free(&self, storage: &Storage<'_>, zone: &str) -> Option<i64> {
        let at = ZONES.iter().position(|known| *known == zone)?;
        let volumes = storage.all(VolumeKind::Volume).map(|(_, volume)| volume);
        let own = volumes.filter(|volume| is_own(volume) && zone_of(volume) == zone);
        Some(self.capacity?[at] - own.map(size).sum::<i64>())
    }

    /// Publishes the free capacity of every zone for every class.
    pub fn publish_capacities(&self, storage: &mut Storage<'_>) {
        let classes = storage.all(VolumeKind::Class).filter(|(_, it)| it["provisioner"] == DRIVER);
        let classes: Vec<String> = classes.map(|(name, _)| name.to_string()).collect();
        for zone in ZONES {
            let Some(free) = self.free(storage, zone) else { return };
            for class in &classes {
                storage.put(
                    VolumeKind::Capacity,
                    json!({
                        "metadata": {"namespace": "default", "name": format!("{class}-{zone}")},
                        "storageClassName": class,
                        "nodeTopology": {"matchLabels": {ZONE: zone}},
                        "capacity": gi(free.max(0)),
                    }),
                );
            }
        }
    }

    /// Provisions the volume of a claim that requests one; without faults at once.
    pub fn provision(&mut self, storage: &mut Storage<'_>, name: &str, without_faults: bool) {
        let Some(claim) = storage.get(VolumeKind::Claim, name).cloned() else { return };
        let class = storage.get(VolumeKind::Class, text(&claim, "/spec/storageClassName"));
        let Some(class) = class.cloned() else { return };
        let waits = text(&class, "/volumeBindingMode") == "WaitForFirstConsumer";
        let node = annotation(&claim, SELECTED_NODE).map(str::to_owned);
        let volume = format!("pvc-{}", uid(&claim));
        if is_terminating(&claim)
            || !text(&claim, "/spec/volumeName").is_empty()
            || annotation(&claim, STORAGE_PROVISIONER) != Some(DRIVER)
            || class["provisioner"] != DRIVER
            || waits && node.is_none()
            || storage.get(VolumeKind::Volume, &volume).is_some()
            || storage.all(VolumeKind::Volume).any(|(_, volume)| is_for(volume, &claim))
        {
            return;
        }
        if !without_faults && !self.rng.one_in(self.slowness) {
            return;
        }
        let fails = !without_faults && self.rng.one_in(self.failures);
        let zone = match fails {
            true => Err("rpc error: code = Internal desc = injected".to_owned()),
            false => self.zone(storage, &class, node.as_deref(), size(&claim)),
        };
        match zone {
            Ok(zone) => storage.put(VolumeKind::Volume, provisioned(&volume, &claim, &zone)),
            Err(why) => {
                self.n_failed += u64::from(!without_faults);
                if node.is_some() {
                    self.events.push(format!("ProvisioningFailed {name}: {why}"));
                    // The scheduler selects a node again.
                    storage.edit(VolumeKind::Claim, name, |claim| {
                        let annotations = claim["metadata"]["annotations"].as_object_mut();
                        annotations.map(|all| all.remove(SELECTED_NODE));
                    });
                }
            }
        }
    }

    /// The zone for a new volume: that of the selected node, else any that is allowed; with enough free capacity.
    fn zone(
        &mut self,
        storage: &Storage<'_>,
        class: &Value,
        node: Option<&str>,
        wanted: i64,
    ) -> Result<String, String> {
        let mut zones: Vec<String> = match node {
            Some(name) => {
                let found = storage.0.node(name);
                let found = found.ok_or_else(|| format!("nodes {name:?} not found"))?;
                if storage.get(VolumeKind::CsiNode, name).is_none() {
                    return Err(format!("csinodes {name:?} not found"));
                }
                found.metadata.labels.get(ZONE).map(ToString::to_string).into_iter().collect()
            }
            None => ZONES.map(str::to_owned).into(),
        };
        let allowed = class.pointer("/allowedTopologies/0/matchLabelExpressions/0/values");
        let allowed = allowed.and_then(Value::as_array);
        zones.retain(|zone| {
            allowed.is_none_or(|all| all.iter().any(|it| it == zone))
                && self.free(storage, zone).is_none_or(|free| free >= wanted)
        });
        if zones.is_empty() {
            return Err("rpc error: code = ResourceExhausted".to_owned());
        }
        Ok(self.rng.pick(&zones).clone())
    }
}

fn is_own(volume: &Value) -> bool {
    annotation(volume, PROVISIONED_BY) == Some(DRIVER)
}

fn zone_of(volume: &Value) -> &str {
    let at = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0";
    volume.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

fn provisioned(name: &str, claim: &Value, zone: &str) -> Value {
    let requirement = json!({"key": ZONE, "operator": "In", "values": [zone]});
    json!({
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER}},
        "spec": {
            "capacity": {"storage": gi(size(claim))},
            "accessModes": claim["spec"]["accessModes"],
            "claimRef": reference_to(claim),
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": claim["spec"]["storageClassName"],
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    })
}
