//! The overhead of calling an extender: pods per second compared with the limit of the bare HTTP round trips, and CPU per pod.
//!
//! The extender is a separate process on loopback, built with `extender-server`; it keeps every node. The engine schedules pods as
//! a
//! scheduler does, one request after the other; bindings succeed at once. Then the same request bodies are sent again by the same
//! client to the same process, in one task that waits for each response and ignores it: no scheduler with sequential requests can
//! be faster. The extender's own work is part of both measurements, which alternate.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use loadmaster_api::{Node, Pod};
use loadmaster_client::extender::ExtenderClient;
use loadmaster_config::v1;
use loadmaster_engine::engine::{ApiObject, CycleResult, EngineOptions, ExtenderCall};
use loadmaster_engine::{Effect, Effects, Engine, EngineEvent, Now};
use loadmaster_extender::request::RequestObjects;
use loadmaster_extender::{Extender, ExtenderOperation, ExtenderResponse, Extenders};
use loadmaster_extender_server::{ExtenderServer, NodesRequest, RequestNodes};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::timed_engine;

/// The argument with which this program runs as the extender.
pub const SERVE: &str = "--serve-extender";

const N_NODES: u32 = 5_000;
const N_ROUNDS: usize = 7;
/// The target: at least this share of the throughput that round trips allow.
const SHARE_TARGET: f64 = 0.9;

/// A workload.
struct ExtenderWorkload {
    name: &'static str,
    by_name: bool,
    scores: bool,
    /// Pods per round.
    n_pods: u32,
}

const WORKLOADS: [ExtenderWorkload; 4] = [
    ExtenderWorkload { name: "names, filter", by_name: true, scores: false, n_pods: 200 },
    ExtenderWorkload { name: "names, filter and scores", by_name: true, scores: true, n_pods: 100 },
    ExtenderWorkload { name: "whole nodes, filter", by_name: false, scores: false, n_pods: 10 },
    ExtenderWorkload {
        name: "whole nodes, filter and scores",
        by_name: false,
        scores: true,
        n_pods: 6,
    },
];

/// Runs the extender until standard input ends. Prints its URL as the first line.
pub fn serve() -> Result<()> {
    Runtime::new()?.block_on(async {
        let filter = |request: NodesRequest| match &request.nodes {
            RequestNodes::Names(_) => Ok(request.filter_node_names(|_, _| Ok(()))),
            RequestNodes::Objects(_) => request.filter_nodes(|_, _| Ok(())),
        };
        let scores = |request: NodesRequest| match &request.nodes {
            RequestNodes::Names(_) => {
                Ok(request.score_node_names(|_, name| Some(name.len() as i64)))
            }
            RequestNodes::Objects(_) => {
                request.score_nodes(|_, node| Some(node.name().len() as i64))
            }
        };
        let listening =
            ExtenderServer::new().filter(filter).prioritize(scores).listen("127.0.0.1:0").await?;
        println!("http://{}", listening.address());
        let end_of_input =
            tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        listening.run(async move { drop(end_of_input.await) }).await;
        Ok(())
    })
}

/// Measures all workloads and prints a table.
pub fn measure() -> Result<()> {
    let mut server = Server::start()?;
    println!(
        "| extender calls with {N_NODES} nodes | request KB per pod | pods/s | limit by round trips (pods/s) | share | CPU ms per pod | of which round trips |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut is_target_met = true;
    for workload in WORKLOADS {
        is_target_met &= measure_workload(&workload, &server.url)?;
    }
    server.child.kill().context("ending the extender")?;
    server.child.wait().context("ending the extender")?;
    println!(
        "\ntarget for requests with node names: {:.0} %: {}",
        SHARE_TARGET * 100.0,
        if is_target_met { "met" } else { "missed" }
    );
    Ok(())
}

/// Whether the target is met, or there is none.
fn measure_workload(workload: &ExtenderWorkload, url: &str) -> Result<bool> {
    let mut bench = Bench::new(workload, url)?;
    // Warm-up: the first pod of the template, and connections.
    let pods = bench.pods(workload.n_pods / 2)?;
    bench.decide(pods)?;
    bench.requests.clear();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..N_ROUNDS {
        let pods = bench.pods(workload.n_pods)?;
        let measurement = Measurement::start()?;
        bench.decide(pods)?;
        ours.push(measurement.end()?);
        let requests = std::mem::take(&mut bench.requests);
        bench.n_bytes = requests.iter().flat_map(|(_, body)| body).map(Bytes::len).sum();
        let measurement = Measurement::start()?;
        bench.round_trips(requests)?;
        bare.push(measurement.end()?);
    }
    let n_pods = f64::from(workload.n_pods);
    let rate = |rounds: &[(f64, f64)]| n_pods / median(rounds.iter().map(|(seconds, _)| *seconds));
    let cpu = |rounds: &[(f64, f64)]| {
        rounds.iter().map(|(_, cpu)| cpu).sum::<f64>() * 1e3 / n_pods / N_ROUNDS as f64
    };
    // Each round is compared with the one next to it: the workload of the machine varies.
    let shares = ours.iter().zip(&bare).map(|((ours, _), (bare, _))| bare / ours);
    let share = median(shares);
    println!(
        "| {} | {:.0} | {:.0} | {:.0} | {:.0} % | {:.2} | {:.2} |",
        workload.name,
        bench.n_bytes as f64 / n_pods / 1e3,
        rate(&ours),
        rate(&bare),
        share * 100.0,
        cpu(&ours),
        cpu(&bare),
    );
    Ok(!workload.by_name || share >= SHARE_TARGET)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures time, and CPU time of this process.
struct Measurement {
    since: Instant,
    cpu_before: f64,
}

impl Measurement {
    fn start() -> Result<Measurement> {
        Ok(Measurement { cpu_before: cpu_seconds()?, since: Instant::now() })
    }

    /// Elapsed seconds, and seconds of CPU.
    fn end(self) -> Result<(f64, f64)> {
        Ok((self.since.elapsed().as_secs_f64(), cpu_seconds()? - self.cpu_before))
    }
}

fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11));
    let ticks = fields.and_then(|mut fields| {
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    });
    let ticks = ticks.context("reading /proc/self/stat")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The process of the extender.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Result<Server> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.arg(SERVE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting the extender")?;
        let mut url = String::new();
        let output = child.stdout.take().context("the extender has no output")?;
        BufReader::new(output).read_line(&mut url).context("waiting for the extender")?;
        Ok(Server { child, url: url.trim().to_owned() })
    }
}

/// An engine, and the client that executes its extender calls.
struct Bench {
    engine: Engine,
    extenders: Arc<Extenders>,
    client: Arc<ExtenderClient>,
    /// Runs on this thread, as the runtime of a scheduler's engine.
    runtime: Runtime,
    replies: (UnboundedSender<EngineEvent>, UnboundedReceiver<EngineEvent>),
    nodes: Vec<(String, Box<RawValue>)>,
    pod: Arc<RawValue>,
    /// URLs and bodies of the requests sent.
    requests: Vec<(String, Vec<Bytes>)>,
    n_bytes: usize,
    n_made: u32,
    started: Instant,
}

impl Bench {
    fn new(workload: &ExtenderWorkload, url: &str) -> Result<Bench> {
        let mut config = json!({"urlPrefix": url, "filterVerb": "filter", "weight": 1,
            "nodeCacheCapable": workload.by_name, "httpTimeout": "60s"});
        if workload.scores {
            config["prioritizeVerb"] = "prioritize".into();
        }
        let parsed: v1::Extender = serde_json::from_value(config.clone())?;
        let registry = loadmaster_plugins::in_tree_registry();
        let profile = crate::profile_of(&registry, json!({}), json!([config]))?;
        let gates = loadmaster_config::AllFeatureGates::default().framework_gates();
        let mut bench = Bench {
            extenders: Arc::new(Extenders::new(std::slice::from_ref(&parsed))),
            client: Arc::new(ExtenderClient::new(&parsed)?),
            engine: Engine::new(vec![profile], gates, EngineOptions::default()),
            runtime: Builder::new_current_thread().enable_all().build()?,
            replies: unbounded_channel(),
            nodes: Vec::new(),
            pod: Arc::from(serde_json::value::to_raw_value(&pod(0))?),
            requests: Vec::new(),
            n_bytes: 0,
            n_made: 0,
            started: Instant::now(),
        };
        for i in 0..N_NODES {
            let node = node(i);
            let parsed: Node = serde_json::from_value(node.clone())?;
            bench.nodes.push((parsed.name().to_owned(), serde_json::value::to_raw_value(&node)?));
            bench.apply(EngineEvent::Upsert(ApiObject::Node(Arc::new(parsed))))?;
        }
        Ok(bench)
    }

    fn now(&self) -> Now {
        timed_engine::time_of_call(self.started.elapsed())
    }

    fn apply(&mut self, event: EngineEvent) -> Result<()> {
        let mut effects = Effects::new();
        self.engine.apply_event(self.now(), event, &mut effects);
        self.execute_effects(effects)
    }

    /// `n` new pods.
    fn pods(&mut self, n: u32) -> Result<Vec<Pod>> {
        let made = self.n_made + 1..=self.n_made + n;
        self.n_made += n;
        Ok(made.map(|nth| serde_json::from_value(pod(nth))).collect::<Result<_, _>>()?)
    }

    /// Adds these pods, and runs scheduling cycles until all are assumed on nodes.
    fn decide(&mut self, pods: Vec<Pod>) -> Result<()> {
        for pod in pods {
            self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(pod))))?;
        }
        loop {
            let mut effects = Effects::new();
            let cycled = self.engine.cycle(self.now(), &mut effects);
            self.execute_effects(effects)?;
            match cycled {
                CycleResult::Ran => {}
                CycleResult::Waiting => {
                    let reply = self.runtime.block_on(self.replies.1.recv());
                    let reply = reply.context("waiting for an reply")?;
                    self.apply(reply)?;
                }
                CycleResult::Idle => {
                    let n_left = self.engine.pending_pods().len();
                    ensure!(
                        self.engine.n_assumed_pods() == self.n_made as usize,
                        "{n_left} pods have no node"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn execute_effects(&mut self, effects: Effects) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::CallExtender(extend) => self.send_request(extend)?,
                Effect::Call(call) => {
                    self.apply(EngineEvent::Replied { call: call.id, reply: Ok(Value::Null) })?
                }
                Effect::RecordEvent(event) if event.is_warning => bail!("{}", event.note),
                Effect::RecordEvent(_) | Effect::Observe(_) => {}
            }
        }
        Ok(())
    }

    /// Calls the extender, as the daemon does.
    fn send_request(&mut self, ExtenderCall { id, request, .. }: ExtenderCall) -> Result<()> {
        let extender: &Extender = self.extenders.get(request.extender).context("an extender")?;
        let verb = request.operation.verb();
        let (url, action, timeout) =
            (extender.url(verb), extender.verb(verb).to_owned(), extender.timeout);
        let mut objects = RequestObjects { pod: Some(&self.pod), ..RequestObjects::default() };
        if let (false, ExtenderOperation::Filter(_) | ExtenderOperation::Prioritize(_)) =
            (extender.node_cache_capable, &request.operation)
        {
            objects.nodes = self.nodes.iter().map(|(_, node)| &**node).collect();
        }
        let body = request.body(extender, &objects);
        let by_name = extender.node_cache_capable;
        self.requests.push((url.clone(), body.clone()));
        let (client, replies) = (self.client.clone(), self.replies.0.clone());
        self.runtime.spawn(async move {
            let reply = client.call(&action, &url, body, timeout).await;
            let reply = reply.and_then(|body| {
                ExtenderResponse::decode(&request.operation, by_name, &body)
                    .map_err(|error| error.to_string())
            });
            let _ = replies.send(EngineEvent::ExtenderReplied { call: id, reply });
        });
        Ok(())
    }

    /// Sends the same requests, one after the other.
    fn round_trips(&self, requests: Vec<(String, Vec<Bytes>)>) -> Result<()> {
        let timeout = self.extenders.get(0).context("an extender")?.timeout;
        let client = self.client.clone();
        let all = self.runtime.spawn(async move {
            for (url, body) in requests {
                client.call("", &url, body, timeout).await?;
            }
            Ok(())
        });
        self.runtime.block_on(all)?.map_err(|error: String| anyhow!(error))
    }
}

/// A node as a kubelet creates it, without its images.
fn node(i: u32) -> Value {
    let name = format!("node-{i}");
    let amounts =
        json!({"cpu": "32", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": format!("Kubelet{kind}"), "message": "as it should be",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "metadata": {"name": name, "uid": format!("00000000-0000-0000-0000-{i:012}"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": format!("zone-{}", i % 3)}},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": format!("cloud:///{name}")},
        "status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", "True")],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {"kernelVersion": "6.1.0", "osImage": "Linux", "kubeletVersion": "v1.36.3"}},
    })
}

fn pod(i: u32) -> Value {
    let name = format!("pod-{i}");
    let resources = json!({"requests": {"cpu": "100m", "memory": "100Mi"}});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "app:v1", "resources": resources}]},
    })
}
