//! `cargo xtask`: the project's chores.

mod e2e;
mod first_plugin;
mod fuzz;
mod layers;
mod licenses;
mod oracle;
mod scenarios;
mod twin;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Loadmaster and kube-scheduler against a real control plane.
    E2e(e2e::Args),
    /// Make, test and run the crate of the page "Your first plugin", from the page alone.
    FirstPlugin,
    /// Give the decoders bytes that nobody thought of.
    Fuzz(fuzz::Args),
    /// Fail on an edge from a lower layer to a higher one.
    Layers,
    /// Fail on a library with another licence than those allowed, or from elsewhere than crates.io.
    Licenses,
    /// Ask kube-scheduler and us the same random questions.
    Oracle(oracle::Args),
    /// The behaviours in `scenarios/`.
    Scenarios(scenarios::Args),
    /// Hold fast answers against asking one by one, over random histories.
    Twin(twin::Args),
    /// Measure decisions a second, all workloads or those whose name contains the text; `extender`: what it costs to ask one.
    Perf { name: Option<String> },
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::E2e(args) => e2e::run(&args),
        Chore::FirstPlugin => first_plugin::run(),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Layers => layers::run().map(|()| true),
        Chore::Licenses => licenses::run().map(|()| true),
        Chore::Oracle(args) => oracle::run(&args),
        Chore::Scenarios(args) => scenarios::run(&args),
        Chore::Twin(args) => twin::run(&args),
        Chore::Perf { name } => perf(name.as_deref()),
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

/// The folder of the workspace.
fn root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().map(PathBuf::from).unwrap_or(here))
}

/// A program that does not know that cargo started us: what cargo tells us of ourselves would look to build scripts under it as if
/// everything were new.
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

/// In a process of its own, so that peak memory is that of the workload alone.
fn perf(name: Option<&str>) -> Result<bool> {
    let mut cargo = command("cargo");
    cargo.args(["run", "--release", "--quiet", "--package", "loadmaster-perf", "--"]).args(name);
    Ok(cargo.status()?.success())
}
