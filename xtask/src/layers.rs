//! `cargo xtask layers`: fails when a crate depends on a crate of a higher layer, or a crate below the async layer on an async
//! library; when modules of a crate import each other; and when a plugin imports another (ARCHITECTURE.md).
//!
//! Imports are `use` declarations and paths written in place. Modules that only tests use (`#[cfg(test)]`) are left out;
//! `framework::testkit`, which plugin authors use, is not. Between a module and those that it declares imports may go both ways: what is
//! checked are the modules that one module declares, among each other, each with everything below it.

mod module_order;
mod module_source;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::root;
use module_order::ModuleTree;

/// Directories in `crates/` and their layers.
const LAYERS: &[(&str, u32)] = &[
    ("stdx", 0),
    ("api", 1),
    ("framework", 2),
    ("config", 2),
    ("extender", 3),
    ("legacy-plugins", 3),
    ("plugins", 3),
    ("scheduler-plugins", 3),
    ("engine", 4),
    ("apiserver", 5),
    ("client", 5),
    ("controllers", 5),
    ("extender-server", 5),
    ("serving", 5),
    ("daemon", 6),
    ("sim", 6),
    ("loadmaster", 7),
];

/// The lowest layer with async code: lower layers must not depend on async libraries.
const ASYNC_LAYER: u32 = 5;
const ASYNC: &[&str] = &["futures", "hyper", "kube", "rustls", "tokio"];

/// Directories in `crates/` in which no modules import each other; in the others some still do.
const CRATES_WITH_MODULE_ORDER: &[&str] = &[
    "client",
    "config",
    "engine",
    "framework",
    "legacy-plugins",
    "plugins",
    "scheduler-plugins",
    "stdx",
];

/// The crates of plugins, and their modules that are no plugin and that every plugin of the crate may use.
const PLUGIN_CRATES: &[(&str, &[&str])] = &[
    (
        "plugins",
        &[
            "column_filter",
            "csi_migration",
            "explain_text",
            "normalize",
            "tolerations",
            "utilization_shape",
            "volumes",
        ],
    ),
    ("scheduler-plugins", &["elastic_quota", "normalized_node_score", "pod_group"]),
    ("legacy-plugins", &["in_tree_volume_limits", "resource_args"]),
];

/// Checks the dependencies between the workspace's crates, and the imports inside those whose modules are in order.
pub fn run() -> Result<()> {
    let mut wrong = wrong_dependencies()?;
    wrong.extend(wrong_imports(&root()?)?);
    if wrong.is_empty() {
        println!(
            "layers: {} crates, no dependency on a higher layer; in {} of them no modules import each other",
            LAYERS.len(),
            CRATES_WITH_MODULE_ORDER.len()
        );
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

/// Dependencies on higher layers and on async libraries; dev-dependencies are not restricted.
fn wrong_dependencies() -> Result<Vec<String>> {
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
    Ok(wrong)
}

/// Modules that import each other, and plugins that import another plugin.
fn wrong_imports(root: &Path) -> Result<Vec<String>> {
    let read_file = |file: &Path| {
        fs::read_to_string(root.join(file)).with_context(|| format!("reading {}", file.display()))
    };
    let mut wrong = Vec::new();
    for folder in CRATES_WITH_MODULE_ORDER {
        let root_file = format!("crates/{folder}/src/lib.rs");
        let modules = ModuleTree::read(Path::new(&root_file), &read_file)?;
        wrong.extend(modules.cycles());
        if let Some((_, shared)) = PLUGIN_CRATES.iter().find(|(name, _)| name == folder) {
            let imports = modules.imports_except_of(shared);
            wrong
                .extend(imports.iter().map(|import| format!("a plugin imports another: {import}")));
        }
    }
    Ok(wrong)
}

fn package_name(folder: &str) -> String {
    if folder == "loadmaster" { folder.to_owned() } else { format!("loadmaster-{folder}") }
}
