//! `cargo xtask new-plugin`: writes a repository with `loadmaster new plugin`, and builds, tests and runs it.

use std::fs;

use anyhow::{Result, ensure};

use crate::outside_crate::OutsideCrates;
use crate::root;

/// Not the name of the tutorial's crate, which has the same target folder: Cargo would take one for the other.
const NAME: &str = "zone-scheduler";

/// The commands, and what each of them prints.
const COMMANDS: &[(&str, &str)] = &[
    ("cargo fmt --check", ""),
    ("cargo test", "test result: ok. "),
    ("cargo run --quiet -- config check scheduler.yaml", "name: ZoneScheduler"),
    ("cargo run --quiet -- --version", "zone-scheduler 0.1.0 (Loadmaster "),
    ("cargo run --quiet -- --help", "Usage: zone-scheduler [OPTIONS]"),
    (
        "cargo run --quiet -- up --config scheduler.yaml -f cluster.yaml --exit-when-settled",
        "gold-2",
    ),
];

/// Writes the repository in a temporary folder, so that no setting of the checkout but the dev profile applies to it, and runs
/// the commands.
pub fn run() -> Result<bool> {
    let folder = std::env::temp_dir().join(format!("loadmaster-new-plugin-{}", std::process::id()));
    let crates = OutsideCrates::in_folder(folder)?;
    let done = build_and_run(&crates);
    fs::remove_dir_all(crates.folder())?;
    done?;
    println!("the repository of `loadmaster new plugin` is correct: {} commands", COMMANDS.len());
    Ok(true)
}

fn build_and_run(crates: &OutsideCrates) -> Result<()> {
    let root = root()?;
    let manifest = root.join("Cargo.toml").display().to_string();
    let new = format!(
        "cargo run --quiet --manifest-path '{manifest}' --package loadmaster -- new plugin {NAME} --loadmaster '{}'",
        root.display()
    );
    crates.shell(&new, None)?;
    for (command, want) in COMMANDS {
        let text = crates.shell(command, Some(NAME))?;
        ensure!(text.contains(want), "{command}: the output does not contain {want:?}");
    }
    Ok(())
}
