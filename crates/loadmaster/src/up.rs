//! `loadmaster up`: a whole cluster in one process, before your eyes and for kubectl.

mod api;
mod cluster;
mod drive;
mod live;
mod manifests;
mod picture;
mod plain;
mod recent;
mod sample;
mod summary;
mod tally;

use std::io::Write;

use jiff::SignedDuration;
use loadmaster_apiserver::store::Limits;
use loadmaster_daemon::run::service::Service;
use loadmaster_framework::Registry;
use loadmaster_stdx::Rng;
use serde_json::Value;

use crate::embedded::{History, ServerArgs};
use crate::exit::{Answer, Exit, Failure, complain};
use crate::input::ConfigArgs;
use crate::kubelets::MachineArgs;
use crate::terminal;
use crate::text::counted;
use api::Api;
use cluster::{Cluster, prepare_scheduler};
use drive::Drive;
use manifests::{Manifest, Notes};
use sample::{Churn, Deed, Millis};

/// Run a cluster in this process and watch its pods being placed.
///
/// There is an API server for kubectl and client libraries, the scheduler as `loadmaster run` runs it, the controllers of Deployments, Jobs and
/// so on, and kubelets that only pretend: a pod runs a moment after it was placed, a Job's pod succeeds after a while.
///
/// On a terminal it lives on until q or Ctrl-C. Elsewhere, and with --exit-when-settled, it ends when nothing more will happen, unless
/// --stay keeps it. It ends with 0 when all pods have a node, with 1 when pods stay pending, also because their scheduler does not run
/// here, with 2 when the input is bad.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster up
  loadmaster up --nodes 5000 --exit-when-settled
  loadmaster up -f manifests/ --nodes 50
  loadmaster up --stay --port 6443 --kubeconfig test.kubeconfig &
  kubectl get nodes,deployments -A -o yaml | loadmaster up -f -")]
pub(crate) struct Args {
    /// Manifests: a file, a folder, or `-` for standard input. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: Vec<String>,
    /// How many sample nodes there are [default: 100; with -f: none if the files have nodes, else 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    nodes: Option<u32>,
    #[command(flatten)]
    machines: MachineArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Where chance begins: what comes and goes in the sample workload, and ties between controllers.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Hold one decision in N against asking every plugin about every node.
    #[arg(long, value_name = "N", default_value_t = 0)]
    check: u64,
    /// End when nothing more will happen.
    #[arg(long)]
    exit_when_settled: bool,
    /// Live on until Ctrl-C or SIGTERM, even if nobody looks on: for scripts.
    #[arg(long, conflicts_with = "exit_when_settled")]
    stay: bool,
}

const N_SAMPLE_NODES: u32 = 100;
const N_NODES_FOR_FILES: u32 = 10;

/// What is put into the cluster.
struct Content {
    nodes: Vec<Value>,
    manifests: Vec<Manifest>,
    arrivals: Vec<(Millis, Deed)>,
    churn: Option<Churn>,
}

pub(crate) fn run(
    args: &Args,
    registry: &Registry,
    services: &[Service],
    out: &mut dyn Write,
) -> Answer<Exit> {
    let interactive = terminal::is_interactive();
    let lives_on = args.stay || interactive && !args.exit_when_settled;
    // What can be wrong is read before anything begins.
    let scheduler = prepare_scheduler(&args.config, args.check, registry)?;
    let stages = args.machines.stages()?;
    let content = content(args, lives_on)?;
    let embedded = args.server.start(history(args, content.nodes.len()))?;
    let mut api = Api::new(embedded.server().clone(), embedded.runtime().handle().clone());
    fill(&mut api, &content)?;
    tell(&manifests::create(&mut api, content.manifests, embedded.has_data())?);
    let cluster = Cluster::start(embedded, api, scheduler, registry, services, stages, args.seed)?;
    let head = head(&cluster, content.nodes.len(), out)?;
    let mut drive = Drive::new(cluster, content.arrivals, content.churn);
    let last = if interactive {
        live::run(&mut drive, &head, lives_on)?
    } else {
        plain::run(&mut drive, lives_on, out)?
    };
    if let Some(last) = &last {
        summary::print(last, &drive, args.check, out)?;
    }
    drive.cluster.stop()?;
    Ok(match last {
        Some(last) if !last.picture.disagreements.is_empty() => Exit::Bug,
        Some(last) if last.is_settled && last.n_pending() > 0 => Exit::Finding,
        _ => Exit::Done,
    })
}

/// Reads what goes into the cluster.
fn content(args: &Args, lives_on: bool) -> Answer<Content> {
    if args.file.is_empty() {
        let n_nodes = args.nodes.unwrap_or(N_SAMPLE_NODES);
        let sample = sample::workload(n_nodes).map_err(Failure::input)?;
        let chance = Rng::new(args.seed).split("churn");
        let churn = lives_on.then(|| Churn::new(chance, n_nodes, &sample));
        let objects = sample.objects.into_iter();
        let at_once = objects.map(|object| (0, Deed::Create(Box::new(object))));
        let arrivals = at_once.chain(sample.arrivals).collect();
        let nodes = nodes(args, n_nodes)?;
        return Ok(Content { nodes, manifests: Vec::new(), arrivals, churn });
    }
    let manifests = manifests::read(&args.file)?;
    let has_nodes = manifests.iter().any(|it| it.object["kind"] == "Node");
    let n_nodes = args.nodes.unwrap_or(if has_nodes { 0 } else { N_NODES_FOR_FILES });
    let nodes = nodes(args, n_nodes)?;
    Ok(Content { nodes, manifests, arrivals: Vec::new(), churn: None })
}

/// The sample workload goes on and on: of what it did, less is kept, so that memory stays flat. The larger the cluster, the more changes come
/// at a time, and watches must not miss them.
fn history(args: &Args, n_nodes: usize) -> History {
    let usual = History::default();
    if !args.file.is_empty() {
        return usual;
    }
    let scale = (n_nodes / N_SAMPLE_NODES as usize).max(1);
    let limits = Limits {
        n_changes_max: scale.saturating_mul(20_000).min(usual.limits.n_changes_max),
        superseded_bytes_max: scale.saturating_mul(4 << 20).min(usual.limits.superseded_bytes_max),
    };
    History { limits, event_ttl: SignedDuration::from_mins(5) }
}

/// Sample nodes, or what the template says.
fn nodes(args: &Args, n: u32) -> Answer<Vec<Value>> {
    if args.machines.node_template.is_none() {
        return Ok(sample::nodes(n).collect());
    }
    let nodes = args.machines.nodes(n)?.into_iter().map(serde_json::to_value);
    nodes.collect::<Result<_, _>>().map_err(Failure::input)
}

/// Creates the nodes.
fn fill(api: &mut Api, content: &Content) -> Answer<()> {
    for node in &content.nodes {
        match api.create(node) {
            Err(refusal) if !refusal.is_there_already() => {
                return Err(Failure::input(refusal.message));
            }
            _ => {}
        }
    }
    Ok(())
}

fn tell(notes: &Notes) {
    if !notes.remade.is_empty() {
        let kinds: Vec<String> = notes.remade.iter().map(|(kind, n)| counted(*n, kind)).collect();
        complain(&format!("note: left to the controllers that make them: {}", kinds.join(", ")));
    }
    if !notes.namespaces.is_empty() {
        let names: Vec<&str> = notes.namespaces.iter().map(String::as_str).collect();
        complain(&format!("note: namespaces made for what is in them: {}", names.join(", ")));
    }
}

/// Says where the cluster is; what stands over everything that is shown.
fn head(cluster: &Cluster, n_nodes: usize, out: &mut dyn Write) -> Answer<String> {
    let shown = cluster.embedded.kubeconfig().display();
    writeln!(out, "API server on {}", cluster.embedded.url())?;
    writeln!(out, "kubeconfig:  {shown}")?;
    writeln!(out, "log:         {}", cluster.log().display())?;
    writeln!(out, "try:         kubectl --kubeconfig {shown} get pods -A -o wide")?;
    out.flush()?;
    Ok(format!("{} · KUBECONFIG={shown}", counted(n_nodes, "node")))
}
