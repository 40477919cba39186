//! `cargo xtask e2e record`: a run on a real control plane, recorded, lived through again without one.
//!
//! Runs on fresh control planes: one that is not recorded, to compare the cost; one that is told to end; one that is killed in the
//! middle of its work. Both recordings must replay to the same decisions, and the binds in them must be those that the cluster has in
//! the end. Of the one that was killed the last second may be missing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;

use super::api::Api;
use super::bound::BoundPods;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::scheduler::{Chosen, Kind, Setup};
use super::workload::Workload;
use super::{load, outcome, special};

const NAMESPACE: &str = "e2e";

/// Record runs, replay them, and compare the binds with what the cluster has in the end.
#[derive(Parser)]
pub struct Args {
    /// Which pods.
    #[arg(default_value = "mixed")]
    workload: Workload,
    /// How many nodes.
    #[arg(default_value_t = 500)]
    nodes: u32,
    /// How many pods.
    #[arg(default_value_t = 1000)]
    pods: u32,
    #[command(flatten)]
    chosen: Chosen,
}

/// What becomes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Told to end, and not recorded.
    Unrecorded,
    Terminated,
    Killed,
}

/// Answers whether both runs could be replayed, and were what they seemed.
pub async fn run(args: &Args) -> Result<bool> {
    args.workload.check_size(args.nodes, args.pods)?;
    ensure!(
        args.chosen.kinds()?.contains(&Kind::Loadmaster),
        "only Loadmaster can record what it does"
    );
    println!("record {:?}: {} nodes, {} pods", args.workload, args.nodes, args.pods);
    println!("| run | bytes a pod | CPU ms a pod | binds | decisions/s of the replay | faults |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut good = true;
    for end in [End::Unrecorded, End::Terminated, End::Killed] {
        good &= run_one(args, end).await.with_context(|| format!("the run that is {end:?}"))?;
    }
    Ok(good)
}

async fn run_one(args: &Args, end: End) -> Result<bool> {
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    load::fill(&api, NAMESPACE, args.nodes, args.workload, args.pods).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let name = Kind::Loadmaster.name();
    let setup = Setup::new(name, plane.folder(), &kubeconfig);
    let file = plane.folder().join("recording");
    let flags = match end {
        End::Unrecorded => Vec::new(),
        End::Terminated | End::Killed => vec![format!("--record={}", file.display())],
    };
    let mut scheduler = args.chosen.start_with(Kind::Loadmaster, &setup, &flags)?;
    let n = match end {
        End::Killed => args.pods as usize / 2,
        End::Unrecorded | End::Terminated => args.pods as usize,
    };
    let all = bound.until(n, special::PATIENCE).await?;
    scheduler.process.check_running()?;
    ensure!(all, "only {} of {n} pods were bound", bound.seen().len());
    let usage = scheduler.process.usage()?;
    let cpu_ms = usage.cpu_seconds * 1e3 / bound.seen().len().max(1) as f64;
    if end == End::Killed {
        scheduler.process.kill()?;
    } else {
        scheduler.process.terminate()?;
        let status = scheduler.process.wait(special::PATIENCE).await?;
        ensure!(status.success(), "it ended with {status} after SIGTERM");
    }
    if end == End::Unrecorded {
        println!("| {end:?} | | {cpu_ms:.3} | | | |");
        plane.finish();
        return Ok(true);
    }
    let report = replay(&args.chosen.binary(Kind::Loadmaster)?, &file)?;
    let pods = outcome::pods(&api, NAMESPACE).await?;
    let nodes = pods.into_iter().filter(|pod| !pod.node.is_empty());
    let nodes: BTreeMap<String, String> = nodes.map(|pod| (pod.uid, pod.node)).collect();
    let faults = faults(end, &report, &nodes);
    let n_bytes = std::fs::metadata(&file).context("looking at the recording")?.len();
    println!(
        "| {end:?} | {} | {cpu_ms:.3} | {} | {:.0} | {} |",
        n_bytes / nodes.len().max(1) as u64,
        report["binds"],
        report["podsDecided"].as_f64().unwrap_or(0.0)
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
    serde_json::from_slice(&stdout).context("reading what the replay says")
}

/// What is wrong with a replay, given the nodes of all bound pods by uid.
fn faults(end: End, report: &Value, nodes: &BTreeMap<String, String>) -> Vec<String> {
    let mut faults = Vec::new();
    if report["isSame"] != true {
        faults.push(format!("the replay differs: {}", report["difference"]));
    }
    let is_whole = report["isWhole"] == true;
    if is_whole != (end == End::Terminated) {
        faults.push(format!("it ends wrongly: {}", report["ending"]));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let decisions = report["decisions"].as_array().into_iter().flatten();
    // A bind that was refused is followed by another one.
    let binds: BTreeMap<String, String> =
        decisions.map(|it| (text(&it["uid"]), text(&it["node"]))).collect();
    if binds.is_empty() {
        faults.push("there is no bind in it".to_owned());
    }
    for (uid, node) in &binds {
        match nodes.get(uid) {
            Some(found) if found != node => {
                faults.push(format!("{uid} was bound to {node}, and is on {found}"));
            }
            // It was killed while it asked.
            None if end == End::Terminated => {
                faults.push(format!("{uid} was bound to {node}, and is on no node"));
            }
            _ => {}
        }
    }
    for (uid, node) in nodes.iter().filter(|(uid, _)| !binds.contains_key(*uid)) {
        if end == End::Terminated {
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
    fn what_is_wrong_is_said() {
        let nodes = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(uid, node)| ((*uid).to_owned(), (*node).to_owned())).collect()
        };
        let report = |is_same: bool, is_whole: bool| {
            json!({"isSame": is_same, "isWhole": is_whole, "difference": "d", "ending": "e",
                "decisions": [{"uid": "1", "node": "x"}, {"uid": "1", "node": "a"}, {"uid": "2", "node": "b"}]})
        };
        let check = |end, report: &Value, all: &[(&str, &str)], want: &[&str]| {
            assert_eq!(faults(end, report, &nodes(all)), want);
        };
        let good = report(true, true);
        check(End::Terminated, &good, &[("1", "a"), ("2", "b")], &[]);
        check(
            End::Terminated,
            &good,
            &[("1", "x"), ("3", "c")],
            &[
                "1 was bound to a, and is on x",
                "2 was bound to b, and is on no node",
                "3 is on c, which is not in the recording",
            ],
        );
        let torn = report(true, false);
        check(End::Killed, &torn, &[("1", "a"), ("3", "c")], &[]);
        check(End::Killed, &good, &[("1", "a")], &["it ends wrongly: \"e\""]);
        check(End::Killed, &torn, &[("1", "x")], &["1 was bound to a, and is on x"]);
        let other = report(false, true);
        check(End::Terminated, &other, &[("1", "a"), ("2", "b")], &["the replay differs: \"d\""]);
        let empty = json!({"isSame": true, "isWhole": true});
        check(End::Terminated, &empty, &[], &["there is no bind in it"]);
    }
}
