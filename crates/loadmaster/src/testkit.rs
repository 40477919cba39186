//! Test utilities for plugins: a bench for one plugin ([`PluginTestBench`]), a scheduler with a simulated cluster ([`TestCluster`]), the same
//! with random faults ([`FaultSimulation`]), and an API server for a service ([`ServiceTestBench`]).
//!
//! ```
//! use std::time::Duration;
//! use loadmaster::testkit::{TestCluster, node, pod};
//!
//! # fn main() -> Result<(), loadmaster::testkit::PluginTestBenchError> {
//! let mut cluster = TestCluster::new([], serde_json::json!({}))?;
//! cluster.upsert_node(node("a").allocatable("cpu", "1"))?;
//! cluster.create_pod(pod("web").request("cpu", "1"))?;
//! cluster.create_pod(pod("db").request("cpu", "1").priority(-1))?;
//! cluster.run_until_idle()?;
//! assert_eq!(cluster.node_of("web"), Some("a".to_owned()));
//! assert!(cluster.pending_message("db").is_some_and(|message| message.contains("1 Insufficient cpu")));
//!
//! cluster.delete_pod("web");
//! cluster.advance_time(Duration::from_secs(10))?;
//! assert_eq!(cluster.node_of("db"), Some("a".to_owned()));
//! # Ok(())
//! # }
//! ```

mod fault_simulation;
mod service_bench;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{ExtraFields, Node, Pod, Str, Timestamp};
use loadmaster_config::{AllFeatureGates, check_configuration_value};
use loadmaster_engine::engine::{Effect, Effects, Engine, EngineEvent, EngineOptions, Observation};
use loadmaster_engine::{MonoTime, Now, Profile};
use loadmaster_framework::api_calls::ObjectRef;
use loadmaster_framework::plugin_args;
use loadmaster_framework::plugin_log::PluginLogLine;
use loadmaster_framework::{Gvr, PluginDef};
use loadmaster_sim::fake_api_server::FakeApiServer;
use loadmaster_stdx::{ErrorChain, Rng};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use fault_simulation::FaultSimulation;
pub use loadmaster_framework::testkit::{
    NodeBuilder, PluginTestBench, PluginTestBenchError, PodBuilder, node, pod,
};
pub use loadmaster_sim::simulate::{ClusterView, SimulationReport};
pub use service_bench::ServiceTestBench;

type BenchResult<T = ()> = Result<T, PluginTestBenchError>;

/// With more steps than this without virtual time passing, the cluster never settles.
const N_STEPS_MAX: usize = 1_000_000;

/// klog's highest level by convention.
const LOG_VERBOSITY: u32 = 10;

const START: Now =
    Now { mono: MonoTime(1_000_000_000), wall: Timestamp(1_700_000_000_000_000_000) };

/// A scheduler with a fake API server in memory and virtual time.
///
/// Watch events of different kinds and API replies are delivered in a random order that depends on the seed. Every decision is verified
/// against per-node evaluation, so that a wrong incremental form of a plugin fails the test. Bound pods run at once, and terminating pods are
/// removed at once, [unless they are kept](TestCluster::keep_terminating_pods). API calls for pods are carried out; other calls fail with 404. Plugins see the parts of pods and nodes that they
/// [needs](loadmaster_framework::ExtraField); full objects are as they were passed in.
pub struct TestCluster {
    engine: Engine,
    api_server: FakeApiServer,
    now: Now,
    /// Events that are not delivered yet, by kind.
    pending_events: BTreeMap<String, VecDeque<EngineEvent>>,
    rng: Rng,
    events: Vec<String>,
    log_lines: Vec<String>,
    errors: Vec<String>,
    n_pods: u32,
    keeps_terminating_pods: bool,
}

impl TestCluster {
    /// A scheduler with the in-tree plugins and these, and one profile as in a KubeSchedulerConfiguration, such as
    /// `{"plugins": {"multiPoint": {"enabled": [{"name": "MyPlugin"}]}}}`.
    pub fn new(
        plugins: impl IntoIterator<Item = PluginDef>,
        profile: Value,
    ) -> BenchResult<TestCluster> {
        TestCluster::with_seed(plugins, profile, 0)
    }

    /// The same with a seed for the order of events and for the selection among equal nodes.
    pub fn with_seed(
        plugins: impl IntoIterator<Item = PluginDef>,
        profile: Value,
        seed: u64,
    ) -> BenchResult<TestCluster> {
        let registry = plugins
            .into_iter()
            .fold(loadmaster_plugins::in_tree_registry(), |all, it| all.with(it));
        registry.validate().map_err(|error| bench_error(&error))?;
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [profile],
        });
        let gates = AllFeatureGates::default();
        let checked = check_configuration_value(config, &registry, &gates).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            PluginTestBenchError(lines.join("\n"))
        })?;
        let gates = gates.framework_gates();
        let profiles = checked.profiles.iter();
        let profiles = profiles.map(|it| Arc::new(Profile::new(it, &gates))).collect();
        let options = EngineOptions { seed, verify_every: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(profiles, gates, options);
        engine.set_log_verbosity(LOG_VERBOSITY);
        Ok(TestCluster {
            engine,
            api_server: FakeApiServer::default(),
            now: START,
            pending_events: BTreeMap::new(),
            rng: Rng::new(seed).split("events"),
            events: Vec::new(),
            log_lines: Vec::new(),
            errors: Vec::new(),
            n_pods: 0,
            keeps_terminating_pods: false,
        })
    }

    /// Adds or updates a node.
    pub fn upsert_node(&mut self, node: impl Into<Value>) -> BenchResult {
        let node: Value = node.into();
        let extra = ExtraFields::from_value(&node, self.engine.extra_fields().nodes);
        self.api_server.upsert_node(Node { extra, ..decode(&node)? });
        Ok(())
    }

    /// Deletes a node. Its pods stay assigned, as in a cluster without controllers.
    pub fn delete_node(&mut self, name: &str) {
        self.api_server.delete_node(&Str::new(name));
    }

    /// Creates a pod, by default in the namespace `default`. A pod with `spec.nodeName` is assigned.
    pub fn create_pod(&mut self, pod: impl Into<Value>) -> BenchResult {
        let pod: Value = pod.into();
        let extra = ExtraFields::from_value(&pod, self.engine.extra_fields().pods);
        let mut pod = Pod { extra, ..decode(&pod)? };
        let metadata = &mut pod.metadata;
        if metadata.namespace.is_empty() {
            metadata.namespace = Str::new("default");
        }
        self.n_pods += 1;
        if metadata.uid.is_empty() {
            metadata.uid = format!("uid-{}", self.n_pods).into();
        }
        metadata.creation_timestamp.get_or_insert(self.now.wall);
        metadata.generation = metadata.generation.max(1);
        let name = pod.full_name();
        if self.api_server.pod(&name).is_some() {
            return Err(PluginTestBenchError(format!("pod {name} already exists")));
        }
        self.api_server.create_pod(pod);
        Ok(())
    }

    /// Deletes a pod, if it exists. Without a namespace the name means `default/NAME`, here and below.
    pub fn delete_pod(&mut self, pod: &str) {
        self.api_server.delete_pod_gracefully(&full_name(pod), self.now.wall);
    }

    /// With `true`, pods that are deleted or evicted from now on stay as terminating pods, as if their containers did not end; with `false` they
    /// are removed.
    pub fn keep_terminating_pods(&mut self, keep: bool) {
        self.keeps_terminating_pods = keep;
        self.collect_watch_events();
    }

    /// Adds or updates an object of a kind that a plugin watches.
    pub fn upsert_object(&mut self, kind: &Gvr, object: Value) {
        self.set_kind_synced(kind, true);
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let object_ref = object_ref(kind, &name("namespace"), &name("name"));
        self.enqueue_event(
            &kind.to_string(),
            EngineEvent::ObjectChanged { object: object_ref, value: Some(object) },
        );
    }

    /// Deletes such an object; the namespace is empty for cluster-scoped kinds.
    pub fn delete_object(&mut self, kind: &Gvr, namespace: &str, name: &str) {
        let object = object_ref(kind, namespace, name);
        self.enqueue_event(&kind.to_string(), EngineEvent::ObjectChanged { object, value: None });
    }

    /// Sets whether the API server serves this kind, so that it is synced, possibly without objects.
    pub fn set_kind_synced(&mut self, kind: &Gvr, has_synced: bool) {
        let (group, resource) = (kind.group.clone(), kind.resource.clone());
        self.enqueue_event(&kind.to_string(), EngineEvent::Synced { group, resource, has_synced });
    }

    /// Publishes a value to a plugin, as a background service does.
    pub fn publish_to_plugin(
        &mut self,
        plugin: &str,
        value: &impl Serialize,
        ttl: Duration,
    ) -> BenchResult {
        let value = serde_json::to_value(value).map_err(|error| bench_error(&error))?;
        self.enqueue_event(
            "published",
            EngineEvent::Published { plugin: plugin.into(), value, ttl },
        );
        Ok(())
    }

    /// Runs until there is nothing left to do at the current virtual time.
    pub fn run_until_idle(&mut self) -> BenchResult {
        for _ in 0..N_STEPS_MAX {
            if !self.step()? {
                return match self.engine.decision_mismatches().next() {
                    Some(line) => Err(PluginTestBenchError(format!(
                        "a fast decision differs from per-node evaluation: {line}"
                    ))),
                    None => Ok(()),
                };
            }
        }
        Err(PluginTestBenchError(
            "the cluster never settles: there is always something to do".into(),
        ))
    }

    /// Advances virtual time, and runs everything when it is due.
    pub fn advance_time(&mut self, time: Duration) -> BenchResult {
        let end = self.now.mono.after(time);
        self.run_until_idle()?;
        while let Some(due) = self.engine.next_timeout().filter(|due| *due <= end) {
            // Time must advance even if something is always due.
            self.advance_to(due.max(self.now.mono.after(Duration::from_nanos(1))));
            self.run_until_idle()?;
        }
        self.advance_to(end);
        self.run_until_idle()
    }

    /// The node that a pod is bound to.
    pub fn node_of(&self, pod: &str) -> Option<String> {
        let node = &self.api_server.pod(&full_name(pod))?.spec.node_name;
        (!node.is_empty()).then(|| node.to_string())
    }

    /// Why the last scheduling attempt of a pod failed: the message of its PodScheduled condition.
    pub fn pending_message(&self, pod: &str) -> Option<String> {
        let conditions = &self.api_server.pod(&full_name(pod))?.status.conditions;
        let condition =
            conditions.iter().find(|it| it.kind == "PodScheduled" && it.status == "False")?;
        Some(condition.message.to_string())
    }

    /// Full names of the pods that wait at Permit, sorted.
    pub fn waiting_pods(&self) -> Vec<String> {
        let waiting = self.engine.world().waiting_pods().iter();
        let mut names: Vec<String> = waiting.map(|waiting| waiting.pod.full_name()).collect();
        names.sort_unstable();
        names
    }

    /// Takes the Events since the last call, such as `Scheduled web: Successfully assigned default/web to a`.
    pub fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Takes the log lines of plugins since the last call, of all levels, such as `Quota 3 default/web: 2 of 3 used`.
    pub fn take_log_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log_lines)
    }

    /// Takes the errors that the scheduler would log, since the last call.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// The engine of the scheduler.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs one step; returns whether there may be more to do.
    fn step(&mut self) -> BenchResult<bool> {
        self.collect_watch_events();
        if let Some(event) = self.next_event() {
            self.apply(event);
            return Ok(true);
        }
        if self.engine.next_timeout().is_some_and(|due| due <= self.now.mono) {
            let mut effects = Effects::new();
            self.engine.handle_timeouts(self.now, &mut effects);
            self.carry_out(effects);
        }
        let mut effects = Effects::new();
        let result = self.engine.cycle(self.now, &mut effects);
        let is_more = !effects.is_empty() || result == loadmaster_engine::engine::CycleResult::Ran;
        self.carry_out(effects);
        self.collect_watch_events();
        Ok(is_more || !self.pending_events.is_empty())
    }

    fn collect_watch_events(&mut self) {
        let keeps = self.keeps_terminating_pods;
        let is_over = |pod: &Pod| !keeps && pod.metadata.deletion_timestamp.is_some();
        for name in self.api_server.pod_names_matching(is_over) {
            self.api_server.delete_pod(&name);
        }
        for event in self.api_server.take_watch_events() {
            let (_, resource) = event.kind.group_resource();
            self.enqueue_event(resource, event.event);
        }
    }

    fn enqueue_event(&mut self, kind: &str, event: EngineEvent) {
        self.pending_events.entry(kind.to_owned()).or_default().push_back(event);
    }

    /// The next event: in order within a kind, in random order between kinds.
    fn next_event(&mut self) -> Option<EngineEvent> {
        if self.pending_events.is_empty() {
            return None;
        }
        let nth = self.rng.below(self.pending_events.len() as u64) as usize;
        let kind = self.pending_events.keys().nth(nth)?.clone();
        let queue = self.pending_events.get_mut(&kind)?;
        let event = queue.pop_front();
        if queue.is_empty() {
            self.pending_events.remove(&kind);
        }
        event
    }

    fn apply(&mut self, event: EngineEvent) {
        let mut effects = Effects::new();
        self.engine.apply_event(self.now, event, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Call(call) => {
                    let reply = self.api_server.handle_request(&call.request, self.now.wall);
                    self.enqueue_event(
                        "api-replies",
                        EngineEvent::Replied { call: call.id, reply },
                    );
                }
                Effect::CallExtender(call) => {
                    let reply = Err("extenders are not supported in the test cluster".to_owned());
                    self.enqueue_event(
                        "api-replies",
                        EngineEvent::ExtenderReplied { call: call.id, reply },
                    );
                }
                Effect::RecordEvent(record) => {
                    self.events.push(format!(
                        "{} {}: {}",
                        record.reason, record.regarding.name, record.note
                    ));
                }
                Effect::Observe(Observation::InternalError { message }) => {
                    self.errors.push(message)
                }
                Effect::Observe(Observation::PluginLogs(lines)) => {
                    self.log_lines.extend(lines.iter().map(|line| {
                        let PluginLogLine { plugin, level, pod, message, .. } = line;
                        let pod = if pod.is_empty() { String::new() } else { format!(" {pod}") };
                        format!("{plugin} {level}{pod}: {message}")
                    }));
                }
                Effect::Observe(_) => {}
            }
        }
    }

    fn advance_to(&mut self, then: MonoTime) {
        let passed = then.since(self.now.mono).as_nanos() as u64;
        self.now.mono = MonoTime(self.now.mono.0 + passed);
        self.now.wall = Timestamp(self.now.wall.0 + passed as i64);
    }
}

fn object_ref(kind: &Gvr, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        group: kind.group.clone(),
        resource: kind.resource.clone(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn full_name(pod: &str) -> String {
    if pod.contains('/') { pod.to_owned() } else { format!("default/{pod}") }
}

fn decode<T: DeserializeOwned>(value: &Value) -> BenchResult<T> {
    Ok(plugin_args::decode_json_value(value)?)
}

fn bench_error(error: &(dyn std::error::Error + 'static)) -> PluginTestBenchError {
    PluginTestBenchError(ErrorChain(error).to_string())
}
