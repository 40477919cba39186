//! `cargo xtask e2e beside`: kube-scheduler and Loadmaster on one cluster, each with pods of its own, for the same nodes.
//!
//! There is hardly more room than pods, so that both want the last places of a node at the same time. Nobody can rule out that both
//! get them: each knows of the other's bindings only when a watch says so. What can be ruled out is that Loadmaster binds a pod where
//! it does not fit by what it knew: its recording is replayed, and every plugin asked about every
//! node before each of its bindings.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::Value;

use super::api::Api;
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::load;
use super::scheduler::{Chosen, Kind, Setup};
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

/// Answers whether all pods are bound and none of ours where it did not fit by what was known.
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
    ours.process.check_running()?;
    ours.process.terminate()?;
    ours.process.wait(PATIENCE).await?;
    drop(theirs);
    ensure!(all, "only {} of {n_all} pods were bound", bound.seen().len());
    let pods = api.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await?;
    print_races(&pods);
    let mut replay = Command::new(args.chosen.binary(Kind::Loadmaster)?);
    let status = replay.arg("replay").arg("--check").arg(&recording).status();
    let is_good = status.context("replaying what Loadmaster did")?.success();
    if is_good {
        plane.finish();
    }
    Ok(is_good)
}

/// Nodes with more pods than they take: places that both schedulers gave away.
fn print_races(pods: &[Value]) {
    let races = races(pods);
    let n_lost: u32 = races.values().sum();
    println!(
        "{} pods are bound; {n_lost} places on {} nodes were given away by both schedulers",
        pods.len(),
        races.len()
    );
}

/// By node, how many pods it has too many.
fn races(pods: &[Value]) -> BTreeMap<&str, u32> {
    let mut per_node: BTreeMap<&str, u32> = BTreeMap::new();
    for pod in pods {
        *per_node.entry(pod["spec"]["nodeName"].as_str().unwrap_or_default()).or_default() += 1;
    }
    per_node.retain(|_, n| *n > N_PODS_MAX_PER_NODE);
    per_node.values_mut().for_each(|n| *n -= N_PODS_MAX_PER_NODE);
    per_node
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_has_too_many_was_given_away_twice() {
        let pods = |node: &str, n: u32| {
            let pod = json!({"spec": {"nodeName": node}});
            (0..n).map(|_| pod.clone()).collect::<Vec<_>>()
        };
        let check = |a: u32, b: u32, want: &[(&str, u32)]| {
            let pods = [pods("a", a), pods("b", b)].concat();
            assert_eq!(races(&pods), want.iter().copied().collect(), "{a} and {b}");
        };
        check(0, 110, &[]);
        check(111, 110, &[("a", 1)]);
        check(115, 113, &[("a", 5), ("b", 3)]);
    }
}
