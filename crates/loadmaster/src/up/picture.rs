//! What the scheduler knows, for tables and summaries.

use std::borrow::Cow;
use std::collections::BTreeMap;

use loadmaster_api::Str;
use loadmaster_engine::Engine;
use loadmaster_engine::engine::progress::State;
use loadmaster_framework::{NodeInfo, PodInfo, World};

use super::tally::Unscheduled;

/// The label that says which zone a node is in.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Digits of the numbers in a message hang on the moment: messages that differ in nothing else are one.
fn without_numbers(message: &str) -> String {
    message.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picture {
    pub n_nodes: usize,
    /// Pods on nodes.
    pub n_assigned: usize,
    /// Pods that are ready to be decided, wait for their backoff, or are being bound.
    pub n_busy: usize,
    /// Pods that are turned down or held, by reason, most pods first.
    pub pending: Vec<Pending>,
    /// Zones by name.
    pub zones: Vec<Zone>,
    /// Extended resources: how much is asked for and how much there is.
    pub extended: Vec<(Str, Share)>,
    /// The nodes with the largest share of CPU or memory asked for.
    pub fullest: Vec<NodeLoad>,
    /// Decisions that were wrong, if they were checked.
    pub disagreements: Vec<String>,
}

/// Pods that wait for the same reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub n_pods: usize,
    /// What was said about one of them.
    pub message: String,
    /// That one's name.
    pub example: String,
    /// Held by PreEnqueue.
    pub is_gated: bool,
}

/// Sums over the nodes of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Zone {
    /// Empty for nodes that are in none.
    pub name: String,
    pub n_nodes: usize,
    pub n_pods: usize,
    pub cpu: Share,
    pub memory: Share,
}

/// How much of something is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub requested: i64,
    pub allocatable: i64,
}

impl Share {
    /// As a fraction; 0 where there is nothing to ask for.
    pub fn fraction(&self) -> f64 {
        if self.allocatable <= 0 { 0.0 } else { self.requested as f64 / self.allocatable as f64 }
    }

    fn add(&mut self, requested: i64, allocatable: i64) {
        self.requested += requested;
        self.allocatable += allocatable;
    }
}

/// A node as a table shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeLoad {
    pub name: String,
    pub zone: String,
    pub n_pods: usize,
    pub cpu: Share,
    pub memory: Share,
}

impl NodeLoad {
    fn of(world: &World, node: NodeInfo<'_>) -> NodeLoad {
        let (columns, at) = (world.nodes().columns(), node.row().index());
        NodeLoad {
            name: node.name().to_owned(),
            zone: node.labels().get(ZONE).map(|zone| zone.to_string()).unwrap_or_default(),
            n_pods: world.nodes().pods(node.row()).len(),
            cpu: Share {
                requested: columns.requested_cpu[at],
                allocatable: columns.allocatable_cpu[at],
            },
            memory: Share {
                requested: columns.requested_memory[at],
                allocatable: columns.allocatable_memory[at],
            },
        }
    }

    fn fullness(&self) -> f64 {
        self.cpu.fraction().max(self.memory.fraction())
    }
}

impl Picture {
    /// Reads an engine; of the fullest nodes so many.
    pub fn of(engine: &Engine, n_fullest: usize) -> Picture {
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
        nodes.sort_by(|a, b| {
            b.fullness().total_cmp(&a.fullness()).then_with(|| a.name.cmp(&b.name))
        });
        nodes.truncate(n_fullest);
        let (pending, n_busy) = pending(engine);
        Picture {
            n_nodes,
            n_assigned: world.n_assigned(),
            n_busy,
            pending,
            zones,
            extended: extended(world),
            fullest: nodes,
            disagreements: engine.disagreements().cloned().collect(),
        }
    }

    /// Adds the pods that wait for schedulers that do not run here, of which the engine does not know.
    pub fn add_unscheduled(&mut self, unscheduled: &Unscheduled) {
        for (scheduler, pods) in unscheduled {
            let Some(example) = pods.first().cloned() else { continue };
            let message = format!("no scheduler named {scheduler} runs here");
            self.pending.push(Pending { n_pods: pods.len(), message, example, is_gated: false });
        }
        sort(&mut self.pending);
    }

    /// Pods without nodes.
    pub fn n_pending(&self) -> usize {
        self.n_turned_down() + self.n_busy
    }

    /// Pods that were turned down or are held.
    pub fn n_turned_down(&self) -> usize {
        self.pending.iter().map(|group| group.n_pods).sum()
    }
}

/// Groups of pods that wait, and how many others there are. Pods are counted by what was said word for word first, so that what is
/// made anew is made once a message, not once a pod: there may be very many.
fn pending(engine: &Engine) -> (Vec<Pending>, usize) {
    let mut by_word: BTreeMap<(bool, Cow<'_, str>), (usize, &PodInfo)> = BTreeMap::new();
    let mut n_busy = 0;
    let has_nodes = !engine.world().nodes().is_empty();
    for waiting in engine.waiting() {
        let is_gated = match waiting.state {
            State::Gated => true,
            State::Unschedulable => false,
            // Without nodes no plugin rejects a pod, so that it is tried again after each backoff, always in vain.
            State::Backoff | State::Active if !has_nodes && !waiting.why.is_empty() => false,
            _ => {
                n_busy += 1;
                continue;
            }
        };
        let group = by_word.entry((is_gated, waiting.why)).or_insert((0, waiting.pod));
        group.0 += 1;
        if name_of(waiting.pod) < name_of(group.1) {
            group.1 = waiting.pod;
        }
    }
    let mut groups: BTreeMap<(bool, String), (usize, &PodInfo, Cow<'_, str>)> = BTreeMap::new();
    for ((is_gated, why), (n_pods, example)) in by_word {
        let group = groups.entry((is_gated, without_numbers(&why)));
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
        Pending { n_pods, message, example, is_gated }
    };
    let mut all: Vec<Pending> = groups.into_iter().map(pending).collect();
    sort(&mut all);
    (all, n_busy)
}

/// Most pods first.
fn sort(pending: &mut [Pending]) {
    pending.sort_by(|a, b| b.n_pods.cmp(&a.n_pods).then_with(|| a.example.cmp(&b.example)));
}

fn name_of(pod: &PodInfo) -> (&str, &str) {
    (&pod.template.namespace, &pod.name)
}

fn extended(world: &World) -> Vec<(Str, Share)> {
    let sums = world.nodes().scalars().iter().map(|column| {
        let share = Share {
            requested: column.requested.iter().sum(),
            allocatable: column.allocatable.iter().sum(),
        };
        (column.name.clone(), share)
    });
    sums.filter(|(_, share)| share.allocatable > 0).collect()
}
