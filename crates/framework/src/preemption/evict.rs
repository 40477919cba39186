//! What is said and asked of the API server when a pod is evicted for another: upstream's texts, as values.

use loadmaster_api::{Str, Timestamp};
use serde_json::json;

use crate::pod::PodInfo;
use crate::request::{ApiRequest, Verb};

/// Type of the condition that says why a pod is going.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Its reason when a scheduler makes it go.
pub const PREEMPTION_BY_SCHEDULER: &str = "PreemptionByScheduler";

/// The first call: the condition DisruptionTarget in the victim's status. A pod that is not found has gone already.
pub fn condition(preemptor: &PodInfo, victim: &PodInfo, now: Timestamp) -> ApiRequest {
    let scheduler = preemptor.template.scheduler_name();
    let mut condition = json!({
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": PREEMPTION_BY_SCHEDULER,
        "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
    });
    if victim.generation > 0 {
        condition["observedGeneration"] = json!(victim.generation);
    }
    let was_true = victim.disruption.as_ref().is_some_and(|known| known.status == "True");
    if !was_true {
        condition["lastTransitionTime"] = json!(now.to_string());
    }
    let body = json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}});
    ApiRequest {
        verb: Verb::StrategicMergePatch,
        subresource: Str::new("status"),
        body: Some(body),
        ..about(victim)
    }
}

/// The second call: the deletion, of this very pod and not of one that has its name since.
pub fn deletion(victim: &PodInfo) -> ApiRequest {
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": victim.uid},
    });
    ApiRequest { verb: Verb::Delete, body: Some(body), ..about(victim) }
}

/// The note of the Event `Preempted` (action `Preempting`, related to the preemptor) about each victim.
pub fn note(preemptor: &PodInfo, node: &str) -> String {
    format!("Preempted by pod {} on node {node}", preemptor.uid)
}

/// The same for a victim that was not bound yet, and for which no call is made.
pub fn note_in_memory(preemptor: &PodInfo, node: &str) -> String {
    format!("{} (in kube-scheduler memory).", note(preemptor, node))
}

fn about(pod: &PodInfo) -> ApiRequest {
    ApiRequest {
        verb: Verb::Get,
        group: Str::default(),
        version: Str::new("v1"),
        resource: Str::new("pods"),
        namespace: pod.template.namespace.clone(),
        name: Str::new(&pod.name),
        subresource: Str::default(),
        body: None,
    }
}
