//! `loadmaster explain`: on which nodes a pod is feasible, and why other nodes are rejected.

#![expect(clippy::disallowed_types, reason = "--timings measures time")]

mod extent;
mod plugin_inputs;
mod rejected_nodes;
mod running_scheduler;
mod selection;
mod several_pods;
mod table;

use std::io::Write;
use std::time::Instant;

use clap::ValueEnum;
use clap_complete::engine::ArgValueCompleter;
use loadmaster_api::snapshot::Snapshot;
use loadmaster_api::{LabelSelector, Timestamp};
use loadmaster_client as client;
use loadmaster_engine::{Profile, explain, world_loader};
use loadmaster_extender::Verb;
use loadmaster_framework::{Now, PodInfo, Registry};
use loadmaster_stdx::ErrorChain;
use serde::Serialize;

use crate::cluster_client::KubeconfigArgs;
use crate::completion;
use crate::exit::{CommandResult, Exit, Failure, print_to_stderr};
use crate::input::{self, ConfigArgs, ProfilesAndGates};
use crate::manifest;
use crate::terminal;
use crate::text::{self, Line, duration};
use extent::Extent;
use plugin_inputs::PluginInputs;
use running_scheduler::ServerArgs;
use selection::Selection;

/// Explain for each node whether a pod is feasible: rejecting plugin and reason, or scores; and what would make the pod fit.
///
/// Objects are read from files (--from), as kubectl prints them, or from a live cluster with a kubeconfig. The cluster's scheduler is not
/// contacted, so any cluster can be explained. An assigned pod is explained as if it were pending. With --server the state of a running
/// Loadmaster is used instead; --last shows why its last scheduling attempt failed.
///
/// Several pods are selected by the objects that control them, by labels (-l), or because they are pending (--pending). Then pods without a
/// node are grouped by the reason why they have none.
///
/// The exit code is 0 if each pod is feasible on some node, 1 if one is on none, 2 if the input is invalid. With --last it is 0 if there is a
/// failed attempt, 1 if there is none, 2 if the pod is unknown.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster explain shop/web-7d9c5
  loadmaster explain --pending
  loadmaster explain deploy/web -n shop
  loadmaster explain -A -l app=web -o json
  kubectl get nodes,pods,namespaces,services,replicasets,statefulsets -A -o json > cluster.json
  kubectl get pv,pvc,storageclasses,csinodes,csidrivers,csistoragecapacities,volumeattachments -A -o json > storage.json
  loadmaster explain web-7d9c5 -n shop --from cluster.json --from storage.json
  loadmaster explain shop/web-7d9c5 --from cluster.json --config scheduler.yaml -o json
  loadmaster explain shop/web-7d9c5 --server https://scheduler:10259 --token-file token --last")]
pub(crate) struct Args {
    /// Pods by name, or KIND/NAME for the pods of an object: pod, deploy, rs, sts, ds or job.
    #[arg(
        value_name = "[NAMESPACE/]POD | KIND/NAME",
        add = ArgValueCompleter::new(completion::pods),
        required_unless_present_any = ["all_namespaces", "selector", "pending"]
    )]
    names: Vec<String>,
    /// Namespace of the pods [default: the namespace of the kubeconfig's context, or "default"; all for --pending].
    #[arg(short, long)]
    namespace: Option<String>,
    /// Select pods of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Select pods by their labels, as in kubectl.
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = LabelSelector::parse)]
    selector: Option<LabelSelector>,
    /// Select pods without a node.
    #[arg(long)]
    pending: bool,
    /// Saved objects: a file, a directory, or `-` for standard input. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    from: Vec<String>,
    #[command(flatten)]
    cluster: KubeconfigArgs,
    #[command(flatten)]
    remote: ServerArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Output format: `wide` shows every node, `name` only the names of the selected pods.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Show every node in the table, instead of groups and the best nodes, as `-o wide` does.
    #[arg(long)]
    all: bool,
    /// Print the duration of each step to standard error.
    #[arg(long)]
    timings: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Wide,
    Name,
    Json,
    Yaml,
}

impl Args {
    /// How much the table shows.
    fn extent(&self) -> Extent {
        match self.all || self.output == Format::Wide {
            true => Extent::All,
            false => Extent::First { has_flag: true },
        }
    }
}

/// The lines that are printed for a pod without a node, where there are no flags.
#[cfg(feature = "cluster")]
pub(crate) fn explanation_lines(explanation: &explain::Explanation) -> Vec<Line> {
    table::lines(explanation, "", Extent::First { has_flag: false })
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
    let selection = Selection::new(args, &namespace)?;
    timings.lap("reading");
    let exit = match &selection {
        Selection::Pod(name) => {
            explain_pod(args, &setup, &snapshot, &inputs, name, &mut timings, out)?
        }
        Selection::Pods(criteria) => {
            let pods = criteria.select(&snapshot)?;
            several_pods::explain(args, &setup, &snapshot, &inputs, &pods, &mut timings, out)?
        }
    };
    out.flush()?;
    timings.lap("printing");
    // The process ends now: dropping a hundred thousand objects would only cost time.
    std::mem::forget(snapshot);
    Ok(exit)
}

fn explain_pod(
    args: &Args,
    setup: &ProfilesAndGates,
    snapshot: &Snapshot,
    inputs: &PluginInputs,
    name: &str,
    timings: &mut Timings,
    out: &mut dyn Write,
) -> CommandResult<Exit> {
    let found = snapshot.pods.iter().find(|pod| pod.full_name() == name);
    let runs_on = found.map(|pod| pod.spec.node_name.to_string()).unwrap_or_default();
    let loaded = world_loader::load_scheduling_input(snapshot, &setup.profiles, &setup.gates, name);
    let mut loaded = loaded.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    timings.lap("loading");
    let mut notes = extender_notes(loaded.profile, &loaded.pod);
    notes.extend(inputs.add_to_world(loaded.profile, &mut loaded.world, &loaded.pod));
    notes.iter().for_each(|note| print_to_stderr(&format!("note: {note}")));
    loaded.world.set_now(now());
    let mut explanation = explain::explain(&mut loaded);
    timings.lap("deciding");
    explanation.search_changes(&mut loaded);
    timings.lap("searching");
    let lines = || table::lines(&explanation, &runs_on, args.extent());
    print(args, &[name], &explanation, lines, out)?;
    let fits = !explanation.best.is_empty();
    std::mem::forget((loaded.world, explanation));
    Ok(if fits { Exit::Done } else { Exit::Finding })
}

fn now() -> Now {
    let wall = Timestamp(jiff::Timestamp::now().as_nanosecond() as i64);
    Now { wall, ..Now::default() }
}

/// Only plugins are evaluated: a note for each extender that the scheduler would call.
fn extender_notes(profile: &Profile, pod: &PodInfo) -> Vec<String> {
    let notes = profile.extenders.iter().filter_map(|extender| {
        let verbs = [Verb::Filter, Verb::Prioritize, Verb::Preempt, Verb::Bind];
        let verbs: Vec<&str> =
            verbs.into_iter().filter(|verb| extender.supports(*verb)).map(Verb::name).collect();
        let is_called = !verbs.is_empty() && extender.is_interested(&pod.template.spec);
        let (name, verbs) = (&extender.name, verbs.join(", "));
        is_called.then(|| {
            format!("extender {name} is not called here, but the scheduler would call it ({verbs})")
        })
    });
    notes.collect()
}

/// Reads the objects, the default namespace, and the additional inputs of plugins.
fn read(args: &Args, setup: &ProfilesAndGates) -> CommandResult<(Snapshot, String, PluginInputs)> {
    let mut inputs = PluginInputs::for_profiles(&setup.profiles);
    if args.from.is_empty() {
        let reading = client::read_cluster(&args.cluster.source(), &inputs.cluster_read_options())
            .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
        reading.warnings.iter().for_each(|warning| print_to_stderr(&format!("warning: {warning}")));
        inputs.read_live_objects(&reading.documents, &reading.unread);
        return Ok((reading.snapshot, reading.namespace, inputs));
    }
    let documents = input::documents(&args.from)?;
    let snapshot = Snapshot::read(&documents).map_err(|first| {
        let (all, errors) = manifest::objects(&documents);
        manifest::failure(&documents, &all, errors, &first)
    })?;
    inputs.read_saved_objects(&documents);
    Ok((snapshot, "default".to_owned(), inputs))
}

/// Prints a result about these pods in the requested format.
fn print(
    args: &Args,
    pods: &[&str],
    answer: &impl Serialize,
    lines: impl FnOnce() -> Vec<Line>,
    out: &mut dyn Write,
) -> CommandResult<()> {
    match args.output {
        Format::Table | Format::Wide => text::print(out, &lines(), terminal::has_color())?,
        Format::Name => {
            for pod in pods {
                let name = pod.split_once('/').map_or(*pod, |(_, name)| name);
                writeln!(out, "pod/{name}")?;
            }
        }
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
