//! `cargo xtask new-plugin`: writes a repository with `loadmaster new plugin`, and builds, tests and runs it.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

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

/// Writes the repository in a temporary folder, so that no setting of the checkout applies to it, and runs the commands.
pub fn run() -> Result<bool> {
    let root = root()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let folder = std::env::temp_dir().join(format!("loadmaster-new-plugin-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let done = build_and_run(&root, &target, &folder);
    fs::remove_dir_all(&folder)?;
    done?;
    println!("the repository of `loadmaster new plugin` is correct: {} commands", COMMANDS.len());
    Ok(true)
}

fn build_and_run(root: &Path, target: &Path, folder: &Path) -> Result<()> {
    let manifest = root.join("Cargo.toml").display().to_string();
    let new = format!(
        "cargo run --quiet --manifest-path '{manifest}' --package loadmaster -- new plugin {NAME} --loadmaster '{}'",
        root.display()
    );
    shell(&new, folder, target)?;
    for (command, want) in COMMANDS {
        let text = shell(command, &folder.join(NAME), target)?;
        ensure!(text.contains(want), "{command}: the output does not contain {want:?}");
    }
    Ok(())
}

/// Runs a command; returns its standard output.
fn shell(command: &str, folder: &Path, target: &Path) -> Result<String> {
    println!("$ {command}");
    let output = crate::command("sh")
        .args(["-c", command])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| command.to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    ensure!(output.status.success(), "{command}: {}", output.status);
    Ok(text)
}
