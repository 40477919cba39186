//! A full scan of all rows: for combinations of keys without a score index, and for plugins without an incremental form.

mod per_node_plugins;

use loadmaster_framework::incremental::{ClassKey, ScoreOutOfRange};
use loadmaster_framework::{CycleState, EvaluatorCx, NodeRow, PluginStates, PodInfo, World};
use loadmaster_stdx::Rng;

use crate::decision::Decision;
use crate::evaluate::class_table::ClassTable;
use crate::evaluate::incremental::{Evaluator, RowScores};
use crate::evaluate::plugin_loops::{PluginLoops, ScoreError};
use crate::evaluate::row_classes::RowClasses;
use crate::node_sampling::RotatingNodeOrder;
use crate::profile::Profile;
use per_node_plugins::PerNodePlugins;

/// Scratch space and result of a full scan.
#[derive(Default)]
pub(crate) struct FullScan {
    /// 1 where the row is feasible.
    set: Vec<u8>,
    totals: Vec<i64>,
    /// By row that was a member of the set after the row-local filters: its class.
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
        let mut rest = self.filter(scan);
        if self.failure.is_none() {
            self.failure = self.score(&mut rest).err();
        }
        self.cycle = rest.loops.cycle;
    }

    /// The same without scoring: every total is 0.
    pub fn run_filters(&mut self, scan: Scan<'_, '_>) {
        self.cycle = self.filter(scan).loops.cycle;
    }

    fn filter<'a>(&mut self, scan: Scan<'a, '_>) -> PerNodePlugins<'a> {
        let Scan { evaluator, classes, profile, world, states, pod, excluded, early } = scan;
        self.failure = None;
        self.set.clear();
        self.set.extend_from_slice(&world.nodes().columns().occupied);
        let cx = EvaluatorCx { world, states };
        evaluator.filter_rows(cx, &mut self.set);
        self.totals.clear();
        self.totals.resize(self.set.len(), 0);
        self.classify(evaluator, classes, cx);
        evaluator.filter_classes(cx, &mut self.table);
        self.drop_infeasible_classes(evaluator);
        excluded.iter().for_each(|row| self.set[row.index()] = 0);
        let only = Some(evaluator.per_node_plugins.as_slice());
        let loops = PluginLoops { only, ..PluginLoops::new(profile, states, pod) };
        let mut rest = PerNodePlugins { evaluator, world, loops };
        if !evaluator.per_node_plugins.is_empty()
            && let Err(failure) = rest.filter(&mut self.set)
        {
            self.failure = Some(ScanError::Failed(failure));
        }
        let is_smaller =
            !evaluator.per_node_plugins.is_empty() || !excluded.is_empty() || early.is_some();
        if let Some((course, n_wanted)) = early {
            course.retain_first(n_wanted, &mut self.set);
        }
        if is_smaller && self.failure.is_none() {
            self.count_class_rows(evaluator);
        }
        rest
    }

    /// Takes the cycle state of the plugins that were evaluated per node.
    pub fn take_cycle_state(&mut self) -> CycleState {
        std::mem::take(&mut self.cycle)
    }

    fn score(&mut self, rest: &mut PerNodePlugins<'_>) -> Result<(), ScanError> {
        let evaluator = rest.evaluator;
        let cx = EvaluatorCx { world: rest.world, states: rest.loops.states };
        evaluator.score_rows(cx, &self.set, &mut self.totals)?;
        evaluator.score_classes(cx, &mut self.table)?;
        self.add_offsets(evaluator);
        if evaluator.per_node_plugins.is_empty() {
            return Ok(());
        }
        rest.score(&self.set, &mut self.totals)
    }

    /// Selects one of the rows with the highest total at random. `Err` when a score is out of range.
    pub fn select_node(&self, rng: &mut Rng) -> Result<Decision, ScoreOutOfRange> {
        match &self.failure {
            None => Ok(self.pick_best(rng)),
            Some(ScanError::Failed(failure)) => Ok(Decision::Failed(failure.clone())),
            Some(ScanError::OutOfRange) => Err(ScoreOutOfRange),
        }
    }

    fn pick_best(&self, rng: &mut Rng) -> Decision {
        let mut best = i64::MIN;
        let mut n_ties = 0u64;
        for (member, total) in self.set.iter().zip(&self.totals) {
            if *member != 0 && *total >= best {
                n_ties = if *total > best { 1 } else { n_ties + 1 };
                best = *total;
            }
        }
        if n_ties == 0 {
            return Decision::Unschedulable;
        }
        let mut nth = rng.below(n_ties);
        for (at, (member, total)) in self.set.iter().zip(&self.totals).enumerate() {
            if *member != 0 && *total == best {
                if nth == 0 {
                    let (row, n_ties) = (NodeRow(at as u32), Some(n_ties));
                    return Decision::Selected { row, total: best, n_ties };
                }
                nth -= 1;
            }
        }
        Decision::Unschedulable
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
        Ok(feasible.map(|(at, (_, total))| (NodeRow(at as u32), *total)).collect())
    }

    fn classify(&mut self, evaluator: &Evaluator, classes: &mut RowClasses, cx: EvaluatorCx<'_>) {
        if evaluator.class_key_len() > 0 {
            classes.classify(evaluator, cx, &self.set, &mut self.table);
            self.class_of.clear();
            self.class_of.extend_from_slice(classes.of_rows());
            return;
        }
        // A single class; the class of each row is not needed.
        self.table.clear();
        let n = self.set.iter().map(|member| u32::from(*member)).sum();
        if n > 0 {
            self.table.insert_row(&ClassKey::new());
            self.table.rows[0] = n;
        }
    }

    fn drop_infeasible_classes(&mut self, evaluator: &Evaluator) {
        // The classes of rows that are not in the set have no members.
        let mut classes = self.table.feasible.iter().zip(&self.table.rows);
        if classes.all(|(feasible, n_rows)| *feasible || *n_rows == 0) {
            return;
        }
        if evaluator.class_key_len() == 0 {
            self.set.fill(0);
            return;
        }
        for (member, class) in self.set.iter_mut().zip(&self.class_of) {
            let is_feasible = self.table.feasible.get(*class as usize).copied();
            *member &= u8::from(is_feasible.unwrap_or(false));
        }
    }

    /// Counts the feasible rows of each class again, because scores are normalized over them.
    fn count_class_rows(&mut self, evaluator: &Evaluator) {
        self.table.rows.fill(0);
        for (at, member) in self.set.iter().enumerate() {
            if *member != 0 {
                let class = if evaluator.class_key_len() == 0 { 0 } else { self.class_of[at] };
                self.table.rows[class as usize] += 1;
            }
        }
        for (feasible, rows) in self.table.feasible.iter_mut().zip(&self.table.rows) {
            *feasible &= *rows > 0;
        }
    }

    fn add_offsets(&mut self, evaluator: &Evaluator) {
        if evaluator.class_key_len() == 0 {
            let offset = self.table.offsets.first().copied().unwrap_or(0);
            if offset != 0 {
                self.totals.iter_mut().for_each(|total| *total += offset);
            }
            return;
        }
        for (total, class) in self.totals.iter_mut().zip(&self.class_of) {
            *total += self.table.offsets.get(*class as usize).copied().unwrap_or(0);
        }
    }
}
