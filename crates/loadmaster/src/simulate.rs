//! `loadmaster simulate`: runs the scheduler in simulated clusters with fault injection.

use std::io::Write;

use loadmaster_framework::Registry;
use loadmaster_sim::simulate::{SimulatedSchedulerConfig, SimulationOptions, SimulationRuns};
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Exit, Failure};
use crate::text::counted;

/// Run the scheduler in simulated clusters with fault injection.
///
/// Each seed determines a cluster, its workload and the injected faults: dropped, delayed and repeated watch events, rejected API calls and
/// lost responses, flapping nodes, leader changes during a bind, panicking plugins, failing extenders, and plugins that watch objects,
/// receive published values, hold pods at Permit and wait in PreBind. In some runs pods have PersistentVolumeClaims, belong to gangs
/// (PodGroups, with Coscheduling), or are limited by ElasticQuotas (with CapacityScheduling), or other configurations replace the running
/// one: other weights, arguments, plugins, profiles, extenders and backoffs, another QueueSort. Invariants are checked during the run. Then the faults end and the
/// cluster must settle: every feasible pod is bound. Time is virtual. The exit code is 0 if all seeds pass, 1 if an invariant is violated.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  loadmaster simulate --runs 1000
  loadmaster simulate --seed 17 --verbose     print all events of one run")]
pub(crate) struct Args {
    /// Seed of the first run.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Number of runs, with consecutive seeds.
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// Number of steps with faults per run.
    #[arg(long, value_name = "N", default_value_t = SimulationOptions::new(0).steps)]
    steps: u32,
    /// Print every event, API call and Event of every run.
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args, registry: &Registry, out: &mut dyn Write) -> CommandResult<Exit> {
    let config = SimulatedSchedulerConfig::with_all_faults(registry)
        .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let Args { seed: first_seed, runs, steps, verbose } = *args;
    let all = SimulationRuns { first_seed, runs, steps, verbose };
    let (report, n_failed) = all.run(&config, "loadmaster simulate", out)?;
    writeln!(out, "{}, {n_failed} failed: {report}", counted(runs as usize, "run"))?;
    Ok(if n_failed == 0 { Exit::Done } else { Exit::Finding })
}
