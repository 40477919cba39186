//! Random pods: the pod to schedule, assigned, nominated and pending pods.

use serde_json::{Value, json};

use super::affinity;
use super::case_rng::{CaseRng, Fields, NAMESPACES, POD_LABELS};
use super::features::CaseFeature;
use super::node::{EFFECTS, IMAGE_NAMES, TAINT_KEYS, TAINT_VALUES};
use super::{resources, spread};

/// The role of a pod in the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The pod to schedule.
    Target,
    Assigned,
    /// Pending, with a nominated node.
    Nominated,
    /// Pending, without effect on other pods.
    Pending,
}

const TIME: &str = "2026-01-31T12:00:00Z";

/// A pod with this name.
pub(super) fn pod(draw: &mut CaseRng, name: &str, role: Role, node_names: &[String]) -> Value {
    let mut pod = Fields::default();
    pod.put("apiVersion", "v1");
    pod.put("kind", "Pod");
    pod.put("metadata", metadata(draw, name, role));
    let mut spec = spec(draw, role, node_names);
    let mut status = status(draw, &spec);
    place(draw, role, node_names, &mut spec, &mut status);
    pod.put("spec", spec);
    pod.put_some("status", status);
    pod.into()
}

fn metadata(draw: &mut CaseRng, name: &str, role: Role) -> Value {
    let mut metadata = Fields::default();
    metadata.put("name", name);
    if draw.when(CaseFeature::Namespaces, 75) {
        metadata.put("namespace", draw.pick(&NAMESPACES));
    }
    metadata.put_some("labels", labels(draw));
    if draw.percent(5) {
        metadata.put("uid", format!("uid-of-{name}"));
    }
    let terminating =
        draw.when(CaseFeature::Terminating, if role == Role::Target { 5 } else { 45 });
    if terminating {
        metadata.put("deletionTimestamp", TIME);
    }
    if draw.when(CaseFeature::Owners, 60) {
        metadata.put("ownerReferences", json!([owner(draw)]));
    }
    metadata.into()
}

/// Labels of a pod, from the same pool as the selectors.
pub(super) fn labels(draw: &mut CaseRng) -> Value {
    let mut labels = Fields::default();
    let low = usize::from(draw.percent(85));
    for (key, values) in draw.some(&POD_LABELS, low, 3) {
        labels.put(key, draw.pick(values));
    }
    labels.into()
}

fn owner(draw: &mut CaseRng) -> Value {
    let (version, kind) = draw.pick(&[
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("v1", "ReplicationController"),
        ("batch/v1", "Job"),
        ("example.com/v1", "ReplicaSet"),
    ]);
    let name = draw.mostly(&["owner-0", "owner-1"], &["gone"]);
    let controller = draw.percent(85);
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": controller})
}

fn spec(draw: &mut CaseRng, role: Role, node_names: &[String]) -> Value {
    let mut spec = Fields::default();
    let n = draw.mostly(&[1, 1, 2], &[3]);
    let containers: Vec<Value> = (0..n).map(|at| container(draw, &format!("c{at}"))).collect();
    spec.put("containers", containers);
    spec.put_some("initContainers", init_containers(draw));
    if draw.when(CaseFeature::PodShapes, 35) {
        spec.put("overhead", resources::overhead(draw));
    }
    if draw.when(CaseFeature::PodShapes, 35) {
        spec.put("resources", resources::of_pod(draw));
    }
    if draw.has(CaseFeature::Nominated) || draw.percent(10) {
        spec.put("priority", draw.pick(&[-10, 0, 5, 5, 1000]));
    }
    if draw.when(CaseFeature::Config, 25) {
        spec.put("schedulerName", draw.mostly(&["batch", "default-scheduler"], &["unknown"]));
    }
    if draw.when(CaseFeature::Gates, if role == Role::Target { 70 } else { 30 }) {
        let gates = draw.some(&["a", "b", "c"], 0, 2);
        let gates: Vec<Value> = gates.into_iter().map(|name| json!({"name": name})).collect();
        spec.put("schedulingGates", gates);
    }
    spec.put_some("tolerations", tolerations(draw));
    spec.put_some("volumes", volumes(draw, role));
    let chooses = role != Role::Assigned;
    if chooses && draw.when(CaseFeature::NodeSelector, 75) {
        spec.put_some("nodeSelector", affinity::node_labels(draw));
    }
    spec.put_some("affinity", affinity::affinity(draw, node_names));
    if chooses {
        spec.put_some("topologySpreadConstraints", spread::constraints(draw));
    }
    if role == Role::Target && draw.when(CaseFeature::ResourceClaims, 60) {
        spec.put("resourceClaims", json!([{"name": "device", "resourceClaimName": "device"}]));
    }
    if draw.when(CaseFeature::DeclaredFeatures, 50) {
        spec.put("hostNetwork", draw.percent(75));
    }
    if draw.when(CaseFeature::DeclaredFeatures, 50) {
        spec.put("hostUsers", draw.percent(25));
    }
    spec.into()
}

fn container(draw: &mut CaseRng, name: &str) -> Value {
    let mut container = Fields::default();
    container.put("name", name);
    if draw.has(CaseFeature::Images) || draw.percent(10) {
        container.put("image", draw.pick(&IMAGE_NAMES));
    }
    container.put_some("resources", resources::container(draw));
    if draw.when(CaseFeature::Ports, 70) {
        let n = draw.mostly(&[1, 1, 2], &[3]);
        let ports: Vec<Value> = (0..n).map(|_| port(draw)).collect();
        container.put("ports", ports);
    }
    if draw.when(CaseFeature::DeclaredFeatures, 30) {
        let n = draw.count(1, 2);
        let rules: Vec<Value> = (0..n).map(|_| restart_rule(draw)).collect();
        container.put("restartPolicyRules", rules);
    }
    container.into()
}

fn restart_rule(draw: &mut CaseRng) -> Value {
    let action = draw.mostly(&["RestartAllContainers", "Restart"], &["", "restartallcontainers"]);
    json!({"action": action, "exitCodes": {"operator": "In", "values": [42]}})
}

fn port(draw: &mut CaseRng) -> Value {
    let mut port = Fields::default();
    port.put("containerPort", 80);
    if draw.percent(85) {
        port.put("hostPort", draw.pick(&[80, 80, 443, 8080, 53]));
    }
    if draw.percent(30) {
        port.put("hostIP", draw.pick(&["10.0.0.1", "10.0.0.2", "0.0.0.0", "", "::1", "::"]));
    }
    if draw.percent(30) {
        port.put("protocol", draw.pick(&["TCP", "UDP", "SCTP", ""]));
    }
    port.into()
}

fn init_containers(draw: &mut CaseRng) -> Vec<Value> {
    if !draw.when(CaseFeature::PodShapes, 60) && !draw.percent(4) {
        return Vec::new();
    }
    let n = draw.count(1, 3);
    let all = (0..n).map(|at| {
        let mut init = container(draw, &format!("init{at}"));
        if draw.percent(45) {
            init["restartPolicy"] = json!(draw.mostly(&["Always"], &["Never"]));
        }
        init
    });
    all.collect()
}

fn tolerations(draw: &mut CaseRng) -> Vec<Value> {
    let n = match draw.range(0, 9) {
        _ if !draw.has(CaseFeature::Taints) && !draw.has(CaseFeature::Unschedulable) => 0,
        0..4 => 0,
        4..8 => 1,
        _ => draw.count(2, 3),
    };
    (0..n).map(|_| toleration(draw)).collect()
}

fn toleration(draw: &mut CaseRng) -> Value {
    let mut toleration = Fields::default();
    if draw.percent(85) {
        toleration.put("key", draw.pick(&TAINT_KEYS));
    }
    if draw.percent(75) {
        toleration.put("operator", draw.mostly(&["Exists", "Equal"], &["", "Gt", "Lt", "Odd"]));
    }
    if draw.percent(50) {
        toleration.put("value", draw.pick(&TAINT_VALUES));
    }
    if draw.percent(50) {
        toleration.put("effect", draw.pick(&EFFECTS));
    }
    if draw.percent(10) {
        toleration.put("tolerationSeconds", draw.pick(&[0, 300]));
    }
    toleration.into()
}

fn volumes(draw: &mut CaseRng, role: Role) -> Vec<Value> {
    let mut all = Vec::new();
    if draw.percent(5) {
        all.push(json!({"name": "scratch", "emptyDir": {}}));
    }
    if draw.when(CaseFeature::Images, 20) {
        all.push(json!({"name": "image", "image": {"reference": draw.pick(&IMAGE_NAMES)}}));
    }
    all.extend(super::volumes::of_pod(draw, role));
    all
}

/// The status of an in-place resize.
fn status(draw: &mut CaseRng, spec: &Value) -> Value {
    let mut status = Fields::default();
    if !draw.when(CaseFeature::Resize, 60) {
        return status.into();
    }
    let mut reports = Vec::new();
    for container in spec["containers"].as_array().into_iter().flatten() {
        if draw.percent(70) {
            reports.push(resize_report(draw, &container["name"]));
        }
    }
    status.put_some("containerStatuses", reports);
    if draw.percent(40) {
        let reason = draw.pick(&["Infeasible", "Deferred"]);
        status.put(
            "conditions",
            json!([{"type": "PodResizePending", "status": "True", "reason": reason}]),
        );
    }
    if spec.get("resources").is_some() && draw.percent(60) {
        status.put("resources", resources::of_pod(draw));
        status.put("allocatedResources", resources::of_pod(draw)["requests"].clone());
    }
    status.into()
}

fn resize_report(draw: &mut CaseRng, name: &Value) -> Value {
    let mut report = Fields::default();
    report.put("name", name.clone());
    if draw.percent(80) {
        report.put("resources", resources::container(draw));
    }
    if draw.percent(60) {
        report.put_some("allocatedResources", resources::requests(draw));
    }
    // These fields are required.
    report.put("image", "");
    report.put("imageID", "");
    report.put("ready", true);
    report.put("restartCount", 0);
    report.into()
}

/// Sets the assigned, nominated or required node of a pod.
fn place(draw: &mut CaseRng, role: Role, nodes: &[String], spec: &mut Value, status: &mut Value) {
    let Some(at) = nodes.len().checked_sub(1) else { return };
    let at = draw.count(0, at);
    let node = &nodes[at];
    match role {
        Role::Assigned => {
            spec["nodeName"] = json!(node);
            let phase = draw
                .mostly(&["Running", "Running", "Pending"], &["Succeeded", "Failed", "Unknown"]);
            status["phase"] = json!(phase);
        }
        Role::Nominated => {
            status["nominatedNodeName"] = json!(node);
        }
        Role::Target => {
            if draw.when(CaseFeature::NodeName, 80) {
                spec["nodeName"] = if draw.percent(85) { json!(node) } else { json!("nowhere") };
                was_scheduled(draw, status);
            }
            if draw.when(CaseFeature::Nominated, 30) {
                status["nominatedNodeName"] = json!(node);
            }
        }
        Role::Pending => {}
    }
}

/// In some cases the pod was scheduled already, so that its node is not a requirement.
fn was_scheduled(draw: &mut CaseRng, status: &mut Value) {
    match draw.range(0, 9) {
        0 => status["phase"] = json!("Running"),
        1 => status["startTime"] = json!(TIME),
        2 => status["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]),
        3 => status["conditions"] = json!([{"type": "PodScheduled", "status": "False"}]),
        _ => {}
    }
}
