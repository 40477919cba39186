//! Evicts the victims of preemption (upstream's preemption `Executor`). All victims but the last are deleted at once, and the last one when
//! the API server has deleted the others: its deletion event is what requeues the preemptor.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::preemption::eviction;
use loadmaster_framework::{PodInfo, PostFilterResult};

use super::assumed_pod::Stage;
use super::attempt_failure::AttemptFailure;
use super::call_owner::{CallOwner, EvictionStep};
use super::effect::{ApiServerCall, Effect, Effects, EventRecord, Observation};
use super::event::ApiReply;
use super::{Engine, PluginHandle};
use crate::queue::{ProfileIdx, QueuedPod, SubQueue};
use crate::time::Now;

/// The evictions for one preemptor.
pub(super) struct Eviction {
    preemptor: Arc<PodInfo>,
    profile_idx: ProfileIdx,
    node: Str,
    /// Victims with a call in flight.
    running: Vec<Arc<PodInfo>>,
    /// The victim that is deleted after all others.
    last: Option<Arc<PodInfo>>,
    has_failed: bool,
}

impl Engine {
    /// Starts the evictions that PostFilter chose.
    pub(super) fn evict(
        &mut self,
        now: Now,
        queued: &QueuedPod,
        filtered: &PostFilterResult,
        effects: &mut Effects,
    ) {
        let mut victims: Vec<Arc<PodInfo>> = filtered.victims_to_evict().cloned().collect();
        let Some(last) = victims.pop() else { return };
        let preemptor = queued.info.pod.clone();
        // Pods of lower priority that were nominated to the node look for another one right away (upstream's `clearNominatedNodeName`).
        for pod in &filtered.cleared_nominations {
            self.patch_status(now, &pod.uid, None, Some(Str::default()), effects);
        }
        let ongoing = self.world.ongoing_preemptions_mut();
        ongoing.start(&preemptor.uid);
        filtered.victims_to_evict().for_each(|victim| ongoing.add_victim(&victim.uid));
        let uid = preemptor.uid.clone();
        let node = filtered.nominated_node.clone().unwrap_or_default();
        let eviction = Eviction {
            preemptor,
            profile_idx: queued.profile_idx,
            node,
            running: victims.clone(),
            last: Some(last),
            has_failed: false,
        };
        self.evictions.insert(uid.clone(), eviction);
        for victim in victims {
            self.evict_victim(now, &uid, &victim, effects);
        }
        self.continue_eviction(now, &uid, effects);
    }

    /// Evicts one victim. One that is not bound yet is rejected and requeued; others are deleted through the API server.
    fn evict_victim(
        &mut self,
        now: Now,
        preemptor: &str,
        victim: &Arc<PodInfo>,
        effects: &mut Effects,
    ) {
        let Some(eviction) = self.evictions.get(preemptor) else { return };
        let stage = self.assumed.get(&victim.uid).and_then(|assumed| assumed.binding.as_ref());
        let failed = match stage.map(|binding| &binding.stage) {
            Some(Stage::Permit { .. }) => Some("waiting on permit for pod: preempted"),
            Some(Stage::PreBind { .. }) => Some("preempted"),
            // Its Binding may already be written.
            Some(Stage::Bind { .. }) | None => None,
        };
        if let Some(text) = failed {
            let note =
                eviction::preempted_in_memory_event_note(&eviction.preemptor, &eviction.node);
            effects.push(self.preempted_event(eviction, victim, note));
            self.cancel_pre_bind(&victim.uid);
            self.handle_binding_error(now, &victim.uid, AttemptFailure::error(text), effects);
            self.world.ongoing_preemptions_mut().remove_victim(&victim.uid);
            self.finish_victim(preemptor, &victim.uid, true);
            return;
        }
        let request = eviction::disruption_condition_patch(&eviction.preemptor, victim, now.wall);
        let owner = CallOwner::Evict {
            preemptor: preemptor.into(),
            victim: victim.uid.clone(),
            step: EvictionStep::Condition,
        };
        let id = self.next_call(owner);
        effects.push(Effect::Call(ApiServerCall { id, request }));
    }

    /// Handles a reply of the API server about a victim. One that is not found is already deleted.
    pub(super) fn handle_eviction_reply(
        &mut self,
        now: Now,
        (preemptor, victim, step): (&str, &str, EvictionStep),
        reply: &ApiReply,
        effects: &mut Effects,
    ) {
        let Some(eviction) = self.evictions.get(preemptor) else { return };
        let Some(pod) = eviction.running.iter().find(|pod| &*pod.uid == victim).cloned() else {
            return;
        };
        match (reply, step) {
            (Ok(_), EvictionStep::Condition) => {
                let request = eviction::delete_victim_request(&pod);
                let owner = CallOwner::Evict {
                    preemptor: preemptor.into(),
                    victim: victim.into(),
                    step: EvictionStep::Deletion,
                };
                let id = self.next_call(owner);
                effects.push(Effect::Call(ApiServerCall { id, request }));
                return;
            }
            (Ok(_), EvictionStep::Deletion) => {
                let note = eviction::preempted_event_note(&eviction.preemptor, &eviction.node);
                effects.push(self.preempted_event(eviction, &pod, note));
                self.finish_victim(preemptor, victim, true);
            }
            (Err(error), _) if error.code == 404 => {
                self.finish_victim(preemptor, victim, true);
            }
            (Err(error), _) => {
                let message = format!(
                    "pod {}: evicting {}: {}",
                    eviction.preemptor.full_name(),
                    pod.full_name(),
                    error.message
                );
                effects.push(Effect::Observe(Observation::InternalError { message }));
                self.finish_victim(preemptor, victim, false);
            }
        }
        self.continue_eviction(now, preemptor, effects);
    }

    /// One that was deleted counts as a victim until the watch reports that.
    fn finish_victim(&mut self, preemptor: &str, victim: &str, is_done: bool) {
        if !is_done {
            self.world.ongoing_preemptions_mut().remove_victim(victim);
        }
        if let Some(eviction) = self.evictions.get_mut(preemptor) {
            eviction.running.retain(|pod| &*pod.uid != victim);
            eviction.has_failed |= !is_done;
        }
    }

    /// Continues when all calls have replies: evicts the last victim, or ends. After a failure the preemptor is activated at once, because
    /// no event may follow that requeues it. The same applies when it was requeued meanwhile and PreEnqueue gated it: the event that requeued
    /// it (such as the deletion of a victim) will not occur again, and the plugins that rejected it may ignore the deletion of the last
    /// victim.
    fn continue_eviction(&mut self, now: Now, preemptor: &str, effects: &mut Effects) {
        loop {
            let Some(eviction) = self.evictions.get_mut(preemptor) else { return };
            if !eviction.running.is_empty() {
                return;
            }
            let Some(last) = eviction.last.take() else { break };
            if eviction.has_failed {
                self.world.ongoing_preemptions_mut().remove_victim(&last.uid);
                break;
            }
            eviction.running.push(last.clone());
            self.world.ongoing_preemptions_mut().set_last_victim(preemptor, &last.uid);
            self.evict_victim(now, preemptor, &last, effects);
        }
        let Some(eviction) = self.evictions.remove(preemptor) else { return };
        self.world.ongoing_preemptions_mut().end(preemptor);
        let is_gated =
            self.queue.get(preemptor).is_some_and(|(_, sub_queue)| sub_queue == SubQueue::Gated);
        if eviction.has_failed || is_gated {
            let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
            self.queue.activate(now, &handle, &[preemptor]);
        }
    }

    /// An assigned pod was deleted. While a victim terminates on its nominated node, a preemptor must not preempt elsewhere. When the last one
    /// there is gone it is activated, because the plugins that rejected it may ignore that deletion: another pod may have taken its place.
    pub(super) fn activate_preemptors(&mut self, now: Now, deleted: &PodInfo) {
        let nodes = self.world.nodes();
        let Some(row) = nodes.row(&deleted.node_name) else { return };
        if !deleted.is_terminating_by_preemption()
            || nodes.pods(row).iter().any(|pod| pod.is_terminating_by_preemption())
        {
            return;
        }
        let nominated = self.world.nominated_pods_for_node(&deleted.node_name).iter();
        let unschedulable = nominated.filter(|pod| {
            self.queue.get(&pod.uid).is_some_and(|(_, at)| at == SubQueue::Unschedulable)
        });
        let uids: Vec<Box<str>> = unschedulable.map(|pod| pod.uid.clone()).collect();
        self.activate(now, &uids);
    }

    fn preempted_event(&self, eviction: &Eviction, victim: &PodInfo, note: String) -> Effect {
        Effect::RecordEvent(EventRecord {
            is_warning: false,
            reason: "Preempted",
            action: "Preempting",
            note,
            regarding: victim.into(),
            related: Some((&*eviction.preemptor).into()),
            controller: self.scheduler_name(eviction.profile_idx),
        })
    }
}
