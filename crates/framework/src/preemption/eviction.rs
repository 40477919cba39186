//! API requests and Event notes for the eviction of a victim, with upstream's texts.

use loadmaster_api::{Str, Timestamp};
use serde_json::json;

use crate::api_calls::{ApiRequest, Verb};
use crate::pod_info::PodInfo;

pub use crate::pod_info::{DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER};

/// The first request: sets the condition DisruptionTarget in the victim's status. Not found means that the victim is already
/// deleted.
pub fn disruption_condition_patch(
    preemptor: &PodInfo,
    victim: &PodInfo,
    now: Timestamp,
) -> ApiRequest {
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
        ..pod_request(victim)
    }
}

/// The second request: deletes the victim, with its uid as precondition, so that a new pod with the same name is not deleted.
pub fn delete_victim_request(victim: &PodInfo) -> ApiRequest {
    let body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": victim.uid},
    });
    ApiRequest { verb: Verb::Delete, body: Some(body), ..pod_request(victim) }
}

/// The note of the Event `Preempted` (action `Preempting`, related object: the preemptor) about a victim.
pub fn preempted_event_note(preemptor: &PodInfo, node: &str) -> String {
    format!("Preempted by pod {} on node {node}", preemptor.uid)
}

/// The same note for a victim that is assumed but not bound, for which no request is sent.
pub fn preempted_in_memory_event_note(preemptor: &PodInfo, node: &str) -> String {
    format!("{} (in kube-scheduler memory).", preempted_event_note(preemptor, node))
}

fn pod_request(pod: &PodInfo) -> ApiRequest {
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
