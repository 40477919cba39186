//! Changes of the world that can be undone: pods are assumed, evicted and nominated to find out what would follow.
//!
//! While a trial is open, every change of pods and nominations writes how to undo it into the world's undo log. There are two
//! kinds, for two groups of readers:
//!
//! | | for | topology counters and change log | how it ends |
//! | --- | --- | --- | --- |
//! | [`DryRun`] | per-node evaluation: Filter and the PreFilter extensions on one node at a time | not updated: only incremental evaluators read them, and none runs in a dry run | always undone |
//! | [`Trial`] | anything, also the incremental evaluators: placing several pods at once | updated by every step, and by undoing it | undone, or kept |
//!
//! Both update everything else: the nodes' pods, ports and resource sums, the sums of plugins, the nodes of pods by uid, and nominations. Undoing restores
//! all of it exactly, with the order of pods and nominations.
//!
//! An undone dry run leaves no entry in the change log, so that cached evaluations remain valid at no cost, however many nodes were
//! tried. An undone trial leaves an entry for each step and another one for undoing it, because an evaluation may have been updated
//! in between: it is brought up to date from these rows, like after any other change, and not computed again.
//!
//! Trials nest: a dry run may begin in a trial or in another dry run and ends before it. Only pods and nominations change in a trial;
//! a change of nodes panics. Both kinds are undone when a plugin panics and unwinds through them.

use std::ops::Deref;
use std::sync::Arc;

use loadmaster_api::Str;

use super::{World, WorldChange};
use crate::node_table::{NodeRow, RemovedPod};
use crate::pod_info::PodInfo;

/// The steps of the open trials.
#[derive(Default)]
pub(super) struct UndoLog {
    steps: Vec<Step>,
    n_open: u32,
    /// Number of open dry runs; topology counters and the change log are not updated while there is one.
    n_dry_runs: u32,
}

/// How to undo one change. Undone in reverse order, so that every list is as it was right after the change.
enum Step {
    /// The pod was added as the last one of this row. `n_scalars` is the number of scalar resources known before.
    Added { row: NodeRow, n_scalars: usize },
    /// The pod was removed from this row, in a dry run or not.
    Removed { row: NodeRow, in_dry_run: bool, removed: RemovedPod },
    /// A pod was nominated as the last one of this node.
    Nominated { node: Str, version: u64 },
    /// A pod's nomination was deleted; it was at this index.
    NominationDeleted { node: Str, at: usize, pod: Arc<PodInfo>, version: u64 },
}

impl UndoLog {
    pub fn is_open(&self) -> bool {
        self.n_open > 0
    }

    pub fn is_dry_run(&self) -> bool {
        self.n_dry_runs > 0
    }

    pub fn pod_added(&mut self, row: NodeRow, n_scalars: usize) {
        self.push(|| Step::Added { row, n_scalars });
    }

    pub fn pod_removed(&mut self, row: NodeRow, removed: RemovedPod) {
        let in_dry_run = self.is_dry_run();
        self.push(|| Step::Removed { row, in_dry_run, removed });
    }

    /// The same; returns the pod.
    pub fn take_removed(&mut self, row: NodeRow, removed: RemovedPod) -> Arc<PodInfo> {
        if !self.is_open() {
            return removed.pod;
        }
        let pod = removed.pod.clone();
        self.pod_removed(row, removed);
        pod
    }

    pub fn nominated(&mut self, node: &Str, version: u64) {
        self.push(|| Step::Nominated { node: node.clone(), version });
    }

    pub fn nomination_deleted(&mut self, node: &Str, at: usize, pod: Arc<PodInfo>, version: u64) {
        self.push(|| Step::NominationDeleted { node: node.clone(), at, pod, version });
    }

    /// The rows to which the steps of open dry runs, and those of trials around them, added pods; none outside of dry runs.
    pub fn rows_of_pods_added_in_dry_runs(&self) -> impl Iterator<Item = NodeRow> + '_ {
        let steps = if self.is_dry_run() { self.steps.as_slice() } else { &[] };
        steps.iter().filter_map(|step| match step {
            Step::Added { row, .. } => Some(*row),
            _ => None,
        })
    }

    fn push(&mut self, step: impl FnOnce() -> Step) {
        if self.is_open() {
            self.push_step(step());
        }
    }

    #[inline(never)]
    fn push_step(&mut self, step: Step) {
        self.steps.push(step);
    }
}

/// A position in the undo log. Valid until an earlier one is undone to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint(usize);

/// The part that both kinds of trials have in common: steps from `start` on, undone when it is dropped.
struct OpenTrial<'w> {
    world: &'w mut World,
    start: Checkpoint,
    is_dry_run: bool,
}

impl<'w> OpenTrial<'w> {
    fn new(world: &'w mut World, is_dry_run: bool) -> OpenTrial<'w> {
        assert!(is_dry_run || !world.undo.is_dry_run(), "a trial cannot begin in a dry run");
        world.undo.n_open += 1;
        world.undo.n_dry_runs += u32::from(is_dry_run);
        let start = Checkpoint(world.undo.steps.len());
        OpenTrial { world, start, is_dry_run }
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.world.undo.steps.len())
    }

    fn undo_to(&mut self, checkpoint: Checkpoint) {
        let Checkpoint(to) = checkpoint.max(self.start);
        while self.world.undo.steps.len() > to
            && let Some(step) = self.world.undo.steps.pop()
        {
            self.world.undo_step(step);
        }
    }
}

impl Drop for OpenTrial<'_> {
    fn drop(&mut self) {
        self.undo_to(self.start);
        self.world.undo.n_open -= 1;
        self.world.undo.n_dry_runs -= u32::from(self.is_dry_run);
    }
}

/// A trial that everything can read, the incremental evaluators included. Undone when it is dropped.
///
/// ```
/// # use loadmaster_framework::world::Trial;
/// # use loadmaster_framework::{NodeRow, PodInfo, World};
/// # use std::sync::Arc;
/// /// Places as many pods as `place` finds a node for, all or none.
/// fn place_all(
///     world: &mut World,
///     pods: &[Arc<PodInfo>],
///     mut place: impl FnMut(&mut World, &PodInfo) -> Option<NodeRow>,
/// ) -> bool {
///     let mut trial = Trial::new(world);
///     for pod in pods {
///         let Some(row) = place(trial.world_mut(), pod) else { return false };
///         trial.assume(row, pod.clone());
///     }
///     trial.keep();
///     true
/// }
/// ```
pub struct Trial<'w>(OpenTrial<'w>);

/// A trial that per-node evaluation can read: Filter, and the PreFilter extensions. Always undone when it ends.
///
/// Plugins get dry runs from [`DryRunCx`](crate::DryRunCx), and can neither keep their changes nor change the world in another way.
pub struct DryRun<'w>(OpenTrial<'w>);

macro_rules! steps {
    ($kind:ident) => {
        impl $kind<'_> {
            /// Adds a pod to a node. A pod that is already on a node is moved.
            pub fn assume(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
                self.0.world.add_pod(row, pod);
            }

            /// Removes a pod from its node; returns it.
            pub fn evict(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
                self.0.world.remove_pod(uid)
            }

            /// Nominates a pod to a node, after the pods that are already nominated to it.
            pub fn nominate(&mut self, node: Str, pod: Arc<PodInfo>) {
                self.0.world.add_nominated_pod(node, pod);
            }

            /// Deletes a pod's nomination, if it has one.
            pub fn clear_nomination(&mut self, uid: &str) {
                self.0.world.delete_nominated_pod(uid);
            }

            /// The current position, for [`Self::undo_to`].
            pub fn checkpoint(&self) -> Checkpoint {
                self.0.checkpoint()
            }

            /// Undoes all steps since a checkpoint, at most those of this trial.
            pub fn undo_to(&mut self, checkpoint: Checkpoint) {
                self.0.undo_to(checkpoint);
            }

            /// Undoes all steps. The same as dropping it.
            pub fn undo(self) {}
        }

        /// The world with all steps so far.
        impl Deref for $kind<'_> {
            type Target = World;

            fn deref(&self) -> &World {
                self.0.world
            }
        }
    };
}

steps!(Trial);
steps!(DryRun);

impl<'w> Trial<'w> {
    /// Begins a trial.
    ///
    /// # Panics
    ///
    /// In a dry run, whose steps do not update what a trial's readers may read.
    pub fn new(world: &'w mut World) -> Trial<'w> {
        Trial(OpenTrial::new(world, false))
    }

    /// The world with all steps so far, for evaluators, which may acquire and release topology counters, parse pods, and begin trials.
    /// Changes of pods and nominations are steps of this trial, too.
    pub fn world_mut(&mut self) -> &mut World {
        self.0.world
    }

    /// Keeps all steps; in another trial, they become steps of that trial.
    pub fn keep(mut self) {
        self.0.start = self.0.checkpoint();
        if self.0.world.undo.n_open == 1 {
            self.0.world.undo.steps.clear();
            self.0.start = Checkpoint(0);
        }
    }
}

impl<'w> DryRun<'w> {
    /// Begins a dry run.
    pub fn new(world: &'w mut World) -> DryRun<'w> {
        DryRun(OpenTrial::new(world, true))
    }

    pub(crate) fn world_mut(&mut self) -> &mut World {
        self.0.world
    }

    /// [`DryRun::evict`] of a pod whose node is known. Returns whether it was there.
    pub(crate) fn evict_from(&mut self, row: NodeRow, pod: &Arc<PodInfo>) -> bool {
        let nodes = &mut self.0.world.nodes;
        let at = nodes.pods(row).iter().rposition(|other| Arc::ptr_eq(other, pod));
        let removed = at.and_then(|at| nodes.remove_pod(row, at));
        let is_removed = removed.is_some();
        if let Some(removed) = removed {
            self.0.world.pod_sums.count(pod, -1);
            self.0.world.undo.pod_removed(row, removed);
        }
        is_removed
    }

    /// [`DryRun::assume`] of a pod that is on no node.
    pub(crate) fn assume_unassigned(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        self.0.world.place_pod(row, pod);
    }
}

impl World {
    fn undo_step(&mut self, step: Step) {
        match step {
            Step::Added { row, n_scalars } => {
                let Some(pod) = self.nodes.undo_add_pod(row, n_scalars) else { return };
                if !self.undo.is_dry_run() {
                    self.assigned.remove(self.assigned.hash(&pod.uid), &pod);
                }
                let counters = self.count_pod(row, &pod, -1);
                self.log_change(WorldChange::Pods(row, counters));
            }
            Step::Removed { row, in_dry_run, removed } => {
                if !in_dry_run {
                    let hash = self.assigned.hash(&removed.pod.uid);
                    self.assigned.insert(hash, row, removed.pod.clone());
                }
                let counters = self.count_pod(row, &removed.pod, 1);
                self.nodes.undo_remove_pod(row, removed);
                self.log_change(WorldChange::Pods(row, counters));
            }
            Step::Nominated { node, version } => {
                self.nominations_version = version;
                self.log_nomination(&node);
                let Some(pods) = self.nominated.get_mut(&node) else { return };
                if let Some(pod) = pods.pop() {
                    self.nominated_nodes_by_uid.remove(&pod.uid);
                }
                if pods.is_empty() {
                    self.nominated.remove(&node);
                }
            }
            Step::NominationDeleted { node, at, pod, version } => {
                self.nominations_version = version;
                self.log_nomination(&node);
                self.nominated_nodes_by_uid.insert(pod.uid.clone(), node.clone());
                self.nominated.entry(node).or_default().insert(at, pod);
            }
        }
    }
}
