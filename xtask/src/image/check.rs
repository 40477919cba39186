//! Reads images back as a container runtime does, and runs their entry points, isolated by Linux namespaces: no network, no other processes, and
//! only the files of the image.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::build::Architecture;
use super::contents::{Image, USER};
use super::layout::{INDEX_TYPE, MANIFEST_TYPE, blob_path, digest_of};

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

/// An image that was read back: its configuration, and a folder with its files.
struct Unpacked {
    folder: PathBuf,
    config: Value,
}

/// Reads images of a layout back, and runs those that this machine can run. `scratch` is a folder for their files; it is replaced, and removed at
/// the end.
pub fn check(
    layout: &Path,
    images: &[&Image],
    tag: &str,
    architecture: Architecture,
    scratch: &Path,
) -> Result<()> {
    let mut n_runs = 0;
    for image in images {
        let reference = format!("{}:{tag}", image.name);
        let folder = scratch.join(image.name);
        let unpacked = unpack(layout, &reference, architecture.name(), folder)
            .with_context(|| format!("reading back {reference}"))?;
        check_config(&unpacked, image)
            .with_context(|| format!("the configuration of {reference}"))?;
        if !architecture.is_host() {
            continue;
        }
        for run in RUNS.iter().filter(|run| run.image == image.name) {
            unpacked.run(run)?;
            n_runs += 1;
        }
    }
    fs::remove_dir_all(scratch).with_context(|| format!("removing {}", scratch.display()))?;
    println!(
        "{}: {} images were read back, {n_runs} commands ran in them",
        architecture.name(),
        images.len()
    );
    Ok(())
}

/// The blob of a descriptor, if its size and digest are as the descriptor says.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().context("a descriptor has a digest")?;
    let path = layout.join(blob_path(digest));
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(descriptor["size"] == bytes.len(), "the size of {digest} is {}", bytes.len());
    ensure!(
        digest_of(&bytes) == digest,
        "the digest of {} is {}",
        path.display(),
        digest_of(&bytes)
    );
    Ok(bytes)
}

fn json_blob(layout: &Path, descriptor: &Value) -> Result<Value> {
    serde_json::from_slice(&blob(layout, descriptor)?).context("reading JSON")
}

/// Finds an image by its reference, and unpacks its layers into a new folder.
fn unpack(layout: &Path, reference: &str, architecture: &str, folder: PathBuf) -> Result<Unpacked> {
    let index = fs::read(layout.join("index.json")).context("reading index.json")?;
    let index: Value = serde_json::from_slice(&index).context("reading index.json")?;
    let named = |it: &&Value| it["annotations"]["org.opencontainers.image.ref.name"] == reference;
    let mut found = manifests(&index).find(named).cloned();
    if let Some(several) = found.as_ref().filter(|it| it["mediaType"] == INDEX_TYPE) {
        let index = json_blob(layout, several)?;
        found =
            manifests(&index).find(|it| it["platform"]["architecture"] == architecture).cloned();
    }
    let found = found.context("it is not in the index")?;
    ensure!(found["mediaType"] == MANIFEST_TYPE, "its media type is {}", found["mediaType"]);
    let manifest = json_blob(layout, &found)?;
    let config = json_blob(layout, &manifest["config"])?;
    ensure!(
        config["architecture"] == architecture,
        "its architecture is {}",
        config["architecture"]
    );
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let layers = manifest["layers"].as_array().context("a manifest has layers")?;
    let diff_ids =
        config["rootfs"]["diff_ids"].as_array().context("a configuration has diff_ids")?;
    ensure!(
        layers.len() == diff_ids.len(),
        "{} layers and {} diff_ids",
        layers.len(),
        diff_ids.len()
    );
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let mut archive = Vec::new();
        let compressed = blob(layout, layer)?;
        GzDecoder::new(&compressed[..])
            .read_to_end(&mut archive)
            .context("decompressing a layer")?;
        ensure!(*diff_id == digest_of(&archive), "the diff_id of a layer is {diff_id}");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let unpacked = tar::Archive::new(&archive[..]).unpack(&folder);
        unpacked.with_context(|| format!("unpacking into {}", folder.display()))?;
    }
    Ok(Unpacked { folder, config })
}

fn manifests(index: &Value) -> impl Iterator<Item = &Value> {
    index["manifests"].as_array().into_iter().flatten()
}

fn check_config(unpacked: &Unpacked, image: &Image) -> Result<()> {
    let config = &unpacked.config["config"];
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

impl Unpacked {
    /// Runs the entry point as a container: with the image's user, environment and files, without network and other processes.
    fn run(&self, run: &Run) -> Result<()> {
        let entry_point = self.config["config"]["Entrypoint"].as_array().into_iter().flatten();
        let mut line: Vec<&str> = match run.command {
            Some(command) => vec![command],
            None => entry_point.filter_map(Value::as_str).collect(),
        };
        line.extend(run.arguments);
        let shown = || format!("{} in {}", line.join(" "), run.image);
        let mut unshare = self.isolated()?;
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
    fn isolated(&self) -> Result<Command> {
        let config = &self.config["config"];
        let user = config["User"].as_str().and_then(|user| user.split_once(':'));
        let (user, group) = user.context("the user is UID:GID")?;
        let environment: BTreeMap<&str, &str> = config["Env"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it.as_str()?.split_once('='))
            .collect();
        // By its path, because the search path is that of the image.
        let mut unshare = Command::new("/usr/bin/unshare");
        unshare.args([
            "--user",
            "--mount",
            "--net",
            "--ipc",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
        ]);
        unshare.args([format!("--map-user={user}"), format!("--map-group={group}")]);
        unshare.arg(format!("--root={}", self.folder.display()));
        unshare.arg(format!("--wd={}", config["WorkingDir"].as_str().unwrap_or("/")));
        unshare.arg("--").env_clear().envs(environment);
        Ok(unshare)
    }
}
