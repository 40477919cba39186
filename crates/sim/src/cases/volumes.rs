//! Random volumes of pods, and the claims and PersistentVolumes that they use.
//!
//! Names of claims and disks are few, so that pods share them. Every PersistentVolume of a case has another size: of volumes of
//! equal size kube-scheduler binds a random one.

mod storage;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields, HOSTNAME, REGION, ZONE};
use super::features::CaseFeature;
use super::pod::Role;
use super::{OracleCase, VOLUME_PLUGINS};
use super::{affinity, full_name};

pub(super) use storage::another_object;

/// Names of claims that pods use.
const CLAIMS: [&str; 4] = ["data", "data", "logs", "shared"];

/// Names of StorageClasses; `storage::CLASSES` says what they are.
const CLASS_NAMES: [&str; 6] = ["fast", "fast", "local", "ebs", "now", "fast"];
const ODD_CLASS_NAMES: [&str; 4] = ["", "no-mode", "missing", "no-provisioner"];

pub(super) const DRIVERS: [&str; 4] =
    ["csi.example.com", "csi.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io"];

const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

const TIME: &str = "2026-01-31T12:00:00Z";

/// Volumes of a pod: claims, and disks that the pod names itself.
pub(super) fn of_pod(draw: &mut CaseRng, role: Role) -> Vec<Value> {
    let mut all = Vec::new();
    if !draw.has(CaseFeature::Volumes) {
        return all;
    }
    let is_target = role == Role::Target;
    let n_claims = if draw.percent(if is_target { 85 } else { 70 }) { draw.count(1, 2) } else { 0 };
    for at in 0..n_claims {
        let name = draw.mostly(&CLAIMS, &["missing"]);
        let mut claim = json!({"claimName": name});
        if draw.percent(15) {
            claim["readOnly"] = json!(true);
        }
        all.push(json!({"name": format!("claim{at}"), "persistentVolumeClaim": claim}));
    }
    if draw.percent(15) {
        let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        all.push(json!({"name": "own", "ephemeral": {"volumeClaimTemplate": template}}));
    }
    let n_disks = if draw.percent(30) { draw.count(1, 2) } else { 0 };
    for at in 0..n_disks {
        let mut volume = disk(draw);
        volume["name"] = json!(format!("disk{at}"));
        all.push(volume);
    }
    all
}

/// A volume whose source is in the pod.
fn disk(draw: &mut CaseRng) -> Value {
    let read_only = draw.percent(40);
    match draw.range(0, 12) {
        0..3 => {
            let mut disk = json!({"pdName": draw.pick(&["pd-1", "pd-2"])});
            if read_only {
                disk["readOnly"] = json!(true);
            }
            json!({"gcePersistentDisk": disk})
        }
        3..5 => {
            json!({"awsElasticBlockStore": {"volumeID": draw.mostly(&["vol-1", "vol-2", "aws://z1/vol-1"], &["aws://z1/odd"])}})
        }
        5..7 => json!({"iscsi": {"targetPortal": "10.0.0.9:3260", "lun": draw.pick(&[0, 1]),
            "iqn": draw.pick(&["iqn.2026-01.example:a", "iqn.2026-01.example:b"]), "readOnly": read_only}}),
        7..9 => {
            let mut rbd = json!({"monitors": draw.some(&["m1:6789", "m2:6789", "m3:6789"], 1, 2),
                "image": draw.pick(&["i1", "i2"]), "readOnly": read_only});
            if draw.percent(80) {
                rbd["pool"] = json!(draw.mostly(&["rbd"], &["other"]));
            }
            json!({"rbd": rbd})
        }
        9 => {
            let mut disk =
                json!({"diskName": "d1", "diskURI": draw.pick(&["/disks/d1", "/disks/d2"])});
            if draw.percent(30) {
                disk["kind"] = json!(draw.pick(&["Managed", "managed", "Shared"]));
            }
            json!({"azureDisk": disk})
        }
        10 => json!({"cinder": {"volumeID": draw.pick(&["c1", "c2"])}}),
        11 => json!({"portworxVolume": {"volumeID": draw.pick(&["p1", "p2"])}}),
        _ => match draw.range(0, 3) {
            0 => json!({"vsphereVolume": {"volumePath": "[ds] v1"}}),
            1 => json!({"azureFile": {"secretName": "s", "shareName": "share"}}),
            2 => json!({"csi": {"driver": draw.pick(&DRIVERS)}}),
            _ => json!({"nfs": {"server": "nfs.example", "path": "/"}}),
        },
    }
}

/// Adds the objects that the volumes of all pods of the case need, and some more.
pub(super) fn add_objects(draw: &mut CaseRng, case: &mut OracleCase) {
    if !draw.has(CaseFeature::Volumes) {
        return;
    }
    add_gates(draw, case);
    add_topology_labels(draw, case);
    let mut volumes = VolumeDraw::new(draw);
    let mut objects = claims(draw, case, &mut volumes);
    for at in 0..draw.count(0, 4) {
        let volume = volumes.persistent_volume(draw, &format!("free-{at}"), Value::Null);
        objects.push(volume);
    }
    objects.append(&mut volumes.volumes);
    let more = storage::objects(draw, case, &objects);
    objects.extend(more);
    case.objects.splice(0..0, objects);
}

fn add_gates(draw: &mut CaseRng, case: &mut OracleCase) {
    for gate in ["StorageCapacityScoring", "VolumeLimitScaling"] {
        if draw.percent(12) {
            case.feature_gates.insert(gate.to_owned(), true);
        }
    }
}

/// In some cases one of the volume plugins is alone, so that the others do not reject before it.
pub(super) fn add_config(draw: &mut CaseRng, case: &mut OracleCase) {
    if case.config.is_some() || !draw.percent(30) {
        return;
    }
    let alone = draw.pick(&VOLUME_PLUGINS);
    let others = VOLUME_PLUGINS.iter().filter(|name| **name != alone);
    let disabled: Vec<Value> = others.map(|name| json!({"name": name})).collect();
    case.config = Some(json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"disabled": disabled}}}],
    }));
}

/// Labels that translated in-tree volumes and VolumeZone compare.
fn add_topology_labels(draw: &mut CaseRng, case: &mut OracleCase) {
    for node in case.objects.iter_mut().filter(|object| object["kind"] == "Node") {
        for key in ["topology.ebs.csi.aws.com/zone", "topology.gke.io/zone", BETA_ZONE] {
            if draw.percent(35) {
                node["metadata"]["labels"][key] = json!(draw.pick(&["z1", "z2"]));
            }
        }
        if draw.percent(10) {
            node["metadata"]["labels"][BETA_REGION] = json!(draw.pick(&["r1", "r2"]));
        }
        if draw.percent(10) {
            let fields = node["metadata"].as_object_mut();
            drop(fields.map(|metadata| metadata.remove("labels")));
        }
    }
}

/// Different sizes in MiB, in random order.
fn sizes(draw: &mut CaseRng) -> Vec<i64> {
    let mut sizes: Vec<i64> = (1..=30).map(|step| step * 512).collect();
    draw.shuffle(&mut sizes);
    sizes
}

/// The claims that pods use.
fn claims(draw: &mut CaseRng, case: &OracleCase, volumes: &mut VolumeDraw) -> Vec<Value> {
    let mut used: BTreeSet<(String, String)> = BTreeSet::new();
    let mut owned: Vec<(Value, String)> = Vec::new();
    for pod in case.objects.iter().filter(|object| object["kind"] == "Pod") {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
            if let Some(name) = claim.filter(|name| *name != "missing") {
                used.insert((namespace.to_owned(), name.to_owned()));
            }
            if volume.get("ephemeral").is_some() {
                let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let volume = volume["name"].as_str().unwrap_or_default();
                owned.push((pod.clone(), format!("{pod_name}-{volume}")));
            }
        }
    }
    if draw.percent(20) {
        used.insert(("default".to_owned(), "unused".to_owned()));
    }
    let mut all = Vec::new();
    for (namespace, name) in used {
        if draw.percent(95) {
            all.push(claim(draw, &namespace, &name, volumes));
        }
    }
    for (pod, name) in owned {
        if draw.percent(90) {
            let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
            let mut claim = claim(draw, namespace, &name, volumes);
            if draw.percent(90) {
                let uid =
                    pod["metadata"]["uid"].as_str().map_or_else(|| full_name(&pod), str::to_owned);
                claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
                    "name": pod["metadata"]["name"], "uid": uid, "controller": draw.percent(95)}]);
            }
            all.push(claim);
        }
    }
    all
}

/// A claim, mostly bound or waiting for its first consumer.
pub(super) fn claim(
    draw: &mut CaseRng,
    namespace: &str,
    name: &str,
    volumes: &mut VolumeDraw,
) -> Value {
    let mut annotations = Fields::default();
    let mut spec = Fields::default();
    spec.put("accessModes", access_modes(draw));
    if draw.percent(96) {
        let size = draw.pick(&["500Mi", "1Gi", "1Gi", "3Gi", "6Gi"]);
        spec.put("resources", json!({"requests": {"storage": size}}));
    }
    let class = draw.mostly(&CLASS_NAMES, &ODD_CLASS_NAMES);
    match draw.range(0, 19) {
        0 => {}
        1 => annotations.put(BETA_CLASS, class),
        _ => spec.put("storageClassName", class),
    }
    if draw.percent(12) {
        spec.put("volumeMode", draw.pick(&["Block", "Filesystem"]));
    }
    if draw.percent(12) {
        spec.put("selector", affinity::selector(draw));
    }
    if draw.percent(6) {
        spec.put("volumeAttributesClassName", draw.pick(&["gold", "silver", ""]));
    }
    let mut status = Fields::default();
    let key = json!({"namespace": namespace, "name": name});
    match draw.range(0, 19) {
        0..9 => {
            let volume = format!("pv-{namespace}-{name}");
            spec.put("volumeName", volume.clone());
            annotations.put(BIND_COMPLETED, "yes");
            status.put("phase", draw.mostly(&["Bound"], &["Lost", "Pending"]));
            if draw.percent(96) {
                volumes.add_bound(draw, &volume, key);
            }
        }
        9 => {
            // Bound by its user, not by the controller.
            let volume = draw.pick(&["free-0", "free-1", "missing"]);
            spec.put("volumeName", volume);
        }
        _ => {
            status.put("phase", "Pending");
            if draw.percent(10) {
                annotations.put(SELECTED_NODE, draw.pick(&["a", "b"]));
            }
        }
    }
    let mut metadata = Fields::default();
    metadata.put("name", name);
    metadata.put("namespace", namespace);
    if draw.percent(80) {
        metadata.put("uid", format!("uid-of-{name}"));
    }
    if draw.percent(4) {
        metadata.put("deletionTimestamp", TIME);
    }
    metadata.put_some("annotations", annotations);
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": Value::from(metadata), "spec": Value::from(spec)});
    if !status.is_empty() {
        claim["status"] = status.into();
    }
    claim
}

fn access_modes(draw: &mut CaseRng) -> Vec<&'static str> {
    match draw.range(0, 9) {
        0..5 => vec!["ReadWriteOnce"],
        5..8 => vec!["ReadWriteOncePod"],
        8 => vec!["ReadWriteMany"],
        _ => draw.some(&["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"], 0, 2),
    }
}

/// Draws PersistentVolumes of different sizes.
pub(super) struct VolumeDraw {
    sizes: Vec<i64>,
    volumes: Vec<Value>,
}

impl VolumeDraw {
    pub(super) fn new(draw: &mut CaseRng) -> VolumeDraw {
        VolumeDraw { sizes: sizes(draw), volumes: Vec::new() }
    }

    /// Adds the volume that a claim is bound to.
    fn add_bound(&mut self, draw: &mut CaseRng, name: &str, claim: Value) {
        let mut reference = claim;
        reference["apiVersion"] = json!("v1");
        reference["kind"] = json!("PersistentVolumeClaim");
        if draw.percent(80) {
            reference["uid"] =
                json!(format!("uid-of-{}", reference["name"].as_str().unwrap_or_default()));
        }
        let volume = self.persistent_volume(draw, name, reference);
        self.volumes.push(volume);
    }

    /// A volume; `claim` is the reference to its claim, or null.
    pub(super) fn persistent_volume(
        &mut self,
        draw: &mut CaseRng,
        name: &str,
        claim: Value,
    ) -> Value {
        let mut metadata = Fields::default();
        metadata.put("name", name);
        metadata.put_some("labels", volume_labels(draw));
        if draw.percent(3) {
            metadata.put("deletionTimestamp", TIME);
        }
        let mut spec = volume_source(draw);
        let size = self.sizes.pop().unwrap_or(1);
        spec.put("capacity", json!({"storage": format!("{size}Mi")}));
        spec.put(
            "accessModes",
            draw.mostly(
                &[
                    &["ReadWriteOnce", "ReadWriteOncePod"] as &[&str],
                    &["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"],
                ],
                &[&["ReadWriteOnce"], &[]],
            ),
        );
        spec.put("storageClassName", draw.mostly(&CLASS_NAMES, &["", "missing"]));
        if draw.percent(12) {
            spec.put("volumeMode", draw.pick(&["Block", "Filesystem"]));
        }
        if draw.percent(5) {
            spec.put("volumeAttributesClassName", draw.pick(&["gold", "silver"]));
        }
        if draw.percent(50) {
            spec.put("nodeAffinity", node_affinity(draw));
        }
        let mut status = "Available";
        if !claim.is_null() {
            spec.put("claimRef", claim);
            status = "Bound";
        } else if draw.percent(12) {
            // Reserved for a claim by its user.
            let (namespace, claim) = (draw.mostly(&["default"], &["blue"]), draw.pick(&CLAIMS));
            spec.put("claimRef", json!({"namespace": namespace, "name": claim}));
        }
        let status = draw.mostly(&[status], &["Released", "Pending"]);
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": Value::from(metadata),
            "spec": Value::from(spec), "status": {"phase": status}})
    }
}

fn volume_labels(draw: &mut CaseRng) -> Value {
    let mut labels = Fields::default();
    if draw.percent(30) {
        labels.put(
            draw.pick(&[ZONE, ZONE, BETA_ZONE]),
            draw.mostly(&["z1", "z2", "z1__z2", "z3"], &["z1__", "", " z1 __z2"]),
        );
    }
    if draw.percent(10) {
        labels.put(draw.pick(&[REGION, BETA_REGION]), draw.pick(&["r1", "r2"]));
    }
    if draw.percent(15) {
        labels.put("app", draw.pick(&["web", "db"]));
    }
    labels.into()
}

/// The spec with the volume's source.
fn volume_source(draw: &mut CaseRng) -> Fields {
    let mut spec = Fields::default();
    let handle = draw.pick(&["h1", "h2", "h3", "h4"]);
    match draw.range(0, 13) {
        0..7 => spec.put("csi", json!({"driver": draw.pick(&DRIVERS), "volumeHandle": handle})),
        7..9 => {
            let id = draw.mostly(&["vol-1", "vol-2", "aws://z1/vol-3"], &["aws://z1/odd"]);
            spec.put("awsElasticBlockStore", json!({"volumeID": id}));
        }
        9 => spec.put("gcePersistentDisk", json!({"pdName": draw.pick(&["pd-1", "pd-2"])})),
        10 => {
            let mut disk =
                json!({"diskName": "d1", "diskURI": draw.pick(&["/disks/d1", "/disks/d2"])});
            if draw.percent(30) {
                disk["kind"] = json!(draw.pick(&["Managed", "Dedicated"]));
            }
            spec.put("azureDisk", disk);
        }
        11 => spec.put("cinder", json!({"volumeID": draw.pick(&["c1", "c2"])})),
        12 => match draw.range(0, 2) {
            0 => spec.put("portworxVolume", json!({"volumeID": draw.pick(&["p1", "p2"])})),
            1 => spec.put("vsphereVolume", json!({"volumePath": "[ds] v1"})),
            _ => spec.put("azureFile", json!({"secretName": "s", "shareName": "share"})),
        },
        _ => spec.put("hostPath", json!({"path": "/data"})),
    }
    spec
}

/// `nodeAffinity` of a volume.
fn node_affinity(draw: &mut CaseRng) -> Value {
    let n = draw.mostly(&[1], &[2, 0]);
    let terms: Vec<Value> = (0..n).map(|_| node_term(draw)).collect();
    if draw.percent(97) { json!({"required": {"nodeSelectorTerms": terms}}) } else { json!({}) }
}

fn node_term(draw: &mut CaseRng) -> Value {
    let requirement = match draw.range(0, 9) {
        0..5 => {
            let key = draw.mostly(&[ZONE], &[BETA_ZONE, "topology.ebs.csi.aws.com/zone"]);
            json!({"key": key, "operator": "In", "values": draw.some(&["z1", "z2", "z3"], 1, 2)})
        }
        5..8 => {
            json!({"key": HOSTNAME, "operator": "In", "values": draw.some(&["a", "b", "c"], 1, 2)})
        }
        8 => json!({"key": "disk", "operator": draw.pick(&["Exists", "DoesNotExist"])}),
        _ => {
            json!({"key": "generation", "operator": "Gt", "values": [draw.mostly(&["5"], &["x"])]})
        }
    };
    json!({"matchExpressions": [requirement]})
}
