//! `cargo xtask e2e`: Loadmaster and kube-scheduler against a real control plane.
//!
//! etcd, kube-apiserver and kube-scheduler are upstream's own, built from the Go modules in `conformance/`, on loopback, with nothing
//! else running: no kubelets, no controllers. Nodes and pods are objects only.

mod beside;
mod churn;
mod conformance;
mod control_plane;
mod controllers;
mod drain;
mod extender;
mod gang;
mod gpushare;
mod guests;
mod histories;
mod kill_writes;
mod kubectl;
mod rbac;
mod record;
mod replicas;
mod sample_plugin;
mod servers;

mod load;
mod special;
mod workload;

mod audit;
mod bound;
mod outcome;
mod scheduler;

mod api;
mod credentials;
mod embedded;
mod folder;
mod grants;
mod manifest;
mod process;
mod programs;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use api::Api;
use control_plane::{ControlPlane, Options};
use programs::Program;
use workload::Workload;

/// Loadmaster and kube-scheduler against a real control plane.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Build etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl into conformance/bin.
    Build,
    /// Start a control plane, print its kubeconfig's path, and stay until standard input closes or Ctrl-C.
    ControlPlane(Stay),
    /// Two schedulers on one cluster, each with its own pods, for the same nodes.
    Beside(beside::Args),
    /// Let informers and a controller follow a day of changes on a server that goes wrong.
    Churn(churn::Args),
    /// Play the same cases on a real API server and on the embedded one.
    Conformance(conformance::Args),
    /// Kill an embedded API server again and again while clients write, and check what is left.
    KillWrites(kill_writes::Args),
    /// The same calls of kubectl to a real API server and to the embedded one, compared.
    Kubectl(kubectl::Args),
    /// The small controllers beside kube-controller-manager.
    Controllers(controllers::Args),
    /// Bind pods that wait already, and measure it.
    Drain(drain::Args),
    /// Record runs, replay them, and compare the binds with what the cluster has in the end.
    Record(record::Args),
    /// End the leading one of two schedulers in mid-load, again and again.
    Replicas(replicas::Args),
    /// kube-scheduler and Loadmaster before one extender that misbehaves.
    Extender(extender::Args),
    /// Pods that are bound all or none, by the example gang.
    Gang(gang::Args),
    /// Pods that share GPUs, through the example extenders.
    Gpushare(gpushare::Args),
    /// What kube-apiserver with etcd and the embedded API server do in a second, side by side.
    Servers(servers::Args),
    /// The real kube-scheduler and kube-controller-manager on the embedded API server.
    Guests(guests::Args),
    /// Schedule with the rights of upstream's built-in roles only, and look for refused requests.
    Rbac(rbac::Args),
    /// The example sample-plugin with the rights and the configuration of its own manifest.
    SamplePlugin(sample_plugin::Args),
}

/// A control plane to try things on by hand.
#[derive(Parser)]
struct Stay {
    /// Where the API server listens on loopback; a free port when not given.
    #[arg(long)]
    port: Option<u16>,
    /// Where kubeconfig files and logs go, and stay; a temporary folder when not given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Nodes to load.
    #[arg(long, default_value_t = 0)]
    nodes: u32,
    /// Pods to load, in the namespace `e2e`.
    #[arg(long, default_value_t = 0)]
    pods: u32,
    /// Which pods.
    #[arg(long, default_value = "basic")]
    workload: Workload,
}

/// Answers whether everything was as it should be.
pub fn run(args: &Args) -> Result<bool> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().context("starting the network runtime")?;
    let done = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("listening for signals")?;
        // Dropping what runs ends the processes it has started.
        tokio::select! {
            done = dispatch(&args.what) => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    });
    // A thread may still be reading standard input.
    runtime.shutdown_background();
    done
}

async fn dispatch(what: &What) -> Result<bool> {
    match what {
        What::Build => programs::build(&Program::ALL).map(|()| true),
        What::ControlPlane(stay) => control_plane(stay).await,
        What::Beside(args) => beside::run(args).await,
        What::Churn(args) => churn::run(args).await,
        What::Conformance(args) => conformance::run(args).await,
        What::KillWrites(args) => kill_writes::run(args).await,
        What::Kubectl(args) => kubectl::run(args).await,
        What::Controllers(args) => controllers::run(args).await,
        What::Drain(args) => drain::run(args).await,
        What::Replicas(args) => replicas::run(args).await,
        What::Record(args) => record::run(args).await,
        What::Extender(args) => extender::run(args).await,
        What::Gang(args) => gang::run(args).await,
        What::Gpushare(args) => gpushare::run(args).await,
        What::Servers(args) => servers::run(args).await,
        What::Guests(args) => guests::run(args).await,
        What::Rbac(args) => rbac::run(args).await,
        What::SamplePlugin(args) => sample_plugin::run(args).await,
    }
}

async fn control_plane(stay: &Stay) -> Result<bool> {
    let options = Options { port: stay.port, folder: stay.dir.clone(), ..Options::default() };
    let plane = ControlPlane::start(&options).await?;
    if stay.nodes + stay.pods > 0 {
        let api = Api::new(&plane.admin_kubeconfig()).await?;
        load::fill(&api, "e2e", stay.nodes, stay.workload, stay.pods).await?;
    }
    println!("{}", plane.admin_kubeconfig().display());
    eprintln!(
        "{} is ready; kubeconfig files of other users are beside that one; ends with standard input",
        plane.url()
    );
    let input =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        read = input => { read.context("reading standard input")?.context("reading standard input")?; }
        _ = tokio::signal::ctrl_c() => {}
    }
    plane.finish();
    Ok(true)
}
