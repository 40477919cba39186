//! `cargo xtask e2e beside`: kube-scheduler and Loadmaster on one cluster, each with its own pods, on the same nodes.
//!
//! The nodes have hardly more capacity than the pods need, so that both schedulers use the last resources of a node at the same time. Both
//! can succeed, because each learns of the other's bindings only through its watch. But Loadmaster must never bind a pod to a node where
//! it did not fit according to its cache: its recording is replayed, and each decision is verified against a full scan of all plugins and
//! nodes. The conflicts that it counts must match the final state of the cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::load_objects;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::special_pods::STEP_TIMEOUT;
use super::workload::{N_PODS_MAX_PER_NODE, Workload};

const NAMESPACE: &str = "e2e";
/// The schedulerName of Loadmaster's pods; kube-scheduler has the default one.
const OURS: &str = "loadmaster";
const THEIRS: &str = "default-scheduler";

/// Run two schedulers on one cluster, each with its own pods, on the same nodes.
#[derive(Parser)]
pub struct Args {
    /// Pods of each scheduler.
    #[arg(long, default_value_t = 5_000)]
    pods: u32,
    /// Number of nodes; by default a few more than the pods need.
    #[arg(long)]
    nodes: Option<u32>,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// Returns whether all pods are bound, all decisions are verified, and the conflicts are reported correctly.
pub async fn run(args: &Args) -> Result<bool> {
    let n_all = 2 * args.pods;
    let n_nodes = args.nodes.unwrap_or(n_all / N_PODS_MAX_PER_NODE + n_all / 2_000 + 2);
    Workload::Basic.check_size(n_nodes, n_all)?;
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::fill(&api, NAMESPACE, n_nodes, Workload::Basic, 0).await?;
    load_objects::pods_for(&api, NAMESPACE, Workload::Basic, n_all, [THEIRS, OURS]).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let recording = plane.folder().join("loadmaster.recording");
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let setup = |kind: SchedulerKind, scheduler_name| SchedulerSetup {
        scheduler_name,
        ..SchedulerSetup::new(kind.name(), plane.folder(), &kubeconfig)
    };
    let record = [format!("--record={}", recording.display())];
    // kube-scheduler takes longer until its first bindings.
    let mut theirs = args
        .chosen
        .start(SchedulerKind::KubeScheduler, &setup(SchedulerKind::KubeScheduler, THEIRS))?;
    theirs.wait_until_ready().await?;
    let ours = setup(SchedulerKind::Loadmaster, OURS);
    let mut ours = args.chosen.start_with(SchedulerKind::Loadmaster, &ours, &record)?;
    let all = bound.wait_for(n_all as usize, STEP_TIMEOUT).await?;
    ensure!(all, "only {} of {n_all} pods were bound", bound.bound_at().len());
    let reported = ReportedConflicts::from_metrics(&ours, &plane, n_all).await?;
    ours.process.check_running()?;
    ours.process.terminate()?;
    ours.process.wait(STEP_TIMEOUT).await?;
    drop(theirs);
    let pods = api.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await?;
    let observed = ObservedConflicts::from_pods(&pods);
    println!(
        "{} pods are bound; {} pods exceed the capacity of {} nodes, {} of them are Loadmaster's; Loadmaster counted {reported}",
        pods.len(),
        observed.n_excess_pods,
        observed.n_nodes,
        observed.n_excess_loadmaster_pods
    );
    let faults = observed.faults(reported);
    faults.iter().for_each(|fault| println!("{fault}"));
    let mut replay = Command::new(args.chosen.binary(SchedulerKind::Loadmaster)?);
    let status = replay.arg("replay").arg("--check").arg(&recording).status();
    let is_good = status.context("replaying the recording")?.success() && faults.is_empty();
    if is_good {
        plane.finish();
    }
    Ok(is_good)
}

/// Conflicts reported by Loadmaster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReportedConflicts {
    resources: u32,
    /// Pods bound by another scheduler; not possible here, because each scheduler has its own pods.
    pods: u32,
}

impl fmt::Display for ReportedConflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} conflicts on resources and {} on pods", self.resources, self.pods)
    }
}

impl ReportedConflicts {
    /// Reads `/metrics`, after Loadmaster has observed all bindings.
    async fn from_metrics(
        scheduler: &Scheduler,
        plane: &ControlPlane,
        n_pods: u32,
    ) -> Result<ReportedConflicts> {
        const PAUSE: Duration = Duration::from_millis(200);
        let api = ApiClient::insecure(&scheduler.url(), Some(&plane.admin_token()?))?;
        for _ in 0..STEP_TIMEOUT.as_millis() / PAUSE.as_millis() {
            let text = api.get("/metrics").await?;
            let text = String::from_utf8_lossy(&text);
            let value = |name| sum(&text, name);
            if value(r#"scheduler_cache_size{type="pods"}"#) == n_pods
                && value(r#"scheduler_cache_size{type="assumed_pods"}"#) == 0
            {
                return Ok(ReportedConflicts::parse(&text));
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("Loadmaster has not observed all {n_pods} bindings")
    }

    fn parse(metrics: &str) -> ReportedConflicts {
        let conflicts =
            |kind| sum(metrics, &format!(r#"loadmaster_conflicts_total{{kind="{kind}""#));
        ReportedConflicts {
            resources: conflicts("resources"),
            pods: conflicts("pod") + conflicts("bind"),
        }
    }
}

/// The sum of the samples with this prefix.
fn sum(metrics: &str, begin: &str) -> u32 {
    let lines = metrics.lines().filter(|line| line.starts_with(begin));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u32
}

/// Conflicts on resources in the final state of the cluster.
#[derive(Debug, Default, PartialEq, Eq)]
struct ObservedConflicts {
    /// Pods that exceed the capacity of their nodes.
    n_excess_pods: u32,
    /// Those of Loadmaster: when they were bound, their node was already full.
    n_excess_loadmaster_pods: u32,
    /// Nodes with such pods.
    n_nodes: usize,
}

impl ObservedConflicts {
    /// The pods are not changed after their binding, so their resource versions are in the order of the bindings.
    fn from_pods(pods: &[Value]) -> ObservedConflicts {
        let version = |pod: &Value| pod["metadata"]["resourceVersion"].as_str()?.parse().ok();
        let mut pods: Vec<&Value> = pods.iter().collect();
        pods.sort_by_key(|pod| version(pod).unwrap_or(0u64));
        let mut per_node: BTreeMap<&str, u32> = BTreeMap::new();
        let mut conflicts = ObservedConflicts::default();
        for pod in pods {
            let n = per_node.entry(pod["spec"]["nodeName"].as_str().unwrap_or_default());
            let n = n.or_default();
            *n += 1;
            if *n > N_PODS_MAX_PER_NODE {
                conflicts.n_excess_pods += 1;
                conflicts.n_excess_loadmaster_pods +=
                    u32::from(pod["spec"]["schedulerName"] == OURS);
            }
        }
        conflicts.n_nodes = per_node.values().filter(|n| **n > N_PODS_MAX_PER_NODE).count();
        conflicts
    }

    /// Every pod of ours bound to a full node is a conflict that Loadmaster must count, and it cannot count more than the pods that
    /// exceed a node's capacity. The exact number depends on the order of concurrent bindings.
    fn faults(&self, reported: ReportedConflicts) -> Vec<String> {
        let mut faults = Vec::new();
        if !(self.n_excess_loadmaster_pods..=self.n_excess_pods).contains(&reported.resources) {
            faults.push(format!(
                "Loadmaster counted {} conflicts on resources, expected {} to {}",
                reported.resources, self.n_excess_loadmaster_pods, self.n_excess_pods
            ));
        }
        if reported.pods > 0 {
            faults.push(format!(
                "Loadmaster counted {} conflicts on pods, expected none",
                reported.pods
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_beyond_a_nodes_capacity_are_counted() {
        let pod = |node: &str, scheduler: &str, version: usize| {
            json!({
                "metadata": {"resourceVersion": version.to_string()},
                "spec": {"nodeName": node, "schedulerName": scheduler},
            })
        };
        // Numbers of their pods, bound first, and of our pods, on each of two nodes.
        let check = |a: [usize; 2], b: [usize; 2], want: ObservedConflicts| {
            let mut pods = Vec::new();
            for (node, [theirs, ours]) in [("a", a), ("b", b)] {
                pods.extend((0..ours).map(|nth| pod(node, OURS, 1_000 + nth)));
                pods.extend((0..theirs).map(|nth| pod(node, THEIRS, 10 + nth)));
            }
            assert_eq!(ObservedConflicts::from_pods(&pods), want, "{a:?} and {b:?}");
        };
        check([0, 0], [110, 0], ObservedConflicts::default());
        check(
            [110, 1],
            [55, 55],
            ObservedConflicts { n_excess_pods: 1, n_excess_loadmaster_pods: 1, n_nodes: 1 },
        );
        check(
            [113, 2],
            [108, 5],
            ObservedConflicts { n_excess_pods: 8, n_excess_loadmaster_pods: 5, n_nodes: 2 },
        );
    }

    #[test]
    fn reported_conflicts_are_compared_with_observed_ones() {
        let observed =
            ObservedConflicts { n_excess_pods: 8, n_excess_loadmaster_pods: 5, n_nodes: 2 };
        let check = |metrics: &str, n_faults: usize| {
            let reported = ReportedConflicts::parse(metrics);
            assert_eq!(observed.faults(reported).len(), n_faults, "{reported}");
        };
        let resources = |n: u32| {
            format!("loadmaster_conflicts_total{{kind=\"resources\",profile=\"loadmaster\"}} {n}\n")
        };
        check(&resources(5), 0);
        check(&resources(8), 0);
        check(&resources(4), 1);
        check(&resources(9), 1);
        check("", 1);
        let pods = r#"loadmaster_conflicts_total{kind="pod",profile="loadmaster"} 1"#;
        check(&(resources(6) + pods), 1);
        check(&format!("{}{}", resources(0), pods.replace("pod\"", "bind\"")), 2);
    }
}
