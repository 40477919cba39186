//! `loadmaster kubelets`: fake kubelets for any cluster.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use loadmaster_api::document::Document;
use loadmaster_client::{Cluster, ClusterOptions};
use loadmaster_controllers::driver;
use loadmaster_controllers::kubelet::stage::Stage;
use loadmaster_controllers::kubelet::template::{self, NodeTemplate};
use loadmaster_controllers::kubelet::{self, Managed, parse_selector};
use loadmaster_daemon::logs::{Format, LogSettings, Logs};
use loadmaster_stdx::Chain;

use crate::exit::{Answer, Exit, Failure};
use crate::input::CONFIG_BYTES_MAX;
use crate::terminal;

/// Pretend to be the kubelets of a cluster: make nodes, and let the pods on them run.
///
/// Nodes are made unless they are there, kept Ready with a lease each, and serve the pods that a scheduler puts on them: these get an address, run, end
/// if they are a Job's or their annotations say so, and go when they are deleted. Nodes with the annotation kwok.x-k8s.io/node=fake are
/// served, too. The cluster may be `loadmaster apiserver` or any real one without machines. It ends with Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 100
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 10 --node-template gpu.yaml
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 10 --stages slow-start.yaml
  loadmaster kubelets --kubeconfig test.kubeconfig --manage-nodes-with-label-selector type=fake")]
pub(crate) struct Args {
    /// The cluster's kubeconfig; without it the cluster this runs in.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// How many nodes there shall be; those that are there are left as they are.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    nodes: u32,
    #[command(flatten)]
    machines: MachineArgs,
    /// Serve nodes with these labels, too: `a=b,c!=d,e,!f`.
    #[arg(long, value_name = "SELECTOR", value_parser = parse_selector)]
    manage_nodes_with_label_selector:
        Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    /// A node's lease holds so long and is renewed in a quarter of it; 0: no leases.
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    node_lease_duration_seconds: u64,
    /// Requests under way at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallelism: u16,
    /// How much is logged: 0 troubles only, 4 every refused request.
    #[arg(short, value_name = "V", default_value_t = 0)]
    verbosity: u32,
}

/// What the machines are like that are pretended.
#[derive(clap::Args)]
pub(crate) struct MachineArgs {
    /// What the nodes of --nodes look like: one or several Node manifests, which take turns.
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub node_template: Option<String>,
    /// What happens to nodes and pods, as KWOK's Stage objects. May be given several times.
    #[arg(long, value_name = "FILE")]
    stages: Vec<String>,
}

impl MachineArgs {
    /// The stages of all files.
    pub fn stages(&self) -> Answer<Vec<Stage>> {
        let mut stages = Vec::new();
        for file in &self.stages {
            stages.extend(Stage::read(&read(file)?).map_err(Failure::input)?);
        }
        Ok(stages)
    }

    /// So many nodes.
    pub fn nodes(&self, n: u32) -> Answer<Vec<Node>> {
        let templates = match &self.node_template {
            Some(file) => NodeTemplate::read(&read(file)?).map_err(Failure::input)?,
            None => Vec::new(),
        };
        let nodes = template::nodes(&templates, usize::try_from(n).unwrap_or(usize::MAX));
        nodes.map_err(|error| Failure::input(format!("making nodes: {error}")))
    }
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Answer<Exit> {
    let failed = |doing: &str, error: &dyn std::error::Error| {
        Failure::input(format!("{doing}: {}", Chain(error)))
    };
    let (nodes, stages) = (args.machines.nodes(args.nodes)?, args.machines.stages()?);
    let settings = LogSettings {
        format: Format::Text,
        verbosity: args.verbosity,
        vmodule: Vec::new(),
        has_split_stream: false,
        info_buffer_bytes: 0,
        flush_frequency: Duration::from_secs(5),
    };
    loadmaster_stdx::caught::quiet_caught_panics();
    Logs::init(&settings).map_err(|error| failed("setting up logs", &error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the network runtime", &error))?;
    let seed = RandomState::new().hash_one("kubelets");
    runtime.block_on(async {
        let options = ClusterOptions {
            kubeconfig: args.kubeconfig.clone(),
            context: args.context.clone(),
            master: None,
            user_agent: concat!("loadmaster/", env!("CARGO_PKG_VERSION"), " kubelets").to_owned(),
        };
        let cluster = Cluster::find(&options).await;
        let cluster = cluster.map_err(|error| Failure::input(Chain(&error)))?;
        writeln!(
            out,
            "kubelets for {}, {}",
            cluster.server(),
            crate::text::counted(nodes.len(), "node")
        )?;
        out.flush()?;
        let kubelets = kubelet::controllers(kubelet::Options {
            nodes,
            managed: Managed { selector: args.manage_nodes_with_label_selector.clone() },
            lease: Duration::from_secs(args.node_lease_duration_seconds),
            stages,
            seed,
        });
        let options = driver::Options { n_calls_max: usize::from(args.parallelism), seed };
        driver::run(&cluster, kubelets, options, terminal::end_asked()).await;
        Ok(Exit::Done)
    })
}

fn read(file: &str) -> Answer<Document> {
    Document::read(file, Some(CONFIG_BYTES_MAX)).map_err(|error| Failure::input(Chain(&error)))
}
