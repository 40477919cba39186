//! Reads images back as a container runtime does, and runs their entry points, isolated by Linux namespaces: no network, no other processes, and
//! only the files of the image.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::build::Architecture;
use super::contents::{Image, USER};
use super::unpacked::Unpacked;

/// What a container must print when it is run with these arguments.
struct Run {
    image: &'static str,
    /// A command in place of the entry point, as `command` of a container.
    command: Option<&'static str>,
    arguments: &'static [&'static str],
    exit_code: i32,
    /// In its output or its errors.
    output: &'static str,
}

const RUNS: &[Run] = &[
    run("loadmaster", None, &["--version"], 0, "(Kubernetes 1.36)"),
    run("loadmaster", None, &["run", "--help"], 0, "--leader-elect-lease-duration"),
    run("loadmaster", Some("/bin/kube-scheduler"), &["--version"], 0, "Kubernetes v1.36."),
    run("loadmaster", Some("kube-scheduler"), &["--config=/none"], 1, "/none"),
    run("loadmaster", None, &["crds"], 0, "name: podgroups.scheduling.x-k8s.io"),
    // The feature `cluster` is not in the image.
    run("loadmaster", None, &["up"], 2, "unrecognized subcommand 'up'"),
    run("loadmaster", None, &["apiserver"], 2, "unrecognized subcommand 'apiserver'"),
    run("loadmaster", None, &["simulate"], 2, "unrecognized subcommand 'simulate'"),
    run("loadmaster-controllers", None, &["--help"], 0, "--enableLeaderElection"),
    run("loadmaster-controllers", None, &["--kubeconfig=/none"], 2, "/none"),
    run(
        "sample-scheduler",
        None,
        &["sample-scheduler-framework", "--version"],
        0,
        "sample-scheduler-framework",
    ),
    run("sample-scheduler", Some("sample-scheduler-framework"), &["--config=/none"], 1, "/none"),
    run("sample-extender", None, &["nowhere"], 1, "invalid socket address"),
    run("gpushare-extender", None, &["--version"], 0, "gpushare-extender"),
    run("gpushare-extender", None, &["--kubeconfig=/none"], 1, "/none"),
];

const fn run(
    image: &'static str,
    command: Option<&'static str>,
    arguments: &'static [&'static str],
    exit_code: i32,
    output: &'static str,
) -> Run {
    Run { image, command, arguments, exit_code, output }
}

/// What is expected of the programs in the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Those that this command has built.
    Built,
    /// Others, which may have more features.
    Given,
}

impl Run {
    /// Whether it shows what is left out of the programs of images.
    fn is_of_build(&self) -> bool {
        self.output.starts_with("unrecognized subcommand")
    }
}

/// Reads images of a layout back into folders of `scratch`, and runs those that this machine can run. Returns these, by name.
pub fn check(
    layout: &Path,
    images: &[&Image],
    tag: &str,
    architecture: Architecture,
    scratch: &Path,
    programs: Programs,
) -> Result<Vec<(&'static str, Unpacked)>> {
    let mut n_runs = 0;
    let mut runnable = Vec::new();
    for image in images {
        let reference = format!("{}:{tag}", image.name);
        let folder = scratch.join(image.name);
        let unpacked = Unpacked::read(layout, &reference, architecture.name(), folder)
            .with_context(|| format!("reading back {reference}"))?;
        check_config(&unpacked, image)
            .with_context(|| format!("the configuration of {reference}"))?;
        if !architecture.is_host() {
            continue;
        }
        let is_wanted = |run: &&Run| {
            run.image == image.name && (programs == Programs::Built || !run.is_of_build())
        };
        for run in RUNS.iter().filter(is_wanted) {
            run_in(&unpacked, run)?;
            n_runs += 1;
        }
        runnable.push((image.name, unpacked));
    }
    println!(
        "{}: {} images were read back, {n_runs} commands ran in them",
        architecture.name(),
        images.len()
    );
    Ok(runnable)
}

fn check_config(unpacked: &Unpacked, image: &Image) -> Result<()> {
    let config = unpacked.config();
    ensure!(config["User"] == USER, "the user is {}", config["User"]);
    let entry_point = Value::from(image.entry_point());
    ensure!(config["Entrypoint"] == entry_point, "the entry point is {}", config["Entrypoint"]);
    let sbom = unpacked.folder.join(format!("usr/share/sbom/{}.cdx.json", image.package));
    let sbom: Value = serde_json::from_slice(&fs::read(sbom).context("reading the SBOM")?)
        .context("reading the SBOM")?;
    let names = sbom["components"].as_array().into_iter().flatten().map(|it| &it["name"]);
    let for_tests = ["loadmaster-apiserver", "loadmaster-sim"];
    if let Some(name) = names.clone().find(|name| for_tests.iter().any(|it| *name == it)) {
        bail!("{name} is in it");
    }
    ensure!(names.count() > 10, "the SBOM lists hardly any crates");
    Ok(())
}

/// Runs the entry point as a container: with the image's user, environment and files, without network and other processes.
fn run_in(image: &Unpacked, run: &Run) -> Result<()> {
    let mut line: Vec<&str> = match run.command {
        Some(command) => vec![command],
        None => image.entry_point(),
    };
    line.extend(run.arguments);
    let shown = || format!("{} in {}", line.join(" "), run.image);
    let mut unshare = isolated(image)?;
    unshare.args(&line).stdin(Stdio::null());
    let output = unshare.output().context("running unshare, of the package util-linux")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    ensure!(
        output.status.code() == Some(run.exit_code) && text.contains(run.output),
        "{}: expected exit code {} and {:?}, found {} and\n{text}",
        shown(),
        run.exit_code,
        run.output,
        output.status
    );
    Ok(())
}

/// `unshare` with the image's settings; what it runs is still to be added.
fn isolated(image: &Unpacked) -> Result<Command> {
    let (user, group) = image.user()?;
    // By its path, because the search path is that of the image.
    let mut unshare = Command::new("/usr/bin/unshare");
    unshare.args(["--user", "--mount", "--net", "--ipc", "--uts", "--pid", "--fork"]);
    unshare.arg("--kill-child");
    unshare.args([format!("--map-user={user}"), format!("--map-group={group}")]);
    unshare.arg(format!("--root={}", image.folder.display()));
    unshare.arg(format!("--wd={}", image.working_directory()));
    unshare.arg("--").env_clear().envs(image.environment());
    Ok(unshare)
}
