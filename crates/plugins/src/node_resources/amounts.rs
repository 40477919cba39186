//! Which amounts of a node a filter or a score reads. Names become columns once a pod: no row is asked by name.

use loadmaster_api::Str;
use loadmaster_framework::resources::{self, Resources};
use loadmaster_framework::table::{NodeTable, ScalarColumn};
use loadmaster_framework::{NodeInfo, Reason};
use smallvec::SmallVec;

use super::args::ResourceSpec;

/// A resource that nodes can offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Cpu,
    Memory,
    Storage,
    /// Extended resources, huge pages and the like.
    Scalar(Str),
}

impl Resource {
    /// `None` for a name that is neither native nor scalar: upstream drops such amounts, so no node ever offers any.
    pub fn new(name: &str) -> Option<Resource> {
        match name {
            resources::CPU => Some(Resource::Cpu),
            resources::MEMORY => Some(Resource::Memory),
            resources::EPHEMERAL_STORAGE => Some(Resource::Storage),
            other => resources::is_scalar(other).then(|| Resource::Scalar(Str::new(other))),
        }
    }

    fn name(&self) -> &str {
        match self {
            Resource::Cpu => resources::CPU,
            Resource::Memory => resources::MEMORY,
            Resource::Storage => resources::EPHEMERAL_STORAGE,
            Resource::Scalar(name) => name,
        }
    }

    /// The amount in a list.
    pub fn of(&self, list: &Resources) -> i64 {
        match self {
            Resource::Cpu => list.cpu_milli,
            Resource::Memory => list.memory_bytes,
            Resource::Storage => list.ephemeral_storage_bytes,
            Resource::Scalar(name) => list.scalar(name).unwrap_or(0),
        }
    }

    /// Every resource that a list of amounts can mention, with its amount: native ones first, then scalars by name.
    pub fn all_of(list: &Resources) -> impl Iterator<Item = (Resource, i64)> {
        let native = [
            (Resource::Cpu, list.cpu_milli),
            (Resource::Memory, list.memory_bytes),
            (Resource::Storage, list.ephemeral_storage_bytes),
        ];
        let scalars =
            list.scalars.iter().map(|(name, amount)| (Resource::Scalar(name.clone()), *amount));
        native.into_iter().chain(scalars)
    }

    /// What a node offers, and what its pods ask for.
    pub fn of_node(&self, node: NodeInfo<'_>) -> (i64, i64) {
        (node.allocatable(self.name()), node.requested(self.name()))
    }

    /// Why a node that lacks it is turned down.
    pub fn insufficient(&self) -> Reason {
        match self {
            Resource::Cpu => Reason::Text("Insufficient cpu"),
            Resource::Memory => Reason::Text("Insufficient memory"),
            Resource::Storage => Reason::Text("Insufficient ephemeral-storage"),
            Resource::Scalar(name) => Reason::Insufficient(name.clone()),
        }
    }
}

/// Which sums over a node's pods count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// What the pods ask for.
    Requested,
    /// For CPU and memory, with defaults for containers that ask for none.
    Nonzero,
}

/// Where the node table keeps a resource.
#[derive(Clone, Debug)]
pub(super) struct Place {
    resource: Resource,
    /// Number of its scalar column, if it has one already.
    scalar_at: Option<usize>,
}

impl Place {
    pub fn new(resource: Resource, nodes: &NodeTable) -> Place {
        let scalar_at = match &resource {
            Resource::Scalar(name) => {
                nodes.scalars().iter().position(|column| column.name == *name)
            }
            _ => None,
        };
        Place { resource, scalar_at }
    }

    /// What nodes offer and what their pods ask for, by row. `None` while no node and no pod mentions the resource.
    pub fn columns<'a>(&self, nodes: &'a NodeTable, basis: Basis) -> Option<[&'a [i64]; 2]> {
        let c = nodes.columns();
        let nonzero = basis == Basis::Nonzero;
        Some(match &self.resource {
            Resource::Cpu => {
                [&c.allocatable_cpu, if nonzero { &c.nonzero_cpu } else { &c.requested_cpu }]
            }
            Resource::Memory => [
                &c.allocatable_memory,
                if nonzero { &c.nonzero_memory } else { &c.requested_memory },
            ],
            Resource::Storage => [&c.allocatable_storage, &c.requested_storage],
            Resource::Scalar(name) => {
                let column = self.scalar(nodes, name)?;
                [&column.allocatable, &column.requested]
            }
        })
    }

    /// Whether a column came up after this place was made, so that looking it up anew saves a search by name a row.
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        match &self.resource {
            Resource::Scalar(name) => self.scalar_at.is_none() && nodes.scalar(name).is_some(),
            _ => false,
        }
    }

    fn scalar<'a>(&self, nodes: &'a NodeTable, name: &Str) -> Option<&'a ScalarColumn> {
        match self.scalar_at.and_then(|at| nodes.scalars().get(at)) {
            Some(column) if column.name == *name => Some(column),
            _ => nodes.scalar(name),
        }
    }
}

/// One resource of one node, as scores see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub weight: i64,
    pub allocatable: i64,
    /// By the pods that are there.
    pub used: i64,
    /// By the pod at hand.
    pub wanted: i64,
}

impl Amount {
    /// What would be used with the pod. Sums wrap as upstream's do.
    pub fn used_with_pod(&self) -> i64 {
        self.used.wrapping_add(self.wanted)
    }
}

/// What a score weighs.
pub(super) type Scored = Box<[(Resource, i64)]>;

/// The resources of the arguments that a node can offer, with their weights.
pub(super) fn scored(specs: &[ResourceSpec]) -> Scored {
    specs.iter().filter_map(|spec| Some((Resource::new(&spec.name)?, spec.weight))).collect()
}

/// What one pod asks of the resources being scored.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub basis: Basis,
    pub parts: SmallVec<[Part; 2]>,
}

/// One resource being scored.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub resource: Resource,
    pub weight: i64,
    pub wanted: i64,
}

impl Demand {
    /// Scalar resources that the pod does not ask for do not count.
    pub fn new(scored: &Scored, basis: Basis, requests: &Resources) -> Demand {
        let parts = scored.iter().map(|(resource, weight)| {
            let wanted = resource.of(requests);
            Part { resource: resource.clone(), weight: *weight, wanted }
        });
        let counts =
            |part: &Part| part.wanted != 0 || !matches!(part.resource, Resource::Scalar(_));
        Demand { basis, parts: parts.filter(counts).collect() }
    }

    /// The amounts of a node; what it does not offer does not count.
    pub fn of_node<'a>(&'a self, node: NodeInfo<'a>) -> impl Iterator<Item = Amount> + Clone + 'a {
        let amounts = self.parts.iter().map(move |part| {
            let (allocatable, requested) = part.resource.of_node(node);
            let used = match (self.basis, &part.resource) {
                (Basis::Nonzero, Resource::Cpu) => node.nonzero_requested_cpu(),
                (Basis::Nonzero, Resource::Memory) => node.nonzero_requested_memory(),
                _ => requested,
            };
            Amount { weight: part.weight, allocatable, used, wanted: part.wanted }
        });
        amounts.filter(|amount| amount.allocatable != 0)
    }
}

/// [`Demand`] with every resource found in the node table.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    basis: Basis,
    parts: SmallVec<[PlacedPart; 2]>,
}

#[derive(Clone, Debug)]
struct PlacedPart {
    place: Place,
    weight: i64,
    wanted: i64,
}

/// One resource of all rows, and what the pod asks of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane<'a> {
    pub allocatable: &'a [i64],
    pub used: &'a [i64],
    pub wanted: i64,
}

impl Placed {
    pub fn new(demand: Demand, nodes: &NodeTable) -> Placed {
        let parts = demand.parts.into_iter().map(|Part { resource, weight, wanted }| PlacedPart {
            place: Place::new(resource, nodes),
            weight,
            wanted,
        });
        Placed { basis: demand.basis, parts: parts.collect() }
    }

    /// The amounts of a row, as [`Demand::of_node`] gives them.
    pub fn of_row<'a>(
        &'a self,
        nodes: &'a NodeTable,
        at: usize,
    ) -> impl Iterator<Item = Amount> + Clone + 'a {
        let amounts = self.parts.iter().filter_map(move |part| {
            let Lane { allocatable, used, wanted } = part.lane(nodes, self.basis)?;
            Some(Amount {
                weight: part.weight,
                allocatable: allocatable[at],
                used: used[at],
                wanted,
            })
        });
        amounts.filter(|amount| amount.allocatable != 0)
    }

    /// The two resources being scored, if there are two and both have columns.
    pub fn pair<'a>(&self, nodes: &'a NodeTable) -> Option<[Lane<'a>; 2]> {
        let [one, other] = &*self.parts else { return None };
        Some([one.lane(nodes, self.basis)?, other.lane(nodes, self.basis)?])
    }

    /// See [`Place::is_stale`].
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        self.parts.iter().any(|part| part.place.is_stale(nodes))
    }
}

impl PlacedPart {
    fn lane<'a>(&self, nodes: &'a NodeTable, basis: Basis) -> Option<Lane<'a>> {
        let [allocatable, used] = self.place.columns(nodes, basis)?;
        Some(Lane { allocatable, used, wanted: self.wanted })
    }
}
