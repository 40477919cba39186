//! Random clusters of few nodes, and a pod to schedule. They have no fields that are younger than Kubernetes 1.18.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::dice::Dice;
use super::pods;

/// The labels of nodes by which pods are placed.
pub const TOPOLOGY_KEYS: &[&str] =
    &["kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"];

/// What the cluster and its pods have to do with. A cluster that has everything rejects every pod for the first of many reasons.
#[derive(Clone, Copy, Debug)]
pub struct Topics {
    pub taints: bool,
    pub ports: bool,
    pub node_affinity: bool,
    pub pod_affinity: bool,
    pub spread: bool,
    pub images: bool,
    pub volumes: bool,
    pub claims: bool,
    /// The kinds of disks.
    pub disks: [&'static str; 2],
    pub scalar_resources: bool,
    pub init_containers: bool,
    pub overhead: bool,
    /// Whether the pods of a node may request more than it has.
    pub overcommitment: bool,
    /// Whether each pod has a controller that selects it. Up to 1.18, pods were spread from those of controllers that select them, whoever
    /// their owner was.
    pub always_has_owner: bool,
    /// Whether a pod may have several spread constraints that must be satisfied.
    pub many_required_constraints: bool,
    /// Whether several services may select a pod.
    pub many_services: bool,
}

impl Topics {
    pub fn draw(dice: &mut Dice) -> Topics {
        let volumes = dice.percent(40);
        let disks = [dice.pick(pods::DISKS), dice.pick(pods::DISKS)];
        Topics {
            disks,
            always_has_owner: false,
            taints: dice.percent(30),
            ports: dice.percent(20),
            node_affinity: dice.percent(30),
            pod_affinity: dice.percent(25),
            spread: dice.percent(25),
            images: dice.percent(40),
            volumes,
            claims: volumes && dice.percent(40),
            scalar_resources: dice.percent(40),
            init_containers: dice.percent(25),
            overhead: dice.percent(25),
            overcommitment: dice.percent(20),
            many_required_constraints: true,
            many_services: true,
        }
    }
}

/// The pod to schedule.
pub const TARGET: &str = "default/target";

pub fn is_target(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let is_named = |namespace: &str, name: &str| {
        let namespace_is = metadata["namespace"].as_str().unwrap_or("default") == namespace;
        namespace_is && metadata["name"] == name
    };
    object["kind"] == "Pod"
        && TARGET.split_once('/').is_some_and(|(namespace, name)| is_named(namespace, name))
}

/// All objects, with the pod to schedule.
pub fn objects(dice: &mut Dice, topics: Topics) -> Vec<Value> {
    let n_nodes = dice.range(3, 8);
    let n_pods = dice.range(0, 15);
    let mut objects: Vec<Value> = (0..n_nodes).map(|at| node(dice, topics, at)).collect();
    objects.extend(services(dice, topics));
    objects.extend(controllers());
    if topics.claims {
        objects.extend((0..N_CLAIMS).flat_map(|at| claim(dice, topics, at)));
    }
    let mut usage: Vec<Usage> = objects.iter().filter_map(Usage::of_node).collect();
    for at in 0..n_pods {
        let mut pod = pods::pod(dice, topics, &format!("pod-{at}"));
        let node = dice.range(0, n_nodes - 1);
        if !usage[node as usize].add(&pod) && !topics.overcommitment {
            continue;
        }
        pod["spec"]["nodeName"] = format!("node-{node}").into();
        pod["status"] = json!({"phase": "Running"});
        if dice.percent(6) {
            pod["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        }
        if dice.percent(15) {
            pod["metadata"]["namespace"] = "other".into();
        }
        objects.push(pod);
    }
    let mut target = pods::pod(dice, topics, "target");
    if dice.percent(3) {
        target["spec"]["nodeName"] = format!("node-{}", dice.range(0, n_nodes - 1)).into();
    }
    objects.push(target);
    objects
}

/// What is left of the resources of a node, in thousandths.
struct Usage(BTreeMap<String, i64>);

impl Usage {
    fn of_node(object: &Value) -> Option<Usage> {
        (object["kind"] == "Node").then(|| Usage(pods::amounts(&object["status"]["allocatable"])))
    }

    /// Subtracts the requests of a pod if they are there.
    fn add(&mut self, pod: &Value) -> bool {
        let mut left = self.0.clone();
        for (name, amount) in pods::requests(pod) {
            *left.entry(name).or_default() -= amount;
        }
        let fits = left.values().all(|amount| *amount >= 0);
        if fits {
            self.0 = left;
        }
        fits
    }
}

/// Claims that pods use.
pub const N_CLAIMS: i64 = 4;

fn node(dice: &mut Dice, topics: Topics, at: i64) -> Value {
    let name = format!("node-{at}");
    let mut labels = json!({"kubernetes.io/hostname": name});
    dice.put(&mut labels, 85, "topology.kubernetes.io/zone", |it| it.pick(&["a", "b", "c"]).into());
    dice.put(&mut labels, 50, "topology.kubernetes.io/region", |it| it.pick(&["r", "s"]).into());
    dice.put(&mut labels, 5, "failure-domain.beta.kubernetes.io/zone", |_| "a".into());
    dice.put(&mut labels, 70, "rack", |it| it.pick(&["1", "2", "3"]).into());
    dice.put(&mut labels, 50, "disk", |it| it.pick(&["ssd", "hdd", ""]).into());
    dice.put(&mut labels, 15, "retiring", |_| "soon".into());
    dice.put(&mut labels, 15, "node.kubernetes.io/instance-type", |it| {
        it.pick(&["m5.large", "m4.large", "t3.micro"]).into()
    });
    let mut spec = json!({});
    if topics.taints {
        dice.put(&mut spec, 45, "taints", taints);
        dice.put(&mut spec, 10, "unschedulable", |_| true.into());
    }
    let allocatable = allocatable(dice, topics);
    let mut status = json!({"allocatable": allocatable});
    if topics.images {
        dice.put(&mut status, 75, "images", images);
    }
    let mut metadata = json!({"name": name, "labels": labels});
    dice.put(&mut metadata, 25, "annotations", annotations);
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
}

fn allocatable(dice: &mut Dice, topics: Topics) -> Value {
    let mut amounts = json!({
        "cpu": dice.pick(&["2", "4", "3500m", "8"]),
        "memory": dice.pick(&["4Gi", "8Gi", "15Gi", "5000Mi"]),
        "pods": dice.pick(&["4", "10", "110"]),
    });
    dice.put(&mut amounts, 60, "ephemeral-storage", |it| it.pick(&["20Gi", "50Gi"]).into());
    if topics.scalar_resources {
        dice.put(&mut amounts, 70, "example.com/gpu", |it| it.pick(&["0", "2", "4"]).into());
    }
    if topics.volumes {
        for volume in ["aws-ebs", "gce-pd", "azure-disk", "cinder"] {
            let field = format!("attachable-volumes-{volume}");
            dice.put(&mut amounts, 60, &field, |it| it.pick(&["1", "2", "3"]).into());
        }
    }
    amounts
}

fn taints(dice: &mut Dice) -> Value {
    let keys = dice.some(&["dedicated", "maintenance", "slow"], 1, 2);
    let taint = |key: &str| {
        let effect = dice.pick(&["NoSchedule", "PreferNoSchedule", "PreferNoSchedule"]);
        json!({"key": key, "value": dice.pick(&["x", "y"]), "effect": effect})
    };
    keys.into_iter().map(taint).collect()
}

fn images(dice: &mut Dice) -> Value {
    const MIB: i64 = 1024 * 1024;
    let sizes = [("web", 80 * MIB), ("db", 700 * MIB), ("tool", 10 * MIB), ("large", 3000 * MIB)];
    let here = dice.each(&sizes, 50).into_iter();
    let image = |(name, bytes): (&str, i64)| {
        let names =
            [format!("registry.example/{name}:v1"), format!("registry.example/{name}:latest")];
        json!({"names": names, "sizeBytes": bytes})
    };
    here.map(image).collect()
}

/// The annotation that NodePreferAvoidPods reads.
fn annotations(dice: &mut Dice) -> Value {
    let named = dice.some(CONTROLLERS, 1, 2).into_iter();
    let entry = |(kind, name): (&str, &str)| {
        let controller = json!({
            "apiVersion": api_version(kind), "kind": kind, "name": name, "uid": uid(kind, name),
            "controller": true,
        });
        json!({
            "podSignature": {"podController": controller},
            "evictionTime": "2026-01-31T12:00:00Z",
            "reason": "some reason",
            "message": "some message",
        })
    };
    let avoid = json!({"preferAvoidPods": named.map(entry).collect::<Value>()});
    json!({"scheduler.alpha.kubernetes.io/preferAvoidPods": avoid.to_string()})
}

/// The controllers of pods.
pub const CONTROLLERS: &[(&str, &str)] = &[
    ("ReplicaSet", "web"),
    ("ReplicaSet", "db"),
    ("ReplicationController", "web"),
    ("StatefulSet", "db"),
];

pub fn api_version(kind: &str) -> &'static str {
    if kind == "ReplicationController" { "v1" } else { "apps/v1" }
}

pub fn uid(kind: &str, name: &str) -> String {
    format!("uid-of-{kind}-{name}")
}

fn controllers() -> Vec<Value> {
    let controller = |(kind, name): &(&str, &str)| {
        let pairs = json!({"app": name});
        let selector = match *kind {
            "ReplicationController" => pairs,
            "ReplicaSet" => json!({"matchLabels": pairs, "matchExpressions": [
                {"key": "app", "operator": "Exists"},
            ]}),
            _ => json!({"matchLabels": pairs}),
        };
        json!({
            "apiVersion": api_version(kind),
            "kind": kind,
            "metadata": {"name": name, "namespace": "default", "uid": uid(kind, name)},
            "spec": {"selector": selector},
        })
    };
    CONTROLLERS.iter().map(controller).collect()
}

fn services(dice: &mut Dice, topics: Topics) -> Vec<Value> {
    let mut selectors = vec![("web", json!({"app": "web"})), ("db", json!({"app": "db"}))];
    if topics.many_services {
        selectors.push(("front", json!({"tier": "front"})));
    }
    let mut services = Vec::new();
    for (name, selector) in selectors {
        if dice.percent(60) {
            services.push(json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": selector},
            }));
        }
    }
    services
}

/// A bound claim and its volume.
fn claim(dice: &mut Dice, topics: Topics, at: i64) -> Vec<Value> {
    let (claim, volume) = (format!("claim-{at}"), format!("volume-{at}"));
    let mut source = pods::disk(dice, topics, at);
    source["capacity"] = json!({"storage": "1Gi"});
    source["accessModes"] = json!(["ReadWriteMany"]);
    source["claimRef"] = json!({"kind": "PersistentVolumeClaim", "namespace": "default",
        "name": claim, "uid": format!("uid-of-{claim}")});
    source["storageClassName"] = "standard".into();
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": claim, "namespace": "default", "uid": format!("uid-of-{claim}"),
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {
                "accessModes": ["ReadWriteMany"], "volumeName": volume, "storageClassName": "standard",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound"},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "uid": format!("uid-of-{volume}")},
            "spec": source,
            "status": {"phase": "Bound"},
        }),
    ]
}
