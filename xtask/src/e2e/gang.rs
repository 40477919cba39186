//! `cargo xtask e2e gang`: the example gang, with its custom resource and the rights of its own manifest.
//!
//! Pods that cannot all have a node are not bound, and give back the room that they had; once they can, they are bound.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::scheduler::{Chosen, Kind, Setup};
use super::{load, programs, special};

const NAMESPACE: &str = "e2e";
const PODS: &str = "/api/v1/namespaces/e2e/pods";
const GANGS: &str = "/apis/example.com/v1/namespaces/e2e/gangs";
/// Pods that a node has room for.
const N_PODS_PER_NODE: usize = 4;

/// Pods that are bound all or none, by the example gang.
#[derive(Parser)]
pub struct Args {}

/// Answers whether all was as it should be; if not, the error says what was not.
pub async fn run(_: &Args) -> Result<bool> {
    let folder = programs::examples(&["gang"])?;
    let plane = ControlPlane::start(&Options::default()).await?;
    let api = Api::new(&plane.admin_kubeconfig()).await?;
    load::namespace(&api, NAMESPACE).await?;
    apply_manifest(&api).await?;
    node(&api, "a").await?;
    node(&api, "b").await?;

    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let mut setup = Setup::new("gang", plane.folder(), &kubeconfig);
    let profile = json!({"schedulerName": setup.scheduler_name,
        "plugins": {"multiPoint": {"enabled": [{"name": "Gang"}]}}});
    setup.more.insert("profiles".to_owned(), json!([profile]));
    let mut scheduler = Chosen::only(folder.join("gang")).start(Kind::Loadmaster, &setup)?;
    scheduler.wait_until_ready().await?;

    one_short(&api).await.context("a gang that one pod is missing of")?;
    too_large(&api).await.context("a gang that there is no room for")?;
    scheduler.process.check_running()?;
    plane.finish();
    println!("gangs are bound all or none");
    Ok(true)
}

/// Three of four have a node, and wait until the fourth has one.
async fn one_short(api: &Api) -> Result<()> {
    gang(api, "short", 4, 300).await?;
    for i in 0..3 {
        pod(api, &format!("short-{i}"), Some("short")).await?;
    }
    // It is tried after them.
    pod(api, "after", None).await?;
    until_bound(api, "after").await?;
    ensure!(
        bound(api, "short").await?.is_empty(),
        "some are bound: {:?}",
        bound(api, "short").await?
    );
    pod(api, "short-3", Some("short")).await?;
    for i in 0..4 {
        until_bound(api, &format!("short-{i}")).await?;
    }
    Ok(())
}

/// There is room for three more pods on the two nodes, and the gang is of five.
async fn too_large(api: &Api) -> Result<()> {
    gang(api, "large", 5, 3).await?;
    for i in 0..5 {
        pod(api, &format!("large-{i}"), Some("large")).await?;
    }
    for i in 0..5 {
        special::wait_for(api, NAMESPACE, &format!("large-{i}"), "a condition", |pod| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|it| it["type"] == "PodScheduled" && it["status"] == "False")
        })
        .await?;
    }
    ensure!(
        bound(api, "large").await?.is_empty(),
        "some are bound: {:?}",
        bound(api, "large").await?
    );
    // They hold no room for good: as many pods as fit get it.
    for i in 0..3 {
        pod(api, &format!("instead-{i}"), None).await?;
    }
    for i in 0..3 {
        until_bound(api, &format!("instead-{i}")).await?;
    }
    ensure!(
        bound(api, "large").await?.is_empty(),
        "some are bound: {:?}",
        bound(api, "large").await?
    );
    node(api, "c").await?;
    node(api, "d").await?;
    for i in 0..5 {
        until_bound(api, &format!("large-{i}")).await?;
    }
    Ok(())
}

/// The custom resource and the right to read it, until the API server serves it.
async fn apply_manifest(api: &Api) -> Result<()> {
    let path = crate::root()?.join("examples/gang/crd.yaml");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("reading a manifest")?;
        let path = match object["kind"].as_str() {
            Some("CustomResourceDefinition") => {
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            }
            Some("ClusterRole") => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            Some("ClusterRoleBinding") => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            other => bail!("a manifest of kind {other:?}"),
        };
        api.create(path, &object).await?;
    }
    for _ in 0..600 {
        if api.ask(Method::GET, GANGS, Vec::new()).await?.status == 200 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the API server did not serve gangs within a minute")
}

async fn gang(api: &Api, name: &str, n_members: u32, seconds: u32) -> Result<()> {
    let gang = json!({"apiVersion": "example.com/v1", "kind": "Gang", "metadata": {"name": name},
        "spec": {"minMembers": n_members, "timeoutSeconds": seconds}});
    api.create(GANGS, &gang).await?;
    Ok(())
}

async fn node(api: &Api, name: &str) -> Result<()> {
    let amounts = json!({"cpu": N_PODS_PER_NODE.to_string(), "memory": "64Gi", "pods": "110"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": amounts, "allocatable": amounts}});
    api.create("/api/v1/nodes", &node).await?;
    Ok(())
}

/// One CPU.
async fn pod(api: &Api, name: &str, gang: Option<&str>) -> Result<()> {
    let resources = json!({"requests": {"cpu": "1"}});
    let container =
        json!({"name": "main", "image": "registry.example/app", "resources": resources});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}});
    if let Some(gang) = gang {
        pod["metadata"]["labels"] = json!({"example.com/gang": gang});
    }
    api.create(PODS, &pod).await?;
    Ok(())
}

async fn until_bound(api: &Api, name: &str) -> Result<()> {
    let has_node = |pod: &Value| pod["spec"]["nodeName"].is_string();
    special::wait_for(api, NAMESPACE, name, "a node", has_node).await
}

/// Names of the pods of a gang that have a node.
async fn bound(api: &Api, gang: &str) -> Result<BTreeSet<String>> {
    let pods = api.list(PODS).await?;
    let bound = pods.iter().filter(|pod| {
        pod["metadata"]["labels"]["example.com/gang"] == gang && pod["spec"]["nodeName"].is_string()
    });
    Ok(bound.map(|pod| pod["metadata"]["name"].to_string()).collect())
}
