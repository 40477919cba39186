//! `cargo xtask e2e gangs`: the scheduler of scheduler-plugins and Loadmaster in turn on one real control plane.
//!
//! Each binds more gangs than fit at once, while those that have been bound are deleted; then two gangs that fit alone and not together;
//! then the pods of three quotas, of which one has borrowed what the others have guaranteed. The audit log shows whether a gang was bound in
//! parts. Before that, the definitions of PodGroups and ElasticQuotas are installed while Loadmaster is running already, its controllers are
//! killed, and PodGroups are deleted while their pods are scheduled. What the other scheduler does wrong is only printed.

mod history;
pub mod objects;
mod quotas;
mod restarts;
mod waves;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::{Map, Value, json};

use super::api_client::ApiClient;
use super::audit;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::median::ratio_of_medians;
use super::programs::{self, Program};
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use quotas::QuotasResult;
use waves::{Waves, WavesResult};

/// The user of both schedulers.
const USER: &str = "system:kube-scheduler";
/// After this time without a binding, or without the right state, the test ends. A group waits for at most 10 s.
const PATIENCE: Duration = Duration::from_secs(45);
/// What `--check` requires in comparison with scheduler-plugins: pods per second, and CPU.
const THROUGHPUT_RATIO_MIN: f64 = 4.0;
const CPU_RATIO_MAX: f64 = 0.2;

/// Compare gangs and quotas of scheduler-plugins and Loadmaster.
#[derive(Parser)]
pub struct Args {
    /// The schedulers to run.
    #[arg(long, default_value = "both")]
    scheduler: SchedulerChoice,
    /// Number of gangs; three fifths of them fit at the same time.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(5..))]
    gangs: u32,
    /// Number of pods of a gang.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
    size: u32,
    /// How often the schedulers run in turn; medians are compared.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
    /// Fail unless Loadmaster binds four times as many pods per second with a fifth of the CPU.
    #[arg(long)]
    check: bool,
}

/// The schedulers of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum SchedulerChoice {
    SchedulerPlugins,
    Loadmaster,
    Both,
}

impl SchedulerChoice {
    fn kinds(self) -> &'static [SchedulerKind] {
        match self {
            SchedulerChoice::SchedulerPlugins => &[SchedulerKind::SchedulerPlugins],
            SchedulerChoice::Loadmaster => &[SchedulerKind::Loadmaster],
            SchedulerChoice::Both => &[SchedulerKind::SchedulerPlugins, SchedulerKind::Loadmaster],
        }
    }
}

/// The results of one scheduler.
struct RunResult {
    kind: SchedulerKind,
    waves: WavesResult,
    pair: WavesResult,
    quotas: QuotasResult,
    faults: Vec<String>,
}

/// A control plane and the programs.
struct Bench {
    plane: ControlPlane,
    api: ApiClient,
    chosen: SchedulerArgs,
}

impl Bench {
    async fn start(args: &Args) -> Result<Bench> {
        let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
        if args.scheduler.kinds().contains(&SchedulerKind::SchedulerPlugins) {
            programs::build(&[Program::SchedulerPlugins])?;
        }
        let audit_policy = Some(audit::policy_for_writes_of_pods());
        let options = ControlPlaneOptions { audit_policy, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(&options).await?;
        let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
        objects::allow_schedulers_to_read(&api).await?;
        Ok(Bench { plane, api, chosen: SchedulerArgs::only(loadmaster) })
    }

    /// Starts a scheduler with this profile, and waits until it is ready.
    async fn scheduler(
        &self,
        kind: SchedulerKind,
        name: &str,
        profile: Value,
    ) -> Result<Scheduler> {
        let kubeconfig = self.plane.kubeconfig(&UserIdentity::new(USER, &[]));
        let name = format!("{}-{name}", kind.name());
        let setup = SchedulerSetup {
            extra_config: Map::from_iter([("profiles".to_owned(), json!([profile]))]),
            ..SchedulerSetup::new(&name, self.plane.folder(), &kubeconfig)
        };
        let mut scheduler = self.chosen.start(kind, &setup)?;
        scheduler.wait_until_ready().await?;
        Ok(scheduler)
    }
}

/// As in the manifests of scheduler-plugins.
fn gangs_profile() -> Value {
    let enabled = json!([{"name": "Coscheduling"}]);
    json!({
        "schedulerName": "default-scheduler",
        "plugins": {
            "multiPoint": {"enabled": enabled},
            "queueSort": {"enabled": enabled, "disabled": [{"name": "*"}]}},
        "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
    })
}

/// As in the manifests of scheduler-plugins.
fn quotas_profile() -> Value {
    let enabled = json!([{"name": "CapacityScheduling"}]);
    json!({
        "schedulerName": "default-scheduler",
        "plugins": {
            "multiPoint": {"enabled": enabled},
            "postFilter": {"enabled": enabled, "disabled": [{"name": "*"}]}},
    })
}

/// Returns whether Loadmaster has done everything right and, with `--check`, was within the limits.
pub async fn run(args: &Args) -> Result<bool> {
    let bench = Bench::start(args).await?;
    let loadmaster = bench.chosen.binary(SchedulerKind::Loadmaster)?;
    if args.scheduler.kinds().contains(&SchedulerKind::Loadmaster) {
        let kind = SchedulerKind::Loadmaster;
        let mut scheduler = bench.scheduler(kind, "restarts", gangs_profile()).await?;
        let cluster = restarts::Cluster {
            api: &bench.api,
            plane: &bench.plane,
            loadmaster: &loadmaster,
            scheduler: &mut scheduler,
        };
        restarts::run(cluster).await.context("definitions, restarts and deletions")?;
        println!("definitions installed late, a killed controller, deleted PodGroups: as expected");
    } else {
        objects::install_definitions(&bench.api, &loadmaster).await?;
    }
    let mut results = Vec::new();
    for round in 1..=args.rounds {
        for &kind in args.scheduler.kinds() {
            let result = run_one(args, &bench, kind, round).await;
            results.push(result.with_context(|| format!("{}, round {round}", kind.name()))?);
        }
    }
    print_results(args, &results);
    let ours = results.iter().filter(|result| result.kind == SchedulerKind::Loadmaster);
    let is_right = ours.clone().all(|result| result.faults.is_empty());
    let is_within_limits = compare(&results);
    if is_right {
        bench.plane.finish();
    }
    Ok(is_right && (is_within_limits || !args.check))
}

async fn run_one(args: &Args, bench: &Bench, kind: SchedulerKind, round: u32) -> Result<RunResult> {
    let Bench { plane, api, .. } = bench;
    let Args { gangs: n_gangs, size, .. } = *args;
    let prefix = format!("{}-{round}", kind.name());
    let namespace = |name: &str| format!("{prefix}-{name}");
    let many =
        Waves { namespace: namespace("many"), n_gangs, size, n_room: n_gangs * 3 / 5 * size };
    let two = Waves { namespace: namespace("two"), n_gangs: 2, size, n_room: size + size / 2 };
    let mut scheduler = bench.scheduler(kind, &format!("gangs-{round}"), gangs_profile()).await?;
    let waves = many.run(api, &mut scheduler.process, PATIENCE).await.context("many gangs")?;
    let pair = two.run(api, &mut scheduler.process, PATIENCE).await.context("two gangs")?;
    drop(scheduler);
    let mut scheduler = bench.scheduler(kind, &format!("quotas-{round}"), quotas_profile()).await?;
    let quotas = quotas::run(api, &prefix, PATIENCE).await.context("quotas")?;
    scheduler.process.check_running()?;
    drop(scheduler);

    let entries = audit::read(plane.audit_log())?;
    let n_requests = audit::bindings(&entries).filter(|it| it.namespace == many.namespace).count();
    ensure!(n_requests >= waves.bound_seconds.len(), "the audit log has {n_requests} bindings");
    let mut faults = Vec::new();
    for (test, result) in [(&many, &waves), (&two, &pair)] {
        if result.n_bound_gangs < test.n_gangs {
            faults.push(format!(
                "{} of {} gangs were bound; then nothing happened for {} s",
                result.n_bound_gangs,
                test.n_gangs,
                PATIENCE.as_secs()
            ));
        }
        faults.extend(history::gang_faults(&entries, &test.namespace, test.limits()));
    }
    faults.extend(quotas.faults.iter().cloned());
    let [_, entitled @ ..] = quotas::namespaces(&prefix);
    for namespace in &entitled {
        let n = history::n_deleted_by(&entries, namespace, USER);
        if n > 0 {
            faults.push(format!("{n} pods of {namespace} were preempted within their quota"));
        }
    }
    Ok(RunResult { kind, waves, pair, quotas, faults })
}

fn print_results(args: &Args, results: &[RunResult]) {
    println!("{} gangs of {} pods, room for {}", args.gangs, args.size, args.gangs * 3 / 5);
    println!(
        "| scheduler | gangs | s to last gang | pods/s | CPU s | two gangs s | quotas s | faults |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for RunResult { kind, waves, pair, quotas, faults } in results {
        println!(
            "| {} | {} | {:.1} | {:.0} | {:.2} | {:.1} | {:.1} | {} |",
            kind.name(),
            waves.n_bound_gangs,
            waves.seconds(),
            waves.pods_per_second(),
            waves.cpu_seconds,
            pair.seconds(),
            quotas.seconds,
            faults.len(),
        );
    }
    for result in results {
        result.faults.iter().for_each(|fault| println!("{}: {fault}", result.kind.name()));
    }
}

/// Prints how the two compare; whether Loadmaster is within the limits.
fn compare(results: &[RunResult]) -> bool {
    let ratio = |figure: fn(&WavesResult) -> f64| {
        let of = |kind: SchedulerKind| {
            let of_kind = results.iter().filter(|result| result.kind == kind);
            of_kind.map(|result| figure(&result.waves)).collect()
        };
        ratio_of_medians(of(SchedulerKind::Loadmaster), of(SchedulerKind::SchedulerPlugins))
    };
    let (Some(faster), Some(cpu)) =
        (ratio(WavesResult::pods_per_second), ratio(|waves| waves.cpu_seconds))
    else {
        return true;
    };
    println!("loadmaster / scheduler-plugins, medians:");
    println!("  pods/s  {faster:.2} (required: at least {THROUGHPUT_RATIO_MIN})");
    println!("  CPU     {cpu:.3} (required: at most {CPU_RATIO_MAX})");
    faster >= THROUGHPUT_RATIO_MIN && cpu <= CPU_RATIO_MAX
}
