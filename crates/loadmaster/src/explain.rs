//! `loadmaster explain`: on which nodes a pod is feasible, and why other nodes are rejected.

#![expect(clippy::disallowed_types, reason = "--timings measures time")]

mod plugin_inputs;
mod running_scheduler;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use loadmaster_api::Timestamp;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_client as client;
use loadmaster_engine::Profile;
use loadmaster_engine::explain::explain_pod;
use loadmaster_engine::world_loader;
use loadmaster_extender::Verb;
use loadmaster_framework::{Now, PodInfo, Registry};
use loadmaster_stdx::ErrorChain;
use serde::Serialize;

use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::{self, ConfigArgs, ProfilesAndGates};
use crate::terminal;
use crate::text::{self, Line, duration};
use plugin_inputs::PluginInputs;
use running_scheduler::ServerArgs;

/// Explain for each node whether a pod is feasible: rejecting plugin and reason, or scores.
///
/// Objects are read from files (--from), as kubectl prints them, or from a live cluster with a kubeconfig. The cluster's scheduler is not
/// contacted, so any cluster can be explained. An assigned pod is explained as if it were pending. With --server the state of a running
/// Loadmaster is used instead; --last shows why its last scheduling attempt failed.
///
/// The exit code is 0 if the pod is feasible on some node, 1 if on none, 2 if the input is invalid. With --last it is 0 if there is a
/// failed attempt, 1 if there is none, 2 if the pod is unknown.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster explain shop/web-7d9c5
  kubectl get nodes,pods,namespaces,services,replicasets,statefulsets -A -o json > cluster.json
  kubectl get pv,pvc,storageclasses,csinodes,csidrivers,csistoragecapacities,volumeattachments -A -o json > storage.json
  loadmaster explain web-7d9c5 -n shop --from cluster.json --from storage.json
  loadmaster explain shop/web-7d9c5 --from cluster.json --config scheduler.yaml -o json
  loadmaster explain shop/web-7d9c5 --server https://scheduler:10259 --token-file token --last")]
pub(crate) struct Args {
    /// Name of the pod.
    #[arg(value_name = "[NAMESPACE/]POD")]
    pod: String,
    /// Namespace of the pod [default: the namespace of the kubeconfig's context, or "default"].
    #[arg(short, long)]
    namespace: Option<String>,
    /// Saved objects: a file, a directory, or `-` for standard input. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    from: Vec<String>,
    /// Path to the kubeconfig file of a live cluster [default: $KUBECONFIG, ~/.kube/config, or the in-cluster configuration].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long)]
    context: Option<String>,
    #[command(flatten)]
    remote: ServerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Show every node in the table, instead of groups and the best nodes.
    #[arg(long)]
    all: bool,
    /// Print the duration of each step to standard error.
    #[arg(long)]
    timings: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
    Yaml,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let mut timings = Timings::new(args.timings);
    if let Some(server) = &args.remote.server {
        return running_scheduler::run(args, server, &mut timings, out);
    }
    let setup = args.config.read_profiles_and_gates(registry)?;
    timings.lap("configuration");
    let (mut snapshot, namespace, inputs) = read(args, &setup)?;
    inputs.add_needed_parts(&mut snapshot);
    let name = full_name(args, &namespace)?;
    timings.lap("reading");
    let runs_on = snapshot
        .pods
        .iter()
        .find(|pod| pod.full_name() == name)
        .map(|pod| pod.spec.node_name.to_string());
    let loaded =
        world_loader::load_scheduling_input(&snapshot, &setup.profiles, &setup.gates, &name);
    let mut loaded = loaded.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    timings.lap("loading");
    note_extenders(loaded.profile, &loaded.pod);
    inputs.add_to_world(loaded.profile, &mut loaded.world, &loaded.pod);
    let wall = Timestamp(jiff::Timestamp::now().as_nanosecond() as i64);
    loaded.world.set_now(Now { wall, ..Now::default() });
    let states = loaded.plugin_states();
    let explanation = explain_pod(loaded.profile, &mut loaded.world, &states, &loaded.pod);
    timings.lap("deciding");
    let runs_on = runs_on.unwrap_or_default();
    print(args, &explanation, || table::lines(&explanation, &runs_on, args.all), out)?;
    out.flush()?;
    timings.lap("printing");
    let fits = !explanation.best.is_empty();
    // The process ends now: dropping a hundred thousand objects would only cost time.
    std::mem::forget((loaded.world, explanation, snapshot));
    Ok(if fits { Exit::Done } else { Exit::Finding })
}

/// Only plugins are evaluated: prints a note for each extender that the scheduler would call.
fn note_extenders(profile: &Profile, pod: &PodInfo) {
    for extender in profile.extenders.iter() {
        let verbs = [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind];
        let verbs: Vec<&str> =
            verbs.into_iter().filter(|verb| extender.supports(*verb)).map(Verb::name).collect();
        if !verbs.is_empty() && extender.is_interested(&pod.template.spec) {
            let (name, verbs) = (&extender.name, verbs.join(", "));
            print_to_stderr(&format!(
                "note: extender {name} is not called here, but the scheduler would call it ({verbs})"
            ));
        }
    }
}

/// Reads the objects, the default namespace, and the additional inputs of plugins.
fn read(args: &Args, setup: &ProfilesAndGates) -> CommandResult<(Snapshot, String, PluginInputs)> {
    let mut inputs = PluginInputs::for_profiles(&setup.profiles);
    if args.from.is_empty() {
        let options = client::KubeconfigSource {
            kubeconfig: args.kubeconfig.clone(),
            context: args.context.clone(),
        };
        let reading = client::read_cluster(&options, &inputs.cluster_read_options())
            .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
        reading.warnings.iter().for_each(|warning| print_to_stderr(&format!("warning: {warning}")));
        inputs.read_live_objects(&reading.documents, &reading.unread);
        return Ok((reading.snapshot, reading.namespace, inputs));
    }
    let documents = input::documents(&args.from)?;
    let snapshot =
        Snapshot::read(&documents).map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    inputs.read_saved_objects(&documents);
    Ok((snapshot, "default".to_owned(), inputs))
}

fn full_name(args: &Args, namespace: &str) -> CommandResult<String> {
    match (args.pod.split_once('/'), &args.namespace) {
        (Some((given, _)), Some(wanted)) if given != wanted => Err(Failure::invalid_input(
            format_args!("pod {}: does not match --namespace {wanted:?}", args.pod),
        )),
        (Some(_), _) => Ok(args.pod.clone()),
        (None, Some(wanted)) => Ok(format!("{wanted}/{}", args.pod)),
        (None, None) => Ok(format!("{namespace}/{}", args.pod)),
    }
}

/// Prints a result in the requested format.
fn print(
    args: &Args,
    answer: &impl Serialize,
    lines: impl FnOnce() -> Vec<Line>,
    out: &mut dyn Write,
) -> CommandResult<()> {
    match args.output {
        Format::Table => text::print(out, &lines(), terminal::has_color())?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, answer).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Format::Yaml => {
            let text = serde_saphyr::to_string(answer);
            out.write_all(
                text.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?.as_bytes(),
            )?;
        }
    }
    Ok(())
}

/// Measures the steps for --timings.
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
            print_to_stderr(&format!("{what:>13}  {lap:>8}  (after {all})"));
        }
        self.last = now;
    }
}
