//! `cargo xtask first-plugin`: creates the crate of the page "Your first plugin" from its code blocks, and runs its commands.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::outside_crate::OutsideCrates;
use crate::page::{self, Step};
use crate::{root, target_folder};

const PAGE: &str = "docs/src/tutorials/first-plugin.md";

/// The crate of the page.
const NAME: &str = "pool-scheduler";

/// The dependency in the page, which is replaced by the path of this repository.
const DEPENDENCY: &str = "{ path = \"../loadmaster/crates/loadmaster\" }";

/// Creates the crate and runs the commands.
pub fn run() -> Result<bool> {
    let root = root()?;
    let page = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let page = Page::read(&page)?;
    let crates = OutsideCrates::in_folder(target_folder()?.join("first-plugin"))?;
    let home = crates.folder().join(NAME);
    fs::create_dir_all(home.join("src"))?;
    for (path, text) in &page.files {
        let text = match path.as_str() {
            "Cargo.toml" => manifest(text, &root)?,
            _ => text.clone(),
        };
        fs::write(home.join(path), text).with_context(|| path.clone())?;
    }
    // The same versions of dependencies, so that nothing is built twice.
    fs::copy(root.join("Cargo.lock"), home.join("Cargo.lock"))?;
    let mut stdout_text = String::new();
    for command in &page.commands {
        stdout_text = crates.shell(command, Some(NAME))?;
    }
    page::check_output(&page.shown, &stdout_text)?;
    println!("the page is correct: {} files, {} commands", page.files.len(), page.commands.len());
    Ok(true)
}

/// The manifest with a dependency on this repository, outside of its workspace.
fn manifest(text: &str, root: &Path) -> Result<String> {
    ensure!(text.contains(DEPENDENCY), "{PAGE}: Cargo.toml does not contain {DEPENDENCY}");
    let facade = root.join("crates/loadmaster");
    let here = format!("{{ path = {:?} }}", facade.display().to_string());
    Ok(format!("{}\n[workspace]\n", text.replace(DEPENDENCY, &here)))
}

/// The code blocks of the page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// Path and text: blocks after a line that names a file.
    files: Vec<(String, String)>,
    /// Blocks in `sh`, except for `cargo new`.
    commands: Vec<String>,
    /// The output of the last command.
    shown: String,
}

impl Page {
    fn read(text: &str) -> Result<Page> {
        let mut page = Page::default();
        for step in page::steps(text).context(PAGE)? {
            match step {
                Step::File { path, text } => page.files.push((path, text)),
                Step::Command(command) if command.starts_with("cargo new ") => {}
                Step::Command(command) => page.commands.push(command),
                Step::Output(text) => page.shown = text,
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete() {
        let text = fs::read_to_string(root().unwrap().join(PAGE)).unwrap();
        let page = Page::read(&text).unwrap();
        let paths: Vec<&str> = page.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["Cargo.toml", "src/main.rs", "scheduler.yaml", "cluster.yaml"]);
        assert_eq!(page.commands.len(), 3);
        assert!(page.shown.contains("gold-1"));
        manifest(&page.files[0].1, Path::new("/here")).unwrap();
    }
}
