//! Conflicts with other schedulers: two schedulers may select_host the same pod, or the same resources of a node. Conflicts are counted, and
//! reported with the pod that was bound first.
//!
//! | conflict | how it is detected | what is recorded |
//! | --- | --- | --- |
//! | [`ConflictKind::Bind`] | our bind is rejected, and the watch says that the pod is bound, in either order | the reply, in FailedScheduling |
//! | [`ConflictKind::Pod`] | a pod that we tried is bound, and we sent no bind for it | an Event if the pod was assumed here |
//! | [`ConflictKind::Resources`] | another scheduler binds a pod to a node, and pods that are assumed there no longer fit | an Event on one of these |
//!
//! A replica that is not the leader schedules no pod and has no conflicts.

use loadmaster_api::Str;
use loadmaster_framework::{NodeInfo, PodInfo, resources};

use super::assumed_pod::{AssumedPod, Stage};
use super::effect::{Effect, Effects, EventRecord, Observation, RegardingObject};
use super::{Engine, PendingPod};
use crate::queue::ProfileIdx;

pub use super::observation::{Conflict, ConflictKind, ConflictingPod};

/// A bind that failed, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedBind {
    pub node: Str,
    /// The API server replied with a conflict (409).
    pub is_conflict: bool,
}

impl Engine {
    /// A pod that was pending here is bound. Reports a conflict if another scheduler bound it.
    pub(super) fn detect_pod_conflict(
        &mut self,
        pending: &PendingPod,
        pod: &PodInfo,
        effects: &mut Effects,
    ) {
        let assumed = self.assumed.get_mut(&pod.uid).filter(|assumed| !assumed.confirmed);
        let (kind, node) = match assumed {
            Some(AssumedPod { binding: Some(binding), .. }) => {
                let sent = matches!(binding.stage, Stage::Bind { .. });
                if sent && binding.node == pod.node_name {
                    // Our own bind; otherwise the reply will say so.
                    return;
                }
                binding.conflict_reported = true;
                (if sent { ConflictKind::Bind } else { ConflictKind::Pod }, binding.node.clone())
            }
            Some(_) => return,
            None => match &pending.last_failed_bind {
                Some(bind) if bind.is_conflict => (ConflictKind::Bind, bind.node.clone()),
                // Our bind succeeded, although its reply did not arrive.
                Some(bind) if bind.node == pod.node_name => return,
                _ if self.has_been_attempted(pending) => (ConflictKind::Pod, Str::default()),
                _ => return,
            },
        };
        self.report_pod_conflict(kind, pending.profile_idx, (pod, node), &pod.node_name, effects);
    }

    fn has_been_attempted(&self, pending: &PendingPod) -> bool {
        pending.last_attempt.is_some() || self.post_filter_runs.contains_key(&pending.pod.uid)
    }

    /// Our bind failed, perhaps with a conflict. If the pod is known to be bound to our node, another scheduler bound it; if not, a later
    /// event shows whether it is bound.
    pub(super) fn record_failed_bind(
        &mut self,
        uid: &str,
        is_conflict: bool,
        effects: &mut Effects,
    ) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let Some(binding) = assumed.binding.as_mut().filter(|binding| !binding.conflict_reported)
        else {
            return;
        };
        let node = binding.node.clone();
        if is_conflict && assumed.confirmed && !assumed.forgotten {
            binding.conflict_reported = true;
            let (pod, profile_idx) = (assumed.pod.clone(), assumed.profile_idx);
            self.report_pod_conflict(
                ConflictKind::Bind,
                profile_idx,
                (&pod, node.clone()),
                &node,
                effects,
            );
        } else if let Some(pending) = self.pending.get_mut(uid) {
            pending.last_failed_bind = Some(Box::new(FailedBind { node, is_conflict }));
        }
    }

    fn report_pod_conflict(
        &self,
        kind: ConflictKind,
        profile_idx: ProfileIdx,
        (pod, node): (&PodInfo, Str),
        bound_to: &Str,
        effects: &mut Effects,
    ) {
        let conflict = Conflict {
            kind,
            profile: self.scheduler_name(profile_idx),
            pod: pod.full_name(),
            node,
            bound_to: bound_to.clone(),
            other: None,
        };
        // The reply to a bind is reported anyway, and a pod that was not assumed needs no Event.
        if kind == ConflictKind::Pod && !conflict.node.is_empty() {
            effects.push(Effect::RecordEvent(self.conflict_event(&conflict, pod.into(), None)));
        }
        effects.push(Effect::Observe(Observation::Conflict(Box::new(conflict))));
    }

    /// Another scheduler bound a pod to a node. If the node's resources are now insufficient, and pods are assumed there, reports a conflict for
    /// one of these.
    pub(super) fn detect_resource_conflict(&mut self, other: &PodInfo, effects: &mut Effects) {
        let row = self.world.nodes().row(&other.node_name);
        let Some(info) = row.and_then(|row| self.world.node(row)) else { return };
        let short: Vec<Str> = insufficient_resources(info, other).collect();
        if short.is_empty() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "the greatest is the same in any order")]
        let assumed_pods = self.assumed.iter().filter(|(_, it)| {
            !it.confirmed && !it.forgotten && it.pod.node_name == other.node_name
        });
        let assumed_pods = assumed_pods.filter_map(|(uid, assumed)| {
            let resource =
                short.iter().find(|resource| requests_resource(&assumed.pod, resource))?;
            Some((assumed.serial, uid, resource))
        });
        // The one that was assumed last: the others fit.
        let Some((_, uid, resource)) = assumed_pods.max() else { return };
        let (uid, resource) = (uid.clone(), resource.clone());
        let Some(assumed) = self.assumed.get_mut(&uid) else { return };
        let is_reported = std::mem::replace(&mut assumed.conflict_reported, true);
        let (pod, profile_idx) = (assumed.pod.clone(), assumed.profile_idx);
        let conflict = Conflict {
            kind: ConflictKind::Resources,
            profile: self.scheduler_name(profile_idx),
            pod: pod.full_name(),
            node: other.node_name.clone(),
            bound_to: other.node_name.clone(),
            other: Some(ConflictingPod {
                pod: other.full_name(),
                scheduler: Str::new(other.template.scheduler_name()),
                resource,
            }),
        };
        if !is_reported {
            effects.push(Effect::RecordEvent(self.conflict_event(
                &conflict,
                (&*pod).into(),
                Some(other.into()),
            )));
        }
        effects.push(Effect::Observe(Observation::Conflict(Box::new(conflict))));
    }

    fn conflict_event(
        &self,
        conflict: &Conflict,
        regarding: RegardingObject,
        related: Option<RegardingObject>,
    ) -> EventRecord {
        EventRecord {
            is_warning: true,
            reason: "SchedulingConflict",
            action: "Binding",
            note: conflict.to_string(),
            regarding,
            related,
            controller: conflict.profile.clone(),
        }
    }
}

/// Resources that the pod requests, and that are overcommitted on the node.
fn insufficient_resources<'a>(
    node: NodeInfo<'a>,
    pod: &'a PodInfo,
) -> impl Iterator<Item = Str> + 'a {
    let pods =
        (node.n_pods() > node.allocatable_pods()).then(|| Str::new(resources::RESOURCE_PODS));
    let native = [
        resources::RESOURCE_CPU,
        resources::RESOURCE_MEMORY,
        resources::RESOURCE_EPHEMERAL_STORAGE,
    ]
    .map(Str::new);
    let scalars = pod.requests().resources.scalars.iter().map(|(name, _)| name.clone());
    let wanted =
        native.into_iter().chain(scalars).filter(|resource| requests_resource(pod, resource));
    let short = wanted.filter(move |name| node.requested(name) > node.allocatable(name));
    pods.into_iter().chain(short)
}

fn requests_resource(pod: &PodInfo, resource: &str) -> bool {
    let wanted = &pod.requests().resources;
    let amount = match resource {
        resources::RESOURCE_PODS => 1,
        resources::RESOURCE_CPU => wanted.cpu_milli,
        resources::RESOURCE_MEMORY => wanted.memory_bytes,
        resources::RESOURCE_EPHEMERAL_STORAGE => wanted.ephemeral_storage_bytes,
        scalar => wanted.scalar(scalar).unwrap_or(0),
    };
    amount > 0
}
