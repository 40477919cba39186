//! The workloads: clusters and pods.

use std::sync::Arc;

use loadmaster_api::{Node, Pod, Quantity, Str};
use loadmaster_framework::{PodInfo, PodTemplate, World};
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

/// A workload: a cluster, a pool of pod templates, and how pods are drawn from it.
pub struct Workload {
    pub name: &'static str,
    pub n_nodes: u32,
    /// Number of scheduling decisions.
    pub n_pods: u32,
    pub kind: Kind,
    /// The project's target in decisions per second.
    pub target: u64,
}

/// The pods of a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All pods have the same template.
    Basic,
    /// All pods have the same template; after each placement a random earlier pod is deleted.
    BasicWithDeletes,
    /// Zone spread (required) and hostname spread (preferred).
    Spread,
    /// Required hostname anti-affinity in 20 groups, in random order.
    AntiAffinity,
    /// Required zone affinity and preferred hostname affinity, ten signatures in random order.
    Affinity,
    /// 40 signatures of the four kinds above in random order.
    Mix,
    /// Every pod has its own template.
    Different,
    /// 1,000 signatures in turn.
    RoundRobin,
    /// The pods of one StatefulSet with a Service, as the API server makes them: each with a token volume, a host name and an ordinal label
    /// of its own.
    StatefulSet,
    /// All pods have the same template, and a plugin that is evaluated per node rejects two thirds of the nodes.
    SamplePlugin,
}

/// All workloads.
pub const ALL: &[Workload] = &[
    Workload {
        name: "basic, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 150_000,
        kind: Kind::Basic,
        target: 100_000,
    },
    Workload {
        name: "basic with deletes, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 150_000,
        kind: Kind::BasicWithDeletes,
        target: 100_000,
    },
    Workload {
        name: "zone + hostname spread, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 100_000,
        kind: Kind::Spread,
        target: 30_000,
    },
    Workload {
        name: "anti-affinity, 20 groups, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 60_000,
        kind: Kind::AntiAffinity,
        target: 30_000,
    },
    Workload {
        name: "affinity, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 60_000,
        kind: Kind::Affinity,
        target: 30_000,
    },
    Workload {
        name: "mix of 40, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 60_000,
        kind: Kind::Mix,
        target: 20_000,
    },
    Workload {
        name: "every pod different, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 20_000,
        kind: Kind::Different,
        target: 5_000,
    },
    Workload {
        name: "1,000 signatures in turn, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 30_000,
        kind: Kind::RoundRobin,
        target: 10_000,
    },
    Workload {
        name: "StatefulSet of 1,000, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 1_000,
        kind: Kind::StatefulSet,
        target: 10_000,
    },
    Workload {
        name: "StatefulSet of 10,000, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 10_000,
        kind: Kind::StatefulSet,
        target: 10_000,
    },
    Workload {
        name: "StatefulSet of 100,000, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 100_000,
        kind: Kind::StatefulSet,
        target: 10_000,
    },
    Workload {
        name: "with examples/sample-plugin, 5,000 nodes",
        n_nodes: 5_000,
        n_pods: 20_000,
        kind: Kind::SamplePlugin,
        target: 2_000,
    },
    Workload {
        name: "basic, 100,000 nodes",
        n_nodes: 100_000,
        n_pods: 200_000,
        kind: Kind::Basic,
        target: 50_000,
    },
    Workload {
        name: "basic, 1,000,000 nodes and pods",
        n_nodes: 1_000_000,
        n_pods: 1_000_000,
        kind: Kind::Basic,
        target: 14_000,
    },
];

/// A profile with the plugin of examples/sample-plugin, for pods named `train-*`.
pub fn sample_plugin() -> Value {
    json!({
        "plugins": {"multiPoint": {"enabled": [{"name": "sample-plugin"}]}},
        "pluginConfig": [{"name": "sample-plugin",
            "args": {"node_label": "example.com/pool/gold", "workload_name": "train"}}],
    })
}

/// A cluster of nodes of different sizes in three zones, each with one pod.
pub fn world(n_nodes: u32, kind: Kind) -> anyhow::Result<World> {
    let mut world = World::default();
    let base: Pod = serde_json::from_value(pod(json!({"app": "base"}), 50, json!({})))?;
    for i in 0..n_nodes {
        let row = world.upsert_node(Arc::new(node(i, kind)));
        let mut own = world.parse_pod(&base)?;
        own.name = format!("base-{i}").into();
        own.uid = own.name.clone();
        world.add_pod(row, Arc::new(own));
    }
    if kind == Kind::StatefulSet {
        let metadata = json!({"name": "db", "namespace": "default"});
        let service = json!({"metadata": metadata, "spec": {"selector": {"app": "db"}}});
        let selector = json!({"matchLabels": {"app": "db"}});
        let set = json!({"metadata": metadata, "spec": {"selector": selector}});
        let (service, set) = (serde_json::from_value(service)?, serde_json::from_value(set)?);
        world.update_cluster_objects(|cluster| {
            cluster.services.insert(Str::new("default"), vec![Arc::new(service)]);
            cluster.stateful_sets.insert(Str::new("default"), vec![Arc::new(set)]);
        });
    }
    Ok(world)
}

/// A pod of the StatefulSet `db`, without what is different in each.
pub fn stateful_pod() -> anyhow::Result<Pod> {
    let mut manifest =
        pod(json!({"app": "db", "controller-revision-hash": "db-5d9c8"}), 50, json!({}));
    manifest["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db-uid", "controller": true,
    }]);
    manifest["spec"]["volumes"] = json!([{"name": "kube-api-access", "projected": {}}]);
    manifest["spec"]["tolerations"] = ["not-ready", "unreachable"]
        .map(|condition| {
            json!({"key": format!("node.kubernetes.io/{condition}"), "operator": "Exists",
                "effect": "NoExecute", "tolerationSeconds": 300})
        })
        .into();
    Ok(serde_json::from_value(manifest)?)
}

/// The pod with this ordinal of the StatefulSet.
pub fn nth_stateful_pod(first: &Pod, ordinal: u64) -> Pod {
    let mut pod = first.clone();
    let ordinal = ordinal.to_string();
    let labels = std::mem::take(&mut pod.metadata.labels);
    pod.metadata.labels = labels
        .with("apps.kubernetes.io/pod-index", Str::new(&ordinal))
        .with("statefulset.kubernetes.io/pod-name", Str::new(&format!("db-{ordinal}")));
    pod.spec.volumes[0].name = Str::new(&format!("kube-api-access-{ordinal}"));
    pod
}

/// A node of one of eight sizes, 4 to 32 CPUs.
fn node(i: u32, kind: Kind) -> Node {
    let mut node = Node::default();
    let name = format!("node-{i}");
    let labels = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", "general"),
        ("topology.kubernetes.io/zone", ["zone-a", "zone-b", "zone-c"][i as usize % 3]),
    ];
    let pool =
        (kind == Kind::SamplePlugin && i.is_multiple_of(3)).then_some(("example.com/pool", "gold"));
    node.metadata.labels =
        labels.into_iter().chain(pool).map(|(key, value)| (key, Str::new(value))).collect();
    let cpu = 4 * (1 + i64::from(i.wrapping_mul(2_654_435_761) >> 16) % 8);
    let amounts = [
        ("cpu", Quantity::from_value(cpu)),
        ("memory", Quantity::from_value((cpu * 8) << 30)),
        ("pods", Quantity::from_value(110)),
    ];
    node.status.allocatable = amounts.into_iter().collect();
    node.metadata.name = name.into();
    node
}

fn pod(labels: Value, cpu_milli: u64, more: Value) -> Value {
    let resources = json!({"requests": {"cpu": format!("{cpu_milli}m"), "memory": "100Mi"}});
    let mut spec =
        json!({"containers": [{"name": "main", "image": "app:v1", "resources": resources}]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"metadata": {"name": "pod", "namespace": "default", "labels": labels}, "spec": spec})
}

fn spread(group: u64) -> Value {
    let label = format!("spread-{group}");
    let selector = json!({"matchLabels": {"app": label}});
    let more = json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": selector},
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
         "labelSelector": selector}]});
    pod(json!({"app": label}), 50, more)
}

fn anti_affinity(group: u64) -> Value {
    let label = format!("apart-{group}");
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": label}}});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    pod(json!({"app": label}), 50, json!({"affinity": {"podAntiAffinity": required}}))
}

fn affinity(group: u64) -> Value {
    let label = format!("near-{group}");
    let term =
        |key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": label}}});
    let near = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [term("topology.kubernetes.io/zone")],
        "preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 10, "podAffinityTerm": term("kubernetes.io/hostname")}],
    });
    pod(json!({"app": label}), 50, json!({"affinity": {"podAffinity": near}}))
}

fn basic(group: u64) -> Value {
    pod(json!({"app": format!("basic-{group}")}), 50, json!({}))
}

/// Generates the pods of a workload.
pub struct Source {
    kind: Kind,
    pool: Vec<Arc<PodTemplate>>,
    stateful: Pod,
    rng: Rng,
    n_made: u32,
}

impl Source {
    /// Parses the pool of templates.
    pub fn new(kind: Kind, world: &mut World, seed: u64) -> anyhow::Result<Source> {
        let manifests: Vec<Value> = match kind {
            Kind::Basic | Kind::BasicWithDeletes | Kind::SamplePlugin => vec![basic(0)],
            Kind::Spread => vec![spread(0)],
            Kind::AntiAffinity => (0..20).map(anti_affinity).collect(),
            Kind::Affinity => (0..10).map(affinity).collect(),
            Kind::Mix => {
                let kinds: [fn(u64) -> Value; 4] = [basic, spread, anti_affinity, affinity];
                (0..40).map(|i| kinds[i % 4](i as u64)).collect()
            }
            Kind::Different | Kind::StatefulSet => vec![],
            Kind::RoundRobin => (0..1_000)
                .map(|i| pod(json!({"app": format!("turn-{i}")}), 20 + i % 80, json!({})))
                .collect(),
        };
        let mut pool = Vec::new();
        for manifest in manifests {
            pool.push(world.parse_pod(&serde_json::from_value::<Pod>(manifest)?)?.template);
        }
        Ok(Source { kind, pool, stateful: stateful_pod()?, rng: Rng::new(seed), n_made: 0 })
    }

    /// The next pod. Creating its template is part of the measurement where every pod has its own.
    pub fn next(&mut self, world: &mut World) -> anyhow::Result<PodInfo> {
        self.n_made += 1;
        let name = match self.kind {
            Kind::SamplePlugin => format!("train-{}", self.n_made),
            _ => format!("pod-{}", self.n_made),
        };
        let name: Box<str> = name.into();
        let template = match self.kind {
            Kind::Different => {
                let cpu = 20 + u64::from(self.n_made) % 211;
                let labels = json!({"app": format!("app-{}", self.n_made)});
                let pod: Pod = serde_json::from_value(pod(labels, cpu, json!({})))?;
                world.parse_pod(&pod)?.template
            }
            Kind::StatefulSet => {
                let pod = nth_stateful_pod(&self.stateful, self.n_made.into());
                world.parse_pod(&pod)?.template
            }
            Kind::RoundRobin => self.pool[self.n_made as usize % self.pool.len()].clone(),
            _ => self.rng.pick(&self.pool).clone(),
        };
        Ok(PodInfo {
            uid: name.clone(),
            name,
            template,
            node_name: Str::default(),
            nominated_node_name: Str::default(),
            created: None,
            started: None,
            scheduled: None,
            terminating: false,
            disruption: None,
            generation: 0,
            resized: None,
            extra: None,
        })
    }
}
