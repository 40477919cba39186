//! Scores of nodes, and their highest value.

use crate::node_row::NodeRow;

/// The highest score of a node by one plugin, after NormalizeScore (upstream's `MaxNodeScore`).
pub const MAX_NODE_SCORE: i64 = 100;

/// A node's score by one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeScore {
    /// The node.
    pub row: NodeRow,
    /// Any number before NormalizeScore, in `0..=100` after it.
    pub score: i64,
}
