//! Sample nodes, a sample workload, and churn for a running cluster.

use loadmaster_api::document::{Document, LocatedError};
use loadmaster_stdx::Rng;
use loadmaster_stdx::SortCompactly as _;
use serde_json::{Map, Value, json};

const GPU: &str = "nvidia.com/gpu";

/// The number of nodes for which the replicas in `sample.yaml` are chosen.
pub(super) const N_NODES: u32 = 100;

/// Workloads with fewer replicas than this are not scaled with the number of nodes.
const SCALED_FROM: u64 = 20;

/// Milliseconds since the cluster was started.
pub(super) type Millis = u64;

/// Time between the creation of two workloads.
const ARRIVAL_MS: Millis = 300;

/// A node type. Of twenty nodes, `share` have this type.
struct NodeType {
    name: &'static str,
    share: u32,
    cpu: i64,
    memory_gib: i64,
    gpus: i64,
    pool: &'static str,
    images: &'static [(&'static str, i64)],
}

const NODE_TYPES: [NodeType; 5] = [
    NodeType {
        name: "m8",
        share: 8,
        cpu: 8,
        memory_gib: 32,
        gpus: 0,
        pool: "general",
        images: &[("registry.example.com/shop/api:11", 180)],
    },
    NodeType {
        name: "m16",
        share: 7,
        cpu: 16,
        memory_gib: 64,
        gpus: 0,
        pool: "general",
        images: &[
            ("registry.example.com/shop/web:7", 420),
            ("registry.example.com/shop/search:5", 900),
        ],
    },
    NodeType {
        name: "l64",
        share: 3,
        cpu: 64,
        memory_gib: 256,
        gpus: 0,
        pool: "data",
        images: &[],
    },
    NodeType {
        name: "g48",
        share: 1,
        cpu: 48,
        memory_gib: 384,
        gpus: 4,
        pool: "gpu",
        images: &[("registry.example.com/ml/train:1", 6_000)],
    },
    NodeType { name: "e8", share: 1, cpu: 8, memory_gib: 16, gpus: 0, pool: "edge", images: &[] },
];

/// Sample nodes: three zones of unequal size, five types, some tainted, one cordoned.
pub(super) fn nodes(n: u32) -> impl Iterator<Item = Value> {
    (0..n).map(move |nth| node(n, nth))
}

/// The `nth` of `n` sample nodes.
pub(super) fn node(n: u32, nth: u32) -> Value {
    let width = n.saturating_sub(1).to_string().len().max(3);
    // 7 and 20 have no common factor: types are mixed, so that a few nodes already have several types.
    let kind = type_of(nth * 7 % 20);
    let zone = ["zone-a", "zone-b", "zone-c"][[0, 1, 2, 0, 1, 2, 0][nth as usize % 7]];
    let name = format!("{}-{nth:0width$}", kind.name);
    let is_spot = kind.name == "m8" && nth % 3 == 2;
    let mut taints = Vec::new();
    if kind.gpus > 0 {
        taints.push(json!({"key": GPU, "value": "present", "effect": "NoSchedule"}));
    }
    if is_spot {
        let effect = "PreferNoSchedule";
        taints.push(json!({"key": "example.com/spot", "value": "true", "effect": effect}));
    }
    let mut spec = json!({"taints": taints});
    if nth == 13 && n > 20 {
        spec["unschedulable"] = json!(true);
    }
    let images =
        kind.images.iter().map(|(name, mib)| json!({"names": [name], "sizeBytes": mib << 20}));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": kind.name,
            "topology.kubernetes.io/region": "region-1",
            "topology.kubernetes.io/zone": zone,
            "example.com/pool": kind.pool,
            "example.com/spot": is_spot.to_string(),
        }},
        "spec": spec,
        "status": {
            "capacity": resources(kind, 0, 0),
            "allocatable": resources(kind, 80, 700),
            "images": images.collect::<Vec<_>>(),
        },
    })
}

fn type_of(slot: u32) -> &'static NodeType {
    let mut below = 0;
    let found = NODE_TYPES.iter().find(|kind| {
        below += kind.share;
        slot < below
    });
    found.unwrap_or(&NODE_TYPES[0])
}

/// The resources of a node, without those reserved for the system.
fn resources(kind: &NodeType, system_milli_cpu: i64, system_memory_mib: i64) -> Map<String, Value> {
    let mut resources = Map::new();
    let mut offer = |name: &str, amount: String| resources.insert(name.to_owned(), amount.into());
    offer("cpu", format!("{}m", kind.cpu * 1_000 - system_milli_cpu));
    offer("memory", format!("{}Mi", (kind.memory_gib << 10) - system_memory_mib));
    offer("ephemeral-storage", "90Gi".to_owned());
    offer("pods", "110".to_owned());
    if kind.gpus > 0 {
        offer(GPU, kind.gpus.to_string());
    }
    resources
}

/// An action of the workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Create(Box<Value>),
    /// Sets the replicas of a Deployment.
    Scale {
        namespace: &'static str,
        name: &'static str,
        replicas: u64,
    },
    RemoveNode(String),
}

/// A sample workload: objects that are created at once, and objects that are created later.
pub(super) struct SampleWorkload {
    /// Namespaces, and objects that others need.
    pub objects: Vec<Value>,
    /// Workloads and pods with their creation times.
    pub arrivals: Vec<(Millis, Action)>,
    /// The Job after which churn models its Jobs.
    nightly: Option<Value>,
}

impl SampleWorkload {
    /// A workload without churn: its Jobs and Deployments are created at these times, by name, other objects at once.
    pub fn with_times(objects: Vec<Value>, times_ms: &[(&str, Millis)]) -> SampleWorkload {
        let mut workload =
            SampleWorkload { objects: Vec::new(), arrivals: Vec::new(), nightly: None };
        for object in objects {
            let runs_pods = object["kind"] == "Job" || object["kind"] == "Deployment";
            let time = times_ms.iter().find(|(name, _)| object["metadata"]["name"] == *name);
            match time.filter(|_| runs_pods) {
                Some((_, at_ms)) => {
                    workload.arrivals.push((*at_ms, Action::Create(Box::new(object))));
                }
                None => workload.objects.push(object),
            }
        }
        workload.arrivals.sort_compactly_by_key(|(at_ms, _)| *at_ms);
        workload
    }
}

/// Builds the sample workload for this many nodes. An error would be a mistake in `sample.yaml`.
pub(super) fn workload(n_nodes: u32) -> Result<SampleWorkload, LocatedError> {
    let document = Document::new("sample.yaml", include_str!("sample.yaml"));
    let (classes, mut workloads): (Vec<Value>, Vec<Value>) =
        document.decode_values()?.into_iter().partition(|it| it["kind"] == "PriorityClass");
    // Workloads with large pods first.
    workloads.sort_compactly_by_key(|it| {
        ["StatefulSet", "Deployment", "Job", "Pod"].iter().position(|kind| it["kind"] == *kind)
    });
    let mut namespaces: Vec<&str> =
        workloads.iter().filter_map(|it| it["metadata"]["namespace"].as_str()).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let objects = namespaces
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .chain(classes)
        .collect();
    for workload in &mut workloads {
        for count in ["replicas", "parallelism", "completions"] {
            if let Some(n) = workload["spec"][count].as_u64() {
                workload["spec"][count] = json!(scaled(n, n_nodes));
            }
        }
    }
    let nightly = workloads.iter().find(|it| it["metadata"]["name"] == "nightly").cloned();
    let actions = workloads.into_iter().map(|it| Action::Create(Box::new(it)));
    let arrivals = (0..).map(|nth: Millis| nth * ARRIVAL_MS).zip(actions).collect();
    Ok(SampleWorkload { objects, arrivals, nightly })
}

fn scaled(n: u64, n_nodes: u32) -> u64 {
    if n < SCALED_FROM { n } else { (n * u64::from(n_nodes) / u64::from(N_NODES)).max(1) }
}

/// Churn: Jobs are created, a Deployment is scaled, a node is deleted and created again.
pub(super) struct Churn {
    rng: Rng,
    n_nodes: u32,
    planned_ms: Millis,
    n_jobs: u32,
    job: Option<Value>,
}

/// When the churn starts, and how much of it is planned at a time.
const CHURN_FROM_MS: Millis = 6_000;
const PLAN_MS: Millis = 60_000;

/// Job names are used in turn. A Job is not created while one of its name exists, so that their number is bounded even if their pods stay
/// pending.
const N_JOB_NAMES: u32 = 12;

impl Churn {
    /// Churn for a sample cluster with this many nodes.
    pub fn new(rng: Rng, n_nodes: u32, sample: &SampleWorkload) -> Churn {
        Churn { rng, n_nodes, planned_ms: CHURN_FROM_MS, n_jobs: 0, job: sample.nightly.clone() }
    }

    /// Plans the next actions, up to at least this time.
    pub fn plan_actions(&mut self, until_ms: Millis) -> Vec<(Millis, Action)> {
        let mut actions = Vec::new();
        while self.planned_ms <= until_ms {
            let from_ms = self.planned_ms;
            self.planned_ms += PLAN_MS;
            for nth in 0..6 {
                let at_ms = from_ms + nth * PLAN_MS / 6;
                actions.extend(self.new_job().map(|action| (at_ms, action)));
            }
            for nth in 0..3 {
                let replicas = scaled(600 + self.rng.below(200), self.n_nodes);
                let action = Action::Scale { namespace: "shop", name: "web", replicas };
                actions.push((from_ms + 700 + nth * PLAN_MS / 3, action));
            }
            if self.n_nodes > 0 {
                let failed = self.rng.below(u64::from(self.n_nodes)) as u32;
                let node = node(self.n_nodes, failed);
                let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                actions.push((from_ms + 3_000, Action::RemoveNode(name)));
                actions.push((from_ms + 23_000, Action::Create(Box::new(node))));
            }
        }
        actions
    }

    fn new_job(&mut self) -> Option<Action> {
        let mut job = self.job.clone()?;
        self.n_jobs = self.n_jobs % N_JOB_NAMES + 1;
        let n_pods = scaled(20 + self.rng.below(40), self.n_nodes);
        job["metadata"]["name"] = json!(format!("report-{}", self.n_jobs));
        job["spec"]["parallelism"] = json!(n_pods);
        job["spec"]["completions"] = json!(n_pods);
        let seconds = (3 + self.rng.below(7)).to_string();
        let metadata = &mut job["spec"]["template"]["metadata"];
        metadata["annotations"] = json!({"loadmaster.io/run-seconds": seconds});
        Some(Action::Create(Box::new(job)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_of_all_types_and_zones() {
        let nodes: Vec<Value> = nodes(100).collect();
        let with = |field: &str, value: &str| {
            nodes.iter().filter(|it| it["metadata"]["labels"][field] == value).count()
        };
        for (kind, n) in [("m8", 40), ("m16", 35), ("l64", 15), ("g48", 5), ("e8", 5)] {
            assert_eq!(with("node.kubernetes.io/instance-type", kind), n, "{kind}");
        }
        assert!(
            with("topology.kubernetes.io/zone", "zone-a")
                > with("topology.kubernetes.io/zone", "zone-c")
        );
        assert_eq!(nodes.iter().filter(|it| it["spec"]["unschedulable"] == true).count(), 1);
        assert_eq!(nodes[3]["status"]["allocatable"]["pods"], "110");
    }

    #[test]
    fn the_workload_grows_with_the_cluster() {
        let replicas = |n_nodes, name: &str| {
            let sample = workload(n_nodes).unwrap();
            let found = sample.arrivals.iter().find_map(|(_, action)| match action {
                Action::Create(it) if it["metadata"]["name"] == name => {
                    it["spec"]["replicas"].as_u64()
                }
                _ => None,
            });
            found.unwrap()
        };
        assert_eq!([replicas(100, "web"), replicas(50, "web"), replicas(1, "web")], [700, 350, 7]);
        assert_eq!([replicas(100, "kafka"), replicas(5_000, "kafka")], [12, 12]);
    }

    /// Otherwise a cluster that runs for hours would grow.
    #[test]
    fn jobs_are_bounded_and_deleted() {
        let sample = workload(100).unwrap();
        let mut churn = Churn::new(Rng::new(1), 100, &sample);
        let mut names = std::collections::BTreeSet::new();
        let planned = churn.plan_actions(3_600_000);
        for (_, action) in sample.arrivals.into_iter().chain(planned) {
            let Action::Create(it) = action else { continue };
            if it["kind"] == "Job" {
                let ttl = it["spec"]["ttlSecondsAfterFinished"].as_u64();
                assert!(ttl.is_some_and(|seconds| seconds <= 60), "{it}");
                names.insert(it["metadata"]["name"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(names.len(), N_JOB_NAMES as usize + 2, "{names:?}");
    }

    #[test]
    fn churn_continues_and_depends_on_the_seed() {
        let churn = |seed| {
            let mut churn = Churn::new(Rng::new(seed), 100, &workload(100).unwrap());
            let first = churn.plan_actions(20_000);
            (first, churn.plan_actions(80_000))
        };
        assert_eq!(churn(1), churn(1));
        assert_ne!(churn(1), churn(2));
        let (first, second) = churn(1);
        assert!(first.iter().any(|(_, action)| matches!(action, Action::RemoveNode(_))));
        assert!(second.iter().all(|(at_ms, _)| *at_ms > 20_000));
    }
}
