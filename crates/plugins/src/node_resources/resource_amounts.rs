//! The amounts that filters and scores read. Resource names are resolved to columns once per pod, not per node.

use std::ops::Range;

use loadmaster_api::Str;
use loadmaster_framework::node_amounts::{NodeAmount, NodeAmounts};
use loadmaster_framework::node_table::{NodeTable, ScalarResourceColumn};
use loadmaster_framework::resources::{self, Resources};
use loadmaster_framework::{NodeInfo, Reason};
use smallvec::SmallVec;

use super::args::ResourceSpec;

/// A resource that nodes can have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    Cpu,
    Memory,
    Storage,
    /// Extended resources, huge pages and the like.
    Scalar(Str),
}

impl Resource {
    /// `None` for a name that is neither native nor scalar: upstream drops such amounts, so no node ever has any.
    pub fn new(name: &str) -> Option<Resource> {
        match name {
            resources::RESOURCE_CPU => Some(Resource::Cpu),
            resources::RESOURCE_MEMORY => Some(Resource::Memory),
            resources::RESOURCE_EPHEMERAL_STORAGE => Some(Resource::Storage),
            other => {
                resources::is_scalar_resource_name(other).then(|| Resource::Scalar(Str::new(other)))
            }
        }
    }

    /// Its name in the API.
    pub fn name(&self) -> &str {
        match self {
            Resource::Cpu => resources::RESOURCE_CPU,
            Resource::Memory => resources::RESOURCE_MEMORY,
            Resource::Storage => resources::RESOURCE_EPHEMERAL_STORAGE,
            Resource::Scalar(name) => name,
        }
    }

    /// The amount of this resource in `list`.
    pub fn amount_in(&self, list: &Resources) -> i64 {
        match self {
            Resource::Cpu => list.cpu_milli,
            Resource::Memory => list.memory_bytes,
            Resource::Storage => list.ephemeral_storage_bytes,
            Resource::Scalar(name) => list.scalar(name).unwrap_or(0),
        }
    }

    /// Every resource that `list` can have, with its amount: native ones first, then scalars by name.
    pub fn amounts_in(list: &Resources) -> impl Iterator<Item = (Resource, i64)> {
        let native = [
            (Resource::Cpu, list.cpu_milli),
            (Resource::Memory, list.memory_bytes),
            (Resource::Storage, list.ephemeral_storage_bytes),
        ];
        let scalars =
            list.scalars.iter().map(|(name, amount)| (Resource::Scalar(name.clone()), *amount));
        native.into_iter().chain(scalars)
    }

    /// The allocatable amount of a node, and the amount requested by its pods.
    pub fn node_amounts(&self, node: NodeInfo<'_>) -> (i64, i64) {
        (node.allocatable(self.name()), node.requested(self.name()))
    }

    /// The reason with which a node is rejected that has too little of it.
    pub fn insufficient_reason(&self) -> Reason {
        match self {
            Resource::Cpu => Reason::Text("Insufficient cpu"),
            Resource::Memory => Reason::Text("Insufficient memory"),
            Resource::Storage => Reason::Text("Insufficient ephemeral-storage"),
            Resource::Scalar(name) => Reason::Insufficient(name.clone()),
        }
    }
}

/// Which of the two sums over a node's pods is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequestBasis {
    /// The requests of the pods.
    Requested,
    /// CPU and memory with defaults for containers without requests (upstream's `NonZeroRequested`).
    NonZeroRequested,
}

/// A resource with its column in the node table.
#[derive(Clone, Debug)]
pub(super) struct ResourceColumn {
    resource: Resource,
    /// Index of its scalar column, if it has one already.
    scalar_at: Option<usize>,
}

impl ResourceColumn {
    pub fn new(resource: Resource, nodes: &NodeTable) -> ResourceColumn {
        let scalar_at = match &resource {
            Resource::Scalar(name) => {
                nodes.scalars().iter().position(|column| column.name == *name)
            }
            _ => None,
        };
        ResourceColumn { resource, scalar_at }
    }

    /// The allocatable and the requested amounts of all rows, to be read of single ones. `None` while no node and no pod has the resource.
    #[inline]
    pub fn of_single_rows<'a>(
        &self,
        nodes: &'a NodeTable,
        basis: RequestBasis,
    ) -> Option<RowAmounts<'a>> {
        Some(match self.node_amounts(basis) {
            Some(amounts) => RowAmounts::OfNodes(nodes.amounts().rows(), amounts),
            None => RowAmounts::Columns(self.own_columns(nodes)?),
        })
    }

    /// The same of one row.
    #[inline]
    pub fn of_row(&self, nodes: &NodeTable, basis: RequestBasis, at: usize) -> Option<(i64, i64)> {
        Some(self.of_single_rows(nodes, basis)?.get(at))
    }

    /// Which amounts they are, for a resource of which every node has some.
    #[inline]
    pub fn node_amounts(&self, basis: RequestBasis) -> Option<[NodeAmount; 2]> {
        let nonzero = basis == RequestBasis::NonZeroRequested;
        match self.resource {
            Resource::Cpu => {
                let used = if nonzero { NodeAmount::NonzeroCpu } else { NodeAmount::RequestedCpu };
                Some([NodeAmount::AllocatableCpu, used])
            }
            Resource::Memory => {
                let used =
                    if nonzero { NodeAmount::NonzeroMemory } else { NodeAmount::RequestedMemory };
                Some([NodeAmount::AllocatableMemory, used])
            }
            Resource::Storage | Resource::Scalar(_) => None,
        }
    }

    /// The allocatable and the requested amounts by row of a resource that is not CPU or memory.
    pub fn own_columns<'a>(&self, nodes: &'a NodeTable) -> Option<[&'a [i64]; 2]> {
        let Resource::Scalar(name) = &self.resource else {
            let c = nodes.columns();
            return Some([&c.allocatable_storage, &c.requested_storage]);
        };
        let column = self.scalar(nodes, name)?;
        Some([&column.allocatable, &column.requested])
    }

    /// Whether the column was added after this was resolved, so that resolving again saves one search by name per row.
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        match &self.resource {
            Resource::Scalar(name) => self.scalar_at.is_none() && nodes.scalar(name).is_some(),
            _ => false,
        }
    }

    fn scalar<'a>(&self, nodes: &'a NodeTable, name: &Str) -> Option<&'a ScalarResourceColumn> {
        match self.scalar_at.and_then(|at| nodes.scalars().get(at)) {
            Some(column) if column.name == *name => Some(column),
            _ => nodes.scalar(name),
        }
    }
}

/// The allocatable and the used amount of one resource, to be read of single rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowAmounts<'a> {
    /// These two of the amounts that a node has side by side.
    OfNodes(&'a [NodeAmounts], [NodeAmount; 2]),
    Columns([&'a [i64]; 2]),
}

impl RowAmounts<'_> {
    /// Those of a row.
    #[inline]
    pub fn get(self, at: usize) -> (i64, i64) {
        match self {
            RowAmounts::OfNodes(nodes, amounts) => of_node(&nodes[at], amounts),
            RowAmounts::Columns([allocatable, used]) => (allocatable[at], used[at]),
        }
    }
}

/// These two amounts of a node.
#[inline]
pub(super) fn of_node(node: &NodeAmounts, [allocatable, used]: [NodeAmount; 2]) -> (i64, i64) {
    (node[allocatable], node[used])
}

/// The columns of the allocatable and the used amounts of one resource, and the pod's request for it in their unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnRequest<'a> {
    pub amounts: [&'a [i32]; 2],
    pub wanted: i32,
}

/// The amounts of one resource on one node, for scoring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceAmount {
    pub weight: i64,
    pub allocatable: i64,
    /// Requested by the pods on the node.
    pub used: i64,
    /// Requested by the incoming pod.
    pub wanted: i64,
}

impl ResourceAmount {
    /// The requested amount including the incoming pod. The sum wraps as upstream's does.
    pub fn used_with_pod(&self) -> i64 {
        self.used.wrapping_add(self.wanted)
    }
}

/// The resources that a score uses, with their weights.
pub(super) type WeightedResources = Box<[(Resource, i64)]>;

/// The resources of the arguments, with their weights, without names that no node can have.
pub(super) fn weighted_resources(specs: &[ResourceSpec]) -> WeightedResources {
    specs.iter().filter_map(|spec| Some((Resource::new(&spec.name)?, spec.weight))).collect()
}

/// The requests of one pod for the resources being scored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScoredRequests {
    pub basis: RequestBasis,
    pub resources: SmallVec<[ScoredResource; 2]>,
}

/// One resource being scored: its weight, and the pod's request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScoredResource {
    pub resource: Resource,
    pub weight: i64,
    pub wanted: i64,
}

impl ScoredRequests {
    /// Scalar resources that the pod does not request do not count.
    pub fn new(
        weighted_resources: &WeightedResources,
        basis: RequestBasis,
        requests: &Resources,
    ) -> ScoredRequests {
        let resources = weighted_resources.iter().map(|(resource, weight)| {
            let wanted = resource.amount_in(requests);
            ScoredResource { resource: resource.clone(), weight: *weight, wanted }
        });
        let counts = |part: &ScoredResource| {
            part.wanted != 0 || !matches!(part.resource, Resource::Scalar(_))
        };
        ScoredRequests { basis, resources: resources.filter(counts).collect() }
    }

    /// The amounts of a node; resources that it does not have do not count.
    pub fn node_amounts<'a>(
        &'a self,
        node: NodeInfo<'a>,
    ) -> impl Iterator<Item = ResourceAmount> + Clone + 'a {
        let amounts = self.resources.iter().map(move |part| {
            let (allocatable, requested) = part.resource.node_amounts(node);
            let used = match (self.basis, &part.resource) {
                (RequestBasis::NonZeroRequested, Resource::Cpu) => node.nonzero_requested_cpu(),
                (RequestBasis::NonZeroRequested, Resource::Memory) => {
                    node.nonzero_requested_memory()
                }
                _ => requested,
            };
            ResourceAmount { weight: part.weight, allocatable, used, wanted: part.wanted }
        });
        amounts.filter(|amount| amount.allocatable != 0)
    }
}

/// [`ScoredRequests`] with every resource resolved to its column in the node table.
#[derive(Clone, Debug)]
pub(super) struct ScoredColumns {
    basis: RequestBasis,
    resources: SmallVec<[ScoredColumn; 2]>,
    /// If these are CPU and memory: what is read of each row, because finding that out takes as long as the score.
    two_of_nodes: Option<[WantedResource<[NodeAmount; 2]>; 2]>,
}

#[derive(Clone, Debug)]
struct ScoredColumn {
    column: ResourceColumn,
    weight: i64,
    wanted: i64,
}

/// Where the allocatable and the used amounts of one resource are, and the pod's request for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedResource<A> {
    pub amounts: A,
    pub wanted: i64,
}

impl WantedResource<RowAmounts<'_>> {
    /// The allocatable, the used and the wanted amount of a row.
    #[inline]
    pub fn of_row(&self, at: usize) -> (i64, i64, i64) {
        let (allocatable, used) = self.amounts.get(at);
        (allocatable, used, self.wanted)
    }
}

impl ScoredColumns {
    pub fn new(scored_requests: ScoredRequests, nodes: &NodeTable) -> ScoredColumns {
        let basis = scored_requests.basis;
        let resources = scored_requests.resources.into_iter().map(
            |ScoredResource { resource, weight, wanted }| ScoredColumn {
                column: ResourceColumn::new(resource, nodes),
                weight,
                wanted,
            },
        );
        let mut columns =
            ScoredColumns { basis, resources: resources.collect(), two_of_nodes: None };
        columns.two_of_nodes = columns.two(|part| part.column.node_amounts(basis));
        columns
    }

    /// The amounts of a row, equal to those of [`ScoredRequests::node_amounts`].
    pub fn row_amounts<'a>(
        &'a self,
        nodes: &'a NodeTable,
        at: usize,
    ) -> impl Iterator<Item = ResourceAmount> + Clone + 'a {
        let amounts = self.resources.iter().filter_map(move |part| {
            let (allocatable, used) = part.column.of_row(nodes, self.basis, at)?;
            Some(ResourceAmount { weight: part.weight, allocatable, used, wanted: part.wanted })
        });
        amounts.filter(|amount| amount.allocatable != 0)
    }

    /// The columns of these rows of the two resources being scored, if these are CPU and memory and the pod's requests can be added to columns.
    pub fn two_of_columns<'a>(
        &self,
        nodes: &'a NodeTable,
        rows: Range<usize>,
    ) -> Option<[ColumnRequest<'a>; 2]> {
        let columns = nodes.amounts().columns();
        let of_rows = |resource: WantedResource<[NodeAmount; 2]>| {
            let wanted = resource.amounts[0].in_column(resource.wanted)?;
            let amounts = resource.amounts.map(|amount| &columns.of(amount)[rows.clone()]);
            Some(ColumnRequest { amounts, wanted })
        };
        let [one, other] = self.two_of_nodes?;
        Some([of_rows(one)?, of_rows(other)?])
    }

    /// The amounts of the two resources being scored, if there are two and both have columns, to be read of single rows.
    #[inline]
    pub fn two_of_single_rows<'a>(
        &self,
        nodes: &'a NodeTable,
    ) -> Option<[WantedResource<RowAmounts<'a>>; 2]> {
        self.two(|part| part.column.of_single_rows(nodes, self.basis))
    }

    /// The allocatable, the used and the wanted amount of both in a row.
    #[inline]
    pub fn two_of_row(&self, nodes: &NodeTable, at: usize) -> Option<[(i64, i64, i64); 2]> {
        let Some(resources) = self.two_of_nodes else {
            return Some(self.two_of_single_rows(nodes)?.map(|resource| resource.of_row(at)));
        };
        let node = &nodes.amounts().rows()[at];
        Some(resources.map(|WantedResource { amounts, wanted }| {
            let (allocatable, used) = of_node(node, amounts);
            (allocatable, used, wanted)
        }))
    }

    #[inline]
    fn two<A>(
        &self,
        amounts: impl Fn(&ScoredColumn) -> Option<A>,
    ) -> Option<[WantedResource<A>; 2]> {
        let [one, other] = &*self.resources else { return None };
        Some([
            WantedResource { amounts: amounts(one)?, wanted: one.wanted },
            WantedResource { amounts: amounts(other)?, wanted: other.wanted },
        ])
    }

    /// See [`ResourceColumn::is_stale`].
    pub fn is_stale(&self, nodes: &NodeTable) -> bool {
        self.resources.iter().any(|part| part.column.is_stale(nodes))
    }
}
