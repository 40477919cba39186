//! The incremental form of a plugin against its per-node results.

use crate::extension_points::{Cx, Filter, NodeScore, SerialCx};
use crate::incremental::{
    ClassKey, EvaluatorCx, EvaluatorKey, FilterScope, NodeClasses, PluginEvaluator, PrepareCx,
    PrepareResult, check_score_range,
};
use crate::node_info::NodeInfo;
use crate::node_table::NodeRow;
use crate::nodes_to_filter::NodesToFilter;
use crate::pod_info::PodInfo;
use crate::result::{Failure, PreFilterResult, PreScoreResult, Rejection};
use crate::state::CycleState;
use crate::topology_counter::TopologyCounterId;
use crate::world::World;

use super::{BenchResult, PluginTestBench, PluginTestBenchError, status_text};

impl PluginTestBench {
    /// Compares the incremental form with the per-node results on every node.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check_incremental(&mut self, pod: &PodInfo) -> BenchResult<()> {
        if self.points.incremental.is_none() {
            return Ok(());
        }
        let prepared = self.prepare(pod);
        let per_node = self.evaluate_per_node(pod);
        let outcome = self.compare_prepared(&prepared.result, pod, &per_node);
        prepared.release(self);
        outcome
    }

    /// The pod's key, and what the plugin prepares for it.
    pub(super) fn prepare(&mut self, pod: &PodInfo) -> Prepared {
        let plugin = self.points.incremental.clone();
        let key = plugin.as_ref().and_then(|plugin| plugin.any_key(self.evaluator_cx(), pod, None));
        let mut cx = PrepareCx::new(&mut self.world, &self.states);
        let result = match (&plugin, &key) {
            (Some(plugin), Some(key)) => plugin.prepare_any(&mut cx, key),
            _ => PrepareResult::PerNode,
        };
        let counters = cx.into_counters();
        Prepared { key, result, counters }
    }

    /// What the plugin prepares for a pod, for tests that call the evaluator themselves; [`PrepareResult::PerNode`] without a key or an
    /// incremental form. The counters stay acquired.
    pub fn prepare_incremental(&mut self, pod: &PodInfo) -> PrepareResult {
        self.prepare(pod).result
    }

    /// The context of evaluators.
    pub fn evaluator_cx(&self) -> EvaluatorCx<'_> {
        EvaluatorCx { world: &self.world, states: &self.states }
    }

    pub(super) fn compare_prepared(
        &self,
        prepared: &PrepareResult,
        pod: &PodInfo,
        per_node: &PerNodeResults,
    ) -> BenchResult<()> {
        match prepared {
            PrepareResult::PerNode => Ok(()),
            PrepareResult::Rejected(rejection) => {
                let want = status_text(Err(rejection.clone()));
                match per_node.filters.iter().find(|(_, status)| *status != want) {
                    None => Ok(()),
                    Some((_, status)) => {
                        Err(PluginTestBenchError(format!("incremental {want}, per node {status}")))
                    }
                }
            }
            PrepareResult::Skip => compare(&self.world, per_node, |_| true, |_| 0),
            PrepareResult::Evaluator(evaluator) => {
                self.compare_evaluator(&**evaluator, pod, per_node)
            }
        }
    }

    pub(super) fn compare_evaluator(
        &self,
        evaluator: &dyn PluginEvaluator,
        pod: &PodInfo,
        per_node: &PerNodeResults,
    ) -> BenchResult<()> {
        let cx = self.evaluator_cx();
        let is_accepted = is_accepted(cx, evaluator, pod)?;
        let incremental = IncrementalResults::new(cx, evaluator);
        let passes = |row| is_accepted && incremental.passes(row);
        for (row, status) in &per_node.filters {
            if evaluator.filter_scope() == FilterScope::Nothing && !incremental.passes(*row) {
                let text = format!("filter_scope is Nothing, but a node is rejected: {status}");
                return Err(PluginTestBenchError(text));
            }
            let stated = evaluator.filter_result(cx, *row).map(status_text);
            if stated.as_ref().is_some_and(|stated| stated != status) {
                let text = format!("filter_result {stated:?}, per node {status}");
                return Err(PluginTestBenchError(text));
            }
        }
        compare(&self.world, per_node, passes, |row| incremental.score(row))
    }

    pub(super) fn run_pre_filter(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
    ) -> Result<PreFilterResult, Rejection> {
        let Some(point) = &self.points.pre_filter else { return Ok(PreFilterResult::All) };
        let mut states = self.states.clone();
        point.pre_filter(SerialCx { world: &self.world, cycle, states: &mut states }, pod)
    }

    pub(super) fn evaluate_per_node(&self, pod: &PodInfo) -> PerNodeResults {
        let mut cycle = CycleState::default();
        let pre = self.run_pre_filter(&mut cycle, pod);
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        let mut results = Vec::new();
        let mut filtered = Vec::new();
        for node in self.world.node_infos() {
            let result = match (&pre, &self.points.filter) {
                (Err(rejection), _) => Err(rejection.clone()),
                (Ok(PreFilterResult::Nodes(names)), _) if !names.contains(node.name()) => {
                    Err(Rejection::unresolvable("not in the PreFilter result"))
                }
                (Ok(PreFilterResult::Skip), _) | (_, None) => Ok(()),
                (_, Some(filter)) => {
                    filtered.push(results.len());
                    filter.filter(cx, pod, node)
                }
            };
            results.push((node, result));
        }
        if let Some(filter) = &self.points.filter {
            let of_each = filtered.iter().map(|at| &results[*at]);
            let difference = compare_filter_nodes(&**filter, cx, pod, of_each);
            if let (Err(text), Some(first)) = (difference, filtered.first()) {
                results[*first].1 = Err(Failure::new(text).into());
            }
        }
        let feasible = results.iter().filter(|(_, result)| result.is_ok());
        let feasible: Vec<NodeInfo<'_>> = feasible.map(|(node, _)| *node).collect();
        let filters = results.into_iter().map(|(node, result)| (node.row(), status_text(result)));
        let filters = filters.collect();
        let scores = self.score_per_node(&mut cycle, pod, &feasible);
        PerNodeResults { filters, scores }
    }

    fn score_per_node(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
        feasible: &[NodeInfo<'_>],
    ) -> BenchResult<Option<Vec<NodeScore>>> {
        let failed = |failure: Failure| PluginTestBenchError(failure.to_string());
        if let Some(point) = &self.points.pre_score {
            let mut states = self.states.clone();
            let cx = SerialCx { world: &self.world, cycle, states: &mut states };
            if point.pre_score(cx, pod, feasible).map_err(failed)? == PreScoreResult::Skip {
                return Ok(None);
            }
        }
        let Some(point) = &self.points.score else { return Ok(None) };
        let cx = Cx { world: &self.world, cycle, states: &self.states };
        let mut scores = Vec::new();
        for node in feasible {
            scores.push(NodeScore {
                row: node.row(),
                score: point.score(cx, pod, *node).map_err(failed)?,
            });
        }
        point.normalize(cx, pod, &mut scores).map_err(failed)?;
        Ok(Some(scores))
    }
}

/// What Filter, PreScore, Score and NormalizeScore say of each node.
pub(super) struct PerNodeResults {
    pub(super) filters: Vec<(NodeRow, String)>,
    pub(super) scores: BenchResult<Option<Vec<NodeScore>>>,
}

/// The results of an evaluator for every row, combined as the engine does.
struct IncrementalResults {
    passes: Vec<u8>,
    local: Vec<i64>,
    class_of: Vec<Option<usize>>,
    class_passes: Vec<bool>,
    class_scores: Vec<i64>,
}

/// What a plugin prepared for a pod.
pub(super) struct Prepared {
    pub(super) key: Option<EvaluatorKey>,
    pub(super) result: PrepareResult,
    pub(super) counters: Vec<TopologyCounterId>,
}

impl Prepared {
    pub(super) fn release(self, bench: &mut PluginTestBench) {
        self.counters.into_iter().for_each(|id| bench.world.release_topology_counter(id));
    }
}

/// Checks that filters and scores of lists of rows find the same as those of all rows: `passes` and `local`.
fn check_listed_rows(
    cx: EvaluatorCx<'_>,
    evaluator: &dyn PluginEvaluator,
    passes: &[u8],
    local: Option<&Vec<i64>>,
) {
    let mut rows: Vec<NodeRow> = cx.nodes().rows().collect();
    evaluator.filter_listed_rows(cx, &mut rows);
    let passing = cx.nodes().rows().filter(|row| passes[row.index()] != 0);
    assert!(passing.eq(rows.iter().copied()), "filter_listed_rows and filter_rows differ");
    let mut scores = vec![0; rows.len()];
    let scored = evaluator.score_listed_rows(cx, &rows, 1, &mut scores);
    let expected = local.map(|local| rows.iter().map(|row| local[row.index()]).collect());
    assert_eq!(scored.ok().map(|()| scores), expected, "score_listed_rows and score_rows differ");
}

/// Checks that filters and scores of the rows from one in the middle on find the same as those of all rows: `passes` and `local`.
fn check_later_rows(
    cx: EvaluatorCx<'_>,
    evaluator: &dyn PluginEvaluator,
    passes: &[u8],
    local: Option<&Vec<i64>>,
) {
    let middle = passes.len() / 2;
    let first = NodeRow(middle as u32);
    let mut set = cx.nodes().columns().occupied[middle..].to_vec();
    evaluator.filter_rows(cx, first, &mut set);
    assert_eq!(set, passes[middle..], "filter_rows finds less in a part of the rows");
    let Some(local) = local else { return };
    let mut scores = vec![0; set.len()];
    let scored = evaluator.score_rows(cx, first, &set, 1, &mut scores);
    assert!(scored.is_ok(), "score_rows finds less in a part of the rows");
    for at in (0..set.len()).filter(|at| set[*at] != 0) {
        assert_eq!(scores[at], local[middle + at], "score_rows of row {}", middle + at);
    }
}

impl IncrementalResults {
    fn new(cx: EvaluatorCx<'_>, evaluator: &dyn PluginEvaluator) -> IncrementalResults {
        let nodes = cx.nodes();
        let mut passes = nodes.columns().occupied.clone();
        evaluator.filter_rows(cx, NodeRow(0), &mut passes);
        let mut local = vec![0; passes.len()];
        let all_in_range = evaluator.score_rows(cx, NodeRow(0), &passes, 1, &mut local).is_ok();
        check_listed_rows(cx, evaluator, &passes, all_in_range.then_some(&local));
        check_later_rows(cx, evaluator, &passes, all_in_range.then_some(&local));
        let mut rows_in_range = true;
        let mut keys: Vec<ClassKey> = Vec::new();
        let mut rows: Vec<u32> = Vec::new();
        let mut class_of = vec![None; passes.len()];
        for row in nodes.rows() {
            assert_eq!(
                passes[row.index()] != 0,
                evaluator.filter_row(cx, row),
                "filter_rows and filter_row differ"
            );
            if passes[row.index()] == 0 {
                continue;
            }
            let score = evaluator.score_row(cx, row);
            rows_in_range &= check_score_range(score).is_ok();
            assert!(
                !all_in_range || local[row.index()] == score,
                "score_rows and score_row differ"
            );
            local[row.index()] = score;
            let mut key = ClassKey::new();
            evaluator.class_key(cx, row, &mut key);
            assert_eq!(
                key.len(),
                evaluator.class_key_len(),
                "class_key appends class_key_len numbers"
            );
            let class = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                rows.push(0);
                keys.len() - 1
            });
            rows[class] += 1;
            class_of[row.index()] = Some(class);
        }
        assert_eq!(all_in_range, rows_in_range, "score_rows fails if a score is out of range");
        let class_passes: Vec<bool> =
            keys.iter().map(|key| evaluator.filter_class(cx, key)).collect();
        let mut class_scores = vec![0; keys.len()];
        if evaluator.has_class_scores() {
            let classes = NodeClasses {
                keys: &keys.concat(),
                stride: evaluator.class_key_len(),
                offset: 0,
                key_len: evaluator.class_key_len(),
                rows: &rows,
                feasible: &class_passes,
            };
            evaluator.score_classes(cx, &classes, &mut class_scores);
            if let Some(score) = evaluator.constant_class_score() {
                let is_constant = |class: usize| class_scores[class] == score;
                assert!(classes.feasible().all(is_constant), "constant_class_score");
            }
        }
        IncrementalResults { passes, local, class_of, class_passes, class_scores }
    }

    fn passes(&self, row: NodeRow) -> bool {
        self.passes[row.index()] != 0
            && self.class_of[row.index()].is_some_and(|class| self.class_passes[class])
    }

    fn score(&self, row: NodeRow) -> i64 {
        let class = self.class_of[row.index()].map_or(0, |class| self.class_scores[class]);
        self.local[row.index()] + class
    }
}

/// Whether the evaluator accepts the pod.
///
/// # Errors
///
/// When it rejects the pod without having declared that it may.
pub(super) fn is_accepted(
    cx: EvaluatorCx<'_>,
    evaluator: &dyn PluginEvaluator,
    pod: &PodInfo,
) -> BenchResult<bool> {
    let is_accepted = evaluator.accepts_pod(cx, pod);
    match is_accepted || evaluator.dependencies().pod {
        true => Ok(is_accepted),
        false => {
            Err(PluginTestBenchError("accepts_pod rejects, but dependencies().pod is false".into()))
        }
    }
}

/// The first difference between the per-node results and what these functions say of a row.
pub(super) fn compare(
    world: &World,
    per_node: &PerNodeResults,
    passes: impl Fn(NodeRow) -> bool,
    score: impl Fn(NodeRow) -> i64,
) -> BenchResult<()> {
    let name = |row: NodeRow| world.node(row).map_or("", |node| node.name());
    for (row, status) in &per_node.filters {
        if passes(*row) != (status == "Success") {
            let text = format!("{}: incremental {}, per node {status}", name(*row), passes(*row));
            return Err(PluginTestBenchError(text));
        }
    }
    let Ok(scores) = &per_node.scores else { return Ok(()) };
    let feasible = per_node.filters.iter().filter(|(_, status)| status == "Success");
    for (row, _) in feasible {
        let found =
            scores.as_ref().and_then(|scores| scores.iter().find(|score| score.row == *row));
        let want = found.map_or(0, |score| score.score);
        if score(*row) != want {
            let text =
                format!("{}: incremental score {}, per node {want}", name(*row), score(*row));
            return Err(PluginTestBenchError(text));
        }
    }
    Ok(())
}

/// Compares the two forms of Filter: these are the results of the nodes that are filtered, one by one.
fn compare_filter_nodes<'a>(
    filter: &dyn Filter,
    cx: Cx<'_>,
    pod: &PodInfo,
    of_each: impl Iterator<Item = &'a (NodeInfo<'a>, Result<(), Rejection>)>,
) -> Result<(), String> {
    let of_each: Vec<_> = of_each.collect();
    let rows: Vec<NodeRow> = of_each.iter().map(|(node, _)| node.row()).collect();
    let mut set = vec![1; rows.len()];
    let mut nodes = NodesToFilter::new(cx.world.nodes(), Some(&rows), &mut set);
    let of_all = filter.filter_nodes(cx, pod, &mut nodes);
    let mut failures = of_each.iter().filter_map(|(_, result)| match result {
        Err(Rejection::Failed(failure)) => Some(failure),
        _ => None,
    });
    match (failures.next(), of_all) {
        (Some(failure), of_all) if of_all != Err(failure.clone()) => {
            Err(format!("filter failed with {failure:?}, and filter_nodes returned {of_all:?}"))
        }
        (None, Err(failure)) => Err(format!("filter_nodes failed with {failure:?}")),
        (Some(_), _) => Ok(()),
        (None, Ok(())) => of_each.iter().zip(set).try_for_each(|((node, result), is_left)| {
            if result.is_ok() == (is_left != 0) {
                return Ok(());
            }
            let (name, other) = (node.name(), if is_left != 0 { "leaves" } else { "rejects" });
            Err(format!("node {name}: filter returned {result:?}, and filter_nodes {other} it"))
        }),
    }
}

#[cfg(test)]
mod tests;
