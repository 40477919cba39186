//! A pod in the queue, and the names by which the queue knows profiles and plugins.

use std::sync::Arc;

use loadmaster_framework::{PodInfo, QueuedPodInfo, Rejection};
use smallvec::SmallVec;

use crate::time::{Mono, Now};

/// Who decides a pod: the number of its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatIdx(pub u32);

/// A plugin: its number in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginIdx(pub u32);

/// A few plugins of one profile, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginSet(SmallVec<[PluginIdx; 4]>);

impl PluginSet {
    /// Adds a plugin; says whether it is new.
    pub fn insert(&mut self, plugin: PluginIdx) -> bool {
        let Err(at) = self.0.binary_search(&plugin) else { return false };
        self.0.insert(at, plugin);
        true
    }

    /// Whether the plugin is in it.
    pub fn contains(&self, plugin: PluginIdx) -> bool {
        self.0.binary_search(&plugin).is_ok()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PluginIdx> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<PluginIdx> for PluginSet {
    fn from_iter<I: IntoIterator<Item = PluginIdx>>(plugins: I) -> Self {
        let mut set = PluginSet::default();
        for plugin in plugins {
            set.insert(plugin);
        }
        set
    }
}

/// PreEnqueue keeps a pod out of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub plugin: PluginIdx,
    pub rejection: Rejection,
}

/// A pod in the queue or in flight.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    /// What QueueSort compares.
    pub info: QueuedPodInfo,
    pub seat: SeatIdx,
    /// When it first was ready to be tried.
    pub initial_attempt: Option<Mono>,
    /// Attempts that a plugin ended by a rejection.
    pub unschedulable_count: u32,
    /// Attempts that failed since the last rejection.
    pub consecutive_errors: u32,
    /// Who rejected it as Unschedulable or UnschedulableAndUnresolvable, PreEnqueue included.
    pub unschedulable_plugins: PluginSet,
    /// Who rejected it as Pending: their hints skip the backoff.
    pub pending_plugins: PluginSet,
    /// Who keeps it out of the queue.
    pub gating: Option<Held>,
    /// It was tried last because it had waited too long, not because of an event.
    pub flushed_by_timeout: bool,
    /// When it entered its present queue; renewed at every requeue, as `info.queued`.
    pub(super) queued_at: Mono,
    /// When its backoff ends; `None` if it has none.
    pub(super) backoff_until: Option<Mono>,
    /// Its number among all pods that ever came: pods that are equal otherwise go first come, first served.
    pub(super) nth: u64,
}

impl QueuedPod {
    pub(super) fn new(now: Now, seat: SeatIdx, pod: Arc<PodInfo>, nth: u64) -> QueuedPod {
        QueuedPod {
            info: QueuedPodInfo { pod, queued: now.wall, attempts: 0 },
            seat,
            initial_attempt: None,
            unschedulable_count: 0,
            consecutive_errors: 0,
            unschedulable_plugins: PluginSet::default(),
            pending_plugins: PluginSet::default(),
            gating: None,
            flushed_by_timeout: false,
            queued_at: now.mono,
            backoff_until: None,
            nth,
        }
    }

    /// Says who ended the attempt, in place of who ended earlier ones. Both empty: it failed with an error.
    pub fn set_rejecters(&mut self, unschedulable: PluginSet, pending: PluginSet) {
        self.unschedulable_plugins = unschedulable;
        self.pending_plugins = pending;
        self.gating = None;
    }

    /// Whether a plugin rejected it; if none did, it failed with an error or was never tried.
    pub fn has_rejecters(&self) -> bool {
        !(self.unschedulable_plugins.is_empty() && self.pending_plugins.is_empty())
    }

    /// Who keeps it out of the queue.
    pub fn gating_plugin(&self) -> Option<PluginIdx> {
        self.gating.as_ref().map(|held| held.plugin)
    }

    /// When it entered its present queue.
    pub fn queued_at(&self) -> Mono {
        self.queued_at
    }

    /// When its backoff ends; `None` if it has none.
    pub fn backoff_until(&self) -> Option<Mono> {
        self.backoff_until
    }
}
