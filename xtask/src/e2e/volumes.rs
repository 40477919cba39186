//! `cargo xtask e2e volumes`: pods with PersistentVolumeClaims on a real kube-apiserver and kube-controller-manager.
//!
//! The same cluster is scheduled by kube-scheduler and by Loadmaster. What they write to pods, claims and volumes must be equal: the same
//! requests in the same order for each object, with the same fields; and so must the resulting objects.

mod cases;
mod cluster;
mod comparison;
mod writes;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::control_plane::ControlPlane;
use super::scheduler::{SchedulerArgs, SchedulerKind};
use cluster::VolumeCluster;
use comparison::CasesResult;

/// Compare kube-scheduler and Loadmaster with PersistentVolumeClaims and kube-controller-manager.
#[derive(Parser)]
pub struct Args {
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// What one scheduler did.
struct Findings {
    cases: CasesResult,
    plane: ControlPlane,
}

/// Returns whether there are no differences and no faults.
pub async fn run(args: &Args) -> Result<bool> {
    let mut findings = Vec::new();
    for kind in args.chosen.kinds()? {
        findings.push(run_one(args, kind).await.with_context(|| kind.name())?);
    }
    let mut is_good = true;
    if let [theirs, ours] = &findings[..] {
        let mut lines = ours.cases.writes.differences(&theirs.cases.writes);
        lines.extend(state_differences(&theirs.cases.state, &ours.cases.state));
        lines.iter().for_each(|line| println!("{line}"));
        println!(
            "kube-scheduler sent {} writes for the cases, loadmaster {}: {} lines differ",
            theirs.cases.writes.len(),
            ours.cases.writes.len(),
            lines.len()
        );
        is_good &= lines.is_empty();
    }
    if is_good {
        findings.into_iter().for_each(|it| it.plane.finish());
    }
    Ok(is_good)
}

async fn run_one(args: &Args, kind: SchedulerKind) -> Result<Findings> {
    let cluster = VolumeCluster::start(cases::N_NODES).await?;
    let cases = comparison::run_cases(&cluster, &args.chosen, kind).await?;
    let plane = cluster.stop_controllers().await?;
    Ok(Findings { cases, plane })
}

fn state_differences(want: &[String], found: &[String]) -> Vec<String> {
    let (want, found): (BTreeSet<_>, BTreeSet<_>) = (want.iter().collect(), found.iter().collect());
    let missing = want.difference(&found).map(|line| format!("- {line}"));
    missing.chain(found.difference(&want).map(|line| format!("+ {line}"))).collect()
}
