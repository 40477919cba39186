//! Events, to ask for hints: something happened, and the asked pod waits because a plugin rejected it.

use serde_json::{Value, json};

use super::draw::Draw;
use super::focus::Feature;
use super::pod::{self, Role};
use super::{Ask, Case, Event, cluster, node};

/// A case that asks this plugin for a hint; its cluster is the one after the event.
pub(super) fn case(draw: &mut Draw, id: u64, plugin: &str) -> Case {
    if draw.percent(80) {
        features_of(plugin).iter().for_each(|feature| draw.add(*feature));
    }
    let mut case = cluster::case(draw, id);
    let (resource, action, old, new) = if draw.percent(60) {
        registered_by(draw, &mut case, plugin)
    } else {
        match draw.range(0, 9) {
            0..2 => node_added(draw, &mut case),
            2..5 => node_updated(draw, &mut case, ALL_ASPECTS),
            5 => node_deleted(draw, &mut case),
            6 => pod_added_or_updated(draw, &mut case, ALL_ASPECTS),
            7 => pod_deleted(draw, &mut case),
            _ => own_update(draw, &mut case, ALL_ASPECTS),
        }
    };
    let (plugin, resource, action) = (plugin.to_owned(), resource.to_owned(), action.to_owned());
    case.ask = Ask::Hint(Box::new(Event { plugin, resource, action, old, new }));
    case
}

/// What the plugin's answers hang on.
fn features_of(plugin: &str) -> &'static [Feature] {
    match plugin {
        "SchedulingGates" => &[Feature::Gates],
        "NodeUnschedulable" => &[Feature::Unschedulable, Feature::Taints],
        "NodeName" => &[Feature::NodeName],
        "TaintToleration" => &[Feature::Taints],
        "NodeAffinity" => &[Feature::NodeAffinity, Feature::NodeSelector],
        "NodePorts" => &[Feature::Ports],
        "NodeResourcesFit" => &[Feature::Resources, Feature::Scalars],
        "PodTopologySpread" => &[Feature::Spread, Feature::Taints],
        "InterPodAffinity" => &[Feature::Affinity, Feature::AntiAffinity],
        _ => &[],
    }
}

/// An event that may matter to the plugin.
fn registered_by(draw: &mut Draw, case: &mut Case, plugin: &str) -> Happened {
    match (plugin, draw.range(0, 3)) {
        ("SchedulingGates", _) => own_update(draw, case, &[Aspect::Gates]),
        ("NodeUnschedulable" | "TaintToleration", 0) => {
            own_update(draw, case, &[Aspect::Tolerations])
        }
        ("NodeUnschedulable" | "TaintToleration", 1..3) => {
            node_updated(draw, case, &[Aspect::Taints])
        }
        ("NodeAffinity" | "InterPodAffinity" | "PodTopologySpread", 0) => {
            node_updated(draw, case, &[Aspect::Labels, Aspect::Taints])
        }
        ("NodePorts" | "NodeResourcesFit" | "InterPodAffinity" | "PodTopologySpread", 1) => {
            pod_deleted(draw, case)
        }
        ("InterPodAffinity" | "PodTopologySpread", 2) => {
            pod_added_or_updated(draw, case, &[Aspect::Labels])
        }
        ("PodTopologySpread", _) => own_update(draw, case, &[Aspect::Labels, Aspect::Tolerations]),
        ("NodeResourcesFit", 0) => pod_added_or_updated(draw, case, &[Aspect::Size]),
        ("NodeResourcesFit", 2) => node_updated(draw, case, &[Aspect::Size]),
        _ => node_added(draw, case),
    }
}

/// What about an object changed.
#[derive(Clone, Copy)]
enum Aspect {
    Labels,
    Taints,
    Tolerations,
    /// Allocatable of a node, requests of a pod.
    Size,
    Gates,
    /// Several at once, or nothing that anybody looks at.
    Other,
}

const ALL_ASPECTS: &[Aspect] = &[
    Aspect::Labels,
    Aspect::Taints,
    Aspect::Tolerations,
    Aspect::Size,
    Aspect::Gates,
    Aspect::Other,
];

type Happened = (&'static str, &'static str, Value, Value);

fn node_names(case: &Case) -> Vec<String> {
    let nodes = case.objects.iter().filter(|object| object["kind"] == "Node");
    nodes.filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

fn node_added(draw: &mut Draw, case: &mut Case) -> Happened {
    let new = node::node(draw, "new", &node_names(case));
    case.objects.insert(0, new.clone());
    ("Node", "Add", Value::Null, new)
}

/// An existing node, as it is, and as it was: with some part of another one.
fn node_updated(draw: &mut Draw, case: &mut Case, aspects: &[Aspect]) -> Happened {
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
    let action = match draw.pick(aspects) {
        Aspect::Labels => {
            old["metadata"] = other["metadata"].clone();
            "UpdateNodeLabel"
        }
        Aspect::Taints | Aspect::Tolerations => {
            copy(&mut old, &other, &["spec"]);
            "UpdateNodeTaint"
        }
        Aspect::Size => {
            copy(&mut old, &other, &["status"]);
            "UpdateNodeAllocatable"
        }
        Aspect::Gates => {
            draw.pick(&["UpdateNodeCondition", "UpdateNodeAnnotation", "UpdateNodeDeclaredFeature"])
        }
        Aspect::Other => {
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

fn node_deleted(draw: &mut Draw, case: &mut Case) -> Happened {
    let nodes = case.objects.iter().filter(|object| object["kind"] == "Node");
    let nodes: Vec<Value> = nodes.cloned().collect();
    match nodes.len() {
        0 => node_added(draw, case),
        // The scheduler asks before it takes the node out.
        n => ("Node", "Delete", nodes[draw.count(0, n - 1)].clone(), Value::Null),
    }
}

fn pod_added_or_updated(draw: &mut Draw, case: &mut Case, aspects: &[Aspect]) -> Happened {
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
    let (action, old) = as_it_was(draw, &new, role, &nodes, aspects);
    (resource, action, old, new)
}

fn pod_deleted(draw: &mut Draw, case: &mut Case) -> Happened {
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

/// The waiting pod itself changed; or another waiting pod did, of which nobody should think it was this one.
fn own_update(draw: &mut Draw, case: &mut Case, aspects: &[Aspect]) -> Happened {
    let nodes = node_names(case);
    let own = case.objects.iter().find(|o| o["kind"] == "Pod" && o["metadata"]["name"] == "web");
    let mut new = own.cloned().unwrap_or(Value::Null);
    if draw.percent(15) {
        new["metadata"]["name"] = json!("other");
        new["metadata"]["uid"] = json!("other");
        // It waits as well.
        drop(new["spec"].as_object_mut().and_then(|spec| spec.remove("nodeName")));
        case.objects.push(new.clone());
    }
    let (action, old) = as_it_was(draw, &new, Role::Asked, &nodes, aspects);
    ("UnschedulablePod", action, old, new)
}

/// What was changed, and the pod before that.
fn as_it_was(
    draw: &mut Draw,
    new: &Value,
    role: Role,
    nodes: &[String],
    aspects: &[Aspect],
) -> (&'static str, Value) {
    let other = pod::pod(draw, "web", role, nodes);
    let mut old = new.clone();
    let action = match draw.pick(aspects) {
        Aspect::Labels => {
            old["metadata"]["labels"] = other["metadata"]["labels"].clone();
            "UpdatePodLabel"
        }
        Aspect::Size => {
            copy(&mut old["spec"], &other["spec"], &["containers", "initContainers", "resources"]);
            "UpdatePodScaleDown"
        }
        Aspect::Tolerations => {
            copy(&mut old["spec"], &other["spec"], &["tolerations"]);
            "UpdatePodToleration"
        }
        Aspect::Gates => {
            old["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
            "UpdatePodSchedulingGatesEliminated"
        }
        Aspect::Taints | Aspect::Other => draw.pick(&[
            "Update",
            "UpdatePodGeneratedResourceClaim",
            "UpdatePodLabel|UpdatePodToleration",
        ]),
    };
    (action, old)
}

fn copy(to: &mut Value, from: &Value, fields: &[&str]) {
    for field in fields {
        match from.get(*field) {
            Some(value) => to[*field] = value.clone(),
            None => drop(to.as_object_mut().and_then(|fields| fields.remove(*field))),
        }
    }
}
