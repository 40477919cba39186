//! The incremental form of Filter and Score: one evaluation for all pods of a template, updated as the world changes.
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

use smallvec::SmallVec;

use crate::MAX_NODE_SCORE;
use crate::node_table::{NodeRow, NodeTable};
use crate::pod_info::PodInfo;
use crate::result::Rejection;
use crate::world::World;

/// The class key of a row: rows with equal keys get the same class result.
pub type ClassKey = SmallVec<[i64; 8]>;

/// The incremental form of a plugin's Filter and Score.
pub trait Incremental: Send + Sync {
    /// Prepares the evaluation of all pods that share this pod's template. Counters acquired here are released in
    /// [`PluginEvaluator::release`].
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> PrepareResult;
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

/// What a plugin's results depend on; determines when the engine computes them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultDependencies {
    /// [`PluginEvaluator::filter_row`] may reject, depending on this.
    pub filter: Option<RowDependency>,
    /// [`PluginEvaluator::score_row`] may differ from 0, depending on this.
    pub score: Option<RowDependency>,
    /// [`PluginEvaluator::class_key`] depends on this; `None` when the key is empty.
    pub class: Option<RowDependency>,
    /// Row-local results depend on the set of nodes or on their images.
    pub node_set: bool,
}

/// What a row-local result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDependency {
    /// The node object only.
    Node,
    /// The node object and the pods on it.
    Pods,
}

/// A set of rows, one byte each: 1 is a member.
pub type RowMask = [u8];

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
    /// By class: whether it passed the class filters so far.
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
        (0..self.len()).filter(|class| self.feasible[*class] && self.rows[*class] > 0)
    }
}

/// A score is not in `0..=100`. The engine then evaluates per node, which reports the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreOutOfRange;

/// Returns the score if it is in `0..=100`.
pub fn check_score_range(score: i64) -> Result<i64, ScoreOutOfRange> {
    if (0..=MAX_NODE_SCORE).contains(&score) { Ok(score) } else { Err(ScoreOutOfRange) }
}

/// A plugin's Filter and Score for one pod template.
pub trait PluginEvaluator: Send + Sync {
    /// What the results depend on. Constant for one evaluator.
    fn dependencies(&self) -> ResultDependencies;

    /// Whether PreFilter returns a subset of the nodes for these pods. `percentageOfNodesToScore` then applies to that subset.
    fn narrows_nodes(&self) -> bool {
        false
    }

    /// Whether the node passes the row-local filter. Called only for rows that hold a node.
    fn filter_row(&self, nodes: &NodeTable, row: NodeRow) -> bool {
        let _ = (nodes, row);
        true
    }

    /// [`PluginEvaluator::filter_row`] for all members of `set`: removes those that do not pass.
    fn filter_rows(&self, nodes: &NodeTable, set: &mut RowMask) {
        for (at, member) in set.iter_mut().enumerate() {
            if *member != 0 && !self.filter_row(nodes, NodeRow(at as u32)) {
                *member = 0;
            }
        }
    }

    /// Row-local score, final, in `0..=100`.
    fn score_row(&self, nodes: &NodeTable, row: NodeRow) -> i64 {
        let _ = (nodes, row);
        0
    }

    /// Adds `weight` times [`PluginEvaluator::score_row`] to `out` for the members of `set`. Other entries of `out` may be
    /// overwritten with anything.
    ///
    /// # Errors
    ///
    /// When a score is out of range; the content of `out` is then meaningless.
    fn score_rows(
        &self,
        nodes: &NodeTable,
        set: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        for (at, sum) in out.iter_mut().enumerate() {
            if set[at] != 0 {
                *sum += weight * check_score_range(self.score_row(nodes, NodeRow(at as u32)))?;
            }
        }
        Ok(())
    }

    /// Length of the class key; constant until [`PluginEvaluator::is_stale`].
    fn class_key_len(&self) -> usize {
        0
    }

    /// Appends the class key of a row that passed every row-local filter.
    fn class_key(&self, world: &World, row: NodeRow, out: &mut ClassKey) {
        let _ = (world, row, out);
    }

    /// Whether the nodes of a class pass the filter.
    fn filter_class(&self, world: &World, class_key: &[i64]) -> bool {
        let _ = (world, class_key);
        true
    }

    /// Whether [`PluginEvaluator::score_classes`] is called.
    fn has_class_scores(&self) -> bool {
        false
    }

    /// Writes the normalised score (`0..=100`) of every feasible class to `out`.
    fn score_classes(&self, world: &World, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let _ = (world, classes, out);
    }

    /// Whether the meaning of the class keys changed, so that the evaluator must be built again.
    fn is_stale(&self, world: &World) -> bool {
        let _ = world;
        false
    }

    /// Releases the counters that the evaluator acquired.
    fn release(&mut self, world: &mut World) {
        let _ = world;
    }
}
