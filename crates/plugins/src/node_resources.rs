//! What pods ask for against what nodes offer: [`fit`] and [`balanced_allocation`], and what the two share.
//!
//! Read [`amounts`] (which numbers of a node count), then [`formula`] (the scores, as upstream defines them), then [`kernel`] (the
//! same scores over whole columns, in lanes).

mod amounts;
mod args;
pub mod balanced_allocation;
pub mod fit;
mod formula;
mod kernel;
mod scorer;

use loadmaster_framework::pod::PodInfo;
use loadmaster_framework::points::Fragment;
use loadmaster_framework::resources::Resources;
use serde_json::{Map, Value, json};

/// The fragment that both plugins sign: the pod's requests as Filter compares them.
fn requests_fragment(pod: &PodInfo) -> Fragment {
    let Resources { cpu_milli, memory_bytes, ephemeral_storage_bytes, scalars, .. } =
        &pod.template.requests.resources;
    let named: Map<String, Value> =
        scalars.iter().map(|(name, amount)| (name.to_string(), json!((*amount).max(0)))).collect();
    let value = json!({
        "MilliCPU": (*cpu_milli).max(0),
        "Memory": (*memory_bytes).max(0),
        "EphemeralStorage": (*ephemeral_storage_bytes).max(0),
        "AllowedPodNumber": 0,
        "ScalarResources": if named.is_empty() { Value::Null } else { Value::Object(named) },
    });
    Fragment { key: "v1.Pod.Spec.ContainerRequestsAndOverheads()", value }
}

#[cfg(test)]
mod tests;
