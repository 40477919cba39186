//! `cargo xtask e2e drain`: how fast a scheduler binds pods that wait already, and what that costs.
//!
//! Each run has a fresh control plane. Nodes and pods are loaded first; then the scheduler starts, and the clock with it. A pod counts
//! as bound when a watch says so. The account of the process is read when its events have been written, too.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;

use super::api::Api;
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::load;
use super::outcome;
use super::process::Usage;
use super::scheduler::{Chosen, Kind, Setup};
use super::workload::Workload;

/// Where the pods are.
const NAMESPACE: &str = "e2e";
/// A scheduler that binds nothing for so long is stuck. Backoff is ten seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events that did not come for so long do not come.
const PATIENCE_FOR_EVENTS: Duration = Duration::from_secs(5);
/// What the project promises against kube-scheduler: pods a second, and CPU a pod.
const FASTER_MIN: f64 = 2.0;
const CPU_MAX: f64 = 0.2;

/// Bind pods that wait already, and measure it.
#[derive(Parser)]
pub struct Args {
    /// Which pods.
    workload: Workload,
    /// How many nodes.
    nodes: u32,
    /// How many pods.
    pods: u32,
    #[command(flatten)]
    chosen: Chosen,
    /// How often each scheduler runs; they take turns.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fail unless Loadmaster binds twice as many pods a second with a fifth of the CPU a pod.
    #[arg(long)]
    check: bool,
}

/// One run of one scheduler.
struct Run {
    kind: Kind,
    /// From its start to its first and to its last binding.
    seconds_to_first: f64,
    seconds: f64,
    n_bound: usize,
    usage: Usage,
    apiserver: Usage,
    faults: Vec<String>,
}

impl Run {
    fn pods_per_second(&self) -> f64 {
        self.n_bound as f64 / self.seconds
    }

    fn cpu_ms_per_pod(&self) -> f64 {
        self.usage.cpu_seconds * 1e3 / self.n_bound as f64
    }
}

/// Answers whether every run left the right state, and the promise was kept where that was asked.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    let kinds = args.chosen.kinds()?;
    println!("drain {:?}: {} nodes, {} pods", args.workload, args.nodes, args.pods);
    println!(
        "| scheduler | bound | s to first | s | pods/s | CPU s | CPU ms a pod | peak RSS MiB | API server CPU s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for &kind in &kinds {
            let run = drain(args, kind).await;
            let run = run.with_context(|| format!("round {} of {}", round + 1, kind.name()))?;
            print_row(&run);
            runs.push(run);
        }
    }
    let kept = compare(&runs);
    let n_faults: usize = runs.iter().map(|run| run.faults.len()).sum();
    Ok(n_faults == 0 && (kept || !args.check))
}

async fn drain(args: &Args, kind: Kind) -> Result<Run> {
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    let loading = Instant::now();
    load::fill(&api, NAMESPACE, args.nodes, args.workload, args.pods).await?;
    eprintln!("{} is next; loading took {:.1} s", kind.name(), loading.elapsed().as_secs_f64());
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let apiserver_before = plane.apiserver_usage()?;
    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let setup = Setup::new(kind.name(), plane.folder(), &kubeconfig);
    let start = Instant::now();
    let mut scheduler = args.chosen.start(kind, &setup)?;
    let n = args.pods as usize;
    let all = bound.until(n, PATIENCE).await;
    scheduler.process.check_running()?;
    let all = all?;
    wait_for_events(&api, args.pods).await?;
    let usage = scheduler.process.usage()?;
    let apiserver = plane.apiserver_usage()?;
    drop(scheduler);
    let faults = outcome::faults(&api, NAMESPACE, args.pods).await?;
    let since =
        |seen: Option<&Instant>| seen.map_or(f64::NAN, |&seen| (seen - start).as_secs_f64());
    let run = Run {
        kind,
        seconds_to_first: since(bound.seen().first()),
        seconds: since(bound.seen().last()),
        n_bound: bound.seen().len(),
        usage,
        apiserver: Usage {
            cpu_seconds: apiserver.cpu_seconds - apiserver_before.cpu_seconds,
            ..apiserver
        },
        faults,
    };
    // The logs of a run that went wrong are worth keeping.
    if all && run.faults.is_empty() {
        plane.finish();
    }
    Ok(run)
}

/// Until there is an event for every pod, or none came for a while.
async fn wait_for_events(api: &Api, n_pods: u32) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events?limit=1");
    let (mut n_last, mut changed) = (0, Instant::now());
    loop {
        let list = api.get_json(&path).await?;
        let n_items = list["items"].as_array().map_or(0, Vec::len) as u64;
        let n = n_items + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        if n > n_last {
            (n_last, changed) = (n, Instant::now());
        }
        if n >= u64::from(n_pods) || changed.elapsed() > PATIENCE_FOR_EVENTS {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn print_row(run: &Run) {
    println!(
        "| {} | {} | {:.1} | {:.1} | {:.0} | {:.1} | {:.3} | {} | {:.1} |",
        run.kind.name(),
        run.n_bound,
        run.seconds_to_first,
        run.seconds,
        run.pods_per_second(),
        run.usage.cpu_seconds,
        run.cpu_ms_per_pod(),
        run.usage.rss_peak_bytes >> 20,
        run.apiserver.cpu_seconds,
    );
    for fault in &run.faults {
        println!("{}: {fault}", run.kind.name());
    }
}

/// Medians side by side; whether the promise was kept.
fn compare(runs: &[Run]) -> bool {
    let median_of = |kind: Kind, figure: fn(&Run) -> f64| {
        median(runs.iter().filter(|run| run.kind == kind).map(figure).collect())
    };
    let ratio = |figure: fn(&Run) -> f64| {
        Some(median_of(Kind::Loadmaster, figure)? / median_of(Kind::KubeScheduler, figure)?)
    };
    let (Some(faster), Some(cpu)) = (ratio(Run::pods_per_second), ratio(Run::cpu_ms_per_pod))
    else {
        return true;
    };
    println!("loadmaster / kube-scheduler, medians:");
    println!("  pods/s        {faster:.2} (promised: at least {FASTER_MIN})");
    println!("  CPU a pod     {cpu:.3} (promised: at most {CPU_MAX})");
    if let Some(rss) = ratio(|run| run.usage.rss_peak_bytes as f64) {
        println!("  peak RSS      {rss:.2}");
    }
    faster >= FASTER_MIN && cpu <= CPU_MAX
}

/// The lower one of two.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Kind, seconds: f64, cpu_seconds: f64) -> Run {
        Run {
            kind,
            seconds_to_first: 1.0,
            seconds,
            n_bound: 100,
            usage: Usage { cpu_seconds, rss_peak_bytes: 1 << 20, ..Usage::default() },
            apiserver: Usage::default(),
            faults: Vec::new(),
        }
    }

    #[test]
    fn medians() {
        let check = |values: &[f64], want| assert_eq!(median(values.to_vec()), want, "{values:?}");
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[3.0, 1.0], Some(1.0));
        check(&[3.0, 1.0, 2.0], Some(2.0));
    }

    #[test]
    fn the_promise_is_about_both_figures() {
        let check = |seconds, cpu_seconds, kept| {
            let runs =
                [run(Kind::KubeScheduler, 10.0, 10.0), run(Kind::Loadmaster, seconds, cpu_seconds)];
            assert_eq!(compare(&runs), kept, "{seconds} s, {cpu_seconds} CPU s");
        };
        check(5.0, 2.0, true);
        check(5.1, 2.0, false);
        check(5.0, 2.1, false);
        assert!(compare(&[run(Kind::KubeScheduler, 10.0, 10.0)]), "nobody to compare with");
    }
}
