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

/// What the classes of counted rows are computed from.
struct ClassSource<'a> {
    evaluator: &'a Evaluator,
    index: &'a RowIndex,
    cx: EvaluatorCx<'a>,
}

impl CountedRows {
    /// Finds the counted rows.
    pub fn new(evaluator: &Evaluator, index: &RowIndex, cx: EvaluatorCx<'_>) -> CountedRows {
        let source = ClassSource { evaluator, index, cx };
        let (mut counted, mut classes) = (CountedRows::default(), Vec::new());
        evaluator.for_each_counted_row(cx.world, |row| {
            if let Some(shared) = source.counted_key(row, &mut counted.key) {
                classes.push((row, counted.insert_rows(shared, 1)));
            }
        });
        counted.rows = ClassRows::new(&classes);
        counted
    }

    /// The counted rows of another combination, whose keys with counters that count any pod are keys of this one, too: whatever else is counted
    /// for this one is not counted for it. Classes are looked at instead of rows.
    pub fn for_other(
        &self,
        other: &Evaluator,
        index: &RowIndex,
        cx: EvaluatorCx<'_>,
    ) -> CountedRows {
        let stride = other.class_key_len();
        let mut counted = CountedRows::default();
        let classes = self.table.keys_of(stride + 1).zip(&self.table.rows);
        let classes = classes.map(|(key, n_rows)| {
            if *n_rows == 0 {
                return None;
            }
            let shared = key[stride] as u32;
            let shared_key = index.table.key(shared, stride);
            other.class_key_of_other(cx.world, shared_key, key, &mut counted.key);
            if *counted.key == *shared_key {
                return None;
            }
            counted.key.push(i64::from(shared));
            Some(counted.insert_rows(shared, *n_rows))
        });
        let classes: Vec<Option<u32>> = classes.collect();
        let rows =
            self.rows.iter().filter_map(|(row, class)| Some((row, classes[class as usize]?)));
        counted.rows = ClassRows::new(&rows.collect::<Vec<_>>());
        debug_assert!(
            counted.has_keys_of(&CountedRows::new(other, index, cx), cx.nodes().n_rows(), stride),
            "counted rows have the keys that are computed for them"
        );
        counted
    }

    /// Whether all rows have the same class keys as in another table.
    fn has_keys_of(&self, other: &CountedRows, n_rows: usize, stride: usize) -> bool {
        let key = |counted: &CountedRows, row| {
            let class = counted.rows.class(row)?;
            Some(counted.table.key(class, stride + 1).to_vec())
        };
        (0..n_rows as u32).map(NodeRow).all(|row| key(self, row) == key(other, row))
            && self.n_counted.iter().sum::<u32>() == other.n_counted.iter().sum::<u32>()
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
        let source = ClassSource { evaluator, index, cx };
        // Most often one, the placement of the pod that was scheduled with these keys before, and a removed pod now and then.
        if let Some(known) = evaluator.class_changes_since(cx.world, cursor) {
            for seq in known.iter().rev() {
                if let Some(change) = changes.get((seq - cursor) as usize) {
                    self.apply_change(&source, change);
                }
            }
        } else {
            self.apply_changes(&source, (cursor, changes));
        }
        class_changes.for_each(|row| self.update(&source, row));
        Some(())
    }

    /// Applies those of these changes that changed the pods that counters count. `seq` is the sequence number of the first one.
    #[inline(never)]
    fn apply_changes(&mut self, source: &ClassSource<'_>, (seq, changes): (u64, &[WorldChange])) {
        let changed_at = source.evaluator.classes_changed_at(source.cx.world);
        let changes = (seq..).zip(changes).take_while(|(seq, _)| Some(*seq) <= changed_at);
        changes.for_each(|(_, change)| self.apply_change(source, change));
    }

    #[inline]
    fn apply_change(&mut self, source: &ClassSource<'_>, change: &WorldChange) {
        if let WorldChange::Pods(row, counters) = *change
            && source.evaluator.may_change_class(KeyForm::Counted, counters)
        {
            self.update(source, row);
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

    fn update(&mut self, source: &ClassSource<'_>, row: NodeRow) {
        let stride = source.evaluator.class_key_len();
        let before = self.rows.class(row);
        let counted = source.counted_key(row, &mut self.key);
        if let Some(class) = before {
            if counted.is_some() && *self.table.key(class, stride + 1) == *self.key {
                return;
            }
            self.n_class_changes += 1;
            let shared = self.shared_class(class, stride) as usize;
            self.table.remove_row(class, stride + 1);
            self.n_counted[shared] -= 1;
        }
        let class = counted.map(|shared| self.insert_rows(shared, 1));
        self.rows.set(row, class);
    }

    /// Adds so many rows with the key in `key`, which have this class in the shared index, to their class.
    fn insert_rows(&mut self, shared_class: u32, n: u32) -> u32 {
        self.n_class_changes += 1;
        *element(&mut self.n_counted, shared_class) += n;
        self.table.insert_rows(&self.key, n)
    }
}

impl ClassSource<'_> {
    /// Computes the class key of a row, with the class that it has in the shared index at the end, and returns that class; `None` if the row has
    /// the key of the shared index, or has no class there.
    #[inline]
    fn counted_key(&self, row: NodeRow, key: &mut ClassKey) -> Option<u32> {
        let (shared, _) = self.index.class_and_score(row)?;
        let shared_key = self.index.table.key(shared, self.evaluator.class_key_len());
        self.evaluator.class_key_of_shared(self.cx, row, shared_key, key);
        if **key == *shared_key {
            return None;
        }
        key.push(i64::from(shared));
        Some(shared)
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
