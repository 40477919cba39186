//! Definitions that are installed late, a controller that is killed, and PodGroups that are deleted while their pods are scheduled.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::api_client::ApiClient;
use super::super::control_plane::{ControlPlane, free_port};
use super::super::load_objects;
use super::super::process::Process;
use super::super::scheduler::Scheduler;
use super::super::special_pods::{self, STEP_TIMEOUT};
use super::objects;

const NAMESPACE: &str = "restarts";
/// How long the status of a PodGroup may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing must happen, where nothing may.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// The size of the gangs whose PodGroups are deleted while they are scheduled, and after which times that happens.
const SIZE: u32 = 20;
const DELETED_AFTER: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
];

/// A cluster whose scheduler was started before the definitions were installed.
pub struct Cluster<'a> {
    pub api: &'a ApiClient,
    pub plane: &'a ControlPlane,
    pub loadmaster: &'a Path,
    pub scheduler: &'a mut Scheduler,
}

/// Runs the test; a failed check is an error.
pub async fn run(cluster: Cluster<'_>) -> Result<()> {
    let Cluster { api, plane, loadmaster, scheduler } = cluster;
    load_objects::namespace(api, NAMESPACE).await?;
    objects::nodes(api, NAMESPACE, 10 + SIZE * DELETED_AFTER.len() as u32).await?;
    let mut controllers = start_controllers(plane, loadmaster, "controllers-1").await?;

    let plain = objects::pod("plain", NAMESPACE, None);
    api.create(&objects::pods(NAMESPACE), &plain).await?;
    let has_node = |pod: &Value| pod["spec"]["nodeName"].is_string();
    special_pods::wait_for_pod(api, NAMESPACE, "plain", "a node", has_node).await?;
    members(api, "late", 0..2).await?;
    stays_pending(api, "late").await.context("without definitions")?;
    objects::install_definitions(api, loadmaster).await?;
    objects::pod_group(api, NAMESPACE, "late", 2).await?;
    becomes(api, "late", 2, json!({"phase": "Scheduling"})).await.context("late definitions")?;
    for member in 0..2 {
        set_phase(api, "late", member, "Running").await?;
    }
    becomes(api, "late", 2, json!({"phase": "Running", "running": 2})).await?;

    controllers.check_running()?;
    controllers.kill()?;
    set_phase(api, "late", 0, "Succeeded").await?;
    objects::pod_group(api, NAMESPACE, "meanwhile", 2).await?;
    members(api, "meanwhile", 0..2).await?;
    wait_until_bound(api, "meanwhile", 2).await.context("without the controller")?;
    let mut controllers = start_controllers(plane, loadmaster, "controllers-2").await?;
    let want = json!({"phase": "Running", "running": 1, "succeeded": 1});
    becomes(api, "late", 2, want).await.context("after the restart of the controller")?;
    becomes(api, "meanwhile", 2, json!({"phase": "Scheduling"})).await?;

    deleted_while_incomplete(api).await.context("a PodGroup deleted before its last pod came")?;
    deleted_while_scheduling(api).await.context("PodGroups deleted while pods are scheduled")?;
    controllers.check_running()?;
    scheduler.process.check_running()
}

/// Starts the controllers, and waits until they are healthy.
async fn start_controllers(plane: &ControlPlane, program: &Path, name: &str) -> Result<Process> {
    let probes = format!("127.0.0.1:{}", free_port()?);
    let mut command = Command::new(program);
    command.args(["controllers", "--metricsAddr=0", "--qps=100", "--burst=100"]);
    command.arg(format!("--kubeconfig={}", plane.admin_kubeconfig().display()));
    command.arg(format!("--probeAddr={probes}"));
    let log = plane.folder().join(format!("{name}.log"));
    let mut process = Process::start("controllers", &mut command, &log)?;
    let endpoints = ApiClient::insecure(&format!("http://{probes}"), None)?;
    special_pods::wait_until("the controllers", STEP_TIMEOUT, async || {
        process.check_running()?;
        let ready = endpoints.request(Method::GET, "/readyz", Vec::new()).await;
        Ok(ready.is_ok_and(|ready| ready.status == 200))
    })
    .await?;
    Ok(process)
}

async fn members(api: &ApiClient, gang: &str, which: std::ops::Range<u32>) -> Result<()> {
    objects::members(api, NAMESPACE, NAMESPACE, gang, which).await
}

/// No pod is bound without its PodGroup, and no member before the others exist.
async fn deleted_while_incomplete(api: &ApiClient) -> Result<()> {
    objects::pod_group(api, NAMESPACE, "incomplete", 3).await?;
    members(api, "incomplete", 0..2).await?;
    delete_group(api, "incomplete").await?;
    members(api, "incomplete", 2..3).await?;
    stays_pending(api, "incomplete").await?;
    objects::pod_group(api, NAMESPACE, "incomplete", 3).await?;
    becomes(api, "incomplete", 3, json!({"phase": "Scheduling"})).await
}

/// All pods of a gang are bound, or none until the PodGroup is there again.
async fn deleted_while_scheduling(api: &ApiClient) -> Result<()> {
    for (i, after) in DELETED_AFTER.into_iter().enumerate() {
        let gang = format!("deleted-{i}");
        objects::pod_group(api, NAMESPACE, &gang, SIZE).await?;
        members(api, &gang, 0..SIZE).await?;
        sleep(after).await;
        delete_group(api, &gang).await?;
    }
    sleep(QUIET_TIME).await;
    for i in 0..DELETED_AFTER.len() {
        let gang = format!("deleted-{i}");
        let n = n_bound_members(api, &gang).await?;
        ensure!(n == 0 || n == SIZE as usize, "{n} of {SIZE} pods of {gang} are bound");
        println!("  {gang}: {n} of {SIZE} pods were bound when the PodGroup had been deleted");
        objects::pod_group(api, NAMESPACE, &gang, SIZE).await?;
    }
    for i in 0..DELETED_AFTER.len() {
        becomes(api, &format!("deleted-{i}"), SIZE as usize, json!({"phase": "Scheduling"}))
            .await?;
    }
    Ok(())
}

async fn delete_group(api: &ApiClient, gang: &str) -> Result<()> {
    let path = format!("{}/{gang}", objects::collection(NAMESPACE, "podgroups"));
    let deleted = api.request(Method::DELETE, &path, Vec::new()).await?;
    ensure!(deleted.status == 200, "deleting {gang}: status {}", deleted.status);
    Ok(())
}

async fn set_phase(api: &ApiClient, gang: &str, member: u32, phase: &str) -> Result<()> {
    let pod = objects::member_name(gang, member);
    let path = format!("{}/{pod}/status", objects::pods(NAMESPACE));
    let patch = json!({"status": {"phase": phase}}).to_string().into_bytes();
    let headers =
        [("content-type", "application/merge-patch+json"), ("accept", "application/json")];
    let patched = api.request_with_headers(Method::PATCH, &path, patch, &headers).await?;
    ensure!(patched.status == 200, "patching {pod}: status {}", patched.status);
    Ok(())
}

/// Waits until so many members are bound.
async fn wait_until_bound(api: &ApiClient, gang: &str, n: usize) -> Result<()> {
    special_pods::wait_until(&format!("the pods of {gang}"), STEP_TIMEOUT, async || {
        Ok(n_bound_members(api, gang).await? == n)
    })
    .await
}

/// Waits until so many members are bound, and then until the status of the PodGroup has exactly these fields, besides `occupiedBy`.
async fn becomes(api: &ApiClient, gang: &str, n_bound: usize, status: Value) -> Result<()> {
    wait_until_bound(api, gang, n_bound).await?;
    let path = format!("{}/{gang}", objects::collection(NAMESPACE, "podgroups"));
    let mut last = Value::Null;
    let done = special_pods::wait_until("the status", STATUS_TIMEOUT, async || {
        last = api.get_json(&path).await?["status"].take();
        if let Some(fields) = last.as_object_mut() {
            fields.remove("occupiedBy");
        }
        Ok(last == status)
    });
    done.await.with_context(|| format!("{gang}: {last}, expected {status}"))
}

async fn stays_pending(api: &ApiClient, gang: &str) -> Result<()> {
    sleep(QUIET_TIME).await;
    let n = n_bound_members(api, gang).await?;
    ensure!(n == 0, "{n} pods of {gang} are bound");
    Ok(())
}

async fn n_bound_members(api: &ApiClient, gang: &str) -> Result<usize> {
    let pods = api.list(&objects::pods(NAMESPACE)).await?;
    let is_bound = |pod: &&Value| {
        pod["metadata"]["labels"][objects::LABEL] == gang && pod["spec"]["nodeName"].is_string()
    };
    Ok(pods.iter().filter(is_bound).count())
}
