//! The last changes of pods and nodes, so that a comparison can go back to the state in which a binding arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::PodInfo;
use loadmaster_framework::world::Trial;

/// How many steps are remembered.
const N_STEPS_MAX: usize = 8192;

/// A change that was applied to the world.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Step {
    /// A pod was added to its node. `pending_since` is the number of the engine call in which it was first seen pending.
    Placed { pod: Arc<PodInfo>, pending_since: Option<u64> },
    /// A pod was removed from its node.
    Removed { pod: Arc<PodInfo> },
    /// A node was added, or changed in a way that may make pods schedulable.
    NodeChanged { node: Str },
}

/// A step, and the number of the engine call that made it.
#[derive(Clone, Debug)]
pub(super) struct HistoryEntry {
    pub call: u64,
    pub step: Step,
}

impl Step {
    /// Undoes the step in a trial that is in the state after it.
    pub fn undo(&self, trial: &mut Trial<'_>) {
        match self {
            Step::Placed { pod, .. } => drop(trial.evict(&pod.uid)),
            Step::Removed { pod } => place(trial, pod),
            Step::NodeChanged { .. } => {}
        }
    }

    /// Makes the step in a trial.
    pub fn redo(&self, trial: &mut Trial<'_>) {
        match self {
            Step::Placed { pod, .. } => place(trial, pod),
            Step::Removed { pod } => drop(trial.evict(&pod.uid)),
            Step::NodeChanged { .. } => {}
        }
    }

    /// Undoes the step if the trial is in a state after it, and makes it otherwise. Returns whether a pod was removed from its node.
    pub fn toggle(&self, trial: &mut Trial<'_>) -> bool {
        let Some(pod) = self.pod() else { return false };
        let is_removed = trial.evict(&pod.uid).is_some();
        if !is_removed {
            place(trial, pod);
        }
        is_removed
    }

    /// The pod that was placed or removed.
    pub fn pod(&self) -> Option<&Arc<PodInfo>> {
        match self {
            Step::Placed { pod, .. } | Step::Removed { pod } => Some(pod),
            Step::NodeChanged { .. } => None,
        }
    }

    /// The node that it changed.
    pub fn node(&self) -> &Str {
        match self {
            Step::Placed { pod, .. } | Step::Removed { pod } => &pod.node_name,
            Step::NodeChanged { node } => node,
        }
    }

    /// The engine call in which a placed pod was first seen pending.
    pub fn pending_since(&self) -> Option<u64> {
        match self {
            Step::Placed { pending_since, .. } => *pending_since,
            _ => None,
        }
    }
}

impl HistoryEntry {
    /// Whether a pod was placed that kube-scheduler takes from its queue before a pod of this priority, which was seen pending from engine call
    /// `since` until `bound_in`; `None` if that is not known.
    pub fn precedes(&self, priority: i32, since: u64, bound_in: u64) -> Option<bool> {
        let Step::Placed { pod: other, pending_since: Some(other_since) } = &self.step else {
            return None;
        };
        if self.call < since {
            return Some(true);
        }
        if *other_since > bound_in {
            return Some(false);
        }
        let key = |priority: i32, since: u64| (std::cmp::Reverse(priority), since);
        Some(key(other.template.priority(), *other_since) < key(priority, since))
    }
}

fn place(trial: &mut Trial<'_>, pod: &Arc<PodInfo>) {
    if let Some(row) = trial.nodes().row(&pod.node_name) {
        trial.assume(row, pod.clone());
    }
}

/// The last steps, each with its position since the beginning.
#[derive(Default)]
pub(super) struct History {
    entries: VecDeque<HistoryEntry>,
    first: u64,
}

impl History {
    /// The position of the next step.
    pub fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub fn push(&mut self, call: u64, step: Step) {
        if self.entries.len() == N_STEPS_MAX {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(HistoryEntry { call, step });
    }

    /// The step at a position, if it is still remembered.
    pub fn get(&self, position: u64) -> Option<&HistoryEntry> {
        self.entries.get(usize::try_from(position.checked_sub(self.first)?).ok()?)
    }

    /// At most `n` steps before a position, the last one first.
    pub fn before(&self, position: u64, n: usize) -> impl Iterator<Item = &HistoryEntry> {
        let positions = (self.first..position).rev().take(n);
        positions.filter_map(|at| self.get(at))
    }

    /// At most `n` steps after a position, in order.
    pub fn after(&self, position: u64, n: usize) -> impl Iterator<Item = &HistoryEntry> {
        (position + 1..self.end()).take(n).filter_map(|at| self.get(at))
    }
}
