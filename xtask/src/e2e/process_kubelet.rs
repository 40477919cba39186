//! Kubelets that run the containers of pods as processes, from unpacked images, without a container runtime.
//!
//! As on a node of a cluster, a container has the image's files as its root, its user, environment, volumes and mounts, and namespaces of its own;
//! a pod has an address and reaches the API server at the Service `kubernetes`; probes decide about readiness and restarts; and the pod's status
//! tells all of that. Ports of Services of the type NodePort lead to a ready pod from the loopback address of every node, as with kube-proxy.

mod command;
mod container;
mod network;
mod pod;
mod probe;
mod sandbox;
mod volumes;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::api_client::ApiClient;
use super::control_plane::ControlPlane;
use crate::image::Unpacked;
use container::second;
use network::{Forwarder, NetworkNamespace, Target};
use pod::{Pod, Surroundings};
use sandbox::Sandbox;

pub use sandbox::API_SERVICE;

/// How often the pods are looked at.
const SYNC_PERIOD: Duration = Duration::from_millis(200);
/// How often a node says that it is well, in rounds of [`SYNC_PERIOD`]: every ten seconds.
const N_ROUNDS_PER_HEARTBEAT: u64 = 50;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Images by their reference, such as `loadmaster:0.1.0`.
pub type Images = BTreeMap<String, Unpacked>;

/// A node of the cluster.
struct Node {
    name: String,
    /// The folder that stands for its root folder.
    root: PathBuf,
    sandbox: Sandbox,
    /// The first two numbers of its pods' addresses are 10.244.
    number: u8,
    n_pods: Cell<u8>,
    /// By port.
    node_ports: BTreeMap<u16, NodePort>,
}

impl Node {
    fn next_address(&self) -> Result<Ipv4Addr> {
        let n = self.n_pods.get().checked_add(1).context("too many pods")?;
        self.n_pods.set(n);
        Ok(Ipv4Addr::new(10, 244, self.number, n))
    }
}

/// A port of a Service on the loopback address of a node.
struct NodePort {
    target: watch::Sender<Option<Target>>,
    _forwarder: Forwarder,
}

/// The kubelets of some nodes. Dropping them ends all processes.
pub struct Kubelets {
    api: ApiClient,
    api_server: Target,
    images: Images,
    folder: PathBuf,
    nodes: Vec<Node>,
    /// By uid.
    pods: BTreeMap<String, Pod>,
    n_rounds: u64,
}

impl Kubelets {
    /// Kubelets without nodes, whose files are in a folder of the control plane.
    pub async fn new(plane: &ControlPlane, images: Images) -> Result<Kubelets> {
        let address = SocketAddr::from(([127, 0, 0, 1], plane.port()));
        Ok(Kubelets {
            api: ApiClient::new(&plane.admin_kubeconfig()).await?,
            api_server: Target { namespace: NetworkNamespace::own()?, address },
            images,
            folder: plane.folder().join("kubelets"),
            nodes: Vec::new(),
            pods: BTreeMap::new(),
            n_rounds: 0,
        })
    }

    /// Registers a node, which is an object with a name and labels; returns the folder that stands for its root folder.
    pub async fn register(&mut self, mut node: Value) -> Result<PathBuf> {
        let name = node["metadata"]["name"].as_str().context("a node without a name")?.to_owned();
        let number = u8::try_from(self.nodes.len() + 1).context("too many nodes")?;
        let folder = self.folder.join(&name);
        let root = folder.join("root");
        std::fs::create_dir_all(&root).with_context(|| format!("creating {}", root.display()))?;
        let address = Ipv4Addr::new(10, 0, 0, number);
        let sandbox = Sandbox::start(&name, address, &folder, &self.api_server).await?;
        node["status"]["addresses"] = json!([
            {"type": "InternalIP", "address": address.to_string()},
            {"type": "Hostname", "address": name}]);
        self.api.create("/api/v1/nodes", &node).await.context("registering a node")?;
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
        self.api.create(LEASES, &lease).await.context("the Lease of a node")?;
        let n_pods = Cell::new(0);
        let node_ports = BTreeMap::new();
        self.nodes.push(Node { name, root: root.clone(), sandbox, number, n_pods, node_ports });
        Ok(root)
    }

    /// Runs the pods of all nodes until it is dropped or fails.
    pub async fn run(&mut self) -> Result<Infallible> {
        loop {
            self.sync().await?;
            tokio::time::sleep(SYNC_PERIOD).await;
        }
    }

    async fn sync(&mut self) -> Result<()> {
        if self.n_rounds.is_multiple_of(N_ROUNDS_PER_HEARTBEAT) {
            self.send_heartbeats().await?;
        }
        self.n_rounds += 1;
        for node in &self.nodes {
            let selector = format!("fieldSelector=spec.nodeName%3D{}", node.name);
            let list = self.api.get_json(&format!("/api/v1/pods?{selector}")).await?;
            let mut seen = Vec::new();
            for object in list["items"].as_array().into_iter().flatten() {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let is_new = !self.pods.contains_key(&uid);
                // What has ended before this kubelet is not run again.
                let is_over =
                    matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
                if is_new && !is_over {
                    let folder = self.folder.join(&node.name).join(name);
                    self.pods.insert(uid.clone(), Pod::new(object.clone(), folder));
                } else if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.object.clone_from(object);
                }
                seen.push(uid);
            }
            let is_here = |pod: &Pod| pod.object["spec"]["nodeName"] == node.name.as_str();
            // Removed without waiting for this kubelet.
            self.pods.retain(|uid, pod| !is_here(pod) || seen.contains(uid));
            for uid in &seen {
                let Some(pod) = self.pods.get_mut(uid) else { continue };
                let around = Surroundings {
                    api: &self.api,
                    api_server: &self.api_server,
                    images: &self.images,
                    node,
                };
                let synced = pod.sync(&around).await;
                let is_gone = synced.with_context(|| {
                    format!("the pod {} on {}", pod.object["metadata"]["name"], node.name)
                })?;
                if is_gone {
                    self.pods.remove(uid);
                }
            }
        }
        self.sync_node_ports().await
    }

    /// The nodes are ready, now.
    async fn send_heartbeats(&self) -> Result<()> {
        for node in &self.nodes {
            let now = second(Timestamp::now());
            let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "kubelet is posting ready status", "lastHeartbeatTime": now});
            let status = json!({"status": {"conditions": [condition]}});
            let path = format!("/api/v1/nodes/{}/status", node.name);
            self.patch(&path, "application/strategic-merge-patch+json", &status).await?;
            let renewed =
                json!({"spec": {"renewTime": format!("{}.000000Z", now.trim_end_matches('Z'))}});
            let path = format!("{LEASES}/{}", node.name);
            self.patch(&path, "application/merge-patch+json", &renewed).await?;
        }
        Ok(())
    }

    async fn patch(&self, path: &str, content_type: &str, body: &Value) -> Result<()> {
        let headers = [("content-type", content_type), ("accept", "application/json")];
        let body = body.to_string().into_bytes();
        let answer = self.api.request_with_headers(Method::PATCH, path, body, &headers).await?;
        ensure!(answer.status == 200, "PATCH {path}: status {}", answer.status);
        Ok(())
    }

    /// Ports of Services lead to their first ready pod.
    async fn sync_node_ports(&mut self) -> Result<()> {
        let mut targets: BTreeMap<u16, Option<Target>> = BTreeMap::new();
        for service in self.api.list("/api/v1/services").await? {
            for port in service["spec"]["ports"].as_array().into_iter().flatten() {
                let number = port["nodePort"].as_u64().and_then(|it| u16::try_from(it).ok());
                if let Some(number) = number {
                    targets.insert(number, self.target(&service, port));
                }
            }
        }
        for node in &mut self.nodes {
            node.node_ports.retain(|port, _| targets.contains_key(port));
            for (port, target) in &targets {
                if !node.node_ports.contains_key(port) {
                    let (sender, receiver) = watch::channel(None);
                    let forwarder = Forwarder::start(&node.sandbox.loopback(*port), receiver)?;
                    let node_port = NodePort { target: sender, _forwarder: forwarder };
                    node.node_ports.insert(*port, node_port);
                }
                if let Some(node_port) = node.node_ports.get(port) {
                    node_port.target.send_replace(target.clone());
                }
            }
        }
        Ok(())
    }

    /// The port of the first ready pod that a Service selects.
    fn target(&self, service: &Value, port: &Value) -> Option<Target> {
        let pod = self.pods.values().find(|pod| pod.is_ready() && selects(service, &pod.object))?;
        let containers = pod.object["spec"]["containers"].as_array()?;
        let number = match port["targetPort"].as_str() {
            None => port["targetPort"].as_u64()?,
            Some(name) => containers
                .iter()
                .flat_map(|it| it["ports"].as_array().into_iter().flatten())
                .find(|it| it["name"] == name)?["containerPort"]
                .as_u64()?,
        };
        pod.port(u16::try_from(number).ok()?)
    }
}

/// The folder of a container: `pid` is the id of its running process, `0/log` the log of its first start.
pub fn container_folder(plane: &ControlPlane, pod: &Value, container: &str) -> PathBuf {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let folder = plane.folder().join("kubelets").join(text(&pod["spec"]["nodeName"]));
    folder.join(text(&pod["metadata"]["name"])).join(container)
}

/// Whether a pod has the labels that a Service wants.
fn selects(service: &Value, pod: &Value) -> bool {
    let is_same_namespace = service["metadata"]["namespace"] == pod["metadata"]["namespace"];
    let Some(selector) = service["spec"]["selector"].as_object() else { return false };
    let labels = &pod["metadata"]["labels"];
    is_same_namespace && selector.iter().all(|(key, value)| labels[key] == *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_select_pods_of_their_namespace_by_labels() {
        let pod = json!({"metadata": {"namespace": "a", "labels": {"x": "1", "y": "2"}}});
        let check = |namespace: &str, selector: Value, want: bool| {
            let service =
                json!({"metadata": {"namespace": namespace}, "spec": {"selector": selector}});
            assert_eq!(selects(&service, &pod), want, "{service}");
        };
        check("a", json!({"x": "1"}), true);
        check("a", json!({"x": "1", "y": "2"}), true);
        check("a", json!({"x": "2"}), false);
        check("b", json!({"x": "1"}), false);
        check("a", Value::Null, false);
    }
}
