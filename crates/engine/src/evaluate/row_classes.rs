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

/// Up to so many rows whose class is not known are listed.
const LISTED_MAX: usize = 64;

/// The classes of rows. The class of a row is computed when it first passes the row-local filters of a scan.
#[derive(Default)]
pub(crate) struct RowClasses {
    table: ClassTable,
    of_row: Vec<u32>,
    /// The rows with [`UNKNOWN`], if they are few: most often the one on which the last pod was placed.
    unknown: Option<Vec<NodeRow>>,
    /// Sequence number of the first change that is not applied yet; `None` before the first scan.
    cursor: Option<u64>,
    key: ClassKey,
}

/// All evaluators that are passed to it have equal class keys.
impl RowClasses {
    /// Finds the class of each row with a 1 in this set.
    pub fn classify_set(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>, set: &[u8]) {
        self.catch_up(evaluator, cx);
        let is_member = |row: NodeRow| set[row.index()] != 0;
        if let Some(unknown) = self.unknown.take() {
            self.classify_unknown(evaluator, cx, unknown, is_member);
            return;
        }
        let (mut last, mut unknown) = (None, Some(Vec::new()));
        for row in (0..set.len() as u32).map(NodeRow) {
            if self.of_row[row.index()] != UNKNOWN {
                continue;
            }
            if is_member(row) {
                last = Some(self.compute(evaluator, cx, row, last));
            } else {
                add_listed(&mut unknown, row);
            }
        }
        self.unknown = unknown;
    }

    /// Finds the class of each of these rows, which are ascending.
    pub fn classify_list(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>, rows: &[NodeRow]) {
        self.catch_up(evaluator, cx);
        if let Some(unknown) = self.unknown.take() {
            let is_listed = |row: NodeRow| rows.binary_search(&row).is_ok();
            self.classify_unknown(evaluator, cx, unknown, is_listed);
            return;
        }
        let mut last = None;
        for row in rows {
            if self.of_row[row.index()] == UNKNOWN {
                last = Some(self.compute(evaluator, cx, *row, last));
            }
        }
    }

    /// Finds the classes of those of the rows with [`UNKNOWN`] that are scanned.
    fn classify_unknown(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        mut unknown: Vec<NodeRow>,
        is_scanned: impl Fn(NodeRow) -> bool,
    ) {
        let mut last = None;
        unknown.retain(|row| {
            let is_scanned = is_scanned(*row);
            if is_scanned {
                last = Some(self.compute(evaluator, cx, *row, last));
            }
            !is_scanned
        });
        self.unknown = Some(unknown);
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
                self.unknown = None;
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
        for row in self.of_row.len()..cx.nodes().n_rows() {
            self.of_row.push(UNKNOWN);
            add_listed(&mut self.unknown, NodeRow(row as u32));
        }
        self.cursor = Some(cx.world.next_change_seq());
    }

    fn forget(&mut self, row: NodeRow, stride: usize) {
        let Some(class) = self.of_row.get_mut(row.index()) else { return };
        if *class != UNKNOWN {
            self.table.remove_row(*class, stride);
            *class = UNKNOWN;
            add_listed(&mut self.unknown, row);
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
        class
    }
}

/// Adds a row to a list, which is given up if it becomes long.
fn add_listed(list: &mut Option<Vec<NodeRow>>, row: NodeRow) {
    match list {
        Some(rows) if rows.len() < LISTED_MAX => rows.push(row),
        _ => *list = None,
    }
}
