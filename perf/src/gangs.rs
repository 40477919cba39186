//! Gangs: all PodGroups and their pods are created at once, and are scheduled with Coscheduling through an engine, as in a cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::engine::{ApiObject, ApiServerCall, CycleResult};
use loadmaster_engine::{Effects, EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, Verb};
use loadmaster_stdx::Map;
use serde_json::{Value, json};

use crate::timed_engine::{self, AnsweringCluster, TimedEngine};

const N_NODES: u32 = 5_000;
const N_GANGS: u32 = 1_000;
const MEMBERS: u32 = 100;
/// The project's target in pods per second.
const TARGET: u32 = 20_000;

struct GangWorkload {
    name: &'static str,
    /// Whether the PodGroups have `minResources`.
    has_min_resources: bool,
}

const WORKLOADS: [GangWorkload; 2] = [
    GangWorkload { name: "1,000 gangs of 100, 5,000 nodes", has_min_resources: false },
    GangWorkload {
        name: "1,000 gangs of 100 with minResources, 5,000 nodes",
        has_min_resources: true,
    },
];

/// Runs all workloads and prints a table.
pub fn measure() -> Result<()> {
    println!(
        "| workload | target/s | pods/s | us per pod: events of new pods | scheduling cycles | requests and their events |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for GangWorkload { name, has_min_resources } in WORKLOADS {
        let n = f64::from(N_GANGS * MEMBERS);
        let mut bench = Bench::new(has_min_resources)?;
        bench.add_pods()?;
        let adding = bench.engine.elapsed.as_secs_f64();
        bench.schedule_all()?;
        let (total, cycles) = (bench.engine.elapsed.as_secs_f64(), bench.in_cycles.as_secs_f64());
        let micros = |seconds: f64| seconds * 1e6 / n;
        println!(
            "| {name} | {TARGET} | {:.0} | {:.1} | {:.1} | {:.1} |",
            n / total,
            micros(adding),
            micros(cycles),
            micros(total - adding - cycles),
        );
    }
    Ok(())
}

struct Bench {
    engine: TimedEngine,
    started: Instant,
    in_cycles: Duration,
    /// Pods that are not bound, as the API server has them.
    pending: Map<String, Pod>,
}

impl Bench {
    fn new(has_min_resources: bool) -> Result<Bench> {
        let registry = loadmaster_plugins::in_tree_registry();
        let registry = loadmaster_scheduler_plugins::with_scheduler_plugins(registry);
        let enabled = json!([{"name": "Coscheduling"}]);
        let plugins = json!({"multiPoint": {"enabled": enabled},
            "queueSort": {"enabled": enabled, "disabled": [{"name": "*"}]}});
        let mut bench = Bench {
            engine: TimedEngine::new(&registry, json!({"plugins": plugins}))?,
            started: Instant::now(),
            in_cycles: Duration::ZERO,
            pending: Map::default(),
        };
        bench.sync_watched_kinds()?;
        for i in 0..N_NODES {
            let name = format!("node-{i}");
            let metadata = json!({"name": name, "labels": {"kubernetes.io/hostname": name}});
            let amounts = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
            let node: Node = serde_json::from_value(
                json!({"metadata": metadata, "status": {"allocatable": amounts}}),
            )?;
            bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))))?;
        }
        for gang in 0..N_GANGS {
            bench.add_pod_group(gang, has_min_resources)?;
        }
        bench.engine.elapsed = Duration::ZERO;
        Ok(bench)
    }

    fn add_pod_group(&mut self, gang: u32, has_min_resources: bool) -> Result<()> {
        let name = format!("train-{gang}");
        let object = ObjectRef {
            group: Str::new("scheduling.x-k8s.io"),
            resource: Str::new("podgroups"),
            namespace: Str::new("default"),
            name: Str::new(&name),
        };
        let mut value = json!({
            "metadata": {"name": name, "namespace": "default", "resourceVersion": (gang + 1).to_string(),
                "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"minMember": MEMBERS},
        });
        if has_min_resources {
            value["spec"]["minResources"] = json!({"cpu": "10", "memory": "10Gi"});
        }
        self.apply(EngineEvent::ObjectChanged { object, value: Some(value) })
    }

    /// The pods of all gangs in turn, as the Jobs of several users create them.
    fn add_pods(&mut self) -> Result<()> {
        for nth in 0..MEMBERS {
            for gang in 0..N_GANGS {
                let pod: Pod = serde_json::from_value(pod(gang, nth))?;
                self.pending.insert(pod.metadata.name.to_string(), pod.clone());
                self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))?;
            }
        }
        Ok(())
    }

    fn schedule_all(&mut self) -> Result<()> {
        loop {
            let (now, before) = (self.next_time(), self.engine.elapsed);
            let (cycled, effects) = self.engine.cycle(now);
            self.in_cycles += self.engine.elapsed - before;
            self.execute(effects)?;
            if cycled != CycleResult::Ran {
                break;
            }
        }
        ensure!(self.pending.is_empty(), "{} pods are not bound", self.pending.len());
        Ok(())
    }
}

impl AnsweringCluster for Bench {
    fn engine(&mut self) -> &mut TimedEngine {
        &mut self.engine
    }

    fn next_time(&mut self) -> Now {
        timed_engine::time_of_call(self.started.elapsed())
    }

    fn requests(&self, effects: Effects) -> Result<Vec<ApiServerCall>> {
        timed_engine::requests_without_warnings(effects)
    }

    /// The watch event after a request: the pod has its node, or is nominated to the one with which it waits at Permit.
    fn answer(&mut self, request: &ApiRequest) -> Result<()> {
        let body = request.body.as_ref().context("a request without an object")?;
        let name = request.name.as_str();
        let pod = match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => {
                let node = body["target"]["name"].as_str().context("a binding without a node")?;
                let pod = self.pending.remove(name);
                let mut pod = pod.with_context(|| format!("{name} is bound twice"))?;
                pod.spec.node_name = Str::new(node);
                pod
            }
            (Verb::StrategicMergePatch, "status") => {
                let node = body["status"]["nominatedNodeName"].as_str();
                let Some(node) = node else { bail!("{request:?}") };
                let pod = self.pending.get_mut(name).with_context(|| format!("{name} is bound"))?;
                pod.status.nominated_node_name = Str::new(node);
                pod.clone()
            }
            _ => bail!("{request:?}"),
        };
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))
    }
}

/// A pod of an indexed Job, as the API server has it.
fn pod(gang: u32, nth: u32) -> Value {
    let (job, name) = (format!("train-{gang}"), format!("train-{gang}-{nth}"));
    let sources = json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]);
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "creationTimestamp": "1970-01-01T00:00:00Z",
            "labels": {"scheduling.x-k8s.io/pod-group": job, "batch.kubernetes.io/job-name": job,
                "batch.kubernetes.io/job-completion-index": nth.to_string()},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": format!("uid-{job}"), "controller": true}]},
        "spec": {"schedulerName": "default-scheduler", "priority": 0,
            "containers": [{"name": "main", "image": "train:v1", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}],
            "tolerations": (["not-ready", "unreachable"].map(|condition| json!({"key": format!("node.kubernetes.io/{condition}"),
                "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}))),
            "volumes": [{"name": format!("kube-api-access-{gang}-{nth}"), "projected": {"sources": sources}}]},
        "status": {"phase": "Pending"},
    })
}
