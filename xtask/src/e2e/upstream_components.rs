//! `cargo xtask e2e guests`: the real kube-scheduler and kube-controller-manager on the embedded API server, each with its own user and only
//! upstream's roles, on nodes of simulated kubelets.
//!
//! The scheduler schedules thousands of pods, and the controllers roll a Deployment out and back, complete a Job, run a DaemonSet on every
//! node, and delete a namespace. No request may be denied, and no error may be logged except those that also occur with kube-apiserver.

#![expect(clippy::disallowed_types, reason = "measuring is reading a clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::audit;
use super::bound_pods::BoundPods;
use super::control_plane::free_port;
use super::embedded_apiserver;
use super::load_objects;
use super::process::Process;
use super::programs::{self, Program};
use super::run_folder::RunFolder;
use super::special_pods::wait_until;
use super::workload::Workload;

/// Run the real kube-scheduler and kube-controller-manager on the embedded API server.
#[derive(Parser)]
pub struct Args {
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// The timeout of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum time without a binding.
const STANDSTILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Errors that are not caused by the server: their source file in upstream, and their cause.
const KNOWN_ERRORS: &[(&str, &str)] = &[
    ("options.go:", "about a flag that is not set"),
    ("replica_set.go:", STALE),
    ("daemon_controller.go:", STALE),
    ("job_controller.go:", STALE),
];
const STALE: &str =
    "its cache has not observed its last write yet, and it retries, as with kube-apiserver";

/// A component: its process, its user, and its log.
struct Component {
    process: Process,
    user: &'static str,
    log: PathBuf,
}

/// The server, the simulated kubelets, and the components; stopped in the reverse order.
struct Cluster {
    components: Vec<Component>,
    _kubelets: Process,
    server: Process,
    kubeconfig: PathBuf,
    audit_log: PathBuf,
}

pub async fn run(args: &Args) -> Result<bool> {
    programs::build(&[Program::KubeScheduler, Program::KubeControllerManager, Program::Kubectl])?;
    let folder = RunFolder::temporary(&std::env::temp_dir())?;
    println!("logs: {}", folder.path().display());
    let mut cluster = Cluster::start(args, folder.path()).await?;
    let api = ApiClient::new(&cluster.kubeconfig).await?;
    let done = run_steps(args, &api, &cluster).await;
    for guest in &mut cluster.components {
        guest.process.check_running()?;
    }
    let usage = cluster.server.usage()?;
    let peak_mib = usage.rss_peak_bytes >> 20;
    println!("API server: {:.1} s of CPU, {peak_mib} MiB at most", usage.cpu_seconds);
    done?;
    let mut n_faults = 0;
    let mut entries = audit::read(&cluster.audit_log)?;
    drop_creates_in_terminating_namespaces(&mut entries);
    for guest in &cluster.components {
        let n = entries.iter().filter(|it| it.user == guest.user).count();
        println!("{}: {n} requests", guest.user);
    }
    let users: BTreeSet<&str> = entries.iter().map(|it| it.user.as_str()).collect();
    for user in users {
        for (request, n) in audit::denied_requests(&entries, user) {
            println!("  {user}: {request}, {n} times");
            n_faults += 1;
        }
    }
    for guest in &cluster.components {
        for (place, lines) in errors_by_source(&guest.log)? {
            let why = KNOWN_ERRORS
                .iter()
                .find(|(known, _)| place.starts_with(known))
                .map(|(_, why)| *why);
            println!("  {}: {} lines from {place}: {}", guest.user, lines.len(), lines[0]);
            why.into_iter().for_each(|why| println!("    {why}"));
            n_faults += usize::from(why.is_none());
        }
    }
    drop(cluster);
    if n_faults == 0 {
        drop(folder.remove_on_drop());
    }
    Ok(n_faults == 0)
}

/// Ignores denied creates in a terminating namespace: controllers try them until they observe the deletion.
fn drop_creates_in_terminating_namespaces(entries: &mut Vec<audit::AuditEntry>) {
    let is_end = |it: &&audit::AuditEntry| it.verb == "delete" && it.resource == "namespaces";
    let ends: Vec<(String, jiff::Timestamp)> =
        entries.iter().filter(is_end).map(|it| (it.name.clone(), it.received)).collect();
    let is_late = |it: &audit::AuditEntry| {
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
        let (server, kubeconfig) = embedded_apiserver::start(&loadmaster, folder, &flags).await?;
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
                // Each controller with its own role, as in kubeadm.
                command.arg("--use-service-account-credentials=true");
                // The embedded server has no admission policies.
                command.arg("--controllers=*,-validatingadmissionpolicy-status-controller");
            }
            let process = Process::start(program.name(), &mut command, &log)?;
            guests.push(Component { process, user, log });
        }
        let mut command = Command::new(&loadmaster);
        command.arg("kubelets").arg("--kubeconfig").arg(&kubeconfig);
        command.args(["--nodes", &args.nodes.to_string()]);
        let kubelets = Process::start("loadmaster", &mut command, &file("kubelets.log"))?;
        Ok(Cluster { components: guests, _kubelets: kubelets, server, kubeconfig, audit_log })
    }
}

/// Runs the steps and checks their results.
async fn run_steps(args: &Args, api: &ApiClient, cluster: &Cluster) -> Result<()> {
    let since = Instant::now();
    wait_until("all nodes to be ready and not tainted", STEP_TIMEOUT, async || {
        let nodes = api.list("/api/v1/nodes").await?;
        let n_usable = nodes.iter().filter(|node| node["spec"]["taints"].is_null()).count();
        Ok(n_usable == args.nodes)
    })
    .await?;
    println!("{} nodes: {:.1} s", args.nodes, since.elapsed().as_secs_f64());
    schedule_pods(args, api).await?;
    let kubectl = Kubectl { kubeconfig: &cluster.kubeconfig };
    kubectl.run("create namespace play").await?;
    kubectl.run("wait serviceaccount/default --namespace=play --for=create").await?;
    deployment(&kubectl, api).await?;
    job(&kubectl, api).await?;
    daemon_set(&kubectl, api, args.nodes).await?;
    let since = Instant::now();
    kubectl.run("delete namespace play").await?;
    ensure!(api.list("/api/v1/namespaces/play/pods").await?.is_empty(), "pods are left behind");
    println!("a namespace deleted: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn schedule_pods(args: &Args, api: &ApiClient) -> Result<()> {
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "crowd"}})).await?;
    wait_until("the service account", STEP_TIMEOUT, async || {
        let accounts = api.list("/api/v1/namespaces/crowd/serviceaccounts").await?;
        Ok(!accounts.is_empty())
    })
    .await?;
    let mut bound = BoundPods::watch(api, "crowd").await?;
    let since = Instant::now();
    let n_pods = u32::try_from(args.pods).context("that is too many pods")?;
    let (loaded, all) = tokio::join!(
        load_objects::pods(api, "crowd", Workload::Basic, 0..n_pods),
        bound.wait_for(args.pods, STANDSTILL_TIMEOUT)
    );
    loaded?;
    ensure!(all?, "only {} of {} pods are bound", bound.bound_at().len(), args.pods);
    let took = since.elapsed().as_secs_f64();
    println!("{} pods created and bound: {took:.1} s", args.pods);
    wait_until("all pods to run", STEP_TIMEOUT, async || {
        let pods = api.list("/api/v1/namespaces/crowd/pods").await?;
        Ok(pods.iter().all(|pod| pod["status"]["phase"] == "Running"))
    })
    .await?;
    println!("all pods running: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn deployment(kubectl: &Kubectl<'_>, api: &ApiClient) -> Result<()> {
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
        wait_until("the pods of the old template to be deleted", STEP_TIMEOUT, async || {
            Ok(images().await?.into_iter().eq([image]))
        })
        .await?;
    }
    println!(
        "a Deployment of 50 rolled out, updated and rolled back: {:.1} s",
        since.elapsed().as_secs_f64()
    );
    kubectl.run("delete deployment/web --namespace=play").await?;
    wait_until("the pods to be deleted", STEP_TIMEOUT, async || Ok(images().await?.is_empty()))
        .await
}

async fn job(kubectl: &Kubectl<'_>, api: &ApiClient) -> Result<()> {
    let since = Instant::now();
    let template = json!({
        "metadata": {"annotations": {"loadmaster.io/run-seconds": "1"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"},
        "spec": {"completions": 20, "parallelism": 5, "template": template}});
    api.create("/apis/batch/v1/namespaces/play/jobs", &job).await?;
    kubectl.run("wait job/sum --for=condition=Complete --timeout=600s --namespace=play").await?;
    let job = api.get_json("/apis/batch/v1/namespaces/play/jobs/sum").await?;
    ensure!(job["status"]["succeeded"] == 20, "the Job has the status {}", job["status"]);
    println!("a Job of 20, 5 at a time: {:.1} s", since.elapsed().as_secs_f64());
    Ok(())
}

async fn daemon_set(kubectl: &Kubectl<'_>, api: &ApiClient, n_nodes: usize) -> Result<()> {
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
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "kubectl {call}: {stderr}");
        Ok(())
    }
}

/// Error and fatal lines of a log, by their source file and line.
fn errors_by_source(log: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let text = std::fs::read_to_string(log);
    let text = text.with_context(|| format!("reading {}", log.display()))?;
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((place, message)) = parse_error_line(line) {
            places.entry(place.to_owned()).or_default().push(message.to_owned());
        }
    }
    Ok(places)
}

/// The source position and the message of `E1121 23:18:09.123456   12345 file.go:99] message`.
fn parse_error_line(line: &str) -> Option<(&str, &str)> {
    let is_klog = line.get(1..5).is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()));
    let (head, message) = line.split_once("] ")?;
    (is_klog && line.starts_with(['E', 'F']))
        .then(|| (head.rsplit(' ').next().unwrap_or(head), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_error_lines_are_parsed() {
        let check =
            |line: &str, want: Option<(&str, &str)>| assert_eq!(parse_error_line(line), want);
        let text = "1121 23:18:09.123456   12345 a.go:99] \"b\" err=\"c] d\"";
        check(&format!("E{text}"), Some(("a.go:99", "\"b\" err=\"c] d\"")));
        check(&format!("F{text}"), Some(("a.go:99", "\"b\" err=\"c] d\"")));
        check(&format!("I{text}"), None);
        check("Error: unknown flag [x] ", None);
        check("", None);
    }
}
