//! The result of filtering and scoring all nodes for one pod.

pub(crate) mod changed_rejections;
pub(crate) mod class_table;
pub(crate) mod evaluator_part;
pub mod filter_runner;
pub(crate) mod highest_totals;
pub mod incremental;
pub(crate) mod node_rows;
pub mod per_node;
pub(crate) mod plugin_loops;
pub(crate) mod row_blocks;
pub(crate) mod row_classes;
pub(crate) mod row_results;
pub mod score_buckets;

use std::collections::BTreeMap;

use loadmaster_extender::NodeFailure;
use loadmaster_framework::{Code, Failure, NodeRow, PodInfo, Rejection, World};

/// The plugin that rejected a pod or node, and its rejection. `plugin` is `None` if several PreFilter results together left no
/// node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginRejection {
    pub plugin: Option<&'static str>,
    pub rejection: Rejection,
}

impl From<Failure> for PluginRejection {
    /// A failure that is not attributed to a plugin.
    fn from(failure: Failure) -> Self {
        PluginRejection { plugin: None, rejection: failure.into() }
    }
}

/// The result of filtering one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterResult {
    Feasible,
    /// A PreFilter plugin or an extender excluded the node.
    Excluded,
    Rejected(PluginRejection),
}

/// The filter result of one node and, if it is feasible, its scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvaluation {
    pub row: NodeRow,
    pub filter_result: FilterResult,
    /// Weighted, in the order of [`Evaluation::score_plugins`].
    pub scores: Vec<i64>,
    pub total: Option<i64>,
}

/// The filter results and scores of all nodes for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Set when PreFilter rejected the pod on all nodes.
    pub pre_filter_rejection: Option<PluginRejection>,
    /// Plugins whose PreFilter result excluded nodes, sorted.
    pub excluded_by: Vec<&'static str>,
    /// One entry per node, by row; empty when PreFilter rejected the pod.
    pub nodes: Vec<NodeEvaluation>,
    /// Plugins that scored, in order.
    pub score_plugins: Vec<&'static str>,
    /// An error that ends the attempt.
    pub failure: Option<String>,
    /// The Filter rejection of the pod's nominated node, if PreFilter excluded that node.
    pub nominated_node_rejection: Option<PluginRejection>,
    /// The plugin that rejected the pod's nominated node, whether PreFilter excluded it or not.
    pub nominated_rejected_by: Option<&'static str>,
    /// Further rejecting plugins, not listed at any node: extenders, and plugins whose filter result extenders replaced.
    pub other_rejecting_plugins: Vec<&'static str>,
    /// Rejections by extenders of nodes that do not exist.
    pub unknown_node_rejections: Vec<PluginRejection>,
}

/// The combined result of all extenders' filter calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtenderResults {
    /// Nodes that extenders removed.
    pub excluded: Vec<NodeRow>,
    /// Failures by node name, also of nodes that were not sent to the extenders.
    pub failures: BTreeMap<String, NodeFailure>,
}

impl ExtenderResults {
    /// Whether extenders changed nothing.
    pub fn is_empty(&self) -> bool {
        self.excluded.is_empty() && self.failures.is_empty()
    }

    /// The filter result of a node that replaces the plugins' result.
    fn filter_result(&self, row: NodeRow, name: &str) -> Option<FilterResult> {
        match self.failures.get(name) {
            Some(failure) => Some(FilterResult::Rejected(extender_rejection(failure))),
            None => self.excluded.contains(&row).then_some(FilterResult::Excluded),
        }
    }
}

fn extender_rejection(failure: &NodeFailure) -> PluginRejection {
    let text = failure.message.clone();
    let rejection = match failure.is_unresolvable {
        true => Rejection::unresolvable(text),
        false => Rejection::unschedulable(text),
    };
    PluginRejection { plugin: None, rejection }
}

impl Evaluation {
    /// The feasible nodes with the highest total, by row.
    pub fn best_nodes(&self) -> Vec<NodeRow> {
        let top = self.nodes.iter().filter_map(|node| node.total).max();
        let best = self.nodes.iter().filter(|node| node.total.is_some() && node.total == top);
        best.map(|node| node.row).collect()
    }

    /// Removes all scores after scoring failed.
    fn clear_scores(&mut self) {
        self.score_plugins.clear();
        for node in &mut self.nodes {
            node.scores.clear();
            node.total = None;
        }
    }

    /// The status code of every node, by row ([`loadmaster_framework::FitError::node_codes`]).
    pub fn node_codes(&self, world: &World, pod: &PodInfo) -> Vec<(NodeRow, Code)> {
        if let Some(rejected) = &self.pre_filter_rejection {
            return world.nodes().rows().map(|row| (row, rejected.rejection.code())).collect();
        }
        let nominated = world.nodes().row(&pod.nominated_node_name);
        let code =
            |node: &NodeEvaluation| match (&node.filter_result, &self.nominated_node_rejection) {
                (FilterResult::Feasible, _) => Code::Success,
                (FilterResult::Rejected(rejected), _) => rejected.rejection.code(),
                // Upstream filters the nominated node even if PreFilter excludes it.
                (FilterResult::Excluded, Some(rejected)) if nominated == Some(node.row) => {
                    rejected.rejection.code()
                }
                (FilterResult::Excluded, _) => Code::UnschedulableAndUnresolvable,
            };
        self.nodes.iter().map(|node| (node.row, code(node))).collect()
    }

    /// The feasible node, if there is exactly one.
    pub fn single_feasible_node(&self) -> Option<NodeRow> {
        let mut feasible =
            self.nodes.iter().filter(|node| node.filter_result == FilterResult::Feasible);
        let only = feasible.next()?.row;
        feasible.next().is_none().then_some(only)
    }

    /// Whether any node is feasible.
    pub fn is_feasible(&self) -> bool {
        self.nodes.iter().any(|node| node.filter_result == FilterResult::Feasible)
    }
}
