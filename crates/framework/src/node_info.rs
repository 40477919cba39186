//! A node as plugins see it (upstream's `NodeInfo`): a row of the node table.

use std::sync::Arc;

use loadmaster_api::{Labels, Node, Taint};
use serde_json::Value;

use crate::node_amounts::{NodeAmount, NodeAmounts};
use crate::node_table::{Entry, NodeRow, NodeTable};
use crate::pod_info::PodInfo;
use crate::template::HostPort;

/// One node with its pods and sums.
#[derive(Clone, Copy)]
pub struct NodeInfo<'a> {
    table: &'a NodeTable,
    entry: &'a Entry,
    row: NodeRow,
}

impl<'a> NodeInfo<'a> {
    /// The node in a row; `None` for a free row.
    #[inline]
    pub fn new(table: &'a NodeTable, row: NodeRow) -> Option<NodeInfo<'a>> {
        Some(NodeInfo { table, entry: table.entry(row)?, row })
    }

    /// The node's row.
    pub fn row(&self) -> NodeRow {
        self.row
    }

    /// The Node object.
    pub fn node(&self) -> &'a Arc<Node> {
        &self.entry.node
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.entry.node.name()
    }

    /// Its labels.
    #[inline]
    pub fn labels(&self) -> &'a Labels {
        self.table.node_labels(self.row)
    }

    /// An annotation, for plugins that [need](crate::ExtraField) them.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.entry.node.extra.as_ref()?.annotations.get(key).map(|value| &**value)
    }

    /// The node as the API server has it, without `metadata.managedFields`, for plugins that [need](crate::ExtraField) it.
    pub fn object(&self) -> Option<&'a Value> {
        self.entry.node.extra.as_ref().map(|extra| &extra.object).filter(|object| !object.is_null())
    }

    /// Its taints.
    pub fn taints(&self) -> &'a [Taint] {
        &self.entry.node.spec.taints
    }

    /// The pods on it.
    pub fn pods(&self) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        self.entry.pods.iter()
    }

    /// The pods on it that have affinity or anti-affinity terms.
    pub fn pods_with_affinity(&self) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let any = self.entry.n_affinity > 0;
        any.then(|| self.pods().filter(|pod| pod.template.has_pod_affinity())).into_iter().flatten()
    }

    /// The pods on it that have required anti-affinity terms.
    pub fn pods_with_required_anti_affinity(
        &self,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let any = self.entry.n_required_anti_affinity > 0;
        any.then(|| self.pods().filter(|pod| pod.template.has_required_anti_affinity()))
            .into_iter()
            .flatten()
    }

    /// The host ports in use.
    pub fn host_ports(&self) -> impl Iterator<Item = &'a HostPort> + use<'a> {
        self.entry.host_ports.iter()
    }

    /// Number of pods on it.
    pub fn n_pods(&self) -> i64 {
        self.amounts()[NodeAmount::Pods]
    }

    /// Allocatable number of pods.
    pub fn allocatable_pods(&self) -> i64 {
        self.amounts()[NodeAmount::AllocatablePods]
    }

    /// Allocatable amount of a resource: milli-CPU for `cpu`, else bytes or a count; 0 when the node does not have it.
    pub fn allocatable(&self, resource: &str) -> i64 {
        let at = self.row.index();
        match resource {
            crate::resources::RESOURCE_CPU => self.amounts()[NodeAmount::AllocatableCpu],
            crate::resources::RESOURCE_MEMORY => self.amounts()[NodeAmount::AllocatableMemory],
            crate::resources::RESOURCE_EPHEMERAL_STORAGE => {
                self.table.columns().allocatable_storage[at]
            }
            other => self.table.scalar(other).map_or(0, |column| column.allocatable[at]),
        }
    }

    /// Amount of a resource that its pods request, in the same units.
    pub fn requested(&self, resource: &str) -> i64 {
        let at = self.row.index();
        match resource {
            crate::resources::RESOURCE_CPU => self.amounts()[NodeAmount::RequestedCpu],
            crate::resources::RESOURCE_MEMORY => self.amounts()[NodeAmount::RequestedMemory],
            crate::resources::RESOURCE_EPHEMERAL_STORAGE => {
                self.table.columns().requested_storage[at]
            }
            other => self.table.scalar(other).map_or(0, |column| column.requested[at]),
        }
    }

    /// Milli-CPU that its pods request, with a default for containers without a request (upstream's `NonZeroRequested`).
    pub fn nonzero_requested_cpu(&self) -> i64 {
        self.amounts()[NodeAmount::NonzeroCpu]
    }

    /// Bytes of memory that its pods request, with a default for containers without a request (upstream's `NonZeroRequested`).
    pub fn nonzero_requested_memory(&self) -> i64 {
        self.amounts()[NodeAmount::NonzeroMemory]
    }

    fn amounts(&self) -> &'a NodeAmounts {
        &self.table.amounts().rows()[self.row.index()]
    }

    /// How many nodes of the cluster report an image under this name.
    pub fn n_nodes_with_image(&self, name: &str) -> u32 {
        self.table.n_nodes_with_image(name)
    }
}
