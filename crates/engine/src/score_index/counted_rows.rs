//! The rows whose class is another one for one combination of keys than in the shared index, because its counters count their pods.

mod class_rows;
mod score_counts;

use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use self::class_rows::ClassRows;
use self::score_counts::ScoreCounts;
use super::row_index::{RowIndex, RowMove};
use crate::evaluate::class_table::ClassTable;
use crate::evaluate::incremental::{Evaluator, KeyForm};
use crate::evaluate::score_buckets::TopBucket;

/// Counted rows by class. They are left out of the shared index's buckets when a node is selected.
///
/// A row's score is stored only there. What is stored here by score is the number of rows, so that little has to be done when a score changes:
/// for each combination of keys, that happens to many more rows than are selected for it.
#[derive(Default)]
pub(super) struct CountedRows {
    rows: ClassRows,
    /// The classes of these rows. A key ends with the class in the shared index, so that all rows of a class have that in common.
    table: ClassTable,
    /// By class: numbers of its rows.
    n_by_score: Vec<ScoreCounts>,
    /// By class of the shared index: the rows that are left out there.
    hidden: Vec<ScoreCounts>,
    n_hidden: Vec<u32>,
    /// The classes of the shared index, followed by those of these rows.
    pub all_classes: ClassTable,
    key: ClassKey,
    /// Number of times that a row was added, was removed, or changed its class.
    pub n_class_changes: u64,
    /// Scratch space: the rows that may have another class now.
    changed: Vec<NodeRow>,
}

impl CountedRows {
    /// Finds the counted rows.
    pub fn new(evaluator: &Evaluator, index: &RowIndex, cx: EvaluatorCx<'_>) -> CountedRows {
        let mut counted = CountedRows::default();
        for row in evaluator.counted_rows(cx.world) {
            counted.update(evaluator, index, cx, row);
        }
        counted
    }

    /// Applies these changes of the world, and the moves of rows in the index that came with them.
    pub fn apply(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        changes: &[WorldChange],
        moves: &[RowMove],
    ) {
        let stride = evaluator.class_key_len();
        let mut changed = std::mem::take(&mut self.changed);
        for it in moves {
            let class = self.rows.class(it.row);
            match class {
                Some(class) if it.same_class => self.count_move(class, stride, it),
                Some(class) => self.remove(it.row, class, it.from, stride),
                None => {}
            }
            if !it.same_class {
                changed.push(it.row);
            }
        }
        changed.extend(changes.iter().filter_map(|change| match *change {
            WorldChange::Pods(row, counters) => {
                evaluator.may_change_class(KeyForm::Counted, counters).then_some(row)
            }
            // Such a row moved.
            WorldChange::Node(_) | WorldChange::NodeSet => None,
        }));
        // Only now are all rows counted with the scores that they have in the index.
        changed.drain(..).for_each(|row| self.update(evaluator, index, cx, row));
        self.changed = changed;
    }

    /// Makes `all_classes` a table of all classes. Those of counted rows begin after those of the index.
    pub fn combine_classes(&mut self, index: &RowIndex, stride: usize) {
        self.all_classes.combine(&index.table, &self.n_hidden, &self.table, stride);
    }

    /// The class of a row, if it is counted.
    pub fn class(&self, row: NodeRow) -> Option<u32> {
        self.rows.class(row)
    }

    /// How many rows of a class with a score are left out in the shared index.
    pub fn n_hidden(&self, shared_class: u32, score: i64) -> u32 {
        self.hidden.get(shared_class as usize).map_or(0, |counts| counts.get(score))
    }

    /// The counted rows of each feasible class with the highest score.
    pub fn top_buckets<'a>(
        &'a self,
        index: &'a RowIndex,
        stride: usize,
    ) -> impl Iterator<Item = TopBucket<'a>> {
        let first = index.table.len();
        let classes = self.n_by_score.iter().enumerate();
        let feasible = classes.filter(move |(at, _)| self.all_classes.is_feasible(first + at));
        feasible.filter_map(move |(at, counts)| {
            let (class, (score, n)) = (at as u32, counts.highest()?);
            let of_class = self.rows.rows(class);
            let with_score = index.buckets.rows_with(self.shared_class(class, stride), score);
            let rows = if of_class.len() < with_score.len() { of_class } else { with_score };
            let total = score + self.all_classes.offsets[first + at];
            Some(TopBucket { total, rows, n: u64::from(n), counted: Some((class, score)) })
        })
    }

    fn shared_class(&self, class: u32, stride: usize) -> u32 {
        self.table.key(class, stride + 1)[stride] as u32
    }

    fn count_move(&mut self, class: u32, stride: usize, it: &RowMove) {
        let shared = self.shared_class(class, stride);
        for counts in [&mut self.n_by_score[class as usize], &mut self.hidden[shared as usize]] {
            counts.remove(it.from);
            counts.add(it.to);
        }
    }

    fn update(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
    ) {
        // A row that the index has not any more was removed when it moved.
        let Some((shared, score)) = index.class_and_score(row) else { return };
        let stride = evaluator.class_key_len();
        let shared_key = index.table.key(shared, stride);
        evaluator.class_key_of_shared(cx, row, shared_key, &mut self.key);
        let is_counted = *self.key != *shared_key;
        self.key.push(i64::from(shared));
        if let Some(class) = self.rows.class(row) {
            if is_counted && *self.table.key(class, stride + 1) == *self.key {
                return;
            }
            self.uncount(class, score, stride);
        }
        if is_counted {
            self.insert(row, shared, score);
        } else {
            self.rows.remove(row);
        }
    }

    /// Adds a row to the class with the key in `key`, or moves it there.
    fn insert(&mut self, row: NodeRow, shared: u32, score: i64) {
        self.n_class_changes += 1;
        let class = self.table.insert_row(&self.key);
        self.rows.set(row, class);
        element(&mut self.n_by_score, class).add(score);
        element(&mut self.hidden, shared).add(score);
        *element(&mut self.n_hidden, shared) += 1;
    }

    /// Removes a row with this class and score.
    fn remove(&mut self, row: NodeRow, class: u32, score: i64, stride: usize) {
        self.rows.remove(row);
        self.uncount(class, score, stride);
    }

    /// Does not count a row with this class and score any more.
    fn uncount(&mut self, class: u32, score: i64, stride: usize) {
        self.n_class_changes += 1;
        let shared = self.shared_class(class, stride) as usize;
        self.table.remove_row(class, stride + 1);
        self.n_by_score[class as usize].remove(score);
        self.hidden[shared].remove(score);
        self.n_hidden[shared] -= 1;
    }
}

/// An element of a list that grows as needed.
fn element<T: Default>(list: &mut Vec<T>, at: u32) -> &mut T {
    let at = at as usize;
    if list.len() <= at {
        list.resize_with(at + 1, T::default);
    }
    &mut list[at]
}
