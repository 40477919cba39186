//! The class of every row, kept for all combinations of keys that divide the rows into the same classes.
//!
//! A full scan needs the class of each row. Computing a class key costs as much as fifty rows of a vector loop, and only a few rows change
//! their class from one decision to the next: those whose pods a counter of the key counts.

use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use super::class_table::ClassTable;
use super::incremental::{Evaluator, KeyForm};

/// Stored for a row whose class is not known yet.
const UNKNOWN: u32 = u32::MAX;

/// The classes of rows. The class of a row is computed when it first passes the row-local filters of a scan.
#[derive(Default)]
pub(crate) struct RowClasses {
    table: ClassTable,
    of_row: Vec<u32>,
    /// Number of rows with [`UNKNOWN`].
    n_unknown: usize,
    /// Sequence number of the first change that is not applied yet; `None` before the first scan.
    cursor: Option<u64>,
    key: ClassKey,
}

impl RowClasses {
    /// Finds the class of each of these rows with a 1. All evaluators that are passed to it have equal class keys.
    pub fn classify(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        rows: impl Iterator<Item = (NodeRow, u8)>,
    ) {
        self.catch_up(evaluator, cx);
        if self.n_unknown == 0 {
            return;
        }
        let mut last = None;
        for (row, member) in rows {
            // In this order, because few classes are unknown, but members and others alternate.
            if self.of_row[row.index()] == UNKNOWN && member != 0 {
                last = Some(self.compute(evaluator, cx, row, last));
            }
        }
    }

    /// The classes.
    pub fn table(&self) -> &ClassTable {
        &self.table
    }

    /// Whether no scan has needed them yet, so that the next one has to compute all.
    pub fn is_unused(&self) -> bool {
        self.cursor.is_none()
    }

    /// The class of each row; no class of the table for a row that was never asked for.
    pub fn of_rows(&self) -> &[u32] {
        &self.of_row
    }

    /// Forgets the classes of rows that may have another one now.
    fn catch_up(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) {
        let stride = evaluator.class_key_len();
        match self.cursor.and_then(|cursor| cx.world.changes_since(cursor)) {
            None => {
                self.table.clear();
                self.of_row.clear();
                self.n_unknown = 0;
            }
            Some(changes) => {
                for change in changes {
                    match *change {
                        WorldChange::Node(row) => self.forget(row, stride),
                        WorldChange::Pods(row, counters) => {
                            if evaluator.may_change_class(KeyForm::Counted, counters) {
                                self.forget(row, stride);
                            }
                        }
                        WorldChange::NodeSet => {}
                    }
                }
            }
        }
        let n_new = cx.nodes().n_rows().saturating_sub(self.of_row.len());
        self.of_row.extend(std::iter::repeat_n(UNKNOWN, n_new));
        self.n_unknown += n_new;
        self.cursor = Some(cx.world.next_change_seq());
    }

    fn forget(&mut self, row: NodeRow, stride: usize) {
        let Some(class) = self.of_row.get_mut(row.index()) else { return };
        if *class != UNKNOWN {
            self.table.remove_row(*class, stride);
            *class = UNKNOWN;
            self.n_unknown += 1;
        }
    }

    /// Computes the class of a row. Neighboring rows often have the same class, so that of the last one is tried first.
    fn compute(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        last: Option<u32>,
    ) -> u32 {
        evaluator.class_key(KeyForm::Counted, cx, row, &mut self.key);
        let known = last.filter(|class| *self.table.key(*class, self.key.len()) == *self.key);
        let class = match known {
            Some(class) => {
                self.table.rows[class as usize] += 1;
                class
            }
            None => self.table.insert_row(&self.key),
        };
        self.of_row[row.index()] = class;
        self.n_unknown -= 1;
        class
    }
}
