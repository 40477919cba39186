//! The whole engine: events, queue, scheduling cycles, effects and the answers to its requests.
//!
//! Only the engine's own time counts; pods are decoded before. Each bind and each status patch is answered at once, and then the engine
//! receives the watch event with the changed pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use loadmaster_api::Pod;
use loadmaster_engine::engine::{ApiObject, CycleResult};
use loadmaster_engine::{EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use loadmaster_plugins::in_tree_registry;
use serde_json::{Value, json};

use crate::data_items::DataItem;
use crate::pod_source::{PodSource, Shape};
use crate::timed_engine::{self, AnsweringCluster, TimedEngine};
use crate::workload::{self, Kind};

const N_NODES: u32 = 5_000;
/// Pods of the mix, and how many of them come at a time.
const N_PODS: u32 = 60_000;
const N_PER_BATCH: u32 = 100;
/// Schedulable pods, without and with as many unschedulable ones.
const N_SCHEDULABLE: u32 = 10_000;
/// The project's targets: pods per second, bare and clustered; growth of the time to the last bind.
const TARGETS: [u32; 2] = [50_000, 40_000];
const GROWTH_MAX: f64 = 0.1;
const SHAPES: [(&str, Shape); 2] = [("bare", Shape::Bare), ("clustered", Shape::Clustered)];

/// Runs all workloads and prints tables.
pub fn measure() -> Result<Vec<DataItem>> {
    let mut items = Vec::new();
    println!(
        "| whole engine, mix of 40, 5,000 nodes | target/s | pods/s | us per pod: events of new pods | scheduling cycles | answers and their events |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for ((name, shape), target) in SHAPES.into_iter().zip(TARGETS) {
        let times = mix(shape)?;
        let n = f64::from(N_PODS - N_PODS / 5);
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / n;
        let per_second = 1e6 / micros(times.total());
        println!(
            "| {name} | {target} | {per_second:.0} | {:.1} | {:.1} | {:.1} |",
            micros(times.adding),
            micros(times.cycles),
            micros(times.answers)
        );
        let item =
            DataItem::new(&format!("whole engine, mix of 40, {name}"), "PodsPerSecond", "pods/s");
        items.push(item.with("Average", per_second));
    }
    println!();
    println!(
        "| 10,000 schedulable pods, 5,000 nodes | ms to the last bind, alone | with 10,000 unschedulable pods between them | growth, of which at most 10 % are required | us per unschedulable pod: scheduling cycles | answers and their events |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, shape) in SHAPES {
        let alone = to_last_bind(Kind::Ten, N_SCHEDULABLE, shape)?;
        let mixed = to_last_bind(Kind::TenAndUnschedulable, 2 * N_SCHEDULABLE, shape)?;
        let growth = mixed.total().as_secs_f64() / alone.total().as_secs_f64() - 1.0;
        let millis = |times: &Times| times.total().as_secs_f64() * 1e3;
        let micros = |mixed: Duration, alone: Duration| {
            (mixed.as_secs_f64() - alone.as_secs_f64()) * 1e6 / f64::from(N_SCHEDULABLE)
        };
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} % (at most {:.0} %) | {:.1} | {:.1} |",
            millis(&alone),
            millis(&mixed),
            growth * 100.0,
            GROWTH_MAX * 100.0,
            micros(mixed.cycles, alone.cycles),
            micros(mixed.answers, alone.answers)
        );
        let item =
            DataItem::new(&format!("unschedulable pods between others, {name}"), "Growth", "%");
        items.push(item.with("Average", growth * 100.0));
    }
    Ok(items)
}

/// The time of the mix without its first fifth.
fn mix(shape: Shape) -> Result<Times> {
    let mut bench = Bench::new(Kind::Mix, shape)?;
    for n_made in (0..N_PODS).step_by(N_PER_BATCH as usize) {
        if n_made == N_PODS / 5 {
            bench.times = Times::default();
        }
        let pods = bench.make_pods(N_PER_BATCH)?;
        bench.add(pods)?;
        bench.schedule_all()?;
        ensure!(bench.pending.is_empty(), "{} pods are not bound", bench.pending.len());
    }
    Ok(bench.times)
}

/// The time from the first scheduling cycle to the last bind, of pods that are all pending before.
fn to_last_bind(kind: Kind, n_pods: u32, shape: Shape) -> Result<Times> {
    let mut bench = Bench::new(kind, shape)?;
    let pods = bench.make_pods(n_pods)?;
    bench.add(pods)?;
    bench.times = Times::default();
    bench.schedule_all()?;
    ensure!(bench.n_bound == N_SCHEDULABLE, "{} pods are bound", bench.n_bound);
    Ok(bench.times_at_last_bind)
}

/// Time in the engine.
#[derive(Clone, Copy, Default)]
struct Times {
    adding: Duration,
    cycles: Duration,
    answers: Duration,
}

impl Times {
    fn total(&self) -> Duration {
        self.adding + self.cycles + self.answers
    }
}

struct Bench {
    engine: TimedEngine,
    source: PodSource,
    names: BTreeSet<String>,
    now: Duration,
    /// Pods that are not bound, as the API server has them, by name.
    pending: BTreeMap<String, Pod>,
    n_bound: u32,
    times: Times,
    times_at_last_bind: Times,
}

impl Bench {
    fn new(kind: Kind, shape: Shape) -> Result<Bench> {
        let mut changes = Vec::new();
        let source = PodSource::new(kind, shape, |change| changes.push(change))?;
        let mut bench = Bench {
            engine: TimedEngine::new(&in_tree_registry(), json!({}))?,
            source,
            names: BTreeSet::new(),
            now: Duration::ZERO,
            pending: BTreeMap::new(),
            n_bound: 0,
            times: Times::default(),
            times_at_last_bind: Times::default(),
        };
        bench.sync_watched_kinds()?;
        for change in changes {
            bench.apply(change.into_event())?;
        }
        for i in 0..N_NODES {
            bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(workload::node(i, kind)))))?;
            let mut base = workload::base_pod();
            let name = json!(format!("base-{i}"));
            base["metadata"]["uid"] = name.clone();
            base["metadata"]["name"] = name;
            base["spec"]["nodeName"] = json!(format!("node-{i}"));
            let base: Pod = serde_json::from_value(base)?;
            bench.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(base))))?;
        }
        Ok(bench)
    }

    /// The next pods, as the API server has them.
    fn make_pods(&mut self, n: u32) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for _ in 0..n {
            let mut pod = self.source.next_pod();
            // A random name may occur again, with which the API server would reject the pod.
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if !self.names.insert(name.clone()) {
                pod["metadata"]["name"] = json!(format!("{name}-{}", self.names.len()));
            }
            pod["spec"]["schedulerName"] = json!("default-scheduler");
            pod["status"] = json!({"phase": "Pending"});
            pods.push(serde_json::from_value(pod)?);
        }
        Ok(pods)
    }

    fn add(&mut self, pods: Vec<Pod>) -> Result<()> {
        let before = self.engine.elapsed;
        for pod in pods {
            self.pending.insert(pod.metadata.name.to_string(), pod.clone());
            self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))?;
        }
        self.times.adding += self.engine.elapsed - before;
        Ok(())
    }

    fn schedule_all(&mut self) -> Result<()> {
        loop {
            let before = self.engine.elapsed;
            let (cycled, effects) = self.engine.cycle(self.now());
            let after = self.engine.elapsed;
            self.times.cycles += after - before;
            let n_bound = self.n_bound;
            self.execute(effects)?;
            self.times.answers += self.engine.elapsed - after;
            if self.n_bound > n_bound {
                self.times_at_last_bind = self.times;
            }
            if cycled != CycleResult::Ran {
                return Ok(());
            }
        }
    }

    fn now(&self) -> Now {
        timed_engine::time_of_call(self.now)
    }
}

impl AnsweringCluster for Bench {
    fn engine(&mut self) -> &mut TimedEngine {
        &mut self.engine
    }

    fn next_time(&mut self) -> Now {
        self.now += Duration::from_micros(1);
        self.now()
    }

    /// The watch event after a request.
    fn answer(&mut self, request: &ApiRequest) -> Result<()> {
        let body = request.body.as_ref().context("a request without an object")?;
        let name = request.name.as_str();
        let pod = match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => {
                let pod = self.pending.remove(name);
                let mut pod = pod.with_context(|| format!("{name} is bound twice"))?;
                let node = body["target"]["name"].as_str().context("a binding without a node")?;
                pod.spec.node_name = node.into();
                self.n_bound += 1;
                pod
            }
            (Verb::StrategicMergePatch, "status") => {
                let pod = self.pending.get_mut(name).with_context(|| format!("{name} is bound"))?;
                let conditions: &Value = &body["status"]["conditions"];
                pod.status.conditions = serde_json::from_value(conditions.clone())?;
                pod.clone()
            }
            _ => bail!("{request:?}"),
        };
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))
    }
}
