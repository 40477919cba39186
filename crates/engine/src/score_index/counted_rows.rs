//! The rows whose class is another one for one combination of keys than in the shared index, because its counters count their pods.

mod class_rows;

use loadmaster_framework::incremental::ClassKey;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use self::class_rows::ClassRows;
use super::row_index::RowIndex;
use crate::evaluate::class_table::ClassTable;
use crate::evaluate::incremental::{Evaluator, KeyForm};

/// Counted rows by class. Their scores are stored only in the shared index: between two decisions of a combination of keys many more of them
/// change than are selected.
#[derive(Default)]
pub(super) struct CountedRows {
    rows: ClassRows,
    /// The classes of these rows. A key ends with the class in the shared index, so that all rows of a class have that in common.
    table: ClassTable,
    /// By class of the shared index: number of its rows that are counted.
    n_counted: Vec<u32>,
    /// The classes of the shared index, followed by those of these rows.
    pub all_classes: ClassTable,
    /// By class in `all_classes`: the class in the shared index that its rows have.
    shared_classes: Vec<u32>,
    key: ClassKey,
    /// Number of times that a row was added, was removed, or changed its class.
    pub n_class_changes: u64,
}

impl CountedRows {
    /// Finds the counted rows.
    pub fn new(evaluator: &Evaluator, index: &RowIndex, cx: EvaluatorCx<'_>) -> CountedRows {
        let mut counted = CountedRows::default();
        let update = |row| counted.update(evaluator, index, cx, row);
        evaluator.for_each_counted_row(cx.world, update);
        counted
    }

    /// Applies these changes of the world, and what they changed in the index: `None` if the index does not know that any more.
    pub fn apply(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        cursor: u64,
    ) -> Option<()> {
        let class_changes = index.class_changes_since(cursor)?;
        let changes = cx.world.changes_since(cursor)?;
        // Most often one, the placement of the pod that was scheduled with these keys before, and a removed pod now and then.
        if let Some(known) = evaluator.class_changes_since(cx.world, cursor) {
            for seq in known.iter().rev() {
                if let Some(change) = changes.get((seq - cursor) as usize) {
                    self.apply_change(evaluator, index, cx, change);
                }
            }
        } else {
            self.apply_changes(evaluator, index, cx, (cursor, changes));
        }
        class_changes.for_each(|row| self.update(evaluator, index, cx, row));
        Some(())
    }

    /// Applies those of these changes that changed the pods that counters count. `seq` is the sequence number of the first one.
    #[inline(never)]
    fn apply_changes(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        (seq, changes): (u64, &[WorldChange]),
    ) {
        let changed_at = evaluator.classes_changed_at(cx.world);
        let changes = (seq..).zip(changes).take_while(|(seq, _)| Some(*seq) <= changed_at);
        changes.for_each(|(_, change)| self.apply_change(evaluator, index, cx, change));
    }

    #[inline]
    fn apply_change(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        change: &WorldChange,
    ) {
        if let WorldChange::Pods(row, counters) = *change
            && evaluator.may_change_class(KeyForm::Counted, counters)
        {
            self.update(evaluator, index, cx, row);
        }
    }

    /// Makes `all_classes` a table of all classes. Those of counted rows begin after those of the index.
    pub fn combine_classes(&mut self, index: &RowIndex, stride: usize) {
        self.n_counted.resize(index.table.len(), 0);
        let has_new_keys =
            self.all_classes.combine(&index.table, &self.n_counted, &self.table, stride);
        if has_new_keys {
            self.find_shared_classes(index, stride);
        }
    }

    #[cold]
    fn find_shared_classes(&mut self, index: &RowIndex, stride: usize) {
        self.shared_classes.clear();
        self.shared_classes.extend(0..index.table.len() as u32);
        let own = self.table.keys_of(stride + 1).map(|key| key[stride] as u32);
        self.shared_classes.extend(own);
    }

    /// By class in `all_classes`: the class in the shared index that its rows have.
    pub fn shared_classes(&self) -> &[u32] {
        &self.shared_classes
    }

    /// The class of a row, if it is counted.
    pub fn class(&self, row: NodeRow) -> Option<u32> {
        self.rows.class(row)
    }

    /// Number of counted rows of a class of the shared index.
    pub fn n_counted(&self, shared_class: u32) -> u32 {
        self.n_counted.get(shared_class as usize).copied().unwrap_or(0)
    }

    /// Number of rows of a class.
    pub fn n_rows(&self, class: u32) -> usize {
        self.table.rows[class as usize] as usize
    }

    /// The rows of a class.
    pub fn rows(&self, class: u32) -> &[NodeRow] {
        self.rows.rows(class)
    }

    /// The class in the shared index that the rows of a class have.
    fn shared_class(&self, class: u32, stride: usize) -> u32 {
        self.table.key(class, stride + 1)[stride] as u32
    }

    fn update(
        &mut self,
        evaluator: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
    ) {
        let stride = evaluator.class_key_len();
        let before = self.rows.class(row);
        let shared = index.class_and_score(row).map(|(shared, _)| shared);
        let counted = shared.filter(|shared| {
            let shared_key = index.table.key(*shared, stride);
            evaluator.class_key_of_shared(cx, row, shared_key, &mut self.key);
            *self.key != *shared_key
        });
        if let Some(shared) = counted {
            self.key.push(i64::from(shared));
        }
        if let Some(class) = before {
            if counted.is_some() && *self.table.key(class, stride + 1) == *self.key {
                return;
            }
            self.n_class_changes += 1;
            let shared = self.shared_class(class, stride) as usize;
            self.table.remove_row(class, stride + 1);
            self.n_counted[shared] -= 1;
        }
        let class = counted.map(|shared| {
            self.n_class_changes += 1;
            *element(&mut self.n_counted, shared) += 1;
            self.table.insert_row(&self.key)
        });
        self.rows.set(row, class);
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
