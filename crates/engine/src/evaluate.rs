//! What a pod's attempt found out about every node.

pub mod buckets;
pub mod filters;
pub mod incremental;
pub mod one_by_one;

use std::collections::BTreeMap;

use loadmaster_extender::NodeFailure;
use loadmaster_framework::{Code, PodInfo, Rejection, Row, World};

/// Who turned a pod or node down, and why. PreFilter results that leave no node name no plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub plugin: Option<&'static str>,
    pub rejection: Rejection,
}

/// What Filter said about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Feasible,
    /// A PreFilter plugin or an extender left the node out.
    Narrowed,
    Rejected(Rejected),
}

/// A node with its verdict and, if it is feasible, its scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    pub row: Row,
    pub verdict: Verdict,
    /// Weighted, in the order of [`Evaluation::score_plugins`].
    pub scores: Vec<i64>,
    pub total: Option<i64>,
}

/// Everything that one attempt found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Set when PreFilter turned the pod down everywhere.
    pub pre_filter: Option<Rejected>,
    /// Plugins that narrowed the nodes, sorted.
    pub narrowed_by: Vec<&'static str>,
    /// One entry a node, by row; empty when PreFilter rejected.
    pub nodes: Vec<NodeVerdict>,
    /// Plugins that scored, in order.
    pub score_plugins: Vec<&'static str>,
    /// An error that ends the attempt.
    pub failure: Option<String>,
    /// What Filter said about the pod's nominated node, if PreFilter left that node out.
    pub nominated: Option<Rejected>,
    /// The plugin that turned the pod's nominated node down, left out or not.
    pub nominated_rejected_by: Option<&'static str>,
    /// Who turned the pod down beside those that are named at a node: extenders, and plugins whose verdict they overruled.
    pub also_rejected_by: Vec<&'static str>,
    /// What extenders said about nodes that do not exist.
    pub elsewhere: Vec<Rejected>,
}

/// What extenders did to the nodes that plugins found feasible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Nodes that they left out.
    pub left_out: Vec<Row>,
    /// What they said about nodes, of these and of others, by name.
    pub failures: BTreeMap<String, NodeFailure>,
}

impl Extended {
    /// Whether no extender did anything.
    pub fn is_empty(&self) -> bool {
        self.left_out.is_empty() && self.failures.is_empty()
    }

    /// The verdict on a node, in place of the plugins'.
    fn verdict(&self, row: Row, name: &str) -> Option<Verdict> {
        match self.failures.get(name) {
            Some(failure) => Some(Verdict::Rejected(rejected(failure))),
            None => self.left_out.contains(&row).then_some(Verdict::Narrowed),
        }
    }
}

fn rejected(failure: &NodeFailure) -> Rejected {
    let text = failure.message.clone();
    let rejection = match failure.is_unresolvable {
        true => Rejection::unresolvable(text),
        false => Rejection::unschedulable(text),
    };
    Rejected { plugin: None, rejection }
}

impl Evaluation {
    /// The feasible nodes with the highest total, by row.
    pub fn best(&self) -> Vec<Row> {
        let top = self.nodes.iter().filter_map(|node| node.total).max();
        let best = self.nodes.iter().filter(|node| node.total.is_some() && node.total == top);
        best.map(|node| node.row).collect()
    }

    /// Scoring failed: what some plugins said before that counts for nothing.
    fn forget_scores(&mut self) {
        self.score_plugins.clear();
        for node in &mut self.nodes {
            node.scores.clear();
            node.total = None;
        }
    }

    /// What PostFilter is told about every node, by row ([`loadmaster_framework::Unfit::verdicts`]).
    pub fn codes(&self, world: &World, pod: &PodInfo) -> Vec<(Row, Code)> {
        if let Some(everywhere) = &self.pre_filter {
            return world.nodes().rows().map(|row| (row, everywhere.rejection.code())).collect();
        }
        let nominated = world.nodes().row(&pod.nominated_node_name);
        let code = |node: &NodeVerdict| match (&node.verdict, &self.nominated) {
            (Verdict::Feasible, _) => Code::Success,
            (Verdict::Rejected(rejected), _) => rejected.rejection.code(),
            // Upstream tries the nominated node even if PreFilter leaves it out.
            (Verdict::Narrowed, Some(rejected)) if nominated == Some(node.row) => {
                rejected.rejection.code()
            }
            (Verdict::Narrowed, _) => Code::UnschedulableAndUnresolvable,
        };
        self.nodes.iter().map(|node| (node.row, code(node))).collect()
    }

    /// The feasible node, if there is just one.
    pub fn only_feasible(&self) -> Option<Row> {
        let mut feasible = self.nodes.iter().filter(|node| node.verdict == Verdict::Feasible);
        let only = feasible.next()?.row;
        feasible.next().is_none().then_some(only)
    }

    /// Whether any node is feasible.
    pub fn is_feasible(&self) -> bool {
        self.nodes.iter().any(|node| node.verdict == Verdict::Feasible)
    }
}
