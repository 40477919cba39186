//! A crate outside of the workspace that depends on Loadmaster, as users write it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::{root, target_folder};

/// Where crates outside of the workspace are, and their builds.
pub struct OutsideCrates {
    folder: PathBuf,
    target: PathBuf,
}

impl OutsideCrates {
    /// Makes a new folder for crates. Cargo compiles their dependencies with the settings of the workspace, and into its target folder: what was
    /// built for the tests of the workspace is not built again.
    pub fn in_folder(folder: PathBuf) -> Result<OutsideCrates> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join(".cargo"))?;
        fs::write(folder.join(".cargo/config.toml"), settings(&root()?)?)?;
        Ok(OutsideCrates { folder, target: target_folder()? })
    }

    /// The folder of the crates.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a command in the folder of a crate, or in that of all of them if there is none; returns its standard output.
    pub fn shell(&self, command: &str, name: Option<&str>) -> Result<String> {
        println!("$ {command}");
        let output = crate::command("sh")
            .args(["-c", command])
            .current_dir(name.map_or_else(|| self.folder.clone(), |name| self.folder.join(name)))
            .env("CARGO_TARGET_DIR", &self.target)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| command.to_owned())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{text}");
        ensure!(output.status.success(), "{command}: {}", output.status);
        Ok(text)
    }
}

/// The dev profile of the workspace, in which only dependencies are optimised. For a crate outside, members of the workspace are dependencies, too.
fn settings(root: &Path) -> Result<String> {
    let mut text = "[profile.dev.package.\"*\"]\nopt-level = 1\n".to_owned();
    for folder in fs::read_dir(root.join("crates"))? {
        let name = folder?.file_name().into_string().ok().context("a crate's name")?;
        let name = if name == "loadmaster" { name } else { format!("loadmaster-{name}") };
        text += &format!("[profile.dev.package.{name}]\nopt-level = 0\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_workspace() {
        let root = root().unwrap();
        let text = settings(&root).unwrap();
        assert!(text.contains("[profile.dev.package.loadmaster]\n"));
        assert!(text.contains("[profile.dev.package.loadmaster-engine]\n"));
        let workspace: toml_edit::DocumentMut =
            fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
        let ours: toml_edit::DocumentMut = text.parse().unwrap();
        let of_all = |document: &toml_edit::DocumentMut| {
            document["profile"]["dev"]["package"]["*"]["opt-level"].as_integer().unwrap()
        };
        assert_eq!(of_all(&ours), of_all(&workspace));
    }
}
