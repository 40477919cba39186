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
mod compare;
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
use crate::extension_points::{Cx, SerialCx};
use crate::feature_gates::FeatureGates;
use crate::node_table::NodeRow;
use crate::plugin_args::{self, FieldError};
use crate::pod_info::PodInfo;
use crate::registry::{ExtensionPoints, PluginDef};
use crate::result::{PreFilterResult, Rejection};
use crate::state::{CycleState, PluginStates};
use crate::time::Now;
use crate::watched_objects::Gvr;
use crate::world::World;

use compare::{PerNodeResults, Prepared, compare, is_accepted};

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

    /// The series of the plugin's metrics, as `/metrics` shows them: `name{label="value",profile="default-scheduler"} 1`.
    ///
    /// # Errors
    ///
    /// When a metric cannot be written as text.
    pub fn metrics(&self) -> BenchResult<Vec<String>> {
        let families: Vec<_> = self
            .points
            .metrics()
            .iter()
            .flat_map(|metric| metric.collector().collect())
            .filter(|family| !family.get_metric().is_empty())
            .collect();
        let text = prometheus::TextEncoder::new().encode_to_string(&families);
        let text = text.map_err(|error| PluginTestBenchError(error.to_string()))?;
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
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
