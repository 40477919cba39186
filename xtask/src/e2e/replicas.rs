//! `cargo xtask e2e replicas`: two schedulers with leader election, and the leader is ended in mid-load, again and again.
//!
//! Every process is a user of its own, so that the audit log says who led and who bound what.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use jiff::Timestamp;

use super::api::Api;
use super::audit::{self, Entry, Term};
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::scheduler::{Chosen, Kind, Scheduler, Setup};
use super::workload::Workload;
use super::{grants, load, outcome};

const NAMESPACE: &str = "e2e";
/// The lease of all schedulers that are configured as upstream's.
const LEASE: &str = "kube-scheduler";
/// The group of all replicas; roles are bound to it.
const GROUP: &str = "e2e:schedulers";
/// Longer than a lease lasts, plus two attempts to take it.
const PATIENCE: Duration = Duration::from_secs(60);
/// A terminated scheduler may finish what it began.
const END: Duration = Duration::from_secs(30);
/// From the signal until another one leads: what the project promises. A lease that nobody renews lasts 15 seconds.
const SECONDS_MAX_AFTER_TERM: f64 = 3.0;
const SECONDS_MAX_AFTER_KILL: f64 = 20.0;

/// End the leading one of two schedulers in mid-load, again and again.
#[derive(Parser)]
pub struct Args {
    /// How often: kill -9 and SIGTERM in turns.
    #[arg(long, default_value_t = 4)]
    times: u32,
    /// Which pods.
    #[arg(long, default_value = "mixed")]
    workload: Workload,
    /// How many nodes.
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// How many pods come each time.
    #[arg(long, default_value_t = 500)]
    pods: u32,
    #[command(flatten)]
    chosen: Chosen,
}

/// How a leader ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Kill,
    Terminate,
}

/// One end of a leader.
struct Ending {
    how: How,
    at: Timestamp,
    /// Whose, and who is to follow.
    leader: String,
    standby: String,
    /// Pods of this load that were bound by then.
    n_bound: usize,
}

/// Answers whether no pod was lost or bound twice, and all hand-overs were in time.
pub async fn run(args: &Args) -> Result<bool> {
    ensure!(args.times > 0 && args.pods > 2, "at least one hand-over, and three pods for each");
    args.workload.check_size(args.nodes, args.pods * args.times)?;
    let mut good = true;
    for kind in args.chosen.kinds()? {
        good &= run_one(args, kind).await.with_context(|| kind.name())?;
    }
    Ok(good)
}

/// A process that is a user of its own.
struct Replica {
    user: String,
    scheduler: Scheduler,
}

async fn run_one(args: &Args, kind: Kind) -> Result<bool> {
    let identities = (0..args.times + 2).map(identity).collect();
    let audit_policy = Some(audit::policy_of_bindings_and_leases());
    let options = Options { identities, audit_policy, ..Options::default() };
    let plane = ControlPlane::start(&options).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    grants::scheduler_roles(&api, &grants::group(GROUP)).await?;
    load::namespace(&api, NAMESPACE).await?;
    load::nodes(&api, args.nodes).await?;
    let mut leader = start(args, kind, &plane, 0)?;
    wait_for_leader(&api, &mut leader).await?;
    let mut standby = start(args, kind, &plane, 1)?;
    standby.scheduler.wait_until_ready().await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let mut endings = Vec::new();
    for round in 0..args.times {
        endings.push(end_in_mid_load(args, &api, &mut bound, round, leader, &standby).await?);
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

fn identity(n: u32) -> Identity {
    Identity::new(&format!("replica-{n}"), &[GROUP])
}

fn start(args: &Args, kind: Kind, plane: &ControlPlane, n: u32) -> Result<Replica> {
    let Identity { user, .. } = identity(n);
    let kubeconfig = plane.kubeconfig(&identity(n));
    let setup = Setup { leader_elect: true, ..Setup::new(&user, plane.folder(), &kubeconfig) };
    let scheduler = args.chosen.start(kind, &setup)?;
    Ok(Replica { user, scheduler })
}

/// Until the first one has the lease, so that it is known who leads.
async fn wait_for_leader(api: &Api, first: &mut Replica) -> Result<()> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
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
    bail!("nobody took the lease {LEASE} within {} s", PATIENCE.as_secs())
}

/// Loads pods, ends the leader when a third is bound, and waits for all of them.
async fn end_in_mid_load(
    args: &Args,
    api: &Api,
    bound: &mut BoundPods,
    round: u32,
    mut leader: Replica,
    standby: &Replica,
) -> Result<Ending> {
    let before = args.pods * round;
    let (loader, workload, which) = (api.clone(), args.workload, before..before + args.pods);
    let loading =
        tokio::spawn(async move { load::pods(&loader, NAMESPACE, workload, which).await });
    if !bound.until((before + args.pods / 3) as usize, PATIENCE).await? {
        bail!("{} bound nothing for {} s", leader.user, PATIENCE.as_secs());
    }
    let how = if round.is_multiple_of(2) { How::Kill } else { How::Terminate };
    let n_bound = bound.seen().len() - before as usize;
    let at = Timestamp::now();
    match how {
        How::Kill => leader.scheduler.process.kill()?,
        How::Terminate => {
            leader.scheduler.process.terminate()?;
            let status = leader.scheduler.process.wait(END).await?;
            ensure!(status.success(), "{} ended with {status} after SIGTERM", leader.user);
        }
    }
    loading.await.context("the loader panicked")??;
    if !bound.until((before + args.pods) as usize, PATIENCE).await? {
        bail!(
            "{} bound nothing for {} s after it was to take over",
            standby.user,
            PATIENCE.as_secs()
        );
    }
    Ok(Ending { how, at, leader: leader.user, standby: standby.user.clone(), n_bound })
}

async fn report(
    args: &Args,
    kind: Kind,
    api: &Api,
    plane: &ControlPlane,
    endings: &[Ending],
) -> Result<bool> {
    let entries = audit::read(plane.audit_log())?;
    let terms = audit::terms(&entries, LEASE);
    let pods = outcome::pods(api, NAMESPACE).await?;
    let mut faults = outcome::placements(api, &pods, args.pods * args.times).await?;
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
    println!("binding requests by answer: {n_by_code:?}");
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

/// How long it took after an ending, in seconds.
#[derive(Debug, PartialEq)]
struct Handover {
    to_lead: Option<f64>,
    to_bind: Option<f64>,
}

impl Handover {
    fn of(ending: &Ending, terms: &[Term], entries: &[Entry]) -> Handover {
        let since = |time: Timestamp| time.duration_since(ending.at).as_secs_f64();
        let term = terms.iter().find(|term| term.user == ending.standby);
        let is_its = |entry: &&Entry| entry.user == ending.standby && entry.code == 201;
        let first = audit::bindings(entries).find(is_its);
        Handover {
            to_lead: term.map(|term| since(term.from)),
            to_bind: first.map(|entry| since(entry.answered)),
        }
    }

    /// kube-scheduler promises nothing: its standby looks every 2 to 4.4 seconds, and gives the lease 15 seconds from when it saw
    /// it renewed.
    fn fault(&self, ending: &Ending, kind: Kind) -> Option<String> {
        let most = match ending.how {
            How::Kill => SECONDS_MAX_AFTER_KILL,
            How::Terminate => SECONDS_MAX_AFTER_TERM,
        };
        match self.to_lead {
            None => Some(format!("{} never led", ending.standby)),
            Some(took) if took < 0.0 => {
                Some(format!("{} led before {} ended", ending.standby, ending.leader))
            }
            Some(took) if took > most && kind == Kind::Loadmaster => {
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
    fn handovers_have_their_limits() {
        let check_of = |kind, how, to_lead, want: Option<&str>| {
            let at = Timestamp::from_second(0).unwrap();
            let (leader, standby) = ("a".to_owned(), "b".to_owned());
            let ending = Ending { how, at, leader, standby, n_bound: 1 };
            let handover = Handover { to_lead, to_bind: to_lead };
            assert_eq!(handover.fault(&ending, kind).as_deref(), want, "{how:?} {to_lead:?}");
        };
        let check = |how, to_lead, want| check_of(Kind::Loadmaster, how, to_lead, want);
        check(How::Kill, Some(19.9), None);
        check(How::Kill, Some(20.1), Some("b led 20.10 s after Kill, 20 are allowed"));
        check(How::Terminate, Some(2.9), None);
        check(How::Terminate, Some(3.1), Some("b led 3.10 s after Terminate, 3 are allowed"));
        check(How::Terminate, Some(-0.1), Some("b led before a ended"));
        check(How::Kill, None, Some("b never led"));
        check_of(Kind::KubeScheduler, How::Kill, Some(23.0), None);
        check_of(Kind::KubeScheduler, How::Kill, None, Some("b never led"));
    }
}
