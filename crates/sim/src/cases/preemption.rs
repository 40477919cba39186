//! Random full clusters with pods of many priorities, and a pod that may preempt.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::affinity;
use super::case_rng::{CaseRng, Fields, NAMESPACES};
use super::features::CaseFeature;
use super::pod::{self, Role};
use super::reference_cases::host_ports;
use super::{OracleCase, OracleCaseKind, cluster, node, volumes};

/// Priorities of assigned pods: few, so that many are equal.
const PRIORITIES: [i64; 8] = [-10, -10, 0, 0, 5, 5, 10, 1000];
const ODD_PRIORITIES: [i64; 4] = [-2_147_483_648, -2_147_483_647, 1_000_000_000, 2_000_001_000];

const STARTS: [&str; 5] = [
    "2024-05-01T10:00:00Z",
    "2024-05-01T10:00:01Z",
    "2024-05-01T12:00:00+02:00",
    "2023-01-01T00:00:00Z",
    "2024-06-30T23:59:59Z",
];

const DELETION_TIME: &str = "2026-01-31T12:00:00Z";

/// Features whose rejections preemption can resolve.
const SCARCE: [CaseFeature; 6] = [
    CaseFeature::Resources,
    CaseFeature::Ports,
    CaseFeature::AntiAffinity,
    CaseFeature::Spread,
    CaseFeature::Scalars,
    CaseFeature::Volumes,
];

const SECONDARY: [CaseFeature; 7] = [
    CaseFeature::Affinity,
    CaseFeature::Namespaces,
    CaseFeature::Terminating,
    CaseFeature::Nominated,
    CaseFeature::Taints,
    CaseFeature::NodeAffinity,
    CaseFeature::PodShapes,
];

/// A case of the kind Preemption.
pub(super) fn case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let is_small = draw.percent(75);
    let has_volumes = draw.has(CaseFeature::Volumes);
    if is_small {
        draw.clear_features();
        if has_volumes {
            draw.add(CaseFeature::Volumes);
        }
        if draw.percent(40) {
            let secondary = draw.pick(&SECONDARY);
            draw.add(secondary);
        }
    }
    for feature in draw.some(&SCARCE, 1, 2) {
        draw.add(feature);
    }
    let case = if is_small { small(draw) } else { large(draw) };
    OracleCase { id, kind: OracleCaseKind::Preemption, ..case }
}

/// A cluster as for other kinds of cases, with priorities, start times and PodDisruptionBudgets.
fn large(draw: &mut CaseRng) -> OracleCase {
    let mut case = cluster::case(draw, 0);
    let target = case.pod.clone();
    for object in case.objects.iter_mut().filter(|object| object["kind"] == "Pod") {
        let is_target = super::full_name(object) == target;
        if is_target {
            set_preemptor_priority(draw, object)
        } else {
            set_priority_and_start(draw, object)
        }
    }
    finish(draw, case)
}

/// A small cluster that is full in one resource.
fn small(draw: &mut CaseRng) -> OracleCase {
    let names: Vec<String> =
        ["a", "b", "c", "d"][..draw.count(1, 4)].iter().map(|name| (*name).to_owned()).collect();
    let mut objects: Vec<Value> = names.iter().map(|name| small_node(draw, name)).collect();
    let n_max = (4 * names.len()).min(11);
    for at in 0..draw.count(names.len(), n_max) {
        let mut pod = pod::pod(draw, &format!("p{at}"), Role::Assigned, &names);
        pod["status"]["phase"] = json!("Running");
        request(draw, &mut pod, &["1", "1", "1500m", "2"]);
        set_priority_and_start(draw, &mut pod);
        objects.push(pod);
    }
    for at in 0..if draw.percent(30) { draw.count(1, 2) } else { 0 } {
        let mut pod = pod::pod(draw, &format!("n{at}"), Role::Nominated, &names);
        request(draw, &mut pod, &["500m", "1", "2"]);
        set_priority_and_start(draw, &mut pod);
        objects.push(pod);
    }
    let mut target = pod::pod(draw, "web", Role::Target, &names);
    request(draw, &mut target, &["2", "2", "3", "3"]);
    set_preemptor_priority(draw, &mut target);
    if draw.percent(20) {
        target["status"]["nominatedNodeName"] = json!(draw.pick(&names.iter().collect::<Vec<_>>()));
    }
    let pod = super::full_name(&target);
    objects.push(target);
    let (config, feature_gates) = (None, BTreeMap::new());
    let kind = OracleCaseKind::Preemption;
    let mut case = OracleCase { id: 0, pod, config, feature_gates, objects, kind };
    volumes::add_objects(draw, &mut case);
    finish(draw, case)
}

fn small_node(draw: &mut CaseRng, name: &str) -> Value {
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

fn request(draw: &mut CaseRng, pod: &mut Value, amounts: &[&'static str]) {
    if draw.percent(85) {
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": draw.pick(amounts)}});
    }
}

/// Gives the pod to schedule a priority and a preemption policy.
fn set_preemptor_priority(draw: &mut CaseRng, pod: &mut Value) {
    let spec = &mut pod["spec"];
    spec["priority"] = json!(draw.mostly(&[10, 1000, 2_000_000_000], &[-10, 0, 5]));
    if draw.percent(5) {
        spec["preemptionPolicy"] = json!("Never");
    } else if draw.percent(10) {
        spec["preemptionPolicy"] = json!("PreemptLowerPriority");
    }
}

/// Sets priority, start time, and whether the pod is terminating or disrupted already.
fn set_priority_and_start(draw: &mut CaseRng, pod: &mut Value) {
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
        pod["metadata"]["deletionTimestamp"] = json!(DELETION_TIME);
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

/// Removes the start time of some pods, and adds PodDisruptionBudgets.
fn finish(draw: &mut CaseRng, mut case: OracleCase) -> OracleCase {
    // For a pod without a start time upstream uses the time of the comparison, so that the order of two such pods is random: at
    // most one is on a node.
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
        make_pods_similar(draw, &mut case);
    }
    if draw.percent(95) {
        remove_host_port_conflicts(&mut case);
    }
    for at in 0..if draw.percent(60) { draw.count(1, 3) } else { 0 } {
        case.objects.push(budget(draw, at));
    }
    case
}

/// Makes the assigned pods similar, so that several nodes are equally good.
fn make_pods_similar(draw: &mut CaseRng, case: &mut OracleCase) {
    let start = draw.pick(&STARTS);
    let priorities = draw.some(&[-10, 0, 5], 1, 2);
    let amount = draw.percent(70).then(|| draw.pick(&["1", "1500m", "2"]));
    for pod in case.objects.iter_mut().filter(|object| is_assigned_pod(object)) {
        pod["status"]["startTime"] = json!(start);
        pod["spec"]["priority"] = json!(draw.pick(&priorities));
        if let Some(amount) = amount {
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": amount}});
        }
    }
}

/// Removes the host ports of a pod if another pod on its node uses one of them.
fn remove_host_port_conflicts(case: &mut OracleCase) {
    let mut taken: Vec<Value> = Vec::new();
    for pod in case.objects.iter_mut().filter(|object| is_assigned_pod(object)) {
        let own: Vec<Value> = host_ports(pod);
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

fn budget(draw: &mut CaseRng, at: usize) -> Value {
    let mut metadata = Fields::default();
    metadata.put("name", format!("budget-{at}"));
    if draw.when(CaseFeature::Namespaces, 60) {
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
        let mut disrupted = Fields::default();
        for name in draw.some(&["p0", "p1", "p2", "p3", "gone"], 1, 3) {
            disrupted.put(name, DELETION_TIME);
        }
        status.put("disruptedPods", disrupted);
    }
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": Value::from(metadata),
        "spec": Value::from(spec), "status": Value::from(status)})
}

fn is_assigned_pod(object: &Value) -> bool {
    object["kind"] == "Pod" && object["spec"].get("nodeName").is_some()
}
