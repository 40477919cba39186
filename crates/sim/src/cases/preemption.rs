//! Clusters that are full of pods of many priorities, and a pod that needs room.

use serde_json::{Value, json};

use super::affinity;
use super::draw::{Draw, Fields, NAMESPACES};
use super::focus::Feature;
use super::pod::{self, Role};
use super::{Ask, Case, cluster, node};

/// Priorities of pods on nodes. Few, so that many are equal.
const PRIORITIES: [i64; 8] = [-10, -10, 0, 0, 5, 5, 10, 1000];
const ODD_PRIORITIES: [i64; 4] = [-2_147_483_648, -2_147_483_647, 1_000_000_000, 2_000_001_000];

const STARTS: [&str; 5] = [
    "2024-05-01T10:00:00Z",
    "2024-05-01T10:00:01Z",
    "2024-05-01T12:00:00+02:00",
    "2023-01-01T00:00:00Z",
    "2024-06-30T23:59:59Z",
];

const GOING_SINCE: &str = "2026-01-31T12:00:00Z";

/// What takes room, and goes with the pods that have it.
const SCARCE: [Feature; 5] =
    [Feature::Resources, Feature::Ports, Feature::AntiAffinity, Feature::Spread, Feature::Scalars];

const BESIDE: [Feature; 7] = [
    Feature::Affinity,
    Feature::Namespaces,
    Feature::Terminating,
    Feature::Nominated,
    Feature::Taints,
    Feature::NodeAffinity,
    Feature::PodShapes,
];

/// A case that asks who would have to go for the pod, and from where.
pub(super) fn case(draw: &mut Draw, id: u64) -> Case {
    let is_small = draw.percent(75);
    if is_small {
        draw.forget_focus();
        if draw.percent(40) {
            let beside = draw.pick(&BESIDE);
            draw.add(beside);
        }
    }
    for feature in draw.some(&SCARCE, 1, 2) {
        draw.add(feature);
    }
    let case = if is_small { small(draw) } else { of_any_kind(draw) };
    Case { id, ask: Ask::Preemption, ..case }
}

/// A cluster as for any other question, with priorities, starts and budgets.
fn of_any_kind(draw: &mut Draw) -> Case {
    let mut case = cluster::case(draw, 0);
    let asked = case.pod.clone();
    for object in case.objects.iter_mut().filter(|object| object["kind"] == "Pod") {
        let is_asked = super::full_name(object) == asked;
        if is_asked { make_pressing(draw, object) } else { settle(draw, object) }
    }
    finish(draw, case)
}

/// A few nodes that are full in one way.
fn small(draw: &mut Draw) -> Case {
    let names: Vec<String> =
        ["a", "b", "c", "d"][..draw.count(1, 4)].iter().map(|name| (*name).to_owned()).collect();
    let mut objects: Vec<Value> = names.iter().map(|name| small_node(draw, name)).collect();
    let n_max = (4 * names.len()).min(11);
    for at in 0..draw.count(names.len(), n_max) {
        let mut pod = pod::pod(draw, &format!("p{at}"), Role::Assigned, &names);
        pod["status"]["phase"] = json!("Running");
        request(draw, &mut pod, &["1", "1", "1500m", "2"]);
        settle(draw, &mut pod);
        objects.push(pod);
    }
    for at in 0..if draw.percent(30) { draw.count(1, 2) } else { 0 } {
        let mut pod = pod::pod(draw, &format!("n{at}"), Role::Nominated, &names);
        request(draw, &mut pod, &["500m", "1", "2"]);
        settle(draw, &mut pod);
        objects.push(pod);
    }
    let mut asked = pod::pod(draw, "web", Role::Asked, &names);
    request(draw, &mut asked, &["2", "2", "3", "3"]);
    make_pressing(draw, &mut asked);
    if draw.percent(20) {
        asked["status"]["nominatedNodeName"] = json!(draw.pick(&names.iter().collect::<Vec<_>>()));
    }
    let pod = super::full_name(&asked);
    objects.push(asked);
    finish(draw, Case { id: 0, pod, config: None, objects, ask: Ask::Preemption })
}

fn small_node(draw: &mut Draw, name: &str) -> Value {
    let mut node = node::node(draw, name, &[name.to_owned()]);
    if draw.percent(85) {
        let cpu = draw.pick(&["3", "3", "3", "2", "4"]);
        let pods = draw.mostly(&["110"], &["2", "3"]);
        node["status"]["allocatable"] = json!({"cpu": cpu, "memory": "64Gi", "pods": pods,
            "example.com/gpu": "4", "example.org/fpga": "2", "ephemeral-storage": "100Gi", "hugepages-2Mi": "64Mi"});
    }
    if !draw.percent(10) {
        node["spec"] = json!({});
    }
    node
}

fn request(draw: &mut Draw, pod: &mut Value, amounts: &[&'static str]) {
    if draw.percent(85) {
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": draw.pick(amounts)}});
    }
}

/// Makes the asked pod one for which others may have to go.
fn make_pressing(draw: &mut Draw, pod: &mut Value) {
    let spec = &mut pod["spec"];
    spec["priority"] = json!(draw.mostly(&[10, 1000, 2_000_000_000], &[-10, 0, 5]));
    if draw.percent(5) {
        spec["preemptionPolicy"] = json!("Never");
    } else if draw.percent(10) {
        spec["preemptionPolicy"] = json!("PreemptLowerPriority");
    }
}

/// Priority, start, and whether it is going already.
fn settle(draw: &mut Draw, pod: &mut Value) {
    let priority = draw.mostly(&PRIORITIES, &ODD_PRIORITIES);
    match draw.percent(90) {
        true => pod["spec"]["priority"] = json!(priority),
        false => drop(pod["spec"].as_object_mut().map(|spec| spec.remove("priority"))),
    }
    if pod["spec"].get("nodeName").is_none() {
        return;
    }
    if pod["status"].is_null() {
        pod["status"] = json!({});
    }
    pod["status"]["startTime"] = json!(draw.pick(&STARTS));
    if draw.percent(15) {
        pod["metadata"]["deletionTimestamp"] = json!(GOING_SINCE);
    }
    if draw.percent(15) {
        let mut conditions = Vec::new();
        for _ in 0..draw.mostly(&[1], &[2]) {
            let status = draw.mostly(&["True"], &["False"]);
            let reason = draw.mostly(&["PreemptionByScheduler"], &["EvictionByEvictionAPI"]);
            conditions
                .push(json!({"type": "DisruptionTarget", "status": status, "reason": reason}));
        }
        pod["status"]["conditions"] = json!(conditions);
    }
}

/// Takes the start from a pod here and there, and adds budgets.
fn finish(draw: &mut Draw, mut case: Case) -> Case {
    // Upstream takes the time at which it compares for the start of a pod that has not started, so that two of them compare
    // by chance: at most one is on a node.
    let mut nodes: Vec<Value> = Vec::new();
    let pods = case.objects.iter_mut().filter(|object| object["kind"] == "Pod");
    for pod in pods.filter(|pod| pod["status"].get("startTime").is_some()) {
        let node = pod["spec"]["nodeName"].clone();
        if draw.percent(12) && !nodes.contains(&node) {
            nodes.push(node);
            drop(pod["status"].as_object_mut().map(|status| status.remove("startTime")));
        }
    }
    if draw.percent(35) {
        make_alike(draw, &mut case);
    }
    if draw.percent(95) {
        share_no_ports(&mut case);
    }
    for at in 0..if draw.percent(60) { draw.count(1, 3) } else { 0 } {
        case.objects.push(budget(draw, at));
    }
    case
}

/// Makes the pods on nodes differ in little, so that several nodes are equally good.
fn make_alike(draw: &mut Draw, case: &mut Case) {
    let start = draw.pick(&STARTS);
    let priorities = draw.some(&[-10, 0, 5], 1, 2);
    let amount = draw.percent(70).then(|| draw.pick(&["1", "1500m", "2"]));
    for pod in case.objects.iter_mut().filter(|object| object["spec"].get("nodeName").is_some()) {
        pod["status"]["startTime"] = json!(start);
        pod["spec"]["priority"] = json!(draw.pick(&priorities));
        if let Some(amount) = amount {
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": amount}});
        }
    }
}

/// Takes its host ports from a pod that is on a node where another one has one of them.
fn share_no_ports(case: &mut Case) {
    let mut taken: Vec<Value> = Vec::new();
    for pod in case.objects.iter_mut().filter(|object| object["spec"].get("nodeName").is_some()) {
        let own: Vec<Value> = super::host_ports(pod);
        if own.iter().any(|port| taken.contains(port)) {
            let spec = &mut pod["spec"];
            for kind in ["containers", "initContainers"] {
                for container in spec[kind].as_array_mut().into_iter().flatten() {
                    drop(container.as_object_mut().map(|container| container.remove("ports")));
                }
            }
        } else {
            taken.extend(own);
        }
    }
}

fn budget(draw: &mut Draw, at: usize) -> Value {
    let mut metadata = Fields::default();
    metadata.put("name", format!("budget-{at}"));
    if draw.when(Feature::Namespaces, 60) {
        metadata.put("namespace", draw.pick(&NAMESPACES));
    }
    let mut spec = Fields::default();
    match draw.range(0, 19) {
        0 => {}
        1 => spec.put("selector", json!({})),
        2 => spec.put("selector", json!({"matchLabels": {"-": "x"}})),
        3..12 => {
            let label = draw.pick(&["web", "db", "cache"]);
            spec.put("selector", json!({"matchLabels": {"app": label}}));
        }
        _ => spec.put("selector", affinity::selector(draw)),
    }
    let mut status = Fields::default();
    if draw.percent(85) {
        status.put("disruptionsAllowed", draw.mostly(&[0, 0, 1, 1, 2], &[-1, 100]));
    }
    if draw.percent(30) {
        let mut going = Fields::default();
        for name in draw.some(&["p0", "p1", "p2", "p3", "gone"], 1, 3) {
            going.put(name, GOING_SINCE);
        }
        status.put("disruptedPods", going);
    }
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": Value::from(metadata),
        "spec": Value::from(spec), "status": Value::from(status)})
}
