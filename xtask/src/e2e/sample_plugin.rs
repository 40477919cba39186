//! `cargo xtask e2e sample-plugin`: the example's manifest as it stands, and its scheduler with the rights and the configuration of that.
//!
//! It leads, sends the workload to its nodes and other pods anywhere, says why a pod fits nowhere, and leaves other schedulers' pods
//! alone. Then the audit log must not have a refused request.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::scheduler::{Chosen, Kind, Setup};
use super::{audit, load, manifest, programs, special, workload};

const MANIFEST: &str = "examples/sample-plugin/deploy/sample-plugin.yaml";
const NAMESPACE: &str = "e2e";
const PODS: &str = "/api/v1/namespaces/e2e/pods";
/// In kube-system, and how the API server calls it.
const ACCOUNT: &str = "sample-plugin";
const USER: &str = "system:serviceaccount:kube-system:sample-plugin";

/// The example sample-plugin with its own manifest.
#[derive(Parser)]
pub struct Args {}

/// Answers whether nothing was refused; what else is not as it should be is an error.
pub async fn run(_: &Args) -> Result<bool> {
    let folder = programs::examples(&["sample-plugin"])?;
    let audit_policy = Some(audit::policy_of_everything());
    let plane = ControlPlane::start(&Options { audit_policy, ..Options::default() }).await?;
    let worked = work(&Chosen::only(folder.join("sample-plugin")), &plane).await;
    // Above all when it did not work: this may be why.
    let refusals = audit::refusals(&audit::read(plane.audit_log())?, USER);
    for (refused, n) in &refusals {
        println!("{n} x {refused}");
    }
    worked?;
    if refusals.is_empty() {
        println!("sample-plugin does its work with the rights of its manifest");
        plane.finish();
    }
    Ok(refusals.is_empty())
}

async fn work(chosen: &Chosen, plane: &ControlPlane) -> Result<()> {
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    load::namespace(&api, NAMESPACE).await?;
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
    let mut setup = Setup::new(ACCOUNT, plane.folder(), &kubeconfig);
    setup.more = configuration(&objects)?;
    let mut scheduler = chosen.start(Kind::Loadmaster, &setup)?;
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
        special::wait_for(&api, NAMESPACE, name, node, is_there).await?;
    }
    let reason = "node(s) didn't have example.com/pool=gold for train";
    special::wait_for(&api, NAMESPACE, "train-elsewhere", reason, |pod| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| it["message"].as_str().is_some_and(|said| said.contains(reason)))
    })
    .await?;
    let other = api.get_json(&format!("{PODS}/train-of-others")).await?;
    ensure!(other["status"]["conditions"].is_null(), "another's pod was tried: {other}");
    // Terminated, so that giving the lease back is in the log.
    scheduler.process.terminate()?;
    let status = scheduler.process.wait(special::PATIENCE).await?;
    ensure!(status.success(), "it ended with {status} after SIGTERM");
    Ok(())
}

/// What the ConfigMap of the manifest says.
fn configuration(objects: &[Value]) -> Result<serde_json::Map<String, Value>> {
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap");
    let text = map.and_then(|map| map["data"]["scheduler.yaml"].as_str());
    let text = text.with_context(|| format!("{MANIFEST} has no configuration"))?;
    serde_saphyr::from_str(text).context("reading the configuration")
}

async fn pod(api: &Api, name: &str, scheduler: &str, selector: &Value) -> Result<()> {
    let container = json!({"name": "main", "image": "registry.example/app"});
    let spec = json!({"schedulerName": scheduler, "nodeSelector": selector,
        "containers": [container], "terminationGracePeriodSeconds": 0});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    api.create(PODS, &pod).await.map(drop)
}
