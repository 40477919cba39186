//! Pods that make a scheduler do more than bind: explain, preempt, bind a volume; and waiting for such things.

#![expect(clippy::disallowed_types, reason = "waiting needs a clock")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::control_plane::ControlPlane;
use super::controller_manager;

/// The timeout of a step.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Checks that an unschedulable pod gets a condition with the reason.
pub async fn check_unschedulable_pod(
    api: &ApiClient,
    namespace: &str,
    scheduler: &str,
) -> Result<()> {
    let spec = json!({"schedulerName": scheduler, "containers": [container("1000")]});
    create_pod(api, namespace, "too-large", spec).await?;
    wait_for_pod(api, namespace, "too-large", "a condition Unschedulable", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.is_some_and(|conditions| {
            conditions.iter().any(|condition| {
                condition["type"] == "PodScheduled" && condition["reason"] == "Unschedulable"
            })
        })
    })
    .await
}

/// Checks preemption: a pod of high priority replaces a pod of low priority on a node with capacity for one.
pub async fn check_preemption(api: &ApiClient, namespace: &str) -> Result<()> {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "e2e-high"}, "value": 1_000});
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    let amounts = json!({"cpu": "1", "memory": "4Gi", "pods": "10"});
    let labels = json!({"e2e": "small", "kubernetes.io/hostname": "small"});
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "small", "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts}});
    api.create("/api/v1/nodes", &node).await?;
    let spec = |more: Value| {
        let mut spec = json!({"containers": [container("900m")], "nodeSelector": {"e2e": "small"},
            "terminationGracePeriodSeconds": 0});
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        spec
    };
    create_pod(api, namespace, "victim", spec(json!({}))).await?;
    wait_for_pod(api, namespace, "victim", "a node", is_bound).await?;
    let high = json!({"priorityClassName": "e2e-high"});
    create_pod(api, namespace, "preemptor", spec(high)).await?;
    wait_for_pod(api, namespace, "preemptor", "a node", is_bound).await
}

/// Checks delayed volume binding (WaitForFirstConsumer): the scheduler selects volume and node, a controller binds the volume.
pub async fn check_volume_on_demand(
    api: &ApiClient,
    namespace: &str,
    plane: &ControlPlane,
) -> Result<()> {
    let flags = ["--controllers=persistentvolume-binder-controller"];
    let kubeconfig = plane.admin_kubeconfig();
    let mut controllers = controller_manager::start(&kubeconfig, plane.folder(), &flags)?;

    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class).await?;
    let here = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]);
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local", "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}}}});
    api.create("/api/v1/persistentvolumes", &volume).await?;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "resources": {"requests": {"storage": "5Gi"}}}});
    api.create(&format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"), &claim).await?;
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]);
    let spec = json!({"containers": [container("100m")], "volumes": volumes});
    create_pod(api, namespace, "with-volume", spec).await?;
    let done = wait_for_pod(api, namespace, "with-volume", "the volume's node", |pod| {
        pod["spec"]["nodeName"] == "node-1"
    });
    let done = done.await;
    controllers.check_running()?;
    done
}

fn container(cpu: &str) -> Value {
    json!({"name": "main", "image": "registry.example/app-0:v1", "resources": {"requests": {"cpu": cpu}}})
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
}

async fn create_pod(api: &ApiClient, namespace: &str, name: &str, spec: Value) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    api.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await?;
    Ok(())
}

/// Waits until a pod satisfies the condition; `what` describes it.
pub async fn wait_for_pod(
    api: &ApiClient,
    namespace: &str,
    name: &str,
    what: &str,
    is_met: impl Fn(&Value) -> bool,
) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let mut last = Value::Null;
    let done = wait_until(what, STEP_TIMEOUT, async || {
        last = api.get_json(&path).await?;
        Ok(is_met(&last))
    });
    done.await.with_context(|| format!("{name}, whose status is {}", last["status"]))
}

/// Waits until the API server serves a path.
pub async fn wait_for_path(api: &ApiClient, path: &str) -> Result<()> {
    wait_until(path, STEP_TIMEOUT, async || {
        Ok(api.request(Method::GET, path, Vec::new()).await?.status == 200)
    })
    .await
}

/// Repeats a check until it is true; an error after the timeout. `what` describes the condition.
pub async fn wait_until(
    what: &str,
    patience: Duration,
    mut is_true: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let since = Instant::now();
    loop {
        let started = Instant::now();
        if is_true().await? {
            return Ok(());
        }
        if since.elapsed() > patience {
            bail!("timed out after {} s waiting for {what}", patience.as_secs());
        }
        // A slow check is repeated less often.
        tokio::time::sleep(PAUSE.max(started.elapsed())).await;
    }
}
