//! The scores of one pod for every row of the node table, by a score formula; used by all plugins of this module.

use std::cell::Cell;

use loadmaster_framework::incremental::{
    ResultDependencies, RowDependency, RowMask, ScoreOutOfRange, check_score_range,
};
use loadmaster_framework::{EvaluatorCx, NodeRow, NodeTable, PluginEvaluator};

use super::resource_amounts::{ScoredColumns, ScoredRequests};
use super::score_formula::ScoreFormula;
use super::simd::columns::ColumnScores;
use super::simd::{RowScores, SimdFormula};

/// A score formula with the requests of one pod.
pub(super) struct ColumnScorer {
    formula: ScoreFormula,
    columns: ScoredColumns,
    /// The SIMD form of the formula, if there is one for these resources.
    simd_formula: Option<SimdFormula>,
}

impl ColumnScorer {
    pub fn new(
        formula: ScoreFormula,
        scored_requests: ScoredRequests,
        nodes: &NodeTable,
    ) -> ColumnScorer {
        let weights = scored_requests.resources.iter().map(|part| part.weight);
        let simd_formula = SimdFormula::new(&formula, weights);
        ColumnScorer { formula, columns: ScoredColumns::new(scored_requests, nodes), simd_formula }
    }

    /// The score of one row.
    pub fn score_row(&self, nodes: &NodeTable, at: usize) -> i64 {
        if let Some(simd_formula) = &self.simd_formula
            && let Some(amounts) = self.columns.two_of_row(nodes, at)
            && let Some(score) = simd_formula.score(amounts)
        {
            return score;
        }
        self.exact(nodes, at)
    }

    /// Adds `weight` times the score to the rows of `set`, which begins with the row `first`, and arbitrary values to other rows. Only
    /// amounts that overflow, which the SIMD form leaves to [`ScoreFormula::score`], can give a score that is out of range.
    pub fn score_rows(
        &self,
        nodes: &NodeTable,
        first: NodeRow,
        set: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        let first = first.index();
        let outcome = Cell::new(Ok(()));
        let exact = |at: usize| self.exact_or_zero(nodes, at, &outcome);
        let Some(scores) = self.row_scores(nodes, &exact) else {
            for at in (0..out.len()).filter(|at| set[*at] != 0) {
                out[at] = out[at].wrapping_add(weight.wrapping_mul(exact(first + at)));
            }
            return outcome.get();
        };
        let of_rows =
            |at: usize, set: &[u8], out: &mut [i64]| scores.add(first + at, set, weight, out);
        let rows = first..first + out.len();
        let of_columns = self.columns.two_of_columns(nodes, rows.clone()).map(|resources| {
            let exact = &nodes.amounts().columns().exact()[rows];
            ColumnScores { simd_formula: scores.simd_formula, resources, exact }
        });
        if !of_columns.is_some_and(|columns| columns.add(set, weight, out, &of_rows)) {
            of_rows(0, set, out);
        }
        outcome.get()
    }

    /// Adds `weight` times the score of each of these rows to the element of `out` at the same place.
    pub fn score_listed(
        &self,
        nodes: &NodeTable,
        rows: &[NodeRow],
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        let outcome = Cell::new(Ok(()));
        let exact = |at| self.exact_or_zero(nodes, at, &outcome);
        match self.row_scores(nodes, &exact) {
            Some(scores) => scores.add_listed(rows, weight, out),
            None => {
                for (row, sum) in rows.iter().zip(out) {
                    *sum = sum.wrapping_add(weight.wrapping_mul(exact(row.index())));
                }
            }
        }
        outcome.get()
    }

    /// The SIMD form for these resources, if there is one. `exact` is the score of a row without it.
    fn row_scores<'a>(
        &'a self,
        nodes: &'a NodeTable,
        exact: &'a dyn Fn(usize) -> i64,
    ) -> Option<RowScores<'a>> {
        let simd_formula = self.simd_formula.as_ref()?;
        let resources = self.columns.two_of_single_rows(nodes)?;
        Some(RowScores { simd_formula, resources, exact })
    }

    /// Whether resolving the columns again would make scoring faster.
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        self.columns.is_stale(nodes)
    }

    /// The score of one row; if it is out of range, 0, and `outcome` is the error.
    fn exact_or_zero(
        &self,
        nodes: &NodeTable,
        at: usize,
        outcome: &Cell<Result<(), ScoreOutOfRange>>,
    ) -> i64 {
        check_score_range(self.exact(nodes, at)).unwrap_or_else(|error| {
            outcome.set(Err(error));
            0
        })
    }

    #[cold]
    fn exact(&self, nodes: &NodeTable, at: usize) -> i64 {
        self.formula.score(self.columns.row_amounts(nodes, at))
    }
}

/// The evaluator of a plugin that does nothing but score.
pub(super) struct ScoreEvaluator(pub ColumnScorer);

impl PluginEvaluator for ScoreEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        ResultDependencies { score: Some(RowDependency::Pods), ..ResultDependencies::default() }
    }

    fn score_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        self.0.score_row(cx.nodes(), row.index())
    }

    fn score_rows(
        &self,
        cx: EvaluatorCx<'_>,
        first: NodeRow,
        set: &RowMask,
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        self.0.score_rows(cx.nodes(), first, set, weight, out)
    }

    fn score_listed_rows(
        &self,
        cx: EvaluatorCx<'_>,
        rows: &[NodeRow],
        weight: i64,
        out: &mut [i64],
    ) -> Result<(), ScoreOutOfRange> {
        self.0.score_listed(cx.nodes(), rows, weight, out)
    }

    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        self.0.is_stale(cx.nodes())
    }
}
