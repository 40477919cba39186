//! Pods that make a scheduler do more than bind: explain, preempt, bind a volume; and waiting for such things.

#![expect(clippy::disallowed_types, reason = "waiting needs a clock")]

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::api::Api;
use super::control_plane::ControlPlane;
use super::process::Process;
use super::programs::{self, Program};

/// For any one thing that a scheduler does.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// A pod that asks for more than any node has gets a condition that says so.
pub async fn unschedulable(api: &Api, namespace: &str) -> Result<()> {
    make_pod(api, namespace, "too-large", json!({"containers": [container("1000")]})).await?;
    wait_for(api, namespace, "too-large", "a condition Unschedulable", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.is_some_and(|conditions| {
            conditions.iter().any(|condition| {
                condition["type"] == "PodScheduled" && condition["reason"] == "Unschedulable"
            })
        })
    })
    .await
}

/// A pod of high priority gets the room of a pod of low priority, on a node that has room for one.
pub async fn preemption(api: &Api, namespace: &str) -> Result<()> {
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
    make_pod(api, namespace, "victim", spec(json!({}))).await?;
    wait_for(api, namespace, "victim", "a node", is_bound).await?;
    let high = json!({"priorityClassName": "e2e-high"});
    make_pod(api, namespace, "preemptor", spec(high)).await?;
    wait_for(api, namespace, "preemptor", "a node", is_bound).await
}

/// A volume that waits for its first consumer: the scheduler chooses it with the node, a controller does the rest.
pub async fn volume_on_demand(api: &Api, namespace: &str, plane: &ControlPlane) -> Result<()> {
    programs::build(&[Program::KubeControllerManager])?;
    let mut command = Command::new(Program::KubeControllerManager.path()?);
    command.arg(format!("--kubeconfig={}", plane.admin_kubeconfig().display()));
    command.args(["--controllers=persistentvolume-binder-controller", "--leader-elect=false"]);
    command.args(["--secure-port=0", "--bind-address=127.0.0.1"]);
    let log = plane.folder().join("kube-controller-manager.log");
    let mut controllers = Process::start("kube-controller-manager", &mut command, &log)?;

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
    make_pod(api, namespace, "with-volume", spec).await?;
    let done = wait_for(api, namespace, "with-volume", "the volume's node", |pod| {
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

async fn make_pod(api: &Api, namespace: &str, name: &str, spec: Value) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    api.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await?;
    Ok(())
}

/// Until a pod is as it should be; `what` says how.
pub async fn wait_for(
    api: &Api,
    namespace: &str,
    name: &str,
    what: &str,
    is_there: impl Fn(&Value) -> bool,
) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let mut last = Value::Null;
    let done = until(what, PATIENCE, async || {
        last = api.get_json(&path).await?;
        Ok(is_there(&last))
    });
    done.await.with_context(|| format!("{name}, of which is said: {}", last["status"]))
}

/// Asks until it is so, and fails when it is not in time; `what` says what is waited for.
pub async fn until(
    what: &str,
    patience: Duration,
    mut is_so: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let since = Instant::now();
    loop {
        let asked = Instant::now();
        if is_so().await? {
            return Ok(());
        }
        if since.elapsed() > patience {
            bail!("waited {} s in vain for {what}", patience.as_secs());
        }
        // Whoever takes long to answer is not asked all the time.
        tokio::time::sleep(PAUSE.max(asked.elapsed())).await;
    }
}
