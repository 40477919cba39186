//! `cargo xtask e2e`: Loadmaster and kube-scheduler against a real control plane.
//!
//! etcd, kube-apiserver and kube-scheduler are upstream's programs, built from the Go modules in `conformance/`, and run on loopback
//! without kubelets and controllers. Nodes and pods are only API objects.

mod apiserver_benchmark;
mod churn;
mod conformance;
mod control_plane;
mod controllers;
mod demos;
mod deployments;
mod drain;
mod extender;
mod faults;
mod gang;
mod gangs;
mod gpushare;
mod guides;
mod histories;
mod kill_writes;
mod kubectl;
mod kubernetes_tests;
mod latency;
mod manifests;
mod null_scheduler;
mod observing;
mod permissions;
mod rbac;
mod record;
mod reload;
mod replicas;
mod sample_plugin;
mod shadow;
mod two_schedulers;
mod upstream_components;
mod volumes;

mod load_claims;
mod load_objects;
mod running_pods;
mod special_pods;
mod workload;

mod audit;
mod bound_pods;
mod controller_manager;
mod old_configurations;
mod outcome_checks;
mod plot;
mod scheduler;

mod api_client;
mod credentials;
mod embedded_apiserver;
mod fault_proxy;
mod manifest;
mod median;
pub mod process;
mod process_kubelet;
mod programs;
mod run_folder;
mod scheduler_role_bindings;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use api_client::ApiClient;
use control_plane::{ControlPlane, ControlPlaneOptions};
use programs::Program;
use workload::Workload;

/// Loadmaster and kube-scheduler against a real control plane.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    what: E2eCommand,
}

#[derive(Subcommand)]
enum E2eCommand {
    /// Build etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kubectl and Kubernetes' tests of the scheduler into
    /// conformance/bin.
    Build,
    /// Start a control plane, print the path of its kubeconfig, and run until standard input is closed or Ctrl-C is pressed.
    ControlPlane(ControlPlaneArgs),
    /// Run two schedulers on one cluster, each with its own pods, on the same nodes.
    Beside(two_schedulers::Args),
    /// Run informers and a controller during a day of changes on a server with fault injection.
    Churn(churn::Args),
    /// Run the same test cases on a real API server and on the embedded one.
    Conformance(conformance::Args),
    /// Kill an embedded API server repeatedly while clients write, and check that no acknowledged write is lost.
    KillWrites(kill_writes::Args),
    /// Compare the output of the same kubectl commands on a real API server and on the embedded one.
    Kubectl(kubectl::Args),
    /// Run Kubernetes' own end-to-end tests of the scheduler on simulated nodes.
    KubernetesTests(kubernetes_tests::Args),
    /// Compare the embedded controllers with kube-controller-manager.
    Controllers(controllers::Args),
    /// Run the manifests of deploy/, and those of others, with our images on a real control plane.
    Deployments(deployments::Args),
    /// Benchmark scheduling of pods that are already pending.
    Drain(drain::Args),
    /// Measure how long pods that come at a constant rate wait until they are bound.
    Latency(latency::Args),
    /// Send the writes of a scheduler without deciding anything; `drain --null-scheduler` starts it.
    #[command(hide = true)]
    NullScheduler(null_scheduler::Args),
    /// Record runs, replay them, and compare the bindings with the final state of the cluster.
    Record(record::Args),
    /// Replace the configuration of a running scheduler under load, with good and bad files.
    Reload(reload::Args),
    /// Terminate the leader of two schedulers under load, repeatedly.
    Replicas(replicas::Args),
    /// Compare kube-scheduler and Loadmaster with a scripted extender that injects faults.
    Extender(extender::Args),
    /// Run the demo of each example plugin with `up`, and check which pods are assigned, and why others are not.
    Demos,
    /// Let connections to the API server die, stop answering and become slow, and the API server be unreachable for minutes.
    Faults(faults::Args),
    /// Test all-or-nothing scheduling with the example gang.
    Gang(gang::Args),
    /// Compare gangs and quotas of scheduler-plugins and Loadmaster.
    Gangs(gangs::Args),
    /// Test GPU sharing with the example extenders.
    Gpushare(gpushare::Args),
    /// Follow how-to guides literally on a real control plane.
    Guides(guides::Args),
    /// Render the manifests of deploy/ with helm and kustomize, and apply them to a real API server.
    Manifests(manifests::Args),
    /// Test the alerts and the dashboard with the metrics of running schedulers, and with promtool.
    Observing(observing::Args),
    /// Start Loadmaster with command lines, configurations and Policies of older versions.
    OldConfigurations(old_configurations::Args),
    /// Benchmark kube-apiserver with etcd and the embedded API server.
    Servers(apiserver_benchmark::Args),
    /// Run the real kube-scheduler and kube-controller-manager on the embedded API server.
    Guests(upstream_components::Args),
    /// Run Loadmaster with every plugin and the roles that `config rbac` prints, and check that no request is denied.
    Permissions(permissions::Args),
    /// Run schedulers with only upstream's built-in roles, and check that no request is denied.
    Rbac(rbac::Args),
    /// Compare kube-scheduler and Loadmaster with PersistentVolumeClaims and kube-controller-manager.
    Volumes(volumes::Args),
    /// Run Loadmaster as a shadow of kube-scheduler, and check its report.
    Shadow(shadow::Args),
    /// Run the example sample-plugin with the roles and configuration of its manifest.
    SamplePlugin(sample_plugin::Args),
}

/// A control plane for manual tests.
#[derive(Parser)]
struct ControlPlaneArgs {
    /// The port of the API server on loopback; a free port by default.
    #[arg(long)]
    port: Option<u16>,
    /// The folder for kubeconfig files and logs, which is kept; a temporary folder by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Number of nodes to create.
    #[arg(long, default_value_t = 0)]
    nodes: u32,
    /// Number of pods to create in the namespace `e2e`.
    #[arg(long, default_value_t = 0)]
    pods: u32,
    /// The kind of pods.
    #[arg(long, default_value = "basic")]
    workload: Workload,
}

/// Returns whether all checks passed.
pub fn run(args: &Args) -> Result<bool> {
    on_runtime(dispatch(&args.what))
}

/// Runs images, by name, as the pods of manifests on a real control plane; returns whether all checks passed.
pub fn check_images(images: &[(&'static str, crate::image::Unpacked)]) -> Result<bool> {
    on_runtime(deployments::check(images))
}

fn on_runtime(work: impl Future<Output = Result<bool>>) -> Result<bool> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().context("starting the network runtime")?;
    let done = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("listening for signals")?;
        // Dropping the future stops the processes that it has started.
        tokio::select! {
            done = work => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    });
    // A thread may still be reading standard input.
    runtime.shutdown_background();
    done
}

async fn dispatch(what: &E2eCommand) -> Result<bool> {
    match what {
        E2eCommand::Build => programs::build(&Program::ALL).map(|()| true),
        E2eCommand::ControlPlane(stay) => control_plane(stay).await,
        E2eCommand::Beside(args) => two_schedulers::run(args).await,
        E2eCommand::Churn(args) => churn::run(args).await,
        E2eCommand::Conformance(args) => conformance::run(args).await,
        E2eCommand::KillWrites(args) => kill_writes::run(args).await,
        E2eCommand::Kubectl(args) => kubectl::run(args).await,
        E2eCommand::KubernetesTests(args) => kubernetes_tests::run(args).await,
        E2eCommand::Controllers(args) => controllers::run(args).await,
        E2eCommand::Demos => demos::run(),
        E2eCommand::Deployments(args) => deployments::run(args).await,
        E2eCommand::Drain(args) => drain::run(args).await,
        E2eCommand::Latency(args) => latency::run(args).await,
        E2eCommand::NullScheduler(args) => null_scheduler::run(args).await,
        E2eCommand::Replicas(args) => replicas::run(args).await,
        E2eCommand::Reload(args) => reload::run(args).await,
        E2eCommand::Record(args) => record::run(args).await,
        E2eCommand::Extender(args) => extender::run(args).await,
        E2eCommand::Faults(args) => faults::run(args).await,
        E2eCommand::Gang(args) => gang::run(args).await,
        E2eCommand::Gangs(args) => gangs::run(args).await,
        E2eCommand::Gpushare(args) => gpushare::run(args).await,
        E2eCommand::Guides(args) => guides::run(args).await,
        E2eCommand::Manifests(args) => manifests::run(args).await,
        E2eCommand::Observing(args) => observing::run(args).await,
        E2eCommand::OldConfigurations(args) => old_configurations::run(args).await,
        E2eCommand::Servers(args) => apiserver_benchmark::run(args).await,
        E2eCommand::Guests(args) => upstream_components::run(args).await,
        E2eCommand::Permissions(args) => permissions::run(args).await,
        E2eCommand::Rbac(args) => rbac::run(args).await,
        E2eCommand::Volumes(args) => volumes::run(args).await,
        E2eCommand::Shadow(args) => shadow::run(args).await,
        E2eCommand::SamplePlugin(args) => sample_plugin::run(args).await,
    }
}

async fn control_plane(stay: &ControlPlaneArgs) -> Result<bool> {
    let options = ControlPlaneOptions {
        port: stay.port,
        folder: stay.dir.clone(),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(&options).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    // kube-apiserver creates the namespace soon after it is ready.
    special_pods::wait_for_path(&api, "/api/v1/namespaces/default").await?;
    load_objects::service_account(&api, "default").await?;
    if stay.nodes + stay.pods > 0 {
        load_objects::fill(&api, "e2e", stay.nodes, stay.workload, stay.pods).await?;
    }
    println!("{}", plane.admin_kubeconfig().display());
    eprintln!(
        "{} is ready; kubeconfig files of other users are in the same folder; close standard input to stop",
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
