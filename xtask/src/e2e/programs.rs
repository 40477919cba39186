//! The programs of a real control plane, built from `conformance/` when they are missing or old.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::oracle::process;

/// A program of upstream's, as `conformance/bin` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Etcd,
    KubeApiserver,
    KubeScheduler,
    KubeControllerManager,
    Kubectl,
    /// Ours: client-go's informers, which tell what they believe.
    Informer,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 6] = [
        Program::Etcd,
        Program::KubeApiserver,
        Program::KubeScheduler,
        Program::KubeControllerManager,
        Program::Kubectl,
        Program::Informer,
    ];

    /// The name of the binary.
    pub fn name(self) -> &'static str {
        match self {
            Program::Etcd => "etcd",
            Program::KubeApiserver => "kube-apiserver",
            Program::KubeScheduler => "kube-scheduler",
            Program::KubeControllerManager => "kube-controller-manager",
            Program::Kubectl => "kubectl",
            Program::Informer => "informer",
        }
    }

    /// Where it is once it was built.
    pub fn path(self) -> Result<PathBuf> {
        Ok(conformance()?.join("bin").join(self.name()))
    }

    /// The module it is built in, and its package there. etcd has a module of its own.
    fn source(self) -> Result<(PathBuf, String)> {
        let conformance = conformance()?;
        Ok(match self {
            Program::Etcd => (conformance.join("etcd"), ".".to_owned()),
            _ => (conformance, format!("./cmd/{}", self.name())),
        })
    }
}

/// Builds examples of ours; the folder in which they are.
pub fn examples(names: &[&str]) -> Result<PathBuf> {
    let folder = folder()?;
    let mut cargo = Command::new("cargo");
    // With the features of the workspace, as its tests were built.
    cargo.args(["build", "--workspace"]).args(names.iter().flat_map(|name| ["--bin", name]));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    match cargo.current_dir(crate::root()?).status().context("running cargo")?.success() {
        true => Ok(folder),
        false => bail!("building {} failed", names.join(", ")),
    }
}

/// Loadmaster's binary of the release profile.
pub fn release_binary() -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding the target folder")?;
    let target = this.ancestors().nth(2).context("finding the target folder")?;
    Ok(target.join("release/loadmaster"))
}

/// The folder of this program, where the examples are too.
pub fn folder() -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding the target folder")?;
    Ok(this.parent().context("finding the target folder")?.to_owned())
}

fn conformance() -> Result<PathBuf> {
    Ok(crate::root()?.join("conformance"))
}

/// Builds those that are missing or older than their sources. The first time takes some ten minutes of CPU, later the build cache serves.
pub fn build(programs: &[Program]) -> Result<()> {
    let mut stale = Vec::new();
    for &program in programs {
        if !is_fresh(program)? {
            stale.push(program);
        }
    }
    let (etcd, kubernetes): (Vec<_>, Vec<_>) =
        stale.into_iter().partition(|&program| program == Program::Etcd);
    build_together(&etcd)?;
    build_together(&kubernetes)
}

fn is_fresh(program: Program) -> Result<bool> {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let (module, package) = program.source()?;
    let Some(built) = changed(&program.path()?) else { return Ok(false) };
    let sources =
        [module.join("go.mod"), module.join("go.sum"), module.join(package).join("main.go")];
    Ok(sources.iter().all(|source| changed(source) <= Some(built)))
}

/// One call of go for all programs of a module: they share most of their packages.
fn build_together(programs: &[Program]) -> Result<()> {
    let Some(first) = programs.first() else { return Ok(()) };
    let (module, _) = first.source()?;
    let names: Vec<&str> = programs.iter().map(|program| program.name()).collect();
    eprintln!("building {} (some minutes the first time)", names.join(", "));
    let mut go = Command::new("go");
    // kubectl and clients that look at the server's version refuse the unset one.
    let version = format!("-X k8s.io/component-base/version.gitVersion={}", process::version()?);
    go.args(["build", "-ldflags", &format!("-s -w {version}"), "-o"]);
    // A folder, or the name of the binary where the package is not called like it.
    go.arg(match first {
        Program::Etcd => first.path()?,
        _ => conformance()?.join("bin/"),
    });
    for program in programs {
        go.arg(program.source()?.1);
    }
    std::fs::create_dir_all(conformance()?.join("bin")).context("making conformance/bin")?;
    match go.current_dir(&module).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!("go build failed in {}", module.display()),
        // Files that were just checked out all look new; programs that are there will do.
        Err(error) if error.kind() == ErrorKind::NotFound && all_built(programs)? => {
            eprintln!("there is no Go to build with: using the programs that are there");
            Ok(())
        }
        Err(error) => Err(error).context("running go; the real control plane needs Go 1.26"),
    }
}

fn all_built(programs: &[Program]) -> Result<bool> {
    for program in programs {
        if !program.path()?.exists() {
            return Ok(false);
        }
    }
    Ok(true)
}
