//! A full scan of all rows: for combinations of keys without a score index, and for plugins without an incremental form. If few nodes pass
//! the filters that depend only on the node object, it is a scan of these rows.

mod per_node_plugins;
mod scanned_rows;

use loadmaster_framework::incremental::{ClassKey, RowDependency, ScoreOutOfRange};
use loadmaster_framework::{CycleState, EvaluatorCx, NodeRow, PluginStates, PodInfo, World};
use loadmaster_stdx::Rng;

use crate::decision::Decision;
use crate::evaluate::class_table::ClassTable;
use crate::evaluate::highest_totals::{HighestTotals, SelectedRow};
use crate::evaluate::incremental::{Evaluator, RowScores};
use crate::evaluate::node_rows::NodeRows;
use crate::evaluate::plugin_loops::{PluginLoops, ScoreError};
use crate::evaluate::row_blocks::{self, ROWS_PER_BLOCK};
use crate::evaluate::row_classes::RowClasses;
use crate::evaluate::row_results::RowResults;
use crate::node_sampling::RotatingNodeOrder;
use crate::profile::Profile;
use per_node_plugins::PerNodePlugins;
use scanned_rows::ScannedRows;

/// Scratch space and result of a full scan.
#[derive(Default)]
pub(crate) struct FullScan {
    rows: ScannedRows,
    /// By scanned row: 1 where the row is feasible.
    set: Vec<u8>,
    /// By scanned row, without `offset`.
    totals: Vec<i64>,
    /// The highest totals by block of scanned rows; cleared where totals or the set change after they were computed.
    highest: HighestTotals,
    /// What the only class adds to every total, if class keys are empty.
    offset: i64,
    /// What came of the row-local scores, if they were computed together with the filters.
    scored: Option<Result<(), ScoreOutOfRange>>,
    /// By scanned row that was a member of the set after the row-local filters: its class.
    class_of: Vec<u32>,
    table: ClassTable,
    failure: Option<ScanError>,
    cycle: CycleState,
}

/// Why a full scan has no result.
enum ScanError {
    /// A plugin failed.
    Failed(String),
    /// A score is out of range.
    OutOfRange,
}

impl From<ScoreOutOfRange> for ScanError {
    fn from(_: ScoreOutOfRange) -> Self {
        ScanError::OutOfRange
    }
}

impl From<ScoreError> for ScanError {
    fn from(error: ScoreError) -> Self {
        match error {
            ScoreError::Failed(failure) => ScanError::Failed(failure.to_string()),
            ScoreError::OutOfRange(_) => ScanError::OutOfRange,
        }
    }
}

/// What is scanned, and for which pod.
pub(crate) struct Scan<'a, 'e> {
    pub evaluator: &'a Evaluator,
    /// The classes of rows for all evaluators with the same class keys.
    pub classes: &'a mut RowClasses,
    /// The rows that pass the filters that depend only on the node object, if they are up to date.
    pub node_rows: Option<&'a NodeRows>,
    /// The row-local results that depend on pods, if they are up to date.
    pub results: Option<&'a RowResults>,
    pub profile: &'a Profile,
    pub world: &'a World,
    pub states: &'a mut PluginStates,
    pub pod: &'a PodInfo,
    /// Rows that are blocked by nominated pods or excluded by extenders.
    pub excluded: &'a [NodeRow],
    /// Only so many feasible rows are scored, in search order.
    pub early: Option<(&'e mut RotatingNodeOrder, usize)>,
}

impl FullScan {
    /// Filters and scores all rows.
    pub fn run(&mut self, scan: Scan<'_, '_>) {
        let results = scan.results;
        // An early end counts rows in search order.
        let may_list = scan.early.is_none();
        let mut rest = self.filter(scan, may_list, true);
        if self.failure.is_none() {
            self.failure = self.score(&mut rest, results).err();
        }
        self.cycle = rest.loops.cycle;
    }

    /// The same without scoring: every total is 0.
    pub fn run_filters(&mut self, scan: Scan<'_, '_>) {
        self.cycle = self.filter(scan, false, false).loops.cycle;
    }

    fn filter<'a>(
        &mut self,
        scan: Scan<'a, '_>,
        may_list: bool,
        scores: bool,
    ) -> PerNodePlugins<'a> {
        (self.failure, self.offset) = (None, 0);
        self.highest.clear();
        self.filter_rows(&scan, may_list, scores);
        if self.scored.is_none() {
            self.totals.clear();
            self.totals.resize(self.set.len(), 0);
        }
        let Scan { evaluator, classes, profile, world, states, pod, excluded, early, .. } = scan;
        let cx = EvaluatorCx { world, states };
        self.classify(evaluator, classes, cx);
        let filters_classes = evaluator.filters_classes();
        if filters_classes {
            self.table.count_rows(&self.class_of, &self.set);
            evaluator.filter_classes(cx, &mut self.table);
            self.drop_infeasible_classes(evaluator);
        }
        for at in excluded.iter().filter_map(|row| self.rows.position(*row)) {
            self.set[at] = 0;
        }
        let only = Some(evaluator.per_node_plugins.as_slice());
        let loops = PluginLoops { only, ..PluginLoops::new(profile, states, pod) };
        let mut rest = PerNodePlugins { evaluator, world, loops };
        if !evaluator.per_node_plugins.is_empty()
            && let Err(failure) = rest.filter(&self.rows, &mut self.set)
        {
            self.failure = Some(ScanError::Failed(failure));
        }
        let is_smaller =
            !evaluator.per_node_plugins.is_empty() || !excluded.is_empty() || early.is_some();
        if is_smaller {
            self.highest.clear();
        }
        if let Some((course, n_wanted)) = early {
            course.retain_first(n_wanted, &mut self.set);
        }
        if (is_smaller || !filters_classes) && self.failure.is_none() {
            self.count_class_rows(filters_classes);
        }
        rest
    }

    /// Applies the row-local filters: to the rows that pass those of the node object, if these are listed, or to all. Scores
    /// all rows as well where that is asked for and their results are not known.
    fn filter_rows(&mut self, scan: &Scan<'_, '_>, may_list: bool, scores: bool) {
        let Scan { evaluator, node_rows, results, world, .. } = *scan;
        let cx = EvaluatorCx { world, states: scan.states };
        self.set.clear();
        self.scored = None;
        if let Some(listed) = node_rows.and_then(NodeRows::listed).filter(|_| may_list) {
            let rows = self.rows.set_list(listed);
            match results {
                Some(results) => rows.retain(|row| results.get(*row).is_some()),
                None => evaluator.filter_listed_rows(cx, RowDependency::Pods, rows),
            }
            self.set.resize(rows.len(), 1);
            return;
        }
        self.rows.set_all();
        match node_rows {
            Some(node_rows) => node_rows.copy_to(world.nodes().n_rows(), &mut self.set),
            None => {
                self.set.extend_from_slice(&world.nodes().columns().occupied);
                evaluator.filter_rows(cx, RowDependency::Node, &mut self.set);
            }
        }
        match results {
            Some(results) => results.retain_feasible(&mut self.set),
            None if scores => self.filter_and_score(evaluator, cx),
            None => evaluator.filter_rows(cx, RowDependency::Pods, &mut self.set),
        }
    }

    /// Applies the row-local filters that depend on pods to all rows, and computes all row-local scores.
    fn filter_and_score(&mut self, evaluator: &Evaluator, cx: EvaluatorCx<'_>) {
        let filters = evaluator.row_filters(RowDependency::Pods);
        let [of_pods, of_node] =
            [RowDependency::Pods, RowDependency::Node].map(|which| evaluator.row_scores(which));
        let FullScan { set, totals, highest, .. } = self;
        totals.resize(set.len(), 0);
        let scores = of_pods.chain(of_node);
        let on_block = |set: &[u8], totals: &[i64]| highest.push_block(set, totals);
        self.scored =
            Some(row_blocks::filter_and_score(cx, filters, scores, set, totals, on_block));
    }

    /// Takes the cycle state of the plugins that were evaluated per node.
    pub fn take_cycle_state(&mut self) -> CycleState {
        std::mem::take(&mut self.cycle)
    }

    fn score(
        &mut self,
        rest: &mut PerNodePlugins<'_>,
        results: Option<&RowResults>,
    ) -> Result<(), ScanError> {
        let evaluator = rest.evaluator;
        let cx = EvaluatorCx { world: rest.world, states: rest.loops.states };
        if let Some(scored) = self.scored {
            scored?;
        } else {
            match results {
                Some(results) => {
                    results.in_range()?;
                    results.write_sums(self.rows.listed(), &mut self.totals);
                }
                None => self.score_rows(evaluator, cx, RowDependency::Pods)?,
            }
            self.score_rows(evaluator, cx, RowDependency::Node)?;
        }
        evaluator.score_classes(cx, &mut self.table)?;
        self.add_offsets(evaluator);
        if evaluator.per_node_plugins.is_empty() {
            return Ok(());
        }
        self.highest.clear();
        rest.score(&self.rows, &self.set, &mut self.totals)
    }

    fn score_rows(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
        which: RowDependency,
    ) -> Result<(), ScoreOutOfRange> {
        match self.rows.listed() {
            Some(rows) => evaluator.score_listed_rows(cx, which, rows, &mut self.totals),
            None => evaluator.score_rows(cx, which, &self.set, &mut self.totals),
        }
    }

    /// Selects one of the rows with the highest total at random. `Err` when a score is out of range.
    #[inline(never)]
    pub fn select_node(&mut self, rng: &mut Rng) -> Result<Decision, ScoreOutOfRange> {
        match &self.failure {
            None => Ok(self.pick_best(rng)),
            Some(ScanError::Failed(failure)) => Ok(Decision::Failed(failure.clone())),
            Some(ScanError::OutOfRange) => Err(ScoreOutOfRange),
        }
    }

    fn pick_best(&mut self, rng: &mut Rng) -> Decision {
        match self.highest.select(&self.set, &self.totals, rng) {
            Some(SelectedRow { at, total, n_ties }) => Decision::Selected {
                row: self.rows.row(at),
                total: total + self.offset,
                n_ties: Some(n_ties),
            },
            None => Decision::Unschedulable,
        }
    }

    /// The failure of a plugin.
    pub fn plugin_failure(&self) -> Option<&str> {
        match &self.failure {
            Some(ScanError::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// The feasible rows, and each plugin's scores. The last run filtered with this evaluator, all of whose plugins have an incremental form.
    pub fn scores_by_plugin(
        &mut self,
        evaluator: &Evaluator,
        cx: EvaluatorCx<'_>,
    ) -> Result<(Vec<NodeRow>, Vec<RowScores>), ScoreOutOfRange> {
        let class_of = if evaluator.class_key_len() == 0 { &[][..] } else { &self.class_of };
        let scores = evaluator.scores_by_plugin(cx, &self.set, &mut self.table, class_of)?;
        let members = self.set.iter().enumerate().filter(|(_, member)| **member != 0);
        Ok((members.map(|(at, _)| NodeRow(at as u32)).collect(), scores))
    }

    /// Every feasible row with its total. `Err` when a score is out of range.
    pub fn total_scores(&self) -> Result<Vec<(NodeRow, i64)>, ScoreOutOfRange> {
        match &self.failure {
            None => {}
            Some(ScanError::Failed(_)) => return Ok(Vec::new()),
            Some(ScanError::OutOfRange) => return Err(ScoreOutOfRange),
        }
        let rows = self.set.iter().zip(&self.totals).enumerate();
        let feasible = rows.filter(|(_, (member, _))| **member != 0);
        Ok(feasible.map(|(at, (_, total))| (self.rows.row(at), total + self.offset)).collect())
    }

    /// Finds the classes of the members of the set.
    fn classify(&mut self, evaluator: &Evaluator, classes: &mut RowClasses, cx: EvaluatorCx<'_>) {
        self.class_of.clear();
        self.table.clear();
        if evaluator.class_key_len() == 0 {
            // A single class; the class of each row is not needed.
            if self.set.contains(&1) {
                self.table.insert_row(&ClassKey::new());
            }
        } else if let Some(rows) = self.rows.listed() {
            classes.classify_list(evaluator, cx, rows);
            self.class_of.extend(rows.iter().map(|row| classes.of_rows()[row.index()]));
            self.table.copy_keys(classes.table());
        } else {
            classes.classify_set(evaluator, cx, &self.set);
            self.class_of.extend_from_slice(classes.of_rows());
            self.table.copy_keys(classes.table());
        }
    }

    fn drop_infeasible_classes(&mut self, evaluator: &Evaluator) {
        // The classes of rows that are not in the set have no members.
        let mut classes = self.table.feasible.iter().zip(&self.table.rows);
        if classes.all(|(feasible, n_rows)| *feasible || *n_rows == 0) {
            return;
        }
        self.highest.clear();
        if evaluator.class_key_len() == 0 {
            self.set.fill(0);
            return;
        }
        for (member, class) in self.set.iter_mut().zip(&self.class_of) {
            let is_feasible = self.table.feasible.get(*class as usize).copied();
            *member &= u8::from(is_feasible.unwrap_or(false));
        }
    }

    /// Counts the feasible rows of each class, because scores are normalized over them. A class without such rows is not feasible.
    fn count_class_rows(&mut self, are_filtered: bool) {
        self.table.count_rows(&self.class_of, &self.set);
        let ClassTable { feasible, rows, .. } = &mut self.table;
        if !are_filtered {
            feasible.clear();
            feasible.resize(rows.len(), true);
        }
        for (feasible, rows) in feasible.iter_mut().zip(rows) {
            *feasible &= *rows > 0;
        }
    }

    fn add_offsets(&mut self, evaluator: &Evaluator) {
        if evaluator.class_key_len() == 0 {
            self.offset = self.table.offsets.first().copied().unwrap_or(0);
            return;
        }
        self.highest.clear();
        let blocks =
            self.totals.chunks_mut(ROWS_PER_BLOCK).zip(self.class_of.chunks(ROWS_PER_BLOCK));
        for ((totals, class_of), set) in blocks.zip(self.set.chunks(ROWS_PER_BLOCK)) {
            for (total, class) in totals.iter_mut().zip(class_of) {
                *total += self.table.offsets.get(*class as usize).copied().unwrap_or(0);
            }
            self.highest.push_block(set, totals);
        }
    }
}
