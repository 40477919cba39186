//! `cargo xtask twin`: random histories in which every fast answer is held against asking one by one, and random cases in which
//! the search for victims is held against trying every set of them.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use loadmaster_sim::cases::Generator;
use loadmaster_sim::cases::answer::Answerer;
use loadmaster_sim::every_eviction::{self, Seen};
use loadmaster_sim::load::default_profile;
use loadmaster_sim::twin::{self, Options, Report};

/// Steps of one history; the next one has another seed and so another size.
const STEPS_EACH: u32 = 250;

#[derive(clap::Args)]
pub struct Args {
    /// Steps over all histories.
    #[arg(long, default_value_t = 100_000)]
    steps: u32,
    /// Seed of the first history.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of histories: so many small cases in which pods may have to go for another.
    #[arg(long, value_name = "CASES", conflicts_with = "steps")]
    preemption: Option<u64>,
}

/// Runs the histories; `false` after the first difference.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(n_cases) = args.preemption {
        return every_eviction(args.seed, n_cases);
    }
    let profile = Arc::new(default_profile(&loadmaster_plugins::in_tree())?);
    let mut all = Report::default();
    for history in 0..u64::from(args.steps.div_ceil(STEPS_EACH)) {
        let seed = args.seed + history;
        match twin::run(&profile, Options::swarm(seed, STEPS_EACH)) {
            Ok(report) => {
                all.decisions += report.decisions;
                all.placed += report.placed;
                all.unplaced += report.unplaced;
                all.rows += report.rows;
            }
            Err(difference) => {
                println!("{difference}");
                return Ok(false);
            }
        }
    }
    println!(
        "twin: {} decisions from seed {}, {} placed, {} without a node, {} verdicts and totals: no difference",
        all.decisions, args.seed, all.placed, all.unplaced, all.rows
    );
    Ok(true)
}

/// Looks at cases until so many were small enough and had something to try.
fn every_eviction(seed: u64, n_cases: u64) -> Result<bool> {
    let ours = Answerer::new(loadmaster_plugins::in_tree())?;
    let (mut all, mut n_tried) = (Seen::default(), 0);
    let mut cases = Generator::preemption(seed);
    while n_tried < n_cases {
        let case = cases.next().context("the generator never ends")?;
        let Ok(checked) = ours.with_loaded(&case, every_eviction::check) else { continue };
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
        "twin: {n_tried} cases of preemption from seed {seed}, {} nodes, {} candidates, {} sets of pods tried, {} nodes where fewer \
         pods made it worse: no difference",
        all.n_nodes, all.n_candidates, all.n_sets, all.n_not_monotone
    );
    Ok(true)
}
