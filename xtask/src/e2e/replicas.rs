//! `cargo xtask e2e replicas`: runs two schedulers with leader election, and repeatedly terminates the leader under load.
//!
//! Every process has its own user, so that the audit log shows who led and who bound which pod.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use jiff::Timestamp;

use super::api_client::ApiClient;
use super::audit::{self, AuditEntry, LeaderTerm};
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::Workload;
use super::{load_objects, outcome_checks, scheduler_role_bindings};

const NAMESPACE: &str = "e2e";
/// The default lease of schedulers.
const LEASE: &str = "kube-scheduler";
/// The group of all replicas, to which roles are bound.
const GROUP: &str = "e2e:schedulers";
/// Longer than the lease duration plus two attempts to acquire it.
const LEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The shutdown timeout of a terminated scheduler.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time from the signal until another replica leads. A lease that is not renewed expires after 15 seconds.
const SECONDS_MAX_AFTER_TERM: f64 = 3.0;
const SECONDS_MAX_AFTER_KILL: f64 = 20.0;

/// Terminate the leader of two schedulers under load, repeatedly.
#[derive(Parser)]
pub struct Args {
    /// Number of rounds, alternately with SIGKILL and SIGTERM.
    #[arg(long, default_value_t = 4)]
    times: u32,
    /// The kind of pods.
    #[arg(long, default_value = "mixed")]
    workload: Workload,
    /// Number of nodes.
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// Number of pods per round.
    #[arg(long, default_value_t = 500)]
    pods: u32,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// The signal that ends a leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndSignal {
    Kill,
    Terminate,
}

/// The end of one leader.
struct Ending {
    how: EndSignal,
    at: Timestamp,
    /// The users of the leader and of the standby.
    leader: String,
    standby: String,
    /// The number of pods of this round that were already bound.
    n_bound: usize,
}

/// Returns whether no pod was lost or bound twice, and all handovers were in time.
pub async fn run(args: &Args) -> Result<bool> {
    ensure!(args.times > 0 && args.pods > 2, "at least one round, and three pods per round");
    args.workload.check_size(args.nodes, args.pods * args.times)?;
    let mut good = true;
    for kind in args.chosen.kinds()? {
        good &= run_one(args, kind).await.with_context(|| kind.name())?;
    }
    Ok(good)
}

/// A scheduler process with its own user.
struct Replica {
    user: String,
    scheduler: Scheduler,
}

async fn run_one(args: &Args, kind: SchedulerKind) -> Result<bool> {
    let identities = (0..args.times + 2).map(identity).collect();
    let audit_policy = Some(audit::policy_for_bindings_and_leases());
    let options =
        ControlPlaneOptions { identities, audit_policy, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(&options).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    scheduler_role_bindings::bind_scheduler_roles(&api, &scheduler_role_bindings::group(GROUP))
        .await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    load_objects::nodes(&api, args.nodes).await?;
    let mut leader = start(args, kind, &plane, 0)?;
    wait_for_leader(&api, &mut leader).await?;
    let mut standby = start(args, kind, &plane, 1)?;
    standby.scheduler.wait_until_ready().await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let mut endings = Vec::new();
    for round in 0..args.times {
        endings.push(end_leader_under_load(args, &api, &mut bound, round, leader, &standby).await?);
        leader = standby;
        standby = start(args, kind, &plane, round + 2)?;
        standby.scheduler.wait_until_ready().await?;
    }
    drop((leader, standby));
    let good = report(args, kind, &api, &plane, &endings).await?;
    if good {
        plane.finish();
    }
    Ok(good)
}

fn identity(n: u32) -> UserIdentity {
    UserIdentity::new(&format!("replica-{n}"), &[GROUP])
}

fn start(args: &Args, kind: SchedulerKind, plane: &ControlPlane, n: u32) -> Result<Replica> {
    let UserIdentity { user, .. } = identity(n);
    let kubeconfig = plane.kubeconfig(&identity(n));
    let setup = SchedulerSetup {
        leader_elect: true,
        ..SchedulerSetup::new(&user, plane.folder(), &kubeconfig)
    };
    let scheduler = args.chosen.start(kind, &setup)?;
    Ok(Replica { user, scheduler })
}

/// Waits until the first replica holds the lease, so that the leader is known.
async fn wait_for_leader(api: &ApiClient, first: &mut Replica) -> Result<()> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 0..LEAD_TIMEOUT.as_millis() / PAUSE.as_millis() {
        first.scheduler.process.check_running()?;
        let leases = api.get_json(path).await?;
        let held = leases["items"].as_array().is_some_and(|leases| {
            leases.iter().any(|lease| {
                let holder = lease["spec"]["holderIdentity"].as_str();
                lease["metadata"]["name"] == LEASE
                    && holder.is_some_and(|holder| !holder.is_empty())
            })
        });
        if held {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("no replica acquired the lease {LEASE} within {} s", LEAD_TIMEOUT.as_secs())
}

/// Creates pods, ends the leader when a third of them is bound, and waits until all are bound.
async fn end_leader_under_load(
    args: &Args,
    api: &ApiClient,
    bound: &mut BoundPods,
    round: u32,
    mut leader: Replica,
    standby: &Replica,
) -> Result<Ending> {
    let before = args.pods * round;
    let (loader, workload, which) = (api.clone(), args.workload, before..before + args.pods);
    let loading =
        tokio::spawn(async move { load_objects::pods(&loader, NAMESPACE, workload, which).await });
    if !bound.wait_for((before + args.pods / 3) as usize, LEAD_TIMEOUT).await? {
        bail!("{} bound no pod for {} s", leader.user, LEAD_TIMEOUT.as_secs());
    }
    let how = if round.is_multiple_of(2) { EndSignal::Kill } else { EndSignal::Terminate };
    let n_bound = bound.bound_at().len() - before as usize;
    let at = Timestamp::now();
    match how {
        EndSignal::Kill => leader.scheduler.process.kill()?,
        EndSignal::Terminate => {
            leader.scheduler.process.terminate()?;
            let status = leader.scheduler.process.wait(EXIT_TIMEOUT).await?;
            ensure!(status.success(), "{} exited with {status} after SIGTERM", leader.user);
        }
    }
    loading.await.context("the task that creates pods panicked")??;
    if !bound.wait_for((before + args.pods) as usize, LEAD_TIMEOUT).await? {
        bail!(
            "{} bound no pod for {} s after it should have taken over",
            standby.user,
            LEAD_TIMEOUT.as_secs()
        );
    }
    Ok(Ending { how, at, leader: leader.user, standby: standby.user.clone(), n_bound })
}

async fn report(
    args: &Args,
    kind: SchedulerKind,
    api: &ApiClient,
    plane: &ControlPlane,
    endings: &[Ending],
) -> Result<bool> {
    let entries = audit::read(plane.audit_log())?;
    let terms = audit::leader_terms(&entries, LEASE);
    let pods = outcome_checks::pods(api, NAMESPACE).await?;
    let mut faults = outcome_checks::check_placements(api, &pods, args.pods * args.times).await?;
    let bound = pods.iter().map(|pod| (pod.uid.as_str(), !pod.node.is_empty()));
    faults.extend(audit::binding_faults(&entries, &terms, bound));
    println!(
        "{}: {} nodes, {} hand-overs, {} pods each",
        kind.name(),
        args.nodes,
        args.times,
        args.pods
    );
    println!("| leader | ended by | pods bound | s to the next leader | s to its first binding |");
    println!("| --- | --- | --- | --- | --- |");
    for ending in endings {
        let handover = Handover::of(ending, &terms, &entries);
        println!(
            "| {} | {:?} | {} of {} | {} | {} |",
            ending.leader,
            ending.how,
            ending.n_bound,
            args.pods,
            seconds(handover.to_lead),
            seconds(handover.to_bind),
        );
        faults.extend(handover.fault(ending, kind));
    }
    let mut n_by_code: BTreeMap<u16, u32> = BTreeMap::new();
    for binding in audit::bindings(&entries) {
        *n_by_code.entry(binding.code).or_default() += 1;
    }
    println!("binding requests by status: {n_by_code:?}");
    for fault in &faults {
        println!("{}: {fault}", kind.name());
    }
    if faults.is_empty() {
        println!("{}: no pod lost, none bound twice", kind.name());
    }
    Ok(faults.is_empty())
}

fn seconds(value: Option<f64>) -> String {
    value.map_or("never".to_owned(), |value| format!("{value:.2}"))
}

/// The duration of a handover, in seconds.
#[derive(Debug, PartialEq)]
struct Handover {
    to_lead: Option<f64>,
    to_bind: Option<f64>,
}

impl Handover {
    fn of(ending: &Ending, terms: &[LeaderTerm], entries: &[AuditEntry]) -> Handover {
        let since = |time: Timestamp| time.duration_since(ending.at).as_secs_f64();
        let term = terms.iter().find(|term| term.user == ending.standby);
        let is_its = |entry: &&AuditEntry| entry.user == ending.standby && entry.code == 201;
        let first = audit::bindings(entries).find(is_its);
        Handover {
            to_lead: term.map(|term| since(term.from)),
            to_bind: first.map(|entry| since(entry.answered)),
        }
    }

    /// kube-scheduler has no limit: its standby reads the lease every 2 to 4.4 seconds, and waits 15 seconds after the last renewal that
    /// it has observed.
    fn fault(&self, ending: &Ending, kind: SchedulerKind) -> Option<String> {
        let most = match ending.how {
            EndSignal::Kill => SECONDS_MAX_AFTER_KILL,
            EndSignal::Terminate => SECONDS_MAX_AFTER_TERM,
        };
        match self.to_lead {
            None => Some(format!("{} never led", ending.standby)),
            Some(took) if took < 0.0 => {
                Some(format!("{} led before {} ended", ending.standby, ending.leader))
            }
            Some(took) if took > most && kind == SchedulerKind::Loadmaster => {
                let how = ending.how;
                Some(format!(
                    "{} led {took:.2} s after {how:?}, {most} are allowed",
                    ending.standby
                ))
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_handovers_are_faults() {
        let check_of = |kind, how, to_lead, want: Option<&str>| {
            let at = Timestamp::from_second(0).unwrap();
            let (leader, standby) = ("a".to_owned(), "b".to_owned());
            let ending = Ending { how, at, leader, standby, n_bound: 1 };
            let handover = Handover { to_lead, to_bind: to_lead };
            assert_eq!(handover.fault(&ending, kind).as_deref(), want, "{how:?} {to_lead:?}");
        };
        let check = |how, to_lead, want| check_of(SchedulerKind::Loadmaster, how, to_lead, want);
        check(EndSignal::Kill, Some(19.9), None);
        check(EndSignal::Kill, Some(20.1), Some("b led 20.10 s after Kill, 20 are allowed"));
        check(EndSignal::Terminate, Some(2.9), None);
        check(EndSignal::Terminate, Some(3.1), Some("b led 3.10 s after Terminate, 3 are allowed"));
        check(EndSignal::Terminate, Some(-0.1), Some("b led before a ended"));
        check(EndSignal::Kill, None, Some("b never led"));
        check_of(SchedulerKind::KubeScheduler, EndSignal::Kill, Some(23.0), None);
        check_of(SchedulerKind::KubeScheduler, EndSignal::Kill, None, Some("b never led"));
    }
}
