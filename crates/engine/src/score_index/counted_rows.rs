//! The rows whose class is another one for one combination of keys than in the shared index, because its counters count their pods.

use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::topology_counter::TopologyCounterSet;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use super::row_index::{Changed, NO_BUCKET, RowChange, RowIndex};
use crate::evaluate::incremental::{ClassTable, Evaluator};
use crate::evaluate::row_map::RowMap;
use crate::evaluate::score_buckets::{BucketPosition, ScoreBuckets};

/// Counted rows by class and score. They are left out of the shared index's buckets when a node is selected.
#[derive(Default)]
pub(super) struct CountedRows {
    pub buckets: ScoreBuckets<RowMap<BucketPosition>>,
    table: ClassTable,
    /// The class of each of these rows in the shared index.
    shared_classes: RowMap<u32>,
    /// By bucket of the shared index, and by class of it: number of these rows.
    pub n_by_bucket: Vec<u32>,
    n_by_class: Vec<u32>,
    /// The classes of the shared index, followed by those of these rows.
    pub all_classes: ClassTable,
    key: ClassKey,
    /// Number of times that a row was added, was removed, or changed its class.
    pub n_class_changes: u64,
    /// Scratch space: the rows that may be counted now, or not any more.
    changed: Vec<NodeRow>,
}

impl CountedRows {
    /// Finds the counted rows among all of an index.
    pub fn new(evaluator: &Evaluator, index: &RowIndex, cx: EvaluatorCx<'_>) -> CountedRows {
        let mut counted = CountedRows::default();
        for row in cx.nodes().rows() {
            counted.update(evaluator, index, cx, row);
        }
        counted
    }

    /// Applies these changes, and what each of them changed in the index. Most concern no counted row, or not its score.
    pub fn apply<'a>(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        changes: impl Iterator<Item = (&'a WorldChange, &'a RowChange)>,
    ) {
        let mut changed = std::mem::take(&mut self.changed);
        for (change, in_index) in changes {
            let (row, counters) = match *change {
                WorldChange::Pods(row, counters) => (row, counters),
                WorldChange::Node(row) => (row, TopologyCounterSet::ALL),
                WorldChange::NodeSet => continue,
            };
            if in_index.changed != Changed::Nothing && self.buckets.contains(row) {
                self.move_row(index, row, in_index);
            }
            if in_index.changed == Changed::Class || evaluator.may_change_class(counters) {
                changed.push(row);
            }
        }
        // Only now: the index has these rows where the last of the changes left them.
        changed.drain(..).for_each(|row| self.update(evaluator, index, cx, row));
        self.changed = changed;
    }

    /// Makes `all_classes` a table of all classes. Those of counted rows begin after those of the index.
    pub fn combine_classes(&mut self, index: &RowIndex) {
        self.all_classes.combine(&index.table, &self.n_by_class, &self.table);
    }

    /// Follows a counted row to another bucket of the index.
    fn move_row(&mut self, index: &RowIndex, row: NodeRow, change: &RowChange) {
        if change.from != NO_BUCKET {
            self.n_by_bucket[change.from as usize] -= 1;
        }
        if change.to != NO_BUCKET {
            *counter(&mut self.n_by_bucket, change.to) += 1;
        }
        let now = index.buckets.class_and_score(row);
        if let (Some((own, old)), Some((_, score))) = (self.buckets.class_and_score(row), now)
            && old != score
        {
            self.buckets.set_score(row, own, score);
        }
    }

    fn update(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
    ) {
        let stride = evaluator.class_key_len();
        let Some((bucket, class, score)) = index.buckets.bucket(row) else {
            return self.remove(row, None, stride);
        };
        let shared_key = index.table.key(class, stride);
        evaluator.class_key_of_shared(cx, row, shared_key, &mut self.key);
        if *self.key == *shared_key {
            return self.remove(row, Some(bucket), stride);
        }
        if let Some((own, _)) = self.buckets.class_and_score(row)
            && *self.table.key(own, stride) == *self.key
        {
            self.set_shared_class(row, Some(class));
            return;
        }
        self.remove(row, Some(bucket), stride);
        self.n_class_changes += 1;
        let own = self.table.insert_row(&self.key);
        self.buckets.insert(row, own, score);
        *counter(&mut self.n_by_bucket, bucket) += 1;
        self.set_shared_class(row, Some(class));
    }

    /// Removes a row, if it is counted, that is in this bucket of the index.
    fn remove(&mut self, row: NodeRow, bucket: Option<u32>, stride: usize) {
        let Some((own, _)) = self.buckets.class_and_score(row) else { return };
        self.n_class_changes += 1;
        self.buckets.remove(row);
        self.table.remove_row(own, stride);
        if let Some(bucket) = bucket {
            self.n_by_bucket[bucket as usize] -= 1;
        }
        self.set_shared_class(row, None);
    }

    fn set_shared_class(&mut self, row: NodeRow, class: Option<u32>) {
        let before = match (class, self.shared_classes.get_mut(row)) {
            (Some(class), Some(known)) => Some(std::mem::replace(known, class)),
            (Some(class), None) => {
                self.shared_classes.insert(row, class);
                None
            }
            (None, _) => self.shared_classes.remove(row),
        };
        if before == class {
            return;
        }
        if let Some(class) = before {
            self.n_by_class[class as usize] -= 1;
        }
        if let Some(class) = class {
            *counter(&mut self.n_by_class, class) += 1;
        }
    }
}

/// An element of a list that grows as needed.
fn counter(counters: &mut Vec<u32>, at: u32) -> &mut u32 {
    let at = at as usize;
    if counters.len() <= at {
        counters.resize(at + 1, 0);
    }
    &mut counters[at]
}
