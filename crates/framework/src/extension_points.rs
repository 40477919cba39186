//! The extension points: one trait per point, with upstream's names, in the order of a scheduling and a binding cycle.
//!
//! PreEnqueue, QueueSort · PreFilter, Filter, PostFilter, PreScore, Score · Reserve, Permit · PreBind, Bind, PostBind · Sign.
//! Plugins that run one after the other get a [`SerialCx`] and may change their state; Filter and Score, which may run in
//! parallel, get a [`Cx`]. PostFilter gets a [`PostFilterCx`], which also has dry runs.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use loadmaster_api::{Node, Str};
use loadmaster_stdx::Rng;
use serde::{Deserialize, Serialize};

use crate::api_calls::{PluginStep, PluginStepInput};
use crate::node_info::NodeInfo;
use crate::node_row::NodeRow;
use crate::nodes_to_filter::NodesToFilter;
use crate::pod_info::{PodInfo, QueuedPodInfo};
use crate::preemption_candidate::PreemptionPreview;
use crate::result::{Code, Failure, PermitResult, PreFilterResult, PreScoreResult, Rejection};
use crate::state::CycleState;
use crate::victim_cache::VictimCache;
use crate::watched_objects::ObjectChange;
use crate::world::World;

pub use crate::context::{Cx, DryRunCx, PostFilterCx, SerialCx};
pub use crate::node_score::NodeScore;

/// Called before a pod enters the activeQ.
pub trait PreEnqueue: Send + Sync {
    /// `Err` gates the pod until an event that this plugin registered occurs.
    fn pre_enqueue(&self, cx: Cx<'_>, pod: &PodInfo) -> Result<(), Rejection>;
}

/// Orders the activeQ, and pods in backoffQ whose backoffs end in the same second. A scheduler has exactly one: the instance of the
/// first profile, with the states of that profile.
///
/// The queue is a heap, so the order of two pods must change only when
///
/// - one of the two pods is updated or requeued, or
/// - the plugin requests [`SerialCx::sort_queue`], from any extension point or event handler in which it learns that what it
///   compares has changed: its state, a watched object, other pods. The queue is sorted again at the end of that engine call, before
///   the next pod is popped.
///
/// Otherwise pods are popped in an order that is neither the old nor the new one. In particular the order must not depend on `now`
/// alone.
pub trait QueueSort: Send + Sync {
    /// `Less`: `a` is scheduled before `b`. Must be a strict weak order; pods that are equal are scheduled by arrival. The cycle
    /// state is empty.
    fn compare(&self, cx: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering;

    /// Two numbers that order pods as [`QueueSort::compare`] does: the pod with the smaller first one, then with the smaller second one is
    /// scheduled before. `None`, then for all pods, if they depend on more than the pod.
    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]> {
        let _ = pod;
        None
    }
}

/// Called once per scheduling cycle before Filter.
pub trait PreFilter: Send + Sync {
    /// Computes state for Filter, restricts the nodes, or rejects the pod on all nodes.
    fn pre_filter(&self, cx: SerialCx<'_>, pod: &PodInfo) -> Result<PreFilterResult, Rejection>;

    /// Updates the cycle state for a dry run in which `other` is added to the node (upstream's `PreFilterExtensions.AddPod`).
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

    /// Updates the cycle state for a dry run in which `other` is removed from the node (upstream's
    /// `PreFilterExtensions.RemovePod`).
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
    /// `Err` rejects the node.
    fn filter(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<(), Rejection>;

    /// The same for many nodes, without the reasons, which are needed only if the pod fits on no node: rejects the nodes that
    /// [`Filter::filter`] rejects. A plugin without an incremental form, which has to look at every node for every pod, may implement it: to
    /// read the cycle state only once, or because its reasons take time to make.
    ///
    /// # Errors
    ///
    /// When the plugin fails for a node.
    fn filter_nodes(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &mut NodesToFilter<'_>,
    ) -> Result<(), Failure> {
        nodes.try_retain(|node| match self.filter(cx, pod, node) {
            Ok(()) => Ok(true),
            Err(Rejection::Failed(failure)) => Err(failure),
            Err(_) => Ok(false),
        })
    }
}

/// Runs a profile's Filter plugins on a node whose pods a dry run changed (part of upstream's `PluginsRunner`). The engine
/// implements it; plugins whose Filter is skipped in this cycle are not called.
pub trait FilterRunner {
    /// Runs the Filter plugins twice: with and without the pods of equal or higher priority that are nominated to the node. A row
    /// without a node is rejected.
    fn run_filters_with_nominated_pods(
        &self,
        cx: DryRunCx<'_>,
        pod: &PodInfo,
        row: NodeRow,
    ) -> Result<(), Rejection>;

    /// The victims that earlier searches found for preemptors like this one, if the Filter plugins look at one node only.
    fn victim_cache(&self) -> Option<&RefCell<VictimCache>> {
        None
    }

    /// Calls [`PreFilter::add_pod`] of every PreFilter plugin.
    fn add_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure>;

    /// Calls [`PreFilter::remove_pod`] of every PreFilter plugin.
    fn remove_pod(
        &self,
        cycle: &mut CycleState,
        world: &World,
        pod: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Failure>;
}

/// Why a pod fits on no node: the input of PostFilter.
#[derive(Clone, Copy)]
pub struct FitError<'a> {
    /// The status code of every node, by row (upstream's `NodeToStatus`). A node that is not in the PreFilter result has
    /// `UnschedulableAndUnresolvable`; when PreFilter rejected the pod, every node has that rejection's code.
    pub node_codes: &'a [(NodeRow, Code)],
    /// The rows with status code `Unschedulable`: [`crate::preemption::nodes_where_preemption_might_help`].
    pub rows_where_preemption_might_help: &'a [NodeRow],
    /// Runs Filter plugins in dry runs.
    pub filter_runner: &'a dyn FilterRunner,
    /// Whether an extender supports preemption and is interested in the pod.
    pub has_preempting_extenders: bool,
}

/// The result of PostFilter. The default changes no nomination, evicts no pod, and ends the PostFilter chain.
#[derive(Clone, Debug, Default)]
pub struct PostFilterResult {
    /// The node to nominate the pod to; `Some("")` clears the nomination, `None` leaves it unchanged.
    pub nominated_node: Option<Str>,
    /// The victims, the most important first, usually pods of that node. Victims that are already terminating are not evicted; of the others
    /// the last one is evicted after all others ([`crate::preemption::eviction`]).
    pub victims: Vec<Arc<PodInfo>>,
    /// Lower-priority pods whose nomination to that node is cleared, because they may no longer fit; done before the evictions.
    pub cleared_nominations: Vec<Arc<PodInfo>>,
    /// Why preemption is not possible. `Unschedulable`: the next PostFilter plugin is called; `Failed`: the attempt fails.
    pub rejection: Option<Rejection>,
}

impl PostFilterResult {
    /// The victims that must be evicted.
    pub fn victims_to_evict(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.victims.iter().filter(|victim| !victim.terminating)
    }
}

/// Called when no node is feasible, usually to preempt other pods. Resumable.
pub trait PostFilter: Send + Sync {
    /// Called first with [`PluginStepInput::Start`], then with the result of the previous step. `rng` is the attempt's random number
    /// generator.
    fn post_filter(
        &self,
        cx: PostFilterCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
        rng: &mut Rng,
        input: PluginStepInput<'_>,
    ) -> PluginStep<PostFilterResult>;

    /// All preemptions that are possible for the pod, without carrying any out; shown by `explain`. `None` for a plugin that does
    /// not preempt.
    fn preview(
        &self,
        cx: DryRunCx<'_>,
        pod: &Arc<PodInfo>,
        fit_error: FitError<'_>,
    ) -> Option<PreemptionPreview> {
        let _ = (cx, pod, fit_error);
        None
    }

    /// Whether it reads the cycle state of a pod for which [`FitError::rows_where_preemption_might_help`] has these rows. If no PostFilter
    /// plugin does, PreFilter need not run again for a pod with whose keys an earlier one was rejected, and the cycle state is empty.
    fn reads_cycle_state(&self, rows_where_preemption_might_help: &[NodeRow]) -> bool {
        let _ = rows_where_preemption_might_help;
        true
    }

    /// Whether its calls are counted in `scheduler_preemption_attempts_total`.
    fn counts_as_preemption(&self) -> bool {
        false
    }
}

/// Called once per scheduling cycle before Score, with the feasible nodes.
pub trait PreScore: Send + Sync {
    /// Computes state for Score, or skips it.
    fn pre_score(
        &self,
        cx: SerialCx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Result<PreScoreResult, Failure>;
}

/// Scores feasible nodes.
pub trait Score: Send + Sync {
    /// The node's score: any number if [`Score::normalize`] maps it to `0..=100`, else a number in that range.
    fn score(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Result<i64, Failure>;

    /// Maps the scores of all feasible nodes to `0..=100` (upstream's `NormalizeScore`).
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

/// Reserves resources that the plugin manages for a pod on the selected node.
pub trait Reserve: Send + Sync {
    /// `Err` fails the attempt; [`Reserve::unreserve`] is then called. By default there is nothing to reserve.
    fn reserve(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        let _ = (cx, pod, node);
        Ok(())
    }

    /// Reverts the reservation. Called for every Reserve plugin, also for those whose `reserve` was not called; must be
    /// idempotent.
    fn unreserve(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str);
}

/// Approves, delays or rejects a pod before its binding cycle.
pub trait Permit: Send + Sync {
    /// Allows the pod, makes it wait, or rejects it.
    fn permit(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) -> Result<PermitResult, Rejection>;
}

/// The result of [`PreBind::pre_flight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreBindPreFlight {
    /// PreBind has nothing to do and is not called.
    Skip,
    /// PreBind is called.
    Work {
        /// Whether it may run in parallel with other PreBind plugins.
        parallel: bool,
    },
}

/// Does work that must be complete before a pod is bound. Resumable.
pub trait PreBind: Send + Sync {
    /// Whether PreBind has work to do for the pod; called before the pod waits at Permit (upstream's `PreBindPreFlight`).
    fn pre_flight(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        node: &str,
    ) -> Result<PreBindPreFlight, Rejection>;

    /// Called first with [`PluginStepInput::Start`], then with the result of the previous step.
    fn pre_bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<()>;
}

/// The result of Bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindResult {
    /// The pod is bound.
    Done,
    /// The plugin does not bind this pod: the next Bind plugin is called.
    Skip,
}

/// Binds a pod to its node. Resumable.
pub trait Bind: Send + Sync {
    /// Called first with [`PluginStepInput::Start`], then with the result of the previous step.
    fn bind(
        &self,
        cx: SerialCx<'_>,
        pod: &Arc<PodInfo>,
        node: &str,
        input: PluginStepInput<'_>,
    ) -> PluginStep<BindResult>;
}

/// Called after a pod was bound.
pub trait PostBind: Send + Sync {
    /// Informational; its result does not matter.
    fn post_bind(&self, cx: SerialCx<'_>, pod: &Arc<PodInfo>, node: &str);
}

/// Handles changes of the objects that the plugin watches: called after the world is updated, before pods are requeued.
pub trait ObjectEventHandler: Send + Sync {
    /// Also called for the initial list, and on replicas that are not the leader. The cycle state is empty and discarded
    /// afterwards. After a panic of the plugin, which resets its state, all objects are reported again, as added.
    fn on_object_change(&self, cx: SerialCx<'_>, change: &ObjectChange);
}

/// A change of a pod: as the API server had it, and as it has it now.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// Before the change; `None` when it was added.
    pub old: Option<Arc<PodInfo>>,
    /// After the change; `None` when it was deleted or has finished (`Succeeded`, `Failed`).
    pub new: Option<Arc<PodInfo>>,
}

/// Keeps a plugin's state up to date with the pods: called after the world is updated, before pods are requeued.
///
/// Reports all pods that are assigned, by any scheduler and to any node, known or not, and the pending pods of this scheduler's
/// profiles. A binding, also one of this scheduler, is an update from a pod without to a pod with a node. Assuming a pod and
/// forgetting it are no events: Reserve and Unreserve are called for them. A plugin that counts pods in Reserve therefore counts by
/// uid, so that the binding does not count again.
pub trait PodEventHandler: Send + Sync {
    /// Also called for the initial list, for updates that change nothing that plugins see, and on replicas that are not the leader.
    /// The cycle state is empty and discarded afterwards. After a panic of the plugin, which resets its state, all pods are
    /// reported again, as added.
    fn on_pod_change(&self, cx: SerialCx<'_>, change: &PodChange);
}

/// A change of a node.
#[derive(Clone, Debug)]
pub struct NodeChange {
    /// Before the change; `None` when it was added.
    pub old: Option<Arc<Node>>,
    /// After the change; `None` when it was deleted.
    pub new: Option<Arc<Node>>,
}

/// Keeps a plugin's state up to date with the nodes: called after the world is updated, before pods are requeued.
pub trait NodeEventHandler: Send + Sync {
    /// Also called for the initial list, and on replicas that are not the leader; not for an update that changes nothing. The pods
    /// of a deleted node are not deleted: they are no longer in the world until their node is added again. The cycle state is
    /// empty and discarded afterwards. After a panic of the plugin, which resets its state, all nodes are reported again, as added.
    fn on_node_change(&self, cx: SerialCx<'_>, change: &NodeChange);
}

/// Adds details to the output of `explain`, beside the plugin's filter results and scores. Called only for `explain`.
pub trait Explain: Send + Sync {
    /// Details about the pod, such as the group that it belongs to. Called after PreFilter, Filter and PreScore.
    fn pod_details(&self, cx: Cx<'_>, pod: &PodInfo) -> Vec<Detail> {
        let _ = (cx, pod);
        Vec::new()
    }

    /// Details about a node, such as the devices that are free there. Called for every node, also those that another plugin rejected;
    /// what Filter found is in the cycle state ([`CycleState::get_for_node`]) if Filter was called.
    fn node_details(&self, cx: Cx<'_>, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<Detail> {
        let _ = (cx, pod, node);
        Vec::new()
    }

    /// The details about all nodes, in their order. A plugin whose details name other pods implements this instead of
    /// [`Self::node_details`], so that it looks at every pod only once.
    fn details_of_nodes(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Vec<Vec<Detail>> {
        nodes.iter().map(|node| self.node_details(cx, pod, *node)).collect()
    }
}

/// A short fact for the output of `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The key in JSON, such as `freeDevices`; unique among the details of one plugin about one thing.
    pub name: &'static str,
    /// The value.
    pub value: DetailValue,
}

impl Detail {
    /// A detail, for example `Detail::new("freeDevices", 3)`.
    pub fn new(name: &'static str, value: impl Into<DetailValue>) -> Detail {
        Detail { name, value: value.into() }
    }
}

/// The value of a detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DetailValue {
    /// Yes or no.
    Bool(bool),
    /// A number.
    Integer(i64),
    /// A name or a short text.
    Text(String),
    /// Several of them.
    List(Vec<String>),
}

impl fmt::Display for DetailValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DetailValue::Bool(value) => value.fmt(f),
            DetailValue::Integer(value) => value.fmt(f),
            DetailValue::Text(value) => f.write_str(value),
            DetailValue::List(values) => write!(f, "[{}]", values.join(" ")),
        }
    }
}

impl From<bool> for DetailValue {
    fn from(value: bool) -> Self {
        DetailValue::Bool(value)
    }
}

impl From<i64> for DetailValue {
    fn from(value: i64) -> Self {
        DetailValue::Integer(value)
    }
}

impl From<&str> for DetailValue {
    fn from(value: &str) -> Self {
        DetailValue::Text(value.to_owned())
    }
}

impl From<String> for DetailValue {
    fn from(value: String) -> Self {
        DetailValue::Text(value)
    }
}

impl From<Vec<String>> for DetailValue {
    fn from(values: Vec<String>) -> Self {
        DetailValue::List(values)
    }
}

/// The pod has no signature: scheduling results cannot be reused for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsignablePod;

/// The plugin's part of the pod signature (KEP-5598): the plugin gives equal results for pods with equal signatures.
pub trait Sign: Send + Sync {
    /// Fragments with upstream's keys, such as `v1.Pod.Spec.Tolerations`.
    fn sign(&self, pod: &PodInfo) -> Result<Vec<SignFragment>, UnsignablePod>;
}

/// One part of a pod signature.
#[derive(Clone, Debug, PartialEq)]
pub struct SignFragment {
    /// Upstream's name of the compared field.
    pub key: &'static str,
    /// The field's value for this pod.
    pub value: serde_json::Value,
}
