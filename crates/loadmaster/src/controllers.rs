//! `loadmaster controllers`: the controllers of scheduler-plugins, with the flags of its program.

mod beside_scheduler;
mod endpoints;

use std::io::Write;
use std::time::Duration;

use loadmaster_client::flowcontrol::{TokenBucket, random_seed};
use loadmaster_client::leader_election::{
    LeaderElectionOptions, LeaderElectionTiming, LeaderElector, start_leader_election,
};
use loadmaster_client::{ApiClients, Cluster};
use loadmaster_controllers::{driver, manager};
use loadmaster_daemon::run::hostname;
use tokio::sync::watch;

use crate::cluster_client::{ClusterArgs, failed};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal;
pub(crate) use beside_scheduler::service;
pub(crate) use endpoints::LEASE_NAME;
use endpoints::{ControllerState, ListenAddress};

/// The user agent of all requests to the API server.
const USER_AGENT: &str = concat!("loadmaster/", env!("CARGO_PKG_VERSION"), " controllers");

/// The namespace of the Lease.
pub(crate) const LEASE_NAMESPACE: &str = "kube-system";

/// The times of scheduler-plugins' program.
const LEASE_TIMING: LeaderElectionTiming = LeaderElectionTiming {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// Run the controllers of scheduler-plugins: write the status of PodGroups and ElasticQuotas.
///
/// The scheduler does not need them. They wait until the definitions of these kinds are installed (`loadmaster crds`). `/metrics` is served on
/// --metricsAddr, `/healthz` and `/readyz` on --probeAddr. Stop with Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster controllers --kubeconfig test.kubeconfig
  loadmaster controllers --enableLeaderElection --workers 4")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The address of `/metrics`; 0 for none.
    #[arg(long = "metricsAddr", value_name = "ADDRESS", default_value = ":8080", value_parser = ListenAddress::parse)]
    metrics_addr: ListenAddress,
    /// The address of `/healthz` and `/readyz`; 0 for none.
    #[arg(long = "probeAddr", value_name = "ADDRESS", default_value = ":8081", value_parser = ListenAddress::parse)]
    probe_addr: ListenAddress,
    /// The maximum number of requests per second; negative for no limit.
    #[arg(long, value_name = "N", default_value_t = 5, allow_negative_numbers = true)]
    qps: i32,
    /// How many requests may exceed --qps for a short time.
    #[arg(long, value_name = "N", default_value_t = 10)]
    burst: i32,
    /// The maximum number of concurrent requests of each controller.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Run the controllers only while holding the Lease kube-system/sched-plugins-controllers, so that there may be several replicas.
    #[arg(long = "enableLeaderElection", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    enable_leader_election: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> CommandResult<Exit> {
    args.cluster.run(USER_AGENT, async |cluster| {
        let (stats, stats_receiver) = watch::channel(Default::default());
        let elector = args.enable_leader_election.then(|| start_election(&cluster));
        let leadership = elector.as_ref().map(LeaderElector::status);
        let state = ControllerState { stats: stats_receiver, leadership };
        for (address, serve) in [
            (&args.metrics_addr, endpoints::metrics as endpoints::Handler),
            (&args.probe_addr, endpoints::probe),
        ] {
            let served = endpoints::serve(address, state.clone(), serve).await;
            served.map_err(|error| failed(&format!("listening on {address}"), &error))?;
        }
        writeln!(out, "controllers for {}", cluster.server())?;
        out.flush()?;
        run_while_leading(args, &cluster, elector, stats).await
    })
}

fn start_election(cluster: &Cluster) -> LeaderElector {
    let options = LeaderElectionOptions {
        namespace: LEASE_NAMESPACE.to_owned(),
        name: LEASE_NAME.to_owned(),
        identity: LeaderElectionOptions::identity(&hostname()),
        timing: LEASE_TIMING,
    };
    start_leader_election(&ApiClients::new(cluster).lease, options)
}

/// Runs the controllers until the process is stopped. With leader election: while this replica leads.
async fn run_while_leading(
    args: &Args,
    cluster: &Cluster,
    elector: Option<LeaderElector>,
    stats: watch::Sender<loadmaster_controllers::runner::RunnerStats>,
) -> CommandResult<Exit> {
    let mut status = elector.as_ref().map(LeaderElector::status);
    let mut stop = std::pin::pin!(terminal::stop_signal());
    if let Some(status) = &mut status {
        tokio::select! {
            () = &mut stop => return Ok(Exit::Done),
            _ = status.wait_for(|status| status.is_leading || status.has_stopped) => {}
        }
    }
    let controllers = manager::scheduler_plugins_controllers();
    let options = driver::DriverOptions {
        n_calls_max: usize::from(args.workers) * controllers.len(),
        rate_limit: TokenBucket::new(args.qps as f32, args.burst),
        seed: random_seed(),
        stats: Some(stats),
    };
    let mut is_lost = false;
    let ended = async {
        let Some(status) = &mut status else { return stop.await };
        tokio::select! {
            () = &mut stop => {}
            _ = status.wait_for(|status| !status.is_leading) => is_lost = true,
        }
    };
    driver::run_controllers(cluster, controllers, options, ended).await;
    if is_lost {
        return Err(Failure::invalid_input("leader election lost"));
    }
    if let Some(elector) = elector {
        elector.release().await;
    }
    Ok(Exit::Done)
}
