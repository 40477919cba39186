//! Creates nodes and pods: thousands of objects per second, over many connections.

use std::ops::Range;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::workload::{Workload, node};

/// The number of concurrent requests. With more, they would only wait in the API server.
const N_CONCURRENT: u32 = 32;

/// Creates a namespace, nodes, and pending pods of a workload.
pub async fn fill(
    api: &ApiClient,
    namespace: &str,
    n_nodes: u32,
    workload: Workload,
    n_pods: u32,
) -> Result<()> {
    self::namespace(api, namespace).await?;
    nodes(api, n_nodes).await?;
    pods(api, namespace, workload, 0..n_pods).await
}

/// Creates a namespace with the service account of its pods.
pub async fn namespace(api: &ApiClient, name: &str) -> Result<()> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    api.create("/api/v1/namespaces", &object).await.context("creating a namespace")?;
    service_account(api, name).await
}

/// Creates the service account `default`, as kube-controller-manager does in every namespace.
pub async fn service_account(api: &ApiClient, namespace: &str) -> Result<()> {
    let object =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    api.create(&path, &object).await.context("creating a service account")?;
    Ok(())
}

/// Creates `n` ready nodes.
pub async fn nodes(api: &ApiClient, n: u32) -> Result<()> {
    create_all(api, "/api/v1/nodes", 0..n, node).await.context("creating nodes")
}

/// Creates these pods of a workload.
pub async fn pods(
    api: &ApiClient,
    namespace: &str,
    workload: Workload,
    which: Range<u32>,
) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    create_all(api, &path, which, move |i| workload.pod(i)).await.context("creating pods")
}

/// Creates `n` pods of a workload, alternately for these schedulers.
pub async fn pods_for(
    api: &ApiClient,
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
    create_all(api, &path, 0..n, make).await.context("creating pods")
}

/// Creates objects in the collection `path`.
pub async fn create_all<F>(api: &ApiClient, path: &str, which: Range<u32>, make: F) -> Result<()>
where
    F: Fn(u32) -> Value + Clone + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for task in 0..N_CONCURRENT {
        let (api, path, which, make) = (api.clone(), path.to_owned(), which.clone(), make.clone());
        tasks.spawn(async move {
            for i in which.skip(task as usize).step_by(N_CONCURRENT as usize) {
                api.create(&path, &make(i)).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a task that creates objects panicked")??;
    }
    Ok(())
}
