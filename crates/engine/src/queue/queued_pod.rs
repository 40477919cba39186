//! A pod in the queue, and the indices of profiles and plugins.

use std::sync::Arc;

use loadmaster_framework::{PodInfo, QueuedPodInfo, Rejection};
use smallvec::SmallVec;

use crate::time::{MonoTime, Now};

/// Index of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileIdx(pub u32);

/// Index of a plugin in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginIdx(pub u32);

/// A set of plugins of one profile, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginIdxSet(SmallVec<[PluginIdx; 4]>);

impl PluginIdxSet {
    /// Adds a plugin. Returns whether it is new.
    pub fn insert(&mut self, plugin: PluginIdx) -> bool {
        let Err(at) = self.0.binary_search(&plugin) else { return false };
        self.0.insert(at, plugin);
        true
    }

    /// Whether the set contains the plugin.
    pub fn contains(&self, plugin: PluginIdx) -> bool {
        self.0.binary_search(&plugin).is_ok()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PluginIdx> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<PluginIdx> for PluginIdxSet {
    fn from_iter<I: IntoIterator<Item = PluginIdx>>(plugins: I) -> Self {
        let mut set = PluginIdxSet::default();
        for plugin in plugins {
            set.insert(plugin);
        }
        set
    }
}

/// A PreEnqueue plugin gates a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreEnqueueRejection {
    pub plugin: PluginIdx,
    pub rejection: Rejection,
}

/// A pod in the queue or in flight.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    /// The part that QueueSort compares.
    pub info: QueuedPodInfo,
    pub profile_idx: ProfileIdx,
    /// Number of attempts in which a plugin rejected it.
    pub unschedulable_count: u32,
    /// Number of errors since the last rejection.
    pub consecutive_errors: u32,
    /// Plugins that rejected it with Unschedulable or UnschedulableAndUnresolvable, including PreEnqueue plugins.
    pub unschedulable_plugins: PluginIdxSet,
    /// Plugins that rejected it with Pending: their hints skip the backoff.
    pub pending_plugins: PluginIdxSet,
    /// The PreEnqueue plugin that gates it.
    pub gating: Option<PreEnqueueRejection>,
    /// It was last requeued because of the timeout of unschedulablePods, not because of an event.
    pub flushed_by_timeout: bool,
    /// When it was added to its queue; updated at every requeue, as `info.queued`.
    pub(super) queued_at: MonoTime,
    /// When its backoff ends; `None` if it has none.
    pub(super) backoff_until: Option<MonoTime>,
    /// Sequence number of its arrival: orders pods that are otherwise equal.
    pub(super) nth: u64,
}

impl QueuedPod {
    pub(super) fn new(now: Now, profile_idx: ProfileIdx, pod: Arc<PodInfo>, nth: u64) -> QueuedPod {
        QueuedPod {
            info: QueuedPodInfo { pod, queued: now.wall, initial_attempt: None, attempts: 0 },
            profile_idx,
            unschedulable_count: 0,
            consecutive_errors: 0,
            unschedulable_plugins: PluginIdxSet::default(),
            pending_plugins: PluginIdxSet::default(),
            gating: None,
            flushed_by_timeout: false,
            queued_at: now.mono,
            backoff_until: None,
            nth,
        }
    }

    /// Sets the plugins that rejected it in its last attempt, replacing earlier ones. QueueComparison empty: the attempt failed with an error.
    pub fn set_rejecters(&mut self, unschedulable: PluginIdxSet, pending: PluginIdxSet) {
        self.unschedulable_plugins = unschedulable;
        self.pending_plugins = pending;
        self.gating = None;
    }

    /// Whether a plugin rejected it; otherwise its attempt failed with an error, or there was none.
    pub fn has_rejecters(&self) -> bool {
        !(self.unschedulable_plugins.is_empty() && self.pending_plugins.is_empty())
    }

    /// The PreEnqueue plugin that gates it.
    pub fn gating_plugin(&self) -> Option<PluginIdx> {
        self.gating.as_ref().map(|rejection| rejection.plugin)
    }

    /// When it was added to its queue.
    pub fn queued_at(&self) -> MonoTime {
        self.queued_at
    }

    /// When its backoff ends; `None` if it has none.
    pub fn backoff_until(&self) -> Option<MonoTime> {
        self.backoff_until
    }
}
