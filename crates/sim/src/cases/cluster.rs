//! A random cluster with one pod to schedule.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields, NAMESPACES};
use super::features::CaseFeature;
use super::pod::{self, Role};
use super::{OracleCase, OracleCaseKind, config, node, volumes};

const LETTERS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

/// NodeDeclaredFeatures, and the gates that are on by default and depend on it.
const GATES_OF_DECLARED_FEATURES: [&str; 5] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "NodeDeclaredFeatures",
    "RestartAllContainersOnContainerExits",
];

/// A case of the kind Explain.
pub(super) fn case(draw: &mut CaseRng, id: u64) -> OracleCase {
    let config = draw.has(CaseFeature::Config).then(|| config::random_config(draw));
    let n = match draw.range(0, 99) {
        0 => 0,
        1..10 => 1,
        10..80 => draw.count(2, 5),
        _ => draw.count(6, 12),
    };
    let mut names: Vec<String> = LETTERS[..n].iter().map(|name| (*name).to_owned()).collect();
    draw.shuffle(&mut names);
    let mut objects: Vec<Value> = names.iter().map(|name| node::node(draw, name, &names)).collect();
    objects.extend(namespaces(draw));
    objects.extend(owners(draw));
    if n > 0 {
        let assigned = draw.count(0, (2 * n + 1).min(12));
        objects.extend(
            (0..assigned).map(|at| pod::pod(draw, &format!("p{at}"), Role::Assigned, &names)),
        );
        let nominated = if draw.has(CaseFeature::Nominated) { draw.count(1, 3) } else { 0 };
        objects.extend(
            (0..nominated).map(|at| pod::pod(draw, &format!("n{at}"), Role::Nominated, &names)),
        );
    }
    if draw.percent(10) {
        objects.push(pod::pod(draw, "waits", Role::Pending, &names));
    }
    let target = pod::pod(draw, "web", Role::Target, &names);
    let pod = format!("{}/web", target["metadata"]["namespace"].as_str().unwrap_or("default"));
    objects.push(target);
    let kind = OracleCaseKind::Explain;
    let mut case = OracleCase { id, pod, config, feature_gates: BTreeMap::new(), objects, kind };
    volumes::add_objects(draw, &mut case);
    if draw.when(CaseFeature::DeclaredFeatures, 10) {
        let off = GATES_OF_DECLARED_FEATURES.map(|gate| (gate.to_owned(), false));
        case.feature_gates.extend(off);
    }
    case
}

fn namespaces(draw: &mut CaseRng) -> Vec<Value> {
    if !draw.has(CaseFeature::Namespaces) && !draw.percent(15) {
        return Vec::new();
    }
    let known = draw.some(&NAMESPACES, 1, 3);
    let all = known.into_iter().map(|name| {
        let mut labels = Fields::default();
        if draw.percent(70) {
            labels.put("kubernetes.io/metadata.name", name);
        }
        if draw.percent(60) {
            labels.put("team", draw.pick(&["x", "y"]));
        }
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": Value::from(labels)}})
    });
    all.collect()
}

/// Services and controllers, whose selectors are used by default spread constraints.
fn owners(draw: &mut CaseRng) -> Vec<Value> {
    let mut all = Vec::new();
    if !draw.has(CaseFeature::Owners) {
        return all;
    }
    for at in 0..draw.count(0, 2) {
        all.push(owner(draw, "v1", "Service", &format!("service-{at}")));
    }
    for at in 0..2 {
        let name = format!("owner-{at}");
        for (version, kind) in
            [("v1", "ReplicationController"), ("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet")]
        {
            if draw.percent(60) {
                all.push(owner(draw, version, kind, &name));
            }
        }
    }
    all
}

fn owner(draw: &mut CaseRng, version: &str, kind: &str, name: &str) -> Value {
    let mut metadata = Fields::default();
    metadata.put("name", name);
    if draw.when(CaseFeature::Namespaces, 50) {
        metadata.put("namespace", draw.pick(&NAMESPACES));
    }
    let mut spec = Fields::default();
    if version == "v1" {
        if draw.percent(90) {
            spec.put("selector", pod::labels(draw));
        }
    } else if draw.percent(90) {
        spec.put("selector", super::affinity::selector(draw));
    }
    json!({"apiVersion": version, "kind": kind, "metadata": Value::from(metadata), "spec": Value::from(spec)})
}
