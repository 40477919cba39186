//! NodeResourcesFit ([`fit`]) and NodeResourcesBalancedAllocation ([`balanced_allocation`]), and the code that both share.
//!
//! Read [`resource_amounts`] (requested and allocatable amounts), then [`score_formula`] (the scores, as upstream defines
//! them), then [`simd`] (the same scores over whole columns). [`allocation_score`] offers the scoring strategies of NodeResourcesFit
//! to plugins that only score.

pub mod allocation_score;
pub mod args;
pub mod balanced_allocation;
mod column_scorer;
pub mod fit;
mod resource_amounts;
mod score_formula;
mod simd;

use loadmaster_framework::extension_points::SignFragment;
use loadmaster_framework::pod_info::PodInfo;
use loadmaster_framework::resources::Resources;
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

/// The signature fragment of both plugins: the pod's requests as Filter compares them.
fn requests_fragment(pod: &PodInfo) -> SignFragment {
    let Resources { cpu_milli, memory_bytes, ephemeral_storage_bytes, scalars, .. } =
        &pod.template.requests.resources;
    let named: Map<String, Value> = scalars
        .iter()
        .map(|(name, amount)| (name.to_string(), json!((*amount).max(0))))
        .collect_by_insertion();
    let value = json!({
        "MilliCPU": (*cpu_milli).max(0),
        "Memory": (*memory_bytes).max(0),
        "EphemeralStorage": (*ephemeral_storage_bytes).max(0),
        "AllowedPodNumber": 0,
        "ScalarResources": if named.is_empty() { Value::Null } else { Value::Object(named) },
    });
    SignFragment { key: "v1.Pod.Spec.ContainerRequestsAndOverheads()", value }
}

#[cfg(test)]
mod tests;
