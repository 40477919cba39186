//! The incremental form of Filter and Score: one evaluation for all pods with equal keys, updated as the world changes.
//!
//! A plugin that implements only [`crate::Filter`] and [`crate::Score`] is correct but slow, because it is evaluated per node.
//! One that also implements [`Incremental`] splits its result into two parts:
//!
//! - a **row-local** part: a filter result and a final score (`0..=100`) that depend on one node and its pods only;
//! - a **class** part: a class key of a few numbers per row, such as "zone 2" or "1 untolerated taint". Rows with equal keys form
//!   one node class. Filter results and scores that depend on sums over the cluster or on the other feasible nodes are computed
//!   once per class and decision, never once per row.
//!
//! Both forms must give exactly the same results; tests compare them.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use loadmaster_api::{SharedPodSpec, Str};
use smallvec::SmallVec;

use crate::MAX_NODE_SCORE;
use crate::label_columns::LabelKeyId;
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::result::Rejection;
use crate::state::PluginStates;
use crate::topology_counter::{TopologyCounterId, TopologyCounterSpec};
use crate::world::World;

pub use crate::context::{EvaluatorCx, StalenessVersion};

/// The class key of a row: rows with equal keys get the same class result.
pub type ClassKey = SmallVec<[i64; 8]>;

/// The incremental form of a plugin's Filter and Score.
///
/// Pods of one controller are equal to the scheduler, but not equal objects: a StatefulSet gives each pod a label, a name and claims
/// of its own. Results are therefore shared by pods with equal keys. [`Incremental::prepare`] gets only the key, so it cannot read
/// anything of the pod that the key does not contain.
pub trait Incremental: Send + Sync {
    /// All that the plugin's results depend on in an incoming pod, except what [`PluginEvaluator::accepts_pod`] reads.
    type Key: fmt::Debug + Eq + Hash + Send + Sync + 'static;

    /// The pod's key, or `None` if the plugin's Filter and Score must be called per node for this pod. Objects of the world that
    /// the result depends on, such as the services that select the pod and the objects of
    /// [`crate::ExtensionPoints::watch_in_keys`], must be resolved here, because keys are computed again when such an object changes,
    /// while prepared evaluators stay. A plugin whose keys depend on its state says when it changes:
    /// [`crate::SerialCx::invalidate_keys`]. The key of a nominated pod may depend on [`World::nominated_node`].
    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Self::Key>;

    /// Whether the keys of pods with this [spec](crate::template::SharedSpec) depend on nothing else: not on labels or namespaces, nor on
    /// other objects. The key is then computed once for all of them.
    fn key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        let _ = spec;
        false
    }

    /// The keys of the labels that [`Incremental::key`] reads of pods with the [shared template](crate::template::SharedTemplate) of this one:
    /// pods that differ in no other than labels with other keys have equal keys, until [`World::key_version`] changes. The key is then
    /// computed once for all of them, such as the pods of a StatefulSet. `None` if it may read any label.
    fn label_keys(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Vec<Str>> {
        let _ = cx;
        self.key_is_of_spec(&pod.template.spec).then(Vec::new)
    }

    /// Whether [`Incremental::key`] reads requests or limits of pods or containers. If not, it is computed once for all pods that differ in
    /// nothing else, and in no label that it reads, until [`World::key_version`] changes.
    fn key_reads_resources(&self) -> bool {
        true
    }

    /// Prepares the evaluation of all pods with this key.
    fn prepare(&self, cx: &mut PrepareCx<'_>, key: &Self::Key) -> PrepareResult;
}

/// The result of [`Incremental::prepare`].
pub enum PrepareResult {
    /// The plugin neither filters nor scores these pods.
    Skip,
    /// The plugin rejects these pods on all nodes.
    Rejected(Rejection),
    /// The plugin filters and scores these pods incrementally.
    Evaluator(Box<dyn PluginEvaluator>),
    /// The plugin has no incremental form for these pods: its Filter and Score are called per node.
    PerNode,
}

impl PrepareResult {
    /// An evaluator without class parts: `evaluate` is the final score of a row (`0..=100`; without meaning if the plugin does not score),
    /// or `None` if the row is filtered out. Both depend on `dependency`.
    pub fn row_local(
        dependency: RowDependency,
        evaluate: impl Fn(EvaluatorCx<'_>, NodeRow) -> Option<i64> + Send + Sync + 'static,
    ) -> PrepareResult {
        PrepareResult::Evaluator(Box::new(RowLocalEvaluator { dependency, evaluate }))
    }
}

/// The evaluator of [`PrepareResult::row_local`].
struct RowLocalEvaluator<F> {
    dependency: RowDependency,
    evaluate: F,
}

impl<F> PluginEvaluator for RowLocalEvaluator<F>
where
    F: Fn(EvaluatorCx<'_>, NodeRow) -> Option<i64> + Send + Sync,
{
    fn dependencies(&self) -> ResultDependencies {
        let (filter, score) = (Some(self.dependency), Some(self.dependency));
        ResultDependencies { filter, score, ..ResultDependencies::default() }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        (self.evaluate)(cx, row).is_some()
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        (self.evaluate)(cx, row).unwrap_or(0)
    }
}

/// When there are this many label columns, [`PrepareCx::try_label_column`] creates none.
const LABEL_COLUMNS_MAX: usize = 32;

/// What [`Incremental::prepare`] may use: a read view of the world, and counters, which are released when no evaluator of the key is
/// cached any more.
pub struct PrepareCx<'a> {
    world: &'a mut World,
    states: &'a PluginStates,
    counters: Vec<TopologyCounterId>,
}

impl<'a> PrepareCx<'a> {
    /// A context in which no counter was acquired yet.
    pub fn new(world: &'a mut World, states: &'a PluginStates) -> Self {
        PrepareCx { world, states, counters: Vec::new() }
    }

    /// The world.
    pub fn world(&self) -> &World {
        self.world
    }

    /// The context in which the evaluator's methods will be called.
    pub fn cx(&self) -> EvaluatorCx<'_> {
        EvaluatorCx { world: self.world, states: self.states }
    }

    /// The counter with this spec; equal specs share one.
    pub fn topology_counter<C: TopologyCounterSpec + Hash + Eq>(
        &mut self,
        spec: C,
    ) -> TopologyCounterId {
        let id = self.world.acquire_topology_counter(spec);
        self.counters.push(id);
        id
    }

    /// The id of a label key's column; the column is created if it does not exist.
    pub fn label_column(&mut self, key: &Str) -> LabelKeyId {
        self.world.ensure_label_column(key)
    }

    /// The same, for labels of which there may be many, such as those that objects name: `None` if the column does not exist, and there
    /// are many columns already. They are never removed.
    pub fn try_label_column(&mut self, key: &Str) -> Option<LabelKeyId> {
        let columns = self.world.nodes().labels();
        let (known, is_full) = (columns.id(key), columns.iter().len() >= LABEL_COLUMNS_MAX);
        known.or_else(|| (!is_full).then(|| self.label_column(key)))
    }

    /// The counters that were acquired. The caller releases them with [`World::release_topology_counter`].
    pub fn into_counters(self) -> Vec<TopologyCounterId> {
        self.counters
    }
}

/// The key of a pod for one plugin: any [`Incremental::Key`], compared by value.
#[derive(Clone)]
pub struct EvaluatorKey(Arc<dyn KeyValue>);

trait KeyValue: Any + fmt::Debug + Send + Sync {
    fn is_equal(&self, other: &dyn KeyValue) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
}

impl<T: fmt::Debug + Eq + Hash + Send + Sync + 'static> KeyValue for T {
    fn is_equal(&self, other: &dyn KeyValue) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}

impl EvaluatorKey {
    /// A key with this value.
    pub fn new<T: fmt::Debug + Eq + Hash + Send + Sync + 'static>(value: T) -> Self {
        EvaluatorKey(Arc::new(value))
    }

    fn value<T: 'static>(&self) -> Option<&T> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// Whether both are clones of one key; equal keys need not be.
    pub fn is_clone_of(&self, other: &EvaluatorKey) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for EvaluatorKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equal(&*other.0)
    }
}

impl Eq for EvaluatorKey {}

impl Hash for EvaluatorKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash_into(state);
    }
}

impl fmt::Debug for EvaluatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// [`Incremental`] with any key. Implemented for every plugin that implements [`Incremental`].
pub trait AnyIncremental: Send + Sync {
    /// [`Incremental::key`]; a clone of `last` if it is equal to that.
    fn any_key(
        &self,
        cx: EvaluatorCx<'_>,
        pod: &PodInfo,
        last: Option<&EvaluatorKey>,
    ) -> Option<EvaluatorKey>;

    /// [`Incremental::key_is_of_spec`].
    fn any_key_is_of_spec(&self, spec: &SharedPodSpec) -> bool;

    /// [`Incremental::label_keys`].
    fn any_label_keys(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Vec<Str>>;

    /// [`Incremental::key_reads_resources`].
    fn any_key_reads_resources(&self) -> bool;

    /// [`Incremental::prepare`]; [`PrepareResult::PerNode`] for the key of another plugin.
    fn prepare_any(&self, cx: &mut PrepareCx<'_>, key: &EvaluatorKey) -> PrepareResult;
}

impl<T: Incremental> AnyIncremental for T {
    fn any_key(
        &self,
        cx: EvaluatorCx<'_>,
        pod: &PodInfo,
        last: Option<&EvaluatorKey>,
    ) -> Option<EvaluatorKey> {
        let key = self.key(cx, pod)?;
        let equal = last.filter(|last| last.value() == Some(&key));
        Some(equal.cloned().unwrap_or_else(|| EvaluatorKey::new(key)))
    }

    fn any_key_is_of_spec(&self, spec: &SharedPodSpec) -> bool {
        self.key_is_of_spec(spec)
    }

    fn any_label_keys(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Vec<Str>> {
        self.label_keys(cx, pod)
    }

    fn any_key_reads_resources(&self) -> bool {
        self.key_reads_resources()
    }

    fn prepare_any(&self, cx: &mut PrepareCx<'_>, key: &EvaluatorKey) -> PrepareResult {
        match key.value() {
            Some(key) => self.prepare(cx, key),
            None => PrepareResult::PerNode,
        }
    }
}

/// What a plugin's results depend on; determines when the engine computes them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultDependencies {
    /// [`PluginEvaluator::filter_row`] may reject, depending on this.
    pub filter: Option<RowDependency>,
    /// [`PluginEvaluator::score_row`] may differ from 0, depending on this.
    pub score: Option<RowDependency>,
    /// [`PluginEvaluator::class_key`] depends on this; `None` when the key is empty.
    pub class: Option<RowDependency>,
    /// Of the pods of a row, the class key depends only on sums of counters that were acquired with [`PrepareCx::topology_counter`], in
    /// domains that the row is in. It is then not computed again when a pod that adds to none of them is placed there.
    pub class_reads_counters_only: bool,
    /// Row-local results depend on the set of nodes or on their images.
    pub node_set: bool,
    /// [`PluginEvaluator::accepts_pod`] may reject.
    pub pod: bool,
}

/// What a row-local result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDependency {
    /// The node object only.
    Node,
    /// The node object, the pods on it, and the pods that are nominated to it.
    Pods,
}

/// What decides whether Filter rejects a node, and for which reasons, also with other pods on it in the dry runs of PostFilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterScope {
    /// Nothing: no node is rejected.
    Nothing,
    /// The key, the node object, the pods on the node, and the pods that are nominated to it. What was found for a node then holds until
    /// one of these changes, for every pod with the key.
    Node,
    /// Perhaps other nodes and their pods, or other objects.
    Cluster,
}

/// A set of consecutive rows, one byte each: 1 is a member.
pub type RowMask = [u8];

/// Removes the rows that are not to be kept from a set that begins with the row `first`.
pub fn retain_rows(first: NodeRow, set: &mut RowMask, keep: impl Fn(NodeRow) -> bool) {
    for (row, member) in (first.0..).map(NodeRow).zip(set) {
        if *member != 0 && !keep(row) {
            *member = 0;
        }
    }
}

/// The node classes of one decision, as one plugin sees them.
pub struct NodeClasses<'a> {
    /// Class keys of all plugins, class after class.
    pub keys: &'a [i64],
    /// Length of a class key over all plugins.
    pub stride: usize,
    /// Where this plugin's part of a class key begins.
    pub offset: usize,
    /// Length of this plugin's part.
    pub key_len: usize,
    /// Number of rows per class that passed every row-local filter.
    pub rows: &'a [u32],
    /// By class: whether it has rows, and passed the class filters so far.
    pub feasible: &'a [bool],
}

impl NodeClasses<'_> {
    /// Number of classes.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no classes.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// This plugin's part of a class key.
    pub fn key(&self, class: usize) -> &[i64] {
        let start = class * self.stride + self.offset;
        &self.keys[start..start + self.key_len]
    }

    /// Feasible classes that have rows.
    pub fn feasible(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let classes = self.feasible.iter().zip(self.rows).enumerate();
        classes.filter(|(_, (feasible, rows))| **feasible && **rows > 0).map(|(class, _)| class)
    }
}

/// A score is not in `0..=100`. The engine then evaluates per node, which reports the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreOutOfRange;

/// Returns the score if it is in `0..=100`.
pub fn check_score_range(score: i64) -> Result<i64, ScoreOutOfRange> {
    if (0..=MAX_NODE_SCORE).contains(&score) { Ok(score) } else { Err(ScoreOutOfRange) }
}

/// A plugin's Filter and Score for pods with equal keys.
pub trait PluginEvaluator: Send + Sync {
    /// What the results depend on. Constant for one evaluator.
    fn dependencies(&self) -> ResultDependencies;

    /// Whether any node may pass for this pod, which has the evaluator's key: called in every decision, before nodes are looked at. It is
    /// the place for what is the same on all nodes and may change with every pod, such as a quota. Pods that differ only in what is read
    /// here, such as their namespace, have equal keys and share what was computed of the nodes. Of the pod it may read what pods of one
    /// [template](crate::template) have in common, and its nomination.
    fn accepts_pod(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> bool {
        let _ = (cx, pod);
        true
    }

    /// Whether PreFilter returns a subset of the nodes for these pods. `percentageOfNodesToScore` then applies to that subset.
    fn narrows_nodes(&self) -> bool {
        false
    }

    /// What decides whether Filter rejects a node. Constant for one evaluator.
    fn filter_scope(&self) -> FilterScope {
        FilterScope::Cluster
    }

    /// Whether the node passes the row-local filter. Called only for rows that hold a node.
    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let _ = (cx, row);
        true
    }

    /// What Filter finds for the node, with the reasons; `None` if only Filter can say. Asked after a change of the node's pods, in place of
    /// PreFilter and Filter, if the scope is [`FilterScope::Node`], only the row-local filter depends on pods, and no pod is nominated to the
    /// node. Called only for rows that hold a node.
    fn filter_result(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> Option<Result<(), Rejection>> {
        let _ = (cx, row);
        None
    }

    /// [`PluginEvaluator::filter_row`] for all members of `set`, which begins with the row `first`: removes those that do not pass.
    fn filter_rows(&self, cx: EvaluatorCx<'_>, first: NodeRow, set: &mut RowMask) {
        retain_rows(first, set, |row| self.filter_row(cx, row));
    }

    /// The same for a list of rows that hold nodes.
    fn filter_listed_rows(&self, cx: EvaluatorCx<'_>, rows: &mut Vec<NodeRow>) {
        rows.retain(|row| self.filter_row(cx, *row));
    }

    /// Row-local score, final, in `0..=100`.
    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let _ = (cx, row);
        0
    }

    /// Adds `weight` times [`PluginEvaluator::score_row`] to `out` for the members of `set`; both begin with the row `first`. Other entries
    /// of `out` may be overwritten with anything.
    ///
    /// # Errors
    ///
    /// When a score is out of range; the content of `out` is then meaningless.
    fn score_rows(
        &self,
        cx: EvaluatorCx<'_>,
        first: NodeRow,
        set: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        for ((row, sum), member) in (first.0..).map(NodeRow).zip(out).zip(set) {
            if *member != 0 {
                *sum += weight * check_score_range(self.score_row(cx, row))?;
            }
        }
        Ok(())
    }

    /// The same for the listed rows: `out` has the sums of the first row, the second row and so on.
    ///
    /// # Errors
    ///
    /// When a score is out of range; the content of `out` is then meaningless.
    fn score_listed_rows(
        &self,
        cx: EvaluatorCx<'_>,
        rows: &[NodeRow],
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        for (row, sum) in rows.iter().zip(out) {
            *sum += weight * check_score_range(self.score_row(cx, *row))?;
        }
        Ok(())
    }

    /// Length of the class key; constant until [`PluginEvaluator::is_stale`].
    fn class_key_len(&self) -> usize {
        0
    }

    /// Appends the class key of a row that passed every row-local filter.
    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        let _ = (cx, row, out);
    }

    /// What [`PluginEvaluator::uncounted_class_key`] and the row-local results depend on, if they depend on no counter. Evaluators of
    /// one plugin with equal values of this have equal such results for every row, so that the engine keeps one index of rows for all of
    /// them, and for each only the rows whose class key differs from the uncounted one. `None` if class keys depend on more of a row's
    /// pods than on counters, or if most rows differ.
    fn uncounted(&self) -> Option<EvaluatorKey> {
        None
    }

    /// Appends the class key that a row has while the evaluator's counters count no pod on it. Called only if
    /// [`PluginEvaluator::uncounted`] is not `None`.
    fn uncounted_class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        self.class_key(cx, row, out);
    }

    /// Whether the nodes of a class pass the filter.
    fn filter_class(&self, cx: EvaluatorCx<'_>, class_key: &[i64]) -> bool {
        let _ = (cx, class_key);
        true
    }

    /// Whether [`PluginEvaluator::score_classes`] is called.
    fn has_class_scores(&self) -> bool {
        false
    }

    /// What [`PluginEvaluator::score_classes`] gives every feasible class, if that is the same as long as the evaluator is not stale. Then it
    /// is not called for decisions.
    fn constant_class_score(&self) -> Option<i64> {
        None
    }

    /// Writes the normalised score (`0..=100`) of every feasible class to `out`, which has zeros.
    fn score_classes(&self, cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let _ = (cx, classes, out);
    }

    /// Whether the evaluator must be prepared again: the meaning of the class keys changed, or a state on which row-local results depend.
    /// It depends on nodes without their pods and on states alone, and is called in the first decision after one of them changed.
    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let _ = cx;
        false
    }
}
