//! The scores of every plugin for every feasible node, for comparisons with another scheduler's decisions.

use loadmaster_framework::incremental::ScoreOutOfRange;
use loadmaster_framework::{EvaluatorCx, NodeRow, PodInfo, World};

use super::feasible_nodes::other_rows;
use super::{Decision, Scheduler, Search, SearchOptions};
use crate::evaluate::per_node;
use crate::evaluate::{Evaluation, ExtenderResults, FilterResult};
use crate::guard;

/// The feasible nodes of a pod, and the weighted scores of each plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScoreTable {
    /// The feasible rows, ascending.
    pub rows: Vec<NodeRow>,
    /// The sum of each row's scores.
    pub totals: Vec<i64>,
    /// The plugins that score, with the weighted score of each row.
    pub plugins: Vec<(&'static str, Vec<i64>)>,
    /// The rows that PreFilter excluded, ascending.
    pub excluded: Vec<NodeRow>,
}

impl ScoreTable {
    fn new(rows: Vec<NodeRow>, plugins: Vec<(&'static str, Vec<i64>)>) -> ScoreTable {
        let mut totals = vec![0; rows.len()];
        for (_, scores) in &plugins {
            totals.iter_mut().zip(scores).for_each(|(total, score)| *total += score);
        }
        ScoreTable { rows, totals, plugins, excluded: Vec::new() }
    }

    fn from_evaluation(evaluation: &Evaluation) -> ScoreTable {
        let feasible =
            evaluation.nodes.iter().filter(|it| it.filter_result == FilterResult::Feasible);
        let feasible: Vec<_> = feasible.collect();
        let rows = feasible.iter().map(|node| node.row).collect();
        let plugins = evaluation.score_plugins.iter().enumerate().map(|(nth, name)| {
            let scores = feasible.iter().map(|node| node.scores.get(nth).copied().unwrap_or(0));
            (*name, scores.collect())
        });
        let excluded =
            evaluation.nodes.iter().filter(|it| it.filter_result == FilterResult::Excluded);
        ScoreTable {
            excluded: excluded.map(|node| node.row).collect(),
            ..ScoreTable::new(rows, plugins.collect())
        }
    }

    /// The index of a row, if it is feasible.
    pub fn index_of(&self, row: NodeRow) -> Option<usize> {
        self.rows.binary_search(&row).ok()
    }

    /// The highest total.
    pub fn best_total(&self) -> Option<i64> {
        self.totals.iter().copied().max()
    }

    /// How many rows share the highest total, if this row is one of them. A single feasible node is the best one.
    pub fn n_best_with(&self, row: NodeRow) -> Option<usize> {
        let (total, best) = (self.totals[self.index_of(row)?], self.best_total()?);
        (total == best).then(|| self.totals.iter().filter(|it| **it == best).count())
    }

    /// By how many points other rows are better than this one, all together; `None` if it is not feasible.
    pub fn n_points_better_than(&self, row: NodeRow) -> Option<i64> {
        let own = self.totals[self.index_of(row)?];
        Some(self.totals.iter().map(|total| (total - own).max(0)).sum())
    }
}

impl Scheduler {
    /// Filters and scores these rows, or all, from scratch: no cached score is read. Scores are normalized over the feasible ones among
    /// them. Nothing is feasible if PreFilter rejects the pod.
    ///
    /// # Errors
    ///
    /// The failure of a plugin.
    pub fn score_table(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[NodeRow]>,
    ) -> Result<ScoreTable, String> {
        let table = guard::catch_plugin_panic(|| self.score_table_inner(world, pod, among));
        table.unwrap_or_else(|caught| {
            let (_, failure) = caught.record(&self.profile);
            self.reset_caches(world);
            Err(failure.to_string())
        })
    }

    fn score_table_inner(
        &mut self,
        world: &mut World,
        pod: &PodInfo,
        among: Option<&[NodeRow]>,
    ) -> Result<ScoreTable, String> {
        let options = SearchOptions {
            among,
            with_scores: false,
            is_scored: true,
            may_reuse: false,
            may_end_early: false,
        };
        match self.search(world, pod, options) {
            Err(Decision::Failed(failure)) => return Err(failure),
            Err(_) => return Ok(ScoreTable::default()),
            Ok(Search::Scan) => {
                if let Some(failure) = self.full_scan.plugin_failure() {
                    return Err(failure.to_owned());
                }
                if let Some(Ok(table)) = self.scanned_table(world, pod) {
                    return Ok(table);
                }
            }
            Ok(Search::PerNode | Search::Index(_)) => {}
        }
        let extended =
            ExtenderResults { excluded: other_rows(world, among), ..ExtenderResults::default() };
        let (profile, mut states) = (&self.profile, self.states.clone());
        let attempt = per_node::evaluate_attempt_with_extenders(
            profile,
            world,
            &mut states,
            pod,
            None,
            &extended,
        );
        match attempt.evaluation.failure {
            Some(failure) => Err(failure),
            None => Ok(ScoreTable::from_evaluation(&attempt.evaluation)),
        }
    }

    /// The table after a full scan, unless the pod needs a per-node evaluation.
    fn scanned_table(
        &mut self,
        world: &World,
        pod: &PodInfo,
    ) -> Option<Result<ScoreTable, ScoreOutOfRange>> {
        let cached = self.cache.of_pod(pod)?;
        let evaluator = &cached.evaluator;
        if !evaluator.per_node_plugins.is_empty() || evaluator.pre_filter_excludes_nodes() {
            return None;
        }
        let cx = EvaluatorCx { world, states: &self.states };
        let profile = &self.profile;
        Some(self.full_scan.scores_by_plugin(evaluator, cx).map(|(rows, scores)| {
            let plugins = scores.into_iter().map(|part| {
                let of_row = |row: &NodeRow| part.scores[row.index()];
                (profile.plugins[part.plugin].name, rows.iter().map(of_row).collect())
            });
            let plugins = plugins.collect();
            ScoreTable::new(rows, plugins)
        }))
    }
}
