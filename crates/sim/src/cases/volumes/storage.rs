//! Random StorageClasses, and what CSI drivers publish: CSIDrivers, CSINodes, CSIStorageCapacities, VolumeAttachments.

use serde_json::{Value, json};

use super::super::OracleCase;
use super::super::case_rng::{CaseRng, Fields, HOSTNAME, ZONE};
use super::{DRIVERS, VolumeDraw, claim};

/// Name, provisioner and binding mode of StorageClasses.
const CLASSES: [(&str, &str, &str); 6] = [
    ("fast", "csi.example.com", "WaitForFirstConsumer"),
    ("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
    ("ebs", "kubernetes.io/aws-ebs", "WaitForFirstConsumer"),
    ("now", "csi.example.com", "Immediate"),
    ("no-mode", "csi.example.com", ""),
    ("no-provisioner", "", "WaitForFirstConsumer"),
];

const MIGRATED: [&str; 4] = [
    "kubernetes.io/aws-ebs,kubernetes.io/gce-pd",
    "kubernetes.io/aws-ebs",
    "kubernetes.io/gce-pd,kubernetes.io/azure-disk,kubernetes.io/cinder",
    "kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume",
];

/// The objects of a case; `known` are its claims and PersistentVolumes.
pub(super) fn objects(draw: &mut CaseRng, case: &OracleCase, known: &[Value]) -> Vec<Value> {
    let mut all = Vec::new();
    for at in 0..CLASSES.len() {
        if draw.percent(93) {
            all.push(storage_class(draw, at));
        }
    }
    let is_scored = case.feature_gates.contains_key("StorageCapacityScoring");
    let mut prevents_missing = draw.percent(60);
    for name in ["csi.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io"] {
        if draw.percent(60) {
            // With two such drivers kube-scheduler names a random one of them.
            all.push(csi_driver(draw, name, std::mem::take(&mut prevents_missing)));
        }
    }
    for node in case.objects.iter().filter(|object| object["kind"] == "Node") {
        if draw.percent(85) {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            all.push(csi_node(draw, name));
        }
    }
    for class in ["fast", "ebs"] {
        // Of several that fit, kube-scheduler scores with a random one.
        for at in 0..draw.count(0, if is_scored { 1 } else { 3 }) {
            all.push(csi_storage_capacity(
                draw,
                class,
                &format!("capacity-{class}-{at}"),
                is_scored,
            ));
        }
    }
    for at in 0..draw.count(0, 5) {
        all.push(volume_attachment(draw, &format!("attachment-{at}"), known));
    }
    all
}

fn storage_class(draw: &mut CaseRng, at: usize) -> Value {
    let (name, provisioner, mode) = CLASSES[at];
    let mut class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": provisioner});
    if !mode.is_empty() {
        class["volumeBindingMode"] = json!(mode);
    }
    if draw.percent(25) {
        let n = draw.mostly(&[1], &[2]);
        let terms: Vec<Value> = (0..n).map(|_| topology_term(draw)).collect();
        class["allowedTopologies"] = json!(terms);
    }
    class
}

fn topology_term(draw: &mut CaseRng) -> Value {
    if draw.percent(4) {
        return json!({});
    }
    let (key, values) = draw.mostly(
        &[(ZONE, ["z1", "z2", "z3"]), (HOSTNAME, ["a", "b", "c"])],
        &[("absent", ["1", "2", "3"])],
    );
    json!({"matchLabelExpressions": [{"key": key, "values": draw.some(&values, 1, 2)}]})
}

fn csi_driver(draw: &mut CaseRng, name: &str, prevents_missing: bool) -> Value {
    let mut spec = Fields::default();
    if draw.percent(70) {
        spec.put("storageCapacity", draw.percent(75));
    }
    if prevents_missing {
        spec.put("preventPodSchedulingIfMissing", true);
    } else if draw.percent(20) {
        spec.put("preventPodSchedulingIfMissing", false);
    }
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name},
        "spec": Value::from(spec)})
}

fn csi_node(draw: &mut CaseRng, name: &str) -> Value {
    let mut metadata = Fields::default();
    metadata.put("name", name);
    if draw.percent(50) {
        metadata.put(
            "annotations",
            json!({"storage.alpha.kubernetes.io/migrated-plugins": draw.mostly(&MIGRATED, &[""])}),
        );
    }
    let names = draw.some(
        &[
            "csi.example.com",
            "ebs.csi.aws.com",
            "pd.csi.storage.gke.io",
            "cinder.csi.openstack.org",
            "disk.csi.azure.com",
        ],
        0,
        4,
    );
    let drivers: Vec<Value> = names
        .into_iter()
        .map(|driver| {
            let mut driver = json!({"name": driver, "nodeID": name, "topologyKeys": null});
            if draw.percent(85) {
                driver["allocatable"] = match draw.percent(92) {
                    true => json!({"count": draw.mostly(&[1, 1, 2, 3], &[0])}),
                    false => json!({}),
                };
            }
            driver
        })
        .collect();
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": Value::from(metadata),
        "spec": {"drivers": drivers}})
}

/// Without a capacity kube-scheduler panics when it scores.
fn csi_storage_capacity(draw: &mut CaseRng, class: &str, name: &str, has_capacity: bool) -> Value {
    let mut capacity = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": "kube-system"}, "storageClassName": class});
    if draw.percent(94) {
        let label = json!({"matchLabels": {ZONE: draw.pick(&["z1", "z2", "z3"])}});
        let expression = json!({"matchExpressions": [{"key": "disk", "operator": draw.mostly(&["Exists", "DoesNotExist"], &["Odd"])}]});
        let host = json!({"matchLabels": {HOSTNAME: draw.pick(&["a", "b", "c"])}});
        capacity["nodeTopology"] = draw.pick(&[&label, &host, &json!({}), &expression]).clone();
    }
    if draw.percent(92) || has_capacity {
        capacity["capacity"] = json!(draw.pick(&["100Mi", "1Gi", "5Gi", "100Gi"]));
    }
    if draw.percent(20) {
        capacity["maximumVolumeSize"] = json!(draw.pick(&["1Gi", "4Gi", "100Gi"]));
    }
    capacity
}

fn volume_attachment(draw: &mut CaseRng, name: &str, known: &[Value]) -> Value {
    let names = known.iter().filter(|object| object["kind"] == "PersistentVolume");
    let mut names: Vec<&str> = names.filter_map(|it| it["metadata"]["name"].as_str()).collect();
    names.push("missing");
    let mut source = Fields::default();
    if draw.percent(95) {
        source.put("persistentVolumeName", draw.pick(&names));
    }
    let attacher = draw.mostly(&DRIVERS, &["", "other.example.com"]);
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": attacher, "nodeName": draw.pick(&["a", "b", "c"]), "source": Value::from(source)},
        "status": {"attached": true}})
}

/// Another random object with the kind and the name of this one.
pub(in crate::cases) fn another_object(draw: &mut CaseRng, object: &Value) -> Value {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    match object["kind"].as_str().unwrap_or_default() {
        "PersistentVolume" => VolumeDraw::new(draw).persistent_volume(draw, name, Value::Null),
        "PersistentVolumeClaim" => {
            let mut volumes = VolumeDraw::new(draw);
            claim(draw, namespace, name, &mut volumes)
        }
        "StorageClass" => {
            let at = CLASSES.iter().position(|(class, ..)| *class == name).unwrap_or_default();
            let mut other = storage_class(draw, at);
            other["metadata"]["name"] = json!(name);
            other
        }
        "CSINode" => csi_node(draw, name),
        "CSIDriver" => {
            let prevents_missing = draw.percent(30);
            csi_driver(draw, name, prevents_missing)
        }
        "CSIStorageCapacity" => csi_storage_capacity(draw, "fast", name, false),
        _ => volume_attachment(draw, name, &[]),
    }
}
