//! `cargo xtask e2e servers`: benchmarks kube-apiserver with etcd and the embedded API server: throughput, CPU and memory, in one run
//! on one machine.
//!
//! | part | what it is |
//! | --- | --- |
//! | `server` | the two servers as processes |
//! | `client` | connections, each with one request at a time |
//! | `objects` | realistic pods, in the encoding of upstream's components |
//! | `watchers` | watches that record their events and times |
//! | `report` | measurements, targets, the table |
//!
//! The client runs in this process on the same machine as the server; its CPU usage is also reported.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

mod client;
mod objects;
mod report;
mod server;
mod watchers;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};

use super::api_client::ApiClient;
use super::load_objects;
use super::process::Usage;
use super::programs;
use client::{BenchmarkClient, SentRequest};
use report::{Measurements, Memory, Rate, WatchedBindings};
use server::{BenchmarkServer, ServerKind};
use watchers::Watchers;

/// Benchmark kube-apiserver with etcd and the embedded API server.
#[derive(Parser)]
pub struct Args {
    /// The servers to measure.
    #[arg(long, default_value = "both")]
    server: Choice,
    /// Number of pods that are created and bound, once without and once with watchers.
    #[arg(long, default_value_t = 10_000)]
    pods: u32,
    /// Number of nodes.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Number of bound pods with a status that the embedded server finally stores; the real one stores a tenth.
    #[arg(long, default_value_t = 100_000)]
    stored: u32,
    /// Number of watchers of one node's pods, as kubelets.
    #[arg(long, default_value_t = 100)]
    watchers: u32,
    /// Number of watchers of all pods.
    #[arg(long, default_value_t = 4)]
    watchers_of_all: u32,
    /// Number of connections for creates and bindings, each with one request at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Number of starts of the embedded server; the median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Choice {
    Real,
    Embedded,
    Both,
}

/// The number of pods per batch: the requests of a batch are encoded before the clock starts.
const BATCH: u32 = 10_000;

/// The idle time before memory is read.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// Returns whether all targets are met.
pub async fn run(args: &Args) -> Result<bool> {
    let binary = programs::loadmaster(args.loadmaster.as_deref())?;
    let mut all = Vec::new();
    for (which, choice) in
        [(ServerKind::Real, Choice::Real), (ServerKind::Embedded(binary), Choice::Embedded)]
    {
        if args.server == Choice::Both || args.server == choice {
            all.push(measure(args, &which).await.with_context(|| which.name())?);
        }
    }
    Ok(report::print(&all))
}

async fn measure(args: &Args, which: &ServerKind) -> Result<Measurements> {
    let n_starts = if matches!(which, ServerKind::Real) { 1 } else { args.starts };
    let mut starts_ms = Vec::new();
    for _ in 1..n_starts {
        let (server, took) = BenchmarkServer::start(which).await?;
        starts_ms.push(took.as_secs_f64() * 1e3);
        server.finish();
    }
    let (server, took) = BenchmarkServer::start(which).await?;
    starts_ms.push(took.as_secs_f64() * 1e3);
    let bench = ServerBenchmark::new(args, server).await?;
    let create = bench.create(0..args.pods).await.context("creating pods")?.0;
    let bind = bench.bind(0..args.pods).await.context("binding pods")?.0;
    let watched = bench.bind_watched(args, args.pods..2 * args.pods).await?;
    let n_stored = match which {
        ServerKind::Real => (2 * args.pods).max(args.stored / 10),
        ServerKind::Embedded(_) => (2 * args.pods).max(args.stored),
    };
    bench.fill(2 * args.pods..n_stored).await?;
    bench.run_all(0..n_stored).await.context("writing statuses")?;
    let memory = bench.memory(n_stored).await?;
    bench.server.finish();
    Ok(Measurements { server: which.name(), starts_ms, create, bind, watched, memory })
}

/// A server with nodes, and its clients.
struct ServerBenchmark {
    server: BenchmarkServer,
    api: ApiClient,
    n_nodes: u32,
    manager: BenchmarkClient,
    scheduler: BenchmarkClient,
    kubelet: BenchmarkClient,
}

impl ServerBenchmark {
    async fn new(args: &Args, server: BenchmarkServer) -> Result<ServerBenchmark> {
        let admin = server.admin_kubeconfig();
        let api = ApiClient::new(&admin).await?;
        load_objects::namespace(&api, objects::NAMESPACE).await?;
        load_objects::nodes(&api, args.nodes).await?;
        let n = args.connections;
        let manager = BenchmarkClient::new(&admin, "kube-controller-manager", n).await?;
        let scheduler =
            BenchmarkClient::new(&server.scheduler_kubeconfig(), "kube-scheduler", n).await?;
        let kubelet = BenchmarkClient::new(&admin, "kubelet", n).await?;
        Ok(ServerBenchmark { server, api, n_nodes: args.nodes, manager, scheduler, kubelet })
    }

    async fn create(&self, pods: Range<u32>) -> Result<(Rate, Vec<SentRequest>)> {
        let requests = pods.map(objects::creation).collect::<Result<_>>()?;
        self.timed(&self.manager, requests).await
    }

    async fn bind(&self, pods: Range<u32>) -> Result<(Rate, Vec<SentRequest>)> {
        let requests = pods.map(|i| objects::binding(i, self.n_nodes)).collect::<Result<_>>()?;
        self.timed(&self.scheduler, requests).await
    }

    async fn timed(
        &self,
        client: &BenchmarkClient,
        requests: Vec<loadmaster_client::api_client::Request>,
    ) -> Result<(Rate, Vec<SentRequest>)> {
        client.connect().await?;
        let (server_before, client_before) = (self.server.usage()?, Usage::of_this_process()?);
        let start = Instant::now();
        let sent = client.send_all(requests).await?;
        let seconds = start.elapsed().as_secs_f64();
        let (server_after, client_after) = (self.server.usage()?, Usage::of_this_process()?);
        let rate = Rate {
            n: sent.len(),
            seconds,
            server_cpu_seconds: server_after.cpu_seconds - server_before.cpu_seconds,
            client_cpu_seconds: client_after.cpu_seconds - client_before.cpu_seconds,
        };
        Ok((rate, sent))
    }

    async fn bind_watched(&self, args: &Args, pods: Range<u32>) -> Result<WatchedBindings> {
        self.create(pods.clone()).await.context("creating pods")?;
        let nodes: Vec<u32> = (0..args.watchers)
            .map(|i| (u64::from(i) * u64::from(args.nodes) / u64::from(args.watchers)) as u32)
            .collect();
        let pods_of = |node: Option<u32>| {
            pods.clone()
                .filter(|pod| node.is_none_or(|node| objects::node_of(*pod, self.n_nodes) == node))
                .collect::<Vec<u32>>()
        };
        let mut wanted: Vec<(Option<u32>, Vec<u32>)> =
            nodes.into_iter().map(|node| (Some(node), pods_of(Some(node)))).collect();
        wanted.extend((0..args.watchers_of_all).map(|_| (None, pods_of(None))));
        let watchers = Watchers::open(&self.api, &self.server.admin_kubeconfig(), wanted).await?;
        let (rate, sent) = self.bind(pods.clone()).await.context("binding watched pods")?;
        let logs = watchers.finish().await?;
        let mut delays_ms: Vec<f64> = Vec::new();
        let mut last_after_ms = f64::NEG_INFINITY;
        let last_answer = sent.iter().map(|it| it.answered).max().context("no binds")?;
        for event in logs.iter().flat_map(|it| &it.events) {
            let Some(bind) = event.pod.checked_sub(pods.start) else { continue };
            let Some(bind) = sent.get(bind as usize) else { continue };
            delays_ms.push(event.at.duration_since(bind.at).as_secs_f64() * 1e3);
            let after =
                event.at.checked_duration_since(last_answer).map_or(0.0, |it| it.as_secs_f64());
            last_after_ms = last_after_ms.max(after * 1e3);
        }
        delays_ms.sort_by(f64::total_cmp);
        ensure!(!delays_ms.is_empty(), "the watchers received no events");
        let errors: Vec<String> = logs.iter().flat_map(|it| it.errors(self.n_nodes)).collect();
        errors.iter().take(20).for_each(|it| println!("{it}"));
        Ok(WatchedBindings {
            rate,
            n_watchers: logs.len(),
            n_errors: errors.len(),
            delays_ms,
            last_after_ms,
        })
    }

    /// Creates and binds more pods.
    async fn fill(&self, pods: Range<u32>) -> Result<()> {
        for batch in batches(pods) {
            self.create(batch.clone()).await.context("creating more pods")?;
            self.bind(batch).await.context("binding more pods")?;
        }
        Ok(())
    }

    /// Writes the status Running of these pods.
    async fn run_all(&self, pods: Range<u32>) -> Result<()> {
        for batch in batches(pods) {
            self.kubelet.send_all(batch.map(objects::status).collect()).await?;
        }
        Ok(())
    }

    async fn memory(&self, n_pods: u32) -> Result<Memory> {
        let pod = self.api.get_json(&objects::path(0)).await?;
        if pod["status"]["phase"] != "Running" || pod["spec"]["nodeName"].is_null() {
            bail!("a pod that should run does not: {pod}");
        }
        let mut bare = pod.clone();
        bare["metadata"].as_object_mut().context("a pod without metadata")?.remove("managedFields");
        tokio::time::sleep(SETTLE_TIME).await;
        let usage = self.server.usage()?;
        Ok(Memory {
            n_nodes: self.n_nodes,
            n_pods,
            pod_bytes: pod.to_string().len(),
            bare_pod_bytes: bare.to_string().len(),
            rss_bytes: usage.rss_bytes,
            rss_peak_bytes: usage.rss_peak_bytes,
        })
    }
}

fn batches(pods: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = pods.end;
    pods.step_by(BATCH as usize).map(move |start| start..end.min(start + BATCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_the_whole_range() {
        let check = |pods: Range<u32>, want: &[Range<u32>]| {
            assert_eq!(batches(pods).collect::<Vec<_>>(), want);
        };
        check(5..5, &[]);
        check(20_000..45_000, &[20_000..30_000, 30_000..40_000, 40_000..45_000]);
    }
}
