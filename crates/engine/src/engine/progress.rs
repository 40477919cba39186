//! Where a pod is on its way to a node, and why its last attempt failed: `loadmaster explain --last`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_framework::PodInfo;
use serde::{Deserialize, Serialize};

use super::binding::Stage;
use super::extending::Suspended;
use super::{Asking, Engine, Pending};
use crate::explain::{Name, Status};
use crate::queue::{Cause, Place, PluginIdx, Plugins, QueuedPod};
use crate::time::{Mono, Now};

/// How far a pod is. Written and read as JSON with these fields in this order: a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// `namespace/name`.
    pub pod: String,
    /// The schedulerName of its profile.
    pub profile: String,
    pub state: State,
    /// Where it is, or is about to be; empty while that is open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// How often it was tried, a running attempt included.
    pub attempts: u32,
    /// Since when it has been in its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Until then it is not tried unless nobody else is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_until: Option<String>,
    /// Who keeps it out of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gated: Option<Status>,
    /// Who turned it down last, and what would make them look again; of a pod that has a node, or whose attempt is not over, who
    /// holds it up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<Wait>,
    /// The last attempt that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
}

/// Where a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Ready, in activeQ.
    Active,
    /// In backoffQ.
    Backoff,
    /// In unschedulablePods, until an event wakes it.
    Unschedulable,
    /// Held by PreEnqueue.
    Gated,
    /// Its attempt waits for a PostFilter plugin or for extenders.
    InFlight,
    /// It has a node; Permit holds it.
    Permit,
    /// It has a node, and is being bound.
    Binding,
    /// It is on its node.
    Assigned,
}

/// A plugin, or an extender, for which the pod waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    pub plugin: Name,
    /// Events after which the plugin is asked, such as `NodeAdd`; none: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastAttempt {
    /// When it ended.
    pub time: String,
    /// 1 for the first one.
    pub attempt: u32,
    /// `unschedulable` or `error`.
    pub result: Name,
    /// What the FailedScheduling event said, at most 4 KiB of it.
    pub message: String,
    /// Nodes by reason, most nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turned_down: Vec<TurnedDown>,
    /// Nodes with other reasons, when there were more than are kept.
    #[serde(default, rename = "otherNodes", skip_serializing_if = "is_zero")]
    pub n_other_nodes: usize,
    /// The node that preemption promised it; empty if none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nominated_node: String,
    /// Pods that are evicted for it, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<String>,
    /// How many there are.
    #[serde(default, rename = "allVictims", skip_serializing_if = "is_zero")]
    pub n_victims: usize,
}

/// Nodes that were turned down for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnedDown {
    #[serde(flatten)]
    pub why: Status,
    /// How many.
    #[serde(rename = "nodes")]
    pub n_nodes: usize,
    /// Names of a few of them.
    pub examples: Vec<String>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A pod without a node that is sure, in short.
#[derive(Clone, Debug)]
pub struct Waiting<'a> {
    /// Which.
    pub pod: &'a Arc<PodInfo>,
    /// Where it is.
    pub state: State,
    /// Why PreEnqueue holds it, or why its last attempt failed; empty before the first.
    pub why: Cow<'a, str>,
}

impl Engine {
    /// All pods that no node is known to have, in no order.
    pub fn waiting(&self) -> impl Iterator<Item = Waiting<'_>> {
        #[expect(clippy::disallowed_methods, reason = "said to be in no order")]
        let all = self.pending.values();
        all.map(|pending| {
            let uid = &*pending.pod.uid;
            let queued = self.queue.get(uid);
            let state = match (self.assumed.contains_key(uid), queued) {
                (true, _) => State::Binding,
                (false, None) => State::InFlight,
                (false, Some((_, place))) => state_of(place),
            };
            let held = queued.and_then(|(queued, _)| queued.gating.as_ref());
            let last = pending.last.as_ref().map_or("", |last| last.message());
            let why = held.map_or(Cow::Borrowed(last), |held| {
                Cow::Owned(held.rejection.reasons().join(", "))
            });
            Waiting { pod: &pending.pod, state, why }
        })
    }

    /// How far a pod is; `None` when it is not known: it does not exist, has ended, or has no node and another scheduler's name.
    pub fn progress(&self, now: Now, namespace: &str, name: &str) -> Option<Progress> {
        let is_it = |pod: &PodInfo| *pod.name == *name && pod.template.namespace == *namespace;
        #[expect(clippy::disallowed_methods, reason = "names are unique")]
        let pending = self.pending.values().find(|pending| is_it(&pending.pod));
        if let Some(pending) = pending {
            return Some(self.progress_of(now, pending));
        }
        let mut assigned = self.world.node_infos().flat_map(|node| node.pods());
        let found = assigned.find(|pod| is_it(pod));
        let pod = found.or_else(|| self.orphans.values().flatten().find(|pod| is_it(pod)))?;
        let mut progress = Progress::new(pod, pod.template.scheduler_name(), State::Assigned);
        progress.node = pod.node_name.to_string();
        Some(progress)
    }

    fn progress_of(&self, now: Now, pending: &Pending) -> Progress {
        let (pod, uid) = (&pending.pod, &*pending.pod.uid);
        let mut progress = Progress::new(pod, self.profile_name(pending.seat), State::InFlight);
        progress.last = pending.last.as_ref().map(|last| last.shown());
        if let Some(assumed) = self.assumed.get(uid) {
            progress.node = assumed.pod.node_name.to_string();
            progress.state = State::Binding;
            if let Some(binding) = &assumed.binding {
                progress.attempts = binding.queued.info.attempts;
                let holds = |name| Wait::on(Name::Borrowed(name));
                let pre_bind = &self.seat(pending.seat).profile.pre_bind;
                match &binding.stage {
                    Stage::Permit { waits, .. } if !waits.is_empty() => {
                        progress.state = State::Permit;
                        progress.waits_for = waits.iter().map(|wait| holds(wait.name)).collect();
                    }
                    Stage::PreBind { running, .. } => {
                        let members = running.iter().filter_map(|at| pre_bind.get(*at));
                        progress.waits_for = members.map(|member| holds(member.name)).collect();
                    }
                    _ => {}
                }
            }
        } else if let Some((queued, place)) = self.queue.get(uid) {
            self.describe_wait(now, queued, place, &mut progress);
        } else if let Some(asked) = self.post_filtering.get(uid) {
            progress.attempts = asked.queued.info.attempts;
            let plugins = &self.seat(pending.seat).profile.post_filter;
            let plugin = plugins.get(asked.member).map(|member| Name::Borrowed(member.name));
            progress.waits_for = plugin.into_iter().map(Wait::on).collect();
        } else if let Some(suspended) = self.suspended_attempt(uid) {
            progress.attempts = suspended.queued().info.attempts;
            let all = &self.seat(pending.seat).profile.extenders;
            let asked = suspended.extenders().filter_map(|at| all.get(at));
            progress.waits_for = asked.map(|it| Wait::on(Name::Owned(it.name.clone()))).collect();
        }
        progress
    }

    fn suspended_attempt(&self, uid: &str) -> Option<&Suspended> {
        self.suspended.as_deref().filter(|suspended| &*suspended.queued().info.pod.uid == uid)
    }

    fn describe_wait(&self, now: Now, queued: &QueuedPod, place: Place, progress: &mut Progress) {
        progress.state = state_of(place);
        progress.attempts = queued.info.attempts;
        progress.since = Some(wall(now, queued.queued_at()));
        let backoff = queued.backoff_until().filter(|until| *until > now.mono);
        progress.backoff_until = backoff.map(|until| wall(now, until));
        let plugins = &self.seat(queued.seat).profile.plugins;
        let name = |at: PluginIdx| plugins.get(at.0 as usize).map(|plugin| plugin.name);
        progress.gated = queued.gating.as_ref().map(|held| Status {
            code: held.rejection.code().name().into(),
            plugin: name(held.plugin).map(Name::Borrowed),
            reasons: held.rejection.reasons(),
        });
        let asking = Asking::new(&self.seats, &self.interests, &self.world);
        let all = queued.unschedulable_plugins.iter().chain(queued.pending_plugins.iter());
        let waits = all.filter_map(|at| {
            let events = asking.events(queued.seat, at).unwrap_or_default();
            let events = events.iter().map(|known| Cause::Event(known.event.clone()).to_string());
            Some(Wait { plugin: Name::Borrowed(name(at)?), events: events.collect() })
        });
        progress.waits_for = waits.collect();
    }
}

impl Wait {
    /// Until it answers.
    fn on(plugin: Name) -> Wait {
        Wait { plugin, events: Vec::new() }
    }
}

fn state_of(place: Place) -> State {
    match place {
        Place::Active => State::Active,
        Place::Backoff => State::Backoff,
        Place::Unschedulable => State::Unschedulable,
        Place::Gated => State::Gated,
    }
}

impl Progress {
    fn new(pod: &PodInfo, profile: &str, state: State) -> Progress {
        Progress {
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

/// A moment of the engine's time as the API server would write it.
fn wall(now: Now, moment: Mono) -> String {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let (ahead, behind) = (nanos(moment.since(now.mono)), nanos(now.mono.since(moment)));
    Timestamp(now.wall.0.saturating_add(ahead).saturating_sub(behind)).to_string()
}
