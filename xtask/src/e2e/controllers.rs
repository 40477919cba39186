//! `cargo xtask e2e controllers`: compares the embedded controllers with kube-controller-manager.
//!
//! The same kubectl commands are run on a cluster with simulated kubelets and kube-scheduler, once with kube-controller-manager and once with
//! the embedded controllers, on a real kube-apiserver and on the embedded one. After each step the objects must be equal, except for
//! generated names, times and ids.

mod steps;
mod summary;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Parser;
use loadmaster_client::{Cluster, ClusterOptions};
use loadmaster_controllers::manager;
use loadmaster_controllers::{Controller, driver, kubelet};
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use super::controller_manager;
use super::embedded_apiserver;
use super::process::Process;
use super::programs::{self, Program};
use super::run_folder::RunFolder;

const N_NODES: usize = 3;

/// Compare the embedded controllers with kube-controller-manager.
#[derive(Parser)]
pub struct Args {
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
    /// Print the objects after each step.
    #[arg(long)]
    verbose: bool,
}

/// The API server and the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup<'a> {
    /// kube-apiserver, kube-controller-manager.
    Reference,
    /// kube-apiserver, the embedded controllers.
    Real,
    /// The embedded API server, the embedded controllers.
    Embedded(&'a Path),
}

/// The objects after each step, by the step's name.
type StatesAfterSteps = Vec<(&'static str, BTreeSet<String>)>;

/// Returns whether there are no differences.
pub async fn run(args: &Args) -> Result<bool> {
    use Program::{Etcd, KubeApiserver, KubeControllerManager, KubeScheduler, Kubectl};
    programs::build(&[Etcd, KubeApiserver, KubeControllerManager, KubeScheduler, Kubectl])?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let want = run_steps(Setup::Reference).await.context("with kube-controller-manager")?;
    if args.verbose {
        for (step, lines) in &want {
            println!("{step}:");
            lines.iter().for_each(|line| println!("  {line}"));
        }
    }
    let mut n_differences = 0;
    for setup in [Setup::Real, Setup::Embedded(&loadmaster)] {
        let found = run_steps(setup).await.with_context(|| format!("{setup:?}"))?;
        let n_lines: usize = found.iter().map(|(_, lines)| lines.len()).sum();
        let n = differences(&want, &found);
        println!("{setup:?}: {} steps, {n_lines} lines, {n} differences", found.len());
        n_differences += n;
    }
    Ok(n_differences == 0)
}

/// Prints and counts the differences.
fn differences(want: &StatesAfterSteps, found: &StatesAfterSteps) -> usize {
    let mut n = 0;
    for ((step, want), (_, found)) in want.iter().zip(found) {
        let (missing, more) = (want.difference(found), found.difference(want));
        let lines =
            missing.map(|line| format!("- {line}")).chain(more.map(|line| format!("+ {line}")));
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            println!("{step}:");
            lines.iter().for_each(|line| println!("  {line}"));
        }
        n += lines.len();
    }
    n + want.len().abs_diff(found.len())
}

/// A running API server.
enum Server {
    Real(Box<ControlPlane>),
    Embedded { _process: Process, kubeconfig: PathBuf, folder: RunFolder },
}

impl Server {
    async fn start(setup: Setup<'_>) -> Result<Server> {
        let Setup::Embedded(program) = setup else {
            let options = ControlPlaneOptions::without_service_account_admission();
            let plane = ControlPlane::start(&options).await?;
            return Ok(Server::Real(Box::new(plane)));
        };
        let folder = RunFolder::temporary(&std::env::temp_dir())?;
        let (process, kubeconfig) = embedded_apiserver::start(program, folder.path(), &[]).await?;
        Ok(Server::Embedded { _process: process, kubeconfig, folder })
    }

    fn kubeconfig(&self) -> PathBuf {
        match self {
            Server::Real(plane) => plane.admin_kubeconfig(),
            Server::Embedded { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    fn folder(&self) -> &Path {
        match self {
            Server::Real(plane) => plane.folder(),
            Server::Embedded { folder, .. } => folder.path(),
        }
    }

    fn finish(self) {
        match self {
            Server::Real(plane) => plane.finish(),
            Server::Embedded { folder, .. } => drop(folder.remove_on_drop()),
        }
    }
}

async fn run_steps(setup: Setup<'_>) -> Result<StatesAfterSteps> {
    let server = Server::start(setup).await?;
    let kubeconfig = server.kubeconfig();
    let options = ClusterOptions {
        kubeconfig: Some(kubeconfig.clone()),
        context: None,
        master: None,
        user_agent: "loadmaster-e2e".to_owned(),
    };
    let cluster = Cluster::from_options(&options).await.context("finding the cluster")?;
    let mut controllers = kubelets()?;
    let mut manager = None;
    if setup == Setup::Reference {
        // The sync period of the embedded controllers.
        let flags = ["--concurrent-gc-syncs=4", "--kube-api-qps=200", "--kube-api-burst=400"];
        manager = Some(controller_manager::start(&kubeconfig, server.folder(), &flags)?);
    } else {
        controllers.extend(manager::all_controllers(manager::ControllerOptions::default()));
    }
    let scheduler = scheduler(&server)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = tokio::spawn(async move {
        let stop = async { stopped.await.unwrap_or_default() };
        driver::run_controllers(&cluster, controllers, driver::DriverOptions::default(), stop)
            .await;
    });
    let api = ApiClient::new(&kubeconfig).await?;
    let states = steps::run_steps(&api, &kubeconfig, server.folder()).await;
    drop(stop);
    working.await.context("stopping the controllers")?;
    drop((manager, scheduler));
    let states = states?;
    server.finish();
    Ok(states)
}

/// Simulated kubelets with their nodes.
fn kubelets() -> Result<Vec<Box<dyn Controller>>> {
    let nodes =
        kubelet::node_template::nodes_from_templates(&[], N_NODES).context("making nodes")?;
    Ok(kubelet::kubelet_controllers(kubelet::KubeletOptions {
        nodes,
        ..kubelet::KubeletOptions::default()
    }))
}

fn scheduler(server: &Server) -> Result<Process> {
    let mut command = Command::new(Program::KubeScheduler.path()?);
    command.arg(format!("--kubeconfig={}", server.kubeconfig().display()));
    command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    command.arg(format!("--secure-port={}", free_port()?));
    let log = server.folder().join("kube-scheduler.log");
    Process::start("kube-scheduler", &mut command, &log)
}

/// A List of objects, for kubectl.
fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
