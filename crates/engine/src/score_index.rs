//! The score index of one combination of keys: feasible rows by class and score, updated from the world's change log.

use std::sync::Arc;

use loadmaster_framework::incremental::{ClassKey, RowDependency, ScoreOutOfRange};
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow};
use loadmaster_stdx::Rng;

use crate::decision::Decision;
use crate::evaluate::incremental::{ClassTable, Evaluator};
use crate::evaluate::score_buckets::ScoreBuckets;
use crate::row_names::{FeasibleNodes, RowNames};

/// The feasible rows of pods with equal keys, by class and score.
pub(crate) struct ScoreIndex {
    buckets: ScoreBuckets,
    table: ClassTable,
    /// 1 where the row passes the filters that depend only on the node object.
    node_passes: Vec<u8>,
    /// The part of the row-local score that depends only on the node object.
    node_score: Vec<i64>,
    /// `Err` if a row's score was out of range since the index was built.
    row_scores: Result<(), ScoreOutOfRange>,
    /// Sequence number of the first change that is not applied yet.
    cursor: u64,
    key: ClassKey,
    /// The feasible nodes for a set of feasible classes, cached until a row is added, is removed, or changes its class.
    feasible_nodes: Option<(Vec<bool>, Arc<FeasibleNodes>)>,
}

impl ScoreIndex {
    /// Builds the index from all rows.
    pub fn new(evaluator: &Evaluator, cx: EvaluatorCx<'_>) -> ScoreIndex {
        let n_rows = cx.nodes().n_rows();
        let mut index = ScoreIndex {
            buckets: ScoreBuckets::default(),
            table: ClassTable::default(),
            node_passes: vec![0; n_rows],
            node_score: vec![0; n_rows],
            row_scores: Ok(()),
            cursor: cx.world.next_change_seq(),
            key: ClassKey::new(),
            feasible_nodes: None,
        };
        index.buckets.clear(n_rows);
        for row in cx.nodes().rows() {
            index.update_node(evaluator, cx, row);
        }
        index
    }

    /// Applies the changes of the world; returns `false` when the index must be rebuilt.
    pub fn catch_up(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) -> bool {
        let Some(changes) = cx.world.changes_since(self.cursor) else { return false };
        let n_rows = cx.nodes().n_rows();
        self.buckets.grow(n_rows);
        self.node_passes.resize(n_rows, 0);
        self.node_score.resize(n_rows, 0);
        for change in changes {
            match change {
                WorldChange::Pods(row) => self.update_pods(evaluator, cx, *row),
                WorldChange::Node(row) => self.update_node(evaluator, cx, *row),
                WorldChange::NodeSet if evaluator.depends_on_node_set() => return false,
                WorldChange::NodeSet => {}
            }
        }
        self.cursor = cx.world.next_change_seq();
        true
    }

    /// Selects one of the rows with the highest total. `Err` when a score is out of range: the index is then unusable.
    pub fn select_node(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        rng: &mut Rng,
    ) -> Result<Decision, ScoreOutOfRange> {
        self.evaluate_classes(evaluator, cx)?;
        let picked = self.buckets.best(&self.table).and_then(|best| {
            let row = self.buckets.pick_best_row(&self.table, best, rng)?;
            Some(Decision::Selected { row, total: best.total, n_ties: best.n_ties })
        });
        Ok(picked.unwrap_or(Decision::Unschedulable))
    }

    /// All feasible nodes.
    pub fn feasible_nodes(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        names: &mut RowNames,
    ) -> Result<Arc<FeasibleNodes>, ScoreOutOfRange> {
        self.evaluate_classes(evaluator, cx)?;
        if let Some((classes, nodes)) = &self.feasible_nodes
            && *classes == self.table.feasible
        {
            return Ok(nodes.clone());
        }
        let rows = self.buckets.total_scores(&self.table).map(|(row, _)| row).collect();
        let nodes = names.of(cx.world, rows);
        self.feasible_nodes = Some((self.table.feasible.clone(), nodes.clone()));
        Ok(nodes)
    }

    /// Every feasible row with its total, by row.
    pub fn total_scores(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
    ) -> Result<impl Iterator<Item = (NodeRow, i64)>, ScoreOutOfRange> {
        self.evaluate_classes(evaluator, cx)?;
        Ok(self.buckets.total_scores(&self.table))
    }

    fn evaluate_classes(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
    ) -> Result<(), ScoreOutOfRange> {
        self.row_scores?;
        evaluator.filter_classes(cx, &mut self.table);
        evaluator.score_classes(cx, &mut self.table)
    }

    /// The row-local score; if it is out of range, 0, and the error is stored.
    fn score_row(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        row: NodeRow,
        which: RowDependency,
    ) -> i64 {
        evaluator.score_row(cx, row, which).unwrap_or_else(|error| {
            self.row_scores = Err(error);
            0
        })
    }

    /// Updates a row whose node was added, updated or deleted.
    fn update_node(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>, row: NodeRow) {
        let nodes = cx.nodes();
        let at = row.index();
        let passes =
            nodes.node(row).is_some() && evaluator.passes_row_filters(cx, row, RowDependency::Node);
        self.node_passes[at] = u8::from(passes);
        self.node_score[at] =
            if passes { self.score_row(evaluator, cx, row, RowDependency::Node) } else { 0 };
        // The row may belong to another node now.
        self.feasible_nodes = None;
        self.remove_row(evaluator, row);
        if passes {
            self.update_pods(evaluator, cx, row);
        }
    }

    /// Updates a row whose pods changed.
    fn update_pods(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>, row: NodeRow) {
        if self.node_passes[row.index()] == 0 {
            return;
        }
        if !evaluator.passes_row_filters(cx, row, RowDependency::Pods) {
            if self.buckets.class_and_score(row).is_some() {
                self.feasible_nodes = None;
            }
            self.remove_row(evaluator, row);
            return;
        }
        let score =
            self.node_score[row.index()] + self.score_row(evaluator, cx, row, RowDependency::Pods);
        let before = self.buckets.class_and_score(row);
        match before {
            Some((class, old)) if !evaluator.class_key_depends_on_pods() => {
                if old != score {
                    self.buckets.remove(row);
                    self.buckets.insert(row, class, score);
                }
                return;
            }
            Some((class, _)) => {
                let known = self.table.key(class, evaluator.class_key_len());
                evaluator.update_class_key(cx, row, known, &mut self.key);
            }
            None => evaluator.class_key(cx, row, &mut self.key),
        }
        // Inserting before removing preserves a class whose only row stays in it.
        let class = self.table.insert_row(&self.key);
        if before.is_none_or(|(before, _)| before != class) {
            self.feasible_nodes = None;
        }
        self.remove_row(evaluator, row);
        self.buckets.insert(row, class, score);
    }

    fn remove_row(&mut self, evaluator: &Evaluator, row: NodeRow) {
        if let Some((class, _)) = self.buckets.class_and_score(row) {
            self.buckets.remove(row);
            self.table.remove_row(class, evaluator.class_key_len());
        }
    }
}
