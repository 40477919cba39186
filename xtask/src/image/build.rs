//! Builds the programs of images: static, and the same bytes wherever the sources are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::sbom;

/// An architecture of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// As OCI names it.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// As Rust names the architecture alone.
    fn rust_name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64",
            Architecture::Arm64 => "aarch64",
        }
    }

    /// That of this machine.
    pub fn of_host() -> Result<Architecture> {
        let mut all = [Architecture::Amd64, Architecture::Arm64].into_iter();
        all.find(|it| it.is_host()).context("there are no images for this machine's architecture")
    }

    /// Whether programs of this architecture run on this machine.
    pub fn is_host(self) -> bool {
        std::env::consts::ARCH == self.rust_name()
    }

    /// The target: musl libc can be linked statically.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.rust_name())
    }

    /// The number of the machine in an ELF header.
    fn elf_machine(self) -> u16 {
        match self {
            Architecture::Amd64 => 62,
            Architecture::Arm64 => 183,
        }
    }

    /// C compilers for the target, the best one first. Those for glibc do, too: the C and assembly code of `ring` and `psm` calls no libc.
    fn c_compilers(self) -> Vec<String> {
        let arch = self.rust_name();
        let for_host = self.is_host().then(|| "musl-gcc".to_owned());
        let others = [format!("{arch}-linux-musl-gcc"), format!("{arch}-linux-gnu-gcc")];
        for_host.into_iter().chain(others).collect()
    }
}

/// The tools and folders of a build.
pub struct Toolchain {
    root: PathBuf,
    /// The target folder of the workspace.
    target_folder: PathBuf,
    cargo_home: PathBuf,
    sysroot: PathBuf,
    /// `1.95.0`.
    pub rustc_version: String,
    rustc_commit: String,
}

impl Toolchain {
    /// Asks cargo and rustc about a workspace.
    pub fn find(root: PathBuf) -> Result<Toolchain> {
        let metadata =
            output(cargo(&root).args(["metadata", "--format-version", "1", "--no-deps"]))?;
        let metadata: Value = serde_json::from_str(&metadata).context("reading cargo metadata")?;
        let target_folder =
            metadata["target_directory"].as_str().context("cargo metadata has a target folder")?;
        let version = output(rustc(&root).arg("-vV"))?;
        let line = |key: &str| {
            let found = version.lines().find_map(|line| line.strip_prefix(key));
            found.map(str::to_owned).with_context(|| format!("rustc -vV has a line {key}"))
        };
        let sysroot = output(rustc(&root).args(["--print", "sysroot"]))?;
        Ok(Toolchain {
            target_folder: target_folder.into(),
            cargo_home: cargo_home()?,
            sysroot: sysroot.trim().into(),
            rustc_version: line("release: ")?,
            rustc_commit: line("commit-hash: ")?,
            root,
        })
    }

    /// The same with another target folder.
    pub fn with_target_folder(self, target_folder: PathBuf) -> Toolchain {
        Toolchain { target_folder, ..self }
    }

    /// The workspace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The target folder of the workspace.
    pub fn target_folder(&self) -> &Path {
        &self.target_folder
    }

    /// Builds packages without default features, and returns the folder of their programs.
    pub fn build(&self, architecture: Architecture, packages: &[&str]) -> Result<PathBuf> {
        let target = architecture.target();
        self.install_target(&target)?;
        let compiler = find_c_compiler(architecture)?;
        let mut cargo = cargo(&self.root);
        cargo.args(["build", "--locked", "--release", "--no-default-features"]);
        cargo.args(["--target", &target]).arg("--target-dir").arg(&self.target_folder);
        cargo.args(packages.iter().flat_map(|package| ["--package", package]));
        // Instead of flags of the user and of configuration files: they would change the programs.
        cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", self.rust_flags()?);
        cargo.env(format!("CC_{}", target.replace('-', "_")), &compiler);
        if !architecture.is_host() {
            let name = target.replace('-', "_").to_uppercase();
            cargo.env(format!("CARGO_TARGET_{name}_LINKER"), &compiler);
        }
        // Incremental compilation is off in the profile, and this variable would turn it on.
        cargo.env_remove("CARGO_INCREMENTAL");
        let status = cargo.status().context("running cargo")?;
        ensure!(status.success(), "building {} for {target} failed", packages.join(", "));
        Ok(self.target_folder.join(&target).join("release"))
    }

    /// Paths on this machine do not get into the programs, not even the name of the registry that crates were downloaded from.
    fn rust_flags(&self) -> Result<String> {
        // A later flag takes precedence: the target folder may be inside the workspace, and the registry is inside Cargo's folder.
        let mut prefixes = vec![
            (self.cargo_home.clone(), "/cargo".to_owned()),
            (self.root.clone(), "/loadmaster".to_owned()),
            (self.target_folder.clone(), "/loadmaster/target".to_owned()),
            (self.sysroot.join("lib/rustlib/src/rust"), format!("/rustc/{}", self.rustc_commit)),
        ];
        let sources = self.cargo_home.join("registry/src");
        for registry in std::fs::read_dir(&sources).into_iter().flatten() {
            let registry = registry.with_context(|| format!("reading {}", sources.display()))?;
            prefixes.push((registry.path(), "/cargo/registry".to_owned()));
        }
        let flag = |(from, to): &(PathBuf, String)| {
            let from = from.to_str().context("a path is not UTF-8")?;
            Ok(format!("--remap-path-prefix={from}={to}"))
        };
        let flags: Result<Vec<String>> = prefixes.iter().map(flag).collect();
        Ok(flags?.join("\x1f"))
    }

    /// Installs the target's standard library if it is missing.
    fn install_target(&self, target: &str) -> Result<()> {
        let folder =
            output(rustc(&self.root).args(["--print", "target-libdir", "--target", target]))?;
        if Path::new(folder.trim()).is_dir() {
            return Ok(());
        }
        let added =
            Command::new("rustup").args(["target", "add", target]).current_dir(&self.root).status();
        let is_added = added.as_ref().is_ok_and(|status| status.success());
        ensure!(
            is_added,
            "the Rust target {target} is missing, and `rustup target add {target}` could not install it"
        );
        Ok(())
    }

    /// The crates that are linked into the packages' programs, for [`sbom::document`].
    pub fn tree(&self, architecture: Architecture, packages: &[&str]) -> Result<String> {
        let mut cargo = cargo(&self.root);
        cargo.args(["tree", "--locked", "--no-default-features", "--edges", "normal"]);
        cargo.args(["--prefix", "depth", "--format", sbom::TREE_FORMAT]);
        cargo.args(["--target", &architecture.target()]);
        cargo.args(packages.iter().flat_map(|package| ["--package", package]));
        output(&mut cargo)
    }
}

/// Cargo, in the workspace.
fn cargo(root: &Path) -> Command {
    let mut cargo = crate::command("cargo");
    cargo.current_dir(root);
    cargo
}

/// The compiler that cargo uses in the workspace.
fn rustc(root: &Path) -> Command {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root);
    rustc
}

/// Cargo's folder, with the sources of crates.
fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}

/// The C compiler of the environment, or one on the PATH.
fn find_c_compiler(architecture: Architecture) -> Result<OsString> {
    let target = architecture.target();
    let variable = format!("CC_{}", target.replace('-', "_"));
    if let Some(compiler) = std::env::var_os(&variable) {
        return Ok(compiler);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |name: &String| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let candidates = architecture.c_compilers();
    if let Some(found) = candidates.iter().find(|name| is_installed(name)) {
        return Ok(found.into());
    }
    let package = match (architecture.is_host(), architecture) {
        (true, _) => "musl-tools",
        (false, Architecture::Amd64) => "gcc-x86-64-linux-gnu",
        (false, Architecture::Arm64) => "gcc-aarch64-linux-gnu",
    };
    bail!(
        "there is no C compiler for {target}: install {} (on Debian and Ubuntu, the package {package}), or set {variable}",
        candidates.join(" or ")
    )
}

/// Checks that a program is for this architecture and needs no dynamic linker.
pub fn check_static(program: &[u8], architecture: Architecture) -> Result<()> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, size: usize| {
        let bytes = program.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // The header of a little-endian 64-bit file (System V ABI, chapter 4).
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "it is not a 64-bit ELF file");
    let machine = number(18, 2).context("its header is cut off")?;
    ensure!(
        machine == u64::from(architecture.elf_machine()),
        "it is for another machine: {machine}"
    );
    let headers = (number(32, 8), number(54, 2), number(56, 2));
    let (Some(first), Some(size), Some(n_headers)) = headers else {
        bail!("its header is cut off")
    };
    for nth in 0..n_headers {
        let at = nth.checked_mul(size).and_then(|offset| offset.checked_add(first));
        let at = at.and_then(|at| usize::try_from(at).ok());
        let kind = at.and_then(|at| number(at, 4)).context("its program headers are cut off")?;
        ensure!(kind != u64::from(PT_INTERP), "it needs a dynamic linker");
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("running {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header for a machine, with one program header of a kind.
    fn elf(machine: u8, kind: u8) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        (file[18], file[32], file[54], file[56]) = (machine, 64, 56, 1);
        file.push(kind);
        file.resize(120, 0);
        file
    }

    #[test]
    fn programs_are_checked() {
        #[track_caller]
        fn check(program: &[u8], want: &str) {
            let found = check_static(program, Architecture::Amd64);
            assert_eq!(found.map_or_else(|error| error.to_string(), |()| String::new()), want);
        }
        check(&elf(62, 1), "");
        check(&elf(62, 3), "it needs a dynamic linker");
        check(&elf(183, 1), "it is for another machine: 183");
        check(&elf(62, 1)[..66], "its program headers are cut off");
        check(&elf(62, 1)[..30], "its header is cut off");
        check(b"#!/bin/sh\n", "it is not a 64-bit ELF file");
    }

    #[test]
    fn targets() {
        assert_eq!(Architecture::Amd64.target(), "x86_64-unknown-linux-musl");
        assert_eq!(Architecture::Arm64.target(), "aarch64-unknown-linux-musl");
    }
}
