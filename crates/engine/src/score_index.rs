//! The score index of one combination of keys: feasible rows by class and score, updated from the world's change log.
//!
//! Most of it is a [`RowIndex`] that combinations share. Each has for itself only the [`CountedRows`]; a combination that shares with no other
//! has a [`RowIndex`] with its own classes.

mod best_rows;
mod classes;
mod counted_rows;
mod row_index;

use std::sync::Arc;

use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::{EvaluatorCx, NodeRow};
use loadmaster_stdx::Rng;

use crate::combination_id::CombinationId;
use crate::decision::Decision;
use crate::evaluate::incremental::{Evaluator, KeyForm};
use crate::evaluate::row_results::RowResults;
use crate::row_names::{FeasibleNodes, RowNames};
use best_rows::{BestRows, Part};
use classes::Classes;
use counted_rows::CountedRows;
pub(crate) use row_index::RowIndex;

/// A row index that combinations of keys share.
#[derive(Default)]
pub(crate) struct SharedRowIndex {
    /// Most combinations of keys have none: those of pods that are scheduled once.
    index: Option<Box<RowIndex>>,
    /// The combination whose classes the index has.
    owner: Option<CombinationId>,
    /// Number of times that an index was built here.
    n_built: u64,
    /// Sequence number of the world's changes when it was last asked for.
    checked_at: u64,
}

impl SharedRowIndex {
    /// Drops the index, for example because a score is out of range.
    pub fn drop_index(&mut self) {
        self.index = None;
    }

    /// Brings the index up to date over at most `changes_max` changes, and builds it if `may_build` and at most half as many were made since
    /// it was last asked for; returns whether there is one. `only_user` is the combination that uses it if there is only one.
    pub fn refresh(
        &mut self,
        evaluator: &Evaluator,
        results: &mut RowResults,
        cx: EvaluatorCx<'_>,
        (changes_max, may_build): (u64, bool),
        only_user: Option<CombinationId>,
    ) -> bool {
        let next = cx.world.next_change_seq();
        let behind = next - self.checked_at;
        self.checked_at = next;
        if behind > changes_max || self.owner.is_some() && self.owner != only_user {
            self.index = None;
        }
        if self.index.is_none() && (!may_build || behind > changes_max / 2) {
            return false;
        }
        results.catch_up(cx);
        let index = self.index.as_mut();
        if !index.is_some_and(|it| it.catch_up(evaluator, results, cx, changes_max)) {
            self.build(evaluator, results, cx, only_user);
        }
        true
    }

    #[cold]
    fn build(
        &mut self,
        evaluator: &Evaluator,
        results: &RowResults,
        cx: EvaluatorCx<'_>,
        only_user: Option<CombinationId>,
    ) {
        self.owner = only_user.filter(|_| evaluator.counts_pods());
        let key_form = self.owner.map_or(KeyForm::Shared, |_| KeyForm::Counted);
        self.index = Some(Box::new(RowIndex::new(evaluator, results, cx, key_form)));
        self.n_built += 1;
    }
}

/// What a score index has for itself.
pub(crate) struct ScoreIndex {
    /// `None` if classes do not depend on counters, or the shared index is that of this combination alone.
    counted: Option<CountedRows>,
    /// [`SharedRowIndex::n_built`] of the index that it belongs to.
    n_built: u64,
    /// Sequence number of the first change that is not applied yet.
    cursor: u64,
    /// The feasible nodes that were found last.
    feasible_nodes: Option<(FeasibleRowsKey, Arc<FeasibleNodes>)>,
    /// Scratch space.
    parts: Vec<Part>,
}

/// For equal values of this the same rows are feasible: numbers of changes of classes, and which classes are feasible.
type FeasibleRowsKey = (u64, u64, Vec<bool>);

impl ScoreIndex {
    /// The index on an up to date shared one.
    #[cold]
    pub fn new(evaluator: &Evaluator, shared: &SharedRowIndex, cx: EvaluatorCx<'_>) -> ScoreIndex {
        let index = shared.index.as_deref();
        let index = index.filter(|it| it.key_form == KeyForm::Shared && evaluator.counts_pods());
        ScoreIndex {
            counted: index.map(|index| CountedRows::new(evaluator, index, cx)),
            n_built: shared.n_built,
            cursor: cx.world.next_change_seq(),
            feasible_nodes: None,
            parts: Vec::new(),
        }
    }

    /// The index of another combination on the same shared index, if there are counted rows. All keys of that one whose counters count any pod are
    /// keys of this one, which must be up to date.
    pub fn for_other(
        &self,
        other: &Evaluator,
        shared: &SharedRowIndex,
        cx: EvaluatorCx<'_>,
    ) -> Option<ScoreIndex> {
        let (counted, index) = (self.counted.as_ref()?, shared.index.as_deref()?);
        Some(ScoreIndex {
            counted: Some(counted.for_other(other, index, cx)),
            n_built: self.n_built,
            cursor: self.cursor,
            feasible_nodes: None,
            parts: Vec::new(),
        })
    }

    /// Applies the changes of the world, which were applied to the shared index before; returns `false` when the index must be rebuilt.
    pub fn catch_up(
        &mut self,
        evaluator: &Evaluator,
        shared: &SharedRowIndex,
        cx: EvaluatorCx<'_>,
    ) -> bool {
        if self.n_built != shared.n_built {
            return false;
        }
        if let (Some(counted), Some(index)) = (&mut self.counted, &shared.index)
            && counted.apply(evaluator, index, cx, self.cursor).is_none()
        {
            return false;
        }
        self.cursor = cx.world.next_change_seq();
        true
    }
}

/// An up to date score index with all that it consists of.
pub(crate) struct IndexedRows<'a> {
    evaluator: &'a Evaluator,
    index: &'a mut RowIndex,
    own: &'a mut ScoreIndex,
}

impl<'a> IndexedRows<'a> {
    /// `None` if the shared index was dropped or built again since the index was last updated.
    pub fn new(
        evaluator: &'a Evaluator,
        shared: &'a mut SharedRowIndex,
        own: &'a mut ScoreIndex,
    ) -> Option<IndexedRows<'a>> {
        let is_current = shared.n_built == own.n_built;
        let index = shared.index.as_deref_mut().filter(|_| is_current)?;
        Some(IndexedRows { evaluator, index, own })
    }

    /// Selects one of the rows with the highest total. `Err` when a score is out of range: the index is then unusable.
    pub fn select_node(
        &mut self,
        cx: EvaluatorCx<'_>,
        rng: &mut Rng,
    ) -> Result<Decision, ScoreOutOfRange> {
        self.evaluate_classes(cx)?;
        let best = self.find_best();
        Ok(match best.pick(rng) {
            Some(row) => {
                cx.nodes().preload(row);
                Decision::Selected { row, total: best.total, n_ties: None }
            }
            None => Decision::Unschedulable,
        })
    }

    /// All rows among which [`IndexedRows::select_node`] selects one.
    pub fn best_rows(&mut self, cx: EvaluatorCx<'_>) -> Result<Vec<NodeRow>, ScoreOutOfRange> {
        self.evaluate_classes(cx)?;
        Ok(self.find_best().rows().collect())
    }

    fn find_best(&mut self) -> BestRows<'_> {
        let ScoreIndex { counted, parts, .. } = &mut *self.own;
        let classes = Classes::new(self.index, counted.as_ref());
        BestRows::new(classes, parts)
    }

    /// All feasible nodes.
    pub fn feasible_nodes(
        &mut self,
        cx: EvaluatorCx<'_>,
        names: &mut RowNames,
    ) -> Result<Arc<FeasibleNodes>, ScoreOutOfRange> {
        self.evaluate_classes(cx)?;
        let n_own_changes = self.own.counted.as_ref().map_or(0, |counted| counted.n_class_changes);
        let n_changes = self.index.n_class_changes;
        if let Some(((shared, own, feasible), nodes)) = &self.own.feasible_nodes
            && (*shared, *own) == (n_changes, n_own_changes)
            && *feasible == self.classes().table.feasible
        {
            return Ok(nodes.clone());
        }
        let rows = self.feasible_rows().map(|(row, _)| row).collect();
        let nodes = names.of(cx.world, rows);
        let key = (n_changes, n_own_changes, self.classes().table.feasible.clone());
        self.own.feasible_nodes = Some((key, nodes.clone()));
        Ok(nodes)
    }

    /// Every feasible row with its total, by row.
    pub fn total_scores(
        &mut self,
        cx: EvaluatorCx<'_>,
    ) -> Result<impl Iterator<Item = (NodeRow, i64)>, ScoreOutOfRange> {
        self.evaluate_classes(cx)?;
        Ok(self.feasible_rows())
    }

    fn evaluate_classes(&mut self, cx: EvaluatorCx<'_>) -> Result<(), ScoreOutOfRange> {
        self.index.in_range()?;
        let table = match &mut self.own.counted {
            Some(counted) => {
                counted.combine_classes(self.index, self.evaluator.class_key_len());
                &mut counted.all_classes
            }
            None => &mut self.index.table,
        };
        self.evaluator.filter_classes(cx, table);
        self.evaluator.score_classes(cx, table)
    }

    fn classes(&self) -> Classes<'_> {
        Classes::new(self.index, self.own.counted.as_ref())
    }

    fn feasible_rows(&self) -> impl Iterator<Item = (NodeRow, i64)> + '_ {
        let classes = self.classes();
        let rows = classes.index.buckets.rows();
        rows.filter_map(move |(row, class, score)| Some((row, score + classes.offset(row, class)?)))
    }
}
