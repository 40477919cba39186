//! Another configuration replaces the running one ([`EngineEvent::Reconfigured`](super::EngineEvent::Reconfigured)).
//!
//! | what | happens |
//! | --- | --- |
//! | an attempt that waits for an extender | ends first: the event is deferred |
//! | pods that wait at Permit, in PreBind, Bind or PostFilter | finish under the profile under which they began; a failed one is retried under the new one |
//! | queued pods | are tried again under the new profiles, in the order of the new QueueSort, without backoff unless it followed an error |
//! | pods of a removed profile | leave the queue |
//! | pods of an added profile | enter it |
//! | the state of an unchanged plugin | stays, also if its profile was removed and comes back while pods finish under it |
//! | the state of another plugin | is made of the objects in the world |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::ExtraFieldsByKind;
use loadmaster_framework::{PodChange, PodInfo, World};
use loadmaster_stdx::Rng;

use super::configuration::EngineConfiguration;
use super::effect::Effects;
use super::orphaned_pods::OrphanedPods;
use super::plugin_handle::EventRegistrations;
use super::plugin_objects::Publication;
use super::status_patch::Condition;
use super::{Engine, PluginHandle};
use crate::plugin_events::report_all_again;
use crate::profile::Profile;
use crate::queue::{ProfileIdx, QueuedPod};
use crate::time::Now;

/// How often the engine looks whether pods in flight still use profiles of earlier configurations.
const UNUSED_PROFILES_PERIOD: Duration = Duration::from_secs(1);

/// A pod without a node that no profile is responsible for, as the API server has it.
pub(super) struct OtherPod {
    pub pod: Arc<PodInfo>,
    pub generation: i64,
    pub condition: Option<Condition>,
    /// The number of the call in which it came.
    pub since: u64,
}

/// Declares to the world what the plugins of these profiles read. Returns the fields that they need.
pub(super) fn declare(
    world: &mut World,
    profiles: &[Arc<Profile>],
    orphaned: &OrphanedPods,
) -> ExtraFieldsByKind {
    let mut needs = ExtraFieldsByKind::default();
    let orphaned: Vec<Arc<PodInfo>> = orphaned.iter().cloned().collect();
    for profile in profiles {
        needs = needs.union(profile.needs);
        profile.watches.iter().for_each(|watch| world.watch_objects(watch));
        profile.pod_indexes.iter().for_each(|key| world.index_pods(key));
        profile.pod_sums.iter().for_each(|sums| world.sum_pods_and(sums, &orphaned));
    }
    needs
}

impl Engine {
    /// The number of the running configuration: 0 is the one of [`Engine::new`], and each [`EngineConfiguration`] that takes effect has the next
    /// number.
    pub fn configuration(&self) -> u64 {
        self.profiles.configuration()
    }

    /// Why this engine cannot take over a configuration: its plugins read something that was not decoded when the objects of the cluster came.
    /// One sentence per profile and reason; empty if it can.
    pub fn obstacles(&self, configuration: &EngineConfiguration) -> Vec<String> {
        let mut obstacles = Vec::new();
        for profile in &configuration.profiles {
            let name = &profile.scheduler_name;
            if self.needs.union(profile.needs) != self.needs {
                obstacles.push(format!(
                    "profile {name:?}: a plugin reads fields of pods or nodes that this process does not store"
                ));
            }
            for watch in &profile.watches {
                if !self.world.watched_objects().can_watch(watch) {
                    let kind = &watch.kind.resource;
                    obstacles.push(format!(
                        "profile {name:?}: a plugin reads {kind} in a form that this process does not store"
                    ));
                }
            }
        }
        obstacles
    }

    /// The number of the earliest configuration whose extenders may still be called.
    pub fn earliest_configuration(&self) -> u64 {
        self.profiles.earliest_configuration()
    }

    pub(super) fn reconfigure(
        &mut self,
        now: Now,
        configuration: &EngineConfiguration,
        effects: &mut Effects,
    ) {
        let profiles = configuration.profiles.clone();
        self.needs = self.needs.union(declare(&mut self.world, &profiles, &self.orphaned_pods));
        let (rng, verify_every) = (Rng::new(self.options.seed), self.options.verify_every);
        let fresh = self.profiles.replace(profiles, verify_every, &rng, &mut self.world);
        self.registrations = EventRegistrations::of(&self.profiles);
        self.forget_diagnoses();
        for pod in self.pending_pods().into_iter().cloned().collect::<Vec<_>>() {
            // There may be new indexes.
            self.world.upsert_pending_pod(&pod);
        }
        self.make_states(&fresh);
        for uid in self.pods_without_profile() {
            self.release_pod(now, &uid);
        }
        self.requeue_all(now, configuration);
        self.adopt_pods(now, effects);
        self.drop_unused_profiles_now(now);
    }

    /// Makes the states of plugins that begin anew.
    fn make_states(&mut self, fresh: &[(usize, &'static str)]) {
        let pods = self.pods_of_plugins();
        for (at, plugin) in fresh {
            let it = &mut self.profiles[*at];
            let states = it.scheduler.plugin_states_mut();
            report_all_again(&it.profile, plugin, &self.world, states, pods.iter());
        }
        let publications = std::mem::take(&mut self.publications);
        for Publication { plugin, value, .. } in &publications {
            // The plugins of the earlier configuration accepted it; what the new ones do not accept, they do not have.
            let _ = self.pass_to_plugins(plugin, Some(value));
        }
        self.publications = publications;
    }

    /// The pending pods that are not in flight and whose profile is gone, by uid.
    fn pods_without_profile(&self) -> Vec<Box<str>> {
        let pods = self.pending_pods().into_iter();
        let without = pods.filter(|pod| self.responsible_profile(pod).is_none());
        without.map(|pod| pod.uid.clone()).collect()
    }

    /// Moves all queued pods to the new profiles, and tries them again.
    fn requeue_all(&mut self, now: Now, configuration: &EngineConfiguration) {
        let queued: Vec<Arc<PodInfo>> = self.pending_pods().into_iter().cloned().collect();
        for pod in queued.iter().filter(|pod| self.queue.get(&pod.uid).is_some()) {
            let profile_idx = self.profiles.active_index(pod.template.scheduler_name());
            if let (Some(new), Some(pending)) = (profile_idx, self.pending.get_mut(&pod.uid)) {
                pending.profile_idx = new;
            }
        }
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        let profiles = &self.profiles;
        let profile_of = |pod: &PodInfo| profiles.active_index(pod.template.scheduler_name());
        let backoff = (configuration.initial_backoff, configuration.max_backoff);
        self.queue.reconfigure(now, &handle, backoff, &profile_of);
    }

    /// Adds the pods that a profile is responsible for now, in the order in which they came.
    fn adopt_pods(&mut self, now: Now, effects: &mut Effects) {
        let profiles = &self.profiles;
        #[expect(clippy::disallowed_methods, reason = "sorted below")]
        let all = self.others.values();
        let is_ours =
            |it: &&OtherPod| profiles.active_index(it.pod.template.scheduler_name()).is_some();
        let mut ours: Vec<(u64, Box<str>)> =
            all.filter(is_ours).map(|it| (it.since, it.pod.uid.clone())).collect();
        ours.sort_unstable();
        for (_, uid) in ours {
            if let Some(OtherPod { pod, generation, condition, .. }) = self.others.remove(&uid) {
                self.upsert_pending_pod(now, pod, generation, condition, effects);
            }
        }
    }

    /// No profile is responsible for a pending pod any more.
    pub(super) fn release_pod(&mut self, now: Now, uid: &str) {
        let Some(pending) = self.pending.remove(uid) else { return };
        let was_nominated = self.world.nominated_node(uid).is_some();
        self.world.delete_pending_pod(uid);
        self.delete_queued_pod(uid);
        self.status_patches.drop_patch_of_pod(uid);
        self.world.delete_nominated_pod(uid);
        self.notify_pod_change(Some(pending.pod.clone()), None);
        let (pod, generation) = (pending.pod, pending.generation);
        // A patch in flight may fail.
        let condition = pending.condition.filter(|_| !self.status_patches.is_in_flight(uid));
        let since = self.n_engine_calls;
        self.others.insert(uid.into(), OtherPod { pod: pod.clone(), generation, condition, since });
        if was_nominated {
            self.requeue_lower_priority(now, pod, None);
        }
    }

    /// The profile that is responsible for a pending pod: the one under which it is in flight, or else the running one of its schedulerName.
    pub(super) fn responsible_profile(&self, pod: &PodInfo) -> Option<ProfileIdx> {
        let in_flight = || {
            let assumed = self.assumed.get(&pod.uid).map(|assumed| assumed.profile_idx);
            let run = self.post_filter_runs.get(&pod.uid).map(|run| run.queued.profile_idx);
            assumed.or(run)
        };
        self.profile_for_pod(pod)
            .filter(|_| !self.profiles.has_replaced())
            .or_else(|| in_flight().or_else(|| self.profile_for_pod(pod)))
    }

    /// A pod that was reserved under an earlier configuration is not any more. Plugins whose states began anew meanwhile saw it on a node, and
    /// were not called to unreserve it: they learn of it as of a new pod.
    pub(super) fn report_unreserved(&mut self, uid: &str, profile_idx: ProfileIdx) {
        let since = self.profile_scheduler(profile_idx).configuration;
        let is_assigned = self.assigned_pod(uid).is_some();
        let Some(pod) = self.pending.get(uid).map(|pending| pending.pod.clone()) else { return };
        if is_assigned || !self.profiles.is_replaced(profile_idx) {
            return;
        }
        let deleted = PodChange { old: Some(pod.clone()), new: None };
        let added = PodChange { old: None, new: Some(pod) };
        for it in self.profiles.iter_mut() {
            let (receivers, states) = it.receivers_since(since);
            for receiver in receivers {
                receiver.on_pod_change(&self.world, states, &deleted);
                receiver.on_pod_change(&self.world, states, &added);
            }
        }
    }

    /// An attempt under an earlier configuration has failed: the pod is tried again under the running one, or leaves the queue. `is_error`: after
    /// its backoff.
    pub(super) fn retry_under_new_profile(
        &mut self,
        now: Now,
        mut queued: QueuedPod,
        is_error: bool,
    ) {
        let pod = queued.info.pod.clone();
        let Some(profile_idx) = self.profile_for_pod(&pod) else {
            self.queue.done(&pod.uid);
            return self.release_pod(now, &pod.uid);
        };
        if let Some(pending) = self.pending.get_mut(&pod.uid) {
            pending.profile_idx = profile_idx;
        }
        queued.profile_idx = profile_idx;
        queued.set_rejecters(Default::default(), Default::default());
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        match is_error {
            true => self.queue.requeue(now, &handle, queued),
            false => self.queue.retry(now, &handle, queued),
        }
    }

    /// Drops the profiles of earlier configurations that no pod in flight uses any more, from time to time.
    pub(super) fn drop_unused_profiles(&mut self, now: Now) {
        let is_due = self.profiles_checked_at.is_some_and(|at| at <= now.mono);
        if is_due && !self.has_suspended_attempt() {
            self.drop_unused_profiles_now(now);
        }
    }

    fn drop_unused_profiles_now(&mut self, now: Now) {
        #[expect(clippy::disallowed_methods, reason = "collected into a set")]
        let bindings = self.assumed.values().filter(|assumed| assumed.binding.is_some());
        let bindings = bindings.map(|assumed| assumed.profile_idx);
        #[expect(clippy::disallowed_methods, reason = "collected into a set")]
        let runs = self.post_filter_runs.values().map(|run| run.queued.profile_idx);
        let used: BTreeSet<usize> = bindings.chain(runs).map(|at| at.0 as usize).collect();
        self.profiles.drop_unused(&used, &mut self.world);
        let next = now.mono.after(UNUSED_PROFILES_PERIOD);
        self.profiles_checked_at = self.profiles.has_replaced().then_some(next);
    }
}
