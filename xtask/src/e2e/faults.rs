//! `cargo xtask e2e faults`: connections of schedulers to the API server die, stop answering and become slow, and then the API server cannot
//! be reached for minutes. Before that, the leader's client certificate expires and is replaced, and a thousand connections to its secure port
//! are idle.
//!
//! Two replicas reach the API server through a proxy each. The leader must keep leading as long as it can reach the server; afterwards the
//! other replica must lead. No pod may be lost or bound twice, and each replica may list each kind once, at its start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::api_client::ApiClient;
use super::audit;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::fault_proxy::FaultProxy;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::Workload;
use super::{load_objects, outcome_checks, programs, scheduler_role_bindings, special_pods};

const NAMESPACE: &str = "e2e";
const LEASE: &str = "kube-scheduler";
/// The group of both replicas, to which roles are bound.
const GROUP: &str = "e2e:schedulers";
const N_NODES: u32 = 100;
/// Pods per step.
const N_PODS: u32 = 50;
/// How long a fault lasts that recurs or delays: three times the default renew deadline of leader election.
const FAULT: Duration = Duration::from_secs(30);
/// Connections are reset so often.
const RESET_PERIOD: Duration = Duration::from_secs(3);
/// The delay of a slow connection, in each direction.
const DELAY: Duration = Duration::from_millis(500);
/// A dead watch is noticed after 45 s; a lost lease is acquired after 15 s.
const BOUND_TIMEOUT: Duration = Duration::from_secs(120);

/// The certificates of the replicas are valid for this long, except the first one of the leader.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
const FIRST_LIFETIME: Duration = Duration::from_secs(45);
/// So long after a certificate has expired it is replaced: less than the renew deadline of leader election.
const EXPIRED: Duration = Duration::from_secs(5);

/// Idle connections to the secure port of the leader.
const N_IDLE: usize = 1_000;
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// An expired client certificate; idle connections to the secure port; dead, silent and slow ones to the API server; and an API server that cannot be reached.
#[derive(Parser)]
pub struct Args {
    /// How long the API server cannot be reached, in seconds.
    #[arg(long, default_value_t = 300)]
    outage: u64,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// A scheduler behind a proxy, with its own user.
struct Replica {
    user: String,
    scheduler: Scheduler,
    proxy: FaultProxy,
}

/// A control plane, its pods, and how many there are.
struct Bench {
    api: ApiClient,
    bound: BoundPods,
    n_pods: u32,
}

/// Returns whether all checks passed.
pub async fn run(args: &Args) -> Result<bool> {
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let plane = ControlPlane::start(&ControlPlaneOptions {
        identities: (0..2).map(identity).collect(),
        audit_policy: Some(audit::policy_for_bindings_leases_and_lists(GROUP)),
        ..ControlPlaneOptions::default()
    })
    .await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    let group = scheduler_role_bindings::group(GROUP);
    scheduler_role_bindings::bind_scheduler_roles(&api, &group).await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    load_objects::nodes(&api, N_NODES).await?;
    let schedulers = SchedulerArgs::only(loadmaster);
    let started = Instant::now();
    let mut leader = start(&schedulers, &plane, 0, FIRST_LIFETIME).await?;
    let bound = BoundPods::watch(&api, NAMESPACE).await?;
    let mut bench = Bench { api, bound, n_pods: 0 };
    // It leads when it binds.
    bench.check_binding("the leader").await?;
    let mut standby = start(&schedulers, &plane, 1, LIFETIME).await?;
    standby.scheduler.wait_until_ready().await?;
    let mut faults = Vec::new();
    sleep_until(started + FIRST_LIFETIME).await;
    expire_certificate(&mut bench, &plane, &mut leader).await?;
    open_idle_connections(&mut bench, &mut leader).await?;
    fail_connections(&mut bench, &mut leader).await?;
    let n_leaders = audit::leader_terms(&audit::read(plane.audit_log())?, LEASE).len();
    if n_leaders != 1 {
        faults.push(format!("{n_leaders} leaders although the first one could reach the server"));
    }
    fail_server(args, &mut bench, &mut leader, &mut standby).await?;
    let good = report(&bench, &plane, [leader, standby], faults).await?;
    if good {
        plane.finish();
    }
    Ok(good)
}

fn identity(n: u32) -> UserIdentity {
    UserIdentity::new(&format!("replica-{n}"), &[GROUP])
}

async fn start(
    schedulers: &SchedulerArgs,
    plane: &ControlPlane,
    n: u32,
    lifetime: Duration,
) -> Result<Replica> {
    let proxy = FaultProxy::start(plane).await?;
    let kubeconfig = plane.kubeconfig_for_certificate(&identity(n), lifetime)?;
    let kubeconfig = proxy.kubeconfig(plane, &kubeconfig)?;
    let UserIdentity { user, .. } = identity(n);
    let setup = SchedulerSetup {
        leader_elect: true,
        ..SchedulerSetup::new(&user, plane.folder(), &kubeconfig)
    };
    let scheduler = schedulers.start(SchedulerKind::Loadmaster, &setup)?;
    Ok(Replica { user, scheduler, proxy })
}

impl Bench {
    /// Creates more pods, which are not bound yet.
    async fn create_pods(&mut self) -> Result<()> {
        let which = self.n_pods..self.n_pods + N_PODS;
        self.n_pods += N_PODS;
        load_objects::pods(&self.api, NAMESPACE, Workload::Basic, which).await
    }

    async fn wait_until_bound(&mut self, during: &str) -> Result<()> {
        let is_bound = self.bound.wait_for(self.n_pods as usize, BOUND_TIMEOUT).await?;
        let n_bound = self.bound.bound_at().len();
        ensure!(is_bound, "{during}: only {n_bound} of {} pods are bound", self.n_pods);
        println!("{during}: all pods are bound");
        Ok(())
    }

    async fn check_binding(&mut self, during: &str) -> Result<()> {
        self.create_pods().await?;
        self.wait_until_bound(during).await
    }
}

/// The leader's client certificate has expired: the API server answers each of its requests with 401, on connections that it has, too. Then
/// the certificate is replaced.
async fn expire_certificate(
    bench: &mut Bench,
    plane: &ControlPlane,
    leader: &mut Replica,
) -> Result<()> {
    bench.create_pods().await?;
    tokio::time::sleep(EXPIRED).await;
    let n_bound = bench.bound.bound_at().len();
    ensure!(n_bound <= (bench.n_pods - N_PODS) as usize, "bound with an expired certificate");
    plane.kubeconfig_for_certificate(&identity(0), LIFETIME)?;
    bench.wait_until_bound("after a client certificate had expired").await?;
    leader.scheduler.process.check_running()
}

/// For a while, many connections to the secure port of the leader are idle: each liveness probe is answered, and it keeps leading.
async fn open_idle_connections(bench: &mut Bench, leader: &mut Replica) -> Result<()> {
    let mut idle = Vec::new();
    for _ in 0..N_IDLE {
        idle.push(TcpStream::connect(leader.scheduler.secure_address()).await?);
    }
    bench.create_pods().await?;
    for _ in 0..FAULT.as_secs() / PROBE_PERIOD.as_secs() {
        leader.scheduler.probe_liveness().await?;
        tokio::time::sleep(PROBE_PERIOD).await;
    }
    bench.wait_until_bound(&format!("{N_IDLE} idle connections to the secure port")).await?;
    leader.scheduler.process.check_running()
}

/// Connections of the leader fail in three ways; new ones work.
async fn fail_connections(bench: &mut Bench, leader: &mut Replica) -> Result<()> {
    bench.create_pods().await?;
    for _ in 0..FAULT.as_secs() / RESET_PERIOD.as_secs() {
        leader.proxy.reset_connections();
        tokio::time::sleep(RESET_PERIOD).await;
    }
    bench.wait_until_bound("connections that are reset").await?;
    leader.proxy.silence_connections();
    bench.check_binding("connections that are silent").await?;
    // All of them again, those of requests that have begun, too.
    bench.create_pods().await?;
    leader.proxy.silence_connections();
    bench.wait_until_bound("connections that are silent under load").await?;
    leader.proxy.delay(DELAY);
    bench.create_pods().await?;
    tokio::time::sleep(FAULT).await;
    bench.wait_until_bound("slow connections").await?;
    leader.proxy.delay(Duration::ZERO);
    println!("{} connections of the leader", leader.proxy.n_connections());
    leader.scheduler.process.check_running()
}

/// Nobody reaches the server for a while. The leader exits, as kube-scheduler does, and the other replica leads afterwards.
async fn fail_server(
    args: &Args,
    bench: &mut Bench,
    leader: &mut Replica,
    standby: &mut Replica,
) -> Result<()> {
    for replica in [&*leader, &*standby] {
        replica.proxy.set_down(true);
    }
    bench.create_pods().await?;
    let status = leader.scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
    ensure!(!status.success(), "the leader exited with {status} although it lost its lease");
    tokio::time::sleep(Duration::from_secs(args.outage)).await;
    standby.scheduler.process.check_running()?;
    for replica in [&*leader, &*standby] {
        replica.proxy.set_down(false);
    }
    bench.wait_until_bound(&format!("after {} s without the server", args.outage)).await?;
    bench.check_binding("the next leader").await
}

async fn report(
    bench: &Bench,
    plane: &ControlPlane,
    replicas: [Replica; 2],
    mut faults: Vec<String>,
) -> Result<bool> {
    let users = replicas.each_ref().map(|replica| replica.user.clone());
    // Ends its watches, so that they are in the audit log.
    drop(replicas);
    let entries = audit::read(plane.audit_log())?;
    let terms = audit::leader_terms(&entries, LEASE);
    let leaders: Vec<&str> = terms.iter().map(|term| term.user.as_str()).collect();
    if leaders != users {
        faults.push(format!("the leaders were {leaders:?}"));
    }
    let pods = outcome_checks::pods(&bench.api, NAMESPACE).await?;
    faults.extend(outcome_checks::check_placements(&bench.api, &pods, bench.n_pods).await?);
    let bound = pods.iter().map(|pod| (pod.uid.as_str(), !pod.node.is_empty()));
    faults.extend(audit::binding_faults(&entries, &terms, bound));
    let lists = audit::n_lists(plane.audit_log())?;
    faults.extend(list_faults(&lists, &users));
    println!("{} pods, {} kinds listed, leaders {leaders:?}", bench.n_pods, lists.len() / 2);
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() {
        println!("no pod lost, none bound twice, leadership handed over once, no relist");
    }
    Ok(faults.is_empty())
}

/// Each user lists pods and nodes, and everything that it lists once.
fn list_faults(lists: &BTreeMap<(String, String), u32>, users: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for user in users {
        for resource in ["pods", "nodes"] {
            if !lists.contains_key(&(user.clone(), resource.to_owned())) {
                faults.push(format!("{user} never listed {resource}"));
            }
        }
    }
    let repeated = lists.iter().filter(|(_, n)| **n > 1);
    faults.extend(
        repeated.map(|((user, resource), n)| format!("{user} listed {resource} {n} times")),
    );
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relists_are_faults() {
        let check = |lists: &[(&str, u32)], want: &[&str]| {
            let key = |resource: &str| ("a".to_owned(), resource.to_owned());
            let lists = lists.iter().map(|(resource, n)| (key(resource), *n)).collect();
            assert_eq!(list_faults(&lists, &["a".to_owned()]), want);
        };
        check(&[("nodes", 1), ("pods", 1), ("services", 1)], &[]);
        check(&[("nodes", 2), ("pods", 1)], &["a listed nodes 2 times"]);
        check(&[("nodes", 1)], &["a never listed pods"]);
    }
}
