//! Pods with claims: each pod has a volume of its own. The events of claims and volumes, the writes of PreBind and the provisioner's
//! answers go through an engine, as in a cluster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use loadmaster_api::{Node, Pod, Str};
use loadmaster_engine::engine::{ApiObject, ApiServerCall, CycleResult};
use loadmaster_engine::{Effects, EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef};
use serde_json::{Value, json};

use crate::timed_engine::{self, AnsweringCluster, TimedEngine};

const DRIVER: &str = "csi.example.com";
const CLASS: &str = "fast";
const ZONE: &str = "topology.kubernetes.io/zone";
const ZONES: u32 = 3;
/// Volumes per node that the driver can attach.
const VOLUMES_MAX: u32 = 25;

/// How the volumes of a workload are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Volumes {
    /// By a provisioner, when the scheduler has selected a node; the free capacity is tracked per zone.
    CapacityPerZone,
    /// The same, tracked per node, as for local disks.
    CapacityPerNode,
    /// They are bound before the pod is created.
    Bound,
}

struct VolumeWorkload {
    name: &'static str,
    volumes: Volumes,
    n_nodes: u32,
    n_pods: u32,
    /// The project's target in decisions per second.
    target: u64,
}

const WORKLOADS: [VolumeWorkload; 3] = [
    VolumeWorkload {
        name: "own WaitForFirstConsumer claim, capacity per zone, 5,000 nodes",
        volumes: Volumes::CapacityPerZone,
        n_nodes: 5_000,
        n_pods: 3_000,
        target: 10_000,
    },
    VolumeWorkload {
        name: "own WaitForFirstConsumer claim, capacity per node, 5,000 nodes",
        volumes: Volumes::CapacityPerNode,
        n_nodes: 5_000,
        n_pods: 3_000,
        target: 10_000,
    },
    VolumeWorkload {
        name: "own bound volume, CSI limits, 5,000 nodes",
        volumes: Volumes::Bound,
        n_nodes: 5_000,
        n_pods: 3_000,
        target: 20_000,
    },
];

/// Number of volumes whose memory is measured, each bound to a claim.
const HELD: u32 = 20_000;
/// The project's target for them.
const HELD_MIB_MAX: u64 = 60;

/// Runs all workloads and prints a table.
pub fn measure() -> Result<()> {
    println!(
        "| workload | target/s | decisions/s | us per decision | us per pod with all events and writes |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for workload in &WORKLOADS {
        let mut bench = Bench::new(workload.volumes, workload.n_nodes)?;
        for nth in 0..workload.n_pods {
            bench.schedule(nth).with_context(|| format!("pod {nth}"))?;
        }
        let n = f64::from(workload.n_pods);
        let (deciding, total) = (bench.deciding.as_secs_f64(), bench.engine.elapsed.as_secs_f64());
        println!(
            "| {} | {} | {:.0} | {:.1} | {:.1} |",
            workload.name,
            workload.target,
            n / deciding,
            deciding * 1e6 / n,
            total * 1e6 / n
        );
    }
    Ok(())
}

/// Prints what the world and the plugins' states store of bound volumes and their claims.
pub fn measure_memory() -> Result<()> {
    let mut bench = Bench::new(Volumes::Bound, 0)?;
    let before = resident_kib()?;
    for nth in 0..HELD {
        bench.add_bound_claim(&format!("data-db-{nth}"), nth, as_in_cluster)?;
    }
    let kib = resident_kib()?.saturating_sub(before);
    println!(
        "{HELD} volumes and as many claims: {:.1} MiB more ({} allowed), {} bytes per volume and claim",
        kib as f64 / 1024.0,
        HELD_MIB_MAX,
        kib * 1024 / u64::from(HELD)
    );
    Ok(())
}

fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no VmRSS in /proc/self/status")?.parse()?)
}

struct Bench {
    volumes: Volumes,
    /// Measured since the nodes were added.
    engine: TimedEngine,
    started: Instant,
    /// Time in the engine from the event of a pod to the end of its scheduling cycle.
    deciding: Duration,
    /// The pod that is being scheduled.
    pod: Value,
    is_bound: bool,
    version: u64,
}

impl Bench {
    fn new(volumes: Volumes, n_nodes: u32) -> Result<Bench> {
        let registry = loadmaster_plugins::in_tree_registry();
        let mut bench = Bench {
            volumes,
            engine: TimedEngine::new(&registry, json!({}))?,
            started: Instant::now(),
            deciding: Duration::ZERO,
            pod: Value::Null,
            is_bound: false,
            version: 1,
        };
        bench.add_cluster(n_nodes)?;
        bench.engine.elapsed = Duration::ZERO;
        Ok(bench)
    }

    fn add_cluster(&mut self, n_nodes: u32) -> Result<()> {
        let binding_mode = match self.volumes {
            Volumes::Bound => "Immediate",
            _ => "WaitForFirstConsumer",
        };
        self.change(
            "storageclasses",
            "",
            CLASS,
            json!({"provisioner": DRIVER, "volumeBindingMode": binding_mode}),
        )?;
        self.change(
            "csidrivers",
            "",
            DRIVER,
            json!({"spec": {"storageCapacity": self.volumes != Volumes::Bound}}),
        )?;
        for i in 0..n_nodes {
            let node: Node = serde_json::from_value(node(i))?;
            let name = node.name().to_owned();
            self.apply(EngineEvent::Upsert(ApiObject::Node(std::sync::Arc::new(node))))?;
            let driver = json!({"name": DRIVER, "nodeID": name, "topologyKeys": [self.topology_key()],
                "allocatable": {"count": VOLUMES_MAX}});
            self.change("csinodes", "", &name, json!({"spec": {"drivers": [driver]}}))?;
        }
        let domains = match self.volumes {
            Volumes::CapacityPerZone => ZONES,
            Volumes::CapacityPerNode => n_nodes,
            Volumes::Bound => 0,
        };
        for at in 0..domains {
            self.set_capacity(at, 1_000_000)?;
        }
        self.sync_watched_kinds()
    }

    fn topology_key(&self) -> &'static str {
        match self.volumes {
            Volumes::CapacityPerNode => "kubernetes.io/hostname",
            _ => ZONE,
        }
    }

    fn set_capacity(&mut self, domain: u32, gib: u32) -> Result<()> {
        let value = match self.volumes {
            Volumes::CapacityPerNode => format!("node-{domain}"),
            _ => format!("zone-{domain}"),
        };
        let object = json!({"storageClassName": CLASS, "capacity": format!("{gib}Gi"),
            "nodeTopology": {"matchLabels": {self.topology_key(): value}}});
        self.change("csistoragecapacities", "storage", &format!("capacity-{domain}"), object)
    }

    /// Adds a claim and the volume that it is bound to, both changed by `complete`.
    fn add_bound_claim(
        &mut self,
        claim: &str,
        nth: u32,
        complete: fn(Value) -> Value,
    ) -> Result<()> {
        let zone = format!("zone-{}", nth % ZONES);
        let volume = complete(volume(claim, (ZONE, &zone)));
        self.change("persistentvolumes", "", &format!("pv-{claim}"), volume)?;
        self.change("persistentvolumeclaims", "default", claim, complete(bound_claim(claim)))
    }

    /// Adds a pod with its claim, and lets everything that follows happen until the pod is on its node.
    fn schedule(&mut self, nth: u32) -> Result<()> {
        let claim = format!("data-db-{nth}");
        if self.volumes == Volumes::Bound {
            self.add_bound_claim(&claim, nth, std::convert::identity)?;
        } else {
            self.change("persistentvolumeclaims", "default", &claim, unbound_claim(&claim))?;
        }
        self.pod = pod(nth, &claim);
        self.is_bound = false;
        let parsed: Pod = serde_json::from_value(self.pod.clone())?;
        let before = self.engine.elapsed;
        self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(parsed))))?;
        let now = self.next_time();
        let (cycled, effects) = self.engine.cycle(now);
        self.deciding += self.engine.elapsed - before;
        ensure!(cycled == CycleResult::Ran, "no scheduling cycle");
        self.execute(effects)?;
        ensure!(self.is_bound, "the pod is not bound");
        Ok(())
    }

    /// An object of a kind that plugins watch was added or updated.
    fn change(
        &mut self,
        resource: &str,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Result<()> {
        self.version += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let group = if resource.starts_with("persistent") { "" } else { "storage.k8s.io" };
        let object_ref = ObjectRef {
            group: Str::new(group),
            resource: Str::new(resource),
            namespace: Str::new(namespace),
            name: Str::new(name),
        };
        self.apply(EngineEvent::ObjectChanged { object: object_ref, value: Some(object) })
    }
}

impl AnsweringCluster for Bench {
    fn engine(&mut self) -> &mut TimedEngine {
        &mut self.engine
    }

    fn next_time(&mut self) -> Now {
        timed_engine::time_of_call(self.started.elapsed())
    }

    fn requests(&self, effects: Effects) -> Result<Vec<ApiServerCall>> {
        timed_engine::requests_without_warnings(effects)
    }

    fn reply(&mut self, request: &ApiRequest) -> Value {
        let mut reply = request.body.clone().unwrap_or_default();
        self.version += 1;
        reply["metadata"]["resourceVersion"] = self.version.to_string().into();
        reply
    }

    /// What the provisioner and the API server do after a request.
    fn answer(&mut self, request: &ApiRequest) -> Result<()> {
        let body = request.body.as_ref().context("a request without an object")?;
        match (request.resource.as_str(), request.subresource.as_str()) {
            ("persistentvolumeclaims", "") => {
                let claim = request.name.as_str();
                let node = body["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
                    .as_str()
                    .context("the claim has no selected node")?;
                let at: u32 = node.trim_start_matches("node-").parse()?;
                let (key, value, domain) = match self.volumes {
                    Volumes::CapacityPerNode => (self.topology_key(), node.to_owned(), at),
                    _ => (ZONE, format!("zone-{}", at % ZONES), at % ZONES),
                };
                let left = 1_000_000 - u32::try_from(self.version / 10)?;
                self.change(
                    "persistentvolumes",
                    "",
                    &format!("pv-{claim}"),
                    volume(claim, (key, &value)),
                )?;
                let mut bound = bound_claim(claim);
                bound["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] =
                    node.into();
                self.change("persistentvolumeclaims", "default", claim, bound)?;
                self.set_capacity(domain, left)
            }
            ("pods", "binding") => {
                self.is_bound = true;
                let mut pod = self.pod.take();
                pod["spec"]["nodeName"] = body["target"]["name"].clone();
                let parsed: Pod = serde_json::from_value(pod)?;
                self.apply(EngineEvent::Upsert(ApiObject::Pod(Box::new(parsed))))
            }
            _ => Ok(()),
        }
    }
}

fn node(i: u32) -> Value {
    let name = format!("node-{i}");
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: format!("zone-{}", i % ZONES)}},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}},
    })
}

fn unbound_claim(name: &str) -> Value {
    json!({
        "metadata": {"uid": format!("uid-{name}"), "labels": {"app": "db"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "10Gi"}}},
        "status": {"phase": "Pending"},
    })
}

fn bound_claim(name: &str) -> Value {
    let mut claim = unbound_claim(name);
    claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"});
    claim["spec"]["volumeName"] = format!("pv-{name}").into();
    claim["status"] = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}});
    claim
}

/// A volume that is bound to a claim, on nodes with this label.
fn volume(claim: &str, (key, value): (&str, &str)) -> Value {
    let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    json!({
        "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}, "storageClassName": CLASS,
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": format!("uid-{claim}")},
            "csi": {"driver": DRIVER, "volumeHandle": format!("handle-{claim}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
        "status": {"phase": "Bound"},
    })
}

/// The object with all that controllers, provisioners and the API server add to it, and a uid of their length.
fn as_in_cluster(mut object: Value) -> Value {
    let uid = object.pointer("/spec/claimRef/uid").or(object.pointer("/metadata/uid"));
    let uid = format!("{:0>36}", uid.and_then(Value::as_str).unwrap_or_default());
    if let Some(of_claim) = object.pointer_mut("/spec/claimRef/uid") {
        *of_claim = uid.as_str().into();
    }
    let owned = json!({"f:metadata": {"f:annotations": {".": {}, "f:pv.kubernetes.io/bound-by-controller": {}}},
        "f:spec": {"f:accessModes": {}, "f:storageClassName": {}, "f:volumeMode": {}}});
    let entry = json!({"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z", "fieldsV1": owned});
    let metadata = &mut object["metadata"];
    metadata["uid"] = uid.into();
    metadata["managedFields"] = json!([entry, entry]);
    metadata["finalizers"] = json!([
        "kubernetes.io/pv-protection",
        "external-provisioner.volume.kubernetes.io/finalizer"
    ]);
    for annotation in ["storage-provisioner", "provisioner-deletion-secret-name"] {
        metadata["annotations"][format!("volume.kubernetes.io/{annotation}")] = DRIVER.into();
    }
    object
}

/// A pod of a StatefulSet with a volumeClaimTemplate, as the API server has it.
fn pod(nth: u32, claim: &str) -> Value {
    let name = format!("db-{nth}");
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "db",
            "apps.kubernetes.io/pod-index": nth.to_string(), "statefulset.kubernetes.io/pod-name": name},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "uid-db", "controller": true}]},
        "spec": {"schedulerName": "default-scheduler", "hostname": name,
            "containers": [{"name": "main", "image": "db:v1", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}},
                {"name": format!("kube-api-access-{nth}"), "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
        "status": {"phase": "Pending"},
    })
}
