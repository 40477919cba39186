//! Selectors, node affinity and affinity between pods.

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields, HOSTNAME, NAMESPACES, POD_LABELS, RACK, REGION, ZONE};
use super::features::CaseFeature;
use super::node::{DISKS, GENERATIONS};

/// Keys by which affinity and spreading group nodes.
pub(super) const TOPOLOGIES: [&str; 5] = [ZONE, HOSTNAME, RACK, REGION, "absent"];

/// Mostly a zone or a host.
pub(super) fn topology_key(draw: &mut CaseRng) -> &'static str {
    draw.mostly(&[ZONE, HOSTNAME, RACK], &TOPOLOGIES)
}

/// `spec.affinity`; null when there is none.
pub(super) fn affinity(draw: &mut CaseRng, node_names: &[String]) -> Value {
    let mut affinity = Fields::default();
    let required =
        draw.when(CaseFeature::NodeAffinity, 75) || draw.when(CaseFeature::MatchFields, 75);
    let preferred = draw.when(CaseFeature::PreferredNodes, 80);
    affinity.put_some("nodeAffinity", node_affinity(draw, node_names, required, preferred));
    let near = draw.when(CaseFeature::Affinity, 70);
    let near_preferred = draw.when(CaseFeature::PreferredPods, 55);
    affinity.put_some("podAffinity", pod_affinity(draw, near, near_preferred));
    let apart = draw.when(CaseFeature::AntiAffinity, 70);
    let apart_preferred = draw.when(CaseFeature::PreferredPods, 55);
    affinity.put_some("podAntiAffinity", pod_affinity(draw, apart, apart_preferred));
    if affinity.is_empty() { Value::Null } else { affinity.into() }
}

/// `nodeSelector` of a pod.
pub(super) fn node_labels(draw: &mut CaseRng) -> Value {
    let mut labels = Fields::default();
    for _ in 0..draw.count(0, 2) {
        match draw.range(0, 3) {
            0 => labels.put("disk", draw.pick(&DISKS)),
            1 => labels.put(ZONE, draw.pick(&["z1", "z2", "z3"])),
            2 => labels.put(RACK, draw.pick(&["1", "2"])),
            _ => labels.put("generation", draw.pick(&GENERATIONS)),
        }
    }
    labels.into()
}

/// The `nodeAffinity` that a profile adds to every pod, or that a pod has.
pub(super) fn node_affinity(
    draw: &mut CaseRng,
    node_names: &[String],
    required: bool,
    preferred: bool,
) -> Value {
    let mut node = Fields::default();
    if required {
        let n = if draw.percent(4) { 0 } else { draw.count(1, 3) };
        let terms: Vec<Value> = (0..n).map(|_| node_term(draw, node_names)).collect();
        node.put(
            "requiredDuringSchedulingIgnoredDuringExecution",
            json!({"nodeSelectorTerms": terms}),
        );
    }
    if preferred {
        let n = draw.count(1, 4);
        let terms: Vec<Value> = (0..n)
            .map(|_| {
                let weight = draw.mostly(&[1, 2, 10, 100], &[0, 37]);
                json!({"weight": weight, "preference": node_term(draw, node_names)})
            })
            .collect();
        node.put("preferredDuringSchedulingIgnoredDuringExecution", terms);
    }
    if node.is_empty() { Value::Null } else { node.into() }
}

fn node_term(draw: &mut CaseRng, node_names: &[String]) -> Value {
    let mut term = Fields::default();
    let fields = draw.when(CaseFeature::MatchFields, 75);
    if fields {
        let n = if draw.percent(85) { 1 } else { 2 };
        let all: Vec<Value> = (0..n).map(|_| field_requirement(draw, node_names)).collect();
        term.put("matchFields", all);
    }
    // A term without any requirement matches nothing.
    let n = if fields {
        draw.count(0, 1)
    } else if draw.percent(5) {
        0
    } else {
        draw.count(1, 2)
    };
    let all: Vec<Value> = (0..n).map(|_| node_requirement(draw)).collect();
    term.put_some("matchExpressions", all);
    term.into()
}

fn field_requirement(draw: &mut CaseRng, node_names: &[String]) -> Value {
    let names: Vec<&str> = node_names.iter().map(String::as_str).chain(["nowhere"]).collect();
    let operator = if draw.percent(80) { "In" } else { "NotIn" };
    json!({"key": "metadata.name", "operator": operator, "values": [draw.pick(&names)]})
}

fn node_requirement(draw: &mut CaseRng) -> Value {
    let (key, pool): (&str, &[&str]) = match draw.range(0, 5) {
        0 => (ZONE, &["z1", "z2", "z3", ""]),
        1 => (RACK, &["1", "2", "3"]),
        2 => ("disk", &DISKS),
        3 => (HOSTNAME, &["a", "b", "c"]),
        _ => ("generation", &GENERATIONS),
    };
    match draw.range(0, 5) {
        0 | 1 => json!({"key": key, "operator": "In", "values": draw.some(pool, 1, 2)}),
        2 => json!({"key": key, "operator": "NotIn", "values": draw.some(pool, 1, 2)}),
        3 => json!({"key": key, "operator": draw.pick(&["Exists", "DoesNotExist"])}),
        _ => {
            let numbers: &[&str] = &["0", "5", "7", "1"];
            // A pod may have any text here, a configuration only numbers.
            let value =
                draw.mostly(numbers, &["9", "x", "1.5", "99999999999999999999", "+5", "", "-3"]);
            json!({"key": "generation", "operator": draw.pick(&["Gt", "Lt"]), "values": [value]})
        }
    }
}

/// A selector that many pods match.
pub(super) fn wide_selector(draw: &mut CaseRng) -> Value {
    match draw.range(0, 3) {
        0 => json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
        1 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}),
        _ => json!({"matchLabels": {"app": "web"}}),
    }
}

/// A `labelSelector` for pods; null selects nothing, an empty one everything.
pub(super) fn selector(draw: &mut CaseRng) -> Value {
    match draw.range(0, 29) {
        0 => return Value::Null,
        1 => return json!({}),
        _ => {}
    }
    let mut selector = Fields::default();
    if draw.percent(70) {
        let mut labels = Fields::default();
        for (key, values) in draw.some(&POD_LABELS, 1, 2) {
            labels.put(key, draw.pick(values));
        }
        selector.put("matchLabels", labels);
    }
    if selector.is_empty() || draw.percent(15) {
        let n = draw.count(1, 2);
        let all: Vec<Value> = (0..n).map(|_| requirement(draw)).collect();
        selector.put("matchExpressions", all);
    }
    selector.into()
}

fn requirement(draw: &mut CaseRng) -> Value {
    let (key, values) = draw.pick(&POD_LABELS);
    match draw.range(0, 3) {
        0 => json!({"key": key, "operator": "In", "values": draw.some(values, 1, 2)}),
        1 => json!({"key": key, "operator": "NotIn", "values": draw.some(values, 1, 2)}),
        _ => json!({"key": key, "operator": draw.pick(&["Exists", "DoesNotExist"])}),
    }
}

fn namespace_selector(draw: &mut CaseRng) -> Value {
    match draw.range(0, 5) {
        0 => json!({}),
        1 => {
            json!({"matchExpressions": [{"key": "team", "operator": draw.pick(&["Exists", "DoesNotExist"])}]})
        }
        2 => json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x"]}]}),
        3 => json!({"matchLabels": {"kubernetes.io/metadata.name": draw.pick(&NAMESPACES)}}),
        _ => json!({"matchLabels": {"team": draw.pick(&["x", "y"])}}),
    }
}

fn pod_affinity(draw: &mut CaseRng, required: bool, preferred: bool) -> Value {
    let mut affinity = Fields::default();
    if required {
        let n = if draw.percent(70) { 1 } else { draw.count(2, 3) };
        let terms: Vec<Value> = (0..n).map(|_| pod_term(draw)).collect();
        affinity.put("requiredDuringSchedulingIgnoredDuringExecution", terms);
    }
    if preferred {
        let n = draw.count(1, 3);
        let terms: Vec<Value> = (0..n)
            .map(|_| json!({"weight": draw.pick(&[1, 5, 50, 100]), "podAffinityTerm": pod_term(draw)}))
            .collect();
        affinity.put("preferredDuringSchedulingIgnoredDuringExecution", terms);
    }
    if affinity.is_empty() { Value::Null } else { affinity.into() }
}

fn pod_term(draw: &mut CaseRng) -> Value {
    let mut term = Fields::default();
    term.put("topologyKey", topology_key(draw));
    let selector = if draw.percent(30) { wide_selector(draw) } else { selector(draw) };
    if !selector.is_null() {
        term.put("labelSelector", selector);
    }
    if draw.when(CaseFeature::Namespaces, 40) {
        term.put("namespaces", draw.some(&NAMESPACES, 0, 2));
    }
    if draw.when(CaseFeature::Namespaces, 45) {
        term.put("namespaceSelector", namespace_selector(draw));
    }
    // The API server has merged these into the selector before the scheduler sees the pod.
    if draw.percent(3) {
        term.put("matchLabelKeys", ["hash"].as_slice());
    }
    term.into()
}
