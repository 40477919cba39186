//! A node as plugins see it (upstream's `NodeInfo`): a row of the node table, in dry runs with an overlay of added and removed
//! pods.

use std::sync::Arc;

use loadmaster_api::{Labels, Node, Taint};
use serde_json::Value;

use crate::node_table::{Entry, NodeColumns, NodeRow, NodeTable};
use crate::pod_info::PodInfo;
use crate::template::HostPort;

/// Pods that a dry run adds to a node or removes from it, without a copy of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeOverlay {
    added: Vec<Arc<PodInfo>>,
    removed: Vec<Arc<PodInfo>>,
}

impl NodeOverlay {
    /// Adds a pod, or reverts its removal.
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        match self.removed.iter().position(|removed| removed.uid == pod.uid) {
            Some(at) => drop(self.removed.swap_remove(at)),
            None => self.added.push(pod),
        }
    }

    /// Removes a pod, or reverts its addition.
    pub fn remove(&mut self, pod: Arc<PodInfo>) {
        match self.added.iter().position(|added| added.uid == pod.uid) {
            Some(at) => drop(self.added.swap_remove(at)),
            None => self.removed.push(pod),
        }
    }

    /// Whether no pod is added or removed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    fn sum(&self, amount: impl Fn(&PodInfo) -> i64) -> i64 {
        let total = |pods: &[Arc<PodInfo>]| {
            pods.iter().fold(0i64, |sum, pod| sum.wrapping_add(amount(pod)))
        };
        total(&self.added).wrapping_sub(total(&self.removed))
    }
}

/// One node with its pods and sums.
#[derive(Clone, Copy)]
pub struct NodeInfo<'a> {
    table: &'a NodeTable,
    entry: &'a Entry,
    row: NodeRow,
    overlay: Option<&'a NodeOverlay>,
}

impl<'a> NodeInfo<'a> {
    /// The node in a row; `None` for a free row.
    pub fn new(table: &'a NodeTable, row: NodeRow) -> Option<NodeInfo<'a>> {
        Some(NodeInfo { table, entry: table.entry(row)?, row, overlay: None })
    }

    /// The same node with an overlay.
    #[must_use]
    pub fn with_overlay(self, overlay: &'a NodeOverlay) -> NodeInfo<'a> {
        NodeInfo { overlay: Some(overlay), ..self }
    }

    /// The overlay, in a dry run.
    pub fn overlay(&self) -> Option<&'a NodeOverlay> {
        self.overlay
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
    pub fn labels(&self) -> &'a Labels {
        &self.entry.labels
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
        let (added, removed): (&'a [_], &'a [_]) =
            self.overlay.map_or((&[], &[]), |overlay| (&overlay.added, &overlay.removed));
        let here = self.entry.pods.iter();
        here.filter(move |pod| !removed.iter().any(|other: &Arc<PodInfo>| other.uid == pod.uid))
            .chain(added)
    }

    /// The pods on it that have affinity or anti-affinity terms.
    pub fn pods_with_affinity(&self) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let any = self.overlay.is_some() || self.entry.n_affinity > 0;
        any.then(|| self.pods().filter(|pod| pod.template.has_pod_affinity())).into_iter().flatten()
    }

    /// The pods on it that have required anti-affinity terms.
    pub fn pods_with_required_anti_affinity(
        &self,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let any = self.overlay.is_some() || self.entry.n_required_anti_affinity > 0;
        any.then(|| self.pods().filter(|pod| pod.template.has_required_anti_affinity()))
            .into_iter()
            .flatten()
    }

    /// The host ports in use.
    pub fn host_ports(&self) -> impl Iterator<Item = &'a HostPort> + use<'a> {
        let plain = self.overlay.is_none().then(|| self.entry.host_ports.iter());
        let overlaid = self
            .overlay
            .is_some()
            .then(|| self.pods().flat_map(|pod| pod.template.host_ports.iter()));
        plain.into_iter().flatten().chain(overlaid.into_iter().flatten())
    }

    /// Number of pods on it.
    pub fn n_pods(&self) -> i64 {
        self.value(|c| &c.pods, |_| 1)
    }

    /// Allocatable number of pods.
    pub fn allocatable_pods(&self) -> i64 {
        self.table.columns().allocatable_pods[self.row.index()]
    }

    /// Allocatable amount of a resource: milli-CPU for `cpu`, else bytes or a count; 0 when the node does not have it.
    pub fn allocatable(&self, resource: &str) -> i64 {
        let c = self.table.columns();
        let at = self.row.index();
        match resource {
            crate::resources::RESOURCE_CPU => c.allocatable_cpu[at],
            crate::resources::RESOURCE_MEMORY => c.allocatable_memory[at],
            crate::resources::RESOURCE_EPHEMERAL_STORAGE => c.allocatable_storage[at],
            other => self.table.scalar(other).map_or(0, |column| column.allocatable[at]),
        }
    }

    /// Amount of a resource that its pods request, in the same units.
    pub fn requested(&self, resource: &str) -> i64 {
        match resource {
            crate::resources::RESOURCE_CPU => {
                self.value(|c| &c.requested_cpu, |pod| pod.requests().resources.cpu_milli)
            }
            crate::resources::RESOURCE_MEMORY => {
                self.value(|c| &c.requested_memory, |pod| pod.requests().resources.memory_bytes)
            }
            crate::resources::RESOURCE_EPHEMERAL_STORAGE => self.value(
                |c| &c.requested_storage,
                |pod| pod.requests().resources.ephemeral_storage_bytes,
            ),
            other => {
                let base =
                    self.table.scalar(other).map_or(0, |column| column.requested[self.row.index()]);
                let amount = |pod: &PodInfo| pod.requests().resources.scalar(other).unwrap_or(0);
                base.wrapping_add(self.overlay.map_or(0, |overlay| overlay.sum(amount)))
            }
        }
    }

    /// Milli-CPU that its pods request, with a default for containers without a request (upstream's `NonZeroRequested`).
    pub fn nonzero_requested_cpu(&self) -> i64 {
        self.value(|c| &c.nonzero_cpu, |pod| pod.requests().nonzero_cpu_milli)
    }

    /// Bytes of memory that its pods request, with a default for containers without a request (upstream's `NonZeroRequested`).
    pub fn nonzero_requested_memory(&self) -> i64 {
        self.value(|c| &c.nonzero_memory, |pod| pod.requests().nonzero_memory_bytes)
    }

    /// How many nodes of the cluster report an image under this name.
    pub fn n_nodes_with_image(&self, name: &str) -> u32 {
        self.table.n_nodes_with_image(name)
    }

    fn value(
        &self,
        column: impl Fn(&NodeColumns) -> &Vec<i64>,
        amount: impl Fn(&PodInfo) -> i64,
    ) -> i64 {
        let base = column(self.table.columns())[self.row.index()];
        base.wrapping_add(self.overlay.map_or(0, |overlay| overlay.sum(amount)))
    }
}
