//! Pods that wait for an event (upstream's `unschedulablePods`), gated ones included.
//!
//! Pods with the same rejecters listen to the same events, so they wait in one group: an event that concerns none of the groups
//! costs a look at each group, however many pods there are.

use std::collections::{BTreeMap, BTreeSet};

use super::heap::Slot;
use super::pod::{PluginIdx, PluginSet, QueuedPod, SeatIdx};
use crate::time::Mono;

/// On what a pod's interest in events hangs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub seat: SeatIdx,
    pub unschedulable: PluginSet,
    pub pending: PluginSet,
    pub gating: Option<PluginIdx>,
}

impl Group {
    pub fn of(pod: &QueuedPod) -> Group {
        Group {
            seat: pod.seat,
            unschedulable: pod.unschedulable_plugins.clone(),
            pending: pod.pending_plugins.clone(),
            gating: pod.gating_plugin(),
        }
    }
}

/// A pod's number and where its data is.
pub(super) type Member = (u64, Slot);

/// The pods that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    groups: BTreeMap<Group, BTreeSet<Member>>,
    by_age: BTreeSet<(Mono, Member)>,
    n_gated: usize,
}

impl Waiting {
    /// A pod begins to wait.
    pub fn insert(&mut self, slot: Slot, pod: &QueuedPod) {
        let member = (pod.nth, slot);
        self.groups.entry(Group::of(pod)).or_default().insert(member);
        self.by_age.insert((pod.queued_at, member));
        self.n_gated += usize::from(pod.gating.is_some());
    }

    /// A pod waits no longer. It is still as it was when it began to.
    pub fn remove(&mut self, slot: Slot, pod: &QueuedPod) {
        let (group, member) = (Group::of(pod), (pod.nth, slot));
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(&member);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        self.by_age.remove(&(pod.queued_at, member));
        self.n_gated -= usize::from(pod.gating.is_some());
    }

    /// All of them, by group.
    pub fn groups(&self) -> impl Iterator<Item = (&Group, &BTreeSet<Member>)> {
        self.groups.iter()
    }

    /// Since when the oldest waits.
    pub fn oldest(&self) -> Option<Mono> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// Those that wait since before this moment, the oldest first.
    pub fn older_than(&self, moment: Mono) -> Vec<Member> {
        self.by_age.iter().take_while(|(since, _)| *since < moment).map(|(_, pod)| *pod).collect()
    }

    /// How many of them PreEnqueue holds.
    pub fn n_gated(&self) -> usize {
        self.n_gated
    }

    /// How many of them it does not.
    pub fn n_unschedulable(&self) -> usize {
        self.by_age.len() - self.n_gated
    }
}
