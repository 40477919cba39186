//! Pods as plugins see them.

use std::sync::Arc;

use loadmaster_api::pod::PodCondition;
use loadmaster_api::{Extra, Pod, Str, Timestamp};
use serde_json::Value;

use crate::gates::FeatureGates;
use crate::preemption::evict::{DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER};
use crate::requests::PodRequests;
use crate::template::PodTemplate;

/// One pod: what it shares with its equals, and what is its own.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `namespace/name` when the object has none (a manifest).
    pub uid: Box<str>,
    /// What it shares with its equals.
    pub template: Arc<PodTemplate>,
    /// Where it is assigned; empty while pending.
    pub node_name: Str,
    /// The node that preemption promised it; empty when there is none.
    pub nominated_node_name: Str,
    /// `metadata.generation`; 0 when the object has none.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Its condition DisruptionTarget, which hardly any pod has.
    pub disruption: Option<Box<PodCondition>>,
    /// What plugins need beside ([`crate::Points::need`]).
    pub extra: Option<Arc<Extra>>,
    /// Requests where the pod's status makes them differ from its template's (in-place resize).
    pub resized: Option<Box<PodRequests>>,
}

impl PodInfo {
    /// A pod with the given shared part, which must have been made from an equal pod.
    pub fn new(pod: &Pod, template: Arc<PodTemplate>, gates: &FeatureGates) -> PodInfo {
        let status = &pod.status;
        let uid = if pod.metadata.uid.is_empty() {
            pod.full_name().into()
        } else {
            pod.metadata.uid.clone()
        };
        let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
        let reports =
            status.resources.is_some() || { statuses }.any(|status| status.resources.is_some());
        let disruption = status.conditions.iter().find(|known| known.kind == DISRUPTION_TARGET);
        let resized = reports.then(|| PodRequests::new(&template.spec, status, gates));
        PodInfo {
            name: pod.metadata.name.clone(),
            uid,
            node_name: pod.spec.node_name.clone(),
            nominated_node_name: status.nominated_node_name.clone(),
            generation: pod.metadata.generation,
            created: pod.metadata.creation_timestamp,
            started: status.start_time,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            disruption: disruption.cloned().map(Box::new),
            extra: pod.extra.clone(),
            resized: resized.filter(|requests| *requests != template.requests).map(Box::new),
            template,
        }
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.template.namespace, self.name)
    }

    /// Whether it is terminating because a scheduler evicted it for another pod.
    pub fn is_going_by_preemption(&self) -> bool {
        let by_scheduler = |condition: &PodCondition| {
            condition.status == "True" && condition.reason == PREEMPTION_BY_SCHEDULER
        };
        self.terminating && self.disruption.as_deref().is_some_and(by_scheduler)
    }

    /// An annotation, for plugins that [need](crate::Need) them.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.extra.as_ref()?.annotations.get(key).map(|value| &**value)
    }

    /// The pod as the API server has it, without `metadata.managedFields`, for plugins that [need](crate::Need) it.
    pub fn object(&self) -> Option<&Value> {
        self.extra.as_ref().map(|extra| &extra.object).filter(|object| !object.is_null())
    }

    /// What the pod asks for now.
    pub fn requests(&self) -> &PodRequests {
        self.resized.as_deref().unwrap_or(&self.template.requests)
    }
}

/// A pod in the queue.
#[derive(Clone, Debug)]
pub struct QueuedPodInfo {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// When it entered its present queue; renewed at every requeue.
    pub queued: Timestamp,
    /// Attempts so far.
    pub attempts: u32,
}
