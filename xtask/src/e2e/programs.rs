//! The programs of a real control plane, built from `conformance/` if they are missing or outdated.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::oracle::process::required_version;

/// A program of upstream's, as `conformance/bin` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Etcd,
    KubeApiserver,
    KubeScheduler,
    /// kube-scheduler with the plugins of scheduler-plugins, in the version that these need.
    SchedulerPlugins,
    KubeControllerManager,
    Kubectl,
    /// Kubernetes' own end-to-end tests of the scheduler.
    E2eTests,
    /// Our program with client-go's informers, which reports the state of their caches.
    Informer,
    /// Our program with kube-rs' controllers, which annotates objects and reports the state of its caches; only for `e2e churn`.
    Reconciler,
    /// The package manager; not built by `e2e build`, because only `e2e manifests` needs it.
    Helm,
    /// Likewise.
    Kustomize,
    /// Checks and tests alert rules; only for `e2e observing`.
    Promtool,
    /// Our program that tells which metrics a PromQL expression needs; likewise.
    PromqlUses,
}

impl Program {
    /// All that several commands need.
    pub const ALL: [Program; 8] = [
        Program::Etcd,
        Program::KubeApiserver,
        Program::KubeScheduler,
        Program::SchedulerPlugins,
        Program::KubeControllerManager,
        Program::Kubectl,
        Program::E2eTests,
        Program::Informer,
    ];

    /// The name of the binary.
    pub fn name(self) -> &'static str {
        match self {
            Program::Etcd => "etcd",
            Program::KubeApiserver => "kube-apiserver",
            Program::KubeScheduler => "kube-scheduler",
            Program::SchedulerPlugins => "scheduler-plugins",
            Program::KubeControllerManager => "kube-controller-manager",
            Program::Kubectl => "kubectl",
            Program::E2eTests => "e2e",
            Program::Informer => "informer",
            Program::Reconciler => "reconciler",
            Program::Helm => "helm",
            Program::Kustomize => "kustomize",
            Program::Promtool => "promtool",
            Program::PromqlUses => "promql-uses",
        }
    }

    /// The path of the built binary.
    pub fn path(self) -> Result<PathBuf> {
        Ok(conformance()?.join("bin").join(self.name()))
    }

    /// The module it is built in, and its package there. etcd and scheduler-plugins have modules of their own.
    fn source(self) -> Result<(PathBuf, String)> {
        let conformance = conformance()?;
        Ok(match self {
            Program::Etcd => (conformance.join("etcd"), ".".to_owned()),
            Program::SchedulerPlugins => {
                (conformance.join("scheduler-plugins"), "./scheduler".to_owned())
            }
            Program::Reconciler => (conformance.join("reconciler"), ".".to_owned()),
            Program::Helm => (conformance.join("render"), "helm.sh/helm/v3/cmd/helm".to_owned()),
            Program::Kustomize => {
                (conformance.join("render"), "sigs.k8s.io/kustomize/kustomize/v5".to_owned())
            }
            Program::Promtool => (
                conformance.join("observing"),
                "github.com/prometheus/prometheus/cmd/promtool".to_owned(),
            ),
            Program::PromqlUses => (conformance.join("observing"), "./promql-uses".to_owned()),
            _ => (conformance, format!("./cmd/{}", self.name())),
        })
    }

    /// The files that it is built from.
    fn files(self) -> Result<Vec<PathBuf>> {
        let (module, package) = self.source()?;
        Ok(match self {
            Program::Reconciler => {
                ["Cargo.toml", "Cargo.lock", "src/main.rs"].map(|it| module.join(it))
            }
            Program::Helm | Program::Kustomize | Program::Promtool => {
                return Ok(vec![module.join("go.mod"), module.join("go.sum")]);
            }
            _ => {
                [module.join("go.mod"), module.join("go.sum"), module.join(package).join("main.go")]
            }
        }
        .to_vec())
    }
}

/// Builds example programs; returns their folder.
pub fn examples(names: &[&str]) -> Result<PathBuf> {
    let folder = folder()?;
    let mut cargo = crate::command("cargo");
    // With the features of the workspace, as its tests were built.
    cargo.args(["build", "--workspace"]).args(names.iter().flat_map(|name| ["--bin", name]));
    match cargo.current_dir(crate::root()?).status().context("running cargo")?.success() {
        true => Ok(folder),
        false => bail!("building {} failed", names.join(", ")),
    }
}

/// Loadmaster's binary: the given one, or else that of the release profile.
pub fn loadmaster(given: Option<&Path>) -> Result<PathBuf> {
    let of_release = target_folder()?.join("release/loadmaster");
    let binary = given.map_or(of_release, Path::to_owned);
    if !binary.exists() {
        bail!(
            "{} does not exist: build it with `cargo build --release`, or use --loadmaster",
            binary.display()
        );
    }
    Ok(binary)
}

/// The folder of examples: that of the dev profile, because each takes minutes in the release profile, which optimises across crates.
pub fn folder() -> Result<PathBuf> {
    Ok(target_folder()?.join("debug"))
}

fn target_folder() -> Result<PathBuf> {
    let this = std::env::current_exe().context("finding the target folder")?;
    Ok(this.ancestors().nth(2).context("finding the target folder")?.to_owned())
}

fn conformance() -> Result<PathBuf> {
    Ok(crate::root()?.join("conformance"))
}

/// Programs of modules of their own.
const OF_OTHER_MODULES: [Program; 6] = [
    Program::Etcd,
    Program::SchedulerPlugins,
    Program::Helm,
    Program::Kustomize,
    Program::Promtool,
    Program::PromqlUses,
];

/// Builds programs that are missing or older than their sources. The first build takes about ten minutes of CPU time.
pub fn build(programs: &[Program]) -> Result<()> {
    let mut stale = Vec::new();
    for &program in programs {
        if !is_fresh(program)? {
            stale.push(program);
        }
    }
    if stale.contains(&Program::Reconciler) {
        build_reconciler()?;
        stale.retain(|&program| program != Program::Reconciler);
    }
    for program in OF_OTHER_MODULES {
        if stale.contains(&program) {
            build_together(&[program])?;
            stale.retain(|&it| it != program);
        }
    }
    build_together(&stale)
}

/// The reconciler is a separate workspace, because nothing else needs kube's runtime.
fn build_reconciler() -> Result<()> {
    let (folder, _) = Program::Reconciler.source()?;
    let built = folder.join("target");
    eprintln!("building reconciler (some minutes the first time)");
    let mut cargo = crate::command("cargo");
    cargo.args(["build", "--locked", "--target-dir"]).arg(&built).current_dir(&folder);
    if !cargo.status().context("running cargo")?.success() {
        bail!("building in {} failed", folder.display());
    }
    let name = Program::Reconciler.name();
    std::fs::create_dir_all(conformance()?.join("bin")).context("making conformance/bin")?;
    std::fs::copy(built.join("debug").join(name), Program::Reconciler.path()?)
        .with_context(|| format!("copying {name}"))
        .map(drop)
}

fn is_fresh(program: Program) -> Result<bool> {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let Some(built) = changed(&program.path()?) else { return Ok(false) };
    Ok(program.files()?.iter().all(|source| changed(source) <= Some(built)))
}

/// One call of go for all programs of a module: they share most of their packages.
fn build_together(programs: &[Program]) -> Result<()> {
    let Some(first) = programs.first() else { return Ok(()) };
    let (module, _) = first.source()?;
    let names: Vec<&str> = programs.iter().map(|program| program.name()).collect();
    eprintln!("building {} (some minutes the first time)", names.join(", "));
    let mut go = Command::new("go");
    // kubectl and clients that check the server version reject an unset version.
    let required = match first {
        Program::Etcd
        | Program::Helm
        | Program::Kustomize
        | Program::Promtool
        | Program::PromqlUses => conformance()?,
        _ => module.clone(),
    };
    let version = required_version(&required, "k8s.io/kubernetes")?;
    let version = format!("-X k8s.io/component-base/version.gitVersion={version}");
    go.args(["build", "-ldflags", &format!("-s -w {version}")]);
    // promtool without the clients of all clouds, which rules do not need: half of the time to build it.
    if module.ends_with("observing") {
        go.args(["-tags", "remove_all_sd"]);
    }
    // A folder, or the name of the binary where the package is not called like it.
    go.arg("-o").arg(match first {
        Program::Etcd | Program::SchedulerPlugins => first.path()?,
        _ => conformance()?.join("bin/"),
    });
    for program in programs {
        go.arg(program.source()?.1);
    }
    std::fs::create_dir_all(conformance()?.join("bin")).context("making conformance/bin")?;
    match go.current_dir(&module).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!("go build failed in {}", module.display()),
        // Files that were just checked out look new; use existing programs.
        Err(error) if error.kind() == ErrorKind::NotFound && all_built(programs)? => {
            eprintln!("Go is not installed: using the existing programs");
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
