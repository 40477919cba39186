//! The feasible rows of several combinations of keys by class and score, as if their counters counted no pod; or of one combination.

use std::hint::black_box;

use loadmaster_framework::incremental::{ClassKey, RowDependency, ScoreOutOfRange};
use loadmaster_framework::topology_counter::TopologyCounterSet;
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};

use crate::evaluate::class_table::ClassTable;
use crate::evaluate::incremental::{Evaluator, KeyForm};
use crate::evaluate::row_results::{RowResults, weighted_sum};
use crate::evaluate::score_buckets::ScoreBuckets;

/// Not many more changes of classes than this are remembered, nor than two per row.
const CLASS_CHANGES_MAX: usize = 1 << 15;

/// From this number of changes on, those without an effect are found first.
const MANY_CHANGES: usize = 16;

/// A row got a class, lost it, or has another one.
#[derive(Clone, Copy)]
struct ClassChange {
    /// Sequence number of the change of the world.
    seq: u64,
    row: NodeRow,
}

/// Feasible rows by class and row-local score, updated from the world's change log.
///
/// Pods of many Services differ only in which pods their spread constraints count. Each has classes of its own, but on most nodes there is
/// no such pod: these have the same class and score for all of them. All evaluators that are passed to an index have equal
/// [indexed parts](crate::evaluate::evaluator_part::EvaluatorPart::is_indexed). An index of a single combination has its classes: most nodes may have pods that it counts.
pub(crate) struct RowIndex {
    /// `Counted` if it is that of a single combination.
    pub(super) key_form: KeyForm,
    pub(super) buckets: ScoreBuckets,
    pub(super) table: ClassTable,
    /// 1 where the row passes the filters that depend only on the node object.
    node_passes: Vec<u8>,
    /// The part of the row-local score that depends only on the node object; empty if it is 0 for every row.
    node_score: Vec<i64>,
    /// `Err` if such a score was out of range since the index was built.
    node_scores: Result<(), ScoreOutOfRange>,
    /// The same for the scores that depend on pods.
    pod_scores: Result<(), ScoreOutOfRange>,
    /// Sequence number of the first change that is not applied yet.
    cursor: u64,
    /// The changes of classes since change `class_changes_since` of the world, for combinations with rows of their own.
    class_changes: Vec<ClassChange>,
    class_changes_since: u64,
    key: ClassKey,
    /// Scratch space: positions of changes.
    effective: Vec<u32>,
    /// Number of times that a row was added, was removed, or changed its class.
    pub(super) n_class_changes: u64,
}

impl RowIndex {
    /// Builds the index from all rows, for one combination or for all with these shared parts. `results` must be up to date.
    pub fn new(
        evaluator: &Evaluator,
        results: &RowResults,
        cx: EvaluatorCx<'_>,
        key_form: KeyForm,
    ) -> RowIndex {
        let mut index = RowIndex {
            key_form,
            buckets: ScoreBuckets::default(),
            table: ClassTable::default(),
            node_passes: Vec::new(),
            node_score: Vec::new(),
            node_scores: Ok(()),
            pod_scores: results.in_range(),
            cursor: cx.world.next_change_seq(),
            class_changes: Vec::new(),
            class_changes_since: cx.world.next_change_seq(),
            key: ClassKey::new(),
            effective: Vec::new(),
            n_class_changes: 0,
        };
        index.grow(evaluator, cx.nodes().n_rows());
        for row in cx.nodes().rows() {
            index.update_node(evaluator, results, cx, row);
        }
        index
    }

    /// `Err` if a score is out of range: the index is then unusable.
    pub fn in_range(&self) -> Result<(), ScoreOutOfRange> {
        self.node_scores?;
        self.pod_scores
    }

    #[cold]
    fn grow(&mut self, evaluator: &Evaluator, n_rows: usize) {
        self.buckets.grow(n_rows);
        self.node_passes.resize(n_rows, 0);
        if evaluator.row_scores(RowDependency::Node).next().is_some() {
            self.node_score.resize(n_rows, 0);
        }
    }

    /// Applies the changes of the world; returns `false` when the index must be rebuilt, because there are more than `max` or the set of
    /// nodes changed. `results` must be up to date.
    pub fn catch_up(
        &mut self,
        evaluator: &Evaluator,
        results: &RowResults,
        cx: EvaluatorCx<'_>,
        max: u64,
    ) -> bool {
        let Some(changes) = cx.world.changes_since(self.cursor) else { return false };
        if changes.len() as u64 > max {
            return false;
        }
        let n_rows = cx.nodes().n_rows();
        if self.node_passes.len() < n_rows {
            self.grow(evaluator, n_rows);
        }
        self.pod_scores = results.in_range();
        let remembers = self.key_form == KeyForm::Shared && evaluator.counts_pods();
        if !remembers {
            self.class_changes.clear();
            self.class_changes_since = cx.world.next_change_seq();
        }
        let are_many = changes.len() >= MANY_CHANGES;
        if are_many {
            self.find_effective(evaluator, results, changes);
        }
        for nth in 0..if are_many { self.effective.len() } else { changes.len() } {
            let at = if are_many { self.effective[nth] as usize } else { nth };
            let (row, counters) = match changes[at] {
                WorldChange::Pods(row, counters) => (row, Some(counters)),
                WorldChange::Node(row) => (row, None),
                WorldChange::NodeSet if evaluator.depends_on_node_set() => return false,
                WorldChange::NodeSet => continue,
            };
            let n_class_changes = self.n_class_changes;
            match counters {
                Some(counters) => self.update_pods(evaluator, results, cx, row, counters),
                None => self.update_node(evaluator, results, cx, row),
            }
            if remembers && self.n_class_changes != n_class_changes {
                self.remember(ClassChange { seq: self.cursor + at as u64, row });
            }
        }
        self.cursor = cx.world.next_change_seq();
        true
    }

    /// Finds the changes that may change a class or a score: all but those of the pods of a row that has its class and its score already.
    ///
    /// An index that has not been used for a while is in no cache of the processor. The positions of the rows are read first, in a loop that
    /// does nothing else: more reads are under way at once than in the loop after it, which executes several times as many instructions per row.
    #[inline(never)]
    fn find_effective(
        &mut self,
        evaluator: &Evaluator,
        results: &RowResults,
        changes: &[WorldChange],
    ) {
        let rows = changes.iter().filter_map(WorldChange::row);
        black_box(rows.fold(0, |all, row| all ^ self.buckets.bucket(row)));
        self.effective.clear();
        self.effective.resize(changes.len(), 0);
        let mut n = 0;
        for (at, change) in (0..).zip(changes) {
            let is_without_effect = match *change {
                WorldChange::Pods(row, counters) => {
                    !evaluator.may_change_class(self.key_form, counters)
                        & self.has_score_of(results, row)
                }
                WorldChange::Node(_) | WorldChange::NodeSet => false,
            };
            self.effective[n] = at;
            n += usize::from(!is_without_effect);
        }
        self.effective.truncate(n);
    }

    /// Whether a row has the score that results now from its pods, or is rejected for them as before.
    fn has_score_of(&self, results: &RowResults, row: NodeRow) -> bool {
        let now = results.get(row).map(|score| score + self.score_of_node(row));
        self.buckets.class_and_score(row).map(|(_, score)| score) == now
    }

    fn score_of_node(&self, row: NodeRow) -> i64 {
        self.node_score.get(row.index()).copied().unwrap_or(0)
    }

    /// The rows whose class changed since this change of the world; `None` if not all of them are remembered.
    pub(super) fn class_changes_since(
        &self,
        then: u64,
    ) -> Option<impl Iterator<Item = NodeRow> + '_> {
        let first = || self.class_changes.partition_point(|it| it.seq < then);
        let is_known = then >= self.class_changes_since;
        is_known.then(|| self.class_changes[first()..].iter().map(|it| it.row))
    }

    fn remember(&mut self, change: ClassChange) {
        if self.class_changes.len() >= CLASS_CHANGES_MAX.min(2 * self.node_passes.len()) {
            self.forget_half_of_changes(change.seq);
        }
        self.class_changes.push(change);
    }

    #[cold]
    fn forget_half_of_changes(&mut self, seq: u64) {
        let half = self.class_changes.len() / 2;
        self.class_changes_since = self.class_changes.get(half).map_or(seq, |it| it.seq);
        self.class_changes.drain(..half);
    }

    /// The class of a row and its score, if it has one.
    pub(super) fn class_and_score(&self, row: NodeRow) -> Option<(u32, i64)> {
        self.buckets.class_and_score(row)
    }

    /// Updates a row whose node was added, updated or deleted.
    #[inline(never)]
    fn update_node(
        &mut self,
        evaluator: &Evaluator,
        results: &RowResults,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
    ) {
        let at = row.index();
        let passes = evaluator.row_passes(cx, RowDependency::Node, row);
        self.node_passes[at] = u8::from(passes);
        if passes && let Some(score) = self.node_score.get_mut(at) {
            let sum = weighted_sum(evaluator.row_scores(RowDependency::Node), cx, row);
            *score = sum.unwrap_or_else(|error| {
                self.node_scores = Err(error);
                0
            });
        }
        // The row may belong to another node now.
        self.n_class_changes += 1;
        self.remove_row(evaluator, row);
        self.update_pods(evaluator, results, cx, row, TopologyCounterSet::ALL);
    }

    /// Updates a row whose pods changed, and with them these counters. Most often its class is the same, and its score a little lower.
    fn update_pods(
        &mut self,
        evaluator: &Evaluator,
        results: &RowResults,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        counters: TopologyCounterSet,
    ) {
        let before = self.buckets.class_and_score(row);
        let Some(pods_score) = results.get(row) else {
            if before.is_some() {
                self.n_class_changes += 1;
                self.remove_row(evaluator, row);
            }
            return;
        };
        let score = pods_score + self.score_of_node(row);
        let Some((class, old)) = before else {
            if self.node_passes[row.index()] != 0 {
                evaluator.class_key(self.key_form, cx, row, &mut self.key);
                self.insert_row(row, score);
            }
            return;
        };
        if evaluator.may_change_class(self.key_form, counters)
            && self.has_other_key(evaluator, cx, row, class)
        {
            self.remove_row(evaluator, row);
            self.insert_row(row, score);
        } else if old != score {
            self.buckets.set_score(row, class, score);
        }
    }

    /// Whether the class key of a row with this class is another one now: that in `key`.
    #[inline(never)]
    fn has_other_key(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        class: u32,
    ) -> bool {
        let known = self.table.key(class, evaluator.class_key_len());
        evaluator.update_class_key(self.key_form, cx, row, known, &mut self.key);
        *known != *self.key
    }

    /// Adds a row to the class with the key in `key`.
    fn insert_row(&mut self, row: NodeRow, score: i64) {
        self.n_class_changes += 1;
        let class = self.table.insert_row(&self.key);
        self.buckets.insert(row, class, score);
    }

    fn remove_row(&mut self, evaluator: &Evaluator, row: NodeRow) {
        if let Some((class, _)) = self.buckets.class_and_score(row) {
            self.buckets.remove(row);
            self.table.remove_row(class, evaluator.class_key_len());
        }
    }
}
