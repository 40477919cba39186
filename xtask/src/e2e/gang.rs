//! `cargo xtask e2e gang`: the example gang, with its custom resource and the rights of its own manifest.
//!
//! Without the custom resource nothing is scheduled, and `/readyz`, log, metric and an Event say what is missing; once it is there, all goes
//! on. Pods that cannot all have a node are not bound, and give back the room that they had; once they can, they are bound.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::{ControlPlane, Options};
use super::credentials::Identity;
use super::scheduler::{Chosen, Kind, Scheduler, Setup};
use super::{load, manifest, programs, special};

const NAMESPACE: &str = "e2e";
const PODS: &str = "/api/v1/namespaces/e2e/pods";
const GANGS: &str = "/apis/example.com/v1/namespaces/e2e/gangs";
/// What is said of a server without the custom resource.
const MISSING: &str = "the server has no gangs.example.com in v1";
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
    let objects = manifest::read("examples/gang/crd.yaml")?;
    let (definitions, rights): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|it| it["kind"] == "CustomResourceDefinition");
    for object in &rights {
        manifest::create(&api, object).await?;
    }
    node(&api, "a").await?;
    node(&api, "b").await?;

    let kubeconfig = plane.kubeconfig(&Identity::new("system:kube-scheduler", &[]));
    let mut setup = Setup::new("gang", plane.folder(), &kubeconfig);
    let profile = json!({"schedulerName": setup.scheduler_name,
        "plugins": {"multiPoint": {"enabled": [{"name": "Gang"}]}}});
    setup.more.insert("profiles".to_owned(), json!([profile]));
    let mut scheduler = Chosen::only(folder.join("gang")).start(Kind::Loadmaster, &setup)?;

    let endpoints = Api::unverified(&scheduler.url(), Some(&plane.admin_token()?))?;
    pod(&api, "early", None).await?;
    let missing = without_the_kind(&api, &endpoints, &mut scheduler).await;
    missing.context("without the custom resource")?;
    for definition in &definitions {
        manifest::create(&api, definition).await?;
    }
    special::until("gangs to be served", special::PATIENCE, async || {
        Ok(api.ask(Method::GET, GANGS, Vec::new()).await?.status == 200)
    })
    .await?;
    let there = with_the_kind(&api, &endpoints, &mut scheduler).await;
    there.context("once the custom resource is there")?;

    one_short(&api).await.context("a gang that one pod is missing of")?;
    too_large(&api).await.context("a gang that there is no room for")?;
    scheduler.process.check_running()?;
    plane.finish();
    println!("gangs are bound all or none, and nothing is while the server has no gangs");
    Ok(true)
}

/// Nothing is scheduled, and everybody is told why.
async fn without_the_kind(api: &Api, endpoints: &Api, scheduler: &mut Scheduler) -> Result<()> {
    special::until("/readyz that says what is missing", special::PATIENCE, async || {
        scheduler.process.check_running()?;
        let Ok(readyz) = endpoints.ask(Method::GET, READYZ, Vec::new()).await else {
            return Ok(false);
        };
        Ok(readyz.status == 500 && String::from_utf8_lossy(&readyz.body).contains(MISSING))
    })
    .await?;
    ensure!(scheduler.process.log().contains(MISSING), "the log does not say {MISSING:?}");
    ensure!(missing_kinds(endpoints).await? == Some(1.0), "the metric says something else");
    let told = format!("{MISSING}: no pod is scheduled until it can be read");
    special::until("an Event about the definition", special::PATIENCE, async || {
        let events = api.list("/apis/events.k8s.io/v1/namespaces/default/events").await?;
        Ok(events.iter().any(|event| {
            let of = &event["regarding"];
            event["reason"] == "MissingKind"
                && event["type"] == "Warning"
                && event["note"] == told
                && (&of["kind"], &of["name"])
                    == (&json!("CustomResourceDefinition"), &json!("gangs.example.com"))
        }))
    })
    .await?;
    let early = api.get_json(&format!("{PODS}/early")).await?;
    ensure!(early["spec"]["nodeName"].is_null(), "a pod was bound: {}", early["spec"]);
    Ok(())
}

/// What waited is scheduled, and nothing is said to be missing.
async fn with_the_kind(api: &Api, endpoints: &Api, scheduler: &mut Scheduler) -> Result<()> {
    scheduler.wait_until_ready().await?;
    let missing = missing_kinds(endpoints).await?;
    ensure!(missing == Some(0.0), "the metric is {missing:?}");
    until_bound(api, "early").await?;
    let gone = api.ask(Method::DELETE, &format!("{PODS}/early"), Vec::new()).await?;
    ensure!(gone.status == 200, "deleting the pod: {}", gone.status);
    Ok(())
}

/// The check that knows which kinds are there, with its reason.
const READYZ: &str = "/readyz/sched-handler-sync";

/// What `loadmaster_missing_kinds` says of gangs that are absent.
async fn missing_kinds(endpoints: &Api) -> Result<Option<f64>> {
    let text = endpoints.get("/metrics").await?;
    let text = String::from_utf8_lossy(&text);
    let sample = r#"loadmaster_missing_kinds{group="example.com",resource="gangs",why="absent"} "#;
    let value = text.lines().find_map(|line| line.strip_prefix(sample));
    value.map(|value| value.parse().context("reading a metric")).transpose()
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
