//! Intended deviations from kube-scheduler, which the comparison ignores, and the reasons.

use loadmaster_sim::cases::{self, OracleCase, OracleCaseKind};
use serde_json::Value;

/// Plugins of kube-scheduler that are not implemented here. They do not affect the generated cases.
const UNIMPLEMENTED: [&str; 2] = ["DefaultBinder", "NodeDeclaredFeatures"];

/// Plugins that are not implemented: a pod with claims is rejected with one reason that says so.
const CLAIMS: [&str; 5] =
    ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "DynamicResources"];

/// Parts of pod signatures from plugins that are not implemented, or from which our plugin omits volumes that do not affect
/// scheduling.
const UNIMPLEMENTED_FRAGMENTS: [&str; 3] = [
    "v1.Pod.Spec.RequiredFeatures()",
    "v1.Pod.Spec.Volumes.NonSyntheticSources()",
    "v1.Pod.Spec.DynamicResources",
];

/// The deviation because of which this case is not compared.
pub fn of(case: &OracleCase) -> Option<&'static str> {
    let pod = case.objects.iter().find(|object| is_pod(object, &case.pod));
    if case.kind != OracleCaseKind::Config && pod.is_some_and(has_claims) {
        return Some(
            "pods with claims are rejected with our own reason, until the volume plugins are implemented",
        );
    }
    if case.kind == OracleCaseKind::Preemption && cases::has_host_port_conflict(case) {
        return Some(
            "of two pods on a node with the same host port, kube-scheduler's dry run frees the port with the first victim",
        );
    }
    if case.kind == OracleCaseKind::Preemption && cases::has_equal_unstarted_pods(case) {
        return Some(
            "kube-scheduler orders pods that have not started by two different readings of the clock",
        );
    }
    None
}

/// Whether this plugin is compared in configurations and hints.
pub fn is_compared(plugin: &str) -> bool {
    !UNIMPLEMENTED.contains(&plugin) && !CLAIMS.contains(&plugin)
}

/// Whether this part of signatures is compared.
pub fn is_compared_fragment(key: &str) -> bool {
    !UNIMPLEMENTED_FRAGMENTS.contains(&key)
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
