//! The software bill of materials of a program, in CycloneDX: the crates that are linked into it, from `cargo tree` and Cargo.lock.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::layout::{Release, rfc3339};

/// The lines that [`parse_tree`] reads: a package and its license, a line each.
pub const TREE_FORMAT: &str = "|{p}|{l}";

/// A crate: its name and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
}

#[derive(Debug, Default)]
struct CrateInfo {
    license: String,
    /// Run by the compiler, not linked.
    is_proc_macro: bool,
    dependencies: BTreeSet<Crate>,
}

/// Crates and their dependencies.
type Graph = BTreeMap<Crate, CrateInfo>;

/// The document for a package. `tree` is the output of `cargo tree --prefix depth --format` with [`TREE_FORMAT`], for this package and others;
/// `lock` is Cargo.lock.
pub fn document(
    package: &str,
    tree: &str,
    lock: &str,
    rustc_version: &str,
    release: &Release,
) -> Result<Value> {
    let graph = parse_tree(tree)?;
    let root = graph.keys().find(|it| it.name == package).cloned();
    let root = root.with_context(|| format!("{package} is not in the output of cargo tree"))?;
    let checksums = checksums(lock);
    let linked = linked(&root, &graph);
    let mut components = vec![json!({
        "type": "library",
        "bom-ref": "rust-std",
        "name": "rust-std",
        "description": "The standard library of Rust, with musl libc",
        "version": rustc_version,
    })];
    let mut dependencies = Vec::new();
    for it in &linked {
        let CrateInfo { dependencies: of_crate, .. } = &graph[it];
        let of_crate = of_crate.intersection(&linked).map(Crate::purl);
        dependencies.push(json!({"ref": it.purl(), "dependsOn": of_crate.collect::<Vec<_>>()}));
        if *it != root {
            components.push(component("library", it, &graph, &checksums));
        }
    }
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(release.seconds)?,
            "component": component("application", &root, &graph, &checksums),
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

impl Crate {
    /// The package URL, which is also the name inside the document.
    fn purl(&self) -> String {
        // `+` begins build metadata in a version.
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

fn component(kind: &str, of: &Crate, graph: &Graph, checksums: &BTreeMap<Crate, String>) -> Value {
    let purl = of.purl();
    let mut component = json!({
        "type": kind, "bom-ref": purl, "name": of.name, "version": of.version, "purl": purl,
    });
    let license = graph.get(of).map_or("", |info| &info.license);
    if !license.is_empty() {
        // Old manifests write a slash.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(of) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// Reads lines such as `1|serde v1.0.2 (proc-macro)|MIT (*)`, where the number is the depth.
fn parse_tree(tree: &str) -> Result<Graph> {
    let mut graph = Graph::new();
    let mut path: Vec<Crate> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let parse = || {
            let (depth, rest) = line.split_once('|')?;
            let (package, license) = rest.split_once('|')?;
            let (name, rest) = package.split_once(" v")?;
            let version = rest.split(' ').next()?;
            let found = Crate { name: name.to_owned(), version: version.to_owned() };
            let license = license.trim_end_matches("(*)").trim();
            Some((depth.parse::<usize>().ok()?, found, license, package.contains("(proc-macro)")))
        };
        let (depth, found, license, is_proc_macro) =
            parse().with_context(|| format!("reading a line of cargo tree: {line}"))?;
        ensure!(depth <= path.len(), "a line of cargo tree has no parent: {line}");
        path.truncate(depth);
        if let Some(parent) = path.last().and_then(|parent| graph.get_mut(parent)) {
            parent.dependencies.insert(found.clone());
        }
        let info = graph.entry(found.clone()).or_default();
        (info.license, info.is_proc_macro) = (license.to_owned(), is_proc_macro);
        path.push(found);
    }
    Ok(graph)
}

/// The crates that are linked: all that the root reaches, but not by proc-macros.
fn linked(root: &Crate, graph: &Graph) -> BTreeSet<Crate> {
    let mut found = BTreeSet::new();
    let mut left = vec![root];
    while let Some(it) = left.pop() {
        let Some(info) = graph.get(it).filter(|info| !info.is_proc_macro) else { continue };
        if found.insert(it.clone()) {
            left.extend(&info.dependencies);
        }
    }
    found
}

/// The checksums in Cargo.lock. Crates of the workspace have none.
fn checksums(lock: &str) -> BTreeMap<Crate, String> {
    let of_package = |text: &str| {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
        };
        let found = Crate { name: value("name")?, version: value("version")? };
        Some((found, value("checksum")?))
    };
    lock.split("[[package]]").filter_map(of_package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0|app v0.1.0 (/src/app)|Apache-2.0
1|derive v1.0.0 (proc-macro)|MIT
2|syn v3.0.0|MIT
1|serde v1.0.2|MIT/Apache-2.0
2|serde_core v1.0.2+meta|MIT
1|serde_core v1.0.2+meta|MIT (*)

0|other v0.1.0 (/src/other)|Apache-2.0
1|bytes v1.0.0|MIT
";

    const LOCK: &str = "\
version = 4

[[package]]
name = \"app\"
version = \"0.1.0\"

[[package]]
name = \"serde\"
version = \"1.0.2\"
source = \"registry+https://github.com/rust-lang/crates.io-index\"
checksum = \"abc\"
dependencies = [
 \"serde_core\",
]
";

    #[test]
    fn linked_crates_are_listed() {
        let release = Release {
            tag: "v1".to_owned(),
            version: "0.1.0".to_owned(),
            revision: "0123".to_owned(),
            seconds: 0,
        };
        let document = document("app", TREE, LOCK, "1.95.0", &release).unwrap();
        let (app, serde, core) =
            ("pkg:cargo/app@0.1.0", "pkg:cargo/serde@1.0.2", "pkg:cargo/serde_core@1.0.2%2Bmeta");
        assert_eq!(document["metadata"]["component"]["bom-ref"], app);
        let names = document["components"].as_array().unwrap().iter().map(|it| &it["bom-ref"]);
        assert_eq!(names.collect::<Vec<_>>(), ["rust-std", serde, core]);
        assert_eq!(
            document["components"][1],
            json!({"type": "library", "bom-ref": serde, "name": "serde", "version": "1.0.2", "purl": serde,
                "licenses": [{"expression": "MIT OR Apache-2.0"}], "hashes": [{"alg": "SHA-256", "content": "abc"}]})
        );
        assert_eq!(
            document["dependencies"],
            json!([{"ref": app, "dependsOn": [serde, core]}, {"ref": serde, "dependsOn": [core]}, {"ref": core, "dependsOn": []}])
        );
    }

    #[test]
    fn lines_without_a_package_are_errors() {
        for (tree, want) in [
            ("0|app|MIT", "reading a line of cargo tree: 0|app|MIT"),
            ("1|app v1|MIT", "a line of cargo tree has no parent: 1|app v1|MIT"),
        ] {
            assert_eq!(parse_tree(tree).unwrap_err().to_string(), want);
        }
    }
}
