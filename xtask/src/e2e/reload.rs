//! `cargo xtask e2e reload`: the configuration of a running scheduler is replaced again and again under load.
//!
//! By turns a good and a bad file replaces the configuration, by SIGHUP and as kubelet swaps the volume of a ConfigMap. Two plugins of a good
//! file admit the nodes of one pool, which is another one in the next file: a pod that was decided by a mixture of two files would have no
//! feasible node. Each pod must be bound once, none may be unschedulable, and each good file adds a profile whose pod is bound.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::workload::{self, Workload};
use super::{audit, load_objects, programs, special_pods};

const NAMESPACE: &str = "e2e";
const N_NODES: u32 = 40;
const POOLS: [&str; 2] = ["a", "b"];
/// Pods of the load per tick.
const N_PODS: u32 = 4;
const TICK: Duration = Duration::from_millis(100);
const RELOADS: &str = "loadmaster_configuration_reloads_total";

/// Replace the configuration of a running scheduler under load.
#[derive(Parser)]
pub struct Args {
    /// How often, half of them with a bad file.
    #[arg(long, default_value_t = 100)]
    times: u32,
    /// The loadmaster binary; by default that of the release profile.
    #[arg(long, value_name = "FILE")]
    loadmaster: Option<PathBuf>,
}

/// Returns whether no pod was lost, bound twice or unschedulable. Other failed checks are errors.
pub async fn run(args: &Args) -> Result<bool> {
    let loadmaster = programs::loadmaster(args.loadmaster.as_deref())?;
    let plane = ControlPlane::start(&ControlPlaneOptions {
        audit_policy: Some(audit::policy_for_bindings_and_leases()),
        ..ControlPlaneOptions::default()
    })
    .await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    special_pods::wait_for_path(&api, "/api/v1/namespaces/default").await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    for i in 0..N_NODES {
        let mut node = workload::node(i);
        let pool = POOLS[i as usize % 2];
        node["metadata"]["labels"]["pool"] = pool.into();
        node["metadata"]["labels"][label_of(pool)] = "".into();
        api.create("/api/v1/nodes", &node).await.context("a node")?;
    }
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let volume = Volume::create(plane.folder(), kubeconfig)?;
    volume.swap(0, &volume.configuration(0))?;
    let mut scheduler = start(&plane, &loadmaster, &volume)?;
    scheduler.wait_until_ready().await?;
    let token = plane.admin_token()?;
    let load = Load::start(&api);
    for i in 1..=args.times {
        let outcome = replace(&api, &mut scheduler, &token, &volume, i).await;
        outcome.with_context(|| format!("file {i}"))?;
    }
    let n_pods = load.stop().await?;
    check_counts(&scheduler, &token, args.times).await?;
    let good = check_pods(&api, &plane, n_pods).await?;
    scheduler.process.terminate()?;
    scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
    check_replay(&loadmaster, &recording(&plane))?;
    println!("{} reloads, {n_pods} pods", args.times);
    if good {
        plane.finish();
    }
    Ok(good)
}

fn start(plane: &ControlPlane, loadmaster: &Path, volume: &Volume) -> Result<Scheduler> {
    let setup = SchedulerSetup::new("loadmaster", plane.folder(), &volume.kubeconfig);
    // The last one of two flags counts.
    let flags = [
        format!("--config={}", volume.folder.join("scheduler.yaml").display()),
        format!("--record={}", recording(plane).display()),
    ];
    SchedulerArgs::only(loadmaster.to_owned()).start_with(SchedulerKind::Loadmaster, &setup, &flags)
}

fn recording(plane: &ControlPlane) -> PathBuf {
    plane.folder().join("run.log")
}

/// A recording holds the configurations: all decisions are the same again.
fn check_replay(loadmaster: &Path, recording: &Path) -> Result<()> {
    let mut command = Command::new(loadmaster);
    let output = command.arg("replay").arg(recording).output().context("starting replay")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "replay: {}: {text}{errors}", output.status);
    print!("{text}");
    Ok(())
}

/// A folder with the configuration, as kubelet writes the volume of a ConfigMap.
struct Volume {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Volume {
    fn create(folder: &Path, kubeconfig: PathBuf) -> Result<Volume> {
        let folder = folder.join("config");
        std::fs::create_dir(&folder).context("creating the folder of the configuration")?;
        symlink("..data/scheduler.yaml", folder.join("scheduler.yaml")).context("linking")?;
        Ok(Volume { folder, kubeconfig })
    }

    /// Swaps the link to the folder with the file.
    fn swap(&self, version: u32, text: &str) -> Result<()> {
        let version = format!("..{version}");
        let folder = self.folder.join(&version);
        std::fs::create_dir(&folder).context("creating a folder")?;
        std::fs::write(folder.join("scheduler.yaml"), text).context("writing a file")?;
        let temporary = self.folder.join("..data_tmp");
        symlink(&version, &temporary).context("linking")?;
        std::fs::rename(&temporary, self.folder.join("..data")).context("swapping the link")
    }

    /// Overwrites the file in its place.
    fn overwrite(&self, text: &str) -> Result<()> {
        std::fs::write(self.folder.join("scheduler.yaml"), text).context("overwriting the file")
    }

    /// The profiles `default-scheduler` and `profile-I`, which both admit the nodes of one pool only.
    fn configuration(&self, i: u32) -> String {
        let pool = pool_of(i);
        let terms =
            json!([{"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]}]);
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let profile = |name: &str| {
            json!({
                "schedulerName": name,
                "plugins": {"multiPoint": {"enabled": [{"name": "NodeLabel"}]}},
                "pluginConfig": [
                    {"name": "NodeAffinity", "args": {"addedAffinity": required}},
                    {"name": "NodeLabel", "args": {"presentLabels": [label_of(pool)]}}]})
        };
        json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": self.kubeconfig, "qps": 5000, "burst": 5000},
            "leaderElection": {"leaderElect": false},
            "profiles": [profile("default-scheduler"), profile(&profile_name(i))]})
        .to_string()
    }
}

fn pool_of(i: u32) -> &'static str {
    POOLS[(i / 2) as usize % 2]
}

fn label_of(pool: &str) -> String {
    format!("pool-{pool}")
}

fn profile_name(i: u32) -> String {
    format!("profile-{i}")
}

/// Whether the file of this number is good.
fn is_good(i: u32) -> bool {
    i.is_multiple_of(2)
}

async fn replace(
    api: &ApiClient,
    scheduler: &mut Scheduler,
    token: &str,
    volume: &Volume,
    i: u32,
) -> Result<()> {
    let result = if is_good(i) { "success" } else { "error" };
    let before = n_reloads(scheduler, token, result).await?;
    let mut text = volume.configuration(i);
    if !is_good(i) {
        text = text.replace("multiPoint", "multiPoints");
    }
    // Two of four by SIGHUP.
    if i % 4 < 2 {
        volume.swap(i, &text)?;
    } else {
        volume.overwrite(&text)?;
        scheduler.process.hang_up()?;
    }
    special_pods::wait_until("the reload", special_pods::STEP_TIMEOUT, async || {
        scheduler.process.check_running()?;
        Ok(n_reloads(scheduler, token, result).await? > before)
    })
    .await?;
    if !is_good(i) {
        return Ok(());
    }
    let pod = format!("probe-{i}");
    create_pod(api, &pod, &profile_name(i)).await?;
    special_pods::wait_for_pod(api, NAMESPACE, &pod, "a node of the pool", |pod| {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let number = node.strip_prefix("node-").and_then(|it| it.parse::<usize>().ok());
        number.is_some_and(|number| POOLS[number % 2] == pool_of(i))
    })
    .await?;
    // Nobody is responsible for the profile of the file before.
    if i > 2 { create_pod(api, &format!("late-{i}"), &profile_name(i - 2)).await } else { Ok(()) }
}

async fn create_pod(api: &ApiClient, name: &str, scheduler: &str) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "registry.example/app-0:v1"}]}});
    api.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod).await?;
    Ok(())
}

/// How often the configuration was reloaded with this result.
async fn n_reloads(scheduler: &Scheduler, token: &str, result: &str) -> Result<u32> {
    let api = ApiClient::insecure(&scheduler.url(), Some(token))?;
    let answer = api.request(Method::GET, "/metrics", Vec::new()).await?;
    let text = String::from_utf8_lossy(&answer.body);
    let series = format!("{RELOADS}{{result=\"{result}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    let Some(value) = value else { bail!("no series {series}in /metrics: {}", answer.status) };
    value.parse().with_context(|| format!("{series}{value}"))
}

async fn check_counts(scheduler: &Scheduler, token: &str, times: u32) -> Result<()> {
    for (result, is_counted) in
        [("success", is_good as fn(u32) -> bool), ("error", |i| !is_good(i))]
    {
        let want = (1..=times).filter(|i| is_counted(*i)).count();
        let got = n_reloads(scheduler, token, result).await?;
        ensure!(got as usize == want, "{RELOADS}{{result={result:?}}} is {got}, not {want}");
    }
    Ok(())
}

/// Pods that are created all the time for default-scheduler.
struct Load {
    stopped: Arc<AtomicBool>,
    task: JoinHandle<Result<u32>>,
}

impl Load {
    fn start(api: &ApiClient) -> Load {
        let stopped = Arc::new(AtomicBool::new(false));
        let (api, stop) = (api.clone(), Arc::clone(&stopped));
        let task = tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                load_objects::pods(&api, NAMESPACE, Workload::Basic, n..n + N_PODS).await?;
                n += N_PODS;
                tokio::time::sleep(TICK).await;
            }
            Ok(n)
        });
        Load { stopped, task }
    }

    /// The number of pods.
    async fn stop(self) -> Result<u32> {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.context("a task that creates pods panicked")?
    }
}

/// Whether each pod is bound once, and none was ever unschedulable.
async fn check_pods(api: &ApiClient, plane: &ControlPlane, n_load: u32) -> Result<bool> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let is_late = |pod: &Value| {
        pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("late-"))
    };
    let is_bound = |pod: &Value| pod["spec"]["nodeName"].is_string();
    let mut pods = Vec::new();
    special_pods::wait_until("all pods to be bound", special_pods::STEP_TIMEOUT, async || {
        pods = api.list(&path).await?;
        Ok(pods.iter().all(|pod| is_bound(pod) || is_late(pod)))
    })
    .await?;
    ensure!(pods.len() > n_load as usize, "{} pods", pods.len());
    let mut faults: Vec<String> = Vec::new();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let unexpected = pods.iter().filter(|pod| is_late(pod) && is_bound(pod));
    faults
        .extend(unexpected.map(|pod| format!("{} is bound by a profile that is gone", name(pod))));
    let uids =
        pods.iter().map(|pod| (pod["metadata"]["uid"].as_str().unwrap_or_default(), is_bound(pod)));
    faults.extend(audit::binding_faults(&audit::read(plane.audit_log())?, &[], uids));
    let events = api.list(&format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")).await?;
    let failures = events.iter().filter(|event| event["reason"] == "FailedScheduling");
    faults
        .extend(failures.map(|event| format!("{}: {}", event["regarding"]["name"], event["note"])));
    faults.iter().take(20).for_each(|fault| println!("{fault}"));
    Ok(faults.is_empty())
}
