//! `cargo xtask e2e volumes`: pods with PersistentVolumeClaims on a real kube-apiserver and kube-controller-manager.
//!
//! The same cluster is scheduled by kube-scheduler and by Loadmaster. What they write to pods, claims and volumes must be equal: the same
//! requests in the same order for each object, with the same fields; and so must the resulting objects. StatefulSets with claim templates are
//! scaled down and up: their pods must be spread as well as kube-scheduler's, and nothing may be left reserved. Then Loadmaster is killed
//! while it binds volumes: no claim and no pod may be lost, or bound twice.

mod cases;
mod cluster;
mod comparison;
mod kills;
mod reservations;
mod stateful_sets;
mod writes;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::control_plane::ControlPlane;
use super::scheduler::{SchedulerArgs, SchedulerKind};
use cluster::VolumeCluster;
use comparison::CasesResult;
use stateful_sets::{PodCounts, SetsResult};

/// Compare kube-scheduler and Loadmaster with PersistentVolumeClaims and kube-controller-manager.
#[derive(Parser)]
pub struct Args {
    /// Replicas of each StatefulSet; without StatefulSets if 0.
    #[arg(long, default_value_t = 50)]
    replicas: u32,
    /// Number of kills of Loadmaster, at most 20, because nodes have a limit of volumes.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=20))]
    kills: u32,
    #[command(flatten)]
    chosen: SchedulerArgs,
}

/// What one scheduler did.
struct Findings {
    cases: CasesResult,
    sets: SetsResult,
    plane: ControlPlane,
}

/// Returns whether there are no differences and no faults.
pub async fn run(args: &Args) -> Result<bool> {
    let mut findings = Vec::new();
    for kind in args.chosen.kinds()? {
        findings.push(run_one(args, kind).await.with_context(|| kind.name())?);
    }
    let mut is_good = findings.iter().all(|it| it.sets.faults.is_empty());
    if let [theirs, ours] = &findings[..] {
        let mut lines = ours.cases.writes.differences(&theirs.cases.writes);
        lines.extend(state_differences(&theirs.cases.state, &ours.cases.state));
        lines.extend(worse_counts(&theirs.sets.counts, &ours.sets.counts));
        lines.iter().for_each(|line| println!("{line}"));
        println!(
            "kube-scheduler sent {} writes for the cases, loadmaster {}: {} may be missing, {} lines differ",
            theirs.cases.writes.len(),
            ours.cases.writes.len(),
            ours.cases.writes.n_missing(&theirs.cases.writes),
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
    let mut cluster = VolumeCluster::start(cases::N_NODES).await?;
    let cases = comparison::run_cases(&cluster, &args.chosen, kind).await?;
    let mut sets = SetsResult::default();
    if args.replicas > 0 {
        sets = stateful_sets::run_sets(&cluster, &args.chosen, kind, args.replicas).await?;
    }
    for (what, counts) in &sets.counts {
        println!("{}: {what}: {counts}", kind.name());
    }
    if kind == SchedulerKind::Loadmaster && args.kills > 0 {
        let faults = kills::run_kills(&mut cluster, &args.chosen, kind, args.kills).await?;
        sets.faults.extend(faults);
    }
    sets.faults.iter().for_each(|fault| println!("{}: {fault}", kind.name()));
    let plane = cluster.stop_controllers().await?;
    Ok(Findings { cases, sets, plane })
}

fn state_differences(want: &[String], found: &[String]) -> Vec<String> {
    let (want, found): (BTreeSet<_>, BTreeSet<_>) = (want.iter().collect(), found.iter().collect());
    let missing = want.difference(&found).map(|line| format!("- {line}"));
    missing.chain(found.difference(&want).map(|line| format!("+ {line}"))).collect()
}

/// Steps after which a node or a zone has more pods than with kube-scheduler.
fn worse_counts(theirs: &[(String, PodCounts)], ours: &[(String, PodCounts)]) -> Vec<String> {
    let pairs = theirs.iter().zip(ours);
    let worse = pairs.filter(|((_, theirs), (_, ours))| !ours.is_as_even_as(theirs));
    worse.map(|((step, theirs), (_, ours))| format!("{step}: {theirs}, {ours}")).collect()
}
