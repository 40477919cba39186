//! Gives storage objects and pods from any bytes to the volume plugins: used by the tests and by a fuzz target. Nothing may panic, and
//! the incremental forms give the results of the per-node ones.

use std::sync::Arc;

use loadmaster_api::document::Document;
use loadmaster_framework::api_calls::PluginStepInput;
use loadmaster_framework::testkit::{PluginTestBench, node, pod};
use loadmaster_framework::{
    ActionType, ClusterEvent, EventObject, FeatureGates, Gvr, ObjectInfo, PluginDef,
};
use loadmaster_plugins::{node_volume_limits, volume_binding, volume_restrictions, volume_zone};
use serde_json::{Value, json};

const VOLUME_PLUGINS: [&PluginDef; 4] =
    [&volume_binding::DEF, &volume_restrictions::DEF, &node_volume_limits::DEF, &volume_zone::DEF];

/// Names of the kinds, groups and resources.
const KINDS: [(&str, &str, &str); 7] = [
    ("PersistentVolumeClaim", "", "persistentvolumeclaims"),
    ("PersistentVolume", "", "persistentvolumes"),
    ("StorageClass", "storage.k8s.io", "storageclasses"),
    ("CSINode", "storage.k8s.io", "csinodes"),
    ("CSIDriver", "storage.k8s.io", "csidrivers"),
    ("CSIStorageCapacity", "storage.k8s.io", "csistoragecapacities"),
    ("VolumeAttachment", "storage.k8s.io", "volumeattachments"),
];

/// Larger inputs would only be slower.
const N_OBJECTS_MAX: usize = 24;

/// JSON or YAML documents. Returns how many objects they are.
pub fn storage_documents(bytes: &[u8]) -> usize {
    let document = Document::new("fuzz", String::from_utf8_lossy(bytes));
    let objects = document.decode_values().unwrap_or_default();
    storage_objects(&objects);
    objects.len()
}

/// Objects of any kind, of which pods and the kinds around volumes are used. Pods on the nodes `a` and `b` use their volumes; each other
/// pod, and one with all claims, is filtered, scored, explained, signed and bound, and each object is an event for it.
pub fn storage_objects(objects: &[Value]) {
    let objects = &objects[..objects.len().min(N_OBJECTS_MAX)];
    let all_gates = FeatureGates {
        storage_capacity_scoring: true,
        volume_limit_scaling: true,
        ..FeatureGates::default()
    };
    for gates in [FeatureGates::default(), all_gates] {
        for def in VOLUME_PLUGINS {
            evaluate(&mut bench(def, gates.clone(), objects), objects);
        }
    }
}

fn bench(def: &PluginDef, gates: FeatureGates, objects: &[Value]) -> PluginTestBench {
    let bench = PluginTestBench::with_gates(def, json!({}), gates);
    let mut bench = bench.unwrap_or_else(|error| panic!("{error}"));
    for (name, zone) in [("a", "zone-a"), ("b", "zone-b"), ("c", "zone-b")] {
        let zone = node(name).label("topology.kubernetes.io/zone", zone);
        let node = zone.label("kubernetes.io/hostname", name);
        bench.node(node).unwrap_or_else(|error| panic!("{error}"));
    }
    for (gvr, object) in objects.iter().filter_map(with_gvr) {
        if bench.object(&gvr, object.clone()).is_err() {
            // Without the fields of one plugin it would not be an object of its kind to the others' hints.
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            bench.delete_object(&gvr, text("namespace"), text("name"));
        }
    }
    for (at, object) in objects.iter().enumerate().filter(|(_, it)| it["kind"] == "Pod") {
        let name = object["spec"]["nodeName"].as_str().unwrap_or_default();
        let mut assigned = object.clone();
        if ["a", "b"].contains(&name) && assigned["metadata"].is_object() {
            assigned["metadata"]["uid"] = format!("assigned-{at}").into();
            let _ = bench.add_assigned_pod(name, assigned);
        }
    }
    bench
}

fn with_gvr(object: &Value) -> Option<(Gvr, &Value)> {
    let kind = object["kind"].as_str()?;
    let (_, group, resource) = KINDS.iter().find(|(name, ..)| *name == kind)?;
    Some((Gvr::new(group, "v1", resource), object))
}

/// The pods to schedule.
fn pods(objects: &[Value]) -> Vec<Value> {
    let is_claim = |object: &&Value| object["kind"] == "PersistentVolumeClaim";
    let names = objects.iter().filter(is_claim).map(|claim| &claim["metadata"]["name"]);
    let volumes = names.enumerate().map(|(at, name)| {
        json!({"name": format!("v{at}"), "persistentVolumeClaim": {"claimName": name}})
    });
    let with_all_claims = pod("web").set_field("/spec/volumes", volumes.collect::<Vec<_>>());
    let given = objects.iter().filter(|object| object["kind"] == "Pod").cloned();
    given.chain([with_all_claims.into()]).collect()
}

fn evaluate(bench: &mut PluginTestBench, objects: &[Value]) {
    for pod in pods(objects) {
        if bench.parse_pod(pod.clone()).is_err() {
            continue;
        }
        // The bench compares with the incremental form.
        bench.filter(pod.clone()).unwrap_or_else(|error| panic!("{error}: {pod}"));
        // A Score plugin may return an error, such as for a capacity that is too large.
        let _ = bench.score(pod.clone());
        bench.explain(pod.clone()).unwrap_or_else(|error| panic!("{error}: {pod}"));
        bench.sign(pod.clone()).unwrap_or_else(|error| panic!("{error}: {pod}"));
        give_hints(bench, &pod);
        for node in ["a", "c"] {
            let Ok(mut cycle) = bench.start_cycle(pod.clone(), node) else { continue };
            if bench.reserve(&mut cycle) == "Success" {
                let _ = bench.pre_bind(&mut cycle, PluginStepInput::Start);
            }
            bench.unreserve(cycle);
        }
    }
}

/// Each object was added, replaced by each other one of its kind, and deleted.
fn give_hints(bench: &mut PluginTestBench, pod: &Value) {
    let watched = bench.world.watched_objects().iter();
    let all: Vec<(Gvr, Arc<ObjectInfo>)> =
        watched.map(|(gvr, object)| (gvr.clone(), object.clone())).collect();
    let mut hint = |gvr: &Gvr, action, old: Option<&ObjectInfo>, new: Option<&ObjectInfo>| {
        let event = ClusterEvent::new(gvr.event_resource(), action);
        let (old, new) = (old.map(EventObject::Other), new.map(EventObject::Other));
        bench.queueing_hint(event, pod.clone(), old, new).unwrap_or_else(|error| panic!("{error}"))
    };
    for (gvr, object) in &all {
        let added = hint(gvr, ActionType::ADD, None, Some(object));
        assert!(!added.starts_with("Error"), "{gvr}: {added}");
        hint(gvr, ActionType::DELETE, Some(object), None);
        for (_, old) in all.iter().filter(|(other, _)| other == gvr) {
            let updated = hint(gvr, ActionType::UPDATE, Some(old), Some(object));
            assert!(!updated.starts_with("Error"), "{gvr}: {updated}");
        }
    }
}
