//! The extension points, and the events that the plugin handles.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use loadmaster_framework::api_calls::{PluginStep, PluginStepInput};
use loadmaster_framework::incremental::EvaluatorCx;
use loadmaster_framework::{
    Cx, FitError, Incremental, MonoTime, NodeInfo, Now, ObjectChange, ObjectEventHandler, Permit,
    PermitResult, PodChange, PodEventHandler, PodInfo, PostFilter, PostFilterCx, PostFilterResult,
    PreEnqueue, PreFilter, PreFilterResult, PrepareCx, PrepareResult, QueueSort, QueuedPodInfo,
    Rejection, Reserve, Rng, SerialCx,
};

use super::groups::{Member, Place};
use super::{Coscheduling, NAME, activate, check_members, group_of, n_min, waits_here};
use crate::pod_group::{GroupKey, LABEL, OLD_GROUP, OLD_LABEL, PodGroup};

/// How long a new pod waits for others of its group before it is tried, and reported as unschedulable, although the group is not complete or no
/// other member has found a node.
const HOLD: Duration = Duration::from_secs(2);

/// Until when a pod waits for others; `None` if it was created before, or it is not known when.
fn held_until(now: Now, pod: &PodInfo) -> Option<MonoTime> {
    let age = u64::try_from(now.wall.0.saturating_sub(pod.created.get()?.0)).unwrap_or_default();
    // The time of its creation has whole seconds.
    let left = (HOLD + Duration::from_secs(1)).checked_sub(Duration::from_nanos(age))?;
    Some(now.mono.after(left.min(HOLD)))
}

impl PreEnqueue for Coscheduling {
    /// Gates new members while their group is not complete, and then all but one until it has found a node. So a group that is created as a
    /// whole costs no attempts that cannot succeed, and one for which there is no room costs one. After some time all members are tried, and
    /// reported, as upstream does at once.
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection> {
        let Some(key) = group_of(pod) else { return Ok(()) };
        let Some(pod_group) = self.pod_group(cx.world, &key) else { return Ok(()) };
        let Some(group) = self.group(cx.states, &key) else { return Ok(()) };
        let held_until = group.member(&pod.uid).and_then(|member| member.held_until);
        if held_until.is_none_or(|until| until <= cx.now().mono) {
            return Ok(());
        }
        check_members(pod_group, group.counts(), pod)?;
        let may_start = group.is_trying || group.counts().placed >= n_min(pod_group);
        if may_start || group.is_first_to_try(&pod.uid) {
            return Ok(());
        }
        Err(Rejection::unschedulable(format!(
            "waiting for another pod of PodGroup {key} to find a node"
        )))
    }
}

impl QueueSort for Coscheduling {
    /// By priority; then by the time of the last failure or of the PodGroup's creation, or of the first attempt for pods without a group;
    /// then by namespace and name of the group or the pod, so that the members of two groups never alternate.
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let priority = |info: &QueuedPodInfo| info.pod.template.priority();
        priority(b).cmp(&priority(a)).then_with(|| {
            let (a_key, b_key) = (group_of(&a.pod), group_of(&b.pod));
            let time = |info: &QueuedPodInfo, key: &Option<GroupKey>| {
                let group = key.as_ref().and_then(|key| self.group(cx.states, key));
                let of_group = group
                    .and_then(|group| group.created.map(|at| group.last_failure.unwrap_or(at)));
                of_group.unwrap_or_else(|| first_attempt(info))
            };
            let by_time = time(a, &a_key).cmp(&time(b, &b_key));
            let by_group =
                by_time.then_with(|| compare_names(names(&a.pod, &a_key), names(&b.pod, &b_key)));
            by_group.then_with(|| a.pod.name.cmp(&b.pod.name))
        })
    }
}

/// Namespace, and name of the group, or of a pod without a group.
fn names<'a>(pod: &'a PodInfo, key: &'a Option<GroupKey>) -> (&'a str, &'a str) {
    (&pod.template.namespace, key.as_ref().map_or(&*pod.name, |key| &*key.name))
}

/// Compares `namespace/name` without making a string of them: it is done some twenty times for each pod.
fn compare_names(a: (&str, &str), b: (&str, &str)) -> Ordering {
    if a.0 == b.0 {
        return a.1.cmp(b.1);
    }
    // No namespace contains a slash, so one of these is no beginning of the other.
    a.0.bytes().chain([b'/']).cmp(b.0.bytes().chain([b'/']))
}

fn first_attempt(info: &QueuedPodInfo) -> Timestamp {
    info.initial_attempt.map_or(info.queued, |now| now.wall)
}

impl PreFilter for Coscheduling {
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection> {
        self.check(cx.world, cx.states, pod).map(|()| PreFilterResult::All)
    }
}

/// Members whose group may be scheduled share their results with all other pods. The others are rejected with a message of their own.
impl Incremental for Coscheduling {
    type Key = ();

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<()> {
        let Some(key) = group_of(pod) else { return Some(()) };
        if self.pod_group(cx.world, &key).is_none() {
            return Some(());
        }
        let group = self.group(cx.states, &key);
        group.is_some_and(|group| group.shares_results).then_some(())
    }

    fn prepare(&self, _: &mut PrepareCx<'_>, (): &()) -> PrepareResult {
        PrepareResult::Skip
    }
}

impl PostFilter for Coscheduling {
    /// Fails the attempt of the pod's group, unless other members can still take its place.
    fn post_filter(
        &self,
        mut cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        _: FitError<'_>,
        _: &mut Rng,
        _: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult> {
        let mut cx = cx.serial();
        let key = group_of(pod);
        let found = key.and_then(|key| Some((self.pod_group(cx.world, &key)?.clone(), key)));
        let Some((pod_group, key)) = found else {
            return PluginStep::Fail(Rejection::unschedulable("can not find pod group"));
        };
        let without_reason = PluginStep::Fail(Rejection::Unschedulable(Default::default()));
        let n_min = n_min(&pod_group);
        let n_placed = self.group(cx.states, &key).map_or(0, |group| group.counts().placed);
        if n_placed >= n_min {
            return without_reason;
        }
        if self.check(cx.world, cx.states, pod).is_ok() {
            let n_missing = n_min - n_placed;
            let outcome = self.update(&mut cx, &key, |group| {
                let is_known = group.add_tried_in_vain(&pod.uid);
                (group.can_still_succeed(n_missing), is_known)
            });
            let (can_still_succeed, is_known) = outcome.unwrap_or_default();
            // A member that can never have a node must not keep the others from theirs.
            let tries_others = || {
                self.args.tries_others(n_missing, n_min)
                    || is_known && !self.has_nominated(cx.world, cx.states, &key)
            };
            if can_still_succeed && tries_others() {
                return without_reason;
            }
            self.fail_attempt(&mut cx, &key, Some(pod), "optimistic rejection in PostFilter");
        } else {
            self.retry_after_backoff(&mut cx, &key, pod);
        }
        PluginStep::Fail(Rejection::unschedulable(format!(
            "PodGroup {key} gets rejected due to Pod {} is unschedulable even after PostFilter",
            pod.name
        )))
    }
}

impl Coscheduling {
    /// A member was requeued by an event while its group waits: it is tried when the backoff is over, if it is the one that the last attempt
    /// failed for, or if no attempt has begun with it. The group may do without those that were tried.
    fn retry_after_backoff(&self, cx: &mut SerialCx<'_>, key: &GroupKey, pod: &PodInfo) {
        let group = self.group(cx.states, key);
        let of_pod = group.filter(|group| {
            group.unschedulable_member.as_ref() == Some(&pod.uid) || !group.has_begun_with(&pod.uid)
        });
        // When it is over, the pod was rejected for another reason, such as missing members.
        let until = of_pod.and_then(|group| group.backoff_until);
        if let Some(until) = until.filter(|until| *until > cx.now().mono) {
            cx.activate_at(until, [&*pod.uid]);
        }
    }
}

impl Reserve for Coscheduling {
    fn reserve(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if let Some(key) = group_of(pod) {
            let (from, to) = (Place::Pending, Place::Reserved);
            self.update(&mut cx, &key, |group| group.move_member(&pod.uid, from, to));
        }
        Ok(())
    }

    /// Takes the member back. If its group has not been allowed, the attempt of the group has failed.
    fn unreserve(&self, mut cx: SerialCx<'_>, pod: &Arc<PodInfo>, _: &str) {
        let Some(key) = group_of(pod) else { return };
        let (from, to) = (Place::Reserved, Place::Pending);
        let is_trying = self.update(&mut cx, &key, |group| {
            group.move_member(&pod.uid, from, to);
            group.is_trying
        });
        if is_trying == Some(true) {
            self.fail_attempt(&mut cx, &key, None, "rejection in Unreserve");
        }
    }
}

impl Permit for Coscheduling {
    fn permit(
        &self,
        mut cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        _: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection> {
        let Some(key) = group_of(pod) else { return Ok(PermitResult::Allow) };
        let Some(pod_group) = self.pod_group(cx.world, &key) else {
            return Err(Rejection::unschedulable("PodGroup not found"));
        };
        let (n_min, wait) = (n_min(pod_group), self.args.permit_wait(&pod_group.spec));
        let Some(group) = self.group(cx.states, &key) else { return Ok(PermitResult::Wait(wait)) };
        if group.counts().placed >= n_min {
            self.allow_members(&mut cx, &key);
            return Ok(PermitResult::Allow);
        }
        if !group.is_trying {
            self.update(&mut cx, &key, |group| group.start_attempt(&pod.uid));
            self.activate_members(&mut cx, &key);
        }
        Ok(PermitResult::Wait(wait))
    }
}

impl Coscheduling {
    /// Enough members have a node: those that wait are bound.
    fn allow_members(&self, cx: &mut SerialCx<'_>, key: &GroupKey) {
        let allowed = self.update(cx, key, |group| {
            let waiting = group.is_trying.then(|| group.members_in(Place::Reserved));
            let waiting: Vec<Box<str>> = waiting.into_iter().flatten().map(Box::from).collect();
            (group.finish_attempt(), waiting)
        });
        let Some((moves_in_queue, waiting)) = allowed else { return };
        if moves_in_queue {
            cx.sort_queue();
        }
        let world = cx.world;
        for uid in waiting.iter().filter(|uid| waits_here(world, uid)) {
            cx.allow_waiting_pod(NAME, uid);
        }
    }
}

impl PodEventHandler for Coscheduling {
    fn on_pod_change(&self, mut cx: SerialCx<'_>, change: &PodChange) {
        let old = change.old.as_deref().and_then(|pod| Some((group_of(pod)?, pod)));
        let new = change.new.as_deref().and_then(|pod| Some((group_of(pod)?, pod)));
        let new_key = new.as_ref().map(|(key, _)| key);
        if let Some((key, pod)) = old.filter(|(key, _)| Some(key) != new_key) {
            self.remove_member(&mut cx, &key, pod);
        }
        if let Some((key, pod)) = new {
            self.upsert_member(&mut cx, key, pod);
        }
        if change.new.is_none() && change.old.as_ref().is_some_and(|it| !it.node_name.is_empty()) {
            self.retry_groups(&mut cx);
        }
    }
}

impl Coscheduling {
    fn upsert_member(&self, cx: &mut SerialCx<'_>, key: GroupKey, pod: &PodInfo) {
        let created = self.pod_group(cx.world, &key).and_then(created);
        let is_assumed = cx.world.row_of_pod(&pod.uid).is_some();
        let now = cx.now();
        let Some(groups) = cx.states.get_mut(self.groups) else { return };
        let is_new = !groups.contains_key(&key);
        let group = groups.entry(key.clone()).or_default();
        group.created = created;
        let (old, was_complete) = (group.member(&pod.uid).copied(), group.is_complete);
        let is_reserved = old.map_or(is_assumed, |old| old.place == Place::Reserved);
        let place = match (pod.node_name.is_empty(), is_reserved) {
            (false, _) => Place::Bound,
            (true, true) => Place::Reserved,
            (true, false) => Place::Pending,
        };
        let is_gated = !pod.template.spec.scheduling_gates.is_empty();
        let held_until = match old {
            Some(old) => old.held_until,
            None if place == Place::Pending && !was_complete => held_until(now, pod),
            None => None,
        };
        let member = Member { place, is_terminating: pod.terminating, is_gated, held_until };
        if old == Some(member) {
            return;
        }
        let was_first = group.is_first_to_try(&pod.uid);
        let change = |group: &mut super::Group| group.upsert(&pod.uid, member);
        if is_new && key.is_old {
            self.log.pod(pod).warn(format_args!(
                "the label {OLD_LABEL} and PodGroups of {OLD_GROUP} are deprecated: use {LABEL}"
            ));
        }
        self.update(cx, &key, change);
        if let (None, Some(until)) = (old, held_until) {
            cx.check_gates_at(until, [&*pod.uid]);
        }
        self.after_member_change(cx, &key, was_complete, old.is_none().then_some(&*pod.uid));
        if was_first {
            self.activate_next(cx, &key, &pod.uid);
        }
    }

    /// An assigned pod was deleted: the backoffs of groups that may fit now end.
    fn retry_groups(&self, cx: &mut SerialCx<'_>) {
        let Some(mut retries) = cx.states.get_mut(self.retries).map(std::mem::take) else { return };
        let retried = retries.pod_deleted(|key| {
            self.group(cx.states, key).is_some_and(|group| group.backoff_until.is_some())
        });
        if let Some(state) = cx.states.get_mut(self.retries) {
            *state = retries;
        }
        for key in retried {
            let next = self.update(cx, &key, |group| {
                group.backoff_until = None;
                group.first_to_try().map(Box::<str>::from)
            });
            cx.activate(next.flatten().as_deref());
        }
    }

    /// In a group that has become complete, those of its members that waited for others wait for the first one of them.
    fn hold_members(&self, cx: &mut SerialCx<'_>, key: &GroupKey) {
        let until = cx.now().mono.after(HOLD);
        let held = self.update(cx, key, |group| group.hold_again(until)).unwrap_or_default();
        cx.check_gates_at(until, held.iter().map(|uid| &**uid));
    }

    fn remove_member(&self, cx: &mut SerialCx<'_>, key: &GroupKey, pod: &PodInfo) {
        let Some(group) = self.group(cx.states, key) else { return };
        let was_complete = group.is_complete;
        let was_first = group.is_first_to_try(&pod.uid);
        let removed = self.update(cx, key, |group| {
            group.remove(&pod.uid);
            let is_unschedulable_one = group.unschedulable_member.as_ref() == Some(&pod.uid);
            if is_unschedulable_one {
                group.unschedulable_member = None;
            }
            (group.is_empty(), is_unschedulable_one && group.is_complete)
        });
        match removed {
            Some((true, _)) => {
                if let Some(groups) = cx.states.get_mut(self.groups) {
                    groups.remove(key);
                }
                if let Some(retries) = cx.states.get_mut(self.retries) {
                    retries.remove(key);
                }
            }
            // Nothing else would begin the next attempt.
            Some((false, true)) => self.activate_members(cx, key),
            _ => self.after_member_change(cx, key, was_complete, None),
        }
        if was_first {
            self.activate_next(cx, key, &pod.uid);
        }
    }

    /// The member for which others wait is tried no more: the next one is.
    fn activate_next(&self, cx: &mut SerialCx<'_>, key: &GroupKey, first: &str) {
        let Some(group) = self.group(cx.states, key) else { return };
        let may_begin = group.is_complete && !group.is_trying;
        let next = group.first_to_try().filter(|next| may_begin && *next != first);
        let next: Option<Box<str>> = next.map(Into::into);
        activate(cx, group.backoff_until, next.as_deref().into_iter());
    }

    /// A group that has become complete, or whose last attempt failed without this new member, tries again. One that is no longer complete
    /// frees its nodes. One of which another scheduler bound the last member that was missing is allowed.
    fn after_member_change(
        &self,
        cx: &mut SerialCx<'_>,
        key: &GroupKey,
        was_complete: bool,
        added: Option<&str>,
    ) {
        let Some(group) = self.group(cx.states, key) else { return };
        let backoff_until = group.backoff_until;
        let n_placed = group.counts().placed;
        let pod_group = self.pod_group(cx.world, key).filter(|_| group.is_trying);
        if pod_group.is_some_and(|pod_group| n_placed >= n_min(pod_group)) {
            return self.allow_members(cx, key);
        }
        match (was_complete, group.is_complete) {
            (false, true) => {
                self.update(cx, key, |group| group.end_backoff());
                self.hold_members(cx, key);
                self.activate_members(cx, key);
            }
            (true, false) if group.is_trying => {
                self.fail_attempt(cx, key, None, "not enough pods are left in the PodGroup");
            }
            (true, true) if backoff_until.is_some() => {
                activate(cx, backoff_until, added.into_iter());
            }
            _ => {}
        }
    }
}

fn created(pod_group: &PodGroup) -> Option<Timestamp> {
    pod_group.metadata.creation_timestamp
}

impl ObjectEventHandler for Coscheduling {
    /// A PodGroup was added or deleted, or its spec changed: all members are tried again. Updates of its status change nothing.
    fn on_object_change(&self, mut cx: SerialCx<'_>, change: &ObjectChange) {
        let Some(info) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let (namespace, name) = (info.namespace.clone(), info.name.clone());
        let key = GroupKey { namespace, name, is_old: &*change.kind.group == OLD_GROUP };
        let decoded = |info: &Option<Arc<_>>| {
            let info: &Arc<loadmaster_framework::ObjectInfo> = info.as_ref()?;
            info.decoded_as::<PodGroup>().cloned()
        };
        let (old, new) = (decoded(&change.old), decoded(&change.new));
        let updated = self.update(&mut cx, &key, |group| {
            let created = new.as_ref().and_then(created);
            let moves_in_queue = std::mem::replace(&mut group.created, created) != created;
            let is_changed = old.as_ref().map(|old| &old.spec) != new.as_ref().map(|new| &new.spec);
            if is_changed {
                group.forget_failures();
                group.backoff_until = None;
                group.unschedulable_member = None;
            }
            (moves_in_queue, is_changed)
        });
        let Some((moves_in_queue, is_changed)) = updated else { return };
        if moves_in_queue {
            cx.sort_queue();
        }
        if is_changed {
            self.warn_of_min_member(&key, new.as_ref());
            self.after_spec_change(&mut cx, &key, new.as_ref());
        }
    }
}

impl Coscheduling {
    /// The definition of PodGroups does not allow it; another definition may.
    fn warn_of_min_member(&self, key: &GroupKey, pod_group: Option<&PodGroup>) {
        let min_member = pod_group.map_or(1, |pod_group| pod_group.spec.min_member);
        if min_member < 1 {
            let text = format_args!("PodGroup {key}: minMember is {min_member}, and counts as 1");
            self.log.warn(text);
        }
    }

    fn after_spec_change(
        &self,
        cx: &mut SerialCx<'_>,
        key: &GroupKey,
        pod_group: Option<&PodGroup>,
    ) {
        let Some(group) = self.group(cx.states, key) else { return };
        match pod_group {
            Some(pod_group) if group.is_trying && group.counts().placed >= n_min(pod_group) => {
                self.allow_members(cx, key);
            }
            Some(_) if group.is_complete => {}
            _ if group.is_trying => {
                self.fail_attempt(cx, key, None, "the PodGroup has changed");
            }
            _ => {}
        }
        self.activate_members(cx, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_like_their_strings() {
        let all = ["a", "a-b", "ab", "a.b", "a0", "b"];
        let names = || all.iter().flat_map(|ns| all.iter().map(move |name| (*ns, *name)));
        for (a, b) in names().flat_map(|a| names().map(move |b| (a, b))) {
            let text = |(namespace, name): (&str, &str)| format!("{namespace}/{name}");
            assert_eq!(compare_names(a, b), text(a).cmp(&text(b)), "{a:?} {b:?}");
        }
    }
}
