//! Schedulers on a real control plane whose `/metrics` have every series that operators look for.
//!
//! A leader and a standby bind pods, report one that fits nowhere, preempt, and call an extender that is not there. A third scheduler has a
//! plugin that panics, is stuck, and watches a kind that it may not read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::metrics_text::{self, Series};
use crate::e2e::api_client::ApiClient;
use crate::e2e::bound_pods::BoundPods;
use crate::e2e::control_plane::{ControlPlane, ControlPlaneOptions, free_port};
use crate::e2e::credentials::UserIdentity;
use crate::e2e::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use crate::e2e::workload::Workload;
use crate::e2e::{load_objects, programs, scheduler_role_bindings, special_pods};

const NAMESPACE: &str = "e2e";
const N_NODES: u32 = 10;
const N_PODS: u32 = 60;
/// The example program, its schedulerName and its user.
const FAULTY: &str = "faulty-plugin";
/// The group of that user.
const GROUP: &str = "e2e:schedulers";
/// Longer than it takes until a plugin counts as stuck, which is a minute.
const TIMEOUT: Duration = Duration::from_secs(100);

/// The least values of series: which scheduler shows them (leader, standby, faulty), and the beginning of the line.
const LEAST_VALUES: &[(usize, &str, f64)] = &[
    (0, r#"leader_election_master_status{name="kube-scheduler"}"#, 1.0),
    (0, r#"loadmaster_binds_total{result="success"}"#, 62.0),
    (0, r#"loadmaster_events_total{result="written"}"#, 62.0),
    (0, r#"loadmaster_oldest_pending_pod_age_seconds{queue="unschedulable"}"#, 1.0),
    (0, r#"loadmaster_oldest_pending_pod_age_seconds{queue="gated"}"#, 1.0),
    (0, r#"scheduler_pending_pods{queue="unschedulable"}"#, 1.0),
    (0, r#"scheduler_pending_pods{queue="gated"}"#, 1.0),
    (0, "scheduler_preemption_victims_sum", 1.0),
    // A standby has not tried any pod.
    (1, r#"scheduler_pending_pods{queue="active"}"#, 1.0),
    (2, "loadmaster_plugin_panics_total", 1.0),
    (2, "loadmaster_plugin_stuck_total", 1.0),
];

/// The series of all schedulers, when they have everything that is expected.
pub async fn series(
    loadmaster: Option<&Path>,
    is_complete: impl Fn(&[Series]) -> Result<bool>,
) -> Result<Vec<Series>> {
    let chosen = SchedulerArgs::only(programs::loadmaster(loadmaster)?);
    let faulty = SchedulerArgs::only(build_faulty()?);
    let plane = ControlPlane::start(&options()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::fill(&api, NAMESPACE, N_NODES, Workload::Basic, N_PODS).await?;
    // Without the kind that the plugin watches.
    let group = scheduler_role_bindings::group(GROUP);
    scheduler_role_bindings::bind_scheduler_roles(&api, &group).await?;
    let schedulers = [
        start_replica(&chosen, &plane, "leader").await?,
        start_replica(&chosen, &plane, "standby").await?,
        start_faulty(&faulty, &plane).await?,
    ];
    create_pods(&api).await?;
    let mut bound = BoundPods::watch(&api, NAMESPACE).await?;
    ensure!(bound.wait_for(N_PODS as usize, special_pods::STEP_TIMEOUT).await?, "pods are pending");
    special_pods::check_unschedulable_pod(&api, NAMESPACE, "default-scheduler").await?;
    special_pods::check_preemption(&api, NAMESPACE).await?;
    let clients = clients(&schedulers, &plane)?;
    let mut found = Vec::new();
    let mut absent = Vec::new();
    let done = special_pods::wait_until("the metrics", TIMEOUT, async || {
        let mut texts = Vec::new();
        for client in &clients {
            texts.push(String::from_utf8(client.get("/metrics").await?)?);
        }
        found = metrics_text::parse(&texts.join("\n"))?;
        absent = low_values(&texts);
        Ok(absent.is_empty() && is_complete(&found)?)
    })
    .await;
    for scheduler in schedulers {
        let mut process = scheduler.process;
        process.check_running()?;
    }
    // What is missing in the series is told by the caller.
    ensure!(absent.is_empty(), "{}: {absent:?} are too low", done.err().context("no error")?);
    plane.finish();
    Ok(found)
}

/// Which of the least values are not reached.
fn low_values(texts: &[String]) -> Vec<&'static str> {
    let is_low = |(nth, begin, least): &&(usize, &str, f64)| {
        let text = texts.get(*nth).map_or("", String::as_str);
        let mut lines = text.lines().filter(|line| line.starts_with(begin));
        !lines.any(|line| {
            let value = line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
            value.is_some_and(|value| value >= *least)
        })
    };
    LEAST_VALUES.iter().filter(is_low).map(|(_, begin, _)| *begin).collect()
}

fn options() -> ControlPlaneOptions {
    let mut options = ControlPlaneOptions::default();
    options.identities.push(UserIdentity::new(FAULTY, &[GROUP]));
    options
}

/// Builds the example; returns its path.
fn build_faulty() -> Result<PathBuf> {
    let folder = programs::folder()?;
    let mut cargo = crate::command("cargo");
    // With the features of the workspace, as its tests were built.
    cargo.args(["build", "--quiet", "--workspace", "--example", FAULTY]);
    let status = cargo.current_dir(crate::root()?).status().context("running cargo")?;
    ensure!(status.success(), "building the example {FAULTY} failed");
    Ok(folder.join("examples").join(FAULTY))
}

/// A replica of the scheduler of most pods. The one that is started first leads.
async fn start_replica(
    chosen: &SchedulerArgs,
    plane: &ControlPlane,
    name: &str,
) -> Result<Scheduler> {
    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    // Nothing listens there.
    let url = format!("http://127.0.0.1:{}", free_port()?);
    let extender = json!({"urlPrefix": url, "filterVerb": "filter", "ignorable": true});
    let setup = SchedulerSetup {
        leader_elect: true,
        extenders: &[extender],
        ..SchedulerSetup::new(name, plane.folder(), &kubeconfig)
    };
    let flags = ["--check-every=1".to_owned()];
    let mut scheduler = chosen.start_with(SchedulerKind::Loadmaster, &setup, &flags)?;
    scheduler.wait_until_ready().await?;
    Ok(scheduler)
}

async fn start_faulty(chosen: &SchedulerArgs, plane: &ControlPlane) -> Result<Scheduler> {
    let kubeconfig = plane.kubeconfig(&UserIdentity::new(FAULTY, &[]));
    let mut setup = SchedulerSetup::new(FAULTY, plane.folder(), &kubeconfig);
    let plugins = json!({"multiPoint": {"enabled": [{"name": "Faulty"}]}});
    let profiles = json!([{"schedulerName": FAULTY, "plugins": plugins}]);
    setup.extra_config.insert("profiles".to_owned(), profiles);
    let mut scheduler = chosen.start(SchedulerKind::Loadmaster, &setup)?;
    scheduler.wait_until_ready().await?;
    Ok(scheduler)
}

/// A gated pod, and pods at which the plugin fails.
async fn create_pods(api: &ApiClient) -> Result<()> {
    let containers = json!([{"name": "main", "image": "registry.example/app-0:v1"}]);
    let gates = json!([{"name": "example.com/quota"}]);
    for (name, scheduler, gates) in [
        ("gated", "default-scheduler", gates),
        ("panic", FAULTY, Value::Null),
        ("stuck", FAULTY, Value::Null),
    ] {
        let spec =
            json!({"schedulerName": scheduler, "containers": containers, "schedulingGates": gates});
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        api.create(&path, &pod).await.with_context(|| format!("creating the pod {name}"))?;
    }
    Ok(())
}

/// Readers of the endpoints.
fn clients(schedulers: &[Scheduler], plane: &ControlPlane) -> Result<Vec<ApiClient>> {
    let token = plane.admin_token()?;
    schedulers.iter().map(|scheduler| ApiClient::insecure(&scheduler.url(), Some(&token))).collect()
}
