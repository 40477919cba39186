//! Where we differ from kube-scheduler on purpose, and why: everything that the comparison passes over.

use loadmaster_sim::cases::{self, Ask, Case};
use serde_json::Value;

/// Plugins of kube-scheduler that are not built here. They decide nothing in the generated cases.
const UNBUILT: [&str; 2] = ["DefaultBinder", "NodeDeclaredFeatures"];

/// Plugins of which only one refusal a pod is built: pods with claims are turned down with a reason that says so.
const CLAIMS: [&str; 5] =
    ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "DynamicResources"];

/// Parts of signatures that unbuilt plugins make, or in which our claims plugin leaves out volumes that decide nothing here.
const UNBUILT_FRAGMENTS: [&str; 3] = [
    "v1.Pod.Spec.RequiredFeatures()",
    "v1.Pod.Spec.Volumes.NonSyntheticSources()",
    "v1.Pod.Spec.DynamicResources",
];

/// The name of the deviation that keeps this case from being compared at all.
pub fn of(case: &Case) -> Option<&'static str> {
    let asked = case.objects.iter().find(|object| is_pod(object, &case.pod));
    if case.ask != Ask::Config && asked.is_some_and(has_claims) {
        return Some(
            "pods with claims are turned down with a reason of our own, until the volume plugins land",
        );
    }
    if case.ask == Ask::Preemption && cases::shares_ports(case) {
        return Some(
            "of two pods on a node with one host port, kube-scheduler's dry run frees it with the first that goes",
        );
    }
    if case.ask == Ask::Preemption && cases::has_unstarted_equals(case) {
        return Some(
            "kube-scheduler ranks pods that have not started by two readings of the clock",
        );
    }
    None
}

/// Whether this plugin is compared in configurations and hints.
pub fn is_compared(plugin: &str) -> bool {
    !UNBUILT.contains(&plugin) && !CLAIMS.contains(&plugin)
}

/// Whether this part of signatures is compared.
pub fn is_compared_fragment(key: &str) -> bool {
    !UNBUILT_FRAGMENTS.contains(&key)
}

fn is_pod(object: &Value, full_name: &str) -> bool {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    object["kind"] == "Pod" && full_name == format!("{namespace}/{name}")
}

fn has_claims(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    let claims = volumes.into_iter().flatten().any(|volume| {
        volume.get("persistentVolumeClaim").is_some() || volume.get("ephemeral").is_some()
    });
    claims || pod["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty())
}
