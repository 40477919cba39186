//! Node sampling (`percentageOfNodesToScore`): how many feasible nodes to find, and at which node the search starts.
//!
//! Upstream filters nodes in parallel, so that it may find a few more nodes than it needs. This module behaves like upstream with
//! a parallelism of 1: it filters nodes in order from the rotating start until one more than needed is found; the next search
//! starts at that node.

use loadmaster_framework::node_table::NodeTable;
use loadmaster_framework::{FeatureGates, NodeRow};

/// Upstream's `minFeasibleNodesToFind`.
const FEASIBLE_NODES_MIN: usize = 100;

/// Upstream's `minFeasibleNodesPercentageToFind`.
const PERCENTAGE_MIN: usize = 5;

/// How many feasible nodes to find (`percentageOfNodesToScore`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSampling {
    /// All: every node is filtered.
    All,
    /// This percentage of the nodes.
    Percentage(usize),
    /// A percentage that decreases with the number of nodes, which is upstream's default.
    Adaptive,
}

impl NodeSampling {
    /// The sampling of a profile's `percentageOfNodesToScore`.
    pub fn new(percentage: i32, gates: &FeatureGates) -> NodeSampling {
        match usize::try_from(percentage) {
            Ok(0) if gates.adaptive_node_sampling => NodeSampling::Adaptive,
            Ok(percentage @ 1..=99) => NodeSampling::Percentage(percentage),
            _ => NodeSampling::All,
        }
    }

    /// The sampling of kube-scheduler with the same `percentageOfNodesToScore`.
    pub fn of_upstream(percentage: i32) -> NodeSampling {
        let gates = FeatureGates { adaptive_node_sampling: true, ..FeatureGates::default() };
        NodeSampling::new(percentage, &gates)
    }

    /// Number of feasible nodes to find among `n_nodes` (upstream's `numFeasibleNodesToFind`); 1 if no plugin scores.
    pub fn num_feasible_nodes_to_find(self, n_nodes: usize, scores: bool) -> usize {
        let percentage = match self {
            NodeSampling::All => return n_nodes,
            NodeSampling::Percentage(percentage) => percentage,
            NodeSampling::Adaptive => 50usize.saturating_sub(n_nodes / 125).max(PERCENTAGE_MIN),
        };
        if !scores {
            return 1;
        }
        if n_nodes < FEASIBLE_NODES_MIN {
            return n_nodes;
        }
        (n_nodes * percentage / 100).max(FEASIBLE_NODES_MIN)
    }
}

/// One search for feasible nodes that may end early.
#[derive(Clone, Copy)]
pub struct NodeSearch<'a> {
    pub sampling: NodeSampling,
    /// All nodes in search order.
    pub order: &'a [NodeRow],
    /// Index of the first node, in `order` or in the subset that PreFilter left (upstream's `nextStartNodeIndex`).
    pub start: usize,
}

impl<'a> NodeSearch<'a> {
    /// Iterates over these rows once, from the start index.
    pub fn iter_from_start<'b>(
        &self,
        rows: &'b [NodeRow],
    ) -> impl Iterator<Item = NodeRow> + use<'b> {
        let start = self.start % rows.len().max(1);
        rows[start..].iter().chain(&rows[..start]).copied()
    }
}

/// The search order of nodes, and the index at which the next search starts.
#[derive(Default)]
pub(crate) struct RotatingNodeOrder {
    rows: Vec<NodeRow>,
    version: u64,
    pub start: usize,
    /// The pod's nominated node, if it was filtered before the search and rejected. Upstream counts its status as a visited node
    /// even if the search does not reach it.
    pub rejected_nominated_node: Option<NodeRow>,
}

impl RotatingNodeOrder {
    /// Updates the order from the node tree.
    pub fn refresh(&mut self, nodes: &NodeTable) {
        let order = nodes.node_tree();
        if order.version() != self.version {
            self.rows = order.rows();
            self.version = order.version();
        }
    }

    pub fn node_search(&self, search: NodeSampling) -> NodeSearch<'_> {
        NodeSearch { sampling: search, order: &self.rows, start: self.start }
    }

    /// Advances the start index by the number of filtered nodes, which includes the rejected nominated node.
    pub fn advance(&mut self, n_visited: usize, is_visited: impl Fn(NodeRow) -> bool) {
        let nominated = self.rejected_nominated_node.take();
        let n_more = usize::from(nominated.is_some_and(|row| !is_visited(row)));
        self.start = (self.start + n_visited + n_more) % self.rows.len().max(1);
    }

    /// Retains the first `n_wanted` members of the set, in search order, and advances the start index.
    pub fn retain_first(&mut self, n_wanted: usize, set: &mut [u8]) {
        let mut n_found = 0;
        let mut n_visited = self.rows.len();
        let mut nominated_at = None;
        for (at, row) in self.node_search(NodeSampling::All).iter_from_start(&self.rows).enumerate()
        {
            if self.rejected_nominated_node == Some(row) {
                nominated_at = Some(at);
            }
            let member = &mut set[row.index()];
            if *member == 0 {
                continue;
            }
            n_found += 1;
            if n_found > n_wanted {
                n_visited = n_visited.min(at);
                *member = 0;
            }
        }
        self.advance(n_visited, |_| nominated_at.is_some_and(|at| at < n_visited));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn num_feasible_nodes_to_find_like_upstream() {
        let check = |search: NodeSampling, n_nodes, want| {
            assert_eq!(
                search.num_feasible_nodes_to_find(n_nodes, true),
                want,
                "{search:?} of {n_nodes}"
            );
        };
        check(NodeSampling::All, 5000, 5000);
        check(NodeSampling::Percentage(10), 99, 99);
        check(NodeSampling::Percentage(10), 100, 100);
        check(NodeSampling::Percentage(10), 1000, 100);
        check(NodeSampling::Percentage(10), 5009, 500);
        check(NodeSampling::Percentage(99), 101, 100);
        check(NodeSampling::Adaptive, 99, 99);
        check(NodeSampling::Adaptive, 100, 100);
        check(NodeSampling::Adaptive, 1000, 420);
        check(NodeSampling::Adaptive, 5000, 500);
        check(NodeSampling::Adaptive, 100_000, 5000);
        assert_eq!(NodeSampling::Percentage(50).num_feasible_nodes_to_find(1000, false), 1);
    }

    /// Checks where the next search starts after one from index 1 that needs two feasible nodes of five, if this node was filtered before
    /// the search and rejected.
    #[track_caller]
    fn check_next_start(rejected_nominated_node: Option<NodeRow>, want: usize) {
        let rows = (0..5).map(NodeRow).collect();
        let mut order = RotatingNodeOrder { rows, version: 0, start: 1, rejected_nominated_node };
        // Rows 1, 2 and 3 are visited; row 4 is the first that is not needed.
        order.retain_first(2, &mut [1, 1, 0, 1, 1]);
        assert_eq!(order.start, want);
    }

    #[test]
    fn a_rejected_nominated_node_counts_as_visited_once() {
        check_next_start(None, 4);
        check_next_start(Some(NodeRow(2)), 4);
        check_next_start(Some(NodeRow(0)), 0);
    }

    #[test]
    fn sampling_of_a_percentage() {
        let gates = FeatureGates::default();
        let adaptive = FeatureGates { adaptive_node_sampling: true, ..gates.clone() };
        assert_eq!(NodeSampling::new(0, &gates), NodeSampling::All);
        assert_eq!(NodeSampling::new(0, &adaptive), NodeSampling::Adaptive);
        assert_eq!(NodeSampling::new(30, &adaptive), NodeSampling::Percentage(30));
        assert_eq!(NodeSampling::new(100, &adaptive), NodeSampling::All);
    }
}
