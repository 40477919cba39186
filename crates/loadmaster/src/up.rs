//! `loadmaster up`: a cluster in memory whose pods are placed before your eyes.

mod drive;
mod live;
mod plain;
mod summary;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use loadmaster_api::Needs;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_framework::Registry;
use loadmaster_sim::cluster::{Cluster, Options, sample};
use loadmaster_stdx::{Chain, Rng};

use crate::exit::{Answer, Exit, Failure, complain};
use crate::input::{self, ConfigArgs, Setup};
use crate::terminal;
use crate::text::counted;
use drive::{Drive, Stopwatch};

/// Run a cluster in memory and watch its pods being placed.
///
/// Nodes and pods come from manifests; Deployments, ReplicaSets, StatefulSets and Jobs make their pods as their controllers would.
/// Kubelets only pretend: a pod runs a second after it was placed, a Job's pod succeeds after a while (label
/// loadmaster.io/run-seconds on the Job). Without -f there is a sample workload worth looking at.
///
/// On a terminal it lives on until q or Ctrl-C; elsewhere, and with --exit-when-settled, time jumps ahead and it ends when nothing
/// more will happen. It ends with 0 when all pods run that can, with 1 when pods stay pending, with 2 when the input is bad.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster up
  loadmaster up --nodes 5000 --exit-when-settled
  loadmaster up -f manifests/ --nodes 50
  kubectl get nodes,deployments -A -o yaml | loadmaster up -f -")]
pub(crate) struct Args {
    /// Manifests: a file, a folder, or `-` for standard input. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: Vec<String>,
    /// How many sample nodes there are [default: 100; with -f: none if the files have nodes, else 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    nodes: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Where chance begins: equal seeds give equal runs.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Hold one decision in N against asking every plugin about every node.
    #[arg(long, value_name = "N", default_value_t = 0)]
    check: u64,
    /// End when nothing more will happen.
    #[arg(long)]
    exit_when_settled: bool,
}

const N_SAMPLE_NODES: u32 = 100;
const N_NODES_FOR_FILES: u32 = 10;

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Exit> {
    let setup = args.config.setup(registry)?;
    note_what_is_missing(&setup);
    let interactive = terminal::is_interactive();
    let lives_on = interactive && !args.exit_when_settled;
    let options = options(args, &setup);
    let profiles = setup.profiles.into_iter().map(Arc::new).collect();
    let cluster = Cluster::new(profiles, setup.gates, options);
    let mut drive = if args.file.is_empty() {
        sample_drive(args, cluster, lives_on)?
    } else {
        manifest_drive(args, cluster)?
    };
    let head = format!(
        "{}, {}, seed {}",
        counted(drive.cluster.world().nodes().len(), "node"),
        counted(drive.cluster.zones().iter().filter(|zone| !zone.name.is_empty()).count(), "zone"),
        args.seed
    );
    let stopped = if interactive {
        live::run(&mut drive, &head, lives_on)?
    } else {
        plain::run(&mut drive, &head, out)?
    };
    summary::print(&drive, stopped, args.check, out)?;
    let n_wrong = drive.cluster.disagreements().count();
    Ok(match drive.cluster.tally().pending() {
        _ if n_wrong > 0 => Exit::Bug,
        0 => Exit::Done,
        _ if stopped => Exit::Done,
        _ => Exit::Finding,
    })
}

fn options(args: &Args, setup: &Setup) -> Options {
    let config = &setup.checked.config;
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
    Options {
        seed: args.seed,
        check_every: args.check,
        backoff_ms: (ms(config.pod_initial_backoff_seconds), ms(config.pod_max_backoff_seconds)),
        ticks: Stopwatch::ticks,
    }
}

/// Extension points that only a scheduler with an API server runs must not be taken for working.
fn note_what_is_missing(setup: &Setup) {
    // Every default profile has these, so that a note on them would always be there; the cluster itself binds.
    let is_usual = |name: &&str| ["DefaultPreemption", "DefaultBinder"].contains(name);
    for extender in &setup.checked.config.extenders {
        complain(&format!(
            "note: extenders are not asked in this cluster: {}",
            extender.url_prefix
        ));
    }
    for profile in &setup.profiles {
        for watch in &profile.watches {
            let kind = &watch.kind;
            complain(&format!(
                "note: objects of {kind} are not read in this cluster: plugins see none"
            ));
        }
        if profile.needs != Needs::default() {
            complain("note: this cluster keeps no annotations and no whole objects for plugins");
        }
        let receivers = profile.plugins.iter().filter(|plugin| plugin.receiver.is_some());
        for plugin in receivers {
            let name = plugin.name;
            complain(&format!(
                "note: services do not run in this cluster: plugin {name} hears nothing from its own"
            ));
        }
        let post_filter = profile.post_filter.iter().map(|it| it.name);
        let binders = profile.bind.iter().map(|it| it.name);
        let points = [
            ("PostFilter", post_filter.filter(|name| !is_usual(name)).collect::<Vec<_>>()),
            ("Reserve", profile.reserve.iter().map(|it| it.name).collect()),
            ("Permit", profile.permit.iter().map(|it| it.name).collect()),
            ("PreBind", profile.pre_bind.iter().map(|it| it.name).collect()),
            ("Bind", binders.filter(|name| !is_usual(name)).collect()),
            ("PostBind", profile.post_bind.iter().map(|it| it.name).collect()),
        ];
        for (point, names) in points.into_iter().filter(|(_, names)| !names.is_empty()) {
            complain(&format!("note: {point} is not run in this cluster: {}", names.join(", ")));
        }
    }
}

fn sample_drive(args: &Args, mut cluster: Cluster, lives_on: bool) -> Answer<Drive> {
    let n_nodes = args.nodes.unwrap_or(N_SAMPLE_NODES);
    let mut sample = sample::workload(n_nodes).map_err(|error| Failure::input(Chain(&error)))?;
    sample::nodes(n_nodes).for_each(|node| cluster.set_node(node));
    cluster.load(std::mem::take(&mut sample.objects)).map_err(Failure::input)?;
    let chance = Rng::new(args.seed).split("churn");
    let churn = lives_on.then(|| sample::Churn::new(chance, n_nodes, &sample));
    for (at_ms, change) in sample.arrivals {
        cluster.at(at_ms, change);
    }
    Ok(Drive::new(cluster, churn))
}

fn manifest_drive(args: &Args, mut cluster: Cluster) -> Answer<Drive> {
    let documents = input::documents(&args.file)?;
    let snapshot = Snapshot::read(&documents).map_err(|error| Failure::input(Chain(&error)))?;
    note_skipped(&snapshot.skipped);
    let n_nodes =
        args.nodes.unwrap_or(if snapshot.nodes.is_empty() { N_NODES_FOR_FILES } else { 0 });
    sample::nodes(n_nodes).for_each(|node| cluster.set_node(node));
    cluster.load(snapshot).map_err(Failure::input)?;
    Ok(Drive::new(cluster, None))
}

fn note_skipped(skipped: &BTreeMap<String, usize>) {
    if !skipped.is_empty() {
        let kinds: Vec<String> = skipped.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        complain(&format!("note: kinds that are not run in this cluster: {}", kinds.join(", ")));
    }
}
