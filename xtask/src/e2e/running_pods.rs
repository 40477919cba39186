//! Pods that run before a benchmark begins, as controllers and admission make them.

use anyhow::{Context as _, Result};
use loadmaster_sim::cluster_made_pods::{ControllerKind, N_TEAMS, PodController};
use loadmaster_stdx::Rng;
use serde_json::json;
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::load_objects;
use super::workload::Workload;

/// Creates this many pods on the nodes in turn, in namespaces with a controller and a Service that selects its pods each. A third of them belong to StatefulSets, the others to ReplicaSets.
pub async fn create(api: &ApiClient, n_nodes: u32, n_pods: u32) -> Result<()> {
    let mut tasks = JoinSet::new();
    for nth in 0..(N_TEAMS as u32).min(n_pods) {
        let api = api.clone();
        tasks.spawn(async move { create_in_namespace(&api, nth, n_nodes, n_pods).await });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a task that creates running pods panicked")??;
    }
    Ok(())
}

async fn create_in_namespace(api: &ApiClient, nth: u32, n_nodes: u32, n_pods: u32) -> Result<()> {
    let mut rng = Rng::new(u64::from(nth) + 1);
    let name = format!("service-{nth}");
    let mut manifest = Workload::Basic.pod(nth);
    manifest["metadata"] = json!({"labels": {"app": name}});
    let mut controller = PodController::of_team(nth as usize, &name, &manifest, &mut rng);
    let namespace = controller.namespace().to_owned();
    load_objects::namespace(api, &namespace).await?;
    let services = format!("/api/v1/namespaces/{namespace}/services");
    api.create(&services, &controller.service()).await.context("creating a Service")?;
    let mut owner = controller.owner();
    owner["spec"]["template"] = controller.template().clone();
    owner["spec"]["template"]["metadata"]["labels"] =
        owner["spec"]["selector"]["matchLabels"].clone();
    let resource = match controller.kind() {
        ControllerKind::StatefulSet => "statefulsets",
        _ => "replicasets",
    };
    let owners = format!("/apis/apps/v1/namespaces/{namespace}/{resource}");
    api.create(&owners, &owner).await.context("creating a controller")?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    for i in (nth..n_pods).step_by(N_TEAMS) {
        let mut pod = controller.create_pod(&mut rng);
        if controller.kind() != ControllerKind::StatefulSet {
            // Of so many random names two may be equal.
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            pod["metadata"]["name"] = json!(format!("{name}-{i}"));
        }
        pod["spec"]["nodeName"] = json!(format!("node-{}", i % n_nodes));
        api.create(&pods, &pod).await.context("creating a running pod")?;
    }
    Ok(())
}
