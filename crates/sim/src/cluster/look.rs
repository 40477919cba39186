//! Looking at a cluster: what tables and summaries show. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_framework::{NodeInfo, PodInfo, World};

use super::{Cluster, Error, Millis, Recent, State, Tally, Why};

/// The label that says which zone a node is in.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Pods that wait for the same reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub n_pods: usize,
    /// What was said about the one turned down last.
    pub message: String,
    /// That one's name.
    pub example: String,
    /// Held by PreEnqueue.
    pub gated: bool,
}

/// Sums over the nodes of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Empty for nodes that are in none.
    pub name: String,
    pub n_nodes: usize,
    pub n_pods: usize,
    pub cpu: Share,
    pub memory: Share,
}

/// How much of something is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
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
pub struct NodeLoad {
    pub name: String,
    pub zone: String,
    pub n_pods: usize,
    pub cpu: Share,
    pub memory: Share,
}

impl Cluster {
    /// What time it is.
    pub fn now_ms(&self) -> Millis {
        self.now_ms
    }

    /// The numbers so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Nodes and the pods on them.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The last decisions, oldest first.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &Recent> {
        self.recent.iter()
    }

    /// What went wrong with changes that came later.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Decisions that were wrong, if they were checked.
    pub fn disagreements(&self) -> impl Iterator<Item = &str> {
        self.seats.iter().flat_map(|seat| seat.scheduler.disagreements()).map(String::as_str)
    }

    /// Whether anything is ready to be decided or due at some time.
    pub fn is_settled(&self) -> bool {
        self.tally.active == 0 && self.timers.is_empty()
    }

    /// Pods that were turned down, by reason, most pods first.
    pub fn pending(&self) -> Vec<Pending> {
        let mut groups: BTreeMap<(bool, &[Str]), (usize, Latest<'_>)> = BTreeMap::new();
        for id in &self.pending {
            let Some(record) = self.pods.get(id) else { continue };
            let Some(why) = &record.why else { continue };
            let latest = (record.tried_ms, &record.pod, why);
            let group = groups.entry((record.state == State::Gated, why.reasons.as_slice()));
            let (n_pods, known) = group.or_insert((0, latest));
            *n_pods += 1;
            if latest.0 > known.0 {
                *known = latest;
            }
        }
        let mut all: Vec<Pending> = groups
            .into_iter()
            .map(|((gated, _), (n_pods, (_, pod, why)))| Pending {
                n_pods,
                message: why.message.clone(),
                example: pod.full_name(),
                gated,
            })
            .collect();
        all.sort_by(|a, b| b.n_pods.cmp(&a.n_pods).then_with(|| a.example.cmp(&b.example)));
        all
    }

    /// Zones by name.
    pub fn zones(&self) -> Vec<Zone> {
        let mut zones: BTreeMap<String, Zone> = BTreeMap::new();
        for node in self.world.node_infos() {
            let load = load_of(&self.world, node);
            let zone = zones.entry(load.zone).or_default();
            zone.n_nodes += 1;
            zone.n_pods += load.n_pods;
            zone.cpu.add(load.cpu.requested, load.cpu.allocatable);
            zone.memory.add(load.memory.requested, load.memory.allocatable);
        }
        zones.into_iter().map(|(name, zone)| Zone { name, ..zone }).collect()
    }

    /// Extended resources: how much is asked for and how much there is.
    pub fn extended(&self) -> Vec<(Str, Share)> {
        let sums = self.world.nodes().scalars().iter().map(|column| {
            let share = Share {
                requested: column.requested.iter().sum(),
                allocatable: column.allocatable.iter().sum(),
            };
            (column.name.clone(), share)
        });
        sums.filter(|(_, share)| share.allocatable > 0).collect()
    }

    /// Every node.
    pub fn nodes(&self) -> impl Iterator<Item = NodeLoad> {
        self.world.node_infos().map(|node| load_of(&self.world, node))
    }

    /// The nodes with the largest share of CPU or memory asked for.
    pub fn fullest(&self, n: usize) -> Vec<NodeLoad> {
        let mut nodes: Vec<NodeLoad> = self.nodes().collect();
        let fullness = |node: &NodeLoad| node.cpu.fraction().max(node.memory.fraction());
        nodes.sort_by(|a, b| fullness(b).total_cmp(&fullness(a)).then_with(|| a.name.cmp(&b.name)));
        nodes.truncate(n);
        nodes
    }
}

type Latest<'a> = (Millis, &'a Arc<PodInfo>, &'a Arc<Why>);

fn load_of(world: &World, node: NodeInfo<'_>) -> NodeLoad {
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
