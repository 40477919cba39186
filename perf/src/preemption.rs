//! Preemption in a full cluster: each pod evicts two others. The evictions and the deletions of their victims go through an engine, as
//! in a cluster.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use loadmaster_api::{Node, Pod};
use loadmaster_engine::engine::{ApiObject, CycleResult, DeletedObjectKey};
use loadmaster_engine::{EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use loadmaster_sim::cluster_made_pods::PodController;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use crate::pod_source::{self, Change, Shape};
use crate::timed_engine::{self, AnsweringCluster, TimedEngine};

const N_NODES: u32 = 5_000;
const PODS_PER_NODE: u32 = 4;
const N_PREEMPTORS: u32 = 500;
/// More than the longest backoff.
const BACKOFF: Duration = Duration::from_secs(11);

/// What restricts the pods that evict others, and what all pods are like.
struct PreemptionWorkload {
    name: &'static str,
    /// Whether pods of one kind must be on nodes of their own, so that dry runs also change what InterPodAffinity counts.
    anti_affinity: bool,
    shape: Shape,
}

const PLAIN: &str = "2 of 4 pods evicted, 5,000 nodes";
const ANTI_AFFINITY: &str = "2 of 4 pods evicted, required anti-affinity, 5,000 nodes";
const WORKLOADS: [PreemptionWorkload; 4] = [
    PreemptionWorkload { name: PLAIN, anti_affinity: false, shape: Shape::Bare },
    PreemptionWorkload { name: PLAIN, anti_affinity: false, shape: Shape::Clustered },
    PreemptionWorkload { name: ANTI_AFFINITY, anti_affinity: true, shape: Shape::Bare },
    PreemptionWorkload { name: ANTI_AFFINITY, anti_affinity: true, shape: Shape::Clustered },
];

/// Runs all workloads and prints a table.
pub fn measure() -> Result<()> {
    println!(
        "| workload | pods | preempting decisions/s | us per decision | us per pod with all events |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for workload in &WORKLOADS {
        let mut bench = Bench::of_workload(workload, N_NODES)?;
        for nth in 0..N_PREEMPTORS {
            bench.preempt().with_context(|| format!("pod {nth}"))?;
        }
        let n = f64::from(N_PREEMPTORS);
        let (deciding, total) = (bench.deciding.as_secs_f64(), bench.engine.elapsed.as_secs_f64());
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.0} |",
            workload.name,
            if workload.shape == Shape::Bare { "bare" } else { "clustered" },
            n / deciding,
            deciding * 1e6 / n,
            total * 1e6 / n
        );
    }
    Ok(())
}

/// Makes pods of one manifest.
struct Pods {
    manifest: Value,
    /// Of clustered pods.
    controllers: Vec<PodController>,
    rng: Rng,
    n_made: u32,
}

impl Pods {
    fn new(app: &str, manifest: Value, shape: Shape) -> Pods {
        let mut rng = Rng::new(1);
        let controllers = match shape {
            Shape::Bare => Vec::new(),
            Shape::Clustered => {
                let manifests = pod_source::in_every_namespace(&manifest, app);
                pod_source::controllers_of(app, &manifests, &mut rng)
            }
        };
        Pods { manifest, controllers, rng, n_made: 0 }
    }

    fn next_pod(&mut self) -> Value {
        self.n_made += 1;
        if !self.controllers.is_empty() {
            let nth = self.rng.below(self.controllers.len() as u64) as usize;
            return self.controllers[nth].create_pod(&mut self.rng);
        }
        let mut pod = self.manifest.clone();
        let name = format!("{}-{}", text(&pod["metadata"]["labels"]["app"]), self.n_made);
        pod["metadata"]["uid"] = format!("uid-{name}").into();
        pod["metadata"]["name"] = name.into();
        pod
    }
}

/// A cluster in which preemption is needed.
pub(crate) struct Bench {
    /// Measured since the cluster was added.
    engine: TimedEngine,
    now: Duration,
    /// The pods that preempt others.
    preemptors: Pods,
    /// Time in the engine from the event of a pod to the end of the scheduling cycle in which it preempts.
    deciding: Duration,
    /// The node to which the last pod was bound.
    bound_to: Option<String>,
    n_evicted: u32,
}

impl Bench {
    /// With this many full nodes, and bare pods without anti-affinity.
    pub(crate) fn new(n_nodes: u32) -> Result<Bench> {
        Bench::of_workload(&WORKLOADS[0], n_nodes)
    }

    fn of_workload(workload: &PreemptionWorkload, n_nodes: u32) -> Result<Bench> {
        let registry = loadmaster_plugins::in_tree_registry();
        let mut low = Pods::new("low", manifest("low", 0, "1"), workload.shape);
        let mut high = manifest("high", 1_000, "2");
        if workload.anti_affinity {
            high = with_anti_affinity(high);
        }
        let mut bench = Bench {
            engine: TimedEngine::new(&registry, json!({}))?,
            now: Duration::ZERO,
            preemptors: Pods::new("high", high, workload.shape),
            deciding: Duration::ZERO,
            bound_to: None,
            n_evicted: 0,
        };
        bench.sync_watched_kinds()?;
        let mut changes = Change::of_controllers(&low.controllers)?;
        changes.append(&mut Change::of_controllers(&bench.preemptors.controllers)?);
        for change in changes {
            bench.apply(change.into_event())?;
        }
        for i in 0..n_nodes {
            let name = format!("node-{i}");
            let amounts =
                json!({"cpu": PODS_PER_NODE.to_string(), "memory": "64Gi", "pods": "110"});
            let labels = json!({"kubernetes.io/hostname": name});
            let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}});
            let node: Node = serde_json::from_value(node)?;
            bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(node))))?;
            for _ in 0..PODS_PER_NODE {
                let mut low = low.next_pod();
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
    pub(crate) fn preempt(&mut self) -> Result<()> {
        let mut high = self.preemptors.next_pod();
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
}

impl AnsweringCluster for Bench {
    fn engine(&mut self) -> &mut TimedEngine {
        &mut self.engine
    }

    fn next_time(&mut self) -> Now {
        self.now += Duration::from_micros(1);
        self.now()
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

/// The manifest of bare pods, or of a controller's.
fn manifest(app: &str, priority: i32, cpu: &str) -> Value {
    let resources = json!({"requests": {"cpu": cpu, "memory": "100Mi"}});
    json!({
        "metadata": {"namespace": "default", "labels": {"app": app},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": format!("uid-{app}"), "controller": true}]},
        "spec": {"schedulerName": "default-scheduler", "priority": priority,
            "containers": [{"name": "main", "image": "app:v1", "resources": resources}]},
        "status": {"phase": "Pending"},
    })
}

fn with_anti_affinity(mut manifest: Value) -> Value {
    let selector = json!({"matchLabels": {"app": manifest["metadata"]["labels"]["app"]}});
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
    manifest["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!([term]);
    manifest
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
