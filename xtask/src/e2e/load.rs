//! Fills a cluster: thousands of objects a second, over many connections.

use std::ops::Range;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api::Api;
use super::workload::{Workload, node};

/// Requests under way at a time. More than that only makes them wait in the API server.
const N_LANES: u32 = 32;

/// A namespace, nodes, and pending pods of a workload.
pub async fn fill(
    api: &Api,
    namespace: &str,
    n_nodes: u32,
    workload: Workload,
    n_pods: u32,
) -> Result<()> {
    self::namespace(api, namespace).await?;
    nodes(api, n_nodes).await?;
    pods(api, namespace, workload, 0..n_pods).await
}

/// A namespace.
pub async fn namespace(api: &Api, name: &str) -> Result<()> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    api.create("/api/v1/namespaces", &object).await.context("making a namespace")?;
    Ok(())
}

/// So many nodes, ready for pods.
pub async fn nodes(api: &Api, n: u32) -> Result<()> {
    create_all(api, "/api/v1/nodes", 0..n, node).await.context("loading nodes")
}

/// These pods of a workload, pending.
pub async fn pods(api: &Api, namespace: &str, workload: Workload, which: Range<u32>) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    create_all(api, &path, which, move |i| workload.pod(i)).await.context("loading pods")
}

/// So many pods of a workload, pending, for these schedulers in turns.
pub async fn pods_for(
    api: &Api,
    namespace: &str,
    workload: Workload,
    n: u32,
    schedulers: [&'static str; 2],
) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let make = move |i: u32| {
        let mut pod = workload.pod(i);
        pod["spec"]["schedulerName"] = json!(schedulers[i as usize % 2]);
        pod
    };
    create_all(api, &path, 0..n, make).await.context("loading pods")
}

async fn create_all<F>(api: &Api, path: &str, which: Range<u32>, make: F) -> Result<()>
where
    F: Fn(u32) -> Value + Copy + Send + 'static,
{
    let mut lanes = JoinSet::new();
    for lane in 0..N_LANES {
        let (api, path, which) = (api.clone(), path.to_owned(), which.clone());
        lanes.spawn(async move {
            for i in which.skip(lane as usize).step_by(N_LANES as usize) {
                api.create(&path, &make(i)).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.context("a lane of the loader panicked")??;
    }
    Ok(())
}
