//! `cargo xtask e2e drain`: measures the throughput and the CPU usage of scheduling pods that are already pending.
//!
//! Each run has a new control plane. Nodes and pods are created first; then the scheduler and the clock are started. A pod counts as
//! bound when a watch reports it. The resource usage of the process is read after its Events have been written.
//!
//! With `--form both` a round has a run with bare pods and one with cluster-made pods, which shows what a token volume and an owner
//! reference cost. ServiceAccount admission is on for both; bare pods decline the token (`automountServiceAccountToken: false`).

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::load_objects;
use super::outcome_checks;
use super::plot::{self, Curve};
use super::process::Usage;
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::{PodForm, Workload};

/// The namespace of the pods.
const NAMESPACE: &str = "e2e";
/// A scheduler that binds no pod for this time is stuck. The maximum backoff is ten seconds.
const STANDSTILL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for further Events.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(5);
/// What `--check` requires in comparison with kube-scheduler: pods per second, and CPU per pod.
const THROUGHPUT_RATIO_MIN: f64 = 2.0;
const CPU_RATIO_MAX: f64 = 0.2;
/// What `--check` requires of Loadmaster: CPU per cluster-made pod in comparison with a bare one.
const CLUSTER_MADE_RATIO_MAX: f64 = 1.15;

/// The forms of the pods, which alternate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FormChoice {
    /// Without owner and token.
    Bare,
    /// Of a Job, with a token volume added by admission.
    ClusterMade,
    /// Bare and cluster-made pods in turn.
    Both,
}

impl FormChoice {
    fn forms(self) -> &'static [PodForm] {
        match self {
            FormChoice::Bare => &[PodForm::Bare],
            FormChoice::ClusterMade => &[PodForm::ClusterMade],
            FormChoice::Both => &[PodForm::Bare, PodForm::ClusterMade],
        }
    }
}

/// Benchmark scheduling of pods that are already pending.
#[derive(Parser)]
pub struct Args {
    /// The kind of pods.
    workload: Workload,
    /// Number of nodes.
    nodes: u32,
    /// Number of pods.
    pods: u32,
    /// The form of the pods.
    #[arg(long, default_value = "cluster-made")]
    form: FormChoice,
    #[command(flatten)]
    chosen: SchedulerArgs,
    /// Number of runs of each scheduler with each form of pods; they alternate.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fail unless Loadmaster binds twice as many pods per second with a fifth of the CPU per pod, and, with both forms, uses at most 15 %
    /// more CPU per cluster-made pod than per bare one.
    #[arg(long)]
    check: bool,
    /// Write the pods bound over time of the first round to an SVG file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// One run of one scheduler.
struct Run {
    kind: SchedulerKind,
    form: PodForm,
    /// When each pod was bound, in seconds since the scheduler started, in order.
    bound_seconds: Vec<f64>,
    usage: Usage,
    apiserver: Usage,
    faults: Vec<String>,
}

impl Run {
    /// From the scheduler's start to its last binding; NaN without one.
    fn seconds(&self) -> f64 {
        self.bound_seconds.last().copied().unwrap_or(f64::NAN)
    }

    fn pods_per_second(&self) -> f64 {
        self.bound_seconds.len() as f64 / self.seconds()
    }

    fn cpu_ms_per_pod(&self) -> f64 {
        self.usage.cpu_seconds * 1e3 / self.bound_seconds.len() as f64
    }
}

/// Whether every run left the right state and, with `--check`, Loadmaster was within the limits.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    let kinds = args.chosen.kinds()?;
    println!("drain {:?}: {} nodes, {} pods", args.workload, args.nodes, args.pods);
    println!(
        "| scheduler | pods | bound | s to first | s | pods/s | CPU s | CPU ms per pod | peak RSS MiB | API server CPU s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let forms = args.form.forms();
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for (&form, &kind) in
            forms.iter().flat_map(|form| kinds.iter().map(move |kind| (form, kind)))
        {
            let run = drain(args, kind, form).await;
            let run = run.with_context(|| {
                format!("round {} of {} with {} pods", round + 1, kind.name(), form.name())
            })?;
            print_row(&run);
            runs.push(run);
        }
    }
    if let Some(path) = &args.svg {
        let curve = |run: &Run| Curve {
            label: match forms {
                [_] => run.kind.name().to_owned(),
                _ => format!("{}, {}", run.kind.name(), run.form.name()),
            },
            seconds: run.bound_seconds.clone(),
        };
        let curves: Vec<Curve> = runs.iter().take(kinds.len() * forms.len()).map(curve).collect();
        let title = format!("{} pods on {} nodes, {:?}", args.pods, args.nodes, args.workload);
        fs::write(path, plot::svg(&title, &curves)).with_context(|| path.display().to_string())?;
    }
    let within_limits =
        compare_schedulers(&runs) & kinds.iter().all(|&kind| compare_forms(&runs, kind));
    let n_faults: usize = runs.iter().map(|run| run.faults.len()).sum();
    Ok(n_faults == 0 && (within_limits || !args.check))
}

async fn drain(args: &Args, kind: SchedulerKind, form: PodForm) -> Result<Run> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let loading = Instant::now();
    load_objects::namespace(&api, NAMESPACE).await?;
    load_objects::nodes(&api, args.nodes).await?;
    load_objects::pods_in_form(&api, NAMESPACE, args.workload, form, args.pods).await?;
    check_form(&api, form).await?;
    eprintln!(
        "starting {}; creating the nodes and {} pods took {:.1} s",
        kind.name(),
        form.name(),
        loading.elapsed().as_secs_f64()
    );
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let apiserver_before = plane.apiserver_usage()?;
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let setup = SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig);
    let start = Instant::now();
    let mut scheduler = args.chosen.start(kind, &setup)?;
    let n = args.pods as usize;
    let all = bound.wait_for(n, STANDSTILL_TIMEOUT).await;
    scheduler.process.check_running()?;
    let all = all?;
    wait_for_events(&api, args.pods).await?;
    let usage = scheduler.process.usage()?;
    let apiserver = plane.apiserver_usage()?;
    drop(scheduler);
    let faults = outcome_checks::faults(&api, NAMESPACE, args.pods).await?;
    let run = Run {
        kind,
        form,
        bound_seconds: bound.bound_at().iter().map(|&at| (at - start).as_secs_f64()).collect(),
        usage,
        apiserver: Usage {
            cpu_seconds: apiserver.cpu_seconds - apiserver_before.cpu_seconds,
            ..apiserver
        },
        faults,
    };
    // Keep the logs of a failed run.
    if all && run.faults.is_empty() {
        plane.finish();
    }
    Ok(run)
}

/// An error if admission did not leave the pods in this form.
async fn check_form(api: &ApiClient, form: PodForm) -> Result<()> {
    let list = api.get_json(&format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1")).await?;
    for pod in list["items"].as_array().into_iter().flatten() {
        ensure!(form.is_form_of(pod), "admission did not create a {} pod: {pod}", form.name());
    }
    Ok(())
}

/// Waits until there is an Event for every pod, or no new Event was written for a while.
async fn wait_for_events(api: &ApiClient, n_pods: u32) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events?limit=1");
    let (mut n_last, mut changed) = (0, Instant::now());
    loop {
        let list = api.get_json(&path).await?;
        let n_items = list["items"].as_array().map_or(0, Vec::len) as u64;
        let n = n_items + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        if n > n_last {
            (n_last, changed) = (n, Instant::now());
        }
        if n >= u64::from(n_pods) || changed.elapsed() > EVENTS_TIMEOUT {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn print_row(run: &Run) {
    println!(
        "| {} | {} | {} | {:.1} | {:.1} | {:.0} | {:.1} | {:.3} | {} | {:.1} |",
        run.kind.name(),
        run.form.name(),
        run.bound_seconds.len(),
        run.bound_seconds.first().copied().unwrap_or(f64::NAN),
        run.seconds(),
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

/// Prints medians side by side; whether they are within the limits.
fn compare_schedulers(runs: &[Run]) -> bool {
    let median_of = |kind: SchedulerKind, figure: fn(&Run) -> f64| {
        median(runs.iter().filter(|run| run.kind == kind).map(figure).collect())
    };
    let ratio = |figure: fn(&Run) -> f64| {
        Some(
            median_of(SchedulerKind::Loadmaster, figure)?
                / median_of(SchedulerKind::KubeScheduler, figure)?,
        )
    };
    let (Some(faster), Some(cpu)) = (ratio(Run::pods_per_second), ratio(Run::cpu_ms_per_pod))
    else {
        return true;
    };
    println!("loadmaster / kube-scheduler, medians:");
    println!("  pods/s        {faster:.2} (required: at least {THROUGHPUT_RATIO_MIN})");
    println!("  CPU per pod   {cpu:.3} (required: at most {CPU_RATIO_MAX})");
    if let Some(rss) = ratio(|run| run.usage.rss_peak_bytes as f64) {
        println!("  peak RSS      {rss:.2}");
    }
    faster >= THROUGHPUT_RATIO_MIN && cpu <= CPU_RATIO_MAX
}

/// Prints the CPU per pod of each pair of runs of a scheduler, bare and cluster-made; whether the median ratio is within the limit, which
/// is for Loadmaster.
fn compare_forms(runs: &[Run], kind: SchedulerKind) -> bool {
    let of = |form: PodForm| runs.iter().filter(move |run| run.kind == kind && run.form == form);
    let pairs: Vec<(f64, f64)> = of(PodForm::Bare)
        .zip(of(PodForm::ClusterMade))
        .map(|(bare, cluster_made)| (bare.cpu_ms_per_pod(), cluster_made.cpu_ms_per_pod()))
        .collect();
    let Some(ratio) = median(pairs.iter().map(|(bare, made)| made / bare).collect()) else {
        return true;
    };
    println!("{}, CPU ms per pod, bare and cluster-made pods:", kind.name());
    for (bare, made) in &pairs {
        println!("  {bare:.3} {made:.3}: {:.3}", made / bare);
    }
    let is_limited = kind == SchedulerKind::Loadmaster;
    let required = match is_limited {
        true => format!(" (required: at most {CLUSTER_MADE_RATIO_MAX})"),
        false => String::new(),
    };
    println!("  median ratio  {ratio:.3}{required}");
    !is_limited || ratio <= CLUSTER_MADE_RATIO_MAX
}

/// The median; the lower one of two middle values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: SchedulerKind, seconds: f64, cpu_seconds: f64) -> Run {
        Run {
            kind,
            form: PodForm::ClusterMade,
            bound_seconds: (1..=100).map(|at| seconds * f64::from(at) / 100.0).collect(),
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
    fn throughput_and_cpu_must_both_reach_their_target() {
        let check = |seconds, cpu_seconds, within_limits| {
            let runs = [
                run(SchedulerKind::KubeScheduler, 10.0, 10.0),
                run(SchedulerKind::Loadmaster, seconds, cpu_seconds),
            ];
            assert_eq!(
                compare_schedulers(&runs),
                within_limits,
                "{seconds} s, {cpu_seconds} CPU s"
            );
        };
        check(5.0, 2.0, true);
        check(5.1, 2.0, false);
        check(5.0, 2.1, false);
        assert!(
            compare_schedulers(&[run(SchedulerKind::KubeScheduler, 10.0, 10.0)]),
            "nothing to compare with"
        );
    }

    #[test]
    fn the_median_ratio_of_pairs_of_forms_is_limited() {
        let check = |kind, cpu_seconds: &[(f64, f64)], within_limit| {
            let run = |form, cpu_seconds| Run { form, ..run(kind, 10.0, cpu_seconds) };
            let runs: Vec<Run> = cpu_seconds
                .iter()
                .flat_map(|&(bare, made)| {
                    [run(PodForm::Bare, bare), run(PodForm::ClusterMade, made)]
                })
                .collect();
            assert_eq!(compare_forms(&runs, kind), within_limit, "{kind:?}, {cpu_seconds:?}");
        };
        let loadmaster = SchedulerKind::Loadmaster;
        check(loadmaster, &[], true);
        check(loadmaster, &[(10.0, 11.5)], true);
        check(loadmaster, &[(10.0, 11.6)], false);
        check(loadmaster, &[(10.0, 30.0), (20.0, 22.0), (5.0, 5.0)], true);
        check(loadmaster, &[(10.0, 30.0), (20.0, 24.0), (5.0, 5.0)], false);
        check(SchedulerKind::KubeScheduler, &[(10.0, 30.0)], true);
        let only_one_form = [run(loadmaster, 10.0, 10.0)];
        assert!(compare_forms(&only_one_form, loadmaster), "nothing to compare with");
    }
}
