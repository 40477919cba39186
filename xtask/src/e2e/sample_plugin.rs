//! `cargo xtask e2e sample-plugin`: applies the example's manifest, and runs its scheduler with the roles and configuration of the manifest.
//!
//! It becomes leader, schedules the workload on its nodes and other pods on any node, reports why a pod is unschedulable, and ignores pods
//! of other schedulers. No request may be denied according to the audit log.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::scheduler::{SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::{audit, load_objects, manifest, programs, special_pods, workload};

const MANIFEST: &str = "examples/sample-plugin/deploy/sample-plugin.yaml";
const NAMESPACE: &str = "e2e";
const PODS: &str = "/api/v1/namespaces/e2e/pods";
/// The service account in kube-system, and its user name.
const ACCOUNT: &str = "sample-plugin";
const USER: &str = "system:serviceaccount:kube-system:sample-plugin";

/// Run the example sample-plugin with the roles and configuration of its manifest.
#[derive(Parser)]
pub struct Args {}

/// Returns whether no request was denied; any other failed check is an error.
pub async fn run(_: &Args) -> Result<bool> {
    let folder = programs::examples(&["sample-plugin"])?;
    let audit_policy = Some(audit::policy_for_all_requests());
    let plane = ControlPlane::start(&ControlPlaneOptions {
        audit_policy,
        ..ControlPlaneOptions::default()
    })
    .await?;
    let worked = work(&SchedulerArgs::only(folder.join("sample-plugin")), &plane).await;
    // Also after a failure: denied requests may be the cause.
    let denied = audit::denied_requests(&audit::read(plane.audit_log())?, USER);
    for (request, n) in &denied {
        println!("{n} x {request}");
    }
    worked?;
    if denied.is_empty() {
        println!("sample-plugin works with the roles of its manifest");
        plane.finish();
    }
    Ok(denied.is_empty())
}

async fn work(chosen: &SchedulerArgs, plane: &ControlPlane) -> Result<()> {
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    let objects = manifest::read(MANIFEST)?;
    for object in &objects {
        manifest::create(&api, object).await?;
    }
    for (i, pool) in [(0, "gold"), (1, "silver")] {
        let mut node = workload::node(i);
        node["metadata"]["labels"]["example.com/pool"] = pool.into();
        api.create("/api/v1/nodes", &node).await.context("a node")?;
    }
    let token = manifest::account_token(&api, ACCOUNT).await?;
    let kubeconfig = plane.kubeconfig_for_token(ACCOUNT, &token)?;
    let mut setup = SchedulerSetup::new(ACCOUNT, plane.folder(), &kubeconfig);
    setup.extra_config = configuration(&objects)?;
    let mut scheduler = chosen.start(SchedulerKind::Loadmaster, &setup)?;
    scheduler.wait_until_ready().await?;

    let (ours, anywhere) = ("sample-scheduler", json!({}));
    for name in ["train-0", "train-1"] {
        pod(&api, name, ours, &anywhere).await?;
    }
    let silver = json!({"example.com/pool": "silver"});
    pod(&api, "web", ours, &silver).await?;
    pod(&api, "train-elsewhere", ours, &silver).await?;
    pod(&api, "train-of-others", "default-scheduler", &anywhere).await?;
    for (name, node) in [("train-0", "node-0"), ("train-1", "node-0"), ("web", "node-1")] {
        let is_there = |pod: &Value| pod["spec"]["nodeName"] == node;
        special_pods::wait_for_pod(&api, NAMESPACE, name, node, is_there).await?;
    }
    let reason = "node(s) didn't have example.com/pool=gold for train";
    special_pods::wait_for_pod(&api, NAMESPACE, "train-elsewhere", reason, |pod| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| it["message"].as_str().is_some_and(|message| message.contains(reason)))
    })
    .await?;
    let other = api.get_json(&format!("{PODS}/train-of-others")).await?;
    ensure!(
        other["status"]["conditions"].is_null(),
        "a pod of another scheduler was attempted: {other}"
    );
    // Terminate it, so that the release of the lease is in the audit log.
    scheduler.process.terminate()?;
    let status = scheduler.process.wait(special_pods::STEP_TIMEOUT).await?;
    ensure!(status.success(), "the exit status after SIGTERM is {status}");
    Ok(())
}

/// The configuration in the ConfigMap of the manifest.
fn configuration(objects: &[Value]) -> Result<serde_json::Map<String, Value>> {
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let text = map.and_then(|map| map["data"]["scheduler.yaml"].as_str());
    let text = text.with_context(|| format!("{MANIFEST} has no configuration"))?;
    serde_saphyr::from_str(text).context("reading the configuration")
}

async fn pod(api: &ApiClient, name: &str, scheduler: &str, selector: &Value) -> Result<()> {
    let container = json!({"name": "main", "image": "registry.example/app"});
    let spec = json!({"schedulerName": scheduler, "nodeSelector": selector,
        "containers": [container], "terminationGracePeriodSeconds": 0});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    api.create(PODS, &pod).await.map(drop)
}
