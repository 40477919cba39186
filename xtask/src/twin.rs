//! `cargo xtask twin`: random histories in which every fast answer is held against asking one by one.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use loadmaster_engine::Profile;
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
}

/// Runs the histories; `false` after the first difference.
pub fn run(args: &Args) -> Result<bool> {
    let profile = Arc::new(default_profile()?);
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

/// The profile that an empty configuration gives.
fn default_profile() -> Result<Profile> {
    let registry = loadmaster_plugins::in_tree();
    let gates = loadmaster_config::Gates::default();
    let checked = loadmaster_config::check_default(&registry, &gates)
        .map_err(|errors| anyhow!("default configuration: {errors:?}"))?;
    let spec = checked.profiles.first().context("the default configuration has a profile")?;
    Ok(Profile::new(spec, &registry, &gates.framework())?)
}
