//! Pods that run before a benchmark begins, as controllers and admission make them.

use anyhow::{Context as _, Result};
use loadmaster_sim::cluster_made_pods::{ControllerKind, PodController};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api_client::ApiClient;
use super::load_objects;
use super::workload::Workload;

/// The number of namespaces; each has a controller and a Service that selects its pods.
const N_NAMESPACES: u32 = 50;
/// The number of environment variables of a pod.
const N_VARIABLES: u32 = 12;

/// Creates this many pods on the nodes in turn. A third of them belong to StatefulSets, the others to ReplicaSets.
pub async fn create(api: &ApiClient, n_nodes: u32, n_pods: u32) -> Result<()> {
    let mut tasks = JoinSet::new();
    for nth in 0..N_NAMESPACES.min(n_pods) {
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
    let mut controller = controller(nth, &mut rng);
    let namespace = controller.namespace().to_owned();
    load_objects::namespace(api, &namespace).await?;
    let app = &controller.template()["metadata"]["labels"]["app"];
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": app, "namespace": namespace},
        "spec": {"clusterIP": "None", "selector": {"app": app}}});
    let services = format!("/api/v1/namespaces/{namespace}/services");
    api.create(&services, &service).await.context("creating a Service")?;
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
    for i in (nth..n_pods).step_by(N_NAMESPACES as usize) {
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

/// The controller of the n-th namespace.
fn controller(nth: u32, rng: &mut Rng) -> PodController {
    let kinds =
        [ControllerKind::ReplicaSet, ControllerKind::ReplicaSet, ControllerKind::StatefulSet];
    let name = format!("service-{nth}");
    let mut template = Workload::Basic.pod(nth);
    template["metadata"] = json!({"namespace": format!("team-{nth}"), "labels": {"app": name}});
    let variable =
        |n| json!({"name": format!("VARIABLE_{n}"), "value": format!("value {n} of {nth}")});
    template["spec"]["containers"][0]["env"] = (0..N_VARIABLES).map(variable).collect::<Value>();
    PodController::new(kinds[nth as usize % 3], &name, template, rng)
}
