//! `cargo xtask e2e guides`: follows how-to guides literally on a real control plane.
//!
//! A guide's commands run in a folder that stands for a control-plane node: paths below `/etc/kubernetes` and `/var/log` in commands are
//! those of this folder, manifests in `/etc/kubernetes/manifests` run as processes, as the kubelet would run them as containers, and
//! `kubectl` and `loadmaster` are on the PATH. Meanwhile pods are created all the time; in the end each must have been bound once.

mod static_pods;
mod steady_pods;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;

use super::api_client::ApiClient;
use super::audit;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::programs::{self, Program};
use super::{gangs, load_objects, special_pods};
use crate::page::{self, Step};
use static_pods::{MANIFESTS, StaticPods, on_node};
use steady_pods::SteadyPods;

/// As kubeadm writes it.
const OF_KUBEADM: &str = include_str!("guides/kube-scheduler.yaml");
/// Loadmaster in place of it.
const OUR_OWN: &str = include_str!("../../../deploy/static-pod/kube-scheduler.yaml");
const SAMPLE_EXTENDER: &str = "sample-extender";
const N_NODES: u32 = 30;
/// A command that takes longer fails.
const COMMAND_TIMEOUT_SECONDS: u32 = 120;

/// A guide, what it begins with, and who binds pods while it is followed.
struct Guide {
    /// The file name in `docs/src/how-to`, without its extension.
    page: &'static str,
    /// The manifest of the scheduler that is running before.
    manifest: Option<&'static str>,
    /// The programs that must have bound pods in the end, by their User-Agent.
    schedulers: &'static [&'static str],
}

const GUIDES: &[Guide] = &[
    Guide {
        page: "switch-from-kube-scheduler",
        manifest: Some(OF_KUBEADM),
        schedulers: &["kube-scheduler", "loadmaster"],
    },
    Guide {
        page: "run-beside-another-scheduler",
        manifest: Some(OF_KUBEADM),
        schedulers: &["kube-scheduler"],
    },
    Guide {
        page: "migrate-from-scheduler-plugins",
        manifest: Some(OF_KUBEADM),
        schedulers: &["kube-scheduler"],
    },
    Guide { page: "migrate-from-a-policy", manifest: None, schedulers: &["loadmaster"] },
    Guide { page: "upgrade", manifest: Some(OUR_OWN), schedulers: &["loadmaster"] },
    Guide {
        page: "troubleshoot-pending-pods",
        manifest: Some(OUR_OWN),
        schedulers: &["loadmaster"],
    },
];

/// Follow how-to guides literally on a real control plane.
#[derive(Parser)]
pub struct Args {
    /// Names of pages in docs/src/how-to; all guides by default.
    pages: Vec<String>,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Returns whether all guides worked.
pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::KubeScheduler, Program::SchedulerPlugins, Program::Kubectl])?;
    programs::examples(&[SAMPLE_EXTENDER])?;
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    if let Some(name) = args.pages.iter().find(|name| GUIDES.iter().all(|it| it.page != **name)) {
        bail!("there is no guide {name}");
    }
    let is_chosen =
        |guide: &&Guide| args.pages.is_empty() || args.pages.iter().any(|it| it == guide.page);
    let mut is_good = true;
    for guide in GUIDES.iter().filter(is_chosen) {
        println!("== {}", guide.page);
        is_good &= follow(guide, &loadmaster).await.with_context(|| guide.page)?;
    }
    Ok(is_good)
}

async fn follow(guide: &Guide, loadmaster: &Path) -> Result<bool> {
    let path = crate::root()?.join("docs/src/how-to").join(guide.page).with_extension("md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let steps = page::steps(&text)?;
    let options = ControlPlaneOptions {
        audit_policy: Some(audit::policy_for_bindings_and_leases()),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(&options).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::nodes(&api, N_NODES).await?;
    // kube-apiserver creates the namespace soon after it is ready.
    special_pods::wait_for_path(&api, "/api/v1/namespaces/default").await?;
    load_objects::service_account(&api, "default").await?;
    // What the roles of scheduler-plugins allow.
    gangs::objects::allow_schedulers_to_read(&api).await?;
    let node = Node::create(&plane, loadmaster)?;
    let images = BTreeMap::from([
        ("kube-scheduler", Program::KubeScheduler.path()?),
        ("scheduler-plugins", Program::SchedulerPlugins.path()?),
        ("loadmaster", loadmaster.to_owned()),
        (SAMPLE_EXTENDER, programs::folder()?.join(SAMPLE_EXTENDER)),
    ]);
    let mut static_pods = StaticPods::new(&node.root, images)?;
    if let Some(manifest) = guide.manifest {
        fs::write(on_node(&node.root, MANIFESTS).join("kube-scheduler.yaml"), manifest)?;
    }
    let pods = SteadyPods::start(&api).await?;
    let n_created = tokio::select! {
        failed = keep_in_sync(&mut static_pods) => match failed? {},
        n_created = async {
            for step in group(steps)? {
                node.run(step).await?;
            }
            pods.finish(&api).await
        } => n_created?,
    };
    let entries = audit::read(plane.audit_log())?;
    let pods = api.list(&format!("/api/v1/namespaces/{}/pods", steady_pods::NAMESPACE)).await?;
    ensure!(pods.len() == n_created as usize, "{} of {n_created} pods exist", pods.len());
    let bound_by = steady_pods::bound_by(&entries);
    println!("{n_created} pods were created meanwhile; bound by {bound_by:?}");
    let mut faults = steady_pods::faults(&entries, &pods);
    let absent = guide.schedulers.iter().filter(|it| !bound_by.contains_key(**it));
    faults.extend(absent.map(|it| format!("{it} has bound no pod")));
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() {
        plane.finish();
    }
    Ok(faults.is_empty())
}

async fn keep_in_sync(static_pods: &mut StaticPods) -> Result<std::convert::Infallible> {
    loop {
        static_pods.sync().await?;
        tokio::time::sleep(static_pods::SYNC_PERIOD).await;
    }
}

/// What is done at once: a file that is written, or a command with the output that the page shows.
enum Action {
    Write { path: String, text: String },
    Run { command: String, shown: String },
}

fn group(steps: Vec<Step>) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    for step in steps {
        match step {
            Step::File { path, text } => actions.push(Action::Write { path, text }),
            Step::Command(command) => actions.push(Action::Run { command, shown: String::new() }),
            Step::Output(text) => match actions.last_mut() {
                Some(Action::Run { shown, .. }) => shown.push_str(&text),
                _ => bail!("a page shows output without a command before it"),
            },
        }
    }
    Ok(actions)
}

/// The folder that stands for a control-plane node, and the environment of its commands.
#[derive(Clone)]
struct Node {
    root: PathBuf,
    /// The variable PATH.
    path: OsString,
    kubeconfig: PathBuf,
}

impl Node {
    fn create(plane: &ControlPlane, loadmaster: &Path) -> Result<Node> {
        let root = plane.folder().join("node");
        let programs = root.join("programs");
        fs::create_dir_all(&programs).context("creating the folder of a node")?;
        symlink(loadmaster, programs.join("loadmaster"))?;
        symlink(Program::Kubectl.path()?, programs.join("kubectl"))?;
        let kubernetes = on_node(&root, "/etc/kubernetes");
        fs::create_dir_all(&kubernetes)?;
        let identity = UserIdentity::new("system:kube-scheduler", &[]);
        fs::copy(plane.kubeconfig(&identity), kubernetes.join("scheduler.conf"))?;
        let mut path = programs.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Ok(Node { root, path, kubeconfig: plane.admin_kubeconfig() })
    }

    async fn run(&self, action: Action) -> Result<()> {
        match action {
            Action::Write { path, text } => {
                println!("{path} is written");
                // The paths in a manifest are those of its container, whose mounts are considered when it is started.
                let is_manifest = text.lines().any(|line| line == "kind: Pod");
                let text = if is_manifest { text } else { self.with_paths_here(&text) };
                let path = if path.starts_with('/') {
                    on_node(&self.root, &path)
                } else {
                    self.root.join(path)
                };
                fs::write(&path, text).with_context(|| path.display().to_string())
            }
            Action::Run { command, shown } => {
                println!("$ {command}");
                let (node, text) = (self.clone(), command);
                let output = tokio::task::spawn_blocking(move || node.output(&text)).await??;
                println!("{}", output.trim_end());
                page::check_output(&shown, &output)
            }
        }
    }

    /// What a command prints; an error if it fails.
    fn output(&self, command: &str) -> Result<String> {
        let output = Command::new("timeout")
            .arg(COMMAND_TIMEOUT_SECONDS.to_string())
            .args(["sh", "-euc", &self.with_paths_here(command)])
            .current_dir(&self.root)
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("running sh")?;
        ensure!(output.status.success(), "{command}: {}", output.status);
        let root = self.root.display().to_string();
        Ok(String::from_utf8_lossy(&output.stdout).replace(&root, ""))
    }

    fn with_paths_here(&self, text: &str) -> String {
        let root = self.root.display().to_string();
        ["/etc/kubernetes", "/var/log"]
            .iter()
            .fold(text.to_owned(), |text, path| text.replace(path, &format!("{root}{path}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_guides_can_be_followed() {
        let root = crate::root().unwrap();
        for guide in GUIDES {
            let path = root.join("docs/src/how-to").join(guide.page).with_extension("md");
            let text = fs::read_to_string(&path).unwrap();
            let actions = group(page::steps(&text).unwrap()).unwrap();
            let n_commands = actions.iter().filter(|it| matches!(it, Action::Run { .. })).count();
            assert!(n_commands >= 2, "{}", guide.page);
        }
    }
}
