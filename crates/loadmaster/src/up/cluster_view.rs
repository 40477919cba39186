//! The state of the scheduler, for the dashboard and the summary.

use std::borrow::Cow;
use std::collections::BTreeMap;

use loadmaster_api::Str;
use loadmaster_engine::Engine;
use loadmaster_engine::engine::scheduling_state::PodState;
use loadmaster_framework::resources::{RESOURCE_CPU, RESOURCE_MEMORY};
use loadmaster_framework::{NodeInfo, PodInfo, World};
use loadmaster_stdx::SortCompactly as _;

use super::pod_counts::PodsOfOtherSchedulers;

/// The zone label of nodes.
const ZONE: &str = "topology.kubernetes.io/zone";

/// A message without digits and without the name of its pod: messages that differ only in these are grouped.
fn without_numbers_and_name(message: &str, pod: &PodInfo) -> String {
    let message = message.replace(&*pod.name, "");
    message.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The state of the scheduler at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClusterView {
    pub n_nodes: usize,
    /// Number of assigned pods.
    pub n_assigned: usize,
    /// Number of pods that are in activeQ or backoffQ, in flight, or being bound.
    pub n_busy: usize,
    /// Unschedulable and gated pods by reason, the largest group first.
    pub pending: Vec<PendingGroup>,
    /// Zones by name.
    pub zones: Vec<Zone>,
    /// Requested and allocatable amounts of extended resources.
    pub extended: Vec<(Str, Utilization)>,
    /// The nodes with the highest utilization of CPU or memory.
    pub fullest: Vec<NodeLoad>,
    /// Decisions that differ from per-node evaluation, with --check.
    pub disagreements: Vec<String>,
}

/// Pods that are pending for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingGroup {
    pub n_pods: usize,
    /// The message of one of them.
    pub message: String,
    /// The name of that pod.
    pub example: String,
    /// Rejected by PreEnqueue.
    pub is_gated: bool,
}

/// Sums over the nodes of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Zone {
    /// Empty for nodes without a zone.
    pub name: String,
    pub n_nodes: usize,
    pub n_pods: usize,
    pub cpu: Utilization,
    pub memory: Utilization,
}

/// Requested and allocatable amounts of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Utilization {
    pub requested: i64,
    pub allocatable: i64,
}

impl Utilization {
    /// The utilization as a fraction; 0 if nothing is allocatable.
    pub fn fraction(&self) -> f64 {
        if self.allocatable <= 0 { 0.0 } else { self.requested as f64 / self.allocatable as f64 }
    }

    fn add(&mut self, requested: i64, allocatable: i64) {
        self.requested += requested;
        self.allocatable += allocatable;
    }
}

/// A node in the table of the fullest nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLoad {
    pub name: String,
    pub zone: String,
    pub n_pods: usize,
    pub cpu: Utilization,
    pub memory: Utilization,
}

impl NodeLoad {
    fn of(world: &World, node: NodeInfo<'_>) -> NodeLoad {
        let utilization = |resource| Utilization {
            requested: node.requested(resource),
            allocatable: node.allocatable(resource),
        };
        NodeLoad {
            name: node.name().to_owned(),
            zone: node.labels().get(ZONE).map(|zone| zone.to_string()).unwrap_or_default(),
            n_pods: world.nodes().pods(node.row()).len(),
            cpu: utilization(RESOURCE_CPU),
            memory: utilization(RESOURCE_MEMORY),
        }
    }

    fn fullness(&self) -> f64 {
        self.cpu.fraction().max(self.memory.fraction())
    }
}

impl ClusterView {
    /// Reads the state of an engine, with this many of the fullest nodes.
    pub fn from_engine(engine: &Engine, n_fullest: usize) -> ClusterView {
        let world = engine.world();
        let mut nodes: Vec<NodeLoad> =
            world.node_infos().map(|node| NodeLoad::of(world, node)).collect();
        let mut zones: BTreeMap<&str, Zone> = BTreeMap::new();
        for node in &nodes {
            let zone = zones.entry(&node.zone).or_default();
            zone.n_nodes += 1;
            zone.n_pods += node.n_pods;
            zone.cpu.add(node.cpu.requested, node.cpu.allocatable);
            zone.memory.add(node.memory.requested, node.memory.allocatable);
        }
        let zones =
            zones.into_iter().map(|(name, zone)| Zone { name: name.to_owned(), ..zone }).collect();
        let n_nodes = nodes.len();
        nodes.sort_compactly_by(|a, b| {
            b.fullness().total_cmp(&a.fullness()).then_with(|| a.name.cmp(&b.name))
        });
        nodes.truncate(n_fullest);
        let (pending, n_busy) = pending(engine);
        ClusterView {
            n_nodes,
            n_assigned: world.n_assigned_pods(),
            n_busy,
            pending,
            zones,
            extended: extended(world),
            fullest: nodes,
            disagreements: engine.decision_mismatches().cloned().collect(),
        }
    }

    /// Adds pending pods of schedulers that do not run in this cluster, which the engine does not have.
    pub fn add_pods_of_other_schedulers(&mut self, unscheduled: &PodsOfOtherSchedulers) {
        for (scheduler, pods) in unscheduled {
            let Some(example) = pods.first().cloned() else { continue };
            let message = format!("no scheduler named {scheduler} runs in this cluster");
            self.pending.push(PendingGroup {
                n_pods: pods.len(),
                message,
                example,
                is_gated: false,
            });
        }
        sort_groups(&mut self.pending);
    }

    /// Number of pods without a node.
    pub fn n_pending(&self) -> usize {
        self.n_unschedulable() + self.n_busy
    }

    /// Number of unschedulable and gated pods.
    pub fn n_unschedulable(&self) -> usize {
        self.pending.iter().map(|group| group.n_pods).sum()
    }
}

/// Groups of unschedulable and gated pods, and the number of other pending pods. Pods are first grouped by their exact message, so that
/// the digits are removed once per message and not once per pod.
fn pending(engine: &Engine) -> (Vec<PendingGroup>, usize) {
    let mut by_message: BTreeMap<(bool, Cow<'_, str>), (usize, &PodInfo)> = BTreeMap::new();
    let mut n_busy = 0;
    let has_nodes = !engine.world().nodes().is_empty();
    for waiting in engine.pending_pod_summaries() {
        let is_gated = match waiting.state {
            PodState::Gated => true,
            PodState::Unschedulable => false,
            // Without nodes no plugin rejects a pod, so that it is retried after each backoff.
            PodState::Backoff | PodState::Active if !has_nodes && !waiting.reason.is_empty() => {
                false
            }
            _ => {
                n_busy += 1;
                continue;
            }
        };
        let group = by_message.entry((is_gated, waiting.reason)).or_insert((0, waiting.pod));
        group.0 += 1;
        if name_of(waiting.pod) < name_of(group.1) {
            group.1 = waiting.pod;
        }
    }
    let mut groups: BTreeMap<(bool, String), (usize, &PodInfo, Cow<'_, str>)> = BTreeMap::new();
    for ((is_gated, why), (n_pods, example)) in by_message {
        let group = groups.entry((is_gated, without_numbers_and_name(&why, example)));
        let group = group.or_insert_with(|| (0, example, why.clone()));
        group.0 += n_pods;
        if name_of(example) < name_of(group.1) {
            (group.1, group.2) = (example, why);
        }
    }
    let pending = |((is_gated, _), (n_pods, example, why)): (
        (bool, String),
        (usize, &PodInfo, Cow<'_, str>),
    )| {
        let (message, example) = (why.into_owned(), example.full_name());
        PendingGroup { n_pods, message, example, is_gated }
    };
    let mut all: Vec<PendingGroup> = groups.into_iter().map(pending).collect();
    sort_groups(&mut all);
    (all, n_busy)
}

/// Most pods first.
fn sort_groups(pending: &mut [PendingGroup]) {
    pending
        .sort_compactly_by(|a, b| b.n_pods.cmp(&a.n_pods).then_with(|| a.example.cmp(&b.example)));
}

fn name_of(pod: &PodInfo) -> (&str, &str) {
    (&pod.template.namespace, &pod.name)
}

fn extended(world: &World) -> Vec<(Str, Utilization)> {
    let sums = world.nodes().scalars().iter().map(|column| {
        let share = Utilization {
            requested: column.requested.iter().sum(),
            allocatable: column.allocatable.iter().sum(),
        };
        (column.name.clone(), share)
    });
    sums.filter(|(_, share)| share.allocatable > 0).collect()
}
