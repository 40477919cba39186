//! Sample nodes, a sample workload worth looking at, and what goes on in a living cluster.

use std::sync::Arc;

use loadmaster_api::document::Document;
use loadmaster_api::snapshot::{Snapshot, SnapshotError};
use loadmaster_api::{
    ContainerImage, Labels, Node, NodeSpec, NodeStatus, ObjectMeta, Quantity, ResourceList, Str,
    Taint,
};
use loadmaster_stdx::Rng;

use super::{Change, Kind, Millis, Workload};

const GPU: &str = "nvidia.com/gpu";

/// The number of nodes that the numbers in `sample.yaml` are made for.
const N_NODES: u32 = 100;

/// Workloads smaller than this keep their size whatever the number of nodes.
const SCALED_FROM: u32 = 20;

/// Time between the arrivals of two workloads.
const ARRIVAL_MS: Millis = 300;

/// What a node of one type offers. Of twenty nodes, `share` are of it.
struct Type {
    name: &'static str,
    share: u32,
    cpu: i64,
    memory_gib: i64,
    gpus: i64,
    pool: &'static str,
    images: &'static [(&'static str, i64)],
}

const TYPES: [Type; 5] = [
    Type {
        name: "m8",
        share: 8,
        cpu: 8,
        memory_gib: 32,
        gpus: 0,
        pool: "general",
        images: &[("registry.example.com/shop/api:11", 180)],
    },
    Type {
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
    Type { name: "l64", share: 3, cpu: 64, memory_gib: 256, gpus: 0, pool: "data", images: &[] },
    Type {
        name: "g48",
        share: 1,
        cpu: 48,
        memory_gib: 384,
        gpus: 4,
        pool: "gpu",
        images: &[("registry.example.com/ml/train:1", 6_000)],
    },
    Type { name: "e8", share: 1, cpu: 8, memory_gib: 16, gpus: 0, pool: "edge", images: &[] },
];

/// Sample nodes: three zones of unequal size, five types, some tainted, one cordoned.
pub fn nodes(n: u32) -> impl Iterator<Item = Node> {
    let width = n.saturating_sub(1).to_string().len().max(3);
    let images: Vec<Vec<ContainerImage>> = TYPES.iter().map(images_of).collect();
    (0..n).map(move |nth| {
        // 7 and 20 share no factor: types come mixed, so that a few nodes are of several types already.
        let (at, kind) = type_of(nth * 7 % 20);
        let zone = ["zone-a", "zone-b", "zone-c"][[0, 1, 2, 0, 1, 2, 0][nth as usize % 7]];
        let name = format!("{}-{nth:0width$}", kind.name);
        let spot = kind.name == "m8" && nth % 3 == 2;
        let mut taints = Vec::new();
        if kind.gpus > 0 {
            taints.push(taint(GPU, "present", "NoSchedule"));
        }
        if spot {
            taints.push(taint("example.com/spot", "true", "PreferNoSchedule"));
        }
        Node {
            metadata: ObjectMeta {
                labels: labels(&name, kind, zone, spot),
                name: name.into(),
                ..ObjectMeta::default()
            },
            spec: NodeSpec { unschedulable: nth == 13 && n > 20, taints },
            status: NodeStatus {
                capacity: ResourceList::default(),
                allocatable: allocatable(kind),
                images: images[at].clone(),
            },
            extra: None,
        }
    })
}

fn type_of(slot: u32) -> (usize, &'static Type) {
    let mut below = 0;
    for (at, kind) in TYPES.iter().enumerate() {
        below += kind.share;
        if slot < below {
            return (at, kind);
        }
    }
    (0, &TYPES[0])
}

fn labels(name: &str, kind: &Type, zone: &str, spot: bool) -> Labels {
    let labels = [
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", kind.name),
        ("topology.kubernetes.io/region", "region-1"),
        ("topology.kubernetes.io/zone", zone),
        ("example.com/pool", kind.pool),
        ("example.com/spot", if spot { "true" } else { "false" }),
    ];
    labels.into_iter().map(|(key, value)| (key, Str::new(value))).collect()
}

/// The node's size less what its system takes.
fn allocatable(kind: &Type) -> ResourceList {
    let amounts = [
        ("cpu", Quantity::from_milli(kind.cpu * 1_000 - 80)),
        ("memory", Quantity::from_value((kind.memory_gib << 30) - (700 << 20))),
        ("ephemeral-storage", Quantity::from_value(90 << 30)),
        ("pods", Quantity::from_value(110)),
        (GPU, Quantity::from_value(kind.gpus)),
    ];
    amounts.into_iter().filter(|(_, amount)| !amount.is_zero()).collect()
}

fn images_of(kind: &Type) -> Vec<ContainerImage> {
    let image = |(name, mib): &(&str, i64)| ContainerImage {
        names: vec![Str::new(name)],
        size_bytes: mib << 20,
    };
    kind.images.iter().map(image).collect()
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: Str::new(key), value: Str::new(value), effect: Str::new(effect) }
}

/// The sample workload for so many nodes: what comes at once, and what comes later.
pub struct Sample {
    /// Priority classes.
    pub objects: Snapshot,
    /// Workloads and pods, each with its time.
    pub arrivals: Vec<(Millis, Change)>,
}

/// Makes the sample workload. An error would be a mistake in the file that it is made from.
pub fn workload(n_nodes: u32) -> Result<Sample, SnapshotError> {
    let document = Document::new("sample.yaml", include_str!("sample.yaml"));
    let mut objects = Snapshot::read(&[document])?;
    let workloads: Vec<Workload> = std::mem::take(&mut objects.stateful_sets)
        .into_iter()
        .map(|it| it.object.into())
        .chain(std::mem::take(&mut objects.deployments).into_iter().map(|it| it.object.into()))
        .chain(std::mem::take(&mut objects.jobs).into_iter().map(|it| it.object.into()))
        .collect();
    let workloads = workloads.into_iter().map(|mut workload| {
        workload.replicas = scaled(workload.replicas, n_nodes);
        workload.completions = workload.completions.map(|n| scaled(n, n_nodes));
        Change::CreateWorkload(Box::new(workload))
    });
    let pods = std::mem::take(&mut objects.pods)
        .into_iter()
        .map(|it| Change::CreatePod(Box::new(it.object)));
    let arrivals = (0..).map(|nth: Millis| nth * ARRIVAL_MS).zip(workloads.chain(pods)).collect();
    Ok(Sample { objects, arrivals })
}

fn scaled(replicas: u32, n_nodes: u32) -> u32 {
    if replicas < SCALED_FROM {
        return replicas;
    }
    let exact = u64::from(replicas) * u64::from(n_nodes) / u64::from(N_NODES);
    u32::try_from(exact).unwrap_or(u32::MAX).max(1)
}

/// What goes on in a living cluster: Jobs come, a Deployment follows its traffic, a node fails and comes back.
pub struct Churn {
    rng: Rng,
    n_nodes: u32,
    planned_ms: Millis,
    n_jobs: u32,
    job: Option<Arc<Workload>>,
}

/// When churn begins, and how much is planned at a time.
const CHURN_FROM_MS: Millis = 6_000;
const PLAN_MS: Millis = 12_000;

impl Churn {
    /// Churn for a sample cluster of so many nodes.
    pub fn new(rng: Rng, n_nodes: u32, sample: &Sample) -> Churn {
        let job = sample.arrivals.iter().find_map(|(_, change)| match change {
            Change::CreateWorkload(workload)
                if workload.kind == Kind::Job && &*workload.metadata.name == "nightly" =>
            {
                Some(Arc::new((**workload).clone()))
            }
            _ => None,
        });
        Churn { rng, n_nodes, planned_ms: CHURN_FROM_MS, n_jobs: 0, job }
    }

    /// What happens next, up to a little after this time.
    pub fn plan(&mut self, until_ms: Millis) -> Vec<(Millis, Change)> {
        let mut changes = Vec::new();
        while self.planned_ms <= until_ms {
            let from_ms = self.planned_ms;
            self.planned_ms += PLAN_MS;
            for nth in 0..6 {
                let at_ms = from_ms + nth * PLAN_MS / 6;
                changes.extend(self.new_job().map(|change| (at_ms, change)));
            }
            for nth in 0..3 {
                let replicas = scaled(self.rng.range(450, 950) as u32, self.n_nodes);
                let (namespace, name) = (Str::new("shop"), Str::new("web"));
                let change = Change::Scale { kind: Kind::Deployment, namespace, name, replicas };
                changes.push((from_ms + 700 + nth * PLAN_MS / 3, change));
            }
            let unlucky = self.rng.below(u64::from(self.n_nodes.max(1))) as usize;
            if let Some(node) = nodes(self.n_nodes).nth(unlucky) {
                changes.push((from_ms + 3_000, Change::RemoveNode(Str::new(node.name()))));
                changes.push((from_ms + 8_000, Change::SetNode(Box::new(node))));
            }
        }
        changes
    }

    fn new_job(&mut self) -> Option<Change> {
        let mut job = (**self.job.as_ref()?).clone();
        self.n_jobs += 1;
        job.metadata.name = format!("report-{}", self.n_jobs).into();
        let n_pods = scaled(self.rng.range(30, 160) as u32, self.n_nodes);
        (job.replicas, job.completions) = (n_pods, Some(n_pods));
        job.run_ms = Some(self.rng.range(3_000, 9_000) as Millis);
        Some(Change::CreateWorkload(Box::new(job)))
    }
}
