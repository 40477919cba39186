//! `loadmaster kubelets`: simulated kubelets for any cluster.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use loadmaster_api::document::Document;
use loadmaster_controllers::driver;
use loadmaster_controllers::kubelet::node_template::{self, NodeTemplate};
use loadmaster_controllers::kubelet::stage::Stage;
use loadmaster_controllers::kubelet::{self, ManagedNodes, parse_label_selector};
use loadmaster_stdx::ErrorChain;

use crate::cluster_client::ClusterArgs;
use crate::exit::{CommandResult, Exit, Failure};
use crate::input::CONFIG_BYTES_MAX;
use crate::terminal;

/// The user agent of all requests to the API server.
const USER_AGENT: &str = concat!("loadmaster/", env!("CARGO_PKG_VERSION"), " kubelets");

/// Run simulated kubelets (kwok-style): create nodes and run the pods assigned to them, without containers.
///
/// Nodes are created if they do not exist, and are kept Ready with a Lease each. Pods assigned to them get an IP address and run; pods of
/// Jobs and pods with certain annotations complete, and deleted pods are removed. Existing nodes with the annotation
/// kwok.x-k8s.io/node=fake are managed as well. The cluster can be `loadmaster apiserver` or any other API server. Stop with Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 100
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 10 --node-template gpu.yaml
  loadmaster kubelets --kubeconfig test.kubeconfig --nodes 10 --stages slow-start.yaml
  loadmaster kubelets --kubeconfig test.kubeconfig --manage-nodes-with-label-selector type=fake")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The number of nodes to create; existing nodes are not changed.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    nodes: u32,
    #[command(flatten)]
    machines: SimulatedNodeArgs,
    /// Also manage existing nodes that match this label selector, such as `a=b,c!=d,e,!f`.
    #[arg(long, value_name = "SELECTOR", value_parser = parse_label_selector)]
    manage_nodes_with_label_selector:
        Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    /// Duration of node Leases in seconds. They are renewed after a quarter of it; 0 disables Leases.
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    node_lease_duration_seconds: u64,
    /// The maximum number of concurrent requests.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallelism: u16,
}

/// Flags for simulated nodes and pods.
#[derive(clap::Args)]
pub(crate) struct SimulatedNodeArgs {
    /// File with one or more Node manifests that are used in turn as templates for the nodes of --nodes.
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub node_template: Option<String>,
    /// File with KWOK Stage objects that define the lifecycle of nodes and pods. May be repeated.
    #[arg(long, value_name = "FILE")]
    stages: Vec<String>,
}

impl SimulatedNodeArgs {
    /// Reads the stages of all files.
    pub fn stages(&self) -> CommandResult<Vec<Stage>> {
        let mut stages = Vec::new();
        for file in &self.stages {
            stages.extend(Stage::from_document(&read(file)?).map_err(Failure::invalid_input)?);
        }
        Ok(stages)
    }

    /// Builds `n` nodes.
    pub fn nodes(&self, n: u32) -> CommandResult<Vec<Node>> {
        let templates = match &self.node_template {
            Some(file) => {
                NodeTemplate::from_document(&read(file)?).map_err(Failure::invalid_input)?
            }
            None => Vec::new(),
        };
        let nodes = node_template::nodes_from_templates(
            &templates,
            usize::try_from(n).unwrap_or(usize::MAX),
        );
        nodes.map_err(|error| Failure::invalid_input(format!("creating nodes: {error}")))
    }
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> CommandResult<Exit> {
    let (nodes, stages) = (args.machines.nodes(args.nodes)?, args.machines.stages()?);
    let seed = RandomState::new().hash_one("kubelets");
    args.cluster.run(USER_AGENT, async |cluster| {
        writeln!(
            out,
            "kubelets for {}, {}",
            cluster.server(),
            crate::text::counted(nodes.len(), "node")
        )?;
        out.flush()?;
        let kubelets = kubelet::kubelet_controllers(kubelet::KubeletOptions {
            nodes,
            managed: ManagedNodes { selector: args.manage_nodes_with_label_selector.clone() },
            lease: Duration::from_secs(args.node_lease_duration_seconds),
            stages,
            csi_driver: None,
            seed,
        });
        let n_calls_max = usize::from(args.parallelism);
        let options =
            driver::DriverOptions { n_calls_max, seed, ..driver::DriverOptions::default() };
        driver::run_controllers(&cluster, kubelets, options, terminal::stop_signal()).await;
        Ok(Exit::Done)
    })
}

fn read(file: &str) -> CommandResult<Document> {
    Document::read(file, Some(CONFIG_BYTES_MAX))
        .map_err(|error| Failure::invalid_input(ErrorChain(&error)))
}
