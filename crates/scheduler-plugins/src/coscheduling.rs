//! Coscheduling: binds the pods of a PodGroup when `minMember` of them have a node, and none before.
//!
//! | | |
//! | --- | --- |
//! | extension points | PreEnqueue, QueueSort, PreFilter, PostFilter, Reserve, Permit |
//! | woken by | pods of the group that are added, its PodGroup; with `minResources` nodes and deleted pods |
//! | upstream | `pkg/coscheduling` of scheduler-plugins 0.35 |
//! | deviations | an attempt of a group begins, fails, backs off and is retried as a whole: see the table in `deviations.md` |
//! | cost | O(log members) for each pod; O(members) for each attempt of a group; with `minResources` O(nodes) until the first member waits |
//!
//! A group's members are counted from the events of pods, and from Reserve and Unreserve ([`groups`]). The first member that finds a node
//! waits at Permit and activates the others. When a member finds none, all that wait are rejected, so that their nodes are free at
//! once, and the group waits for its backoff. Then the member that found no node is requeued by the events of the plugins that rejected it,
//! as a pod without a group is, and the next attempt begins with it. A member that fitted on no node then, with no other one in its way, fails no
//! further attempt for which there are enough others.
//!
//! New members are held back at PreEnqueue ([`points`]): attempts that cannot succeed would cost an update of the pod and an Event each.

mod args;
mod explain;
mod free_resources;
mod groups;
mod metrics;
mod points;
mod retries;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use loadmaster_framework::cluster_event::QueueingHintArgs;
use loadmaster_framework::plugin_args;
use loadmaster_framework::{
    ActionType, ClusterEvent, EventResource, ExtensionPoints, MonoTime, ObjectSlot, PluginDef,
    PluginError, PluginLogger, PluginStateSlot, PluginStates, PodInfo, QueueingHint, Rejection,
    SerialCx, WatchRequirement, World,
};
use serde_json::Value;

use crate::pod_group::{GroupKey, PodGroup, old_pod_groups, pod_groups};
use args::Args;
use free_resources::check_free_resources;
use groups::{Counts, Group, Groups, Place};
use metrics::GroupMetrics;
use retries::Retries;

pub const NAME: &str = "Coscheduling";

pub const DEF: PluginDef =
    PluginDef { name: NAME, build, args: Some(plugin_args::default_and_validate_args::<Args>) };

struct Coscheduling {
    args: Args,
    pod_groups: ObjectSlot<PodGroup>,
    old_pod_groups: ObjectSlot<PodGroup>,
    groups: PluginStateSlot<Groups>,
    retries: PluginStateSlot<Retries>,
    metrics: GroupMetrics,
    log: PluginLogger,
}

fn build(points: &mut ExtensionPoints, args: &Value) -> Result<(), PluginError> {
    let watch = |points: &mut ExtensionPoints, kind| {
        // Without the definition of PodGroups, pods without a group are scheduled, as upstream does.
        points.watch_in_keys(kind, WatchRequirement::Optional)
    };
    let plugin = Arc::new(Coscheduling {
        args: plugin_args::decode_plugin_args(NAME, args)?,
        pod_groups: watch(points, pod_groups()),
        old_pod_groups: watch(points, old_pod_groups()),
        groups: points.plugin_state_slot(Groups::default()),
        retries: points.plugin_state_slot(Retries::default()),
        metrics: GroupMetrics::new(points)?,
        log: points.logger(),
    });
    points.pre_enqueue = Some(plugin.clone());
    points.queue_sort = Some(plugin.clone());
    points.pre_filter = Some(plugin.clone());
    points.incremental = Some(plugin.clone());
    points.post_filter = Some(plugin.clone());
    points.reserve = Some(plugin.clone());
    points.permit = Some(plugin.clone());
    points.explain = Some(plugin.clone());
    points.pod_event_handler = Some(plugin.clone());
    points.object_event_handler = Some(plugin.clone());
    let node_grew = ActionType::ADD | ActionType::UPDATE_NODE_ALLOCATABLE;
    // New members and changes of the PodGroup activate the members of one group ([`points`]). Events would ask about all rejected pods, of which
    // there may be thousands for each new pod.
    let events = [
        ClusterEvent::new(EventResource::Node, node_grew),
        ClusterEvent::new(EventResource::AssignedPod, ActionType::DELETE),
    ];
    let hint = move |args: &QueueingHintArgs<'_>| Ok(QueueingHint::queue_if(plugin.may_help(args)));
    points.register_events(events, Some(Arc::new(hint)));
    Ok(())
}

fn group_of(pod: &PodInfo) -> Option<GroupKey> {
    GroupKey::of_labels(&pod.template.namespace, &pod.template.labels)
}

impl Coscheduling {
    /// The PodGroup, if it exists.
    fn pod_group<'a>(&self, world: &'a World, key: &GroupKey) -> Option<&'a PodGroup> {
        let slot = if key.is_old { &self.old_pod_groups } else { &self.pod_groups };
        world.watched_objects().lister(slot).get(&key.namespace, &key.name)
    }

    fn group<'a>(&self, states: &'a PluginStates, key: &GroupKey) -> Option<&'a Group> {
        states.get(self.groups)?.get(key)
    }

    /// PreFilter: why the pod must not be scheduled now.
    fn check(&self, world: &World, states: &PluginStates, pod: &PodInfo) -> Result<(), Rejection> {
        let Some(key) = group_of(pod) else { return Ok(()) };
        let Some(pod_group) = self.pod_group(world, &key) else { return Ok(()) };
        let group = self.group(states, &key);
        let now = world.now().mono;
        if group.and_then(|group| group.backoff_until).is_some_and(|until| now < until) {
            return Err(Rejection::unresolvable(format!("podGroup {key} failed recently")));
        }
        check_members(pod_group, group.map(Group::counts).unwrap_or_default(), pod)?;
        let (Some(min_resources), Some(group)) = (&pod_group.spec.min_resources, group) else {
            return Ok(());
        };
        if group.is_trying {
            return Ok(());
        }
        check_free_resources(world, min_resources, n_min(pod_group), group.placed_members())
            .map_err(|gap| Rejection::unresolvable(gap.to_string()))
    }

    /// Queueing hint: whether an event may help a pod that this plugin rejected. More room helps groups with `minResources`.
    fn may_help(&self, args: &QueueingHintArgs<'_>) -> bool {
        let Some(key) = group_of(args.pod) else { return false };
        let pod_group = self.pod_group(args.world, &key);
        let waits_for_room = pod_group.is_some_and(|it| it.spec.min_resources.is_some())
            && self.group(args.states, &key).is_some_and(|group| !group.is_trying);
        waits_for_room && self.check(args.world, args.states, args.pod).is_ok()
    }

    /// Changes a group, and makes the keys of its pods be computed again if they depend on the change.
    fn update<R>(
        &self,
        cx: &mut SerialCx<'_>,
        key: &GroupKey,
        change: impl FnOnce(&mut Group) -> R,
    ) -> Option<R> {
        let pod_group = self.pod_group(cx.world, key);
        let group = cx.states.get_mut(self.groups)?.get_mut(key)?;
        let result = change(group);
        let shared = group.shares_results;
        group.is_complete =
            pod_group.is_some_and(|pod_group| missing_members(pod_group, group.counts()).is_none());
        group.shares_results = pod_group.is_none_or(|pod_group| {
            let has_room = group.is_trying || pod_group.spec.min_resources.is_none();
            group.is_complete && group.backoff_until.is_none() && has_room
        });
        let shown = group.values(key, pod_group);
        self.metrics.show(key, std::mem::replace(&mut group.shown, shown), shown);
        if shared != group.shares_results {
            cx.invalidate_keys(&key.namespace);
        }
        Some(result)
    }

    /// Fails the attempt of a group: rejects the members that wait, and starts the backoff. When it is over, all members are activated, or
    /// only the one that found no node: if an attempt may succeed that begins with it. Else the group waits for an event.
    fn fail_attempt(
        &self,
        cx: &mut SerialCx<'_>,
        key: &GroupKey,
        unschedulable: Option<&PodInfo>,
        why: &'static str,
    ) {
        let now = cx.now();
        let failed = self.update(cx, key, |group| {
            let unschedulable = unschedulable.map(|pod| &*pod.uid);
            let until = group.fail_attempt(now, &self.args, unschedulable);
            let uids = |place| group.members_in(place).map(Box::from).collect::<Vec<Box<str>>>();
            let is_retried = group.retried_member.is_some();
            (until, uids(Place::Reserved), uids(Place::Pending), is_retried)
        });
        let Some((until, reserved, pending, is_retried)) = failed else { return };
        self.retry_after_deletions(cx, key);
        let backoff = until.since(now.mono);
        self.log.info(3, format_args!("PodGroup {key} failed, and waits for {backoff:?}: {why}"));
        let world = cx.world;
        for uid in reserved.iter().filter(|uid| waits_here(world, uid)) {
            match unschedulable {
                Some(pod) => cx.reject_waiting_pod_for(NAME, uid, why, &pod.uid),
                None => cx.reject_waiting_pod(NAME, uid, why),
            }
        }
        // Members that have not been tried stay in activeQ, now behind other groups.
        cx.sort_queue();
        let Some(unschedulable) = unschedulable else {
            return cx.activate_at(until, reserved.iter().chain(&pending).map(|uid| &**uid));
        };
        if is_retried || self.has_nominated(world, cx.states, key) {
            cx.activate_at(until, [&*unschedulable.uid]);
        }
    }

    /// Whether members in the queue are nominated to nodes since an earlier attempt: they may be in the way of others, and no event will
    /// say when they are not any more.
    fn has_nominated(&self, world: &World, states: &PluginStates, key: &GroupKey) -> bool {
        let pending = self.group(states, key).into_iter();
        let mut pending = pending.flat_map(|group| group.members_in(Place::Pending));
        pending.any(|uid| world.nominated_node(uid).is_some())
    }

    /// The backoff ends early when as many pods are deleted as the group lacks, unless its length is configured.
    fn retry_after_deletions(&self, cx: &mut SerialCx<'_>, key: &GroupKey) {
        let n_placed = self.group(cx.states, key).map_or(0, |group| group.counts().placed);
        let pod_group = self.pod_group(cx.world, key).filter(|_| !self.args.has_fixed_backoff());
        if let (Some(pod_group), Some(retries)) = (pod_group, cx.states.get_mut(self.retries)) {
            retries.add(key.clone(), n_min(pod_group).saturating_sub(n_placed).max(1));
        }
    }

    /// Activates the members that are in the queue, at once or when the backoff of their group is over.
    fn activate_members(&self, cx: &mut SerialCx<'_>, key: &GroupKey) {
        let Some(group) = self.group(cx.states, key) else { return };
        let uids: Vec<Box<str>> = group.members_in(Place::Pending).map(Box::from).collect();
        let backoff_until = group.backoff_until;
        activate(cx, backoff_until, uids.iter().map(|uid| &**uid));
    }
}

/// Activates pods at a time, or now.
fn activate<'u>(cx: &mut SerialCx<'_>, at: Option<MonoTime>, uids: impl Iterator<Item = &'u str>) {
    match at.filter(|at| *at > cx.now().mono) {
        Some(at) => cx.activate_at(at, uids),
        None => cx.activate(uids),
    }
}

fn n_min(pod_group: &PodGroup) -> usize {
    pod_group.spec.n_min()
}

/// Why the members of a group cannot be scheduled yet.
enum MissingMembers {
    NotCreated,
    Gated,
}

fn missing_members(pod_group: &PodGroup, counts: Counts) -> Option<MissingMembers> {
    let n_min = n_min(pod_group);
    if counts.total() < n_min {
        Some(MissingMembers::NotCreated)
    } else if counts.gated > 0 && counts.total() - counts.gated < n_min {
        Some(MissingMembers::Gated)
    } else {
        None
    }
}

/// Rejects a member of a group that lacks members.
fn check_members(pod_group: &PodGroup, counts: Counts, pod: &PodInfo) -> Result<(), Rejection> {
    let message = match missing_members(pod_group, counts) {
        None => return Ok(()),
        Some(MissingMembers::NotCreated) => format!(
            "pre-filter pod {} cannot find enough sibling pods, current pods number: {}, minMember of group: {}",
            pod.name,
            counts.total(),
            pod_group.spec.min_member,
        ),
        Some(MissingMembers::Gated) => format!(
            "pre-filter pod {} cannot proceed due to gated pods in the same PodGroup",
            pod.name
        ),
    };
    Err(Rejection::unresolvable(message))
}

/// Whether the pod waits at Permit for this plugin.
fn waits_here(world: &World, uid: &str) -> bool {
    world.waiting_pods().get(uid).is_some_and(|waiting| waiting.plugins.contains(&NAME))
}
