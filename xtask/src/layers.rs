//! `cargo xtask layers`: fails when a crate depends on a crate of a higher layer, or a crate below the async layer on an async
//! library
//! (ARCHITECTURE.md).

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Directories in `crates/` and their layers.
const LAYERS: &[(&str, u32)] = &[
    ("stdx", 0),
    ("api", 1),
    ("framework", 2),
    ("config", 2),
    ("extender", 3),
    ("plugins", 3),
    ("engine", 4),
    ("apiserver", 5),
    ("client", 5),
    ("controllers", 5),
    ("extender-server", 5),
    ("daemon", 6),
    ("sim", 6),
    ("loadmaster", 7),
];

/// The lowest layer with async code: lower layers must not depend on async libraries.
const ASYNC_LAYER: u32 = 5;
const ASYNC: &[&str] = &["futures", "hyper", "kube", "rustls", "tokio"];

/// Checks every dependency between the workspace's crates; dev-dependencies are not restricted.
pub fn run() -> Result<()> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("running cargo metadata")?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let layer_of: BTreeMap<String, u32> =
        LAYERS.iter().map(|(folder, layer)| (package_name(folder), *layer)).collect();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata has packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        if !manifest.contains("/crates/") {
            continue;
        }
        let Some(mine) = layer_of.get(name) else {
            wrong.push(format!("{name} has no layer: add it to xtask/src/layers.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if mine < &ASYNC_LAYER && ASYNC.contains(&other) {
                wrong.push(format!("{name} (layer {mine}) depends on {other}, which is async"));
            }
            if let Some(theirs) = layer_of.get(other)
                && !for_tests
                && theirs > mine
            {
                wrong.push(format!("{name} (layer {mine}) depends on {other} (layer {theirs})"));
            }
        }
    }
    if wrong.is_empty() {
        println!("layers: {} crates, no dependency on a higher layer", LAYERS.len());
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

fn package_name(folder: &str) -> String {
    if folder == "loadmaster" { folder.to_owned() } else { format!("loadmaster-{folder}") }
}
