//! `cargo xtask licenses`: fails on a dependency whose license is not allowed, or that does not come from crates.io; lists
//! dependencies with several incompatible versions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Licenses (SPDX) that are compatible with Apache-2.0.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The registry, in lock files and in the output of Cargo.
pub const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every package of the lock file, for all platforms.
pub fn run() -> Result<()> {
    let mut cargo = Command::new("cargo");
    let output = cargo.args(["metadata", "--format-version", "1", "--locked"]).output();
    let output = output.context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has packages")?;
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let version = package["version"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or("none");
        if !is_allowed(license) {
            wrong.push(format!("{name} {version}: license {license}"));
        }
        match package["source"].as_str() {
            None | Some(CRATES_IO) => {}
            Some(source) => wrong.push(format!("{name} {version}: comes from {source}")),
        }
        versions.entry(name).or_default().insert(compatible(version));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    println!("licenses: {} packages, all allowed and from crates.io", packages.len());
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        println!("note: several versions of {name}: {}", versions.join(", "));
    }
    Ok(())
}

/// The part of a version that determines compatibility: `1` of `1.2.3`, `0.4` of `0.4.5`.
fn compatible(version: &str) -> String {
    let n_parts = if version.starts_with("0.") { 2 } else { 1 };
    version.split('.').take(n_parts).collect::<Vec<_>>().join(".")
}

/// Whether an SPDX expression permits an allowed license. An exception (`WITH`) only adds permissions; old manifests write a slash
/// for OR.
fn is_allowed(expression: &str) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = text.split_whitespace().peekable();
    any_of(&mut tokens) && tokens.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(tokens: &mut Tokens<'_>) -> bool {
    let mut allowed = all_of(tokens);
    while tokens.next_if_eq(&"OR").is_some() {
        allowed |= all_of(tokens);
    }
    allowed
}

fn all_of(tokens: &mut Tokens<'_>) -> bool {
    let mut allowed = one(tokens);
    while tokens.next_if_eq(&"AND").is_some() {
        allowed &= one(tokens);
    }
    allowed
}

fn one(tokens: &mut Tokens<'_>) -> bool {
    if tokens.next_if_eq(&"(").is_some() {
        let allowed = any_of(tokens);
        return tokens.next() == Some(")") && allowed;
    }
    let allowed = tokens.next().is_some_and(|license| ALLOWED.contains(&license));
    if tokens.next_if_eq(&"WITH").is_some() {
        return tokens.next().is_some() && allowed;
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for (expression, want) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("none", false),
            ("", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0-only", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("GPL-3.0-only WITH Classpath-exception-2.0", false),
            ("MIT )", false),
            ("(MIT", false),
        ] {
            assert_eq!(is_allowed(expression), want, "{expression}");
        }
    }

    #[test]
    fn compatible_versions() {
        for (version, want) in [("1.2.3", "1"), ("0.4.5", "0.4"), ("10.0.0-rc.1", "10")] {
            assert_eq!(compatible(version), want);
        }
    }
}
