//! Creates the volumes and claims of a workload's pods.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::api_client::ApiClient;
use super::load_objects::create_all;
use super::special_pods::wait_until;

const CLASS: &str = "disks";
const DRIVER: &str = "disk.csi.example.com";
/// The limit of volumes per node: some clouds' smallest.
const N_VOLUMES_MAX: u32 = 25;
/// kube-controller-manager binds a thousand claims in some seconds.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// The claims of pods, one for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ClaimForm {
    /// Bound to volumes of a CSI driver, each accessible from a zone, with limits in CSINodes.
    Prebound,
    /// To be bound to disks of the nodes, which exist: WaitForFirstConsumer.
    Static,
}

impl ClaimForm {
    /// Creates the class, the volumes and the claims of `n` pods, and waits until kube-controller-manager has processed them.
    pub async fn load(self, api: &ApiClient, namespace: &str, n_nodes: u32, n: u32) -> Result<()> {
        let storage = "/apis/storage.k8s.io/v1";
        let mode = match self {
            ClaimForm::Prebound => "Immediate",
            ClaimForm::Static => "WaitForFirstConsumer",
        };
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": CLASS}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": mode});
        api.create(&format!("{storage}/storageclasses"), &class).await?;
        if self == ClaimForm::Prebound {
            let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": DRIVER}, "spec": {}});
            api.create(&format!("{storage}/csidrivers"), &driver).await?;
            create_all(api, &format!("{storage}/csinodes"), 0..n_nodes, csi_node).await?;
        }
        let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        create_all(api, &claims, 0..n, move |i| self.claim(i)).await.context("creating claims")?;
        let volumes = "/api/v1/persistentvolumes";
        let owner = namespace.to_owned();
        let made: Vec<Value> = (0..n).map(|i| self.volume(&owner, i, n_nodes)).collect();
        let made = std::sync::Arc::new(made);
        create_all(api, volumes, 0..n, move |i| made[i as usize].clone())
            .await
            .context("creating volumes")?;
        let is_settled = |object: &Value, phase: &str| {
            object["status"]["phase"] == phase && object["metadata"]["finalizers"].is_array()
        };
        let (claim_phase, volume_phase) = match self {
            ClaimForm::Prebound => ("Bound", "Bound"),
            ClaimForm::Static => ("Pending", "Available"),
        };
        wait_until("the claims and volumes", BIND_TIMEOUT, async || {
            let (claims, volumes) = (api.list(&claims).await?, api.list(volumes).await?);
            Ok(claims.iter().all(|claim| is_settled(claim, claim_phase))
                && volumes.iter().all(|volume| is_settled(volume, volume_phase)))
        })
        .await
    }

    /// Adds its claim to pod number `i`.
    pub fn add_to(i: u32, mut pod: Value) -> Value {
        pod["spec"]["volumes"] =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim_name(i)}}]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "data", "mountPath": "/data"}]);
        pod
    }

    fn claim(self, i: u32) -> Value {
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim_name(i)},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                "resources": {"requests": {"storage": "5Gi"}}}});
        if self == ClaimForm::Prebound {
            claim["spec"]["volumeName"] = json!(volume_name(i));
        }
        claim
    }

    fn volume(self, namespace: &str, i: u32, n_nodes: u32) -> Value {
        let name = volume_name(i);
        let (label, value) = match self {
            ClaimForm::Prebound => {
                let zone = ["zone-a", "zone-b", "zone-c"][i as usize % 3];
                ("topology.kubernetes.io/zone", zone.to_owned())
            }
            ClaimForm::Static => ("kubernetes.io/hostname", format!("node-{}", i % n_nodes)),
        };
        let term = json!({"key": label, "operator": "In", "values": [value]});
        let mut spec = json!({"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": CLASS,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}});
        match self {
            ClaimForm::Prebound => {
                spec["csi"] = json!({"driver": DRIVER, "volumeHandle": name});
                spec["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": namespace, "name": claim_name(i)});
            }
            ClaimForm::Static => spec["local"] = json!({"path": format!("/disks/{i}")}),
        }
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
    }
}

fn claim_name(i: u32) -> String {
    format!("claim-{i}")
}

fn volume_name(i: u32) -> String {
    format!("volume-{i}")
}

fn csi_node(i: u32) -> Value {
    let node = format!("node-{i}");
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": node,
            "topologyKeys": ["topology.kubernetes.io/zone"],
            "allocatable": {"count": N_VOLUMES_MAX}}]}})
}
