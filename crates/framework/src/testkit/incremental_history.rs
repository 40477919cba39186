//! Evaluations that are cached and updated from the world's change log, as the engine does, and compared with per-node results.
//!
//! [`super::PluginTestBench::check_incremental`] builds a new evaluator each time, so it cannot detect stale results. This module does: a
//! random history finds plugins that read more than their [`ResultDependencies`] declare.

use loadmaster_stdx::Rng;
use serde_json::Value;

use super::{
    BenchResult, PluginTestBench, PluginTestBenchError, Prepared, compare, is_accepted, status_text,
};
use crate::incremental::{
    ClassKey, EvaluatorCx, NodeClasses, PluginEvaluator, PrepareResult, ResultDependencies,
    RowDependency, StalenessVersion,
};
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::topology_counter::TopologyCounterSet;
use crate::world::{KeyVersion, WorldChange};

/// Number of pods that are evaluated during a history.
const N_PODS: usize = 4;

/// Runs a random history: updates the cached evaluations of a few pods over `n_steps` changes of the bench's world, and compares
/// them with per-node results after each. `change` makes one change and returns its kind, for the error.
///
/// # Errors
///
/// The first difference.
pub fn check_incremental_history(
    bench: &mut PluginTestBench,
    rng: &mut Rng,
    n_steps: u64,
    mut pod: impl FnMut(&mut Rng) -> Value,
    mut change: impl FnMut(&mut PluginTestBench, &mut Rng) -> BenchResult<&'static str>,
) -> BenchResult<()> {
    let mut all = Vec::new();
    for _ in 0..N_PODS {
        let pod = bench.parse_pod(pod(rng))?;
        all.push(CachedEvaluation::new(bench, pod));
    }
    for step in 0..n_steps {
        let kind = change(bench, rng)?;
        for (at, cached) in all.iter_mut().enumerate() {
            cached.check(bench).map_err(|error| {
                PluginTestBenchError(format!("step {step} ({kind}), pod {at}: {error}"))
            })?;
        }
        check_equal_uncounted(bench.evaluator_cx(), &all)
            .map_err(|error| PluginTestBenchError(format!("step {step} ({kind}): {error}")))?;
    }
    all.into_iter().for_each(|cached| cached.release(bench));
    Ok(())
}

/// The cached evaluation of one pod.
pub(super) struct CachedEvaluation {
    pod: PodInfo,
    prepared: Prepared,
    /// By row; `None` for rows that a row-local filter rejects and for free rows.
    rows: Vec<Option<RowResult>>,
    next_change: u64,
    key_version: KeyVersion,
    /// When the evaluator was last found not to be stale.
    not_stale_at: StalenessVersion,
}

/// The row-local score and the class key of one row.
#[derive(Clone)]
struct RowResult {
    local: i64,
    key: ClassKey,
}

impl CachedEvaluation {
    /// Evaluates a pod with the plugin of the bench.
    pub(super) fn new(bench: &mut PluginTestBench, pod: PodInfo) -> CachedEvaluation {
        let key_version = bench.world.key_version(&pod.template);
        let prepared = bench.prepare(&pod);
        let next_change = bench.world.next_change_seq();
        let not_stale_at = bench.evaluator_cx().staleness_version();
        let rows = Vec::new();
        let mut cached =
            CachedEvaluation { pod, prepared, rows, next_change, key_version, not_stale_at };
        cached.read_all(bench.evaluator_cx());
        cached
    }

    /// Applies the changes of the bench's world, and compares.
    pub(super) fn check(&mut self, bench: &mut PluginTestBench) -> BenchResult<()> {
        self.catch_up(bench);
        let per_node = bench.evaluate_per_node(&self.pod);
        match &self.prepared.result {
            PrepareResult::PerNode => Ok(()),
            PrepareResult::Rejected(rejection) => {
                let want = status_text(Err(rejection.clone()));
                let differs = per_node.filters.iter().any(|(_, status)| *status != want);
                if differs {
                    Err(PluginTestBenchError(format!("not {want} everywhere")))
                } else {
                    Ok(())
                }
            }
            PrepareResult::Skip => compare(&bench.world, &per_node, |_| true, |_| 0),
            PrepareResult::Evaluator(evaluator) => {
                check_uncounted(bench.evaluator_cx(), &**evaluator)?;
                let is_accepted = is_accepted(bench.evaluator_cx(), &**evaluator, &self.pod)?;
                let scores = self.scores_by_row(bench.evaluator_cx(), &**evaluator);
                let score = |row: NodeRow| scores[row.index()].unwrap_or(0);
                let passes = |row: NodeRow| is_accepted && scores[row.index()].is_some();
                compare(&bench.world, &per_node, passes, score)
            }
        }
    }

    /// Releases the counters that the plugin acquired.
    pub(super) fn release(self, bench: &mut PluginTestBench) {
        self.prepared.release(bench);
    }

    /// As the engine does: the key is computed again when an object changed that it may be resolved from, and the evaluator is
    /// prepared again when the key is another one, or when the evaluator is stale or invalid.
    fn catch_up(&mut self, bench: &mut PluginTestBench) {
        let version = bench.world.key_version(&self.pod.template);
        let is_rekeyed = self.key_version != version && {
            let plugin = bench.points.incremental.as_ref();
            let key =
                plugin.and_then(|plugin| plugin.any_key(bench.evaluator_cx(), &self.pod, None));
            key != self.prepared.key
        };
        self.key_version = version;
        let changes = bench.world.changes_since(self.next_change).map(<[WorldChange]>::to_vec);
        let is_invalid = bench.world.evaluators_valid_since() > self.next_change;
        let cx = bench.evaluator_cx();
        let is_stale = cx.staleness_version() != self.not_stale_at
            && matches!(&self.prepared.result, PrepareResult::Evaluator(it) if it.is_stale(cx));
        match changes {
            Some(changes) if !(is_rekeyed || is_invalid || is_stale) => {
                for (seq, change) in (self.next_change..).zip(changes) {
                    self.apply_change(bench.evaluator_cx(), seq, change);
                }
            }
            _ => {
                let fresh = bench.prepare(&self.pod);
                std::mem::replace(&mut self.prepared, fresh).release(bench);
                self.read_all(bench.evaluator_cx());
            }
        }
        self.next_change = bench.world.next_change_seq();
        self.not_stale_at = bench.evaluator_cx().staleness_version();
    }

    fn read_all(&mut self, cx: EvaluatorCx<'_>) {
        self.rows = vec![None; cx.nodes().n_rows()];
        let PrepareResult::Evaluator(evaluator) = &self.prepared.result else { return };
        for row in cx.nodes().rows() {
            self.rows[row.index()] = read(cx, &**evaluator, row);
        }
    }

    fn apply_change(&mut self, cx: EvaluatorCx<'_>, seq: u64, change: WorldChange) {
        self.rows.resize(cx.nodes().n_rows(), None);
        let PrepareResult::Evaluator(evaluator) = &self.prepared.result else { return };
        let ResultDependencies {
            filter,
            score,
            class,
            class_reads_counters_only: only_counters,
            node_set,
            pod: _,
        } = evaluator.dependencies();
        let own_counters = &self.prepared.counters;
        let reads_any_of = |counters: TopologyCounterSet| {
            Some(seq) <= cx.world.topology_counters().changed_at(own_counters.iter().copied())
                && own_counters.iter().any(|id| counters.may_contain(TopologyCounterSet::of(*id)))
        };
        match change {
            WorldChange::Node(row) => self.rows[row.index()] = read(cx, &**evaluator, row),
            WorldChange::Pods(row, counters) => {
                let fresh = read(cx, &**evaluator, row);
                let depends_on_pods =
                    |part: Option<RowDependency>| part == Some(RowDependency::Pods);
                match (&mut self.rows[row.index()], fresh) {
                    (cached, fresh) if depends_on_pods(filter) => *cached = fresh,
                    (Some(cached), Some(fresh)) => {
                        if depends_on_pods(score) {
                            cached.local = fresh.local;
                        }
                        let may_change = !only_counters || reads_any_of(counters);
                        if depends_on_pods(class) && may_change {
                            cached.key = fresh.key;
                        }
                    }
                    _ => {}
                }
            }
            WorldChange::NodeSet if node_set => {
                for row in cx.nodes().rows() {
                    self.rows[row.index()] = read(cx, &**evaluator, row);
                }
            }
            WorldChange::NodeSet => {}
        }
    }

    /// By row, the score of feasible nodes.
    fn scores_by_row(
        &self,
        cx: EvaluatorCx<'_>,
        evaluator: &dyn PluginEvaluator,
    ) -> Vec<Option<i64>> {
        let mut keys: Vec<ClassKey> = Vec::new();
        let mut rows: Vec<u32> = Vec::new();
        let classes: Vec<Option<usize>> = (self.rows.iter())
            .map(|row| {
                let key = &row.as_ref()?.key;
                let class = keys.iter().position(|known| known == key).unwrap_or_else(|| {
                    keys.push(key.clone());
                    rows.push(0);
                    rows.len() - 1
                });
                rows[class] += 1;
                Some(class)
            })
            .collect();
        let feasible: Vec<bool> = keys.iter().map(|key| evaluator.filter_class(cx, key)).collect();
        let mut scores = vec![0; keys.len()];
        if evaluator.has_class_scores() {
            let key_len = evaluator.class_key_len();
            let keys = keys.concat();
            let classes = NodeClasses {
                keys: &keys,
                stride: key_len,
                offset: 0,
                key_len,
                rows: &rows,
                feasible: &feasible,
            };
            evaluator.score_classes(cx, &classes, &mut scores);
        }
        let score = |(row, class): (&Option<RowResult>, &Option<usize>)| {
            let (row, class) = (row.as_ref()?, (*class)?);
            feasible[class].then(|| row.local + scores[class])
        };
        self.rows.iter().zip(&classes).map(score).collect()
    }
}

/// Checks [`PluginEvaluator::uncounted_class_key`] on nodes without pods, where no domain of one node has a counted pod.
fn check_uncounted(cx: EvaluatorCx<'_>, evaluator: &dyn PluginEvaluator) -> BenchResult<()> {
    if evaluator.uncounted().is_none() {
        return Ok(());
    }
    for row in cx.nodes().rows().filter(|row| cx.nodes().pods(*row).is_empty()) {
        let Some(RowResult { key, .. }) = read(cx, evaluator, row) else { continue };
        let uncounted = uncounted_key(cx, evaluator, row);
        if key != uncounted {
            let name = cx.nodes().node(row).map_or("", |node| node.name());
            let error =
                format!("node {name} has no pods: class key {key:?}, uncounted {uncounted:?}");
            return Err(PluginTestBenchError(error));
        }
    }
    Ok(())
}

/// Checks that evaluators with equal [`PluginEvaluator::uncounted`] have equal row-local results and uncounted class keys.
fn check_equal_uncounted(cx: EvaluatorCx<'_>, all: &[CachedEvaluation]) -> BenchResult<()> {
    let evaluators = all.iter().filter_map(|cached| match &cached.prepared.result {
        PrepareResult::Evaluator(evaluator) => Some((&**evaluator, evaluator.uncounted()?)),
        _ => None,
    });
    let evaluators: Vec<_> = evaluators.collect();
    for (at, (one, of_one)) in evaluators.iter().enumerate() {
        for (other, of_other) in &evaluators[..at] {
            let result = |evaluator: &dyn PluginEvaluator, row| {
                let local = read(cx, evaluator, row)?.local;
                Some((local, uncounted_key(cx, evaluator, row)))
            };
            let differs = |row| result(*one, row) != result(*other, row);
            if of_one == of_other && cx.nodes().rows().any(differs) {
                let error = format!("{of_one:?}: evaluators differ in more than counters");
                return Err(PluginTestBenchError(error));
            }
        }
    }
    Ok(())
}

fn uncounted_key(cx: EvaluatorCx<'_>, evaluator: &dyn PluginEvaluator, row: NodeRow) -> ClassKey {
    let mut key = ClassKey::new();
    evaluator.uncounted_class_key(cx, row, &mut key);
    key
}

fn read(cx: EvaluatorCx<'_>, evaluator: &dyn PluginEvaluator, row: NodeRow) -> Option<RowResult> {
    if cx.nodes().node(row).is_none() || !evaluator.filter_row(cx, row) {
        return None;
    }
    let mut key = ClassKey::new();
    evaluator.class_key(cx, row, &mut key);
    Some(RowResult { local: evaluator.score_row(cx, row), key })
}

#[cfg(test)]
mod tests;
