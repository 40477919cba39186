//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, one after the other, each for some time.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::root;

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// One target; all when absent.
    target: Option<String>,
    /// How long each runs.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// Builds and runs; false when a target has found something, of which cargo-fuzz says how to see it again.
pub fn run(args: &Args) -> Result<bool> {
    let installed = cargo_fuzz("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(
        installed.is_ok_and(|it| it.success()),
        "cargo-fuzz is missing: cargo install cargo-fuzz --locked (it needs a C++ compiler, too)"
    );
    let folder = root()?.join("fuzz");
    let all = names(&folder.join("fuzz_targets"))?;
    let wanted: Vec<&String> =
        all.iter().filter(|it| args.target.as_ref().is_none_or(|name| name == *it)).collect();
    ensure!(!wanted.is_empty(), "there is no such target, but {}", all.join(", "));
    let mut is_good = true;
    for target in wanted {
        println!("{target}: {} s", args.seconds);
        is_good &= run_one(&folder, target, args.seconds)?;
    }
    Ok(is_good)
}

fn run_one(folder: &Path, target: &str, seconds: u32) -> Result<bool> {
    let corpus = folder.join("corpus").join(target);
    std::fs::create_dir_all(&corpus).with_context(|| format!("making {}", corpus.display()))?;
    let mut fuzz = cargo_fuzz("run");
    // Coverage needs no nightly compiler, and nothing here is unsafe that a sanitizer would watch.
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

/// The files of a folder without their endings, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let files = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut all = Vec::new();
    for file in files {
        all.extend(file?.path().file_stem().map(|it| it.to_string_lossy().into_owned()));
    }
    all.sort();
    Ok(all)
}
