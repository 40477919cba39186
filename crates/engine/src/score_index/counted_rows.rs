//! The rows whose class is another one for one combination of keys than in the shared index, because its counters count their pods.

use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use super::row_index::RowIndex;
use crate::evaluate::incremental::{ClassTable, Evaluator};
use crate::evaluate::row_map::RowMap;
use crate::evaluate::score_buckets::{BucketPosition, ScoreBuckets};

/// Where the shared index has a row.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SharedPlace {
    bucket: u32,
    class: u32,
}

/// Counted rows by class and score. They are left out of the shared index's buckets when a node is selected.
#[derive(Default)]
pub(super) struct CountedRows {
    pub buckets: ScoreBuckets<RowMap<BucketPosition>>,
    table: ClassTable,
    /// Rows that the shared index did not have when they were last looked at: they may be counted when it has them again.
    absent: RowMap<()>,
    /// Where the shared index has each of these rows.
    places: RowMap<SharedPlace>,
    /// By bucket of the shared index, and by class of it: number of these rows.
    pub n_by_bucket: Vec<u32>,
    n_by_class: Vec<u32>,
    /// The classes of the shared index, followed by those of these rows.
    pub all_classes: ClassTable,
    key: ClassKey,
    /// Number of times that a row was added, was removed, or changed its class.
    pub n_class_changes: u64,
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

    /// Applies these changes, which were applied to the index before.
    pub fn apply(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        changes: &[WorldChange],
    ) {
        for change in changes {
            match *change {
                WorldChange::Pods(row, counters) => {
                    if evaluator.may_change_class(counters) || self.absent.contains(row) {
                        self.update(evaluator, index, cx, row);
                    } else if self.buckets.contains(row) {
                        self.update_score(evaluator, index, cx, row);
                    }
                }
                WorldChange::Node(row) => self.update(evaluator, index, cx, row),
                WorldChange::NodeSet => {}
            }
        }
    }

    /// Makes `all_classes` a table of all classes. Those of counted rows begin after those of the index.
    pub fn combine_classes(&mut self, index: &RowIndex) {
        self.all_classes.combine(&index.table, &self.n_by_class, &self.table);
    }

    /// Updates a counted row of which no counted pods changed: its class is the same as long as the shared one is.
    fn update_score(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
    ) {
        let (now, place) = (index.buckets.bucket(row), self.places.get_mut(row));
        let (Some((bucket, class, score)), Some(place)) = (now, place) else {
            return self.update(evaluator, index, cx, row);
        };
        if place.class != class {
            return self.update(evaluator, index, cx, row);
        }
        // The same bucket may have another score now: it was empty in between.
        self.n_by_bucket[place.bucket as usize] -= 1;
        *counter(&mut self.n_by_bucket, bucket) += 1;
        place.bucket = bucket;
        if let Some((own, old)) = self.buckets.class_and_score(row)
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
            self.remove(row, stride);
            if !self.absent.contains(row) {
                self.absent.insert(row, ());
            }
            return;
        };
        self.absent.remove(row);
        let shared_key = index.table.key(class, stride);
        evaluator.class_key_of_shared(cx, row, shared_key, &mut self.key);
        if *self.key == *shared_key {
            self.remove(row, stride);
            return;
        }
        let place = SharedPlace { bucket, class };
        if let Some((own, old)) = self.buckets.class_and_score(row)
            && *self.table.key(own, stride) == *self.key
        {
            self.set_place(row, Some(place));
            if old != score {
                self.buckets.set_score(row, own, score);
            }
            return;
        }
        self.remove(row, stride);
        self.n_class_changes += 1;
        let own = self.table.insert_row(&self.key);
        self.buckets.insert(row, own, score);
        self.set_place(row, Some(place));
    }

    fn remove(&mut self, row: NodeRow, stride: usize) {
        if let Some((own, _)) = self.buckets.class_and_score(row) {
            self.n_class_changes += 1;
            self.buckets.remove(row);
            self.table.remove_row(own, stride);
            self.set_place(row, None);
        }
    }

    fn set_place(&mut self, row: NodeRow, place: Option<SharedPlace>) {
        let before = match (place, self.places.get_mut(row)) {
            (Some(place), Some(known)) => Some(std::mem::replace(known, place)),
            (Some(place), None) => {
                self.places.insert(row, place);
                None
            }
            (None, _) => self.places.remove(row),
        };
        if before == place {
            return;
        }
        if let Some(SharedPlace { bucket, class }) = before {
            self.n_by_bucket[bucket as usize] -= 1;
            self.n_by_class[class as usize] -= 1;
        }
        if let Some(SharedPlace { bucket, class }) = place {
            *counter(&mut self.n_by_bucket, bucket) += 1;
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
