//! Evaluations that are cached and updated from the world's change log, as the engine does, and compared with per-node results.
//!
//! [`super::PluginTestBench::check_incremental`] builds a new evaluator each time, so it cannot detect stale results. This module does: a
//! random history finds plugins that read more than their [`ResultDependencies`] declare.

use loadmaster_stdx::Rng;
use serde_json::Value;

use super::{BenchResult, PluginTestBench, PluginTestBenchError, compare, status_text};
use crate::incremental::{
    ClassKey, NodeClasses, PluginEvaluator, PrepareResult, ResultDependencies, RowDependency,
};
use crate::node_table::NodeRow;
use crate::pod_info::PodInfo;
use crate::world::{World, WorldChange};

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
    }
    all.into_iter().for_each(|cached| cached.release(bench));
    Ok(())
}

/// The cached evaluation of one pod.
struct CachedEvaluation {
    pod: PodInfo,
    prepared: PrepareResult,
    /// By row; `None` for rows that a row-local filter rejects and for free rows.
    rows: Vec<Option<RowResult>>,
    next_change: u64,
}

/// The row-local score and the class key of one row.
#[derive(Clone)]
struct RowResult {
    local: i64,
    key: ClassKey,
}

impl CachedEvaluation {
    /// Evaluates a pod with the plugin of the bench.
    fn new(bench: &mut PluginTestBench, pod: PodInfo) -> CachedEvaluation {
        let prepared = CachedEvaluation::prepare(bench, &pod);
        let mut cached = CachedEvaluation {
            pod,
            prepared,
            rows: Vec::new(),
            next_change: bench.world.next_change_seq(),
        };
        cached.read_all(&bench.world);
        cached
    }

    /// Applies the changes of the bench's world, and compares.
    fn check(&mut self, bench: &mut PluginTestBench) -> BenchResult<()> {
        self.catch_up(bench);
        let per_node = bench.evaluate_per_node(&self.pod);
        match &self.prepared {
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
                let scores = self.scores_by_row(&bench.world, &**evaluator);
                let score = |row: NodeRow| scores[row.index()].unwrap_or(0);
                compare(&bench.world, &per_node, |row| scores[row.index()].is_some(), score)
            }
        }
    }

    /// Releases the counters that the plugin acquired.
    fn release(mut self, bench: &mut PluginTestBench) {
        if let PrepareResult::Evaluator(evaluator) = &mut self.prepared {
            evaluator.release(&mut bench.world);
        }
    }

    fn prepare(bench: &mut PluginTestBench, pod: &PodInfo) -> PrepareResult {
        match bench.points.incremental.clone() {
            Some(plugin) => plugin.prepare(&mut bench.world, pod),
            None => PrepareResult::PerNode,
        }
    }

    fn catch_up(&mut self, bench: &mut PluginTestBench) {
        let changes = bench.world.changes_since(self.next_change).map(<[WorldChange]>::to_vec);
        let is_lost = changes.as_ref().is_none_or(|all| all.contains(&WorldChange::Everything));
        let is_stale = !is_lost
            && matches!(&self.prepared, PrepareResult::Evaluator(evaluator) if evaluator.is_stale(&bench.world));
        if is_lost || is_stale {
            if let PrepareResult::Evaluator(evaluator) = &mut self.prepared {
                evaluator.release(&mut bench.world);
            }
            self.prepared = CachedEvaluation::prepare(bench, &self.pod);
            self.read_all(&bench.world);
        } else {
            for change in changes.unwrap_or_default() {
                self.apply_change(&bench.world, change);
            }
        }
        self.next_change = bench.world.next_change_seq();
    }

    fn read_all(&mut self, world: &World) {
        self.rows = vec![None; world.nodes().n_rows()];
        let PrepareResult::Evaluator(evaluator) = &self.prepared else { return };
        for row in world.nodes().rows() {
            self.rows[row.index()] = read(world, &**evaluator, row);
        }
    }

    fn apply_change(&mut self, world: &World, change: WorldChange) {
        self.rows.resize(world.nodes().n_rows(), None);
        let PrepareResult::Evaluator(evaluator) = &self.prepared else { return };
        let ResultDependencies { filter, score, class, node_set } = evaluator.dependencies();
        match change {
            WorldChange::Node(row) => self.rows[row.index()] = read(world, &**evaluator, row),
            WorldChange::Pods(row) => {
                let fresh = read(world, &**evaluator, row);
                let depends_on_pods =
                    |part: Option<RowDependency>| part == Some(RowDependency::Pods);
                match (&mut self.rows[row.index()], fresh) {
                    (cached, fresh) if depends_on_pods(filter) => *cached = fresh,
                    (Some(cached), Some(fresh)) => {
                        if depends_on_pods(score) {
                            cached.local = fresh.local;
                        }
                        if depends_on_pods(class) {
                            cached.key = fresh.key;
                        }
                    }
                    _ => {}
                }
            }
            WorldChange::NodeSet if node_set => {
                for row in world.nodes().rows() {
                    self.rows[row.index()] = read(world, &**evaluator, row);
                }
            }
            WorldChange::NodeSet | WorldChange::Everything => {}
        }
    }

    /// By row, the score of feasible nodes.
    fn scores_by_row(&self, world: &World, evaluator: &dyn PluginEvaluator) -> Vec<Option<i64>> {
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
        let feasible: Vec<bool> =
            keys.iter().map(|key| evaluator.filter_class(world, key)).collect();
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
            evaluator.score_classes(world, &classes, &mut scores);
        }
        let score = |(row, class): (&Option<RowResult>, &Option<usize>)| {
            let (row, class) = (row.as_ref()?, (*class)?);
            feasible[class].then(|| row.local + scores[class])
        };
        self.rows.iter().zip(&classes).map(score).collect()
    }
}

fn read(world: &World, evaluator: &dyn PluginEvaluator, row: NodeRow) -> Option<RowResult> {
    let nodes = world.nodes();
    if nodes.node(row).is_none() || !evaluator.filter_row(nodes, row) {
        return None;
    }
    let mut key = ClassKey::new();
    evaluator.class_key(world, row, &mut key);
    Some(RowResult { local: evaluator.score_row(nodes, row), key })
}
