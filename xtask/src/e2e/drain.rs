//! `cargo xtask e2e drain`: measures the throughput and the CPU usage of scheduling pods that are already pending.
//!
//! Each run has a new control plane. Nodes and pods are created first; then the scheduler and the clock are started. A pod counts as
//! bound when a watch reports it. The resource usage of the process is read after its Events have been written; the time until then counts, too.
//!
//! With `--form both` a round has a run with bare pods and one with cluster-made pods, which shows what a token volume and an owner
//! reference cost. With `--claims` each pod has a claim. `--null-scheduler` shows what the API server, and with claims kube-controller-manager, allows.
//! ServiceAccount admission is on for both; bare pods decline the token (`automountServiceAccountToken: false`).

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::controller_manager;
use super::credentials::UserIdentity;
use super::load_claims::ClaimForm;
use super::load_objects;
use super::median::{median, ratio_of_medians};
use super::plot::{self, Curve};
use super::process::{Process, Usage};
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::{PodForm, Workload};
use super::{outcome_checks, running_pods};

/// The namespace of the pods.
const NAMESPACE: &str = "e2e";
/// A scheduler that binds no pod for this time is stuck. The maximum backoff is ten seconds.
const STANDSTILL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for further Events.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(5);
/// What `--check` requires in comparison with kube-scheduler: pods per second, and CPU per pod.
const THROUGHPUT_RATIO_MIN: f64 = 2.0;
const CPU_RATIO_MAX: f64 = 0.2;
/// The same for pods with bound claims.
const PREBOUND_THROUGHPUT_RATIO_MIN: f64 = 4.0;
/// What `--check` requires of Loadmaster in comparison with the null scheduler: pods per second to the last Event, and CPU per pod (not with
/// claims, which the null scheduler does not watch).
const NULL_THROUGHPUT_RATIO_MIN: f64 = 0.9;
const NULL_CPU_RATIO_MAX: f64 = 1.5;
/// Events are counted this often.
const EVENTS_PERIOD: Duration = Duration::from_millis(50);
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
    /// The claims of the pods; none by default.
    #[arg(long)]
    claims: Option<ClaimForm>,
    /// Pods that are on the nodes before, in 50 namespaces with a controller and a Service each.
    #[arg(long, default_value_t = 0)]
    running: u32,
    /// Seconds from the last Event until the memory is read.
    #[arg(long, default_value_t = 0)]
    idle_seconds: u64,
    /// Also run a program that sends the same writes without deciding anything.
    #[arg(long)]
    null_scheduler: bool,
    #[command(flatten)]
    chosen: SchedulerArgs,
    /// Number of runs of each scheduler with each form of pods; they alternate.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fail unless Loadmaster binds twice as many pods per second with a fifth of the CPU per pod (with bound claims four times as many), and,
    /// with both forms, uses at most 15 % more CPU per cluster-made pod than per bare one, and writes 90 % of the null scheduler's Events per
    /// second with (except with claims) at most 1.5 times its CPU per pod.
    #[arg(long)]
    check: bool,
    /// Write the pods bound over time of the first round to an SVG file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// What binds the pods of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    Scheduler(SchedulerKind),
    Null,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Scheduler(kind) => kind.name(),
            Contender::Null => "null scheduler",
        }
    }

    fn start(self, args: &Args, plane: &ControlPlane) -> Result<Process> {
        let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
        let kind = match self {
            Contender::Scheduler(kind) => kind,
            Contender::Null => {
                let claims_in = args.claims.map(|_| NAMESPACE);
                return start_null_scheduler(&kubeconfig, plane.folder(), claims_in);
            }
        };
        let setup = SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig);
        Ok(args.chosen.start(kind, &setup)?.process)
    }
}

/// Starts the null scheduler, for pods with claims in one namespace.
pub(super) fn start_null_scheduler(
    kubeconfig: &Path,
    folder: &Path,
    claims_in: Option<&str>,
) -> Result<Process> {
    let this = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(this);
    command.args(["e2e", "null-scheduler", "--kubeconfig"]).arg(kubeconfig);
    if let Some(namespace) = claims_in {
        command.args(["--claims-in", namespace]);
    }
    Process::start(Contender::Null.name(), &mut command, &folder.join("null-scheduler.log"))
}

/// One run of one scheduler.
struct Run {
    contender: Contender,
    form: PodForm,
    /// When each pod was bound, in seconds since the scheduler started, in order.
    bound_seconds: Vec<f64>,
    /// From the scheduler's start to its last Event.
    event_seconds: f64,
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

    fn events_per_second(&self) -> f64 {
        self.bound_seconds.len() as f64 / self.event_seconds
    }

    fn cpu_ms_per_pod(&self) -> f64 {
        self.usage.cpu_seconds * 1e3 / self.bound_seconds.len() as f64
    }
}

/// Whether every run left the right state and, with `--check`, Loadmaster was within the limits.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    Workload::Basic.check_size(args.nodes, args.pods + args.running)?;
    let kinds = args.chosen.kinds()?;
    let mut contenders: Vec<Contender> = kinds.iter().copied().map(Contender::Scheduler).collect();
    if args.null_scheduler {
        ensure!(
            args.claims != Some(ClaimForm::Prebound),
            "the null scheduler cannot bind pods with --claims prebound"
        );
        contenders.push(Contender::Null);
    }
    let claims = args.claims.map_or(String::new(), |form| format!(", {form:?} claims"));
    println!(
        "drain {:?}: {} nodes, {} running pods, {} pods{claims}",
        args.workload, args.nodes, args.running, args.pods
    );
    println!(
        "| scheduler | pods | bound | s to first | s | pods/s | s to last Event | Events/s | CPU s | CPU ms per pod | RSS MiB | peak RSS MiB | API server CPU s |"
    );
    println!("|{}", " --- |".repeat(13));
    let forms = args.form.forms();
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for (&form, &contender) in
            forms.iter().flat_map(|form| contenders.iter().map(move |it| (form, it)))
        {
            let run = drain(args, contender, form).await;
            let run = run.with_context(|| {
                format!("round {} of {} with {} pods", round + 1, contender.name(), form.name())
            })?;
            print_row(&run);
            runs.push(run);
        }
    }
    if let Some(path) = &args.svg {
        let curve = |run: &Run| Curve {
            label: match forms {
                [_] => run.contender.name().to_owned(),
                _ => format!("{}, {}", run.contender.name(), run.form.name()),
            },
            seconds: run.bound_seconds.clone(),
        };
        let curves: Vec<Curve> =
            runs.iter().take(contenders.len() * forms.len()).map(curve).collect();
        let title = format!("{} pods on {} nodes, {:?}", args.pods, args.nodes, args.workload);
        fs::write(path, plot::svg(&title, &curves)).with_context(|| path.display().to_string())?;
    }
    let throughput_min = match args.claims {
        Some(ClaimForm::Prebound) => PREBOUND_THROUGHPUT_RATIO_MIN,
        _ => THROUGHPUT_RATIO_MIN,
    };
    let within_limits = compare_schedulers(&runs, throughput_min)
        & compare_with_null_scheduler(&runs, args.claims.is_some())
        & kinds.iter().all(|&kind| compare_forms(&runs, kind));
    let n_faults: usize = runs.iter().map(|run| run.faults.len()).sum();
    Ok(n_faults == 0 && (within_limits || !args.check))
}

async fn drain(args: &Args, contender: Contender, form: PodForm) -> Result<Run> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let loading = Instant::now();
    load_objects::namespace(&api, NAMESPACE).await?;
    load_objects::nodes(&api, args.nodes).await?;
    running_pods::create(&api, args.nodes, args.running).await?;
    let mut manager = load_claims(args, &api, &plane).await?;
    load_pods(args, &api, form).await?;
    check_form(&api, form).await?;
    eprintln!(
        "starting {}; creating the nodes and {} pods took {:.1} s",
        contender.name(),
        form.name(),
        loading.elapsed().as_secs_f64()
    );
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let apiserver_before = plane.apiserver_usage()?;
    let start = Instant::now();
    let mut scheduler = contender.start(args, &plane)?;
    let n = args.pods as usize;
    let all = bound.wait_for(n, STANDSTILL_TIMEOUT).await;
    scheduler.check_running()?;
    manager.as_mut().map_or(Ok(()), Process::check_running)?;
    let all = all?;
    let last_event = wait_for_events(&api, NAMESPACE, args.pods).await?;
    let usage = scheduler.usage()?;
    let apiserver = plane.apiserver_usage()?;
    tokio::time::sleep(Duration::from_secs(args.idle_seconds)).await;
    let usage = Usage { cpu_seconds: usage.cpu_seconds, ..scheduler.usage()? };
    drop((scheduler, manager));
    let faults = outcome_checks::faults(&api, NAMESPACE, args.pods).await?;
    let run = Run {
        contender,
        form,
        bound_seconds: bound.bound_at().iter().map(|&at| (at - start).as_secs_f64()).collect(),
        event_seconds: (last_event - start).as_secs_f64(),
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

/// Creates the claims of the pods. Returns kube-controller-manager if it is needed to bind them.
async fn load_claims(
    args: &Args,
    api: &ApiClient,
    plane: &ControlPlane,
) -> Result<Option<Process>> {
    let Some(claims) = args.claims else { return Ok(None) };
    let flags = [
        "--controllers=persistentvolume-binder-controller,persistentvolume-protection-controller,\
         persistentvolumeclaim-protection-controller",
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
    ];
    let manager = controller_manager::start(&plane.admin_kubeconfig(), plane.folder(), &flags)?;
    claims.load(api, NAMESPACE, args.nodes, args.pods).await?;
    Ok((claims == ClaimForm::Static).then_some(manager))
}

async fn load_pods(args: &Args, api: &ApiClient, form: PodForm) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let (workload, has_claims) = (args.workload, args.claims.is_some());
    let make = move |i| {
        let pod = workload.pod(i);
        form.apply(if has_claims { ClaimForm::add_to(i, pod) } else { pod })
    };
    load_objects::create_all(api, &path, 0..args.pods, make).await.context("creating pods")
}

/// An error if admission did not leave the pods in this form.
async fn check_form(api: &ApiClient, form: PodForm) -> Result<()> {
    let list = api.get_json(&format!("/api/v1/namespaces/{NAMESPACE}/pods?limit=1")).await?;
    for pod in list["items"].as_array().into_iter().flatten() {
        ensure!(form.is_form_of(pod), "admission did not create a {} pod: {pod}", form.name());
    }
    Ok(())
}

/// Waits until there is an Event for every pod, or no new Event was written for a while. Returns when the last one was seen.
pub(super) async fn wait_for_events(
    api: &ApiClient,
    namespace: &str,
    n_pods: u32,
) -> Result<Instant> {
    let path = format!("/api/v1/namespaces/{namespace}/events?limit=1");
    let (mut n_last, mut changed) = (0, Instant::now());
    loop {
        let list = api.get_json(&path).await?;
        let n_items = list["items"].as_array().map_or(0, Vec::len) as u64;
        let n = n_items + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        if n > n_last {
            (n_last, changed) = (n, Instant::now());
        }
        if n >= u64::from(n_pods) || changed.elapsed() > EVENTS_TIMEOUT {
            return Ok(changed);
        }
        tokio::time::sleep(EVENTS_PERIOD).await;
    }
}

fn print_row(run: &Run) {
    println!(
        "| {} | {} | {} | {:.1} | {:.1} | {:.0} | {:.1} | {:.0} | {:.1} | {:.3} | {} | {} | {:.1} |",
        run.contender.name(),
        run.form.name(),
        run.bound_seconds.len(),
        run.bound_seconds.first().copied().unwrap_or(f64::NAN),
        run.seconds(),
        run.pods_per_second(),
        run.event_seconds,
        run.events_per_second(),
        run.usage.cpu_seconds,
        run.cpu_ms_per_pod(),
        run.usage.rss_bytes >> 20,
        run.usage.rss_peak_bytes >> 20,
        run.apiserver.cpu_seconds,
    );
    for fault in &run.faults {
        println!("{}: {fault}", run.contender.name());
    }
}

/// The median figure of Loadmaster's runs, divided by that of the other one.
fn median_ratio(runs: &[Run], other: Contender, figure: fn(&Run) -> f64) -> Option<f64> {
    let of = |contender: Contender| {
        runs.iter().filter(|run| run.contender == contender).map(figure).collect()
    };
    ratio_of_medians(of(Contender::Scheduler(SchedulerKind::Loadmaster)), of(other))
}

/// Prints medians side by side; whether they are within the limits.
fn compare_schedulers(runs: &[Run], throughput_min: f64) -> bool {
    let other = Contender::Scheduler(SchedulerKind::KubeScheduler);
    let ratio = |figure: fn(&Run) -> f64| median_ratio(runs, other, figure);
    let (Some(faster), Some(cpu)) = (ratio(Run::pods_per_second), ratio(Run::cpu_ms_per_pod))
    else {
        return true;
    };
    println!("loadmaster / kube-scheduler, medians:");
    println!("  pods/s        {faster:.2} (required: at least {throughput_min})");
    println!("  CPU per pod   {cpu:.3} (required: at most {CPU_RATIO_MAX})");
    if let Some(rss) = ratio(|run| run.usage.rss_peak_bytes as f64) {
        println!("  peak RSS      {rss:.2}");
    }
    faster >= throughput_min && cpu <= CPU_RATIO_MAX
}

/// Prints medians in comparison with the null scheduler; whether they are within the limits.
fn compare_with_null_scheduler(runs: &[Run], has_claims: bool) -> bool {
    let ratio = |figure: fn(&Run) -> f64| median_ratio(runs, Contender::Null, figure);
    let figures =
        (ratio(Run::pods_per_second), ratio(Run::events_per_second), ratio(Run::cpu_ms_per_pod));
    let (Some(pods), Some(events), Some(cpu)) = figures else { return true };
    let cpu_max = if has_claims { f64::INFINITY } else { NULL_CPU_RATIO_MAX };
    println!("loadmaster / null scheduler, medians:");
    println!("  pods/s        {pods:.2}");
    println!("  Events/s      {events:.2} (required: at least {NULL_THROUGHPUT_RATIO_MIN})");
    match has_claims {
        true => println!("  CPU per pod   {cpu:.2}"),
        false => println!("  CPU per pod   {cpu:.2} (required: at most {cpu_max})"),
    }
    events >= NULL_THROUGHPUT_RATIO_MIN && cpu <= cpu_max
}

/// Prints the CPU per pod of each pair of runs of a scheduler, bare and cluster-made; whether the median ratio is within the limit, which
/// is for Loadmaster.
fn compare_forms(runs: &[Run], kind: SchedulerKind) -> bool {
    let contender = Contender::Scheduler(kind);
    let of = |form: PodForm| {
        runs.iter().filter(move |run| run.contender == contender && run.form == form)
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    const KUBE_SCHEDULER: Contender = Contender::Scheduler(SchedulerKind::KubeScheduler);
    const LOADMASTER: Contender = Contender::Scheduler(SchedulerKind::Loadmaster);

    fn run(contender: Contender, seconds: f64, cpu_seconds: f64) -> Run {
        Run {
            contender,
            form: PodForm::ClusterMade,
            bound_seconds: (1..=100).map(|at| seconds * f64::from(at) / 100.0).collect(),
            event_seconds: seconds,
            usage: Usage { cpu_seconds, rss_peak_bytes: 1 << 20, ..Usage::default() },
            apiserver: Usage::default(),
            faults: Vec::new(),
        }
    }

    #[test]
    fn throughput_and_cpu_must_both_reach_their_target() {
        let check = |seconds, cpu_seconds, within_limits| {
            let runs = [run(KUBE_SCHEDULER, 10.0, 10.0), run(LOADMASTER, seconds, cpu_seconds)];
            assert_eq!(
                compare_schedulers(&runs, 2.0),
                within_limits,
                "{seconds} s, {cpu_seconds} CPU s"
            );
        };
        check(5.0, 2.0, true);
        check(5.1, 2.0, false);
        check(5.0, 2.1, false);
        let alone = [run(KUBE_SCHEDULER, 10.0, 10.0)];
        assert!(compare_schedulers(&alone, 2.0), "nothing to compare with");
    }

    #[test]
    fn events_and_cpu_are_compared_with_the_null_scheduler() {
        let check = |event_seconds, cpu_seconds, has_claims, within_limits| {
            let loadmaster = Run { event_seconds, ..run(LOADMASTER, 5.0, cpu_seconds) };
            let runs = [run(Contender::Null, 9.0, 1.0), loadmaster];
            assert_eq!(
                compare_with_null_scheduler(&runs, has_claims),
                within_limits,
                "{event_seconds} s, {cpu_seconds} CPU s, {has_claims}"
            );
        };
        check(9.0, 1.0, false, true);
        check(9.9, 1.5, false, true);
        check(10.1, 1.0, false, false);
        check(9.0, 1.6, false, false);
        check(9.0, 1.6, true, true);
        check(10.1, 1.0, true, false);
        let alone = [run(LOADMASTER, 1.0, 1.0)];
        assert!(compare_with_null_scheduler(&alone, false), "nothing to compare with");
    }

    #[test]
    fn the_median_ratio_of_pairs_of_forms_is_limited() {
        let check = |kind, cpu_seconds: &[(f64, f64)], within_limit| {
            let run = |form, cpu_seconds| Run {
                form,
                ..run(Contender::Scheduler(kind), 10.0, cpu_seconds)
            };
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
        let only_one_form = [run(LOADMASTER, 10.0, 10.0)];
        assert!(compare_forms(&only_one_form, loadmaster), "nothing to compare with");
    }
}
