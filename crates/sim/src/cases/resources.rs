//! Random quantities: allocatable of nodes and requests of pods.

use serde_json::{Value, json};

use super::case_rng::{CaseRng, Fields};
use super::features::CaseFeature;

/// Scalar resources with typical amounts.
const SCALARS: [(&str, &[&str]); 8] = [
    ("ephemeral-storage", &["10Gi", "1Gi", "0", "500M"]),
    ("example.com/gpu", &["1", "2", "4", "0"]),
    ("example.com/gpu", &["8", "3"]),
    ("example.org/fpga", &["1", "2", "0"]),
    ("hugepages-2Mi", &["4Mi", "64Mi", "0"]),
    ("attachable-volumes-x", &["3", "1"]),
    // A native resource by its domain, and one that is neither native nor extended: the scheduler ignores it.
    ("kubernetes.io/batch", &["2", "1"]),
    ("plain", &["1"]),
];

const CPU: [&str; 8] = ["0", "100m", "250m", "500m", "1", "1500m", "2", "4"];
const ODD_CPU: [&str; 6] = ["0.1n", "1e1", "1.5", "100u", "0.5", "1k"];
const MEMORY: [&str; 8] = ["0", "64Mi", "128Mi", "256Mi", "512Mi", "1Gi", "2Gi", "4Gi"];
const ODD_MEMORY: [&str; 8] = ["1.5Gi", "1e9", "500M", "100m", "1", "0.1n", "128974848", "2G"];
/// Amounts that fit into 63 bits, but whose products with 100 do not.
const HUGE: [&str; 5] = ["100Pi", "400Pi", "1Ei", "1E", "3e18"];

/// `status.allocatable` of a node.
pub(super) fn allocatable(draw: &mut CaseRng) -> Value {
    let mut offer = Fields::default();
    if !draw.has(CaseFeature::Resources) {
        offer.put("cpu", draw.pick(&["4", "8", "16"]));
        offer.put("memory", draw.pick(&["8Gi", "16Gi", "32Gi"]));
        offer.put("pods", "110");
    } else if draw.percent(92) {
        if draw.percent(95) {
            offer.put(
                "cpu",
                draw.mostly(&["1", "2", "4", "3500m"], &["0", "1e1", "100m", "0.1n", "1k"]),
            );
        }
        if draw.percent(95) {
            let memory = draw.mostly(
                &["1Gi", "2Gi", "4Gi", "3G"],
                &["0", "1.5Gi", "100m", "1e9", "7Ei", "200Pi"],
            );
            offer.put("memory", memory);
        }
        if draw.percent(90) {
            offer.put("pods", draw.mostly(&["2", "3", "4", "110"], &["0", "1", "1k", "1500m"]));
        }
    }
    if draw.has(CaseFeature::Scalars) {
        for (name, amounts) in draw.some(&SCALARS, 1, 5) {
            offer.put(name, draw.pick(amounts));
        }
    }
    offer.into()
}

/// The requests of a container; null if it has none.
pub(super) fn requests(draw: &mut CaseRng) -> Value {
    let mut list = Fields::default();
    let percent = if draw.has(CaseFeature::Resources) { 70 } else { 25 };
    if draw.percent(percent) {
        list.put("cpu", draw.mostly(&CPU, &ODD_CPU));
    }
    if draw.percent(percent) {
        let huge = draw.when(CaseFeature::Resources, 4);
        list.put("memory", if huge { draw.pick(&HUGE) } else { draw.mostly(&MEMORY, &ODD_MEMORY) });
    }
    if draw.when(CaseFeature::Scalars, 60) {
        for (name, amounts) in draw.some(&SCALARS, 1, 3) {
            list.put(name, draw.pick(amounts));
        }
    }
    if list.is_empty() { Value::Null } else { list.into() }
}

/// The `resources` of a container. RequestLimits without requests request nothing here: the API server would copy them.
pub(super) fn container(draw: &mut CaseRng) -> Value {
    let mut resources = Fields::default();
    resources.put_some("requests", requests(draw));
    if draw.percent(5) {
        resources.put_some("limits", requests(draw));
    }
    resources.into()
}

/// Pod-level `resources`.
pub(super) fn of_pod(draw: &mut CaseRng) -> Value {
    let mut list = Fields::default();
    if draw.percent(70) {
        list.put("cpu", draw.pick(&CPU));
    }
    if draw.percent(60) {
        list.put("memory", draw.pick(&MEMORY));
    }
    if draw.percent(20) {
        list.put("hugepages-2Mi", "4Mi");
    }
    json!({"requests": Value::from(list)})
}

/// The `overhead` of a pod.
pub(super) fn overhead(draw: &mut CaseRng) -> Value {
    let mut list = Fields::default();
    list.put("cpu", draw.pick(&["10m", "250m", "0"]));
    if draw.percent(70) {
        list.put("memory", draw.pick(&["16Mi", "120Mi"]));
    }
    if draw.percent(10) {
        list.put("example.com/gpu", "1");
    }
    list.into()
}
