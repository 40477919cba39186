//! `cargo xtask e2e beside`: kube-scheduler and Loadmaster on one cluster, each with pods of its own, for the same nodes.
//!
//! There is hardly more room than pods, so that both want the last places of a node at the same time. Nobody can rule out that both
//! get them: each knows of the other's bindings only when a watch says so. What can be ruled out is that Loadmaster binds a pod where
//! it does not fit by what it knew: its recording is replayed, and every plugin asked about every
//! node before each of its bindings. And what it counts as lost races must be what is seen from outside.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;

use super::api::Api;
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::load;
use super::scheduler::{Chosen, Kind, Scheduler, Setup};
use super::special::PATIENCE;
use super::workload::{N_PODS_MAX_PER_NODE, Workload};

const NAMESPACE: &str = "e2e";
/// The schedulerName of Loadmaster's pods; kube-scheduler has the default one.
const OURS: &str = "loadmaster";
const THEIRS: &str = "default-scheduler";

/// Two schedulers, each with its own pods, for the same nodes.
#[derive(Parser)]
pub struct Args {
    /// Pods of each scheduler.
    #[arg(long, default_value_t = 5_000)]
    pods: u32,
    /// How many nodes; by default a few more than the pods need.
    #[arg(long)]
    nodes: Option<u32>,
    #[command(flatten)]
    chosen: Chosen,
}

/// Answers whether all pods are bound and none of ours where it did not fit by what was known, and whether races were counted.
pub async fn run(args: &Args) -> Result<bool> {
    let n_all = 2 * args.pods;
    let n_nodes = args.nodes.unwrap_or(n_all / N_PODS_MAX_PER_NODE + n_all / 2_000 + 2);
    Workload::Basic.check_size(n_nodes, n_all)?;
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    load::fill(&api, NAMESPACE, n_nodes, Workload::Basic, 0).await?;
    load::pods_for(&api, NAMESPACE, Workload::Basic, n_all, [THEIRS, OURS]).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let recording = plane.folder().join("loadmaster.recording");
    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let setup = |kind: Kind, scheduler_name| Setup {
        scheduler_name,
        ..Setup::new(kind.name(), plane.folder(), &kubeconfig)
    };
    let record = [format!("--record={}", recording.display())];
    // Its first bindings take longest to come.
    let mut theirs = args.chosen.start(Kind::KubeScheduler, &setup(Kind::KubeScheduler, THEIRS))?;
    theirs.wait_until_ready().await?;
    let ours = setup(Kind::Loadmaster, OURS);
    let mut ours = args.chosen.start_with(Kind::Loadmaster, &ours, &record)?;
    let all = bound.until(n_all as usize, PATIENCE).await?;
    ensure!(all, "only {} of {n_all} pods were bound", bound.seen().len());
    let counted = Counted::read(&ours, &plane, n_all).await?;
    ours.process.check_running()?;
    ours.process.terminate()?;
    ours.process.wait(PATIENCE).await?;
    drop(theirs);
    let pods = api.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await?;
    let seen = Races::seen(&pods);
    println!(
        "{} pods are bound; {} places on {} nodes were given away by both schedulers, {} of them first by kube-scheduler; Loadmaster counted {counted}",
        pods.len(),
        seen.n_all,
        seen.n_nodes,
        seen.n_lost
    );
    let faults = seen.faults(counted);
    faults.iter().for_each(|fault| println!("{fault}"));
    let mut replay = Command::new(args.chosen.binary(Kind::Loadmaster)?);
    let status = replay.arg("replay").arg("--check").arg(&recording).status();
    let is_good = status.context("replaying what Loadmaster did")?.success() && faults.is_empty();
    if is_good {
        plane.finish();
    }
    Ok(is_good)
}

/// Lost races by Loadmaster's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    room: u32,
    /// Pods that somebody else bound; here each scheduler has its own.
    pods: u32,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lost races for room and {} for pods", self.room, self.pods)
    }
}

impl Counted {
    /// From `/metrics`, once all pods are known there to be bound.
    async fn read(scheduler: &Scheduler, plane: &ControlPlane, n_pods: u32) -> Result<Counted> {
        const PAUSE: Duration = Duration::from_millis(200);
        let api = Api::unverified(&scheduler.url(), Some(&plane.admin_token()?))?;
        for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
            let text = api.get("/metrics").await?;
            let text = String::from_utf8_lossy(&text);
            let value = |name| sum(&text, name);
            if value(r#"scheduler_cache_size{type="pods"}"#) == n_pods
                && value(r#"scheduler_cache_size{type="assumed_pods"}"#) == 0
            {
                return Ok(Counted::of(&text));
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("Loadmaster does not know of all {n_pods} bindings")
    }

    fn of(metrics: &str) -> Counted {
        let lost = |kind| sum(metrics, &format!(r#"loadmaster_lost_races_total{{kind="{kind}""#));
        Counted { room: lost("room"), pods: lost("pod") + lost("bind") }
    }
}

/// The sum of the samples that begin like this.
fn sum(metrics: &str, begin: &str) -> u32 {
    let lines = metrics.lines().filter(|line| line.starts_with(begin));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u32
}

/// Races for room as anybody can see them in the end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Races {
    /// Pods that are too many for their nodes.
    n_all: u32,
    /// Those of them that are Loadmaster's: when they were bound, their node was full already.
    n_lost: u32,
    /// Nodes with such pods.
    n_nodes: usize,
}

impl Races {
    /// Nothing changes these pods after they are bound, so that their versions are in the order of their bindings.
    fn seen(pods: &[Value]) -> Races {
        let version = |pod: &Value| pod["metadata"]["resourceVersion"].as_str()?.parse().ok();
        let mut pods: Vec<&Value> = pods.iter().collect();
        pods.sort_by_key(|pod| version(pod).unwrap_or(0u64));
        let mut per_node: BTreeMap<&str, u32> = BTreeMap::new();
        let mut races = Races::default();
        for pod in pods {
            let n = per_node.entry(pod["spec"]["nodeName"].as_str().unwrap_or_default());
            let n = n.or_default();
            *n += 1;
            if *n > N_PODS_MAX_PER_NODE {
                races.n_all += 1;
                races.n_lost += u32::from(pod["spec"]["schedulerName"] == OURS);
            }
        }
        races.n_nodes = per_node.values().filter(|n| **n > N_PODS_MAX_PER_NODE).count();
        races
    }

    /// A pod of ours that found its node full had lost its room to one that we heard of while it was on its way; and each pod of
    /// theirs that we count made its node fuller than full. What is between the two numbers hangs on the order of bindings that
    /// were under way together.
    fn faults(&self, counted: Counted) -> Vec<String> {
        let mut faults = Vec::new();
        if !(self.n_lost..=self.n_all).contains(&counted.room) {
            faults.push(format!(
                "Loadmaster counted {} lost races for room, not {} to {}",
                counted.room, self.n_lost, self.n_all
            ));
        }
        if counted.pods > 0 {
            faults.push(format!("Loadmaster counted {} pods that others bound", counted.pods));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_has_too_many_was_given_away_twice() {
        let pod = |node: &str, scheduler: &str, version: usize| {
            json!({
                "metadata": {"resourceVersion": version.to_string()},
                "spec": {"nodeName": node, "schedulerName": scheduler},
            })
        };
        // So many of theirs first, then so many of ours, on each of two nodes.
        let check = |a: [usize; 2], b: [usize; 2], want: Races| {
            let mut pods = Vec::new();
            for (node, [theirs, ours]) in [("a", a), ("b", b)] {
                pods.extend((0..ours).map(|nth| pod(node, OURS, 1_000 + nth)));
                pods.extend((0..theirs).map(|nth| pod(node, THEIRS, 10 + nth)));
            }
            assert_eq!(Races::seen(&pods), want, "{a:?} and {b:?}");
        };
        check([0, 0], [110, 0], Races::default());
        check([110, 1], [55, 55], Races { n_all: 1, n_lost: 1, n_nodes: 1 });
        check([113, 2], [108, 5], Races { n_all: 8, n_lost: 5, n_nodes: 2 });
    }

    #[test]
    fn the_count_is_held_against_what_was_seen() {
        let seen = Races { n_all: 8, n_lost: 5, n_nodes: 2 };
        let check = |metrics: &str, n_faults: usize| {
            let counted = Counted::of(metrics);
            assert_eq!(seen.faults(counted).len(), n_faults, "{counted}");
        };
        let room = |n: u32| {
            format!("loadmaster_lost_races_total{{kind=\"room\",profile=\"loadmaster\"}} {n}\n")
        };
        check(&room(5), 0);
        check(&room(8), 0);
        check(&room(4), 1);
        check(&room(9), 1);
        check("", 1);
        let pods = r#"loadmaster_lost_races_total{kind="pod",profile="loadmaster"} 1"#;
        check(&(room(6) + pods), 1);
        check(&format!("{}{}", room(0), pods.replace("pod\"", "bind\"")), 2);
    }
}
