//! What the plugin knows about each group of pods: its members, and how far its attempt to schedule them has come.
//!
//! ```text
//!              first member waits at Permit               minMember members have a node: all are allowed
//!   (waiting in the queue) ──────────────► is_trying ──────────────────────────────────────► (running)
//!            ▲                                │ a member fits nowhere, times out, or is deleted
//!            │ backoff is over                ▼
//!            └───────────────────────── backoff_until: waiting members are rejected
//! ```

use std::collections::{BTreeMap, BTreeSet};

use loadmaster_api::Timestamp;
use loadmaster_framework::{MonoTime, Now};
use loadmaster_stdx::Map;

use super::args::Args;
use crate::pod_group::{GroupKey, PodGroup};

/// All groups with at least one member.
pub(super) type Groups = Map<GroupKey, Group>;

/// The pods with the label of one PodGroup in its namespace, and their attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// By uid.
    members: BTreeMap<Box<str>, Member>,
    counts: Counts,
    /// `metadata.creationTimestamp` of the PodGroup, if it exists.
    pub created: Option<Timestamp>,
    /// When its last attempt failed; `None` after one that succeeded.
    pub last_failure: Option<Timestamp>,
    /// Failed attempts since the last one that succeeded.
    pub n_failures: u32,
    /// The most members that had a node when one of these attempts failed.
    n_placed_max: usize,
    /// When one had that many members with a node for the first time: since then attempts have been in vain, which decides the backoff.
    in_vain_since: Option<MonoTime>,
    /// Until when no member is scheduled.
    pub backoff_until: Option<MonoTime>,
    /// The member that fitted on no node, so that the last attempt failed. Events that may help it requeue it, and with it the group.
    pub unschedulable_member: Option<Box<str>>,
    /// Since when a member waits at Permit, the group has been neither allowed nor rejected.
    pub is_trying: bool,
    /// Members with which an attempt has begun since something outside of the group may have changed.
    began_with: BTreeSet<Box<str>>,
    /// The member that is activated when the backoff is over, although nothing outside of the group may have changed.
    pub retried_member: Option<Box<str>>,
    /// Members that fitted on no node in this attempt.
    tried_in_vain: BTreeSet<Box<str>>,
    /// Members that fitted on no node although no other member waited, and that have had none since.
    fits_nowhere: BTreeSet<Box<str>>,
    /// It has enough members, and not too many of them are gated.
    pub is_complete: bool,
    /// Members pass PreFilter whatever else happens, so that they share their results with other pods.
    pub shares_results: bool,
    /// What the metrics show.
    pub shown: Option<GroupValues>,
}

/// What the metrics show of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupValues {
    /// `minMember` of the PodGroup.
    pub min_member: i32,
    /// Pods in the queue, pods with a node that wait for the others, and bound pods.
    pub pods: [usize; 3],
    /// Failed attempts since the last one that succeeded.
    pub n_failures: u32,
}

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the scheduling queue.
    Pending,
    /// Assumed on a node by this scheduler, and not bound yet.
    Reserved,
    /// It has a node, known or not.
    Bound,
}

/// A pod of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub place: Place,
    /// It is being deleted: it counts no more.
    pub is_terminating: bool,
    /// It has scheduling gates.
    pub is_gated: bool,
    /// Until when it waits for others; `None` if its group was complete when it was added.
    pub held_until: Option<MonoTime>,
}

/// Numbers of members that are not being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Members in the scheduling queue.
    pub pending: usize,
    /// Members with a node, reserved or bound.
    pub placed: usize,
    /// Those that are not bound yet.
    pub reserved: usize,
    /// Members with scheduling gates.
    pub gated: usize,
}

impl Counts {
    fn count(&mut self, member: &Member, count: impl Fn(&mut usize)) {
        if member.is_terminating {
            return;
        }
        match member.place {
            Place::Pending => count(&mut self.pending),
            Place::Reserved | Place::Bound => count(&mut self.placed),
        }
        if member.place == Place::Reserved {
            count(&mut self.reserved);
        }
        if member.is_gated {
            count(&mut self.gated);
        }
    }

    /// All members.
    pub fn total(&self) -> usize {
        self.pending + self.placed
    }
}

impl Group {
    /// Adds or replaces a member.
    pub fn upsert(&mut self, uid: &str, member: Member) {
        self.remove(uid);
        self.counts.count(&member, |n| *n += 1);
        self.members.insert(uid.into(), member);
    }

    /// Removes a member, if it is one.
    pub fn remove(&mut self, uid: &str) -> Option<Member> {
        let member = self.members.remove(uid)?;
        self.counts.count(&member, |n| *n -= 1);
        self.tried_in_vain.remove(uid);
        self.fits_nowhere.remove(uid);
        self.began_with.remove(uid);
        Some(member)
    }

    /// Moves a member from one place to another, if it is there.
    pub fn move_member(&mut self, uid: &str, from: Place, to: Place) {
        if let Some(member) = self.members.get_mut(uid).filter(|member| member.place == from) {
            self.counts.count(member, |n| *n -= 1);
            member.place = to;
            self.counts.count(member, |n| *n += 1);
            self.tried_in_vain.remove(uid);
            self.fits_nowhere.remove(uid);
        }
    }

    /// Members that wait for others wait until another time. Returns their uids.
    pub fn hold_again(&mut self, until: MonoTime) -> Vec<Box<str>> {
        let pending = self.members.iter_mut().filter(|(_, it)| it.place == Place::Pending);
        let held = pending.filter_map(|(uid, member)| {
            *member.held_until.as_mut()? = until;
            Some(uid.clone())
        });
        held.collect()
    }

    /// The member with which the next attempt begins, while others wait for it.
    pub fn first_to_try(&self) -> Option<&str> {
        let can_be_tried =
            |it: &Member| it.place == Place::Pending && !it.is_terminating && !it.is_gated;
        let last = self.unschedulable_member.as_deref();
        let last = last.filter(|uid| self.members.get(*uid).is_some_and(can_be_tried));
        last.or_else(|| {
            let mut members = self.members.iter();
            members.find(|(_, member)| can_be_tried(member)).map(|(uid, _)| &**uid)
        })
    }

    /// Whether the next attempt begins with this member. Fast for pods that have a node, of which a group may have many.
    pub fn is_first_to_try(&self, uid: &str) -> bool {
        let is_pending = self.member(uid).is_some_and(|member| member.place == Place::Pending);
        is_pending && self.first_to_try() == Some(uid)
    }

    /// A member.
    pub fn member(&self, uid: &str) -> Option<&Member> {
        self.members.get(uid)
    }

    /// What the metrics show; nothing of a group without pods or without PodGroup, or of the older API group.
    pub fn values(&self, key: &GroupKey, pod_group: Option<&PodGroup>) -> Option<GroupValues> {
        let pod_group = pod_group.filter(|_| !self.is_empty() && !key.is_old)?;
        let Counts { pending, placed, reserved, .. } = self.counts;
        let pods = [pending, reserved, placed - reserved];
        let (min_member, n_failures) = (pod_group.spec.min_member, self.n_failures);
        Some(GroupValues { min_member, pods, n_failures })
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Numbers of members that are not being deleted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Uids of the members in this place that are not being deleted.
    pub fn members_in(&self, place: Place) -> impl Iterator<Item = &str> {
        let here = self.members.iter();
        let here = here.filter(move |(_, it)| it.place == place && !it.is_terminating);
        here.map(|(uid, _)| &**uid)
    }

    /// Uids of the members with a node, those that are being deleted included.
    pub fn placed_members(&self) -> impl Iterator<Item = &str> {
        let placed = self.members.iter().filter(|(_, it)| it.place != Place::Pending);
        placed.map(|(uid, _)| &**uid)
    }

    /// A member fits on no node. Returns whether the same is known of it without the other members, so that it says nothing about them.
    pub fn add_tried_in_vain(&mut self, uid: &str) -> bool {
        self.tried_in_vain.insert(uid.into());
        let is_known = self.fits_nowhere.contains(uid);
        if !self.is_trying && !is_known {
            self.fits_nowhere.insert(uid.into());
        }
        is_known
    }

    /// Whether no more members are missing than can still be tried in this attempt.
    pub fn can_still_succeed(&self, n_missing: usize) -> bool {
        let n_left =
            self.counts.pending.saturating_sub(self.counts.gated + self.tried_in_vain.len());
        n_left >= n_missing
    }

    /// An attempt begins: its first member waits.
    pub fn start_attempt(&mut self, first: &str) {
        self.is_trying = true;
        if self.retried_member.take().as_deref() != Some(first) {
            self.began_with.clear();
        }
        self.began_with.insert(first.into());
        self.end_backoff();
    }

    /// Whether an attempt has begun with this member since something outside of the group may have changed.
    pub fn has_begun_with(&self, uid: &str) -> bool {
        self.began_with.contains(uid)
    }

    /// The attempt has failed, now. `unschedulable` is the member that fitted on no node, if that is the reason. If another member may have
    /// taken its place, an attempt that begins with it may succeed: then it is to be retried. Returns the end of the backoff, which grows
    /// as long as no more members have a node than before.
    pub fn fail_attempt(&mut self, now: Now, args: &Args, unschedulable: Option<&str>) -> MonoTime {
        let has_progressed = self.counts.placed > self.n_placed_max;
        let in_vain_since = self.in_vain_since.filter(|_| !has_progressed).unwrap_or(now.mono);
        self.in_vain_since = Some(in_vain_since);
        self.n_placed_max = self.n_placed_max.max(self.counts.placed);
        let until = now.mono.after(args.backoff(now.mono.since(in_vain_since)));
        let retried = unschedulable.filter(|uid| self.is_trying && !self.began_with.contains(*uid));
        self.retried_member = retried.map(Into::into);
        self.is_trying = false;
        self.tried_in_vain.clear();
        self.n_failures += 1;
        self.last_failure = Some(now.wall);
        self.backoff_until = Some(until);
        self.unschedulable_member = unschedulable.map(Into::into);
        until
    }

    /// Enough members have a node. Returns whether the group moves in the queue.
    pub fn finish_attempt(&mut self) -> bool {
        self.is_trying = false;
        self.forget_failures();
        self.end_backoff();
        self.last_failure.take().is_some()
    }

    /// The next attempt is like the first one.
    pub fn forget_failures(&mut self) {
        (self.n_failures, self.n_placed_max, self.in_vain_since) = (0, 0, None);
    }

    /// Its members may be scheduled again.
    pub fn end_backoff(&mut self) {
        self.backoff_until = None;
        self.unschedulable_member = None;
        self.tried_in_vain.clear();
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_framework::Rng;

    use super::*;

    /// [`Counts`] by counting.
    fn naive_counts(group: &Group) -> Counts {
        let alive: Vec<&Member> =
            group.members.values().filter(|member| !member.is_terminating).collect();
        let count = |is_counted: fn(&Member) -> bool| {
            alive.iter().filter(|member| is_counted(member)).count()
        };
        Counts {
            pending: count(|member| member.place == Place::Pending),
            placed: count(|member| member.place != Place::Pending),
            reserved: count(|member| member.place == Place::Reserved),
            gated: count(|member| member.is_gated),
        }
    }

    #[test]
    fn counts_equal_counting() {
        let places = [Place::Pending, Place::Reserved, Place::Bound];
        for seed in 0..50 {
            let (mut rng, mut group) = (Rng::new(seed), Group::default());
            for _ in 0..200 {
                let uid = *rng.pick(&["a", "b", "c", "d", "e"]);
                match rng.below(4) {
                    0 => drop(group.remove(uid)),
                    1 => group.move_member(uid, *rng.pick(&places), *rng.pick(&places)),
                    _ => {
                        let place = *rng.pick(&places);
                        let (is_terminating, is_gated) = (rng.one_in(4), rng.one_in(4));
                        let held_until = None;
                        let member = Member { place, is_terminating, is_gated, held_until };
                        group.upsert(uid, member);
                    }
                }
                assert_eq!(group.counts(), naive_counts(&group), "seed {seed}");
            }
        }
    }
}
