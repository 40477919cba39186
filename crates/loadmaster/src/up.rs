//! `loadmaster up`: a cluster in one process, with a live dashboard and an API server for kubectl.

mod api_client;
mod cluster;
mod cluster_driver;
mod cluster_view;
mod dashboard;
mod gangs_sample;
mod manifests;
mod pending_table;
mod pod_counts;
mod priority_classes;
mod progress_lines;
mod quotas_sample;
mod recent_decisions;
mod sample_workload;
mod samples;
mod storage;
mod summary;

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use jiff::SignedDuration;
use loadmaster_apiserver::store::StoreLimits;
use loadmaster_controllers::csi::CsiDriver;
use loadmaster_daemon::run::service::Service;
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::Value;

use crate::crds;
use crate::embedded::{HistoryLimits, ServerArgs};
use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::ConfigArgs;
use crate::kubelets::SimulatedNodeArgs;
use crate::manifest::Manifest;
use crate::terminal;
use crate::text::counted;
use api_client::InProcessApiClient;
use cluster::{LocalCluster, Simulation, prepare_scheduler};
use cluster_driver::ClusterDriver;
use manifests::Notes;
use sample_workload::{Action, Churn, Millis};
use samples::Sample;

/// Run a cluster in one process and show how its pods are scheduled.
///
/// The cluster has an API server for kubectl and client libraries, the scheduler as in `loadmaster run`, controllers for Deployments, Jobs
/// and so on, and simulated kubelets (kwok-style): pods start shortly after they were bound, and pods of Jobs succeed after a while.
/// PersistentVolumeClaims get volumes of a simulated CSI driver.
///
/// On a terminal the cluster runs until q or Ctrl-C is pressed. Without a terminal, and with --exit-when-settled, it stops when it has
/// settled, unless --stay is given. The exit code is 0 if all pods are assigned, 1 if pods stay pending (also if their scheduler does not
/// run in this cluster), 2 if the input is invalid.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster up
  loadmaster up --nodes 5000 --exit-when-settled
  loadmaster up -f manifests/ --nodes 50
  loadmaster up --sample gangs
  loadmaster up --stay --port 6443 --kubeconfig test.kubeconfig &
  kubectl get nodes,deployments -A -o yaml | loadmaster up -f -")]
pub(crate) struct Args {
    /// Manifests to create: a file, a directory, or `-` for standard input. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: Vec<String>,
    /// What the cluster runs without -f: nodes, a workload, and the scheduler's configuration for it, which --config replaces
    /// [default: default].
    #[arg(long, value_name = "SAMPLE", conflicts_with = "file")]
    sample: Option<Sample>,
    /// The number of sample nodes [default: that of the sample; with -f: 0 if the files contain nodes, else 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    nodes: Option<u32>,
    #[command(flatten)]
    machines: SimulatedNodeArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Seed of the random number generator, for the sample workload and for the controllers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Verify one in N decisions against per-node evaluation of all plugins; 0 disables it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    check: u64,
    /// Exit when the cluster has settled.
    #[arg(long)]
    exit_when_settled: bool,
    /// Run until Ctrl-C or SIGTERM, also without a terminal (for scripts).
    #[arg(long, conflicts_with = "exit_when_settled")]
    stay: bool,
}

const N_NODES_FOR_FILES: u32 = 10;

/// The initial content of the cluster, and its workload.
struct Content {
    nodes: Vec<Value>,
    manifests: Vec<Manifest>,
    arrivals: Vec<(Millis, Action)>,
    churn: Option<Churn>,
}

pub(crate) fn run(
    args: &Args,
    registry: &Registry,
    services: &[Service],
    out: &mut dyn Write,
) -> CommandResult<Exit> {
    let interactive = terminal::is_interactive();
    let run_until_stopped = args.stay || interactive && !args.exit_when_settled;
    // All input is validated before anything is started.
    let default_config = sample(args).and_then(Sample::scheduler_configuration);
    let scheduler = prepare_scheduler(&args.config, default_config.as_ref(), args.check, registry)?;
    let stages = args.machines.stages()?;
    let content = content(args, run_until_stopped)?;
    let embedded = args.server.start_api_server(history(args, content.nodes.len()))?;
    let mut api =
        InProcessApiClient::new(embedded.server().clone(), embedded.runtime().handle().clone());
    create_nodes(&mut api, &content)?;
    let csi_driver = CsiDriver::default();
    let mut objects = crds::definitions().map_err(Failure::invalid_input)?;
    objects.extend(storage::objects(&csi_driver, &content.manifests));
    manifests::create_unless_given(&mut api, objects, &content.manifests)
        .map_err(|error| Failure::invalid_input(error.message))?;
    print_notes(&manifests::create(&mut api, content.manifests, embedded.has_data())?);
    let simulation = Simulation { stages, csi_driver, seed: args.seed };
    let cluster = LocalCluster::start(embedded, api, scheduler, services, simulation)?;
    let head = head(&cluster, content.nodes.len(), out)?;
    let mut driver = ClusterDriver::new(cluster, content.arrivals, content.churn);
    let last = if interactive {
        dashboard::run(&mut driver, &head, run_until_stopped)?
    } else {
        progress_lines::run(&mut driver, run_until_stopped, out)?
    };
    if let Some(last) = &last {
        summary::print(last, &driver, args.check, out)?;
    }
    driver.cluster.stop()?;
    Ok(match last {
        Some(last) if !last.view.disagreements.is_empty() => Exit::Bug,
        Some(last) if last.is_settled && last.n_pending() > 0 => Exit::Finding,
        _ => Exit::Done,
    })
}

/// A tip after a usage error, for a manifest that is named without `-f`.
pub(crate) fn tip_for_error(args: &[OsString], error: &clap::Error) -> Option<String> {
    let is_up = args.first().is_some_and(|command| command == "up");
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(file))
            if is_up && error.kind() == ErrorKind::UnknownArgument && !file.starts_with('-') =>
        {
            Some(format!("\n  tip: manifests are given with '-f {file}'"))
        }
        _ => None,
    }
}

/// The sample that the cluster runs; none with manifests.
fn sample(args: &Args) -> Option<Sample> {
    args.file.is_empty().then(|| args.sample.unwrap_or_default())
}

/// Reads the manifests, or builds the sample workload.
fn content(args: &Args, run_until_stopped: bool) -> CommandResult<Content> {
    if let Some(sample) = sample(args) {
        let n_nodes = args.nodes.unwrap_or_else(|| sample.n_nodes());
        let workload = sample.workload(n_nodes).map_err(Failure::invalid_input)?;
        let rng = Rng::new(args.seed).split("churn");
        let churn = run_until_stopped.then(|| sample.churn(rng, n_nodes, &workload)).flatten();
        let objects = workload.objects.into_iter();
        let at_once = objects.map(|object| (0, Action::Create(Box::new(object))));
        let arrivals = at_once.chain(workload.arrivals).collect();
        let nodes = nodes(args, sample, n_nodes)?;
        return Ok(Content { nodes, manifests: Vec::new(), arrivals, churn });
    }
    let manifests = manifests::read(&args.file)?;
    let has_nodes = manifests.iter().any(|it| it.object["kind"] == "Node");
    let n_nodes = args.nodes.unwrap_or(if has_nodes { 0 } else { N_NODES_FOR_FILES });
    let nodes = nodes(args, Sample::Default, n_nodes)?;
    Ok(Content { nodes, manifests, arrivals: Vec::new(), churn: None })
}

/// Limits for the watch history and Events. The sample workload never ends, so the limits are lower, to bound memory. They grow with the
/// cluster, because larger clusters have more changes at a time, which watches must not miss.
fn history(args: &Args, n_nodes: usize) -> HistoryLimits {
    let usual = HistoryLimits::default();
    if !args.file.is_empty() {
        return usual;
    }
    let scale = (n_nodes / sample_workload::N_NODES as usize).max(1);
    let limits = StoreLimits {
        n_changes_max: scale.saturating_mul(20_000).min(usual.limits.n_changes_max),
        superseded_bytes_max: scale.saturating_mul(4 << 20).min(usual.limits.superseded_bytes_max),
    };
    HistoryLimits { limits, event_ttl: SignedDuration::from_mins(5) }
}

/// Sample nodes, or nodes from the template.
fn nodes(args: &Args, sample: Sample, n: u32) -> CommandResult<Vec<Value>> {
    if args.machines.node_template.is_none() {
        return Ok(sample.nodes(n));
    }
    let nodes = args.machines.nodes(n)?.into_iter().map(serde_json::to_value);
    nodes.collect::<Result<_, _>>().map_err(Failure::invalid_input)
}

/// Creates the nodes.
fn create_nodes(api: &mut InProcessApiClient, content: &Content) -> CommandResult<()> {
    for node in &content.nodes {
        match api.create(node) {
            Err(error) if !error.already_exists() => {
                return Err(Failure::invalid_input(error.message));
            }
            _ => {}
        }
    }
    Ok(())
}

fn print_notes(notes: &Notes) {
    if !notes.created_by_controllers.is_empty() {
        let kinds: Vec<String> =
            notes.created_by_controllers.iter().map(|(kind, n)| counted(*n, kind)).collect();
        print_to_stderr(&format!(
            "note: not created, because their controllers create them: {}",
            kinds.join(", ")
        ));
    }
    for (what, names) in
        [("namespaces", &notes.namespaces), ("PriorityClasses", &notes.priority_classes)]
    {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            print_to_stderr(&format!("note: created missing {what}: {}", names.join(", ")));
        }
    }
}

/// Prints the addresses of the cluster's components; returns the header of the dashboard, which hides them.
fn head(
    cluster: &LocalCluster,
    n_nodes: usize,
    out: &mut dyn Write,
) -> CommandResult<dashboard::Head> {
    let shown = cluster.embedded.kubeconfig().display();
    writeln!(out, "API server on {}", cluster.embedded.url())?;
    writeln!(out, "scheduler:   {}", cluster.scheduler_url())?;
    writeln!(out, "kubeconfig:  {shown}")?;
    writeln!(out, "log:         {}", cluster.log_path().display())?;
    let command = format!("kubectl --kubeconfig {shown} get pods -A -o wide");
    writeln!(out, "try:         {command}")?;
    out.flush()?;
    Ok(dashboard::Head {
        title: format!("{} · scheduler {}", counted(n_nodes, "node"), cluster.scheduler_url()),
        command,
    })
}
