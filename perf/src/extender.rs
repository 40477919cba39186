//! What it costs to ask an extender: pods a second against what bare round trips of the same bodies allow, and CPU a pod.
//!
//! The extender is a process of its own on loopback, made with `extender-server`; it keeps every node. The engine decides pods as a
//! scheduler does, one question after the other; bindings are answered at once. Then the bytes that it sent are sent again, by the same
//! client to the same process, in one task that waits for the whole of each answer and does nothing with it: nobody who asks one
//! question after the other can be faster. The extender's own work is part of both. Both take turns.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use loadmaster_api::{Node, Pod, Timestamp};
use loadmaster_client::extender::ExtenderClient;
use loadmaster_config::v1;
use loadmaster_engine::engine::{Cycled, Extend, Object, Options};
use loadmaster_engine::{Effect, Effects, Engine, Event, Mono, Now};
use loadmaster_extender::ask::Objects;
use loadmaster_extender::{Answer, Extender, Extenders, Question};
use loadmaster_extender_server::{Ask, ExtenderServer, Nodes};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The argument that makes this program the extender.
pub const SERVE: &str = "--serve-extender";

const N_NODES: u32 = 5_000;
const N_TURNS: usize = 7;
/// What is promised: this share of what round trips allow.
const SHARE_PROMISED: f64 = 0.9;

/// What is measured.
struct Load {
    name: &'static str,
    by_name: bool,
    scores: bool,
    /// Pods of one turn.
    n_pods: u32,
}

const LOADS: [Load; 4] = [
    Load { name: "names, filter", by_name: true, scores: false, n_pods: 200 },
    Load { name: "names, filter and scores", by_name: true, scores: true, n_pods: 100 },
    Load { name: "whole nodes, filter", by_name: false, scores: false, n_pods: 10 },
    Load { name: "whole nodes, filter and scores", by_name: false, scores: true, n_pods: 6 },
];

/// Serves until standard input ends. Its URL is the first line that it prints.
pub fn serve() -> Result<()> {
    Runtime::new()?.block_on(async {
        let filter = |ask: Ask| match &ask.nodes {
            Nodes::Names(_) => Ok(ask.filter_names(|_, _| Ok(()))),
            Nodes::Whole(_) => ask.filter_nodes(|_, _| Ok(())),
        };
        let scores = |ask: Ask| match &ask.nodes {
            Nodes::Names(_) => Ok(ask.score_names(|_, name| Some(name.len() as i64))),
            Nodes::Whole(_) => ask.score_nodes(|_, node| Some(node.name().len() as i64)),
        };
        let listening =
            ExtenderServer::new().filter(filter).prioritize(scores).listen("127.0.0.1:0").await?;
        println!("http://{}", listening.address());
        let over = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        listening.run(async move { drop(over.await) }).await;
        Ok(())
    })
}

/// Prints a table.
pub fn measure() -> Result<()> {
    let mut server = Server::start()?;
    println!(
        "| asked about {N_NODES} nodes | KB asked | pods/s | round trips allow | share | CPU ms a pod | of it round trips |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut is_kept = true;
    for load in LOADS {
        is_kept &= measure_load(&load, &server.url)?;
    }
    server.child.kill().context("ending the extender")?;
    server.child.wait().context("ending the extender")?;
    println!(
        "\npromised by name: {:.0} %: {}",
        SHARE_PROMISED * 100.0,
        if is_kept { "kept" } else { "missed" }
    );
    Ok(())
}

/// Whether the promise is kept, where there is one.
fn measure_load(load: &Load, url: &str) -> Result<bool> {
    let mut bench = Bench::new(load, url)?;
    // The first pod of a template, and connections.
    let pods = bench.pods(load.n_pods / 2)?;
    bench.decide(pods)?;
    bench.asked.clear();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..N_TURNS {
        let pods = bench.pods(load.n_pods)?;
        let turn = Turn::begin()?;
        bench.decide(pods)?;
        ours.push(turn.end()?);
        let asked = std::mem::take(&mut bench.asked);
        bench.n_bytes = asked.iter().flat_map(|(_, body)| body).map(Bytes::len).sum();
        let turn = Turn::begin()?;
        bench.round_trips(asked)?;
        bare.push(turn.end()?);
    }
    let n_pods = f64::from(load.n_pods);
    let rate = |turns: &[(f64, f64)]| n_pods / median(turns.iter().map(|(seconds, _)| *seconds));
    let cpu = |turns: &[(f64, f64)]| {
        turns.iter().map(|(_, cpu)| cpu).sum::<f64>() * 1e3 / n_pods / N_TURNS as f64
    };
    // Each turn against the one beside it: the machine is not equally busy all the time.
    let shares = ours.iter().zip(&bare).map(|((ours, _), (bare, _))| bare / ours);
    let share = median(shares);
    println!(
        "| {} | {:.0} | {:.0} | {:.0} | {:.0} % | {:.2} | {:.2} |",
        load.name,
        bench.n_bytes as f64 / n_pods / 1e3,
        rate(&ours),
        rate(&bare),
        share * 100.0,
        cpu(&ours),
        cpu(&bare),
    );
    Ok(!load.by_name || share >= SHARE_PROMISED)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A clock, and this process's account with the kernel.
struct Turn {
    since: Instant,
    cpu_before: f64,
}

impl Turn {
    fn begin() -> Result<Turn> {
        Ok(Turn { cpu_before: cpu_seconds()?, since: Instant::now() })
    }

    /// Seconds that passed, and seconds of CPU.
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

/// The extender's process.
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

/// An engine, and a client that asks for it.
struct Bench {
    engine: Engine,
    extenders: Arc<Extenders>,
    client: Arc<ExtenderClient>,
    /// Of this thread, as that of a scheduler's engine.
    runtime: Runtime,
    answers: (UnboundedSender<Event>, UnboundedReceiver<Event>),
    nodes: Vec<(String, Box<RawValue>)>,
    pod: Arc<RawValue>,
    /// Where questions went, and their bodies.
    asked: Vec<(String, Vec<Bytes>)>,
    n_bytes: usize,
    n_made: u32,
    began: Instant,
}

impl Bench {
    fn new(load: &Load, url: &str) -> Result<Bench> {
        let mut config = json!({"urlPrefix": url, "filterVerb": "filter", "weight": 1,
            "nodeCacheCapable": load.by_name, "httpTimeout": "60s"});
        if load.scores {
            config["prioritizeVerb"] = "prioritize".into();
        }
        let parsed: v1::Extender = serde_json::from_value(config.clone())?;
        let registry = loadmaster_plugins::in_tree();
        let profile = crate::profile_of(&registry, json!({}), json!([config]))?;
        let gates = loadmaster_config::Gates::default().framework();
        let mut bench = Bench {
            extenders: Arc::new(Extenders::new(std::slice::from_ref(&parsed))),
            client: Arc::new(ExtenderClient::new(&parsed)?),
            engine: Engine::new(vec![profile], gates, Options::default()),
            runtime: Builder::new_current_thread().enable_all().build()?,
            answers: unbounded_channel(),
            nodes: Vec::new(),
            pod: Arc::from(serde_json::value::to_raw_value(&pod(0))?),
            asked: Vec::new(),
            n_bytes: 0,
            n_made: 0,
            began: Instant::now(),
        };
        for i in 0..N_NODES {
            let node = node(i);
            let parsed: Node = serde_json::from_value(node.clone())?;
            bench.nodes.push((parsed.name().to_owned(), serde_json::value::to_raw_value(&node)?));
            bench.apply(Event::Set(Object::Node(Arc::new(parsed))))?;
        }
        Ok(bench)
    }

    fn now(&self) -> Now {
        let nanos = self.began.elapsed().as_nanos();
        Now { mono: Mono(nanos as u64), wall: Timestamp(nanos as i64) }
    }

    fn apply(&mut self, event: Event) -> Result<()> {
        let mut effects = Effects::new();
        self.engine.apply(self.now(), event, &mut effects);
        self.carry_out(effects)
    }

    /// So many pods that the engine has not seen.
    fn pods(&mut self, n: u32) -> Result<Vec<Pod>> {
        let made = self.n_made + 1..=self.n_made + n;
        self.n_made += n;
        Ok(made.map(|nth| serde_json::from_value(pod(nth))).collect::<Result<_, _>>()?)
    }

    /// Lets these pods come, and decides until all are on their nodes.
    fn decide(&mut self, pods: Vec<Pod>) -> Result<()> {
        for pod in pods {
            self.apply(Event::Set(Object::Pod(Box::new(pod))))?;
        }
        loop {
            let mut effects = Effects::new();
            let cycled = self.engine.cycle(self.now(), &mut effects);
            self.carry_out(effects)?;
            match cycled {
                Cycled::Ran => {}
                Cycled::Waiting => {
                    let answer = self.runtime.block_on(self.answers.1.recv());
                    let answer = answer.context("waiting for an answer")?;
                    self.apply(answer)?;
                }
                Cycled::Idle => {
                    let n_left = self.engine.pending_pods().len();
                    ensure!(
                        self.engine.n_assumed() == self.n_made as usize,
                        "{n_left} pods have no node"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn carry_out(&mut self, effects: Effects) -> Result<()> {
        for effect in effects {
            match effect {
                Effect::Extend(extend) => self.ask(extend)?,
                Effect::Call(call) => {
                    self.apply(Event::Replied { call: call.id, reply: Ok(Value::Null) })?
                }
                Effect::Tell(tell) if tell.is_warning => bail!("{}", tell.note),
                Effect::Tell(_) | Effect::Observe(_) => {}
            }
        }
        Ok(())
    }

    /// As the daemon does.
    fn ask(&mut self, Extend { id, ask }: Extend) -> Result<()> {
        let extender: &Extender = self.extenders.get(ask.extender).context("an extender")?;
        let verb = ask.question.verb();
        let (url, action, timeout) =
            (extender.url(verb), extender.verb(verb).to_owned(), extender.timeout);
        let mut objects = Objects { pod: Some(&self.pod), ..Objects::default() };
        if let (false, Question::Filter(_) | Question::Prioritize(_)) =
            (extender.node_cache_capable, &ask.question)
        {
            objects.nodes = self.nodes.iter().map(|(_, node)| &**node).collect();
        }
        let body = ask.body(extender, &objects);
        let by_name = extender.node_cache_capable;
        self.asked.push((url.clone(), body.clone()));
        let (client, answers) = (self.client.clone(), self.answers.0.clone());
        self.runtime.spawn(async move {
            let answer = client.call(&action, &url, body, timeout).await;
            let answer = answer.and_then(|body| {
                Answer::read(&ask.question, by_name, &body).map_err(|error| error.to_string())
            });
            let _ = answers.send(Event::Extended { call: id, answer });
        });
        Ok(())
    }

    /// The same questions, one after the other.
    fn round_trips(&self, asked: Vec<(String, Vec<Bytes>)>) -> Result<()> {
        let timeout = self.extenders.get(0).context("an extender")?.timeout;
        let client = self.client.clone();
        let all = self.runtime.spawn(async move {
            for (url, body) in asked {
                client.call("", &url, body, timeout).await?;
            }
            Ok(())
        });
        self.runtime.block_on(all)?.map_err(|error: String| anyhow!(error))
    }
}

/// A node as a kubelet writes it, without its images.
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
