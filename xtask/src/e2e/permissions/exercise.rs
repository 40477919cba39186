//! Objects that make a scheduler use each of its permissions.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::cut_connections::Proxy;
use crate::e2e::api_client::ApiClient;
use crate::e2e::{gangs, load_objects};

/// The class of pods that preempt.
const HIGH: &str = "high";
/// A class whose volumes exist, and one whose volumes a provisioner would have to make.
const CLASSES: [(&str, &str); 2] =
    [("disks", "kubernetes.io/no-provisioner"), ("provisioned", "disk.csi.example.com")];
const N_NODES: u32 = 20;
/// CPUs.
const LARGE: u32 = 1_000;
/// Pods that are created each time when responses are lost.
const N_PODS: u32 = 20;

/// Creates what all cases share.
pub async fn prepare(api: &ApiClient) -> Result<()> {
    load_objects::nodes(api, N_NODES).await?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 1_000});
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
    for (name, provisioner) in CLASSES {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
        api.create("/apis/storage.k8s.io/v1/storageclasses", &class).await?;
    }
    Ok(())
}

/// A case: a namespace, a node and a volume of its own.
pub struct Exercise<'a> {
    api: &'a ApiClient,
    /// The name of all that it has of its own.
    name: String,
    /// How often it was continued.
    round: u32,
}

impl<'a> Exercise<'a> {
    /// Creates pods that are bound, preempt, stay pending, and use volumes; a PodGroup, and an ElasticQuota.
    pub async fn start(api: &'a ApiClient, name: &str) -> Result<Exercise<'a>> {
        let exercise = Exercise { api, name: name.to_owned(), round: 0 };
        load_objects::namespace(api, name).await?;
        exercise.preemption().await.context("preemption")?;
        exercise.volumes().await.context("volumes")?;
        exercise.repeated_event().await.context("a pod that stays pending")?;
        exercise.controllers().await.context("the controllers")?;
        Ok(exercise)
    }

    /// A pod that is too large for all nodes but one, which has a taint: it is tried again whenever that node grows.
    async fn repeated_event(&self) -> Result<()> {
        let taints = json!([{"key": "example.com/other", "effect": "NoSchedule"}]);
        self.create_node(&self.tainted_node(), json!({"taints": taints}), &amounts(LARGE)).await?;
        self.create_pod("too-large", json!({"containers": [container(&LARGE.to_string())]})).await
    }

    async fn preemption(&self) -> Result<()> {
        self.create_node(&self.name, json!({}), &amounts(1)).await?;
        let victim = json!({"containers": [container("900m")], "nodeName": self.name, "terminationGracePeriodSeconds": 0});
        self.create_pod("victim", victim).await?;
        let preemptor = json!({"containers": [container("900m")], "priorityClassName": HIGH,
            "nodeSelector": {"kubernetes.io/hostname": self.name}});
        self.create_pod("preemptor", preemptor).await
    }

    async fn volumes(&self) -> Result<()> {
        let here =
            json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]);
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.name},
            "spec": {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": CLASSES[0].0, "local": {"path": "/disk"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}}}});
        self.api.create("/api/v1/persistentvolumes", &volume).await?;
        for (class, _) in CLASSES {
            let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": class},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "resources": {"requests": {"storage": "5Gi"}}}});
            let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.name);
            self.api.create(&claims, &claim).await?;
            let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": class}}]);
            let spec = json!({"containers": [container("10m")], "volumes": volumes});
            self.create_pod(&format!("with-volume-{class}"), spec).await?;
        }
        Ok(())
    }

    async fn controllers(&self) -> Result<()> {
        // In a namespace of its own: the quota is not for the other pods.
        let namespace = format!("{}-groups", self.name);
        load_objects::namespace(self.api, &namespace).await?;
        gangs::objects::pod_group(self.api, &namespace, "a", 2).await?;
        gangs::objects::quota(self.api, &namespace, 1_000, 2_000).await?;
        Ok(())
    }

    /// Lets the node with the taint grow, which repeats the Event of the pod that is too large, and reads the metrics as the
    /// administrator and as somebody who has to be authorized. With a proxy, also loses responses to bindings.
    pub async fn proceed(
        &mut self,
        scheduler: &str,
        admin_token: &str,
        proxy: Option<&Proxy>,
    ) -> Result<()> {
        self.round += 1;
        let amounts = amounts(LARGE + self.round);
        let patch = json!({"status": {"capacity": amounts, "allocatable": amounts}});
        let headers = [("content-type", "application/merge-patch+json")];
        let path = format!("/api/v1/nodes/{}/status", self.tainted_node());
        let body = patch.to_string().into_bytes();
        let answer = self.api.request_with_headers(Method::PATCH, &path, body, &headers).await?;
        ensure!(answer.status == 200, "patching a node: status {}", answer.status);
        for token in [Some(admin_token), None] {
            // It may not listen yet.
            let metrics = ApiClient::insecure(scheduler, token)?;
            let _ = metrics.request(Method::GET, "/metrics", Vec::new()).await;
        }
        let Some(proxy) = proxy else { return Ok(()) };
        let round = self.round;
        let pod = move |i| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p-{round}-{i}")},
                "spec": {"containers": [container("1m")]}})
        };
        let path = format!("/api/v1/namespaces/{}/pods", self.name);
        load_objects::create_all(self.api, &path, 0..N_PODS, pod).await?;
        proxy.cut_connections();
        Ok(())
    }

    /// Deletes what would be scheduled in the next case.
    pub async fn finish(self) -> Result<()> {
        for path in [
            format!("/api/v1/namespaces/{}/pods?gracePeriodSeconds=0", self.name),
            format!("/api/v1/nodes/{}", self.name),
            format!("/api/v1/nodes/{}", self.tainted_node()),
        ] {
            let answer = self.api.request(Method::DELETE, &path, Vec::new()).await?;
            ensure!(answer.status == 200, "deleting {path}: status {}", answer.status);
        }
        Ok(())
    }

    fn tainted_node(&self) -> String {
        format!("{}-tainted", self.name)
    }

    async fn create_node(&self, name: &str, spec: Value, amounts: &Value) -> Result<()> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "spec": spec,
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": amounts, "allocatable": amounts}});
        self.api.create("/api/v1/nodes", &node).await?;
        Ok(())
    }

    async fn create_pod(&self, name: &str, spec: Value) -> Result<()> {
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let path = format!("/api/v1/namespaces/{}/pods", self.name);
        self.api.create(&path, &pod).await.with_context(|| name.to_owned())?;
        Ok(())
    }
}

/// What a node has.
fn amounts(cpu: u32) -> Value {
    json!({"cpu": cpu.to_string(), "memory": "4Gi", "pods": "10"})
}

fn container(cpu: &str) -> Value {
    json!({"name": "main", "image": "registry.example/app-0:v1", "resources": {"requests": {"cpu": cpu}}})
}
