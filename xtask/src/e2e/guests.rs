//! `cargo xtask e2e guests`: the real kube-scheduler and the real kube-controller-manager as guests of the embedded API server, each with its
//! own identity and no other rights than upstream's roles give it, on nodes of fake kubelets.
//!
//! The scheduler places thousands of pods, and the controllers roll a Deployment out and back, complete a Job, put a DaemonSet on every node, and
//! clear a namespace away. Nothing may be refused, and neither may complain of anything but what it complains of everywhere.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api::Api;
use super::audit;
use super::bound::BoundPods;
use super::control_plane::free_port;
use super::embedded;
use super::folder::Folder;
use super::load;
use super::process::Process;
use super::programs::{self, Program};
use super::special::until;
use super::workload::Workload;

/// Let the real scheduler and the real controllers work on the embedded API server.
#[derive(Parser)]
pub struct Args {
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Loadmaster's binary; that of the release profile when not given.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// For any one step.
const PATIENCE: Duration = Duration::from_secs(600);
/// Without a pod being bound.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Complaints that are not about the server: where they begin in upstream's sources, and why they come.
const COMPLAINTS: &[(&str, &str)] = &[
    ("options.go:", "about a flag that nobody gave"),
    ("replica_set.go:", STALE),
    ("daemon_controller.go:", STALE),
    ("job_controller.go:", STALE),
];
const STALE: &str =
    "its cache has not seen its own last write yet, and it tries again, as beside kube-apiserver";

/// A guest: its program, its user, and where it complains.
struct Guest {
    process: Process,
    user: &'static str,
    log: PathBuf,
}

/// The server, what pretends to be machines, and the guests; ended in this order's reverse.
struct Cluster {
    guests: Vec<Guest>,
    _kubelets: Process,
    server: Process,
    kubeconfig: PathBuf,
    audit_log: PathBuf,
}

pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::KubeScheduler, Program::KubeControllerManager, Program::Kubectl])?;
    let folder = Folder::temporary(&std::env::temp_dir())?;
    println!("logs: {}", folder.path().display());
    let mut cluster = Cluster::start(args, folder.path()).await?;
    let api = Api::new(&cluster.kubeconfig).await?;
    let done = play(args, &api, &cluster).await;
    for guest in &mut cluster.guests {
        guest.process.check_running()?;
    }
    let usage = cluster.server.usage()?;
    let peak_mib = usage.rss_peak_bytes >> 20;
    println!("API server: {:.1} s of CPU, {peak_mib} MiB at most", usage.cpu_seconds);
    done?;
    let mut n_faults = 0;
    let mut entries = audit::read(&cluster.audit_log)?;
    forget_what_comes_too_late(&mut entries);
    for guest in &cluster.guests {
        let n = entries.iter().filter(|it| it.user == guest.user).count();
        println!("{}: {n} requests", guest.user);
    }
    let users: BTreeSet<&str> = entries.iter().map(|it| it.user.as_str()).collect();
    for user in users {
        for (what, n) in audit::refusals(&entries, user) {
            println!("  {user}: {what}, {n} times");
            n_faults += 1;
        }
    }
    for guest in &cluster.guests {
        for (place, lines) in complaints(&guest.log)? {
            let why =
                COMPLAINTS.iter().find(|(known, _)| place.starts_with(known)).map(|(_, why)| *why);
            println!("  {}: {} lines from {place}: {}", guest.user, lines.len(), lines[0]);
            why.into_iter().for_each(|why| println!("    {why}"));
            n_faults += usize::from(why.is_none());
        }
    }
    drop(cluster);
    if n_faults == 0 {
        drop(folder.removed());
    }
    Ok(n_faults == 0)
}

/// Nothing may be made in a namespace that is going, and controllers go on until they see that it is.
fn forget_what_comes_too_late(entries: &mut Vec<audit::Entry>) {
    let is_end = |it: &&audit::Entry| it.verb == "delete" && it.resource == "namespaces";
    let ends: Vec<(String, jiff::Timestamp)> =
        entries.iter().filter(is_end).map(|it| (it.name.clone(), it.received)).collect();
    let is_late = |it: &audit::Entry| {
        it.verb == "create"
            && ends.iter().any(|(name, end)| *name == it.namespace && it.received >= *end)
    };
    entries.retain(|it| it.code != 403 || !is_late(it));
}

impl Cluster {
    async fn start(args: &Args, folder: &Path) -> Result<Cluster> {
        let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
        let file = |name: &str| folder.join(name);
        let audit_log = file("audit.log");
        let users = ["system:kube-scheduler", "system:kube-controller-manager"];
        let kubeconfigs = [file("scheduler.kubeconfig"), file("manager.kubeconfig")];
        let mut flags = vec![
            format!("--audit-log-path={}", audit_log.display()),
            "--enable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned(),
        ];
        let as_user =
            |(user, path): (&&str, &PathBuf)| format!("--kubeconfig-as={user}={}", path.display());
        flags.extend(users.iter().zip(&kubeconfigs).map(as_user));
        let (server, kubeconfig) = embedded::start(&loadmaster, folder, &flags).await?;
        let [scheduler, manager] = kubeconfigs;
        let mut guests = Vec::new();
        for (program, user, kubeconfig) in [
            (Program::KubeControllerManager, users[1], manager),
            (Program::KubeScheduler, users[0], scheduler),
        ] {
            let log = file(&format!("{}.log", program.name()));
            let mut command = Command::new(program.path()?);
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.arg("--bind-address=127.0.0.1");
            command.arg(format!("--secure-port={}", free_port()?));
            command.args(["--kube-api-qps=5000", "--kube-api-burst=5000"]);
            if program == Program::KubeControllerManager {
                // Each controller with the role of its own, as kubeadm has it.
                command.arg("--use-service-account-credentials=true");
                // Admission policies are not served.
                command.arg("--controllers=*,-validatingadmissionpolicy-status-controller");
            }
            let process = Process::start(program.name(), &mut command, &log)?;
            guests.push(Guest { process, user, log });
        }
        let mut command = Command::new(&loadmaster);
        command.arg("kubelets").arg("--kubeconfig").arg(&kubeconfig);
        command.args(["--nodes", &args.nodes.to_string()]);
        let kubelets = Process::start("loadmaster", &mut command, &file("kubelets.log"))?;
        Ok(Cluster { guests, _kubelets: kubelets, server, kubeconfig, audit_log })
    }
}

/// What people would do, and whether it came about.
async fn play(args: &Args, api: &Api, cluster: &Cluster) -> Result<()> {
    let since = Instant::now();
    until("all nodes are ready and not tainted", PATIENCE, async || {
        let nodes = api.list("/api/v1/nodes").await?;
        let n_usable = nodes.iter().filter(|node| node["spec"]["taints"].is_null()).count();
        Ok(n_usable == args.nodes)
    })
    .await?;
    println!("{} nodes: {:.1} s", args.nodes, since.elapsed().as_secs_f64());
    place(args, api).await?;
    let kubectl = Kubectl { kubeconfig: &cluster.kubeconfig };
    kubectl.run("create namespace play").await?;
    kubectl.run("wait serviceaccount/default --namespace=play --for=create").await?;
    deployment(&kubectl, api).await?;
    job(&kubectl, api).await?;
    daemon_set(&kubectl, api, args.nodes).await?;
    let since = Instant::now();
    kubectl.run("delete namespace play").await?;
    ensure!(api.list("/api/v1/namespaces/play/pods").await?.is_empty(), "pods are left behind");
    println!("a namespace cleared: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn place(args: &Args, api: &Api) -> Result<()> {
    load::namespace(api, "crowd").await?;
    until("there is a service account", PATIENCE, async || {
        let accounts = api.list("/api/v1/namespaces/crowd/serviceaccounts").await?;
        Ok(!accounts.is_empty())
    })
    .await?;
    let mut bound = BoundPods::watch(api, "crowd").await?;
    let since = Instant::now();
    let n_pods = u32::try_from(args.pods).context("that is too many pods")?;
    let (loaded, all) = tokio::join!(
        load::pods(api, "crowd", Workload::Basic, 0..n_pods),
        bound.until(args.pods, STANDSTILL)
    );
    loaded?;
    ensure!(all?, "only {} of {} pods are bound", bound.seen().len(), args.pods);
    let took = since.elapsed().as_secs_f64();
    println!("{} pods made and bound: {took:.1} s", args.pods);
    until("all pods run", PATIENCE, async || {
        let pods = api.list("/api/v1/namespaces/crowd/pods").await?;
        Ok(pods.iter().all(|pod| pod["status"]["phase"] == "Running"))
    })
    .await?;
    println!("all of them run: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn deployment(kubectl: &Kubectl<'_>, api: &Api) -> Result<()> {
    let since = Instant::now();
    let images = async || {
        let pods = api.list("/api/v1/namespaces/play/pods").await?;
        let image = |pod: &Value| pod["spec"]["containers"][0]["image"].to_string();
        let running = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        anyhow::Ok(running.map(image).collect::<BTreeSet<String>>())
    };
    kubectl.run("create deployment web --image=v1 --replicas=50 --namespace=play").await?;
    for (change, image) in [
        (None, "\"v1\""),
        (Some("set image deployment/web v1=v2"), "\"v2\""),
        (Some("rollout undo deployment/web"), "\"v1\""),
    ] {
        if let Some(change) = change {
            kubectl.run(&format!("{change} --namespace=play")).await?;
        }
        kubectl.run("rollout status deployment/web --namespace=play").await?;
        until("only pods of the newest template are left", PATIENCE, async || {
            Ok(images().await?.into_iter().eq([image]))
        })
        .await?;
    }
    println!(
        "a Deployment of 50 rolled out, changed and undone: {:.1} s",
        since.elapsed().as_secs_f64()
    );
    kubectl.run("delete deployment/web --namespace=play").await?;
    until("its pods are gone", PATIENCE, async || Ok(images().await?.is_empty())).await
}

async fn job(kubectl: &Kubectl<'_>, api: &Api) -> Result<()> {
    let since = Instant::now();
    let template = json!({
        "metadata": {"annotations": {"loadmaster.io/run-seconds": "1"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"},
        "spec": {"completions": 20, "parallelism": 5, "template": template}});
    api.create("/apis/batch/v1/namespaces/play/jobs", &job).await?;
    kubectl.run("wait job/sum --for=condition=Complete --timeout=600s --namespace=play").await?;
    let job = api.get_json("/apis/batch/v1/namespaces/play/jobs/sum").await?;
    ensure!(job["status"]["succeeded"] == 20, "the Job says {}", job["status"]);
    println!("a Job of 20, 5 at a time: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn daemon_set(kubectl: &Kubectl<'_>, api: &Api, n_nodes: usize) -> Result<()> {
    let since = Instant::now();
    let labels = json!({"app": "log"});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "log"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    api.create("/apis/apps/v1/namespaces/play/daemonsets", &set).await?;
    kubectl.run("rollout status daemonset/log --timeout=600s --namespace=play").await?;
    let pods = api.list("/api/v1/namespaces/play/pods").await?;
    let pods = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "log");
    let nodes: BTreeSet<String> = pods.map(|pod| pod["spec"]["nodeName"].to_string()).collect();
    ensure!(nodes.len() == n_nodes, "the DaemonSet is on {} nodes", nodes.len());
    println!("a DaemonSet on {n_nodes} nodes: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

struct Kubectl<'a> {
    kubeconfig: &'a Path,
}

impl Kubectl<'_> {
    async fn run(&self, call: &str) -> Result<()> {
        let mut command = Command::new(Program::Kubectl.path()?);
        command.arg(format!("--kubeconfig={}", self.kubeconfig.display())).args(call.split(' '));
        let done = tokio::task::spawn_blocking(move || command.output());
        let output = done.await.context("waiting for kubectl")?.context("running kubectl")?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "kubectl {call}: {said}");
        Ok(())
    }
}

/// Lines of level error or worse, by the place in the sources that they come from.
fn complaints(log: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let text = std::fs::read_to_string(log);
    let text = text.with_context(|| format!("reading {}", log.display()))?;
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((place, message)) = complaint(line) {
            places.entry(place.to_owned()).or_default().push(message.to_owned());
        }
    }
    Ok(places)
}

/// The place and the message of `E1121 23:18:09.123456   12345 file.go:99] message`.
fn complaint(line: &str) -> Option<(&str, &str)> {
    let is_klog = line.get(1..5).is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()));
    let (head, message) = line.split_once("] ")?;
    (is_klog && line.starts_with(['E', 'F']))
        .then(|| (head.rsplit(' ').next().unwrap_or(head), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_are_complaints() {
        let check = |line: &str, want: Option<(&str, &str)>| assert_eq!(complaint(line), want);
        let text = "1121 23:18:09.123456   12345 a.go:99] \"b\" err=\"c] d\"";
        check(&format!("E{text}"), Some(("a.go:99", "\"b\" err=\"c] d\"")));
        check(&format!("F{text}"), Some(("a.go:99", "\"b\" err=\"c] d\"")));
        check(&format!("I{text}"), None);
        check("Error: unknown flag [x] ", None);
        check("", None);
    }
}
