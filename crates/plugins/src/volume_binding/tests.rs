//! The plugin on a bench: filter results, scores, keys, hints, Reserve and PreBind.

mod binding;
mod filter;
mod hints;
mod keys;

use loadmaster_framework::FeatureGates;
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, node, pod};
use serde_json::{Value, json};

use super::*;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Two nodes in zone a, one in zone b; classes `wait`, `immediate` and `static`, which does not provision.
fn bench_with(args: Value, gates: FeatureGates) -> PluginTestBench {
    let mut bench = PluginTestBench::with_gates(&DEF, args, gates).unwrap();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        bench.node(node(name).label(ZONE, zone).label(HOSTNAME, name)).unwrap();
    }
    class(&mut bench, "wait", "WaitForFirstConsumer", "csi.example.com", json!({}));
    class(&mut bench, "immediate", "Immediate", "csi.example.com", json!({}));
    class(&mut bench, "static", "WaitForFirstConsumer", "kubernetes.io/no-provisioner", json!({}));
    bench
}

fn bench() -> PluginTestBench {
    bench_with(json!({}), FeatureGates::default())
}

fn class(bench: &mut PluginTestBench, name: &str, mode: &str, provisioner: &str, more: Value) {
    let mut object =
        json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    merge(&mut object, &more);
    bench.object(&StorageKind::StorageClass.gvr(), object).unwrap();
}

fn merge(object: &mut Value, more: &Value) {
    for (field, value) in more.as_object().into_iter().flatten() {
        match object.get_mut(field) {
            Some(old) if old.is_object() && value.is_object() => merge(old, value),
            _ => object[field] = value.clone(),
        }
    }
}

/// An unbound claim of the class, of 1Gi, read and written by one node.
fn claim_object(name: &str, class: &str, more: &Value) -> Value {
    let mut object = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "5"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class,
            "volumeMode": "Filesystem"},
        "status": {"phase": "Pending"}});
    merge(&mut object, more);
    object
}

fn claim(bench: &mut PluginTestBench, name: &str, class: &str, more: Value) {
    let object = claim_object(name, class, &more);
    bench.object(&StorageKind::PersistentVolumeClaim.gvr(), object).unwrap();
}

/// A claim that is bound to the volume of this name.
fn bound_claim(bench: &mut PluginTestBench, name: &str, volume: &str) {
    let annotations = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let more = json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
    claim(bench, name, "wait", more);
}

/// An available volume of the class, of 1Gi.
fn volume_object(name: &str, class: &str, more: &Value) -> Value {
    let mut object = json!({"kind": "PersistentVolume", "apiVersion": "v1",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "7"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "volumeMode": "Filesystem", "local": {"path": "/mnt"}},
        "status": {"phase": "Available"}});
    merge(&mut object, more);
    object
}

fn volume(bench: &mut PluginTestBench, name: &str, class: &str, more: Value) {
    let object = volume_object(name, class, &more);
    bench.object(&StorageKind::PersistentVolume.gvr(), object).unwrap();
}

/// A node affinity to nodes with one of these values of a label.
fn on(label: &str, values: &[&str]) -> Value {
    let expression = json!({"key": label, "operator": "In", "values": values});
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
}

/// A pod with these claims, and a token volume as every pod has one.
fn pod_with(claims: &[&str]) -> PodBuilder {
    let token = json!({"name": "kube-api-access-x7b2q", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let volume = |(at, name): (usize, &&str)| json!({"name": format!("v{at}"), "persistentVolumeClaim": {"claimName": name}});
    let volumes: Vec<Value> = claims.iter().enumerate().map(volume).chain([token]).collect();
    pod("web-0").set_field("/spec/volumes", json!(volumes))
}
