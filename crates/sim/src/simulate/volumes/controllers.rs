//! The controllers around claims and volumes. Each call makes at most one write per object, so that what is half done can be seen.

use loadmaster_api::Pod;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::provisioner::Provisioner;
use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, DRIVER, NO_PROVISIONER, PROVISIONED_BY, SELECTED_NODE,
    STORAGE_PROVISIONER, Storage, VolumeKind, annotate, annotation, claim_names, claim_ref,
    full_name, is_for, is_terminating, size, text, uid,
};
use crate::fake_api_server::{FakeApiServer, is_pod_terminal};

pub(in crate::simulate) struct VolumeControllers {
    rng: Rng,
    /// One in so many objects is looked at in a step.
    pace: u64,
    /// Nodes have limits.
    limits: bool,
    pub provisioner: Provisioner,
}

impl VolumeControllers {
    pub fn new(mut rng: Rng, api_server: &mut FakeApiServer) -> VolumeControllers {
        let storage = &mut Storage(api_server);
        let provisioner = Provisioner::new(rng.split("provisioner"), storage);
        let pace = *rng.pick(&[1, 3, 10]);
        let limits = rng.one_in(2);
        VolumeControllers { rng, pace, limits, provisioner }
    }

    /// Runs the controllers on a random part of the objects, or on all.
    pub fn run(&mut self, api_server: &mut FakeApiServer, all: bool) {
        let storage = &mut Storage(api_server);
        self.keep_csi_nodes(storage, all);
        make_ephemeral_claims(storage);
        for name in storage.names(VolumeKind::Claim) {
            if all || self.rng.one_in(self.pace) {
                keep_claim(storage, &name);
                self.provisioner.provision(storage, &name, all);
            }
        }
        for name in storage.names(VolumeKind::Volume) {
            if all || self.rng.one_in(self.pace) {
                keep_volume(storage, &name);
            }
        }
        self.keep_attachments(storage, all);
        if all || self.rng.one_in(self.pace) {
            self.provisioner.publish_capacities(storage);
        }
    }

    /// Each node has a CSINode, sometimes later than the node.
    fn keep_csi_nodes(&mut self, storage: &mut Storage<'_>, all: bool) {
        let nodes: Vec<String> = storage.0.nodes().map(|node| node.name().to_owned()).collect();
        for name in &nodes {
            if storage.get(VolumeKind::CsiNode, name).is_none() && (all || self.rng.one_in(3)) {
                let limit = self.limits.then(|| self.rng.range(1, 5));
                storage.put(VolumeKind::CsiNode, csi_node(name, limit));
            }
        }
        for name in storage.names(VolumeKind::CsiNode) {
            if !nodes.iter().any(|node| *node == *name.as_str()) && (all || self.rng.one_in(3)) {
                storage.delete(VolumeKind::CsiNode, &name);
            }
        }
    }

    /// The volumes of the pods on a node are attached; later than the pods, and for longer.
    fn keep_attachments(&mut self, storage: &mut Storage<'_>, all: bool) {
        let mut wanted: Vec<(String, String)> = Vec::new();
        for pod in storage.0.pods().filter(|pod| is_running(pod)) {
            let node = &pod.spec.node_name;
            let exists = storage.0.node(node).is_some();
            for claim in claim_names(pod).filter(|_| exists) {
                let claim = storage.get(VolumeKind::Claim, &claim);
                let volume = claim.map(|claim| text(claim, "/spec/volumeName")).unwrap_or_default();
                let is_csi = |volume: &Value| !text(volume, "/spec/csi/driver").is_empty();
                if storage.get(VolumeKind::Volume, volume).is_some_and(is_csi) {
                    wanted.push((node.to_string(), volume.to_owned()));
                }
            }
        }
        for (node, volume) in &wanted {
            let object = attachment(node, volume);
            let is_known = storage.get(VolumeKind::Attachment, &full_name(&object)).is_some();
            if !is_known && (all || self.rng.one_in(self.pace)) {
                storage.put(VolumeKind::Attachment, object);
            }
        }
        for name in storage.names(VolumeKind::Attachment) {
            let is_wanted =
                wanted.iter().any(|(node, volume)| name == attachment_name(node, volume).as_str());
            if !is_wanted && (all || self.rng.one_in(self.pace * 3)) {
                storage.delete(VolumeKind::Attachment, &name);
            }
        }
    }
}

/// A CSINode whose driver can attach so many volumes.
pub(super) fn csi_node(name: &str, limit: Option<i64>) -> Value {
    let allocatable = limit.map_or(json!({}), |count| json!({"count": count}));
    json!({
        "metadata": {"name": name},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "allocatable": allocatable}]},
    })
}

fn attachment_name(node: &str, volume: &str) -> String {
    format!("{node}-{volume}")
}

fn attachment(node: &str, volume: &str) -> Value {
    let source = json!({"persistentVolumeName": volume});
    json!({
        "metadata": {"name": attachment_name(node, volume)},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": source},
        "status": {"attached": true},
    })
}

/// Whether a pod is on a node and uses its volumes.
fn is_running(pod: &Pod) -> bool {
    !pod.spec.node_name.is_empty() && !is_pod_terminal(pod)
}

/// The claims of ephemeral volumes, of the class that the volume's name ends with; deleted with their pod.
fn make_ephemeral_claims(storage: &mut Storage<'_>) {
    let mut missing = Vec::new();
    for pod in storage.0.pods().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        for volume in pod.spec.volumes.iter().filter(|volume| volume.ephemeral.is_some()) {
            let metadata = &pod.metadata;
            let name = format!("{}-{}", metadata.name, volume.name);
            let full_name = format!("{}/{name}", metadata.namespace);
            if storage.get(VolumeKind::Claim, &full_name).is_none() {
                let class = volume.name.rsplit('-').next().unwrap_or_default();
                let mut claim = super::workload::claim(&name, class, 1, "ReadWriteOnce");
                claim["metadata"]["ownerReferences"] = json!([{
                    "apiVersion": "v1", "kind": "Pod", "name": metadata.name, "uid": metadata.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }]);
                missing.push(claim);
            }
        }
    }
    missing.into_iter().for_each(|claim| storage.put(VolumeKind::Claim, claim));
    let owner = |claim: &Value| text(&claim["metadata"]["ownerReferences"][0], "/uid").to_owned();
    let owners: Vec<(String, String)> = storage
        .all(VolumeKind::Claim)
        .map(|(name, claim)| (name.to_string(), owner(claim)))
        .filter(|(_, owner)| !owner.is_empty())
        .collect();
    for (name, owner) in owners {
        if !storage.0.pods().any(|pod| *pod.metadata.uid == *owner) {
            request_deletion(storage, VolumeKind::Claim, &name);
        }
    }
}

/// A user deletes a claim or a volume: its protection lets it go later.
pub(super) fn request_deletion(storage: &mut Storage<'_>, kind: VolumeKind, name: &str) {
    storage.edit(kind, name, |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
}

/// One step towards what a claim should be (upstream's `syncClaim`, which also binds claims that are being deleted).
fn keep_claim(storage: &mut Storage<'_>, name: &str) {
    let Some(claim) = storage.get(VolumeKind::Claim, name).cloned() else { return };
    if is_terminating(&claim) {
        let uses = |pod: &Pod| is_running(pod) && claim_names(pod).any(|used| used == name);
        if !storage.0.pods().any(uses) {
            return storage.delete(VolumeKind::Claim, name);
        }
    }
    let volume_name = text(&claim, "/spec/volumeName");
    if volume_name.is_empty() {
        return find_volume(storage, &claim);
    }
    match storage.get(VolumeKind::Volume, volume_name).cloned() {
        Some(volume) if is_for(&volume, &claim) => bind(storage, &claim, &volume),
        Some(volume) if claim_ref(&volume).is_none() => set_claim_ref(storage, &claim, volume),
        _ if annotation(&claim, BIND_COMPLETED).is_some() => set_phase(storage, &claim, "Lost"),
        _ => set_phase(storage, &claim, "Pending"),
    }
}

fn find_volume(storage: &mut Storage<'_>, claim: &Value) {
    let reserved = storage.all(VolumeKind::Volume).find(|(_, volume)| is_for(volume, claim));
    if let Some(volume) = reserved.map(|(_, volume)| volume.clone()) {
        return bind(storage, claim, &volume);
    }
    let class = storage.get(VolumeKind::Class, text(claim, "/spec/storageClassName"));
    let waits = class.is_some_and(|it| text(it, "/volumeBindingMode") == "WaitForFirstConsumer");
    let provisioner = class.map(|class| text(class, "/provisioner").to_owned());
    if waits && annotation(claim, SELECTED_NODE).is_none() {
        return set_phase(storage, claim, "Pending");
    }
    // Where a pod chose the node, the scheduler has looked at the volumes that are there.
    if !waits && let Some(volume) = matching_volume(storage, claim) {
        return set_claim_ref(storage, claim, volume);
    }
    match provisioner.filter(|name| name != NO_PROVISIONER) {
        Some(driver) if annotation(claim, STORAGE_PROVISIONER) != Some(&driver) => {
            let mut claim = claim.clone();
            annotate(&mut claim, STORAGE_PROVISIONER, &driver);
            storage.put(VolumeKind::Claim, claim);
        }
        _ => set_phase(storage, claim, "Pending"),
    }
}

/// The smallest free volume that satisfies a claim.
fn matching_volume(storage: &Storage<'_>, claim: &Value) -> Option<Value> {
    let class = text(claim, "/spec/storageClassName");
    let modes =
        |object: &Value| object["spec"]["accessModes"].as_array().cloned().unwrap_or_default();
    let fits = |volume: &&Value| {
        claim_ref(volume).is_none()
            && text(volume, "/status/phase") == "Available"
            && !is_terminating(volume)
            && text(volume, "/spec/storageClassName") == class
            && modes(claim).iter().all(|mode| modes(volume).contains(mode))
            && size(volume) >= size(claim)
    };
    let volumes = storage.all(VolumeKind::Volume).map(|(_, volume)| volume);
    volumes.filter(fits).min_by_key(|volume| size(volume)).cloned()
}

fn set_phase(storage: &mut Storage<'_>, object: &Value, phase: &str) {
    let kind = match object["spec"].get("resources") {
        Some(_) => VolumeKind::Claim,
        None => VolumeKind::Volume,
    };
    let mut object = object.clone();
    object["status"]["phase"] = phase.into();
    storage.put(kind, object);
}

pub(super) fn reference_to(claim: &Value) -> Value {
    json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "namespace": text(claim, "/metadata/namespace"), "name": text(claim, "/metadata/name"),
        "uid": uid(claim), "resourceVersion": text(claim, "/metadata/resourceVersion"),
    })
}

pub(super) fn set_claim_ref(storage: &mut Storage<'_>, claim: &Value, mut volume: Value) {
    volume["spec"]["claimRef"] = reference_to(claim);
    annotate(&mut volume, BOUND_BY_CONTROLLER, "yes");
    storage.put(VolumeKind::Volume, volume);
}

/// One step of the binding of a claim to the volume that is reserved for it.
fn bind(storage: &mut Storage<'_>, claim: &Value, volume: &Value) {
    let name = text(volume, "/metadata/name");
    if claim_ref(volume).is_some_and(|(_, uid)| uid.is_empty()) {
        let mut volume = volume.clone();
        volume["spec"]["claimRef"] = reference_to(claim);
        storage.put(VolumeKind::Volume, volume);
    } else if text(volume, "/status/phase") != "Bound" {
        set_phase(storage, volume, "Bound");
    } else if text(claim, "/spec/volumeName") != name || annotation(claim, BIND_COMPLETED).is_none()
    {
        let mut claim = claim.clone();
        if text(&claim, "/spec/volumeName") != name {
            annotate(&mut claim, BOUND_BY_CONTROLLER, "yes");
        }
        annotate(&mut claim, BIND_COMPLETED, "yes");
        claim["spec"]["volumeName"] = name.into();
        storage.put(VolumeKind::Claim, claim);
    } else {
        set_phase(storage, claim, "Bound");
    }
}

/// One step towards what a volume should be (upstream's `syncVolume`, and the provisioner's deletion).
fn keep_volume(storage: &mut Storage<'_>, name: &str) {
    let Some(volume) = storage.get(VolumeKind::Volume, name).cloned() else { return };
    let phase = text(&volume, "/status/phase");
    if is_terminating(&volume) && phase != "Bound" {
        return storage.delete(VolumeKind::Volume, name);
    }
    let is_deleted_with_claim = annotation(&volume, PROVISIONED_BY).is_some();
    let Some((owner, uid)) = claim_ref(&volume).filter(|(_, uid)| !uid.is_empty()) else {
        return set_phase(storage, &volume, "Available");
    };
    let owner = storage.get(VolumeKind::Claim, &owner).filter(|it| super::uid(it) == uid);
    let bound_to = owner.map(|claim| text(claim, "/spec/volumeName").to_owned());
    match bound_to.as_deref() {
        // It is about to be given this one.
        Some("") => {}
        Some(bound_to) if bound_to == name => set_phase(storage, &volume, "Bound"),
        Some(_) if !is_deleted_with_claim => unbind(storage, volume),
        _ if phase != "Released" => set_phase(storage, &volume, "Released"),
        _ if is_deleted_with_claim => storage.delete(VolumeKind::Volume, name),
        _ => {}
    }
}

/// Releases a volume whose claim has another one.
fn unbind(storage: &mut Storage<'_>, mut volume: Value) {
    let annotations = volume["metadata"]["annotations"].as_object_mut();
    if annotations.is_some_and(|all| all.remove(BOUND_BY_CONTROLLER).is_some()) {
        volume["spec"]["claimRef"] = Value::Null;
    } else {
        // The user has reserved it for this claim.
        for field in ["uid", "resourceVersion"] {
            volume["spec"]["claimRef"][field] = "".into();
        }
    }
    storage.put(VolumeKind::Volume, volume);
}
