//! `cargo xtask`: development tasks.

mod advisories;
mod build_cost;
mod counts;
mod e2e;
mod first_cluster;
mod first_plugin;
mod full;
mod fuzz;
mod image;
mod layers;
mod licenses;
mod new_plugin;
mod oracle;
mod outside_crate;
mod page;
mod rust_tokens;
mod scenarios;
mod words;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};

/// Development tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check that no dependency has an advisory of the RustSec database that has not been accepted.
    Advisories(advisories::Args),
    /// Build the program in an empty folder, and check CPU time and size: what every user waits for.
    BuildCost(build_cost::Args),
    /// Count allocations and instructions of small workloads, and fail if they differ by more than 10 % from perf/counts.json.
    Counts(counts::Args),
    /// End-to-end tests of Loadmaster and kube-scheduler against a real control plane.
    E2e(e2e::Args),
    /// Run the sample cluster of the README until it has settled, and check which pods are assigned, and why others are not.
    FirstCluster,
    /// Create, test and run the crate of the page "Your first plugin" as the page describes it.
    FirstPlugin,
    /// Run the long versions of the checks of `.ci/run`, all of them even if some fail, and print a table of results.
    Full(full::Args),
    /// Fuzz the decoders of untrusted input.
    Fuzz(fuzz::Args),
    /// Build container images: an OCI image layout, and an archive for container engines.
    Image(image::Args),
    /// Check that no crate depends on a crate of a higher layer, and that no modules of a crate import each other.
    Layers,
    /// Check that all dependencies have an allowed license and come from crates.io.
    Licenses,
    /// Write a repository with `loadmaster new plugin`, and build, test and run it.
    NewPlugin,
    /// Compare Loadmaster with kube-scheduler on random cases.
    Oracle(oracle::Args),
    /// Record or check the expected behavior in `scenarios/`.
    Scenarios(scenarios::Args),
    /// Run the scheduler in simulated clusters with fault injection, with overflow checks and debug assertions.
    #[command(disable_help_flag = true)]
    Simulate(ProgramArgs),
    /// Compare incremental evaluation with per-node evaluation over random histories, with overflow checks and debug assertions.
    #[command(disable_help_flag = true)]
    Twin(ProgramArgs),
    /// Fail on names and sentences that `xtask/words.txt` replaces by the field's.
    Words,
    /// Benchmarks in process: `cargo xtask perf --help` lists them.
    #[command(disable_help_flag = true)]
    Perf(ProgramArgs),
}

/// Arguments that are passed on to the program of the crate `loadmaster-sim` or `loadmaster-perf`.
#[derive(clap::Args)]
struct ProgramArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Advisories(args) => advisories::run(&args),
        Task::BuildCost(args) => build_cost::run(&args),
        Task::Counts(args) => counts::run(&args),
        Task::E2e(args) => e2e::run(&args),
        Task::FirstCluster => first_cluster::run(),
        Task::FirstPlugin => first_plugin::run(),
        Task::Full(args) => full::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Image(args) => image::run(&args),
        Task::Layers => layers::run().map(|()| true),
        Task::Licenses => licenses::run().map(|()| true),
        Task::NewPlugin => new_plugin::run(),
        Task::Oracle(args) => oracle::run(&args),
        Task::Scenarios(args) => scenarios::run(&args),
        Task::Simulate(args) => sim("simulate", &args),
        Task::Twin(args) => sim("twin", &args),
        Task::Words => words::run(),
        Task::Perf(args) => perf(&args),
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

/// The root directory of the workspace.
fn root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().map(PathBuf::from).unwrap_or(here))
}

/// What git prints about the workspace, without a line break at the end.
fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(root()?).output();
    let output = output.context("running git")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", args.join(" "), errors.trim());
    let text = String::from_utf8(output.stdout).context("reading the output of git")?;
    Ok(text.trim_end().to_owned())
}

/// The target folder of the workspace.
fn target_folder() -> Result<PathBuf> {
    Ok(match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => folder.into(),
        None => root()?.join("target"),
    })
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A command without the variables that cargo sets for xtask: they would make build scripts in a nested cargo run again.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs the program of the crate `loadmaster-sim`, optimized, with overflow checks and debug assertions.
fn sim(task: &str, args: &ProgramArgs) -> Result<bool> {
    let mut cargo = command("cargo");
    cargo.args(["run", "--profile", "sim", "--quiet", "--package", "loadmaster-sim", "--", task]);
    Ok(cargo.args(&args.args).status()?.success())
}

/// Runs the benchmarks in a separate process, so that peak memory is that of the workload.
fn perf(args: &ProgramArgs) -> Result<bool> {
    let mut cargo = command("cargo");
    cargo
        .args(["run", "--release", "--quiet", "--package", "loadmaster-perf", "--"])
        .args(&args.args);
    Ok(cargo.status()?.success())
}
