//! `cargo xtask twin`: random histories in which every incremental evaluation is compared with a per-node evaluation, and random
//! cases in which the preemption search is compared with a brute-force search over all sets of victims.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use loadmaster_sim::brute_force_preemption::{self, BruteForceStats};
use loadmaster_sim::cases::CaseGenerator;
use loadmaster_sim::cases::local_oracle::LocalOracle;
use loadmaster_sim::differential::{self, HistoryOptions, HistoryReport};
use loadmaster_sim::world_loader::default_profile;

/// Steps of one history; the next one has another seed, and so another size.
const STEPS_EACH: u32 = 250;

#[derive(clap::Args)]
pub struct Args {
    /// Number of steps of all histories together.
    #[arg(long, default_value_t = 100_000)]
    steps: u32,
    /// Seed of the first history.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run so many small preemption cases instead of histories.
    #[arg(long, value_name = "CASES", conflicts_with = "steps")]
    preemption: Option<u64>,
}

/// Runs the histories; false after the first difference.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(n_cases) = args.preemption {
        return every_eviction(args.seed, n_cases);
    }
    let profile = Arc::new(default_profile(&loadmaster_plugins::in_tree_registry())?);
    let mut all = HistoryReport::default();
    for history in 0..u64::from(args.steps.div_ceil(STEPS_EACH)) {
        let seed = args.seed + history;
        match differential::run_history(&profile, HistoryOptions::random(seed, STEPS_EACH)) {
            Ok(report) => {
                all.decisions += report.decisions;
                all.placed += report.placed;
                all.unschedulable += report.unschedulable;
                all.compared_nodes += report.compared_nodes;
            }
            Err(difference) => {
                println!("{difference}");
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {} decisions from seed {}, {} placed, {} without a node, {} filter results and scores: no difference",
        all.decisions, args.seed, all.placed, all.unschedulable, all.compared_nodes
    );
    Ok(true)
}

/// Generates cases until `n_cases` of them were small enough for brute force and had candidates.
fn every_eviction(seed: u64, n_cases: u64) -> Result<bool> {
    let ours = LocalOracle::new(loadmaster_plugins::in_tree_registry())?;
    let (mut all, mut n_tried) = (BruteForceStats::default(), 0);
    let mut cases = CaseGenerator::preemption_cases(seed);
    while n_tried < n_cases {
        let case = cases.next().context("the generator never ends")?;
        let Ok(checked) = ours
            .with_scheduling_input(&case, brute_force_preemption::check_preemption_by_brute_force)
        else {
            continue;
        };
        match checked {
            Ok(Some(seen)) if seen.n_nodes > 0 => {
                all.add(seen);
                n_tried += 1;
            }
            Ok(_) => {}
            Err(difference) => {
                println!("case {} of seed {seed}: {difference}\n{}", case.id, case.question());
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {n_tried} preemption cases from seed {seed}, {} nodes, {} candidates, {} sets of pods tried, {} nodes where removing \
         a pod makes the preemptor infeasible: no difference",
        all.n_nodes, all.n_candidates, all.n_sets, all.n_not_monotone
    );
    Ok(true)
}
