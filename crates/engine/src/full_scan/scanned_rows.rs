//! The rows of a full scan, each with a position.

use loadmaster_framework::NodeRow;

/// The rows that are scanned: all, or a list. What is found of them is stored by position.
#[derive(Default)]
pub(super) struct ScannedRows {
    is_list: bool,
    /// Ascending.
    list: Vec<NodeRow>,
}

impl ScannedRows {
    /// All rows: the position of a row is its index.
    pub fn set_all(&mut self) {
        self.is_list = false;
    }

    /// These rows, which are ascending. The caller may remove some from the list that is returned.
    pub fn set_list(&mut self, rows: &[NodeRow]) -> &mut Vec<NodeRow> {
        self.is_list = true;
        self.list.clear();
        self.list.extend_from_slice(rows);
        &mut self.list
    }

    /// The rows, if they are a list.
    pub fn listed(&self) -> Option<&[NodeRow]> {
        self.is_list.then_some(&*self.list)
    }

    /// The row at a position.
    #[inline]
    pub fn row(&self, at: usize) -> NodeRow {
        if self.is_list { self.list[at] } else { NodeRow(at as u32) }
    }

    /// The position of a row, if it is scanned.
    pub fn position(&self, row: NodeRow) -> Option<usize> {
        if self.is_list { self.list.binary_search(&row).ok() } else { Some(row.index()) }
    }
}
