//! A test bench for one plugin: a world from builders ([`node`], [`pod`]) or JSON, the plugin's extension points called as the
//! engine calls them, and its incremental form compared with its per-node Filter and Score.
//!
//! ```
//! use loadmaster_framework::testkit::{PluginTestBench, node, pod};
//! # use loadmaster_framework::{PluginDef, Registry};
//! # fn demo(def: &PluginDef) -> Result<(), loadmaster_framework::testkit::PluginTestBenchError> {
//! let mut bench = PluginTestBench::new(def, serde_json::json!({}))?;
//! bench.node(node("a"))?;
//! assert_eq!(bench.filter(pod("web"))?, ["a Success"]);
//! # Ok(())
//! # }
//! ```

mod assigned_pods;
mod builders;
pub mod cycle;
mod events;
mod explain;
pub mod incremental_history;
mod key_property;
pub mod pod_changes;
pub mod post_filter;
mod queue_order;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{ExtraFields, Namespace, Node, Pod, Str, Timestamp};
use loadmaster_stdx::ErrorChain;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api_calls::ObjectRef;
use crate::cluster_event::{ClusterEvent, EventObject, QueueingHint, QueueingHintArgs};
use crate::extension_points::{Cx, NodeScore, SerialCx};
use crate::feature_gates::FeatureGates;
use crate::incremental::{
    ClassKey, EvaluatorCx, EvaluatorKey, NodeClasses, PluginEvaluator, PrepareCx, PrepareResult,
    check_score_range,
};
use crate::node_info::NodeInfo;
use crate::node_table::NodeRow;
use crate::plugin_args::{self, FieldError};
use crate::pod_info::PodInfo;
use crate::registry::{ExtensionPoints, PluginDef};
use crate::result::{PreFilterResult, PreScoreResult, Rejection};
use crate::state::{CycleState, PluginStates};
use crate::time::Now;
use crate::topology_counter::TopologyCounterId;
use crate::watched_objects::Gvr;
use crate::world::World;

/// A test bench: one plugin with its own world.
pub struct PluginTestBench {
    /// The world; tests may change it.
    pub world: World,
    points: ExtensionPoints,
    states: PluginStates,
    /// The pods that were added, by uid.
    pods: BTreeMap<Box<str>, Arc<PodInfo>>,
}

/// The test's input is invalid, or the incremental form and the per-node results differ.
#[derive(Debug)]
pub struct PluginTestBenchError(pub String);

impl fmt::Display for PluginTestBenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PluginTestBenchError {}

impl From<FieldError> for PluginTestBenchError {
    fn from(error: FieldError) -> Self {
        PluginTestBenchError(error.to_string())
    }
}

pub use builders::{NodeBuilder, PodBuilder, node, pod};
pub use cycle::TestCycle;
pub use key_property::KeyReport;

type BenchResult<T> = Result<T, PluginTestBenchError>;

impl PluginTestBench {
    /// A bench for the plugin with these arguments, as in a configuration, and the default feature gates.
    ///
    /// # Errors
    ///
    /// When the arguments are invalid or the plugin cannot be built.
    pub fn new(def: &PluginDef, args: Value) -> BenchResult<PluginTestBench> {
        PluginTestBench::with_gates(def, args, FeatureGates::default())
    }

    /// The same with other feature gates.
    ///
    /// # Errors
    ///
    /// When the arguments are invalid or the plugin cannot be built.
    pub fn with_gates(
        def: &PluginDef,
        args: Value,
        gates: FeatureGates,
    ) -> BenchResult<PluginTestBench> {
        let args = match def.args {
            Some(complete) => complete(&args, &gates).map_err(|errors| {
                let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
                PluginTestBenchError(texts.join("; "))
            })?,
            None => args,
        };
        let mut points =
            ExtensionPoints::for_next_plugin(gates.clone(), 0, PluginStates::default())
                .named(def.name, "default-scheduler");
        (def.build)(&mut points, &args)
            .map_err(|error| PluginTestBenchError(ErrorChain(&error).to_string()))?;
        let (_, states) = points.take_initial_states();
        let mut world = World::new(gates);
        points.watched_kinds().for_each(|watch| world.watch_objects(&watch));
        points.pod_indexes().iter().for_each(|key| world.index_pods(key));
        points.pod_sums().iter().for_each(|sums| world.sum_pods(sums));
        Ok(PluginTestBench { world, points, states, pods: BTreeMap::new() })
    }

    /// Adds or replaces a node, and calls the plugin's [`NodeEventHandler`](crate::NodeEventHandler).
    pub fn node(&mut self, node: impl Into<Value>) -> BenchResult<NodeRow> {
        let node: Value = node.into();
        let extra = ExtraFields::from_value(&node, self.points.extra_fields().nodes);
        let node = Node { extra, ..read(&node)? };
        let node = Arc::new(node);
        let old = self.world.nodes().row(node.name());
        let old = old.and_then(|row| self.world.nodes().node(row)).cloned();
        let row = self.world.upsert_node(node.clone());
        self.on_node_change(old, Some(node));
        Ok(row)
    }

    /// Adds or replaces a namespace.
    pub fn namespace(&mut self, namespace: Value) -> BenchResult<()> {
        let namespace: Namespace = read(&namespace)?;
        self.world.upsert_namespace(Arc::new(namespace));
        Ok(())
    }

    /// Adds or updates a pod that is assigned to a node, and calls the plugin's [`PodEventHandler`](crate::PodEventHandler). Its
    /// namespace is `default` if it has none.
    pub fn add_assigned_pod(
        &mut self,
        node: &str,
        pod: impl Into<Value>,
    ) -> BenchResult<Arc<PodInfo>> {
        let row = self.world.nodes().row(node);
        let row = row.ok_or_else(|| PluginTestBenchError(format!("there is no node {node:?}")))?;
        let pod = Arc::new(PodInfo { node_name: Str::new(node), ..self.parse_pod(pod)? });
        self.assign_pod(row, pod.clone());
        Ok(pod)
    }

    fn assign_pod(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        let old = self.pods.insert(pod.uid.clone(), pod.clone());
        self.world.delete_pending_pod(&pod.uid);
        self.world.add_pod(row, pod.clone());
        self.on_pod_change(old, Some(pod));
    }

    /// Adds or updates a pending pod, for the indexes of pods, and calls the plugin's
    /// [`PodEventHandler`](crate::PodEventHandler). Other methods that take a pod do not add it.
    pub fn add_pending_pod(&mut self, pod: impl Into<Value>) -> BenchResult<Arc<PodInfo>> {
        let pod = Arc::new(self.parse_pod(pod)?);
        let old = self.pods.insert(pod.uid.clone(), pod.clone());
        self.world.upsert_pending_pod(&pod);
        self.on_pod_change(old, Some(pod.clone()));
        Ok(pod)
    }

    /// Parses a pending pod.
    pub fn parse_pod(&mut self, pod: impl Into<Value>) -> BenchResult<PodInfo> {
        let pod: Value = pod.into();
        let extra = ExtraFields::from_value(&pod, self.points.extra_fields().pods);
        let mut pod = Pod { extra, ..read(&pod)? };
        if pod.metadata.namespace.is_empty() {
            pod.metadata.namespace = Str::new("default");
        }
        self.world.parse_pod(&pod).map_err(|error| PluginTestBenchError(error.to_string()))
    }

    /// Adds or replaces an object of a kind that the plugin watches, and calls its [`ObjectEventHandler`](crate::ObjectEventHandler).
    pub fn object(&mut self, kind: &Gvr, object: Value) -> BenchResult<()> {
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        self.change_object(kind, &name("namespace"), &name("name"), Some(&object))
    }

    /// Deletes an object of a kind that the plugin watches, if it exists, and calls its
    /// [`ObjectEventHandler`](crate::ObjectEventHandler).
    pub fn delete_object(&mut self, kind: &Gvr, namespace: &str, name: &str) {
        // Only a new object can be invalid.
        let _ = self.change_object(kind, namespace, name, None);
    }

    fn change_object(
        &mut self,
        kind: &Gvr,
        namespace: &str,
        name: &str,
        object: Option<&Value>,
    ) -> BenchResult<()> {
        let reference = ObjectRef {
            group: kind.group.clone(),
            resource: kind.resource.clone(),
            namespace: namespace.into(),
            name: name.into(),
        };
        self.world.set_synced(&kind.group, &kind.resource, true);
        let updated = self.world.update_watched_object(&reference, object);
        if let Some(trouble) = updated.decode_error {
            return Err(PluginTestBenchError(trouble));
        }
        if let (Some(change), Some(point)) = (updated.change, &self.points.object_event_handler) {
            let (cycle, states) = (&mut CycleState::default(), &mut self.states);
            point.on_object_change(SerialCx { world: &self.world, cycle, states }, &change);
            self.apply_invalidations();
        }
        self.apply_invalidations();
        Ok(())
    }

    /// Publishes a value to the plugin, as a service does.
    pub fn publish(&mut self, value: &Value) -> BenchResult<()> {
        let receiver = self.points.published_value_handler();
        let receiver = receiver
            .ok_or_else(|| PluginTestBenchError("the plugin has no published slot".into()))?;
        receiver(&mut self.states, Some(value))?;
        self.world.invalidate_evaluators();
        Ok(())
    }

    /// Advances the time that the plugin sees; it starts at zero on both clocks.
    pub fn advance_time(&mut self, time: Duration) {
        let Now { mono, wall } = self.world.now();
        let mono = mono.after(time);
        let passed = mono.since(self.world.now().mono).as_nanos() as i64;
        self.world.set_now(Now { mono, wall: Timestamp(wall.0.saturating_add(passed)) });
    }

    /// The plugin's extension points.
    pub fn extension_points(&self) -> &ExtensionPoints {
        &self.points
    }

    /// The result of PreEnqueue: `Success`, or code and reasons.
    pub fn pre_enqueue(&mut self, pod: impl Into<Value>) -> BenchResult<String> {
        let pod = self.parse_pod(pod)?;
        let Some(point) = &self.points.pre_enqueue else { return Ok("Success".into()) };
        let cycle = CycleState::default();
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        Ok(status_text(point.pre_enqueue(cx, &pod)))
    }

    /// The result of PreFilter: `All`, `Skip`, `Nodes [a b]`, or code and reasons.
    pub fn pre_filter(&mut self, pod: impl Into<Value>) -> BenchResult<String> {
        let pod = self.parse_pod(pod)?;
        Ok(match self.run_pre_filter(&mut CycleState::default(), &pod) {
            Ok(PreFilterResult::All) => "All".into(),
            Ok(PreFilterResult::Skip) => "Skip".into(),
            Ok(PreFilterResult::Nodes(names)) => {
                #[expect(clippy::disallowed_methods, reason = "sorted below")]
                let mut names: Vec<&str> = names.iter().map(Str::as_str).collect();
                names.sort_unstable();
                format!("Nodes {names:?}").replace('"', "").replace(',', "")
            }
            Err(rejection) => status_text(Err(rejection)),
        })
    }

    /// For each node, by row: its name and the result of PreFilter and Filter. Also checks the incremental form.
    pub fn filter(&mut self, pod: impl Into<Value>) -> BenchResult<Vec<String>> {
        let pod = self.parse_pod(pod)?;
        self.check_incremental(&pod)?;
        let results = self.evaluate_per_node(&pod);
        let lines = results.filters.iter().map(|(row, status)| {
            let name = self.world.node(*row).map_or("", |node| node.name());
            format!("{name} {status}")
        });
        Ok(lines.collect())
    }

    /// For each node that the plugin does not reject: its name and normalized score; empty when PreScore skips. Also checks the
    /// incremental form.
    pub fn score(&mut self, pod: impl Into<Value>) -> BenchResult<Vec<(String, i64)>> {
        let pod = self.parse_pod(pod)?;
        self.check_incremental(&pod)?;
        let results = self.evaluate_per_node(&pod);
        let named = results.scores?.unwrap_or_default().into_iter();
        Ok(named
            .map(|s| (self.world.node(s.row).map_or("", |node| node.name()).to_owned(), s.score))
            .collect())
    }

    /// The result of the plugin's hints for an event and a pod that it rejected: `Queue`, `Skip`, `Unregistered` or the error.
    pub fn queueing_hint(
        &mut self,
        event: ClusterEvent,
        pod: Value,
        old: Option<EventObject<'_>>,
        new: Option<EventObject<'_>>,
    ) -> BenchResult<String> {
        let pod = self.parse_pod(pod)?;
        let Some(events) = &self.points.events else { return Ok("Queue".into()) };
        let (world, states) = (&self.world, &self.states);
        let hint_args = QueueingHintArgs { pod: &pod, event: &event, old, new, world, states };
        let mut result = "Unregistered";
        for registered in events.iter().filter(|registered| registered.event.matches(&event)) {
            match registered.hint.as_ref().map_or(Ok(QueueingHint::Queue), |hint| hint(&hint_args))
            {
                Ok(QueueingHint::Queue) => return Ok("Queue".into()),
                Ok(QueueingHint::Skip) => result = "Skip",
                Err(failure) => return Ok(format!("Error {failure}")),
            }
        }
        Ok(result.into())
    }

    /// The plugin's fragments of the pod signature as one JSON object; `null` when the pod is unsignable.
    pub fn sign(&mut self, pod: Value) -> BenchResult<Value> {
        let pod = self.parse_pod(pod)?;
        let Some(point) = &self.points.sign else { return Ok(Value::Null) };
        Ok(match point.sign(&pod) {
            Ok(fragments) => fragments.into_iter().map(|f| (f.key.to_owned(), f.value)).collect(),
            Err(_) => Value::Null,
        })
    }

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
        let outcome = self.compare_prepared(&prepared.result, &per_node);
        prepared.release(self);
        outcome
    }

    /// The pod's key, and what the plugin prepares for it.
    fn prepare(&mut self, pod: &PodInfo) -> Prepared {
        let plugin = self.points.incremental.clone();
        let key = plugin.as_ref().and_then(|plugin| plugin.any_key(self.evaluator_cx(), pod));
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

    fn compare_prepared(
        &self,
        prepared: &PrepareResult,
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
            PrepareResult::Evaluator(evaluator) => self.compare_evaluator(&**evaluator, per_node),
        }
    }

    fn compare_evaluator(
        &self,
        evaluator: &dyn PluginEvaluator,
        per_node: &PerNodeResults,
    ) -> BenchResult<()> {
        let incremental = IncrementalResults::new(self.evaluator_cx(), evaluator);
        compare(&self.world, per_node, |row| incremental.passes(row), |row| incremental.score(row))
    }

    fn run_pre_filter(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
    ) -> Result<PreFilterResult, Rejection> {
        let Some(point) = &self.points.pre_filter else { return Ok(PreFilterResult::All) };
        let mut states = self.states.clone();
        point.pre_filter(SerialCx { world: &self.world, cycle, states: &mut states }, pod)
    }

    fn evaluate_per_node(&self, pod: &PodInfo) -> PerNodeResults {
        let mut cycle = CycleState::default();
        let pre = self.run_pre_filter(&mut cycle, pod);
        let cx = Cx { world: &self.world, cycle: &cycle, states: &self.states };
        let mut filters = Vec::new();
        let mut feasible = Vec::new();
        for node in self.world.node_infos() {
            let result = match (&pre, &self.points.filter) {
                (Err(rejection), _) => Err(rejection.clone()),
                (Ok(PreFilterResult::Nodes(names)), _) if !names.contains(node.name()) => {
                    Err(Rejection::unresolvable("not in the PreFilter result"))
                }
                (Ok(PreFilterResult::Skip), _) | (_, None) => Ok(()),
                (_, Some(filter)) => filter.filter(cx, pod, node),
            };
            if result.is_ok() {
                feasible.push(node);
            }
            filters.push((node.row(), status_text(result)));
        }
        let scores = self.score_per_node(&mut cycle, pod, &feasible);
        PerNodeResults { filters, scores }
    }

    fn score_per_node(
        &self,
        cycle: &mut CycleState,
        pod: &PodInfo,
        feasible: &[NodeInfo<'_>],
    ) -> BenchResult<Option<Vec<NodeScore>>> {
        let failed = |failure: crate::result::Failure| PluginTestBenchError(failure.to_string());
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

struct PerNodeResults {
    filters: Vec<(NodeRow, String)>,
    scores: BenchResult<Option<Vec<NodeScore>>>,
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
struct Prepared {
    key: Option<EvaluatorKey>,
    result: PrepareResult,
    counters: Vec<TopologyCounterId>,
}

impl Prepared {
    fn release(self, bench: &mut PluginTestBench) {
        self.counters.into_iter().for_each(|id| bench.world.release_topology_counter(id));
    }
}

impl IncrementalResults {
    fn new(cx: EvaluatorCx<'_>, evaluator: &dyn PluginEvaluator) -> IncrementalResults {
        let nodes = cx.nodes();
        let mut passes = nodes.columns().occupied.clone();
        evaluator.filter_rows(cx, &mut passes);
        let mut local = vec![0; passes.len()];
        let all_in_range = evaluator.score_rows(cx, &passes, 1, &mut local).is_ok();
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

fn compare(
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

fn status_text(result: Result<(), Rejection>) -> String {
    match result {
        Ok(()) => "Success".into(),
        Err(rejection) => format!("{} {}", rejection.code().name(), rejection.message()),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> BenchResult<T> {
    Ok(plugin_args::decode_json_value(value)?)
}
