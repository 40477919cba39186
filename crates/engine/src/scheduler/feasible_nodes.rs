//! The feasible nodes of a pod, and their totals, for decisions with extenders.

use std::sync::Arc;

use loadmaster_extender::ExtenderScores;
use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::{EvaluatorCx, NodeRow, PodInfo, World};
use loadmaster_stdx::Set;

use super::{Decision, FeasibleNodes, Scheduler, Search, SearchOptions};
use crate::evaluate::{ExtenderResults, FilterResult};
use crate::guard;

/// The scores of extenders, which are added to the plugins' totals.
#[derive(Debug)]
pub struct ExtenderScoring<'a> {
    /// In the order of the nodes that were sent to the extenders.
    pub scores: &'a ExtenderScores,
    /// Whether nodes without an extender score take part in tie-breaking.
    pub include_unscored: bool,
}

impl ExtenderScoring<'_> {
    /// The best of the nodes that were sent to the extenders, in their order. Among equal totals upstream prefers nodes with an
    /// extender score, because only these take part in tie-breaking.
    pub fn best_nodes(&self, totals: impl Iterator<Item = (NodeRow, i64)>) -> Vec<NodeRow> {
        self.best_of(totals.zip(self.scores.iter()))
    }

    /// The best of these nodes, given their totals and extender scores.
    fn best_of(&self, nodes: impl Iterator<Item = ((NodeRow, i64), (i64, bool))>) -> Vec<NodeRow> {
        let mut best = (i64::MIN, false);
        let mut rows = Vec::new();
        for ((row, total), (score, is_named)) in nodes {
            let sum = (total.wrapping_add(score), self.include_unscored || is_named);
            if sum > best {
                best = sum;
                rows.clear();
            }
            if sum == best {
                rows.push(row);
            }
        }
        rows
    }
}

/// The result of a search for feasible rows.
enum FeasibleRows {
    /// All feasible nodes, from a score index.
    Indexed(Arc<FeasibleNodes>),
    /// Feasible rows by row, with their totals if these were requested; not empty.
    Rows(Vec<(NodeRow, i64)>),
}

impl Scheduler {
    /// Finds the nodes that the plugins find feasible; with node sampling, only as many as needed. `Err` is the decision when
    /// there are none.
    pub fn find_feasible_nodes(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
    ) -> Result<Arc<FeasibleNodes>, Decision> {
        self.feasible_nodes = None;
        match self.find_rows(world, pod, None)? {
            FeasibleRows::Indexed(nodes) if nodes.rows.is_empty() => Err(Decision::Unschedulable),
            FeasibleRows::Indexed(nodes) => {
                self.feasible_nodes = Some(nodes.clone());
                Ok(nodes)
            }
            FeasibleRows::Rows(rows) => {
                let rows = rows.into_iter().map(|(row, _)| row).collect();
                Ok(self.names.of(world, rows))
            }
        }
    }

    /// A list of one node, which replaces the feasible nodes that were found last.
    pub fn set_single_feasible_node(&mut self, world: &World, row: NodeRow) -> Arc<FeasibleNodes> {
        self.feasible_nodes = None;
        self.names.of(world, vec![row])
    }

    /// Scores these rows; returns those that are still feasible with their totals, by row.
    pub fn score_nodes(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        rows: &[NodeRow],
    ) -> Result<Vec<(NodeRow, i64)>, Decision> {
        match self.find_rows(world, pod, Some(rows))? {
            FeasibleRows::Indexed(nodes) => Ok(nodes.rows.iter().map(|row| (*row, 0)).collect()),
            FeasibleRows::Rows(rows) => Ok(rows),
        }
    }

    /// Selects one of the feasible nodes that were found last. `None` if this needs an evaluation of each of them.
    pub fn select_among_feasible(&mut self, world: &World, pod: &PodInfo) -> Option<Decision> {
        self.feasible_nodes.as_ref()?;
        let mut index = self.cache.up_to_date_index(world, pod)?;
        let cx = EvaluatorCx { world, states: &self.states };
        let decided = guard::catch_plugin_panic(|| index.select_node(cx, &mut self.rng));
        // A plugin that panics does so again where the panic is caught and reported.
        decided.ok()?.ok()
    }

    /// The feasible nodes that were found last, if their score index still exists; used by
    /// [`Scheduler::best_with_extender_scores`].
    pub fn cached_feasible_nodes(
        &mut self,
        world: &World,
        pod: &PodInfo,
    ) -> Option<Arc<FeasibleNodes>> {
        self.cache.up_to_date_index(world, pod)?;
        self.feasible_nodes.clone()
    }

    /// The best of the feasible nodes that were found last, with extender scores added. Reads the totals from the score index
    /// instead of building a list.
    pub fn best_with_extender_scores(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        nodes: &FeasibleNodes,
        added: &ExtenderScoring<'_>,
    ) -> Result<Vec<NodeRow>, Decision> {
        if let Some(rows) = self.best_from_index(world, pod, added) {
            return Ok(rows);
        }
        // A plugin panicked, and the score index was dropped.
        let totals = self.score_nodes(world, pod, &nodes.rows)?;
        let all = nodes.rows.iter().zip(added.scores.iter());
        let still = all.filter_map(|(row, score)| {
            let at = totals.binary_search_by_key(row, |(row, _)| *row).ok()?;
            Some((totals[at], score))
        });
        Ok(added.best_of(still))
    }

    fn best_from_index(
        &mut self,
        world: &World,
        pod: &PodInfo,
        added: &ExtenderScoring<'_>,
    ) -> Option<Vec<NodeRow>> {
        self.feasible_nodes.as_ref()?;
        let mut index = self.cache.up_to_date_index(world, pod)?;
        let cx = EvaluatorCx { world, states: &self.states };
        let best = guard::catch_plugin_panic(|| {
            let totals = index.total_scores(cx)?;
            Ok::<_, ScoreOutOfRange>(added.best_nodes(totals))
        });
        // A plugin that panics does so again where the panic is caught and reported.
        best.ok()?.ok()
    }

    /// Filters all rows, or filters and scores the rows `among`.
    fn find_rows(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[NodeRow]>,
    ) -> Result<FeasibleRows, Decision> {
        let result = guard::catch_plugin_panic(|| self.find_rows_inner(world, pod, among));
        result.unwrap_or_else(|caught| {
            let (_, failure) = caught.record(&self.profile);
            self.reset_caches(world);
            Err(Decision::Failed(failure.to_string()))
        })
    }

    fn find_rows_inner(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[NodeRow]>,
    ) -> Result<FeasibleRows, Decision> {
        self.n_decisions += 1;
        self.cycle = None;
        if let Some(totals) = among.and_then(|rows| self.indexed_totals(world, pod, rows)) {
            return Ok(FeasibleRows::Rows(totals));
        }
        let options = SearchOptions {
            among,
            with_scores: among.is_some(),
            is_scored: true,
            may_reuse: true,
            may_end_early: true,
        };
        let mut found = self.search(world, pod, options)?;
        if let Search::Index(id) = found {
            let cx = EvaluatorCx { world, states: &self.states };
            if let Some(mut index) = self.cache.indexed(id)
                && let Ok(nodes) = index.feasible_nodes(cx, &mut self.names)
            {
                return Ok(FeasibleRows::Indexed(nodes));
            }
            // A score is out of range, which does not matter yet.
            found = self.search(world, pod, SearchOptions { may_reuse: false, ..options })?;
        }
        if let Search::PerNode = found {
            return self.find_rows_per_node(world, pod, among);
        }
        if let Some(failure) = self.full_scan.plugin_failure() {
            return Err(Decision::Failed(failure.to_owned()));
        }
        match self.full_scan.total_scores() {
            Ok(totals) if totals.is_empty() => Err(Decision::Unschedulable),
            Ok(totals) => Ok(FeasibleRows::Rows(totals)),
            Err(ScoreOutOfRange) => self.find_rows_per_node(world, pod, among),
        }
    }

    /// The totals of these rows from the score index, if they are the feasible nodes that were found last.
    fn indexed_totals(
        &mut self,
        world: &World,
        pod: &PodInfo,
        rows: &[NodeRow],
    ) -> Option<Vec<(NodeRow, i64)>> {
        self.feasible_nodes.as_ref().filter(|nodes| nodes.rows == rows)?;
        let mut index = self.cache.up_to_date_index(world, pod)?;
        let cx = EvaluatorCx { world, states: &self.states };
        index.total_scores(cx).ok().map(Iterator::collect)
    }

    fn find_rows_per_node(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[NodeRow]>,
    ) -> Result<FeasibleRows, Decision> {
        let extended =
            ExtenderResults { excluded: other_rows(world, among), ..ExtenderResults::default() };
        let ends_early = among.is_none();
        let evaluation = self.evaluate_per_node(world, pod, ends_early, &extended);
        if let Some(failure) = evaluation.failure {
            return Err(Decision::Failed(failure));
        }
        let feasible =
            evaluation.nodes.iter().filter(|node| node.filter_result == FilterResult::Feasible);
        let totals: Vec<(NodeRow, i64)> =
            feasible.map(|node| (node.row, node.total.unwrap_or(0))).collect();
        if totals.is_empty() {
            Err(Decision::Unschedulable)
        } else {
            Ok(FeasibleRows::Rows(totals))
        }
    }
}

/// All rows except these.
pub(super) fn other_rows(world: &World, among: Option<&[NodeRow]>) -> Vec<NodeRow> {
    let Some(among) = among.filter(|among| among.len() < world.nodes().len()) else {
        return Vec::new();
    };
    let wanted: Set<NodeRow> = among.iter().copied().collect();
    world.nodes().rows().filter(|row| !wanted.contains(row)).collect()
}
