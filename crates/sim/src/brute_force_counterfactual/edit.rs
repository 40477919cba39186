//! Changes as edits of the objects of a case.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use loadmaster_engine::counterfactual::Change;
use loadmaster_engine::world_loader::SchedulingInput;
use serde_json::{Value, json};

use super::Sized;
use crate::cases::OracleCase;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A change of which the size is open.
pub(super) struct Edit {
    /// Unique among the changes of a case.
    pub name: String,
    kind: Kind,
}

enum Kind {
    /// The total request of a resource, and whether it is a field of the pod as a whole.
    Request {
        resource: String,
        from: i64,
        is_of_pod: bool,
    },
    Toleration(Value),
    /// An item of a list or map of the pod to schedule, by JSON pointer. It is removed together with nothing else.
    Item(String),
    /// Full names of the pods of a controller, in the order in which it removes them.
    Pods(Vec<String>),
    NodeLike(String),
}

impl Edit {
    /// Sizes of which one is enough if any is.
    pub fn sizes_to_try(&self) -> Vec<u64> {
        match &self.kind {
            Kind::Request { from, .. } => vec![from.unsigned_abs()],
            Kind::Pods(pods) => (1..=pods.len() as u64).collect(),
            _ => vec![1],
        }
    }

    /// Smaller sizes: all, or, of a request, those that show whether one is enough.
    pub fn smaller_sizes(&self, size: u64) -> Vec<u64> {
        match &self.kind {
            Kind::Request { .. } => {
                let some: BTreeSet<u64> = [size - 1, size / 2, 1].into_iter().collect();
                some.into_iter().filter(|it| (1..size).contains(it)).collect()
            }
            _ => (1..size).collect(),
        }
    }

    /// The size of a change of this kind; `None` for another change.
    pub fn size_of(&self, change: &Change) -> Option<u64> {
        match (&self.kind, change) {
            (
                Kind::Request { resource, from, .. },
                Change::LowerRequest { resource: other, from: all, to },
            ) => (resource == other && from == all).then(|| all.abs_diff(*to)),
            (Kind::Pods(all), Change::ScaleDown { kind, namespace, name, pods }) => {
                let is_it = self.name == format!("{kind} {namespace}/{name}");
                (is_it && all.starts_with(pods)).then_some(pods.len() as u64)
            }
            _ => (self.name == name(change)).then_some(1),
        }
    }
}

/// The name of a change that has no other size than 1.
fn name(change: &Change) -> String {
    const AFFINITY: &str = "/spec/affinity";
    match change {
        Change::AddToleration { key, value, effect } => format!("tolerate {key}={value}:{effect}"),
        Change::RemoveNodeSelector { key, .. } => format!("/spec/nodeSelector/{}", escaped(key)),
        Change::RemoveNodeAffinity {} => format!("{AFFINITY}/nodeAffinity/{REQUIRED}"),
        Change::RemoveNodeAffinityRequirement { term, requirement, .. } => {
            format!("requirement {requirement} of term {term}")
        }
        Change::RemoveSpreadConstraint { index, .. } => {
            format!("/spec/topologySpreadConstraints/{index}")
        }
        Change::RemovePodAffinityTerm { index, .. } => {
            format!("{AFFINITY}/podAffinity/{REQUIRED}/{index}")
        }
        Change::RemovePodAntiAffinityTerm { index, .. } => {
            format!("{AFFINITY}/podAntiAffinity/{REQUIRED}/{index}")
        }
        Change::AddNode { like } => format!("node like {like}"),
        Change::LowerRequest { .. } | Change::ScaleDown { .. } => String::new(),
    }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// All changes that may be made, in the order in which pairs are named.
pub(super) fn edits(input: &SchedulingInput<'_>, case: &OracleCase) -> Vec<Edit> {
    let mut all = requests(input, case);
    all.extend(tolerations(case));
    let pod = case.objects.iter().find(|it| it["kind"] == "Pod" && full_name(it) == case.pod);
    all.extend(pod.into_iter().flat_map(items));
    all.extend(node_kinds(case));
    all.extend(workloads(input));
    all
}

fn requests(input: &SchedulingInput<'_>, case: &OracleCase) -> Vec<Edit> {
    if input.pod.resized.is_some() {
        return Vec::new();
    }
    let total = &input.pod.template.requests.resources;
    let native = ["cpu", "memory", "ephemeral-storage"].map(str::to_owned);
    let names = native.into_iter().chain(total.scalars.iter().map(|(name, _)| name.to_string()));
    let pod = case.objects.iter().find(|it| it["kind"] == "Pod" && full_name(it) == case.pod);
    let of_pod = pod.map(|pod| &pod["spec"]["resources"]["requests"]);
    let edits = names.filter_map(|resource| {
        let from = total.amount(&resource);
        let counts = matches!(&*resource, "cpu" | "memory") || resource.starts_with("hugepages-");
        let counts = counts && input.world.gates().pod_level_resources;
        let is_of_pod = counts && of_pod.is_some_and(|it| !it[&resource].is_null());
        let name = format!("request {resource}");
        (from > 0).then_some(Edit { name, kind: Kind::Request { resource, from, is_of_pod } })
    });
    edits.collect()
}

/// Strings of JSON, empty for null.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn tolerations(case: &OracleCase) -> Vec<Edit> {
    let mut all: Vec<[String; 3]> = Vec::new();
    for node in case.objects.iter().filter(|it| it["kind"] == "Node") {
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let mut found: Vec<[String; 3]> = taints
            .map(|it| ["key", "value", "effect"].map(|field| text(&it[field]).to_owned()))
            .filter(|[.., effect]| effect == "NoSchedule" || effect == "NoExecute")
            .collect();
        if node["spec"]["unschedulable"] == true {
            found.push(["node.kubernetes.io/unschedulable", "", "NoSchedule"].map(str::to_owned));
        }
        // A node may have a taint twice.
        for taint in found {
            if !all.contains(&taint) {
                all.push(taint);
            }
        }
    }
    let edit = |[key, value, effect]: [String; 3]| Edit {
        name: format!("tolerate {key}={value}:{effect}"),
        kind: Kind::Toleration(
            json!({"key": key, "operator": "Equal", "value": value, "effect": effect}),
        ),
    };
    all.into_iter().map(edit).collect()
}

/// What can be removed from the pod.
fn items(pod: &Value) -> Vec<Edit> {
    let at = |pointer: String| Edit { name: pointer.clone(), kind: Kind::Item(pointer) };
    let mut all = Vec::new();
    let labels = pod["spec"]["nodeSelector"].as_object().into_iter().flatten();
    let mut keys: Vec<&String> = labels.map(|(key, _)| key).collect();
    keys.sort();
    all.extend(keys.into_iter().map(|key| at(format!("/spec/nodeSelector/{}", escaped(key)))));
    let affinity = format!("/spec/affinity/nodeAffinity/{REQUIRED}");
    if let Some(required) = pod.pointer(&affinity).filter(|it| !it.is_null()) {
        let terms = required["nodeSelectorTerms"].as_array().into_iter().flatten();
        for (term, of) in terms.enumerate() {
            let lists = ["matchExpressions", "matchFields"].iter().flat_map(|list| {
                let n = of[list].as_array().map_or(0, Vec::len);
                (0..n).map(move |index| format!("{list}/{index}"))
            });
            let lists: Vec<String> = lists.collect();
            let is_only = lists.len() < 2;
            all.extend(lists.into_iter().enumerate().filter(|_| !is_only).map(|(n, item)| Edit {
                name: format!("requirement {n} of term {term}"),
                kind: Kind::Item(format!("{affinity}/nodeSelectorTerms/{term}/{item}")),
            }));
        }
        all.push(at(affinity));
    }
    let constraints = pod["spec"]["topologySpreadConstraints"].as_array().into_iter().flatten();
    let hard = constraints.enumerate().filter(|(_, it)| it["whenUnsatisfiable"] == "DoNotSchedule");
    all.extend(hard.map(|(index, _)| at(format!("/spec/topologySpreadConstraints/{index}"))));
    for which in ["podAffinity", "podAntiAffinity"] {
        let list = format!("/spec/affinity/{which}/{REQUIRED}");
        let n = pod.pointer(&list).and_then(Value::as_array).map_or(0, Vec::len);
        all.extend((0..n).map(|index| at(format!("{list}/{index}"))));
    }
    all
}

/// What nodes of one kind have in common.
fn node_kind(node: &Value) -> String {
    let node = fresh_node(node, "");
    let mut allocatable: BTreeMap<String, i64> = BTreeMap::new();
    let list: loadmaster_api::ResourceList =
        serde_json::from_value(node["status"]["allocatable"].clone()).unwrap_or_default();
    for (name, quantity) in list.iter() {
        let amount = if *name == *"cpu" { quantity.milli_value() } else { quantity.value() };
        allocatable.insert(name.to_string(), amount);
    }
    allocatable.retain(|_, amount| *amount != 0);
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let taints =
        taints.map(|it| ["key", "value", "effect"].map(|field| text(&it[field]).to_owned()));
    let taints: Vec<[String; 3]> = taints.collect();
    let features = &node["status"]["declaredFeatures"];
    let labels = node["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let labels: BTreeMap<String, Value> =
        labels.into_iter().filter(|(key, _)| key != HOSTNAME).collect();
    format!("{labels:?} {taints:?} {allocatable:?} {features}")
}

fn node_kinds(case: &OracleCase) -> Vec<Edit> {
    let mut seen = BTreeSet::new();
    let nodes = case.objects.iter().filter(|it| it["kind"] == "Node");
    let first_of_kind = nodes.filter(|node| seen.insert(node_kind(node)));
    let names = first_of_kind.map(|node| text(&node["metadata"]["name"]).to_owned());
    names
        .map(|like| Edit { name: format!("node like {like}"), kind: Kind::NodeLike(like) })
        .collect()
}

/// A copy of a node with another name, not cordoned, without taints for conditions.
fn fresh_node(node: &Value, name: &str) -> Value {
    let mut node = node.clone();
    node["metadata"]["name"] = json!(name);
    if !node["metadata"]["labels"][HOSTNAME].is_null() {
        node["metadata"]["labels"][HOSTNAME] = json!(name);
    }
    node["spec"]["unschedulable"] = json!(false);
    if let Some(taints) = node["spec"]["taints"].as_array_mut() {
        taints.retain(|taint| !text(&taint["key"]).starts_with("node.kubernetes.io/"));
    }
    node
}

/// A pod of a controller.
struct Replica {
    name: String,
    node: String,
    created: Option<i64>,
}

/// Controllers with the pods that they would remove first: of a StatefulSet those with the highest ordinals, else those with most other
/// pods of the controller on their node, the newest, and the last by name.
fn workloads(input: &SchedulingInput<'_>) -> Vec<Edit> {
    let own = &input.pod.template;
    // By namespace, kind, name and version.
    let mut all: BTreeMap<[String; 4], Vec<Replica>> = BTreeMap::new();
    for node in input.world.node_infos() {
        for pod in node.pods() {
            let template = &pod.template;
            let Some(owner) = &template.controller else { continue };
            let is_own =
                own.controller.as_ref() == Some(owner) && own.namespace == template.namespace;
            if is_own || pod.terminating || ["DaemonSet", "Node"].contains(&owner.kind.as_str()) {
                continue;
            }
            let key = [&template.namespace, &owner.kind, &owner.name, &owner.api_version];
            all.entry(key.map(ToString::to_string)).or_default().push(Replica {
                name: pod.name.to_string(),
                node: node.name().to_owned(),
                created: pod.created.get().map(|at| at.0),
            });
        }
    }
    let edits = all.into_iter().map(|([namespace, kind, name, _], pods)| {
        let rank = |it: &Replica| match kind.as_str() {
            "StatefulSet" => {
                it.name.split('-').next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
            }
            _ => pods.iter().filter(|other| other.node == it.node).count(),
        };
        let mut order: Vec<&Replica> = pods.iter().collect();
        order.sort_by_key(|it| Reverse((rank(it), it.created, it.name.clone())));
        let names = order.into_iter().map(|it| format!("{namespace}/{}", it.name)).collect();
        Edit { name: format!("{kind} {namespace}/{name}"), kind: Kind::Pods(names) }
    });
    edits.collect()
}

/// `namespace/name` of an object.
pub(super) fn full_name(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    format!("{namespace}/{}", text(&object["metadata"]["name"]))
}

/// A case after these changes.
pub(super) fn edited(case: &OracleCase, changes: &Sized<'_>) -> OracleCase {
    let mut case = case.clone();
    let mut removed_pods: BTreeSet<&String> = BTreeSet::new();
    let mut new_nodes = Vec::new();
    for (edit, size) in changes {
        match &edit.kind {
            Kind::Pods(pods) => removed_pods.extend(pods.iter().take(*size as usize)),
            Kind::NodeLike(like) => {
                let like = case
                    .objects
                    .iter()
                    .find(|it| it["kind"] == "Node" && it["metadata"]["name"] == **like);
                new_nodes.extend(like.map(|node| {
                    fresh_node(node, &format!("new-{}", edit.name.len() + new_nodes.len()))
                }));
            }
            _ => {}
        }
    }
    case.objects.retain(|it| it["kind"] != "Pod" || !removed_pods.contains(&full_name(it)));
    case.objects.extend(new_nodes);
    let name = case.pod.clone();
    let pod = case.objects.iter_mut().find(|it| it["kind"] == "Pod" && full_name(it) == name);
    let Some(pod) = pod else { return case };
    for (edit, size) in changes {
        match &edit.kind {
            Kind::Request { resource, from, is_of_pod } => {
                let amount = from - i64::try_from(*size).unwrap_or(i64::MAX);
                set_request(pod, resource, amount, *is_of_pod);
            }
            Kind::Toleration(toleration) => match pod["spec"]["tolerations"].as_array_mut() {
                Some(all) => all.push(toleration.clone()),
                None => pod["spec"]["tolerations"] = json!([toleration]),
            },
            // Removed below, so that the indexes of other items remain valid.
            Kind::Item(pointer) => {
                if let Some(item) = pod.pointer_mut(pointer) {
                    *item = json!("removed");
                }
            }
            Kind::Pods(_) | Kind::NodeLike(_) => {}
        }
    }
    for (edit, _) in changes {
        let Kind::Item(pointer) = &edit.kind else { continue };
        let Some((parent, _)) = pointer.rsplit_once('/') else { continue };
        match pod.pointer_mut(parent) {
            Some(Value::Array(items)) => items.retain(|it| it != "removed"),
            Some(Value::Object(fields)) => fields.retain(|_, it| it != "removed"),
            _ => {}
        }
    }
    case
}

/// Makes a pod request so much of a resource, and nothing else of it anywhere.
fn set_request(pod: &mut Value, resource: &str, amount: i64, is_of_pod: bool) {
    let spec = &mut pod["spec"];
    let remove = |of: &mut Value, list: &str| {
        if let Some(list) = of.pointer_mut(list).and_then(Value::as_object_mut) {
            list.remove(resource);
        }
    };
    for containers in ["/containers", "/initContainers"] {
        let containers = spec.pointer_mut(containers).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            remove(container, "/resources/requests");
        }
    }
    remove(spec, "/resources/requests");
    remove(spec, "/overhead");
    let quantity = if resource == "cpu" { format!("{amount}m") } else { amount.to_string() };
    match is_of_pod {
        true => spec["resources"]["requests"][resource] = json!(quantity),
        false => spec["containers"][0]["resources"]["requests"][resource] = json!(quantity),
    }
}
