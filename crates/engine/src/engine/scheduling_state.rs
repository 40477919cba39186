//! The scheduling state of a pod, and why its last attempt failed: `loadmaster explain --last`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_framework::PodInfo;
use serde::{Deserialize, Serialize};

use super::assumed_pod::Stage;
use super::suspended_attempt::SuspendedAttempt;
use super::{Engine, PendingPod, PluginHandle};
use crate::explain::{CowName, Status};
use crate::queue::{EnqueueCause, PluginIdx, QueuePlugins, QueuedPod, SubQueue};
use crate::time::{MonoTime, Now};

pub use super::last_attempt::LastAttempt;
pub use super::rejection_summary::RejectedNodes;

/// The scheduling state of a pod. Serialized as JSON with these fields in this order; the format is stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSchedulingState {
    /// `namespace/name`.
    pub pod: String,
    /// The schedulerName of its profile.
    pub profile: String,
    pub state: PodState,
    /// The node on which it is assigned or assumed; empty if none has been chosen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Number of attempts, including a running one.
    pub attempts: u32,
    /// When it was added to its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When its backoff ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_until: Option<String>,
    /// Which PreEnqueue plugin gates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gated: Option<Status>,
    /// The plugins that rejected it, with the events that may requeue it; for an assumed pod, or during an attempt, the plugins or extenders that
    /// it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<AwaitedPlugin>,
    /// The last attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
}

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodState {
    /// In activeQ.
    Active,
    /// In backoffQ.
    Backoff,
    /// In unschedulablePods.
    Unschedulable,
    /// Gated by PreEnqueue.
    Gated,
    /// Its attempt waits for a PostFilter plugin or for extenders.
    InFlight,
    /// It is assumed on a node and waits on Permit.
    Permit,
    /// It is assumed on a node and is being bound.
    Binding,
    /// It is bound to its node.
    Assigned,
}

/// A plugin or an extender that the pod waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedPlugin {
    pub plugin: CowName,
    /// Events that the plugin registered, such as `NodeAdd`; empty means all events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
}

/// Summary of a pod that is not bound.
#[derive(Clone, Debug)]
pub struct PendingPodSummary<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// Its state.
    pub state: PodState,
    /// Why PreEnqueue gates it, or why its last attempt failed; empty before the first attempt.
    pub reason: Cow<'a, str>,
}

impl Engine {
    /// All pods that are not known to be bound, in arbitrary order.
    pub fn pending_pod_summaries(&self) -> impl Iterator<Item = PendingPodSummary<'_>> {
        #[expect(clippy::disallowed_methods, reason = "documented as unordered")]
        let all = self.pending.values();
        all.map(|pending| {
            let uid = &*pending.pod.uid;
            let queued = self.queue.get(uid);
            let state = match (self.assumed.contains_key(uid), queued) {
                (true, _) => PodState::Binding,
                (false, None) => PodState::InFlight,
                (false, Some((_, sub_queue))) => state_of(sub_queue),
            };
            let gating = queued.and_then(|(queued, _)| queued.gating.as_ref());
            let last = pending.last_attempt.as_ref().map_or("", |last| last.message());
            let reason = gating.map_or(Cow::Borrowed(last), |gating| {
                Cow::Owned(gating.rejection.reasons().join(", "))
            });
            PendingPodSummary { pod: &pending.pod, state, reason }
        })
    }

    /// The scheduling state of a pod; `None` if it is unknown: it does not exist, has terminated, or is pending with another schedulerName.
    pub fn pod_scheduling_state(
        &self,
        now: Now,
        namespace: &str,
        name: &str,
    ) -> Option<PodSchedulingState> {
        let is_it = |pod: &PodInfo| *pod.name == *name && pod.template.namespace == *namespace;
        #[expect(clippy::disallowed_methods, reason = "names are unique")]
        let pending = self.pending.values().find(|pending| is_it(&pending.pod));
        if let Some(pending) = pending {
            return Some(self.progress_of(now, pending));
        }
        let mut assigned = self.world.node_infos().flat_map(|node| node.pods());
        let found = assigned.find(|pod| is_it(pod));
        let pod = found.or_else(|| self.orphaned_pods.iter().find(|pod| is_it(pod)))?;
        let mut progress =
            PodSchedulingState::new(pod, pod.template.scheduler_name(), PodState::Assigned);
        progress.node = pod.node_name.to_string();
        Some(progress)
    }

    fn progress_of(&self, now: Now, pending: &PendingPod) -> PodSchedulingState {
        let (pod, uid) = (&pending.pod, &*pending.pod.uid);
        let mut progress = PodSchedulingState::new(
            pod,
            self.profile_name(pending.profile_idx),
            PodState::InFlight,
        );
        progress.last = pending.last_attempt.as_ref().map(|last| last.to_last_attempt());
        if let Some(assumed) = self.assumed.get(uid) {
            progress.node = assumed.pod.node_name.to_string();
            progress.state = PodState::Binding;
            if let Some(binding) = &assumed.binding {
                progress.attempts = binding.queued.info.attempts;
                let holds = |name| AwaitedPlugin::on(CowName::Borrowed(name));
                let profile_idx = binding.queued.profile_idx;
                let pre_bind = &self.profile_scheduler(profile_idx).profile.pre_bind;
                match &binding.stage {
                    Stage::Permit { waits, .. } if !waits.is_empty() => {
                        progress.state = PodState::Permit;
                        progress.waits_for = waits.iter().map(|wait| holds(wait.name)).collect();
                    }
                    Stage::PreBind { running, .. } => {
                        let members = running.iter().filter_map(|at| pre_bind.get(*at));
                        progress.waits_for = members.map(|member| holds(member.name)).collect();
                    }
                    _ => {}
                }
            }
        } else if let Some((queued, sub_queue)) = self.queue.get(uid) {
            self.describe_wait(now, queued, sub_queue, &mut progress);
        } else if let Some(run) = self.post_filter_runs.get(uid) {
            progress.attempts = run.queued.info.attempts;
            let plugins = &self.profile_scheduler(run.queued.profile_idx).profile.post_filter;
            let plugin = plugins.get(run.member).map(|member| CowName::Borrowed(member.name));
            progress.waits_for = plugin.into_iter().map(AwaitedPlugin::on).collect();
        } else if let Some(suspended) = self.suspended_attempt(uid) {
            progress.attempts = suspended.queued_pod().info.attempts;
            let profile_idx = suspended.queued_pod().profile_idx;
            let all = &self.profile_scheduler(profile_idx).profile.extenders;
            let run = suspended.awaited_extenders().filter_map(|at| all.get(at));
            progress.waits_for =
                run.map(|it| AwaitedPlugin::on(CowName::Owned(it.name.clone()))).collect();
        }
        progress
    }

    fn suspended_attempt(&self, uid: &str) -> Option<&SuspendedAttempt> {
        self.suspended.as_deref().filter(|suspended| &*suspended.queued_pod().info.pod.uid == uid)
    }

    fn describe_wait(
        &self,
        now: Now,
        queued: &QueuedPod,
        sub_queue: SubQueue,
        progress: &mut PodSchedulingState,
    ) {
        progress.state = state_of(sub_queue);
        progress.attempts = queued.info.attempts;
        progress.since = Some(wall(now, queued.queued_at()));
        let backoff = queued.backoff_until().filter(|until| *until > now.mono);
        progress.backoff_until = backoff.map(|until| wall(now, until));
        let plugins = &self.profile_scheduler(queued.profile_idx).profile.plugins;
        let name = |at: PluginIdx| plugins.get(at.0 as usize).map(|plugin| plugin.name);
        progress.gated = queued.gating.as_ref().map(|gating| Status {
            code: gating.rejection.code().name().into(),
            plugin: name(gating.plugin).map(CowName::Borrowed),
            reasons: gating.rejection.reasons(),
        });
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        let all = queued.unschedulable_plugins.iter().chain(queued.pending_plugins.iter());
        let waits = all.filter_map(|at| {
            let events = handle.events(queued.profile_idx, at).unwrap_or_default();
            let events =
                events.iter().map(|known| EnqueueCause::Event(known.event.clone()).to_string());
            Some(AwaitedPlugin { plugin: CowName::Borrowed(name(at)?), events: events.collect() })
        });
        progress.waits_for = waits.collect();
    }
}

impl AwaitedPlugin {
    /// Waits for a reply of this plugin or extender.
    fn on(plugin: CowName) -> AwaitedPlugin {
        AwaitedPlugin { plugin, events: Vec::new() }
    }
}

fn state_of(sub_queue: SubQueue) -> PodState {
    match sub_queue {
        SubQueue::Active => PodState::Active,
        SubQueue::Backoff => PodState::Backoff,
        SubQueue::Unschedulable => PodState::Unschedulable,
        SubQueue::Gated => PodState::Gated,
    }
}

impl PodSchedulingState {
    fn new(pod: &PodInfo, profile: &str, state: PodState) -> PodSchedulingState {
        PodSchedulingState {
            pod: pod.full_name(),
            profile: profile.to_owned(),
            state,
            node: String::new(),
            attempts: 0,
            since: None,
            backoff_until: None,
            gated: None,
            waits_for: Vec::new(),
            last: None,
        }
    }
}

/// A time of the engine's monotonic clock as an RFC 3339 timestamp.
fn wall(now: Now, moment: MonoTime) -> String {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let (ahead, behind) = (nanos(moment.since(now.mono)), nanos(now.mono.since(moment)));
    Timestamp(now.wall.0.saturating_add(ahead).saturating_sub(behind)).to_string()
}
