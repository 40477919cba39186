//! Row numbers of nodes.

/// The row of a node in the [`NodeTable`](crate::NodeTable): stable while the node exists, reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeRow(pub u32);

impl NodeRow {
    /// The row as an index into columns.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
