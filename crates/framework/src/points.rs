//! The extension points: one trait each, named as upstream names them, in the order of a cycle.
//!
//! PreEnqueue, QueueSort · PreFilter, Filter, PostFilter, PreScore, Score · Reserve, Permit · PreBind, Bind, PostBind · Sign.
//! Points that are called one after the other get a [`SerialCx`] and may change their state; Filter and Score get a [`Cx`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_stdx::Rng;

use crate::node::NodeInfo;
use crate::objects::{ObjectChange, ObjectSlot, Objects};
use crate::pod::{PodInfo, QueuedPodInfo};
use crate::preemption::Preview;
use crate::request::{Input, Step};
use crate::result::{Code, Failure, Permitted, PreFiltered, PreScored, Rejection};
use crate::state::{CycleState, PluginStates, Published};
use crate::table::Row;
use crate::waiting::{Intervention, PodEvent, WaitingPods};
use crate::world::World;

/// What a plugin may read at points that can be called side by side.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Nodes, pods and sums; constant during a cycle.
    pub world: &'a World,
    /// What plugins remember within the cycle.
    pub cycle: &'a CycleState,
    /// What plugins remember across cycles.
    pub states: &'a PluginStates,
}

impl<'a> Cx<'a> {
    /// The objects of a kind that the plugin watches.
    pub fn objects<T: 'static>(&self, slot: &ObjectSlot<T>) -> Objects<'a, T> {
        self.world.objects().view(slot)
    }

    /// What a service published to the plugin last, unless that is too old by now.
    pub fn published<T: Send + Sync + 'static>(&self, slot: Published<T>) -> Option<&'a T> {
        self.states.published(slot)
    }
}

/// What a plugin may read and change at points that are called one after the other.
pub struct SerialCx<'a> {
    /// Nodes, pods and sums; constant during a cycle.
    pub world: &'a World,
    /// What plugins remember within the cycle.
    pub cycle: &'a mut CycleState,
    /// What plugins remember across cycles.
    pub states: &'a mut PluginStates,
}

impl SerialCx<'_> {
    /// The same, for reading.
    pub fn cx(&self) -> Cx<'_> {
        Cx { world: self.world, cycle: self.cycle, states: self.states }
    }

    /// The objects of a kind that the plugin watches.
    pub fn objects<T: 'static>(&self, slot: &ObjectSlot<T>) -> Objects<'_, T> {
        self.world.objects().view(slot)
    }

    /// What a service published to the plugin last, unless that is too old by now.
    pub fn published<T: Send + Sync + 'static>(&self, slot: Published<T>) -> Option<&T> {
        self.states.published(slot)
    }

    /// The pods that Permit holds.
    pub fn waiting_pods(&self) -> &WaitingPods {
        self.world.waiting_pods()
    }

    /// Lets a pod go on that this plugin holds at Permit. Other plugins may hold it still.
    pub fn allow(&mut self, plugin: &'static str, uid: &str) {
        self.states.intervene(Intervention::Allow { uid: uid.into(), plugin });
    }

    /// Takes its node from a pod that Permit holds. Events that the plugin registered wake it.
    pub fn reject(&mut self, plugin: &'static str, uid: &str, why: impl Into<Cow<'static, str>>) {
        self.states.intervene(Intervention::Reject { uid: uid.into(), plugin, why: why.into() });
    }

    /// Has pods tried now that wait for an event.
    pub fn activate<'u>(&mut self, uids: impl IntoIterator<Item = &'u str>) {
        let uids = uids.into_iter().map(Into::into).collect();
        self.states.intervene(Intervention::Activate(uids));
    }

    /// Writes an Event about a pod.
    pub fn tell(&mut self, event: PodEvent) {
        self.states.intervene(Intervention::Tell(event));
    }
}

/// Holds a pod before it enters the queue.
pub trait PreEnqueue: Send + Sync {
    /// `Err` keeps the pod out (gated) until an event this plugin registered wakes it.
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection>;
}

/// Orders the queue. Exactly one in a scheduler.
pub trait QueueSort: Send + Sync {
    /// `Less` is scheduled first.
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering;
}

/// Looks at the pod once before nodes are asked.
pub trait PreFilter: Send + Sync {
    /// Prepares Filter, narrows the nodes, or rejects the pod on all of them.
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFiltered, Rejection>;

    /// A dry run adds `other` to the node: brings what PreFilter prepared up to date.
    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        let _ = (cycle, world, pod, other, node);
        Ok(())
    }

    /// A dry run takes `other` from the node.
    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure> {
        let _ = (cycle, world, pod, other, node);
        Ok(())
    }
}

/// Decides whether a pod can run on a node.
pub trait Filter: Send + Sync {
    /// `Err` turns the node down.
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection>;
}

/// Asking a profile's Filters about a node that is not as it is: what a dry run needs. The engine implements it; plugins whose
/// Filter is skipped in this cycle are left out.
pub trait Feasibility {
    /// Whether the pod fits on the node: with the pods of at least its priority that are nominated to the node, and without.
    fn fits(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection>;

    /// Tells every PreFilter plugin that `other` is on the node now ([`PreFilter::add_pod`]).
    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure>;

    /// Tells every PreFilter plugin that `other` is off the node now ([`PreFilter::remove_pod`]).
    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure>;
}

/// What is known about a pod that fits nowhere.
#[derive(Clone, Copy)]
pub struct Unfit<'a> {
    /// What became of every node, by row. A node that PreFilter left out is `UnschedulableAndUnresolvable`; where PreFilter
    /// rejected the pod, every node has that code.
    pub verdicts: &'a [(Row, Code)],
    /// For asking about nodes as they could be.
    pub feasibility: &'a dyn Feasibility,
    /// Whether an extender has a say in who is evicted for the pod.
    pub extenders: bool,
}

/// What PostFilter came to. By default nothing: no nomination is changed, nobody evicted, and other plugins are not asked.
#[derive(Clone, Debug, Default)]
pub struct PostFiltered {
    /// The node to nominate; `Some("")` clears a nomination, `None` leaves it.
    pub nominated_node: Option<Str>,
    /// Pods that must leave that node, the most important first. Those that are terminating already count, and need no
    /// eviction; of the others the last one is evicted when all before it are ([`crate::preemption::evict`]).
    pub victims: Vec<Arc<PodInfo>>,
    /// Pods nominated to that node that lose their nomination, because they may no longer fit there. Before the evictions.
    pub denominated: Vec<Arc<PodInfo>>,
    /// Why no room could be made. `Unschedulable`: the next PostFilter plugin is asked; `Failed`: the attempt fails.
    pub rejection: Option<Rejection>,
}

impl PostFiltered {
    /// The victims that are to be evicted.
    pub fn to_evict(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.victims.iter().filter(|victim| !victim.terminating)
    }
}

/// Tries to make room when no node is feasible. Resumable.
pub trait PostFilter: Send + Sync {
    /// Called first with [`Input::Start`], then with the answer to what it asked for. `rng` is this attempt's chance.
    fn post_filter(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        unfit: Unfit<'_>,
        rng: &mut Rng,
        input: Input<'_>,
    ) -> Step<PostFiltered>;

    /// All that it could do for the pod, changing nothing: what `explain` shows. `None` for a plugin that does not preempt.
    fn preview(&self, cx: Cx<'_>, pod: &Arc<PodInfo>, unfit: Unfit<'_>) -> Option<Preview> {
        let _ = (cx, pod, unfit);
        None
    }

    /// Whether its calls are what `scheduler_preemption_attempts_total` counts.
    fn counts_as_preemption(&self) -> bool {
        false
    }
}

/// Looks at the feasible nodes once before they are scored.
pub trait PreScore: Send + Sync {
    /// Prepares Score, or says that there is nothing to prefer.
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Result<PreScored, Failure>;
}

/// A node's score by one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeScore {
    /// The node.
    pub row: Row,
    /// Raw before `normalize`, in `0..=100` after it.
    pub score: i64,
}

/// Ranks feasible nodes.
pub trait Score: Send + Sync {
    /// Any number if [`Score::normalize`] brings it into `0..=100`, else a number in that range.
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure>;

    /// Brings the scores of all feasible nodes into `0..=100` (upstream's NormalizeScore).
    fn normalize(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        scores: &mut [NodeScore],
    ) -> Result<(), Failure> {
        let _ = (cx, pod, scores);
        Ok(())
    }
}

/// Books something for a pod on the chosen node.
pub trait Reserve: Send + Sync {
    /// `Err` gives the attempt up; [`Reserve::unreserve`] is called then.
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection>;

    /// Undoes it. Called for every plugin, also for those whose reserve was never called.
    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str);
}

/// Holds a pod before it is bound.
pub trait Permit: Send + Sync {
    /// Allows, holds or rejects.
    fn permit(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<Permitted, Rejection>;
}

/// What PreBind will do, asked before the pod is held by Permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreFlight {
    /// Nothing: PreBind is not called.
    Skip,
    /// It has work to do.
    Work {
        /// Whether it may run beside its neighbors of the same kind.
        parallel: bool,
    },
}

/// Does what must be done before a pod is bound. Resumable.
pub trait PreBind: Send + Sync {
    /// Whether there is anything to do.
    fn pre_flight(&self, cx: Cx<'_>, pod: &PodInfo, node: &str) -> Result<PreFlight, Rejection>;

    /// Called first with [`Input::Start`], then with the answer to what it asked for.
    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: Input<'_>,
    ) -> Step<()>;
}

/// What Bind did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The pod is bound.
    Done,
    /// Not this plugin's pod: the next one is asked.
    Skip,
}

/// Binds a pod to its node. Resumable.
pub trait Bind: Send + Sync {
    /// Called first with [`Input::Start`], then with the answer to what it asked for.
    fn bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: Input<'_>,
    ) -> Step<Bound>;
}

/// Learns that a pod was bound.
pub trait PostBind: Send + Sync {
    /// Informational.
    fn post_bind(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str);
}

/// Learns of changes of the objects that the plugin watches: after they can be seen, before the queue is told.
pub trait ObjectEvents: Send + Sync {
    /// The cycle state is empty and forgotten afterwards. Called whoever leads, also for the first list.
    fn object_changed(&self, cx: SerialCx<'_>, change: &ObjectChange);
}

/// The pod cannot share its answers with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsignable;

/// What a plugin's answers depend on, as a part of the pod's signature (KEP-5598): equal signatures, equal answers.
pub trait Sign: Send + Sync {
    /// Fragments by upstream's names, such as `v1.Pod.Spec.Tolerations`.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<Fragment>, Unsignable>;
}

/// One part of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    /// Upstream's name of what is compared.
    pub key: &'static str,
    /// What it is for this pod.
    pub value: serde_json::Value,
}
