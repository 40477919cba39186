//! The row-local results that depend on the pods of a node, computed once for all combinations of keys that have them in common.
//!
//! Pods of many controllers request the same resources and differ in their affinity or their spread constraints. Each has a score index of
//! its own, but a placement changes what a row has left only once.

use std::hint::black_box;

use loadmaster_framework::incremental::{RowDependency, ScoreOutOfRange, check_score_range};
use loadmaster_framework::world::WorldChange;
use loadmaster_framework::{EvaluatorCx, NodeRow, World};

use super::evaluator_part::EvaluatorPart;
use super::incremental::Evaluator;
use super::row_blocks;
use crate::guard::ExtensionPoint;

/// All rows are computed at once if there is more than one change per this many rows: the vector loops are about as many times faster
/// per row.
const ROWS_PER_CHANGE: usize = 8;

/// Up to so many changes are always applied.
const CHANGES_MIN: usize = 64;

/// From this number of changes on, rows are scored as a list.
const LISTED_MIN: usize = 16;

/// Stored for a row that a filter rejects, or that holds no node.
const REJECTED: i64 = i64::MIN;

/// Results of the filters and scores that depend on a row's pods ([`RowDependency::Pods`]).
pub(crate) struct RowResults {
    filters: Vec<EvaluatorPart>,
    scores: Vec<EvaluatorPart>,
    /// Whether a result depends on the set of nodes.
    node_set: bool,
    /// By row: the weighted sum of the scores, or [`REJECTED`].
    of_row: Vec<i64>,
    /// `Err` if a row's score was out of range since all rows were computed; the row's sum is then 0.
    in_range: Result<(), ScoreOutOfRange>,
    /// Sequence number of the first change that is not applied yet; `None` until the rows are computed.
    cursor: Option<u64>,
    /// Scratch space: the changed rows that pass the filters, and their sums.
    changed: Vec<NodeRow>,
    sums: Vec<i64>,
}

impl RowResults {
    /// The results of those plugins of an evaluator that have such results. No row is computed yet.
    pub fn new(evaluator: &Evaluator) -> RowResults {
        let filters = evaluator.row_filters(RowDependency::Pods).cloned().collect();
        let scores = evaluator.row_scores(RowDependency::Pods).cloned().collect();
        let node_set = evaluator.depends_on_node_set();
        RowResults {
            filters,
            scores,
            node_set,
            of_row: Vec::new(),
            in_range: Ok(()),
            cursor: None,
            changed: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// The weighted sum of the scores of a row; `None` if a filter rejects it.
    #[inline]
    pub fn get(&self, row: NodeRow) -> Option<i64> {
        let sum = self.of_row[row.index()];
        (sum != REJECTED).then_some(sum)
    }

    /// Writes the weighted sums of the scores of these rows, or of all: 0 where a filter rejects the row.
    pub fn write_sums(&self, rows: Option<&[NodeRow]>, to: &mut [i64]) {
        let write = |(to, sum): (&mut i64, &i64)| *to = if *sum == REJECTED { 0 } else { *sum };
        match rows {
            Some(rows) => {
                let sums = rows.iter().map(|row| &self.of_row[row.index()]);
                to.iter_mut().zip(sums).for_each(write);
            }
            None => to.iter_mut().zip(&self.of_row).for_each(write),
        }
    }

    /// Removes the rows from `set` that a filter rejects.
    pub fn retain_feasible(&self, set: &mut [u8]) {
        for (member, sum) in set.iter_mut().zip(&self.of_row) {
            *member &= u8::from(*sum != REJECTED);
        }
    }

    /// Whether all changes of the world are applied.
    pub fn is_up_to_date(&self, cx: EvaluatorCx<'_>) -> bool {
        self.cursor == Some(cx.world.next_change_seq())
    }

    /// `Err` if a score is out of range: the sums are then meaningless.
    pub fn in_range(&self) -> Result<(), ScoreOutOfRange> {
        self.in_range
    }

    /// Brings the results up to date.
    pub fn catch_up(&mut self, cx: EvaluatorCx<'_>) {
        if self.is_up_to_date(cx) {
            return;
        }
        if !self.apply_changes(cx) {
            self.compute_all(cx);
        }
        self.cursor = Some(cx.world.next_change_seq());
    }

    /// Whether bringing the results up to date scans all nodes: that is necessary, or faster.
    pub fn needs_scan(&self, world: &World) -> bool {
        self.changes_of_rows(world).is_none()
    }

    /// The changes after which only the rows that changed have to be computed; `None` if all rows are to be computed.
    fn changes_of_rows<'w>(&self, world: &'w World) -> Option<&'w [WorldChange]> {
        let changes = world.changes_since(self.cursor?)?;
        let has_new_nodes = || changes.iter().any(|change| matches!(change, WorldChange::NodeSet));
        let are_few = changes.len() <= (world.nodes().n_rows() / ROWS_PER_CHANGE).max(CHANGES_MIN);
        let holds = self.in_range.is_ok() && are_few && !(self.node_set && has_new_nodes());
        holds.then_some(changes)
    }

    /// Computes the rows that changed; returns `false` when all rows are to be computed.
    fn apply_changes(&mut self, cx: EvaluatorCx<'_>) -> bool {
        let Some(changes) = self.changes_of_rows(cx.world) else { return false };
        self.of_row.resize(cx.nodes().n_rows(), REJECTED);
        let rows = changes.iter().filter_map(WorldChange::row);
        if changes.len() < LISTED_MIN {
            rows.for_each(|row| self.compute_row(cx, row));
            return true;
        }
        self.compute_listed(cx, rows);
        true
    }

    /// Computes these rows, one plugin after the other.
    #[inline(never)]
    fn compute_listed(&mut self, cx: EvaluatorCx<'_>, rows: impl Iterator<Item = NodeRow> + Clone) {
        // What was not used for a while is in no cache of the processor. A loop that does nothing but read has the most reads under way at once.
        black_box(rows.clone().fold(0, |all, row| all ^ self.of_row[row.index()]));
        self.changed.clear();
        for row in rows {
            self.of_row[row.index()] = REJECTED;
            if cx.nodes().columns().occupied[row.index()] != 0 {
                self.changed.push(row);
            }
        }
        for part in &self.filters {
            part.enter(ExtensionPoint::Filter).filter_listed_rows(cx, &mut self.changed);
        }
        self.score_changed(cx);
    }

    fn score_changed(&mut self, cx: EvaluatorCx<'_>) {
        let RowResults { scores, changed, sums, of_row, .. } = self;
        sums.clear();
        sums.resize(changed.len(), 0);
        let scored = scores.iter().try_for_each(|part| {
            let evaluator = part.enter(ExtensionPoint::Score);
            evaluator.score_listed_rows(cx, changed, part.weight, sums)
        });
        for (row, sum) in changed.iter().zip(sums) {
            of_row[row.index()] = *sum;
        }
        if scored.is_err() {
            let changed = std::mem::take(&mut self.changed);
            changed.iter().for_each(|row| self.compute_row(cx, *row));
        }
    }

    #[cold]
    fn compute_all(&mut self, cx: EvaluatorCx<'_>) {
        let mut set = cx.nodes().columns().occupied.clone();
        let RowResults { filters, scores, of_row, .. } = self;
        of_row.resize(set.len(), 0);
        self.in_range = row_blocks::filter_and_score(
            cx,
            filters.iter(),
            scores.iter(),
            &mut set,
            of_row,
            |_, _| (),
        );
        if self.in_range.is_err() {
            cx.nodes().rows().for_each(|row| self.compute_row(cx, row));
        }
        for (sum, member) in self.of_row.iter_mut().zip(&set) {
            if *member == 0 {
                *sum = REJECTED;
            }
        }
    }

    /// Whether the row holds a node that passes the filters.
    fn passes(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let mut filters = self.filters.iter();
        cx.nodes().columns().occupied[row.index()] != 0
            && filters.all(|part| part.enter(ExtensionPoint::Filter).filter_row(cx, row))
    }

    fn compute_row(&mut self, cx: EvaluatorCx<'_>, row: NodeRow) {
        let sum = if self.passes(cx, row) { self.sum_of_row(cx, row) } else { REJECTED };
        self.of_row[row.index()] = sum;
    }

    fn sum_of_row(&mut self, cx: EvaluatorCx<'_>, row: NodeRow) -> i64 {
        let sum = weighted_sum(self.scores.iter(), cx, row);
        sum.unwrap_or_else(|error| {
            self.in_range = Err(error);
            0
        })
    }
}

/// The weighted sum of the scores of a row.
pub(crate) fn weighted_sum<'a>(
    parts: impl Iterator<Item = &'a EvaluatorPart>,
    cx: EvaluatorCx<'_>,
    row: NodeRow,
) -> Result<i64, ScoreOutOfRange> {
    let mut sum = 0;
    for part in parts {
        let score = part.enter(ExtensionPoint::Score).score_row(cx, row);
        sum += part.weight * check_score_range(score)?;
    }
    Ok(sum)
}
