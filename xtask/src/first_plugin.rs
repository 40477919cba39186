//! `cargo xtask first-plugin`: makes the crate of the page "Your first plugin" from the page alone, and does what the page says.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::root;

const PAGE: &str = "docs/src/first-plugin.md";

/// The one thing that differs: the page's readers have no copy of this repository.
const DEPENDENCY: &str = "{ git = \"https://github.com/loadmaster/loadmaster\" }";

/// Makes it, tests it, runs it.
pub fn run() -> Result<bool> {
    let root = root()?;
    let page = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let page = Page::read(&page)?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let home = target.join("first-plugin/pool-scheduler");
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::create_dir_all(home.join("src"))?;
    for (path, text) in &page.files {
        let text = match path.as_str() {
            "Cargo.toml" => manifest(text, &root)?,
            _ => text.clone(),
        };
        fs::write(home.join(path), text).with_context(|| path.clone())?;
    }
    // The same versions of everything, and nothing built twice.
    fs::copy(root.join("Cargo.lock"), home.join("Cargo.lock"))?;
    let mut said = String::new();
    for command in &page.commands {
        println!("$ {command}");
        let output = crate::command("sh")
            .args(["-c", command])
            .current_dir(&home)
            .env("CARGO_TARGET_DIR", &target)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{said}");
        ensure!(output.status.success(), "{command}: {}", output.status);
    }
    for line in page.shown.lines() {
        let is_there = said.lines().any(|it| words(it) == words(line));
        ensure!(is_there, "the page says {line:?}, the program does not");
    }
    println!("the page is right: {} files, {} commands", page.files.len(), page.commands.len());
    Ok(true)
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Depends on this copy, and is no part of the workspace around it.
fn manifest(text: &str, root: &Path) -> Result<String> {
    ensure!(text.contains(DEPENDENCY), "{PAGE}: Cargo.toml does not say {DEPENDENCY}");
    let facade = root.join("crates/loadmaster");
    let here = format!("{{ path = {:?} }}", facade.display().to_string());
    Ok(format!("{}\n[workspace]\n", text.replace(DEPENDENCY, &here)))
}

/// What the page has to say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// Path and text: blocks after a line that names a file.
    files: Vec<(String, String)>,
    /// Blocks in `sh`, but for the making of the crate.
    commands: Vec<String>,
    /// What the last command shows.
    shown: String,
}

impl Page {
    fn read(text: &str) -> Result<Page> {
        let mut page = Page::default();
        let mut path = None;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(kind) = line.strip_prefix("```") else {
                let named = line.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:"));
                // A blank line stands between a name and its block.
                path = named.or(path.filter(|_| line.is_empty()));
                continue;
            };
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let block = block.join("\n") + "\n";
            match (path.take(), kind) {
                (Some(path), _) => page.files.push((path.to_owned(), block)),
                (None, "sh") if block.starts_with("cargo new ") => {}
                (None, "sh") => page.commands.push(block.trim_end().to_owned()),
                (None, "text") => page.shown = block,
                (None, "console") => {}
                (None, other) => bail!("{PAGE}: a block in {other:?} of no file"),
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks() {
        let page = "\
            `a/b.rs`:\n\n```rust,ignore\nfn main() {}\n```\n\nText with `code`:\n\n```sh\ncargo test\n```\n\
            ```sh\ncargo new x && cd x\n```\n```text\nname 3\n```\n```console\n$ ls\n```\n";
        let want = Page {
            files: vec![("a/b.rs".to_owned(), "fn main() {}\n".to_owned())],
            commands: vec!["cargo test".to_owned()],
            shown: "name 3\n".to_owned(),
        };
        assert_eq!(Page::read(page).unwrap(), want);
        assert!(Page::read("```yaml\na: 1\n```\n").is_err());
    }

    #[test]
    fn the_page_has_all_it_needs() {
        let text = fs::read_to_string(root().unwrap().join(PAGE)).unwrap();
        let page = Page::read(&text).unwrap();
        let paths: Vec<&str> = page.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["Cargo.toml", "src/main.rs", "scheduler.yaml", "cluster.yaml"]);
        assert_eq!(page.commands.len(), 3);
        assert!(page.shown.contains("gold-1"));
        manifest(&page.files[0].1, Path::new("/here")).unwrap();
    }
}
