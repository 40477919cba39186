//! Pods as plugins see them (upstream's `PodInfo` and `QueuedPodInfo`).

use std::sync::Arc;

use loadmaster_api::pod::PodCondition;
use loadmaster_api::{ExtraFields, OptionalTimestamp, Pod, Str, Timestamp, Volume};
use serde_json::Value;

use crate::feature_gates::FeatureGates;
use crate::pod_requests::PodRequests;
use crate::template::PodTemplate;
use crate::time::Now;

/// Type of the pod condition that says why a pod is being evicted.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The condition's reason when a scheduler preempts the pod.
pub const PREEMPTION_BY_SCHEDULER: &str = "PreemptionByScheduler";

/// One pod: the template that it shares with equal pods, and its own fields.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`; `namespace/name` when the object has none (a manifest).
    pub uid: Box<str>,
    /// The part that it shares with equal pods.
    pub template: Arc<PodTemplate>,
    /// Name of the node that it is assigned to; empty while pending.
    pub node_name: Str,
    /// `status.nominatedNodeName`; empty when there is none.
    pub nominated_node_name: Str,
    /// `metadata.generation`; 0 when the object has none.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: OptionalTimestamp,
    /// `status.startTime`.
    pub started: OptionalTimestamp,
    /// When its condition PodScheduled became true; none while it is not.
    pub scheduled: OptionalTimestamp,
    /// Whether it has a deletion timestamp.
    pub terminating: bool,
    /// Its condition DisruptionTarget, which few pods have.
    pub disruption: Option<Box<PodCondition>>,
    /// Fields that only plugins need ([`crate::ExtensionPoints::request_field`]).
    pub extra: Option<Arc<ExtraFields>>,
    /// Requests, if the pod's status makes them differ from its template's (in-place resize).
    pub resized: Option<Box<PodRequests>>,
}

impl PodInfo {
    /// A pod with this template, which must have been parsed from an equal pod.
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
        let scheduled =
            |known: &&PodCondition| known.kind == "PodScheduled" && known.status == "True";
        let scheduled = status.conditions.iter().find(scheduled);
        let resized = reports.then(|| PodRequests::new(&template.spec, status, gates));
        PodInfo {
            name: pod.metadata.name.clone(),
            uid,
            node_name: pod.spec.node_name.clone(),
            nominated_node_name: status.nominated_node_name.clone(),
            generation: pod.metadata.generation,
            created: pod.metadata.creation_timestamp.into(),
            started: status.start_time.into(),
            scheduled: scheduled.map(|it| it.last_transition_time.unwrap_or(Timestamp::MIN)).into(),
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

    /// Whether it is terminating because a scheduler preempted it (upstream's `podTerminatingByPreemption`).
    pub fn is_terminating_by_preemption(&self) -> bool {
        let by_scheduler = |condition: &PodCondition| {
            condition.status == "True" && condition.reason == PREEMPTION_BY_SCHEDULER
        };
        self.terminating && self.disruption.as_deref().is_some_and(by_scheduler)
    }

    /// An annotation, for plugins that [need](crate::ExtraField) them.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.extra.as_ref()?.annotations.get(key).map(|value| &**value)
    }

    /// The pod as the API server has it, without `metadata.managedFields`, for plugins that [need](crate::ExtraField) it.
    pub fn object(&self) -> Option<&Value> {
        self.extra.as_ref().map(|extra| &extra.object).filter(|object| !object.is_null())
    }

    /// The claim of one of the pod's volumes, if it has one.
    pub fn claim_name(&self, volume: &Volume) -> Option<ClaimName> {
        match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => {
                Some(ClaimName { name: claim.claim_name.clone(), is_ephemeral: false })
            }
            (None, Some(_)) => {
                let name = format!("{}-{}", self.name, volume.name).into();
                Some(ClaimName { name, is_ephemeral: true })
            }
            (None, None) => None,
        }
    }

    /// The claims that the pod's volumes use, in the order of the volumes.
    pub fn claim_names(&self) -> impl Iterator<Item = ClaimName> + '_ {
        self.template.spec.volumes.iter().filter_map(|volume| self.claim_name(volume))
    }

    /// The pod's current requests.
    pub fn requests(&self) -> &PodRequests {
        self.resized.as_deref().unwrap_or(&self.template.requests)
    }
}

/// The PersistentVolumeClaim that a volume of a pod uses, in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimName {
    /// That of the claim, or `POD-VOLUME` for an ephemeral volume.
    pub name: Str,
    /// Whether the claim is made for this pod, which must then be its controller.
    pub is_ephemeral: bool,
}

/// A pod in the scheduling queue, as QueueSort plugins see it.
#[derive(Clone, Debug)]
pub struct QueuedPodInfo {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// When it was added to its current queue; updated at every requeue (upstream's `Timestamp`).
    pub queued: Timestamp,
    /// When it was first added to activeQ (upstream's `InitialAttemptTimestamp`); `None` until then. Pods in activeQ always have it.
    pub initial_attempt: Option<Now>,
    /// Attempts so far.
    pub attempts: u32,
}
