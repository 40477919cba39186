//! Preemption in a full cluster: each pod evicts two others. The evictions and the deletions of their victims go through an engine, as
//! in a cluster.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use loadmaster_api::{Node, Pod};
use loadmaster_engine::engine::{ApiObject, CycleResult, DeletedObjectKey};
use loadmaster_engine::{Effects, EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use serde_json::{Value, json};

use crate::timed_engine::{self, TimedEngine};

const N_NODES: u32 = 5_000;
const PODS_PER_NODE: u32 = 4;
const N_PREEMPTORS: u32 = 500;
/// More than the longest backoff.
const BACKOFF: Duration = Duration::from_secs(11);

/// The pods that are evicted, and what else restricts those that evict them.
struct PreemptionWorkload {
    name: &'static str,
    /// Whether pods of one kind must be on nodes of their own, so that dry runs also change what InterPodAffinity counts.
    anti_affinity: bool,
}

const WORKLOADS: [PreemptionWorkload; 2] = [
    PreemptionWorkload { name: "2 of 4 pods evicted, 5,000 nodes", anti_affinity: false },
    PreemptionWorkload {
        name: "2 of 4 pods evicted, required anti-affinity, 5,000 nodes",
        anti_affinity: true,
    },
];

/// Runs all workloads and prints a table.
pub fn measure() -> Result<()> {
    println!(
        "| workload | preempting decisions/s | us per decision | us per pod with all events |"
    );
    println!("| --- | --- | --- | --- |");
    for workload in &WORKLOADS {
        let mut bench = Bench::new(N_NODES)?;
        for nth in 0..N_PREEMPTORS {
            bench.preempt(workload, nth).with_context(|| format!("pod {nth}"))?;
        }
        let n = f64::from(N_PREEMPTORS);
        let (deciding, total) = (bench.deciding.as_secs_f64(), bench.engine.elapsed.as_secs_f64());
        println!(
            "| {} | {:.0} | {:.0} | {:.0} |",
            workload.name,
            n / deciding,
            deciding * 1e6 / n,
            total * 1e6 / n
        );
    }
    Ok(())
}

/// A cluster in which preemption is needed.
pub(crate) struct Bench {
    /// Measured since the cluster was added.
    engine: TimedEngine,
    now: Duration,
    /// Time in the engine from the event of a pod to the end of the scheduling cycle in which it preempts.
    deciding: Duration,
    /// The node to which the last pod was bound.
    bound_to: Option<String>,
    n_evicted: u32,
}

impl Bench {
    /// With this many full nodes.
    pub(crate) fn new(n_nodes: u32) -> Result<Bench> {
        let registry = loadmaster_plugins::in_tree_registry();
        let mut bench = Bench {
            engine: TimedEngine::new(&registry, json!({}))?,
            now: Duration::ZERO,
            deciding: Duration::ZERO,
            bound_to: None,
            n_evicted: 0,
        };
        for kind in bench.engine.watched_kinds.clone() {
            let (group, resource) = (kind.group, kind.resource);
            bench.apply(EngineEvent::Synced { group, resource, has_synced: true })?;
        }
        for i in 0..n_nodes {
            let name = format!("node-{i}");
            let amounts =
                json!({"cpu": PODS_PER_NODE.to_string(), "memory": "64Gi", "pods": "110"});
            let labels = json!({"kubernetes.io/hostname": name});
            let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}});
            let node: Node = serde_json::from_value(node)?;
            bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))))?;
            for at in 0..PODS_PER_NODE {
                let mut low = pod(&format!("low-{i}-{at}"), "low", 0, "1");
                low["spec"]["nodeName"] = name.as_str().into();
                bench.add_pod(&low)?;
            }
        }
        bench.engine.elapsed = Duration::ZERO;
        Ok(bench)
    }

    fn add_pod(&mut self, pod: &Value) -> Result<()> {
        let pod: Pod = serde_json::from_value(pod.clone())?;
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))
    }

    /// Adds a pod that preempts, and lets everything that follows happen until it is on its node.
    fn preempt(&mut self, workload: &PreemptionWorkload, nth: u32) -> Result<()> {
        let mut high = pod(&format!("high-{nth}"), "high", 1_000, "2");
        if workload.anti_affinity {
            let selector = json!({"matchLabels": {"app": "high"}});
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
            high["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!([term]);
        }
        let (n_evicted, before) = (self.n_evicted, self.engine.elapsed);
        self.add_pod(&high)?;
        self.cycle(true, before)?;
        ensure!(self.n_evicted == n_evicted + 2, "{} pods evicted", self.n_evicted - n_evicted);
        self.now += BACKOFF;
        let effects = self.engine.handle_timeouts(self.now());
        self.execute(effects)?;
        self.bound_to = None;
        self.cycle(false, before)?;
        let node = self.bound_to.take().context("the pod is not bound")?;
        high["spec"]["nodeName"] = node.into();
        self.add_pod(&high)
    }

    /// As [`Bench::preempt`], for pods without anti-affinity.
    pub(crate) fn preempt_without_affinity(&mut self, nth: u32) -> Result<()> {
        self.preempt(&WORKLOADS[0], nth)
    }

    fn cycle(&mut self, is_measured: bool, before: Duration) -> Result<()> {
        let (cycled, effects) = self.engine.cycle(self.now());
        if is_measured {
            self.deciding += self.engine.elapsed - before;
        }
        ensure!(cycled == CycleResult::Ran, "no scheduling cycle");
        self.execute(effects)
    }

    fn now(&self) -> Now {
        timed_engine::time_of_call(self.now)
    }

    fn apply(&mut self, event: EngineEvent) -> Result<()> {
        self.now += Duration::from_micros(1);
        let effects = self.engine.apply(self.now(), event);
        self.execute(effects)
    }

    fn execute(&mut self, effects: Effects) -> Result<()> {
        for call in timed_engine::requests(effects)? {
            let reply = Ok(call.request.body.clone().unwrap_or_default());
            self.apply(EngineEvent::Replied { call: call.id, reply })?;
            self.answer(&call.request)?;
        }
        Ok(())
    }

    /// What happens after a request.
    fn answer(&mut self, request: &ApiRequest) -> Result<()> {
        let body = request.body.as_ref().context("a request without an object")?;
        match (request.verb, request.subresource.as_str()) {
            (Verb::Delete, "") => {
                let uid = body["preconditions"]["uid"].as_str().context("no uid to delete")?;
                self.n_evicted += 1;
                self.apply(EngineEvent::Delete(DeletedObjectKey::Pod(uid.into())))
            }
            (Verb::Create, "binding") => {
                self.bound_to = body["target"]["name"].as_str().map(str::to_owned);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn pod(name: &str, app: &str, priority: i32, cpu: &str) -> Value {
    let resources = json!({"requests": {"cpu": cpu, "memory": "100Mi"}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": app},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": format!("uid-{app}"), "controller": true}]},
        "spec": {"schedulerName": "default-scheduler", "priority": priority,
            "containers": [{"name": "main", "image": "app:v1", "resources": resources}]},
        "status": {"phase": "Pending"},
    })
}
