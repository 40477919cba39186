//! The contexts in which plugins are called: what an extension point may read, change and request.

use std::borrow::Cow;

use loadmaster_api::Str;

use crate::node_table::{NodeTable, NodesVersion};
use crate::state::{CycleState, PluginStates};
use crate::time::{MonoTime, Now};
use crate::waiting_pods::{PluginAction, PodEventRecord, WaitingPods};
use crate::world::{DryRun, World};

/// What every context with a world and plugin states can read; `$lifetime` is how long the results live.
macro_rules! readers {
    ($lifetime:lifetime) => {
        /// The time of the engine's current call: the only clock of a plugin.
        pub fn now(&self) -> $crate::time::Now {
            self.world.now()
        }

        /// The objects of a kind that the plugin watches.
        pub fn objects<T: 'static>(
            &self,
            slot: &$crate::watched_objects::ObjectSlot<T>,
        ) -> $crate::watched_objects::ObjectLister<$lifetime, T> {
            self.world.watched_objects().lister(slot)
        }

        /// The value that a service published last to the plugin; `None` when it has expired.
        pub fn published_value<T: Send + Sync + 'static>(
            &self,
            slot: $crate::state::PublishedValueSlot<T>,
        ) -> Option<&$lifetime T> {
            self.states.published_value(slot)
        }

        /// The pods with the same namespace and value of the index as this pod.
        pub fn sibling_pods(
            &self,
            index: &$crate::pod_index::PodIndex,
            pod: &$crate::pod_info::PodInfo,
        ) -> $crate::pod_index::IndexedPods<$lifetime> {
            self.world.sibling_pods(index, pod)
        }

        /// The pods with a value of the index.
        pub fn pods_by_index(
            &self,
            index: &$crate::pod_index::PodIndex,
            namespace: &str,
            value: &str,
        ) -> $crate::pod_index::IndexedPods<$lifetime> {
            self.world.pods_by_index(index, namespace, value)
        }

        /// The sum of the assigned pods with this key.
        pub fn pod_sum<K: Eq + std::hash::Hash + 'static>(
            &self,
            sums: &$crate::pod_sums::PodSums<K>,
            key: &K,
        ) -> &$lifetime $crate::pod_sums::PodSum {
            self.world.pod_sum(sums, key)
        }

        /// The sums over all namespaces that have an object of the plugin's kind.
        pub fn namespace_total(
            &self,
            sums: &$crate::pod_sums::NamespaceSums,
        ) -> &$lifetime $crate::pod_sums::NamespaceTotal {
            self.world.namespace_total(sums)
        }
    };
}

pub(crate) use readers;

/// The context of extension points that may run in parallel: read-only.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Nodes, pods and other objects; constant during a scheduling cycle. In a dry run, with its changes.
    pub world: &'a World,
    /// The cycle state.
    pub cycle: &'a CycleState,
    /// The plugins' states across cycles.
    pub states: &'a PluginStates,
}

impl<'a> Cx<'a> {
    readers!('a);

    /// What an incremental form sees, for code that both forms use.
    pub fn evaluator_cx(&self) -> EvaluatorCx<'a> {
        EvaluatorCx { world: self.world, states: self.states }
    }
}

/// The context of extension points that run one after the other: plugins may change their states and request actions.
pub struct SerialCx<'a> {
    /// Nodes, pods and other objects; constant during a scheduling cycle.
    pub world: &'a World,
    /// The cycle state.
    pub cycle: &'a mut CycleState,
    /// The plugins' states across cycles.
    pub states: &'a mut PluginStates,
}

impl SerialCx<'_> {
    readers!('_);

    /// The read-only context.
    pub fn cx(&self) -> Cx<'_> {
        Cx { world: self.world, cycle: self.cycle, states: self.states }
    }

    /// The pods that wait at Permit.
    pub fn waiting_pods(&self) -> &WaitingPods {
        self.world.waiting_pods()
    }

    /// Allows a waiting pod on behalf of this plugin; other plugins may still make it wait (upstream's `WaitingPod.Allow`).
    pub fn allow_waiting_pod(&mut self, plugin: &'static str, uid: &str) {
        self.states.request_action(PluginAction::Allow { uid: uid.into(), plugin });
    }

    /// Rejects a waiting pod (upstream's `RejectWaitingPod`). Events that the plugin registered requeue it.
    pub fn reject_waiting_pod(
        &mut self,
        plugin: &'static str,
        uid: &str,
        why: impl Into<Cow<'static, str>>,
    ) {
        let (uid, message) = (uid.into(), why.into());
        self.states.request_action(PluginAction::Reject { uid, plugin, message, except: None });
    }

    /// The same, because another pod found no node that fits: what the rejected pod releases does not requeue that pod. A gang of which one
    /// member fits on no node would otherwise try again at once, with what its other members have just released.
    pub fn reject_waiting_pod_for(
        &mut self,
        plugin: &'static str,
        uid: &str,
        why: impl Into<Cow<'static, str>>,
        unschedulable: &str,
    ) {
        let (uid, message, except) = (uid.into(), why.into(), Some(unschedulable.into()));
        self.states.request_action(PluginAction::Reject { uid, plugin, message, except });
    }

    /// Moves pods to the activeQ (upstream's `Activate`).
    pub fn activate<'u>(&mut self, uids: impl IntoIterator<Item = &'u str>) {
        let uids = uids.into_iter().map(Into::into).collect();
        self.states.request_action(PluginAction::Activate(uids));
    }

    /// Moves pods to the activeQ at a time, if they are still pending then. Until then events may requeue them as always.
    pub fn activate_at<'u>(&mut self, at: MonoTime, uids: impl IntoIterator<Item = &'u str>) {
        let uids = uids.into_iter().map(Into::into).collect();
        self.states.request_action(PluginAction::ActivateAt(at, uids));
    }

    /// Runs PreEnqueue again at a time, for those of the pods that are gated then: for a plugin that gates pods until a time. Until then events
    /// may requeue them as always.
    pub fn check_gates_at<'u>(&mut self, at: MonoTime, uids: impl IntoIterator<Item = &'u str>) {
        let uids = uids.into_iter().map(Into::into).collect();
        self.states.request_action(PluginAction::CheckGatesAt(at, uids));
    }

    /// Makes the scheduler compute again what incremental forms computed for a node, because a state changed that one of them reads.
    pub fn invalidate_node(&mut self, node: &str) {
        self.states.request_action(PluginAction::InvalidateNode(Str::new(node)));
    }

    /// Makes the [keys](crate::Incremental::key) of the pods in a namespace be computed again, because a state changed that they depend
    /// on; with an empty name, those of all pods.
    pub fn invalidate_keys(&mut self, namespace: &Str) {
        self.states.request_action(PluginAction::InvalidateKeys(namespace.clone()));
    }

    /// Makes this plugin prepare its evaluators again, because a state changed that they read and that concerns all nodes.
    pub fn invalidate_evaluators(&mut self, plugin: &'static str) {
        self.states.request_action(PluginAction::InvalidateEvaluators { plugin });
    }

    /// Sorts the scheduling queue again: the order of [`QueueSort`](crate::QueueSort) has changed. Costs one pass over the queue, so request it only
    /// when the order of some pods may really differ.
    pub fn sort_queue(&mut self) {
        self.states.request_action(PluginAction::SortQueue);
    }

    /// Records an Event about a pod.
    pub fn record_event(&mut self, event: PodEventRecord) {
        self.states.request_action(PluginAction::RecordEvent(event));
    }
}

/// The context of PostFilter: that of extension points that run one after the other, and dry runs.
pub struct PostFilterCx<'a> {
    world: &'a mut World,
    /// The cycle state of the failed scheduling cycle.
    pub cycle: &'a mut CycleState,
    /// The plugins' states across cycles.
    pub states: &'a mut PluginStates,
}

impl<'a> PostFilterCx<'a> {
    /// A context in this world.
    pub fn new(
        world: &'a mut World,
        cycle: &'a mut CycleState,
        states: &'a mut PluginStates,
    ) -> PostFilterCx<'a> {
        PostFilterCx { world, cycle, states }
    }

    /// Nodes, pods and other objects.
    pub fn world(&self) -> &World {
        self.world
    }

    /// The time of the engine's current call: the only clock of a plugin.
    pub fn now(&self) -> Now {
        self.world.now()
    }

    /// The context without dry runs.
    pub fn serial(&mut self) -> SerialCx<'_> {
        SerialCx { world: self.world, cycle: self.cycle, states: self.states }
    }

    /// The read-only context with dry runs, as [`Preemptor`](crate::preemption::Preemptor) needs it.
    pub fn dry_run_cx(&mut self) -> DryRunCx<'_> {
        DryRunCx { world: self.world, cycle: self.cycle, states: self.states }
    }
}

/// A read-only context in which dry runs can begin. A dry run changes the world until it ends, which nobody else sees.
pub struct DryRunCx<'a> {
    world: &'a mut World,
    /// The cycle state.
    pub cycle: &'a CycleState,
    /// The plugins' states across cycles.
    pub states: &'a PluginStates,
}

impl<'a> DryRunCx<'a> {
    /// A context in this world.
    pub fn new(
        world: &'a mut World,
        cycle: &'a CycleState,
        states: &'a PluginStates,
    ) -> DryRunCx<'a> {
        DryRunCx { world, cycle, states }
    }

    /// Nodes, pods and other objects.
    pub fn world(&self) -> &World {
        self.world
    }

    /// The context without dry runs.
    pub fn cx(&self) -> Cx<'_> {
        Cx { world: self.world, cycle: self.cycle, states: self.states }
    }

    /// The same context for a shorter time.
    pub fn reborrow(&mut self) -> DryRunCx<'_> {
        DryRunCx { world: self.world, cycle: self.cycle, states: self.states }
    }

    /// Begins a dry run.
    pub fn dry_run(&mut self) -> DryRun<'_> {
        DryRun::new(self.world)
    }
}

/// The context of keys and of a [`PluginEvaluator`](crate::PluginEvaluator): read-only. What an evaluator reads besides rows and counters must be announced when
/// it changes: watched objects by [`crate::ExtensionPoints::watch_per_node`] or by being watched at all, states by
/// [`crate::SerialCx::invalidate_node`], published values by being published. Other pods and sums of pods may change in every decision, so
/// that only [`accepts_pod`](crate::PluginEvaluator::accepts_pod), [`filter_class`](crate::PluginEvaluator::filter_class) and
/// [`score_classes`](crate::PluginEvaluator::score_classes) may read them; these may also read objects and states whose changes are not announced.
#[derive(Clone, Copy)]
pub struct EvaluatorCx<'a> {
    /// Nodes, pods and other objects.
    pub world: &'a World,
    /// The plugins' states across cycles.
    pub states: &'a PluginStates,
}

impl<'a> EvaluatorCx<'a> {
    /// The nodes.
    pub fn nodes(&self) -> &'a NodeTable {
        self.world.nodes()
    }

    /// While it is the same, nothing has changed that [`is_stale`](crate::PluginEvaluator::is_stale) may depend on: nodes without their pods,
    /// and states.
    pub fn staleness_version(&self) -> StalenessVersion {
        StalenessVersion(self.nodes().version(), self.states.version())
    }

    readers!('a);
}

/// See [`EvaluatorCx::staleness_version`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessVersion(NodesVersion, u64);
