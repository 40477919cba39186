//! `cargo xtask e2e gang`: tests the example gang, with its custom resource and the roles of its manifest.
//!
//! Without the custom resource no pod is scheduled, and `/readyz`, log, metric and an Event report what is missing; after it is created,
//! scheduling starts. If the pods of a gang do not all fit, none is bound and their resources are released; when they fit, all are bound.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use http::Method;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::{ControlPlane, ControlPlaneOptions};
use super::credentials::UserIdentity;
use super::scheduler::{Scheduler, SchedulerArgs, SchedulerKind, SchedulerSetup};
use super::{load_objects, manifest, programs, special_pods};

const NAMESPACE: &str = "e2e";
const PODS: &str = "/api/v1/namespaces/e2e/pods";
const GANGS: &str = "/apis/example.com/v1/namespaces/e2e/gangs";
/// The message about a server without the custom resource.
const MISSING: &str = "the server has no gangs.example.com in v1";
/// The capacity of a node in pods.
const N_PODS_PER_NODE: usize = 4;

/// Test all-or-nothing scheduling with the example gang.
#[derive(Parser)]
pub struct Args {}

/// Runs the tests; a failed check is an error.
pub async fn run(_: &Args) -> Result<bool> {
    let folder = programs::examples(&["gang"])?;
    let plane = ControlPlane::start(&ControlPlaneOptions::default()).await?;
    let api = ApiClient::new(&plane.admin_kubeconfig()).await?;
    load_objects::namespace(&api, NAMESPACE).await?;
    let objects = manifest::read("examples/gang/crd.yaml")?;
    let (definitions, rights): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|it| it["kind"] == "CustomResourceDefinition");
    for object in &rights {
        manifest::create(&api, object).await?;
    }
    node(&api, "a").await?;
    node(&api, "b").await?;

    let kubeconfig = plane.kubeconfig(&UserIdentity::new("system:kube-scheduler", &[]));
    let mut setup = SchedulerSetup::new("gang", plane.folder(), &kubeconfig);
    let enabled = json!([{"name": "Gang"}]);
    let queue_sort = json!({"enabled": enabled, "disabled": [{"name": "*"}]});
    let profile = json!({"schedulerName": setup.scheduler_name,
        "plugins": {"multiPoint": {"enabled": enabled}, "queueSort": queue_sort}});
    setup.extra_config.insert("profiles".to_owned(), json!([profile]));
    let mut scheduler =
        SchedulerArgs::only(folder.join("gang")).start(SchedulerKind::Loadmaster, &setup)?;

    let endpoints = ApiClient::insecure(&scheduler.url(), Some(&plane.admin_token()?))?;
    pod(&api, "early", None).await?;
    let missing = without_custom_resource(&api, &endpoints, &mut scheduler).await;
    missing.context("without the custom resource")?;
    for definition in &definitions {
        manifest::create(&api, definition).await?;
    }
    special_pods::wait_until("gangs to be served", special_pods::STEP_TIMEOUT, async || {
        Ok(api.request(Method::GET, GANGS, Vec::new()).await?.status == 200)
    })
    .await?;
    let present = with_custom_resource(&api, &endpoints, &mut scheduler).await;
    present.context("once the custom resource is there")?;

    incomplete_gang(&api).await.context("a gang with a missing pod")?;
    gang_larger_than_capacity(&api).await.context("a gang larger than the free capacity")?;
    scheduler.process.check_running()?;
    plane.finish();
    println!("gangs are bound all or nothing, and no pod is scheduled without the custom resource");
    Ok(true)
}

/// No pod is scheduled, and the reason is reported.
async fn without_custom_resource(
    api: &ApiClient,
    endpoints: &ApiClient,
    scheduler: &mut Scheduler,
) -> Result<()> {
    special_pods::wait_until(
        "/readyz to report the missing kind",
        special_pods::STEP_TIMEOUT,
        async || {
            scheduler.process.check_running()?;
            let Ok(readyz) = endpoints.request(Method::GET, READYZ, Vec::new()).await else {
                return Ok(false);
            };
            Ok(readyz.status == 500 && String::from_utf8_lossy(&readyz.body).contains(MISSING))
        },
    )
    .await?;
    ensure!(scheduler.process.log().contains(MISSING), "the log does not contain {MISSING:?}");
    ensure!(missing_kinds(endpoints).await? == Some(1.0), "the metric has another value");
    let note = format!("{MISSING}: no pod is scheduled until it can be read");
    special_pods::wait_until(
        "an Event about the definition",
        special_pods::STEP_TIMEOUT,
        async || {
            let events = api.list("/apis/events.k8s.io/v1/namespaces/default/events").await?;
            Ok(events.iter().any(|event| {
                let of = &event["regarding"];
                event["reason"] == "MissingKind"
                    && event["type"] == "Warning"
                    && event["note"] == note
                    && (&of["kind"], &of["name"])
                        == (&json!("CustomResourceDefinition"), &json!("gangs.example.com"))
            }))
        },
    )
    .await?;
    let early = api.get_json(&format!("{PODS}/early")).await?;
    ensure!(early["spec"]["nodeName"].is_null(), "a pod was bound: {}", early["spec"]);
    Ok(())
}

/// Pending pods are scheduled, and no kind is reported as missing.
async fn with_custom_resource(
    api: &ApiClient,
    endpoints: &ApiClient,
    scheduler: &mut Scheduler,
) -> Result<()> {
    scheduler.wait_until_ready().await?;
    let missing = missing_kinds(endpoints).await?;
    ensure!(missing == Some(0.0), "the metric is {missing:?}");
    wait_until_bound(api, "early").await?;
    let deleted = api.request(Method::DELETE, &format!("{PODS}/early"), Vec::new()).await?;
    ensure!(deleted.status == 200, "deleting the pod: {}", deleted.status);
    Ok(())
}

/// The health check of synced kinds, with its reason.
const READYZ: &str = "/readyz/sched-handler-sync";

/// The value of `loadmaster_missing_kinds` for gangs that are absent.
async fn missing_kinds(endpoints: &ApiClient) -> Result<Option<f64>> {
    let text = endpoints.get("/metrics").await?;
    let text = String::from_utf8_lossy(&text);
    let sample = r#"loadmaster_missing_kinds{group="example.com",resource="gangs",why="absent"} "#;
    let value = text.lines().find_map(|line| line.strip_prefix(sample));
    value.map(|value| value.parse().context("reading a metric")).transpose()
}

/// Three of four pods wait in the queue for the fourth.
async fn incomplete_gang(api: &ApiClient) -> Result<()> {
    gang(api, "short", 4, 300).await?;
    for i in 0..3 {
        pod(api, &format!("short-{i}"), Some("short")).await?;
    }
    // It is scheduled after them.
    pod(api, "after", None).await?;
    wait_until_bound(api, "after").await?;
    ensure!(
        bound(api, "short").await?.is_empty(),
        "some are bound: {:?}",
        bound(api, "short").await?
    );
    pod(api, "short-3", Some("short")).await?;
    for i in 0..4 {
        wait_until_bound(api, &format!("short-{i}")).await?;
    }
    Ok(())
}

/// The two nodes have capacity for three more pods, and the gang has five.
async fn gang_larger_than_capacity(api: &ApiClient) -> Result<()> {
    gang(api, "large", 5, 3).await?;
    for i in 0..5 {
        pod(api, &format!("large-{i}"), Some("large")).await?;
    }
    for i in 0..5 {
        special_pods::wait_for_pod(api, NAMESPACE, &format!("large-{i}"), "a condition", |pod| {
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
    // The gang has released its resources: other pods get them.
    for i in 0..3 {
        pod(api, &format!("instead-{i}"), None).await?;
    }
    for i in 0..3 {
        wait_until_bound(api, &format!("instead-{i}")).await?;
    }
    ensure!(
        bound(api, "large").await?.is_empty(),
        "some are bound: {:?}",
        bound(api, "large").await?
    );
    node(api, "c").await?;
    node(api, "d").await?;
    for i in 0..5 {
        wait_until_bound(api, &format!("large-{i}")).await?;
    }
    Ok(())
}

async fn gang(api: &ApiClient, name: &str, n_members: u32, seconds: u32) -> Result<()> {
    let gang = json!({"apiVersion": "example.com/v1", "kind": "Gang", "metadata": {"name": name},
        "spec": {"minMembers": n_members, "timeoutSeconds": seconds}});
    api.create(GANGS, &gang).await?;
    Ok(())
}

async fn node(api: &ApiClient, name: &str) -> Result<()> {
    let amounts = json!({"cpu": N_PODS_PER_NODE.to_string(), "memory": "64Gi", "pods": "110"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": amounts, "allocatable": amounts}});
    api.create("/api/v1/nodes", &node).await?;
    Ok(())
}

/// A pod that requests one CPU.
async fn pod(api: &ApiClient, name: &str, gang: Option<&str>) -> Result<()> {
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

async fn wait_until_bound(api: &ApiClient, name: &str) -> Result<()> {
    let has_node = |pod: &Value| pod["spec"]["nodeName"].is_string();
    special_pods::wait_for_pod(api, NAMESPACE, name, "a node", has_node).await
}

/// Names of the pods of a gang that have a node.
async fn bound(api: &ApiClient, gang: &str) -> Result<BTreeSet<String>> {
    let pods = api.list(PODS).await?;
    let bound = pods.iter().filter(|pod| {
        pod["metadata"]["labels"]["example.com/gang"] == gang && pod["spec"]["nodeName"].is_string()
    });
    Ok(bound.map(|pod| pod["metadata"]["name"].to_string()).collect())
}
