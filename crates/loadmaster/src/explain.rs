//! `loadmaster explain`: where a pod could go, and why not elsewhere.

#![expect(clippy::disallowed_types, reason = "--timings measures")]

mod beyond;
mod remote;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_client as client;
use loadmaster_engine::Profile;
use loadmaster_engine::explain::explain;
use loadmaster_extender::Verb;
use loadmaster_framework::{PodInfo, Registry};
use loadmaster_sim::load;
use loadmaster_stdx::Chain;
use serde::Serialize;

use crate::exit::{Answer, Exit, Failure, complain};
use crate::input::{self, ConfigArgs, Setup};
use crate::terminal;
use crate::text::{self, Line, duration};
use beyond::Beyond;
use remote::ServerArgs;

/// Say where a pod could go now, node by node: verdict, plugin, reason, scores.
///
/// From saved objects (--from), as kubectl prints them, or from a live cluster, with only a kubeconfig: no scheduler is asked, so any
/// cluster can be explained. A pod that already runs is explained as if it came now. With --server a running Loadmaster answers from
/// what it knows; with --last, why its last attempt failed.
///
/// Ends with 0 when the pod fits somewhere, with 1 when it fits nowhere, with 2 when the input is bad. With --last: 0 when there is a
/// failed attempt to tell of, 1 when there is none, 2 when the pod is not known.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster explain shop/web-7d9c5
  kubectl get nodes,pods,namespaces,services,replicasets,statefulsets -A -o json > cluster.json
  loadmaster explain web-7d9c5 -n shop --from cluster.json
  loadmaster explain shop/web-7d9c5 --from cluster.json --config scheduler.yaml -o json
  loadmaster explain shop/web-7d9c5 --server https://scheduler:10259 --token-file token --last")]
pub(crate) struct Args {
    /// The pod.
    #[arg(value_name = "[NAMESPACE/]POD")]
    pod: String,
    /// The pod's namespace [default: that of the kubeconfig's context, else "default"].
    #[arg(short, long)]
    namespace: Option<String>,
    /// Saved objects: a file, a folder, or `-` for standard input. May be given several times.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    from: Vec<String>,
    /// The kubeconfig of a live cluster [default: $KUBECONFIG, ~/.kube/config, or the cluster this runs in].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context.
    #[arg(long)]
    context: Option<String>,
    #[command(flatten)]
    remote: ServerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Show every node in the table.
    #[arg(long)]
    all: bool,
    /// Say on standard error where the time went.
    #[arg(long)]
    timings: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
    Yaml,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> Answer<Exit> {
    let mut timings = Timings::new(args.timings);
    if let Some(server) = &args.remote.server {
        return remote::run(args, server, &mut timings, out);
    }
    let setup = args.config.setup(registry)?;
    timings.lap("configuration");
    let (mut snapshot, namespace, beyond) = read(args, &setup)?;
    beyond.fill(&mut snapshot);
    let name = full_name(args, &namespace)?;
    timings.lap("reading");
    let runs_on = snapshot
        .pods
        .iter()
        .find(|pod| pod.full_name() == name)
        .map(|pod| pod.spec.node_name.to_string());
    let loaded = load::load(&snapshot, &setup.profiles, &setup.gates, &name);
    let mut loaded = loaded.map_err(|error| Failure::input(Chain(&error)))?;
    timings.lap("loading");
    note_extenders(loaded.profile, &loaded.pod);
    beyond.show(loaded.profile, &mut loaded.world);
    let states = &loaded.profile.states;
    let explanation = explain(loaded.profile, &loaded.world, states, &loaded.pod);
    timings.lap("deciding");
    let runs_on = runs_on.unwrap_or_default();
    print(args, &explanation, || table::lines(&explanation, &runs_on, args.all), out)?;
    out.flush()?;
    timings.lap("printing");
    let fits = !explanation.best.is_empty();
    // The process ends now: taking a hundred thousand objects apart would only take time.
    std::mem::forget((loaded.world, explanation, snapshot));
    Ok(if fits { Exit::Done } else { Exit::Finding })
}

/// What is shown is what plugins say: extenders that would have a say are named, and not asked.
fn note_extenders(profile: &Profile, pod: &PodInfo) {
    for extender in profile.extenders.iter() {
        let verbs = [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind];
        let verbs: Vec<&str> =
            verbs.into_iter().filter(|verb| extender.has(*verb)).map(Verb::name).collect();
        if !verbs.is_empty() && extender.is_interested(&pod.template.spec) {
            let (name, verbs) = (&extender.name, verbs.join(", "));
            complain(&format!(
                "note: the scheduler would ask an extender, which is not asked here: {name} ({verbs})"
            ));
        }
    }
}

/// The objects, the namespace of pods that name none, and what plugins read beyond these objects.
fn read(args: &Args, setup: &Setup) -> Answer<(Snapshot, String, Beyond)> {
    let mut beyond = Beyond::of(&setup.profiles);
    if args.from.is_empty() {
        let options =
            client::Options { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
        let reading = client::read_cluster(&options, &beyond.also())
            .map_err(|error| Failure::input(Chain(&error)))?;
        reading.warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
        beyond.read_live(&reading.documents);
        return Ok((reading.snapshot, reading.namespace, beyond));
    }
    let documents = input::documents(&args.from)?;
    let snapshot = Snapshot::read(&documents).map_err(|error| Failure::input(Chain(&error)))?;
    beyond.read_saved(&documents);
    Ok((snapshot, "default".to_owned(), beyond))
}

fn full_name(args: &Args, namespace: &str) -> Answer<String> {
    match (args.pod.split_once('/'), &args.namespace) {
        (Some((given, _)), Some(wanted)) if given != wanted => Err(Failure::input(format_args!(
            "pod {}: namespace {wanted:?} was asked for",
            args.pod
        ))),
        (Some(_), _) => Ok(args.pod.clone()),
        (None, Some(wanted)) => Ok(format!("{wanted}/{}", args.pod)),
        (None, None) => Ok(format!("{namespace}/{}", args.pod)),
    }
}

/// Prints an answer, which is one thing in every form.
fn print(
    args: &Args,
    answer: &impl Serialize,
    lines: impl FnOnce() -> Vec<Line>,
    out: &mut dyn Write,
) -> Answer<()> {
    match args.output {
        Format::Table => text::print(out, &lines(), terminal::has_color())?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, answer).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Format::Yaml => {
            let text = serde_saphyr::to_string(answer);
            out.write_all(text.map_err(|error| Failure::input(Chain(&error)))?.as_bytes())?;
        }
    }
    Ok(())
}

/// Where the time went.
struct Timings {
    wanted: bool,
    began: Instant,
    last: Instant,
}

impl Timings {
    fn new(wanted: bool) -> Timings {
        let now = Instant::now();
        Timings { wanted, began: now, last: now }
    }

    fn lap(&mut self, what: &str) {
        let now = Instant::now();
        if self.wanted {
            let ns = |from: Instant| {
                u64::try_from(now.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
            };
            let (lap, all) = (duration(ns(self.last)), duration(ns(self.began)));
            complain(&format!("{what:>13}  {lap:>8}  (after {all})"));
        }
        self.last = now;
    }
}
