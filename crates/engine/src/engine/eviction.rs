//! Evicting pods for another one (upstream's preemption executor). All victims but the last at once, and the last when these are gone
//! from the API server's point of view: its disappearance is what lets the preemptor in.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::preemption::evict;
use loadmaster_framework::{PodInfo, PostFiltered};

use super::binding::{Owner, Stage};
use super::effect::{Call, Effect, Effects, Observation, Tell};
use super::failure::Failed;
use super::news::Reply;
use super::{Asking, Engine};
use crate::queue::{Place, QueuedPod, SeatIdx};
use crate::time::Now;

/// The evictions for one preemptor.
pub(super) struct Eviction {
    preemptor: Arc<PodInfo>,
    seat: SeatIdx,
    node: Str,
    /// Victims with a call under way.
    running: Vec<Arc<PodInfo>>,
    /// The one that goes when all others are gone.
    last: Option<Arc<PodInfo>>,
    has_failed: bool,
}

/// How far the eviction of one victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionStep {
    Condition,
    Deletion,
}

impl Engine {
    /// Begins what PostFilter decided.
    pub(super) fn evict(
        &mut self,
        now: Now,
        queued: &QueuedPod,
        filtered: &PostFiltered,
        effects: &mut Effects,
    ) {
        let mut victims: Vec<Arc<PodInfo>> = filtered.to_evict().cloned().collect();
        let Some(last) = victims.pop() else { return };
        let preemptor = queued.info.pod.clone();
        // They look for another place sooner than by waiting until they see that they do not fit here.
        for pod in &filtered.denominated {
            self.patch_status(now, &pod.uid, None, Some(Str::default()), effects);
        }
        self.world.preemptions_mut().start(&preemptor.uid);
        let uid = preemptor.uid.clone();
        let node = filtered.nominated_node.clone().unwrap_or_default();
        let eviction = Eviction {
            preemptor,
            seat: queued.seat,
            node,
            running: victims.clone(),
            last: Some(last),
            has_failed: false,
        };
        self.evictions.insert(uid.clone(), eviction);
        for victim in victims {
            self.evict_one(now, &uid, &victim, effects);
        }
        self.go_on_evicting(now, &uid, effects);
    }

    /// A victim that is not bound yet loses its place in our books, and is tried again; of others the API server is told.
    fn evict_one(
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
            // Its Binding may be written already.
            Some(Stage::Bind { .. }) | None => None,
        };
        if let Some(text) = failed {
            let note = evict::note_in_memory(&eviction.preemptor, &eviction.node);
            effects.push(self.preempted(eviction, victim, note));
            self.cancel_pre_bind(&victim.uid);
            self.binding_failed(now, &victim.uid, Failed::error(text), effects);
            self.evicted(preemptor, &victim.uid, true);
            return;
        }
        let request = evict::condition(&eviction.preemptor, victim, now.wall);
        let owner = Owner::Evict {
            preemptor: preemptor.into(),
            victim: victim.uid.clone(),
            step: EvictionStep::Condition,
        };
        let id = self.next_call(owner);
        effects.push(Effect::Call(Call { id, request }));
    }

    /// The API server answered about a victim. One that it does not find has gone by itself.
    pub(super) fn eviction_replied(
        &mut self,
        now: Now,
        (preemptor, victim, step): (&str, &str, EvictionStep),
        reply: &Reply,
        effects: &mut Effects,
    ) {
        let Some(eviction) = self.evictions.get(preemptor) else { return };
        let Some(pod) = eviction.running.iter().find(|pod| &*pod.uid == victim).cloned() else {
            return;
        };
        match (reply, step) {
            (Ok(_), EvictionStep::Condition) => {
                let request = evict::deletion(&pod);
                let owner = Owner::Evict {
                    preemptor: preemptor.into(),
                    victim: victim.into(),
                    step: EvictionStep::Deletion,
                };
                let id = self.next_call(owner);
                effects.push(Effect::Call(Call { id, request }));
                return;
            }
            (Ok(_), EvictionStep::Deletion) => {
                let note = evict::note(&eviction.preemptor, &eviction.node);
                effects.push(self.preempted(eviction, &pod, note));
                self.evicted(preemptor, victim, true);
            }
            (Err(error), _) if error.code == 404 => {
                self.evicted(preemptor, victim, true);
            }
            (Err(error), _) => {
                let what = format!(
                    "pod {}: evicting {}: {}",
                    eviction.preemptor.full_name(),
                    pod.full_name(),
                    error.message
                );
                effects.push(Effect::Observe(Observation::Trouble { what }));
                self.evicted(preemptor, victim, false);
            }
        }
        self.go_on_evicting(now, preemptor, effects);
    }

    fn evicted(&mut self, preemptor: &str, victim: &str, is_done: bool) {
        if let Some(eviction) = self.evictions.get_mut(preemptor) {
            eviction.running.retain(|pod| &*pod.uid != victim);
            eviction.has_failed |= !is_done;
        }
    }

    /// When all calls are answered: the last victim, or the end. After a failure the preemptor is tried again at once, because no
    /// event may come that wakes it. So it is when it was woken meanwhile and held back: what woke it (a victim's end, say) will
    /// not happen again, and the end of the last victim may be nothing to whoever turned it down.
    fn go_on_evicting(&mut self, now: Now, preemptor: &str, effects: &mut Effects) {
        loop {
            let Some(eviction) = self.evictions.get_mut(preemptor) else { return };
            if !eviction.running.is_empty() {
                return;
            }
            let last = eviction.last.take().filter(|_| !eviction.has_failed);
            let Some(last) = last else { break };
            eviction.running.push(last.clone());
            self.world.preemptions_mut().last_victim(preemptor, &last.uid);
            self.evict_one(now, preemptor, &last, effects);
        }
        let Some(eviction) = self.evictions.remove(preemptor) else { return };
        self.world.preemptions_mut().end(preemptor);
        let is_held = self.queue.get(preemptor).is_some_and(|(_, place)| place == Place::Gated);
        if eviction.has_failed || is_held {
            let asking = Asking::new(&self.seats, &self.interests, &self.world);
            self.queue.activate(now, &asking, &[preemptor]);
        }
    }

    fn preempted(&self, eviction: &Eviction, victim: &PodInfo, note: String) -> Effect {
        Effect::Tell(Tell {
            is_warning: false,
            reason: "Preempted",
            action: "Preempting",
            note,
            regarding: victim.into(),
            related: Some((&*eviction.preemptor).into()),
            controller: self.scheduler_name(eviction.seat),
        })
    }
}
