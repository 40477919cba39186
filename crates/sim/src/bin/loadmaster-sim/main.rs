//! The long versions of this crate's tests, as a program: `cargo xtask simulate` and `cargo xtask twin` run it with overflow checks and
//! debug assertions (the profile `sim`). It has few dependencies, because they are compiled for that profile alone.

mod twin;

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use loadmaster_sim::simulate::{SimulatedSchedulerConfig, SimulationOptions, SimulationRuns};

/// Long tests of the scheduler without I/O.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the scheduler in simulated clusters with fault injection, as `loadmaster simulate` does.
    Simulate(SimulateArgs),
    /// Compare incremental evaluation with per-node evaluation over random histories.
    Twin(twin::Args),
}

#[derive(clap::Args)]
struct SimulateArgs {
    /// Seed of the first run.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of runs, with consecutive seeds.
    #[arg(long, default_value_t = 1_000)]
    runs: u64,
    /// Number of steps with faults per run.
    #[arg(long, default_value_t = SimulationOptions::new(0).steps)]
    steps: u32,
    /// One in so many runs has claims and volumes; 0 for none.
    #[arg(long, value_name = "N")]
    volume_runs: Option<u64>,
    /// One in so many runs has gangs; 0 for none.
    #[arg(long, value_name = "N")]
    gang_runs: Option<u64>,
    /// One in so many runs has quotas; 0 for none.
    #[arg(long, value_name = "N")]
    quota_runs: Option<u64>,
    /// In one in so many runs other configurations replace the running one; 0 for none.
    #[arg(long, value_name = "N")]
    reload_runs: Option<u64>,
    /// Print every event, API call and Event of every run.
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Simulate(args) => simulate(&args),
        Task::Twin(args) => twin::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether no invariant was violated.
fn simulate(args: &SimulateArgs) -> Result<bool> {
    let mut config =
        SimulatedSchedulerConfig::with_all_faults(&loadmaster_plugins::in_tree_registry())?;
    let mut reproduce_command = "cargo xtask simulate --runs 1".to_owned();
    if let Some(one_in) = args.volume_runs {
        config.volume_runs = one_in;
        reproduce_command += &format!(" --volume-runs {one_in}");
    }
    if let Some(one_in) = args.gang_runs {
        config.gang_runs = one_in;
        reproduce_command += &format!(" --gang-runs {one_in}");
    }
    if let Some(one_in) = args.quota_runs {
        config.quota_runs = one_in;
        reproduce_command += &format!(" --quota-runs {one_in}");
    }
    if let Some(one_in) = args.reload_runs {
        config.reload_runs = one_in;
        reproduce_command += &format!(" --reload-runs {one_in}");
    }
    let SimulateArgs { seed: first_seed, runs, steps, verbose, .. } = *args;
    let all = SimulationRuns { first_seed, runs, steps, verbose };
    let mut out = stdout().lock();
    let (report, n_failed) = all.run(&config, &reproduce_command, &mut out)?;
    writeln!(out, "{runs} runs, {n_failed} failed: {report}")?;
    Ok(n_failed == 0)
}
