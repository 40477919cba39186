//! Random nodes.

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields, HOSTNAME, RACK, REGION, ZONE};
use super::features::CaseFeature;
use super::resources;

/// Values of the label `generation`: numbers and other texts.
pub(super) const GENERATIONS: [&str; 7] = ["1", "5", "10", "007", "x", "", "1.5"];

pub(super) const DISKS: [&str; 3] = ["ssd", "hdd", ""];

pub(super) const TAINT_KEYS: [&str; 4] =
    ["dedicated", "gpu", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"];

pub(super) const TAINT_VALUES: [&str; 4] = ["", "a", "b", "12"];

pub(super) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Images on nodes: names, size in bytes.
const IMAGES: [(&[&str], i64); 7] = [
    (&["web:latest", "registry.example/web@sha256:11"], 300 << 20),
    (&["web:2"], 90 << 20),
    (&["registry.example:5000/db:latest", "db:latest"], 1_500 << 20),
    (&["cache:1"], 10 << 20),
    (&["proxy:latest"], 23 << 20),
    (&["model:7"], 40_000_000_000),
    (&[], 5 << 20),
];

/// Names of images in pods: with tag, without, with port, with digest.
pub(super) const IMAGE_NAMES: [&str; 8] = [
    "web",
    "web:2",
    "registry.example:5000/db",
    "cache:1",
    "proxy",
    "model:7",
    "registry.example/web@sha256:11",
    "absent:1",
];

/// Features that nodes declare: those of 1.36 in order, and others between them.
const DECLARED_FEATURES: [&str; 8] = [
    "AnotherFeature",
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
    "RestartAllContainersOnContainerExitsTwice",
    "UserNamespacesHostNetworkSupport",
    "YetAnotherFeature",
];

/// A node with this name; `others` are the names of all nodes of the cluster.
pub(super) fn node(draw: &mut CaseRng, name: &str, others: &[String]) -> Value {
    let mut spec = Fields::default();
    if draw.when(CaseFeature::Unschedulable, 40) {
        spec.put("unschedulable", true);
    }
    spec.put_some("taints", taints(draw));
    let mut status = Fields::default();
    status.put_some("allocatable", resources::allocatable(draw));
    if draw.has(CaseFeature::Images) {
        status.put_some("images", images(draw));
    }
    if draw.when(CaseFeature::DeclaredFeatures, 90) {
        status.put_some("declaredFeatures", declared_features(draw));
    }
    let mut metadata = Fields::default();
    metadata.put("name", name);
    metadata.put_some("labels", labels(draw, name, others));
    let mut node = Fields::default();
    node.put("apiVersion", "v1");
    node.put("kind", "Node");
    node.put("metadata", metadata);
    node.put_some("spec", spec);
    node.put_some("status", status);
    node.into()
}

fn labels(draw: &mut CaseRng, name: &str, others: &[String]) -> Value {
    let mut labels = Fields::default();
    let spreads = draw.has(CaseFeature::Spread) || draw.has(CaseFeature::SoftSpread);
    if draw.percent(if spreads { 95 } else { 85 }) {
        labels.put(ZONE, draw.mostly(&["z1", "z2", "z3"], &["", "z1/odd"]));
    }
    if draw.percent(25) {
        labels.put(REGION, draw.pick(&["r1", "r2"]));
    }
    if draw.percent(5) {
        labels.put("failure-domain.beta.kubernetes.io/zone", draw.pick(&["z1", "z2"]));
    }
    match draw.range(0, 19) {
        0..16 => labels.put(HOSTNAME, name),
        16 if !others.is_empty() => {
            let other = draw.count(0, others.len() - 1);
            labels.put(HOSTNAME, others[other].as_str());
        }
        17 => labels.put(HOSTNAME, ""),
        _ => {}
    }
    if draw.percent(60) {
        labels.put(RACK, draw.mostly(&["1", "2"], &["3", ""]));
    }
    if draw.percent(60) {
        labels.put("disk", draw.pick(&DISKS));
    }
    if draw.percent(60) {
        labels.put("generation", draw.mostly(&GENERATIONS, &["-3", "99999999999999999999"]));
    }
    labels.into()
}

fn taints(draw: &mut CaseRng) -> Vec<Value> {
    if !draw.when(CaseFeature::Taints, 70) {
        return Vec::new();
    }
    let n = draw.count(1, 3);
    (0..n).map(|_| taint(draw)).collect()
}

fn taint(draw: &mut CaseRng) -> Value {
    let mut taint = Fields::default();
    taint.put("key", draw.pick(&TAINT_KEYS));
    if draw.percent(60) {
        taint.put("value", draw.pick(&TAINT_VALUES));
    }
    taint.put("effect", draw.mostly(&EFFECTS, &["", "Other"]));
    taint.into()
}

/// Some features, rarely not in order.
fn declared_features(draw: &mut CaseRng) -> Vec<&'static str> {
    let mut features = draw.some(&DECLARED_FEATURES, 0, DECLARED_FEATURES.len());
    if draw.percent(10) {
        draw.shuffle(&mut features);
    }
    features
}

fn images(draw: &mut CaseRng) -> Vec<Value> {
    let images = draw.some(&IMAGES, 0, 5);
    let images = images.into_iter().map(|(names, size)| json!({"names": names, "sizeBytes": size}));
    images.collect()
}
