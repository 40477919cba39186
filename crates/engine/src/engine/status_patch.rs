//! Patches of pod conditions and nominated nodes. Each pod has at most one patch in flight; later changes are merged into one patch that
//! follows it.

use loadmaster_api::{Str, Timestamp};
use loadmaster_framework::PodInfo;
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use loadmaster_stdx::Map;
use serde_json::{Value, json};

use super::Engine;
use super::assumed_pod::Stage;
use super::call_owner::CallOwner;
use super::effect::{ApiServerCall, Effect, Effects, Observation};
use super::event::ApiReply;
use crate::time::Now;

/// The fields of a `PodScheduled` condition that decide whether another patch is necessary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub status: Str,
    pub reason: Str,
    pub message: Box<str>,
}

/// The content of a patch.
#[derive(Clone, Debug, Default)]
struct Patch {
    condition: Option<ConditionPatch>,
    nominated_node: Option<Str>,
}

#[derive(Clone, Debug)]
struct ConditionPatch {
    condition: Condition,
    generation: i64,
    /// Set when the condition's status changes with this patch.
    transition: Option<Timestamp>,
}

/// By pod uid: present while a patch is in flight, with the patch that follows it.
#[derive(Default)]
pub(super) struct StatusPatches(Map<Box<str>, Option<Patch>>);

impl StatusPatches {
    /// Whether a patch is in flight.
    pub fn is_in_flight(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// The pod is deleted or bound: drops the patch that would follow. Returns whether there was one.
    pub fn drop_patch_of_pod(&mut self, uid: &str) -> bool {
        self.0.get_mut(uid).is_some_and(|next| next.take().is_some())
    }
}

impl Engine {
    /// Patches a condition and a nominated node into the pod's status, if that changes anything.
    pub(super) fn patch_status(
        &mut self,
        now: Now,
        uid: &str,
        condition: Option<Condition>,
        nominated_node: Option<Str>,
        effects: &mut Effects,
    ) {
        let Some(pending) = self.pending.get_mut(uid) else { return };
        let condition = condition.filter(|new| pending.condition.as_ref() != Some(new));
        // The watch may not have delivered the last patch yet, or that patch may not have been sent.
        let is_known = |node: &Str| {
            *node == pending.pod.nominated_node_name
                && pending.written_nomination.as_ref().is_none_or(|written| written == node)
        };
        let nominated_node = nominated_node.filter(|node| !is_known(node));
        if condition.is_none() && nominated_node.is_none() {
            return;
        }
        let written = condition.map(|condition| {
            let before = pending.condition.replace(condition.clone());
            let stays = before.is_some_and(|before| before.status == condition.status);
            let transition = (!stays).then_some(now.wall);
            ConditionPatch { condition, generation: pending.generation, transition }
        });
        if nominated_node.is_some() {
            pending.written_nomination = nominated_node.clone();
        }
        let patch = Patch { condition: written, nominated_node };
        let pod = pending.pod.clone();
        match self.status_patches.0.get_mut(uid) {
            Some(next) => next.get_or_insert_default().add(patch),
            None => self.send_patch(&pod, &patch, effects),
        }
    }

    /// Drops the patch that would follow the one in flight; if the bind fails, the next failed attempt writes its own condition.
    pub(super) fn forget_unsent_patch(&mut self, uid: &str) {
        if self.status_patches.drop_patch_of_pod(uid)
            && let Some(pending) = self.pending.get_mut(uid)
        {
            pending.condition = None;
        }
    }

    /// Handles the reply to a patch. After an error the next failed attempt writes its condition again.
    pub(super) fn handle_status_reply(
        &mut self,
        uid: &str,
        reply: &ApiReply,
        effects: &mut Effects,
    ) {
        let next = self.status_patches.0.remove(uid).flatten();
        let Some(pending) = self.pending.get_mut(uid) else { return };
        let is_being_bound = self.assumed.get(uid).is_some_and(|assumed| {
            assumed.binding.as_ref().is_none_or(|it| matches!(it.stage, Stage::Bind { .. }))
        });
        if let Err(error) = reply {
            if next.as_ref().is_none_or(|next| next.condition.is_none()) {
                pending.condition = None;
            }
            // The bind has overridden it.
            if is_being_bound {
                return;
            }
            let pod = pending.pod.full_name();
            let message = format!("pod {pod}: updating its status: {}", error.message);
            effects.push(Effect::Observe(Observation::InternalError { message }));
        }
        let pod = pending.pod.clone();
        if let Some(next) = next {
            self.send_patch(&pod, &next, effects);
        }
    }

    fn send_patch(&mut self, pod: &PodInfo, patch: &Patch, effects: &mut Effects) {
        self.status_patches.0.insert(pod.uid.clone(), None);
        let id = self.next_call(CallOwner::Status { uid: pod.uid.clone() });
        let request = patch.request(pod);
        effects.push(Effect::Call(ApiServerCall { id, request }));
    }
}

impl Patch {
    /// Merges a later patch into this one.
    fn add(&mut self, later: Patch) {
        if let Some(mut written) = later.condition {
            let earlier = self.condition.take().and_then(|earlier| earlier.transition);
            written.transition = written.transition.or(earlier);
            self.condition = Some(written);
        }
        self.nominated_node = later.nominated_node.or(self.nominated_node.take());
    }

    /// A strategic merge patch; conditions are merged by their type.
    fn request(&self, pod: &PodInfo) -> ApiRequest {
        let mut status = serde_json::Map::new();
        if let Some(node) = &self.nominated_node {
            let node = if node.is_empty() { Value::Null } else { json!(node.as_str()) };
            status.insert("nominatedNodeName".to_owned(), node);
        }
        if let Some(ConditionPatch { condition, generation, transition }) = &self.condition {
            let mut entry = json!({
                "type": "PodScheduled",
                "status": condition.status.as_str(),
                "reason": condition.reason.as_str(),
                "message": &*condition.message,
            });
            if *generation > 0 {
                entry["observedGeneration"] = json!(generation);
            }
            if let Some(time) = transition {
                entry["lastTransitionTime"] = json!(time.to_string());
            }
            status.insert("conditions".to_owned(), json!([entry]));
        }
        // The UID prevents that the patch applies to a newer pod with the same name.
        let metadata = json!({"uid": &*pod.uid});
        ApiRequest {
            verb: Verb::StrategicMergePatch,
            group: Str::default(),
            version: Str::new("v1"),
            resource: Str::new("pods"),
            namespace: pod.template.namespace.clone(),
            name: Str::new(&pod.name),
            subresource: Str::new("status"),
            body: Some(json!({"metadata": metadata, "status": status})),
        }
    }
}
