//! The nodes of one call of a Filter plugin.

use crate::node_info::NodeInfo;
use crate::node_row::NodeRow;
use crate::node_table::NodeTable;
use crate::result::Failure;

/// The nodes that the plugins before have not rejected, for [`Filter::filter_nodes`](crate::Filter::filter_nodes).
pub struct NodesToFilter<'a> {
    table: &'a NodeTable,
    /// Ascending; `None` for all rows of the table.
    rows: Option<&'a [NodeRow]>,
    /// For each of the rows: 1 if its node is not rejected.
    set: &'a mut [u8],
}

impl<'a> NodesToFilter<'a> {
    /// Those of these rows, or of all, that are in the set: it has a 1 for each row whose node is not rejected. Nodes that are rejected are
    /// removed from it.
    pub fn new(
        table: &'a NodeTable,
        rows: Option<&'a [NodeRow]>,
        set: &'a mut [u8],
    ) -> NodesToFilter<'a> {
        NodesToFilter { table, rows, set }
    }

    /// Rejects the nodes that do not pass.
    #[inline]
    pub fn retain(&mut self, mut passes: impl FnMut(NodeInfo<'a>) -> bool) {
        let retained = self.try_retain(|node| Ok(passes(node)));
        debug_assert!(retained.is_ok(), "nothing fails");
    }

    /// Rejects the nodes that do not pass.
    ///
    /// # Errors
    ///
    /// The first failure. The nodes after it are not asked.
    #[inline]
    pub fn try_retain(
        &mut self,
        mut passes: impl FnMut(NodeInfo<'a>) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        for (at, member) in self.set.iter_mut().enumerate() {
            if *member == 0 {
                continue;
            }
            let row = self.rows.map_or(NodeRow(at as u32), |rows| rows[at]);
            let node = NodeInfo::new(self.table, row);
            *member = u8::from(node.map_or(Ok(false), &mut passes)?);
        }
        Ok(())
    }
}
