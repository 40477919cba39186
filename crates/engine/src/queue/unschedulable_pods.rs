//! Upstream's `unschedulablePods`: pods that wait for an event, including gated ones.
//!
//! Pods with the same rejecters are requeued by the same events, so they form one group: the cost of an event that concerns no group is
//! proportional to the number of groups, not to the number of pods.

use std::collections::{BTreeMap, BTreeSet};

use super::heap::Slot;
use super::queued_pod::{PluginIdx, PluginIdxSet, ProfileIdx, QueuedPod};
use crate::time::MonoTime;

/// What determines which events may requeue a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RejecterGroup {
    pub profile_idx: ProfileIdx,
    pub unschedulable: PluginIdxSet,
    pub pending: PluginIdxSet,
    pub gating: Option<PluginIdx>,
}

impl RejecterGroup {
    pub fn of_pod(pod: &QueuedPod) -> RejecterGroup {
        RejecterGroup {
            profile_idx: pod.profile_idx,
            unschedulable: pod.unschedulable_plugins.clone(),
            pending: pod.pending_plugins.clone(),
            gating: pod.gating_plugin(),
        }
    }
}

/// A pod's sequence number and its slot.
pub(super) type Member = (u64, Slot);

/// The pods in unschedulablePods.
#[derive(Debug, Default)]
pub(super) struct UnschedulablePods {
    groups: BTreeMap<RejecterGroup, BTreeSet<Member>>,
    by_age: BTreeSet<(MonoTime, Member)>,
    n_gated: usize,
}

impl UnschedulablePods {
    /// Adds a pod.
    pub fn insert(&mut self, slot: Slot, pod: &QueuedPod) {
        let member = (pod.nth, slot);
        self.groups.entry(RejecterGroup::of_pod(pod)).or_default().insert(member);
        self.by_age.insert((pod.queued_at, member));
        self.n_gated += usize::from(pod.gating.is_some());
    }

    /// Removes a pod, which must not have changed since it was inserted.
    pub fn remove(&mut self, slot: Slot, pod: &QueuedPod) {
        let (group, member) = (RejecterGroup::of_pod(pod), (pod.nth, slot));
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(&member);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.by_age.remove(&(pod.queued_at, member));
        self.n_gated -= usize::from(pod.gating.is_some());
    }

    /// All pods, by group.
    pub fn groups(&self) -> impl Iterator<Item = (&RejecterGroup, &BTreeSet<Member>)> {
        self.groups.iter()
    }

    /// When the oldest pod was added.
    pub fn oldest(&self) -> Option<MonoTime> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// The pods that were added before this time, the oldest first.
    pub fn older_than(&self, moment: MonoTime) -> Vec<Member> {
        self.by_age.iter().take_while(|(since, _)| *since < moment).map(|(_, pod)| *pod).collect()
    }

    /// Number of gated pods.
    pub fn n_gated(&self) -> usize {
        self.n_gated
    }

    /// Number of pods that are not gated.
    pub fn n_unschedulable(&self) -> usize {
        self.by_age.len() - self.n_gated
    }
}
