//! `cargo xtask e2e record`: records runs on a real control plane, and replays them.
//!
//! There are three runs on new control planes: one without a recording, to compare the cost; one that is terminated; one that is killed
//! under load. Both recordings must replay to the same decisions, and their bindings must match the final state of the cluster. In the
//! recording of the killed run the last second may be missing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;

use super::api_client::ApiClient;
use super::bound_pods::BoundPods;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::Workload;
use super::{load_objects, outcome_checks, special_pods};

const NAMESPACE: &str = "e2e";

/// Record runs, replay them, and compare the bindings with the final state of the cluster.
#[derive(Parser)]
pub struct Args {
    /// The kind of pods.
    #[arg(default_value = "mixed")]
    workload: Workload,
    /// Number of nodes.
    #[arg(default_value_t = 500)]
    nodes: u32,
    /// Number of pods.
    #[arg(default_value_t = 1000)]
    pods: u32,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunEnd {
    /// Terminated, without a recording.
    Unrecorded,
    Terminated,
    Killed,
}

/// Returns whether both recordings were replayed without faults.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    ensure!(
        args.chosen.kinds()?.contains(&SchedulerKind::Loadmaster),
        "only Loadmaster can record a run"
    );
    println!("record {:?}: {} nodes, {} pods", args.workload, args.nodes, args.pods);
    println!(
        "| run | bytes per pod | CPU ms per pod | binds | decisions/s of the replay | faults |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut good = true;
    for end in [RunEnd::Unrecorded, RunEnd::Terminated, RunEnd::Killed] {
        good &= run_one(args, end).await.with_context(|| format!("the run that is {end:?}"))?;
    }
    Ok(good)
}

async fn run_one(args: &Args, end: RunEnd) -> Result<bool> {
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::fill(&api, NAMESPACE, args.nodes, args.workload, args.pods).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let name = SchedulerKind::Loadmaster.name();
    let setup = SchedulerSetup::new(name, plane.folder(), &kubeconfig);
    let file = plane.folder().join("recording");
    let flags = match end {
        RunEnd::Unrecorded => Vec::new(),
        RunEnd::Terminated | RunEnd::Killed => vec![format!("--record={}", file.display())],
    };
    let mut scheduler = args.chosen.start_with(SchedulerKind::Loadmaster, &setup, &flags)?;
    let n = match end {
        RunEnd::Killed => args.pods as usize / 2,
        RunEnd::Unrecorded | RunEnd::Terminated => args.pods as usize,
    };
    let all = bound.wait_for(n, special_pods::STEP_TIMEOUT).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {n} pods were bound", bound.bound_at().len());
    let usage = scheduler.process.usage()?;
    let cpu_ms = usage.cpu_seconds * 1e3 / bound.bound_at().len().max(1) as f64;
    if end == RunEnd::Killed {
        scheduler.process.kill()?;
    } else {
        scheduler.process.terminate()?;
        let status = scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
        ensure!(status.success(), "the exit status after SIGTERM is {status}");
    }
    if end == RunEnd::Unrecorded {
        println!("| {end:?} | | {cpu_ms:.3} | | | |");
        plane.finish();
        return Ok(true);
    }
    let report = replay(&args.chosen.binary(SchedulerKind::Loadmaster)?, &file)?;
    let pods = outcome_checks::pods(&api, NAMESPACE).await?;
    let nodes = pods.into_iter().filter(|pod| !pod.node.is_empty());
    let nodes: BTreeMap<String, String> = nodes.map(|pod| (pod.uid, pod.node)).collect();
    let faults = faults(end, &report, &nodes);
    let n_bytes = std::fs::metadata(&file).context("reading the size of the recording")?.len();
    println!(
        "| {end:?} | {} | {cpu_ms:.3} | {} | {:.0} | {} |",
        n_bytes / nodes.len().max(1) as u64,
        report["binds"],
        report["schedulingAttempts"].as_f64().unwrap_or(0.0)
            / report["replaySeconds"].as_f64().unwrap_or(f64::NAN),
        faults.len(),
    );
    faults.iter().for_each(|fault| println!("{end:?}: {fault}"));
    if faults.is_empty() {
        plane.finish();
    }
    Ok(faults.is_empty())
}

fn replay(binary: &Path, file: &Path) -> Result<Value> {
    let mut command = Command::new(binary);
    let output = command.arg("replay").arg(file).args(["-o", "json", "--decisions"]).output();
    let Output { status, stdout, stderr } = output.context("starting the replay")?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("the replay ended with {status}: {}", String::from_utf8_lossy(&stderr));
    }
    serde_json::from_slice(&stdout).context("reading the report of the replay")
}

/// The faults of a replay, given the nodes of all bound pods by uid.
fn faults(end: RunEnd, report: &Value, nodes: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    if report["isIdentical"] != true {
        faults.push(format!("the replay differs: {}", report["difference"]));
    }
    let is_whole = report["isComplete"] == true;
    if is_whole != (end == RunEnd::Terminated) {
        faults.push(format!("unexpected end of the recording: {}", report["endReason"]));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let decisions = report["decisions"].as_array().into_iter().flatten();
    // A rejected binding is followed by another one.
    let binds: BTreeMap<String, String> =
        decisions.map(|it| (text(&it["uid"]), text(&it["node"]))).collect();
    if binds.is_empty() {
        faults.push("the recording has no bindings".to_owned());
    }
    for (uid, node) in &binds {
        match nodes.get(uid) {
            Some(found) if found != node => {
                faults.push(format!("{uid} was bound to {node}, but is on {found}"));
            }
            // The scheduler was killed during the binding request.
            None if end == RunEnd::Terminated => {
                faults.push(format!("{uid} was bound to {node}, but is pending"));
            }
            _ => {}
        }
    }
    for (uid, node) in nodes.iter().filter(|(uid, _)| !binds.contains_key(*uid)) {
        if end == RunEnd::Terminated {
            faults.push(format!("{uid} is on {node}, which is not in the recording"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replay_faults_are_reported() {
        let nodes = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(uid, node)| ((*uid).to_owned(), (*node).to_owned())).collect()
        };
        let report = |is_same: bool, is_whole: bool| {
            json!({"isIdentical": is_same, "isComplete": is_whole, "difference": "d", "endReason": "e",
                "decisions": [{"uid": "1", "node": "x"}, {"uid": "1", "node": "a"}, {"uid": "2", "node": "b"}]})
        };
        let check = |end, report: &Value, all: &[(&str, &str)], want: &[&str]| {
            assert_eq!(faults(end, report, &nodes(all)), want);
        };
        let good = report(true, true);
        check(RunEnd::Terminated, &good, &[("1", "a"), ("2", "b")], &[]);
        check(
            RunEnd::Terminated,
            &good,
            &[("1", "x"), ("3", "c")],
            &[
                "1 was bound to a, but is on x",
                "2 was bound to b, but is pending",
                "3 is on c, which is not in the recording",
            ],
        );
        let torn = report(true, false);
        check(RunEnd::Killed, &torn, &[("1", "a"), ("3", "c")], &[]);
        check(RunEnd::Killed, &good, &[("1", "a")], &["unexpected end of the recording: \"e\""]);
        check(RunEnd::Killed, &torn, &[("1", "x")], &["1 was bound to a, but is on x"]);
        let other = report(false, true);
        check(
            RunEnd::Terminated,
            &other,
            &[("1", "a"), ("2", "b")],
            &["the replay differs: \"d\""],
        );
        let empty = json!({"isIdentical": true, "isComplete": true});
        check(RunEnd::Terminated, &empty, &[], &["the recording has no bindings"]);
    }
}
