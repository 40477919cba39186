//! `cargo xtask build-cost`: builds the program in an empty folder, and fails if that takes too much CPU time, or the program is too large.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::e2e::process::{TIMES_OF_CHILDREN, cpu_ticks};

/// CPU time of a fresh release build: user and system, of all processes. The time on the clock depends on the number of cores.
const CPU_SECONDS_MAX: f64 = 12.0 * 60.0;

/// Size of the program.
const MEGABYTES_MAX: f64 = 25.0;

/// What more a program has that was linked where glibc does not read packed relocations (`crates/loadmaster/build.rs`).
const MEGABYTES_OF_RELOCATIONS: f64 = 1.6;

/// The section of packed relocations.
const PACKED_RELOCATIONS: &[u8] = b".relr.dyn\0";

/// Arguments of `build-cost`.
#[derive(clap::Args)]
pub struct Args {
    /// Build nothing, and check the size of this program only, such as target/release/loadmaster.
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Measures; returns whether the limits are kept.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(program) = &args.program {
        return is_small(program);
    }
    let root = crate::root()?;
    let folder = crate::target_folder()?.join("build-cost");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("removing {}", folder.display()))?;
    }
    let before = children_cpu_seconds()?;
    let status = crate::command("cargo")
        .args(["build", "--release", "--locked", "--timings"])
        .current_dir(&root)
        .env("CARGO_TARGET_DIR", &folder)
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "cargo build: {status}");
    let cpu_seconds = children_cpu_seconds()? - before;
    let is_small = is_small(&folder.join("release/loadmaster"))?;
    println!("crates: {}", folder.join("cargo-timings/cargo-timing.html").display());
    let is_fast = is_within("CPU seconds", cpu_seconds, CPU_SECONDS_MAX);
    Ok(is_small && is_fast)
}

fn is_within(unit: &str, measured: f64, max: f64) -> bool {
    let is_within = measured <= max;
    let verdict = if is_within { "" } else { ": too many" };
    println!("build-cost: {measured:.1} {unit}, at most {max}{verdict}");
    is_within
}

fn is_small(program: &Path) -> Result<bool> {
    let bytes = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let is_packed = bytes.windows(PACKED_RELOCATIONS.len()).any(|it| it == PACKED_RELOCATIONS);
    let more = if is_packed { 0.0 } else { MEGABYTES_OF_RELOCATIONS };
    Ok(is_within("megabytes", bytes.len() as f64 / 1e6, MEGABYTES_MAX + more))
}

/// CPU time of all child processes that have ended, and of theirs.
fn children_cpu_seconds() -> Result<f64> {
    let stat =
        std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat of Linux")?;
    let ticks = cpu_ticks(&stat, TIMES_OF_CHILDREN).context("parsing /proc/self/stat")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_children_are_found_after_any_name() {
        for (stat, want) in [
            ("7 (xtask) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 30 4 20 0 9 0 12 9 9", Some(34)),
            ("7 (a) 1 (b) R 1 7 7 0 -1 4194304 100 0 0 0 7 0 5 0 20 0 9 0 12 9 9", Some(5)),
            ("7 (xtask) S 1 7 7 0 -1 4194304 100 0 0 0 150 50", None),
            ("", None),
        ] {
            assert_eq!(cpu_ticks(stat, TIMES_OF_CHILDREN), want, "{stat}");
        }
    }

    #[test]
    fn a_limit_itself_is_allowed() {
        for (measured, want) in [(24.9, true), (25.0, true), (25.1, false)] {
            assert_eq!(is_within("megabytes", measured, 25.0), want, "{measured}");
        }
    }

    #[test]
    fn the_size_of_a_program_that_is_missing() {
        let args = Args { program: Some("/no/such/program".into()) };
        assert!(run(&args).is_err());
    }
}
