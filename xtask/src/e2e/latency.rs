//! `cargo xtask e2e latency`: how long pods wait until they are bound when they come one after the other.
//!
//! Each run has a new control plane. Cluster-made pods are created at a constant rate, by default half of what the null scheduler reaches
//! with pending pods. The latency of a pod is the time from sending the request that creates it until a watch reports that it is bound; the null
//! scheduler shows how much of it is the API server's. What a scheduler itself needs is in its metrics: the decision
//! (`scheduler_scheduling_algorithm_duration_seconds`) and the attempt, which includes the request that binds the pod
//! (`scheduler_scheduling_attempt_duration_seconds`).

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

mod histogram;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::process::Process;
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::{PodForm, Workload};
use super::{drain, load_objects, outcome_checks};
use histogram::Histogram;

const NAMESPACE: &str = "e2e";
/// A scheduler that binds no pod for this time is stuck.
const STANDSTILL_TIMEOUT: Duration = Duration::from_secs(60);
/// The scheduler has synced, and connections are open, after the first pods, which are not counted.
const N_FIRST: u32 = 200;
const DECISION: &str = "scheduler_scheduling_algorithm_duration_seconds";
const ATTEMPT: &str = "scheduler_scheduling_attempt_duration_seconds";
/// What `--check` requires: Loadmaster's create-to-bound p99 in comparison with the null scheduler's, and the p99 and p99.9 of its decisions in
/// seconds.
const CREATE_TO_BOUND_RATIO_MAX: f64 = 1.5;
const DECISION_P99_MAX: f64 = 0.001;
const DECISION_P999_MAX: f64 = 0.003;

/// Measure how long pods that come at a constant rate wait until they are bound.
#[derive(Parser)]
pub struct Args {
    /// The kind of pods.
    workload: Workload,
    /// Number of nodes.
    nodes: u32,
    /// Number of pods.
    pods: u32,
    /// Pods per second; by default half of the null scheduler's rate with as many pending pods.
    #[arg(long)]
    rate: Option<f64>,
    /// Fail unless the create-to-bound p99 of Loadmaster is at most 1.5 times the null scheduler's, the p99 of its decisions at most 1 ms, and
    /// their p99.9 at most 3 ms.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// Whether all pods were bound rightly and, with `--check`, within the limits.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods + N_FIRST)?;
    let kinds = args.chosen.kinds()?;
    let rate = match args.rate {
        Some(rate) => rate,
        None => drain_null_scheduler(args).await? / 2.0,
    };
    ensure!(rate >= 1.0, "a rate of {rate} pods per second");
    println!(
        "latency {:?}: {} nodes, {} pods, {rate:.0} per second",
        args.workload, args.nodes, args.pods
    );
    println!(
        "| scheduler | create to bound, ms: p50 | p99 | p99.9 | decisions, ms: p50 | p99 | p99.9 | attempts with binding, ms: p50 | p99 | p99.9 | CPU ms per pod |"
    );
    println!("|{}", " --- |".repeat(11));
    let null = measure(args, rate, None).await?;
    let mut is_within = null.faults.is_empty();
    for kind in kinds {
        let run = measure(args, rate, Some(kind)).await?;
        is_within &= run.faults.is_empty();
        if kind == SchedulerKind::Loadmaster {
            let ratio = run.percentile(0.99) / null.percentile(0.99);
            println!(
                "create to bound p99, loadmaster / null scheduler: {ratio:.2} (required: at most {CREATE_TO_BOUND_RATIO_MAX})"
            );
            let [_, p99, p999] =
                run.decisions_and_attempts.context("Loadmaster has no metrics")?[0];
            is_within &= !args.check
                || (ratio <= CREATE_TO_BOUND_RATIO_MAX
                    && p99 <= DECISION_P99_MAX
                    && p999 <= DECISION_P999_MAX);
        }
    }
    Ok(is_within)
}

/// The percentiles.
const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// One run.
struct Run {
    /// Seconds from creating a pod until it was bound, ascending.
    seconds: Vec<f64>,
    /// Seconds of p50, p99 and p99.9 of the decisions and of the attempts; of a scheduler with metrics.
    decisions_and_attempts: Option<[[f64; 3]; 2]>,
    cpu_ms_per_pod: f64,
    faults: Vec<String>,
}

impl Run {
    fn percentile(&self, share: f64) -> f64 {
        percentile(&self.seconds, share)
    }
}

/// The figure that this share of the figures does not exceed; they must be in ascending order.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let nth = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(nth.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The rate of the null scheduler with pods that are already pending.
async fn drain_null_scheduler(args: &Args) -> Result<f64> {
    let plane = start_control_plane(args).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let (path, workload) = (pods_path(), args.workload);
    let make = move |i| PodForm::ClusterMade.apply(workload.pod(i));
    load_objects::create_all(&api, &path, 0..args.pods, make).await.context("creating pods")?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let started = Instant::now();
    let mut null = start_null_scheduler(&plane)?;
    let all = bound.wait_for(args.pods as usize, STANDSTILL_TIMEOUT).await?;
    null.check_running()?;
    ensure!(all, "the null scheduler bound {} pods", bound.bound_at().len());
    let last = bound.bound_at().last().context("no pod")?;
    let rate = f64::from(args.pods) / (*last - started).as_secs_f64();
    drop(null);
    plane.finish();
    Ok(rate)
}

/// Creates pods at this rate for a running scheduler; the null scheduler if there is no kind.
async fn measure(args: &Args, rate: f64, kind: Option<SchedulerKind>) -> Result<Run> {
    let plane = start_control_plane(args).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let (mut process, url) = match kind {
        None => (start_null_scheduler(&plane)?, None),
        Some(kind) => {
            let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
            let setup = SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig);
            let scheduler = args.chosen.start(kind, &setup)?;
            let url = scheduler.url();
            (scheduler.process, Some(url))
        }
    };
    create_pods(&api, args.workload, 0..N_FIRST, rate).await?;
    ensure!(
        bound.wait_for(N_FIRST as usize, STANDSTILL_TIMEOUT).await?,
        "the first pods are not bound"
    );
    let token = plane.admin_token()?;
    let histograms = async || -> Result<Option<[Histogram; 2]>> {
        let Some(url) = &url else { return Ok(None) };
        let text = ApiClient::insecure(url, Some(&token))?.get("/metrics").await?;
        let text = String::from_utf8_lossy(&text);
        Ok(Some([Histogram::of_metrics(&text, DECISION)?, Histogram::of_metrics(&text, ATTEMPT)?]))
    };
    let (before, usage_before) = (histograms().await?, process.usage()?);
    let n_all = N_FIRST + args.pods;
    // The watch is read while pods are created.
    let creating = {
        let (api, workload) = (api.clone(), args.workload);
        tokio::spawn(async move { create_pods(&api, workload, N_FIRST..n_all, rate).await })
    };
    let all = bound.wait_for(n_all as usize, STANDSTILL_TIMEOUT).await;
    process.check_running()?;
    let created_at = creating.await.context("the task that creates pods panicked")??;
    ensure!(all?, "{} of {n_all} pods are bound", bound.bound_at().len());
    let after = histograms().await?;
    let usage = process.usage()?;
    let bound_at = bound.names().iter().zip(bound.bound_at());
    let waited =
        bound_at.filter_map(|(name, at)| Some((*at - *created_at.get(name)?).as_secs_f64()));
    let mut seconds: Vec<f64> = waited.collect();
    seconds.sort_by(f64::total_cmp);
    drain::wait_for_events(&api, NAMESPACE, n_all).await?;
    drop(process);
    let run = Run {
        seconds,
        decisions_and_attempts: after.zip(before).map(|(after, before)| {
            [0, 1]
                .map(|at| after[at].since(&before[at]))
                .map(|it| SHARES.map(|share| it.percentile(share)))
        }),
        cpu_ms_per_pod: (usage.cpu_seconds - usage_before.cpu_seconds) * 1e3 / f64::from(args.pods),
        faults: outcome_checks::faults(&api, NAMESPACE, n_all).await?,
    };
    print_row(kind, &run);
    if run.faults.is_empty() {
        plane.finish();
    }
    Ok(run)
}

fn print_row(kind: Option<SchedulerKind>, run: &Run) {
    let name = kind.map_or("null scheduler", SchedulerKind::name);
    let mut columns = SHARES.map(|share| format!("{:.1}", run.percentile(share) * 1e3)).to_vec();
    match run.decisions_and_attempts {
        Some(both) => columns.extend(both.iter().flatten().map(|it| format!("{:.2}", it * 1e3))),
        None => columns.resize(9, "-".to_owned()),
    }
    let columns = columns.join(" | ");
    println!("| {name} | {columns} | {:.3} |", run.cpu_ms_per_pod);
    run.faults.iter().for_each(|fault| println!("{name}: {fault}"));
}

/// With nodes and a namespace.
async fn start_control_plane(args: &Args) -> Result<ControlPlane> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    load_objects::nodes(&api, args.nodes).await?;
    Ok(plane)
}

fn start_null_scheduler(plane: &ControlPlane) -> Result<Process> {
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    drain::start_null_scheduler(&kubeconfig, plane.folder(), None)
}

fn pods_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// Creates pods at this rate. Returns when the request of each was sent, by name.
async fn create_pods(
    api: &ApiClient,
    workload: Workload,
    which: Range<u32>,
    rate: f64,
) -> Result<BTreeMap<String, Instant>> {
    const N_CONCURRENT: usize = 64;
    let path = pods_path();
    let (started, mut tasks, mut sent) = (Instant::now(), JoinSet::new(), BTreeMap::new());
    for (nth, i) in which.enumerate() {
        let at = started + Duration::from_secs_f64(nth as f64 / rate);
        tokio::time::sleep_until(at.into()).await;
        while tasks.len() >= N_CONCURRENT {
            tasks.join_next().await.context("no task")?.context("a task panicked")??;
        }
        let pod = PodForm::ClusterMade.apply(workload.pod(i));
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?.to_owned();
        sent.insert(name, Instant::now());
        let (api, path) = (api.clone(), path.clone());
        tasks.spawn(async move { api.create(&path, &pod).await.map(drop) });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a task that creates pods panicked")??;
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_figures_of_the_run() {
        let figures: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let check = |share, want| assert_eq!(percentile(&figures, share), want, "{share}");
        check(0.5, 500.0);
        check(0.99, 990.0);
        check(0.999, 999.0);
        check(1.0, 1_000.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
