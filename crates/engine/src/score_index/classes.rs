//! The classes of rows for one combination of keys: those of the shared index, and those of counted rows.

use std::hint::black_box;

use loadmaster_framework::NodeRow;

use super::counted_rows::CountedRows;
use super::row_index::RowIndex;
use crate::evaluate::class_table::ClassTable;

/// The classes of rows.
#[derive(Clone, Copy)]
pub(super) struct Classes<'a> {
    pub index: &'a RowIndex,
    pub counted: Option<&'a CountedRows>,
    /// All classes; those of counted rows come last.
    pub table: &'a ClassTable,
}

impl<'a> Classes<'a> {
    pub fn new(index: &'a RowIndex, counted: Option<&'a CountedRows>) -> Classes<'a> {
        let table = counted.map_or(&index.table, |counted| &counted.all_classes);
        Classes { index, counted, table }
    }

    /// Number of classes of the shared index, after which those of counted rows begin.
    pub fn n_shared(self) -> usize {
        self.index.table.len()
    }

    /// Reads what [`Classes::total`] reads of a row: both from memory at the same time, where it would wait for one after the other.
    #[inline]
    pub fn preload(self, row: NodeRow) {
        let counted = self.counted.and_then(|counted| counted.class(row));
        black_box((counted, self.index.buckets.bucket(row)));
    }

    /// What is added to the score of a row with this class in the shared index, if the row is feasible.
    pub fn offset(self, row: NodeRow, shared_class: u32) -> Option<i64> {
        let counted = self.counted.and_then(|counted| counted.class(row));
        let class = match counted {
            Some(counted) => self.n_shared() + counted as usize,
            None => shared_class as usize,
        };
        self.table.feasible[class].then(|| self.table.offsets[class])
    }

    /// The total of a row, if it is feasible.
    pub fn total(self, row: NodeRow) -> Option<i64> {
        let (shared_class, score) = self.index.class_and_score(row)?;
        Some(score + self.offset(row, shared_class)?)
    }
}
