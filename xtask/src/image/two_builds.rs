//! Checks that images are reproducible: builds them in two copies of the workspace, whose folders have different names, and compares them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::build::Toolchain;
use super::layer::Entries;

/// Two names of different lengths: a path in a program would also move what is behind it.
const FOLDERS: [&str; 2] = ["one", "a-second-folder"];

/// Builds twice, and prints the files of the two layouts that differ. Both folders stay if there are any.
pub fn are_equal(
    toolchain: &Toolchain,
    build: impl Fn(&Toolchain) -> Result<Entries>,
) -> Result<bool> {
    let scratch = toolchain.target_folder().join("image-copies");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    let mut layouts = Vec::new();
    for name in FOLDERS {
        let folder = scratch.join(name);
        copy_sources(toolchain.root(), &folder)?;
        println!("building in {}", folder.display());
        // The workspace's target folder, even if this process was told to use another one: everything is built anew.
        let copy = Toolchain::find(folder.clone())?.with_target_folder(folder.join("target"));
        layouts.push(build(&copy)?);
    }
    let differences = differences(&layouts[0], &layouts[1]);
    for path in &differences {
        println!("{path} differs");
    }
    if differences.is_empty() {
        println!("both builds are equal, byte by byte");
        fs::remove_dir_all(&scratch).with_context(|| format!("removing {}", scratch.display()))?;
    }
    Ok(differences.is_empty())
}

/// Copies all files that git knows, or would take.
fn copy_sources(root: &Path, folder: &Path) -> Result<()> {
    let list = crate::git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), folder.join(name));
        // Deleted, but not for git yet.
        if !from.exists() {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

/// The paths at which two layouts differ.
fn differences(one: &Entries, other: &Entries) -> Vec<String> {
    let is_different = |path: &&String| one.get(*path) != other.get(*path);
    let mut paths: Vec<String> =
        one.keys().chain(other.keys()).filter(is_different).cloned().collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::super::layer::add_file;
    use super::*;

    #[test]
    fn layouts_are_compared_by_path_and_content() {
        let layout = |files: &[(&str, &str)]| {
            let mut entries = Entries::new();
            for (path, content) in files {
                add_file(&mut entries, path, 0o644, (*content).into());
            }
            entries
        };
        let one = layout(&[("index.json", "1"), ("a", "x"), ("b", "x")]);
        let other = layout(&[("index.json", "2"), ("a", "x"), ("c", "x")]);
        assert_eq!(differences(&one, &other), ["b", "c", "index.json"]);
        assert_eq!(differences(&one, &one), Vec::<String>::new());
    }
}
