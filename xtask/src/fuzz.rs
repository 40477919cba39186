//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/`, one after the other.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::root;

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only this target.
    target: Option<String>,
    /// Run time of each target.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// Builds and runs the targets; false when one has failed. cargo-fuzz prints how to reproduce the failure.
pub fn run(args: &Args) -> Result<bool> {
    let installed = cargo_fuzz("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(
        installed.is_ok_and(|it| it.success()),
        "cargo-fuzz is missing: cargo install cargo-fuzz --locked (this needs a C++ compiler)"
    );
    let folder = root()?.join("fuzz");
    let all = names(&folder.join("fuzz_targets"))?;
    let wanted: Vec<&String> =
        all.iter().filter(|it| args.target.as_ref().is_none_or(|name| name == *it)).collect();
    ensure!(!wanted.is_empty(), "there is no such target; the targets are {}", all.join(", "));
    let mut is_good = true;
    for target in wanted {
        println!("{target}: {} s", args.seconds);
        is_good &= run_one(&folder, target, args.seconds)?;
    }
    Ok(is_good)
}

fn run_one(folder: &Path, target: &str, seconds: u32) -> Result<bool> {
    let corpus = folder.join("corpus").join(target);
    std::fs::create_dir_all(&corpus).with_context(|| format!("creating {}", corpus.display()))?;
    let mut fuzz = cargo_fuzz("run");
    // Without a sanitizer no nightly compiler is needed, and there is no unsafe code to be checked.
    fuzz.args(["--sanitizer", "none", target]).arg(corpus);
    let seeds = folder.join("seeds").join(target);
    fuzz.args(seeds.is_dir().then_some(seeds));
    fuzz.arg("--").arg(format!("-max_total_time={seconds}"));
    fuzz.args(["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1"]);
    fuzz.arg(format!("-dict={}", folder.join("dictionary").display()));
    Ok(fuzz.status().context("running cargo fuzz")?.success())
}

fn cargo_fuzz(verb: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(["fuzz", verb]).env("RUSTC_BOOTSTRAP", "1");
    cargo
}

/// The names of the files in a directory without extensions, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let files = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut all = Vec::new();
    for file in files {
        all.extend(file?.path().file_stem().map(|it| it.to_string_lossy().into_owned()));
    }
    all.sort();
    Ok(all)
}
