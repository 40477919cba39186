//! The workloads: clusters and pods.

use std::sync::Arc;

use loadmaster_api::{Node, Pod, Quantity, Str, Taint};
use loadmaster_framework::World;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

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
    /// All pods are equal but for one label, which each has for itself.
    LabelsDiffer,
    /// Nodes are in 1,000 racks, over which the pods are spread (required).
    Racks,
    /// 20,000 pairs of CPU and memory requests and 50 sets of node selectors and tolerations, both in random order.
    Pairs,
    /// All pods have the same template, and a plugin that is evaluated per node rejects two thirds of the nodes.
    SamplePlugin,
    /// 10 signatures in turn.
    Ten,
    /// The same, and 10 signatures of pods that fit on no node, interleaved.
    TenAndUnschedulable,
}

impl Kind {
    /// Whether all pods have the same template, but for what is random in them.
    pub fn has_one_template(self) -> bool {
        matches!(
            self,
            Kind::Basic
                | Kind::BasicWithDeletes
                | Kind::Spread
                | Kind::Racks
                | Kind::LabelsDiffer
                | Kind::Different
                | Kind::SamplePlugin
        )
    }
}

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
    let base: Pod = serde_json::from_value(base_pod())?;
    for i in 0..n_nodes {
        let row = world.upsert_node(Arc::new(node(i, kind)));
        let mut own = world.parse_pod(&base)?;
        own.name = format!("base-{i}").into();
        own.uid = own.name.clone();
        world.add_pod(row, Arc::new(own));
    }
    Ok(world)
}

/// The pod that each node has at the start, which needs a name and a node.
pub fn base_pod() -> Value {
    pod(json!({"app": "base"}), 50, json!({}))
}

/// A node of one of eight sizes, 4 to 32 CPUs.
pub fn node(i: u32, kind: Kind) -> Node {
    let mut node = Node::default();
    let name = format!("node-{i}");
    let labels = [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", "general"),
        ("topology.kubernetes.io/zone", ["zone-a", "zone-b", "zone-c"][i as usize % 3]),
    ];
    let own = match kind {
        Kind::SamplePlugin if i.is_multiple_of(3) => Some(("example.com/pool", "gold".to_owned())),
        Kind::Pairs => Some(("example.com/pool", format!("pool-{}", i % N_POOLS))),
        Kind::Racks => Some((RACK, format!("rack-{}", i % 1_000))),
        _ => None,
    };
    let own = own.iter().map(|(key, value)| (*key, value.as_str()));
    node.metadata.labels =
        labels.into_iter().chain(own).map(|(key, value)| (key, Str::new(value))).collect();
    if kind == Kind::Pairs && (i / N_POOLS).is_multiple_of(4) {
        let key = Str::new(&format!("example.com/team-{}", i / N_POOLS / 4 % N_TEAMS));
        node.spec.taints = vec![Taint { key, effect: Str::new("NoSchedule"), ..Taint::default() }];
    }
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

/// A manifest with these labels, CPU request and more fields of its spec.
pub fn pod(labels: Value, cpu_milli: u64, more: Value) -> Value {
    let resources = json!({"requests": {"cpu": format!("{cpu_milli}m"), "memory": "100Mi"}});
    let mut spec =
        json!({"containers": [{"name": "main", "image": "app:v1", "resources": resources}]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"metadata": {"name": "pod", "namespace": "default", "labels": labels}, "spec": spec})
}

/// The topology key of racks.
const RACK: &str = "example.com/rack";
/// Pools that node selectors of [`Kind::Pairs`] select.
const N_POOLS: u32 = 10;
/// Teams whose taints, on a fourth of the nodes, pods of [`Kind::Pairs`] tolerate: each pod those of one team.
const N_TEAMS: u32 = 5;

fn rack_spread() -> Value {
    let constraint = json!({"maxSkew": 1, "topologyKey": RACK, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "racks"}}});
    pod(json!({"app": "racks"}), 50, json!({"topologySpreadConstraints": [constraint]}))
}

/// A set of a node selector and tolerations.
fn selector_and_tolerations(set: u32) -> Value {
    let toleration =
        json!({"key": format!("example.com/team-{}", set / N_POOLS), "operator": "Exists"});
    let more = json!({"nodeSelector": {"example.com/pool": format!("pool-{}", set % N_POOLS)},
        "tolerations": [toleration]});
    pod(json!({"app": format!("set-{set}")}), 50, more)
}

/// One of 20,000 pairs of requests.
pub fn random_requests(rng: &mut Rng) -> Value {
    let (cpu, memory) = (10 + rng.below(200), 32 + rng.below(100));
    json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")})
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

/// A pod that fits on no node: in turn its request is too large, its node selector selects none, and no node has its extended resource.
fn unschedulable(group: u64) -> Value {
    let labels = json!({"app": format!("pending-{group}")});
    match group % 3 {
        0 => pod(labels, 1_000_000 + group, json!({})),
        1 => {
            pod(labels, 50, json!({"nodeSelector": {"example.com/pool": format!("none-{group}")}}))
        }
        _ => {
            let mut pod = pod(labels, 50, json!({}));
            let resources = &mut pod["spec"]["containers"][0]["resources"];
            resources["requests"]["example.com/device"] = json!((1 + group).to_string());
            resources["limits"]["example.com/device"] = json!((1 + group).to_string());
            pod
        }
    }
}

/// A manifest of each template of a workload.
pub fn manifests(kind: Kind) -> Vec<Value> {
    match kind {
        Kind::Basic
        | Kind::BasicWithDeletes
        | Kind::Different
        | Kind::LabelsDiffer
        | Kind::SamplePlugin => {
            vec![basic(0)]
        }
        Kind::Spread => vec![spread(0)],
        Kind::Racks => vec![rack_spread()],
        Kind::Pairs => (0..N_POOLS * N_TEAMS).map(selector_and_tolerations).collect(),
        Kind::AntiAffinity => (0..20).map(anti_affinity).collect(),
        Kind::Affinity => (0..10).map(affinity).collect(),
        Kind::Mix => {
            let kinds: [fn(u64) -> Value; 4] = [basic, spread, anti_affinity, affinity];
            (0..40).map(|i| kinds[i % 4](i as u64)).collect()
        }
        Kind::Ten => (0..10).map(basic).collect(),
        Kind::TenAndUnschedulable => {
            (0..20).map(|i| if i % 2 == 0 { basic(i / 2) } else { unschedulable(i / 2) }).collect()
        }
        Kind::RoundRobin => (0..1_000)
            .map(|i| pod(json!({"app": format!("turn-{i}")}), 20 + i % 80, json!({})))
            .collect(),
    }
}

/// A manifest with another value of the label `app`, which its selectors select, too.
pub fn with_app_label(manifest: &Value, label: &str) -> Value {
    let app = manifest["metadata"]["labels"]["app"].as_str().unwrap_or_default();
    let quoted = |text: &str| json!(text).to_string();
    let text = manifest.to_string().replace(&quoted(app), &quoted(label));
    serde_json::from_str(&text).unwrap_or_default()
}
