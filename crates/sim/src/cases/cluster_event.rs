//! Random cluster events, to ask for queueing hints of a pod that a plugin rejected.

use serde_json::{Value, json};

use super::case_rng::CaseRng;
use super::features::CaseFeature;
use super::pod::{self, Role};
use super::{CaseEvent, OracleCase, OracleCaseKind, cluster, node, volumes};

/// A case that asks for this plugin's queueing hint; its cluster is the one after the event.
pub(super) fn case(draw: &mut CaseRng, id: u64, plugin: &str) -> OracleCase {
    if draw.percent(80) {
        features_of(plugin).iter().for_each(|feature| draw.add(*feature));
    }
    let mut case = cluster::case(draw, id);
    let (resource, action, old, new) = if draw.percent(60) {
        registered_by(draw, &mut case, plugin)
    } else {
        match draw.range(0, 9) {
            0..2 => node_added(draw, &mut case),
            2..5 => node_updated(draw, &mut case, ALL_PARTS),
            5 => node_deleted(draw, &mut case),
            6 => pod_added_or_updated(draw, &mut case, ALL_PARTS),
            7 => pod_deleted(draw, &mut case),
            _ => pending_pod_updated(draw, &mut case, ALL_PARTS),
        }
    };
    let (plugin, resource, action) = (plugin.to_owned(), resource.to_owned(), action.to_owned());
    case.kind = OracleCaseKind::Hint(Box::new(CaseEvent { plugin, resource, action, old, new }));
    case
}

/// The features that the plugin's results depend on.
fn features_of(plugin: &str) -> &'static [CaseFeature] {
    match plugin {
        "SchedulingGates" => &[CaseFeature::Gates],
        "NodeUnschedulable" => &[CaseFeature::Unschedulable, CaseFeature::Taints],
        "NodeName" => &[CaseFeature::NodeName],
        "TaintToleration" => &[CaseFeature::Taints],
        "NodeAffinity" => &[CaseFeature::NodeAffinity, CaseFeature::NodeSelector],
        "NodePorts" => &[CaseFeature::Ports],
        "NodeResourcesFit" => &[CaseFeature::Resources, CaseFeature::Scalars],
        "PodTopologySpread" => &[CaseFeature::Spread, CaseFeature::Taints],
        "InterPodAffinity" => &[CaseFeature::Affinity, CaseFeature::AntiAffinity],
        "VolumeRestrictions" | "NodeVolumeLimits" | "VolumeBinding" | "VolumeZone" => {
            &[CaseFeature::Volumes]
        }
        "NodeDeclaredFeatures" => &[CaseFeature::DeclaredFeatures],
        _ => &[],
    }
}

/// An event that the plugin has registered.
fn registered_by(draw: &mut CaseRng, case: &mut OracleCase, plugin: &str) -> EventParts {
    match (plugin, draw.range(0, 3)) {
        ("VolumeBinding" | "VolumeZone", 0..3)
        | ("VolumeRestrictions" | "NodeVolumeLimits", 0..2) => storage_object_changed(draw, case),
        ("VolumeRestrictions" | "NodeVolumeLimits", 2) => pod_deleted(draw, case),
        ("VolumeBinding" | "VolumeZone", _) => node_updated(draw, case, &[ChangedPart::Labels]),
        ("NodeDeclaredFeatures", 0..2) => node_updated(draw, case, &[ChangedPart::Features]),
        ("NodeDeclaredFeatures", 2) => pending_pod_updated(draw, case, &[ChangedPart::Features]),
        ("SchedulingGates", _) => pending_pod_updated(draw, case, &[ChangedPart::Gates]),
        ("NodeUnschedulable" | "TaintToleration", 0) => {
            pending_pod_updated(draw, case, &[ChangedPart::Tolerations])
        }
        ("NodeUnschedulable" | "TaintToleration", 1..3) => {
            node_updated(draw, case, &[ChangedPart::Taints])
        }
        ("NodeAffinity" | "InterPodAffinity" | "PodTopologySpread", 0) => {
            node_updated(draw, case, &[ChangedPart::Labels, ChangedPart::Taints])
        }
        ("NodePorts" | "NodeResourcesFit" | "InterPodAffinity" | "PodTopologySpread", 1) => {
            pod_deleted(draw, case)
        }
        ("InterPodAffinity" | "PodTopologySpread", 2) => {
            pod_added_or_updated(draw, case, &[ChangedPart::Labels])
        }
        ("PodTopologySpread", _) => {
            pending_pod_updated(draw, case, &[ChangedPart::Labels, ChangedPart::Tolerations])
        }
        ("NodeResourcesFit", 0) => pod_added_or_updated(draw, case, &[ChangedPart::Size]),
        ("NodeResourcesFit", 2) => node_updated(draw, case, &[ChangedPart::Size]),
        _ => node_added(draw, case),
    }
}

/// The part of an object that changed.
#[derive(Clone, Copy)]
enum ChangedPart {
    Labels,
    Taints,
    Tolerations,
    /// Allocatable of a node, requests of a pod.
    Size,
    Gates,
    /// Those that a node declares or a pod needs.
    Features,
    /// Several at once, or nothing that a plugin reads.
    Other,
}

const ALL_PARTS: &[ChangedPart] = &[
    ChangedPart::Labels,
    ChangedPart::Taints,
    ChangedPart::Tolerations,
    ChangedPart::Size,
    ChangedPart::Gates,
    ChangedPart::Features,
    ChangedPart::Other,
];

type EventParts = (&'static str, &'static str, Value, Value);

fn node_names(case: &OracleCase) -> Vec<String> {
    let nodes = case.objects.iter().filter(|object| object["kind"] == "Node");
    nodes.filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

fn node_added(draw: &mut CaseRng, case: &mut OracleCase) -> EventParts {
    let new = node::node(draw, "new", &node_names(case));
    case.objects.insert(0, new.clone());
    ("Node", "Add", Value::Null, new)
}

/// An update of an existing node. The old node has a part of another random node.
fn node_updated(draw: &mut CaseRng, case: &mut OracleCase, parts: &[ChangedPart]) -> EventParts {
    let names = node_names(case);
    if names.is_empty() {
        return node_added(draw, case);
    }
    let name = &names[draw.count(0, names.len() - 1)];
    let other = node::node(draw, name, &names);
    let nodes = case.objects.iter().filter(|object| object["kind"] == "Node");
    let new = nodes.into_iter().find(|node| node["metadata"]["name"] == name.as_str()).cloned();
    let new = new.unwrap_or_else(|| other.clone());
    let mut old = new.clone();
    let action = match draw.pick(parts) {
        ChangedPart::Labels => {
            old["metadata"] = other["metadata"].clone();
            "UpdateNodeLabel"
        }
        ChangedPart::Taints | ChangedPart::Tolerations => {
            copy_fields(&mut old, &other, &["spec"]);
            "UpdateNodeTaint"
        }
        ChangedPart::Size => {
            copy_fields(&mut old, &other, &["status"]);
            "UpdateNodeAllocatable"
        }
        ChangedPart::Gates => draw.pick(&["UpdateNodeCondition", "UpdateNodeAnnotation"]),
        ChangedPart::Features => {
            copy_fields(&mut old["status"], &other["status"], &["declaredFeatures"]);
            "UpdateNodeDeclaredFeature"
        }
        ChangedPart::Other => {
            old = other;
            draw.pick(&[
                "UpdateNodeLabel|UpdateNodeTaint",
                "Update",
                "UpdateNodeLabel|UpdateNodeAllocatable",
            ])
        }
    };
    ("Node", action, old, new)
}

fn node_deleted(draw: &mut CaseRng, case: &mut OracleCase) -> EventParts {
    let nodes = case.objects.iter().filter(|object| object["kind"] == "Node");
    let nodes: Vec<Value> = nodes.cloned().collect();
    match nodes.len() {
        0 => node_added(draw, case),
        // The scheduler runs the hints before it removes the node from its cache.
        n => ("Node", "Delete", nodes[draw.count(0, n - 1)].clone(), Value::Null),
    }
}

fn pod_added_or_updated(
    draw: &mut CaseRng,
    case: &mut OracleCase,
    parts: &[ChangedPart],
) -> EventParts {
    let nodes = node_names(case);
    if nodes.is_empty() {
        return node_added(draw, case);
    }
    let role = if draw.percent(85) { Role::Assigned } else { Role::Pending };
    let resource = if role == Role::Assigned { "AssignedPod" } else { "UnschedulablePod" };
    let new = pod::pod(draw, "other", role, &nodes);
    case.objects.push(new.clone());
    if draw.percent(50) {
        return (resource, "Add", Value::Null, new);
    }
    let (action, old) = old_pod(draw, &new, role, &nodes, parts);
    (resource, action, old, new)
}

fn pod_deleted(draw: &mut CaseRng, case: &mut OracleCase) -> EventParts {
    let nodes = node_names(case);
    let role = draw.mostly(&[Role::Assigned], &[Role::Nominated, Role::Pending]);
    let resource = if role == Role::Assigned { "AssignedPod" } else { "UnschedulablePod" };
    let assigned = case.objects.iter().rposition(|o| {
        o["kind"] == "Pod" && o["spec"].get("nodeName").is_some() && o["metadata"]["name"] != "web"
    });
    let old = match assigned.filter(|_| role == Role::Assigned && draw.percent(50)) {
        Some(at) => case.objects.remove(at),
        None => pod::pod(draw, "gone", role, &nodes),
    };
    (resource, "Delete", old, Value::Null)
}

/// An update of the pending pod itself; or of another pending pod, which must not be mistaken for it.
fn pending_pod_updated(
    draw: &mut CaseRng,
    case: &mut OracleCase,
    parts: &[ChangedPart],
) -> EventParts {
    let nodes = node_names(case);
    let own = case.objects.iter().find(|o| o["kind"] == "Pod" && o["metadata"]["name"] == "web");
    let mut new = own.cloned().unwrap_or(Value::Null);
    if draw.percent(15) {
        new["metadata"]["name"] = json!("other");
        new["metadata"]["uid"] = json!("other");
        // The other pod is pending as well.
        drop(new["spec"].as_object_mut().and_then(|spec| spec.remove("nodeName")));
        case.objects.push(new.clone());
    }
    let (action, old) = old_pod(draw, &new, Role::Target, &nodes, parts);
    ("UnschedulablePod", action, old, new)
}

/// The action type of an update, and the old pod.
fn old_pod(
    draw: &mut CaseRng,
    new: &Value,
    role: Role,
    nodes: &[String],
    parts: &[ChangedPart],
) -> (&'static str, Value) {
    let other = pod::pod(draw, "web", role, nodes);
    let mut old = new.clone();
    let action = match draw.pick(parts) {
        ChangedPart::Labels => {
            old["metadata"]["labels"] = other["metadata"]["labels"].clone();
            "UpdatePodLabel"
        }
        ChangedPart::Size => {
            copy_fields(
                &mut old["spec"],
                &other["spec"],
                &["containers", "initContainers", "resources"],
            );
            "UpdatePodScaleDown"
        }
        ChangedPart::Tolerations => {
            copy_fields(&mut old["spec"], &other["spec"], &["tolerations"]);
            "UpdatePodToleration"
        }
        ChangedPart::Gates => {
            old["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
            "UpdatePodSchedulingGatesEliminated"
        }
        ChangedPart::Features => {
            let fields = ["hostNetwork", "hostUsers", "containers", "initContainers"];
            copy_fields(&mut old["spec"], &other["spec"], &[draw.pick(&fields)]);
            "Update"
        }
        ChangedPart::Taints | ChangedPart::Other => draw.pick(&[
            "Update",
            "UpdatePodGeneratedResourceClaim",
            "UpdatePodLabel|UpdatePodToleration",
        ]),
    };
    (action, old)
}

/// Kinds of storage objects, as events name them.
const STORAGE_KINDS: [(&str, &str); 7] = [
    ("PersistentVolume", "PersistentVolume"),
    ("PersistentVolumeClaim", "PersistentVolumeClaim"),
    ("StorageClass", "storage.k8s.io/StorageClass"),
    ("CSINode", "storage.k8s.io/CSINode"),
    ("CSIDriver", "storage.k8s.io/CSIDriver"),
    ("CSIStorageCapacity", "storage.k8s.io/CSIStorageCapacity"),
    ("VolumeAttachment", "storage.k8s.io/VolumeAttachment"),
];

/// A storage object was added, updated or deleted. The old object of an update is another random one, or the same but for one field.
fn storage_object_changed(draw: &mut CaseRng, case: &mut OracleCase) -> EventParts {
    let (kind, resource) = draw.pick(&STORAGE_KINDS);
    let places: Vec<usize> =
        (0..case.objects.len()).filter(|at| case.objects[*at]["kind"] == kind).collect();
    if places.is_empty() {
        return node_added(draw, case);
    }
    let at = draw.pick(&places);
    let new = case.objects[at].clone();
    match draw.range(0, 9) {
        0..3 => (resource, "Add", Value::Null, new),
        3..5 => {
            case.objects.remove(at);
            (resource, "Delete", new, Value::Null)
        }
        _ => {
            let mut old = volumes::another_object(draw, &new);
            let fields = ["metadata", "spec", "status", "allowedTopologies", "capacity"];
            if draw.percent(70) {
                let mut mostly_new = new.clone();
                copy_fields(&mut mostly_new, &old, &[draw.pick(&fields)]);
                old = mostly_new;
            }
            (resource, "Update", old, new)
        }
    }
}

fn copy_fields(to: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        match from.get(*field) {
            Some(value) => to[*field] = value.clone(),
            None => drop(to.as_object_mut().and_then(|fields| fields.remove(*field))),
        }
    }
}
