//! `loadmaster simulate`: runs the scheduler in simulated clusters with fault injection.

use std::io::Write;
use std::sync::Arc;

use loadmaster_config::AllFeatureGates;
use loadmaster_framework::Registry;
use loadmaster_sim::simulate::{
    SimulatedSchedulerConfig, SimulationOptions, SimulationReport, fake_extenders,
    panicking_plugin, run_simulation as run_seed,
};
use loadmaster_sim::world_loader::default_profile;
use loadmaster_stdx::ErrorChain;

use crate::exit::{CommandResult, Exit, Failure};
use crate::text::counted;

/// Run the scheduler in simulated clusters with fault injection.
///
/// Each seed determines a cluster, its workload and the injected faults: dropped, delayed and repeated watch events, rejected API calls and
/// lost responses, flapping nodes, leader changes during a bind, panicking plugins, failing extenders. Invariants are checked during the
/// run. Then the faults end and the cluster must settle: every feasible pod is bound. Time is virtual. The exit code is 0 if all seeds
/// pass, 1 if an invariant is violated.
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
    let profile =
        default_profile(registry).map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let panicking = panicking_plugin::profile_with_panicking_plugin(registry)
        .map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let with_extenders = fake_extenders::profiles_with_extenders(registry);
    let with_extenders =
        with_extenders.map_err(|error| Failure::invalid_input(ErrorChain(&error)))?;
    let setup = SimulatedSchedulerConfig {
        profile: Arc::new(profile),
        panicking: Some(Arc::new(panicking)),
        with_extenders: with_extenders.map(Arc::new).into(),
        gates: AllFeatureGates::default().framework_gates(),
    };
    let mut all = SimulationReport::default();
    let mut n_failed = 0u64;
    for seed in (0..args.runs).map(|nth| args.seed.wrapping_add(nth)) {
        let options = SimulationOptions { steps: args.steps, ..SimulationOptions::new(seed) };
        let mut lines: Vec<String> = Vec::new();
        let mut log = |line: &str| lines.push(line.to_owned());
        let ended = run_seed(&setup, options, if args.verbose { Some(&mut log) } else { None });
        for line in lines {
            writeln!(out, "{line}")?;
        }
        match ended {
            Ok(report) => {
                all.add(&report);
                if args.verbose || args.runs == 1 {
                    writeln!(out, "seed {seed}: trace {:016x}", report.trace)?;
                }
            }
            Err(violation) => {
                n_failed += 1;
                let steps = if args.steps == SimulationOptions::new(seed).steps {
                    String::new()
                } else {
                    format!(" --steps {}", args.steps)
                };
                writeln!(out, "{violation}\n  loadmaster simulate --seed {seed}{steps} --verbose")?;
            }
        }
        out.flush()?;
    }
    writeln!(
        out,
        "{}, {} failed: {} pods, {} attempts, {} binds, {} evictions, {} failed calls, {} relists, {} leader changes, {} panics, {} extender calls, {} of them failed, {} pods bound after a flush, {} unschedulable",
        counted(args.runs as usize, "run"),
        n_failed,
        all.pods,
        all.attempts,
        all.binds,
        all.evictions,
        all.failed_calls,
        all.relists,
        all.leader_losses,
        all.panics,
        all.extender_calls,
        all.failed_extender_calls,
        all.bound_after_flush,
        all.unschedulable,
    )?;
    Ok(if n_failed == 0 { Exit::Done } else { Exit::Finding })
}
