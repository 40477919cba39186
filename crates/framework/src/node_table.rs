//! The node table: one row per node with a stable index. Sums of resources are in columns; those of CPU and memory and the numbers of pods are
//! in [`AllAmounts`].

mod node_tree;

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::hint::black_box;
use std::sync::Arc;

use hashbrown::HashTable;
use loadmaster_api::{Labels, Node, Str, Taint};
use loadmaster_stdx::Map;
use loadmaster_stdx::hash::SeededHashBuilder;
use smallvec::SmallVec;

use crate::label_columns::{LabelColumns, LabelKeyId};
use crate::node_amounts::{AllAmounts, NodeAmount};
use crate::pod_info::PodInfo;
use crate::pod_requests::PodRequests;
use crate::resources::Resources;
use crate::template::HostPort;

pub use crate::node_row::NodeRow;
pub use node_tree::NodeTree;

/// The id of a list of taints, in their order on the node; nodes with equal lists share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaintSetId(pub u32);

/// What is not in [`AllAmounts`], as columns indexed by row.
#[derive(Clone, Debug, Default)]
pub struct NodeColumns {
    /// Allocatable bytes of ephemeral storage.
    pub allocatable_storage: Vec<i64>,
    /// Bytes of ephemeral storage that its pods request.
    pub requested_storage: Vec<i64>,
    /// 1 where the row holds a node.
    pub occupied: Vec<u8>,
    /// 1 where `spec.unschedulable` is set.
    pub unschedulable: Vec<u8>,
    /// The node's taints.
    pub taints: Vec<TaintSetId>,
}

/// The columns of one scalar resource.
#[derive(Clone, Debug)]
pub struct ScalarResourceColumn {
    /// The resource name.
    pub name: Str,
    /// Allocatable amount by row.
    pub allocatable: Vec<i64>,
    /// Requested amount by row.
    pub requested: Vec<i64>,
    /// 1 where the node lists the resource in `status.allocatable`.
    pub offered: Vec<u8>,
}

/// The data of a node that is not stored in columns: one cache line, which a placement reads and changes, and which most often comes from
/// memory.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    pub node: Arc<Node>,
    pub pods: Vec<Arc<PodInfo>>,
    pub host_ports: Vec<HostPort>,
    /// Number of pods with any affinity or anti-affinity term.
    pub n_affinity: u32,
    /// Number of pods with required anti-affinity terms.
    pub n_required_anti_affinity: u32,
}

const _: () = assert!(size_of::<Option<Entry>>() == 64);

/// A pod that was removed from a node, and where it was.
#[derive(Clone, Debug)]
pub(crate) struct RemovedPod {
    pub pod: Arc<PodInfo>,
    /// Its index among the node's pods; the last one took its place.
    at: usize,
    /// The same for each of its host ports, in the order of their removal.
    ports: SmallVec<[usize; 1]>,
}

/// All nodes. Changed only through [`crate::world::World`].
#[derive(Clone, Debug, Default)]
pub struct NodeTable {
    pub(crate) entries: Vec<Option<Entry>>,
    /// The labels of the node in a row, side by side for Filters that read them for every node.
    node_labels: Vec<Labels>,
    /// Their names are in the entries.
    by_name: HashTable<NodeRow>,
    hasher: SeededHashBuilder,
    free: Vec<NodeRow>,
    n_nodes: usize,
    /// Number of pods with required anti-affinity terms.
    n_required_anti_affinity: usize,
    amounts: AllAmounts,
    columns: NodeColumns,
    scalars: Vec<ScalarResourceColumn>,
    labels: LabelColumns,
    taint_sets: Vec<Arc<[Taint]>>,
    taint_ids: Map<Arc<[Taint]>, TaintSetId>,
    /// Images by every name that a node reports.
    images: Map<Str, ImageState>,
    node_tree: NodeTree,
    /// Number of changes of nodes.
    n_written: u64,
}

/// Identifies a state of all nodes without their pods, and of the columns that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesVersion {
    n_written: u64,
    n_scalars: usize,
    n_labels: usize,
}

/// The nodes that report an image.
#[derive(Clone, Debug, Default)]
pub struct ImageState {
    /// As the first of these nodes reported it, even if others report a different size (upstream's `ImageStateSummary`).
    pub size_bytes: i64,
    /// The nodes, ascending.
    pub rows: Vec<NodeRow>,
    /// How many of them report each size.
    pub sizes: BTreeMap<i64, u32>,
}

/// The name of the node in a row.
fn name_in(entries: &[Option<Entry>], row: NodeRow) -> Option<&str> {
    entries[row.index()].as_ref().map(|entry| entry.node.name())
}

impl Entry {
    #[inline(never)]
    fn add_host_ports(&mut self, pod: &PodInfo) {
        self.host_ports.extend(pod.template.host_ports.iter().cloned());
    }

    /// Removes the host ports of a pod; returns where they were.
    #[inline(never)]
    fn remove_host_ports(&mut self, pod: &PodInfo) -> SmallVec<[usize; 1]> {
        let mut removed = SmallVec::new();
        for port in &pod.template.host_ports {
            if let Some(at) = self.host_ports.iter().position(|used| used == port) {
                self.host_ports.swap_remove(at);
                removed.push(at);
            }
        }
        removed
    }

    fn count_affinity(&mut self, pod: &PodInfo) {
        self.n_affinity += u32::from(pod.template.has_pod_affinity());
        self.n_required_anti_affinity += u32::from(pod.template.has_required_anti_affinity());
    }

    fn uncount_affinity(&mut self, pod: &PodInfo) {
        self.n_affinity -= u32::from(pod.template.has_pod_affinity());
        self.n_required_anti_affinity -= u32::from(pod.template.has_required_anti_affinity());
    }
}

impl NodeTable {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.n_nodes
    }

    /// Whether any pod on a node has required anti-affinity terms.
    pub fn have_required_anti_affinity(&self) -> bool {
        self.n_required_anti_affinity > 0
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.n_nodes == 0
    }

    /// Number of rows, free ones included: the length of every column.
    pub fn n_rows(&self) -> usize {
        self.entries.len()
    }

    /// Rows that hold a node, ascending.
    pub fn rows(&self) -> impl Iterator<Item = NodeRow> + Clone {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
        live.map(|(at, _)| NodeRow(at as u32))
    }

    /// The row of a node.
    pub fn row(&self, name: &str) -> Option<NodeRow> {
        let is_it = |row: &NodeRow| name_in(&self.entries, *row) == Some(name);
        self.by_name.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// The nodes by zone: the order in which nodes are searched when only some feasible nodes are needed.
    pub fn node_tree(&self) -> &NodeTree {
        &self.node_tree
    }

    /// The node in a row; `None` for a free row.
    pub fn node(&self, row: NodeRow) -> Option<&Arc<Node>> {
        self.entry(row).map(|entry| &entry.node)
    }

    /// The labels of the node in a row; none for a free row.
    #[inline]
    pub fn node_labels(&self, row: NodeRow) -> &Labels {
        &self.node_labels[row.index()]
    }

    /// The pods on a node.
    pub fn pods(&self, row: NodeRow) -> &[Arc<PodInfo>] {
        self.entry(row).map_or(&[], |entry| &entry.pods)
    }

    /// The host ports in use on a node, one entry per pod and port.
    pub fn host_ports(&self, row: NodeRow) -> &[HostPort] {
        self.entry(row).map_or(&[], |entry| &entry.host_ports)
    }

    /// Reads what a placement on this node or a deletion changes first, and what the next decision reads first of a row that changed. Most often it
    /// is in no cache of the processor: read before it is needed, it comes from memory while the decision ends, or the deleted pod is read.
    #[inline]
    pub fn preload(&self, row: NodeRow) {
        let n_pods = self.amounts.rows()[row.index()][NodeAmount::Pods];
        black_box((n_pods, self.pods(row).len(), self.columns.occupied[row.index()]));
    }

    /// Updates the columns of amounts ([`AllAmounts::update_columns`]).
    pub(crate) fn update_columns(&mut self) {
        self.amounts.update_columns();
    }

    /// CPU, memory and numbers of pods.
    #[inline]
    pub fn amounts(&self) -> &AllAmounts {
        &self.amounts
    }

    /// The columns.
    pub fn columns(&self) -> &NodeColumns {
        &self.columns
    }

    /// The columns of a scalar resource; `None` when no node and no assigned pod ever listed it.
    pub fn scalar(&self, name: &str) -> Option<&ScalarResourceColumn> {
        self.scalars.iter().find(|column| column.name.as_str() == name)
    }

    /// The columns of all scalar resources.
    pub fn scalars(&self) -> &[ScalarResourceColumn] {
        &self.scalars
    }

    /// The label columns.
    pub fn labels(&self) -> &LabelColumns {
        &self.labels
    }

    /// The taints with this id.
    pub fn taints(&self, set: TaintSetId) -> &[Taint] {
        &self.taint_sets[set.0 as usize]
    }

    /// Number of different lists of taints so far: all ids are below this.
    pub fn n_taint_sets(&self) -> usize {
        self.taint_sets.len()
    }

    /// Number of nodes that report an image with this name.
    pub fn n_nodes_with_image(&self, name: &str) -> u32 {
        self.images.get(name).map_or(0, |image| image.rows.len() as u32)
    }

    /// The nodes that report an image with this name; `None` when there are none.
    pub fn image(&self, name: &str) -> Option<&ImageState> {
        self.images.get(name)
    }

    /// While it is the same, nothing has changed but the pods on nodes and what is summed over them.
    pub fn version(&self) -> NodesVersion {
        NodesVersion {
            n_written: self.n_written,
            n_scalars: self.scalars.len(),
            n_labels: self.labels.iter().len(),
        }
    }

    #[inline]
    pub(crate) fn entry(&self, row: NodeRow) -> Option<&Entry> {
        self.entries.get(row.index())?.as_ref()
    }

    pub(crate) fn ensure_label_column(&mut self, key: &Str) -> LabelKeyId {
        self.labels.ensure(key, &self.node_labels)
    }

    /// Adds a node whose name is new.
    pub(crate) fn insert(&mut self, node: Arc<Node>) -> NodeRow {
        let row = self.free.pop().unwrap_or_else(|| self.push_row());
        self.n_nodes += 1;
        self.columns.occupied[row.index()] = 1;
        self.entries[row.index()] = Some(Entry {
            node: node.clone(),
            pods: Vec::new(),
            host_ports: Vec::new(),
            n_affinity: 0,
            n_required_anti_affinity: 0,
        });
        let NodeTable { by_name, hasher, entries, .. } = self;
        let hash_of = |row: &NodeRow| hasher.hash_one(name_in(entries, *row).unwrap_or_default());
        by_name.insert_unique(hasher.hash_one(node.name()), row, hash_of);
        self.add_images(row, &node);
        self.node_tree.insert(row, &node);
        self.write_node(row, &node);
        row
    }

    /// Replaces the node in a row; its pods stay.
    pub(crate) fn replace(&mut self, row: NodeRow, node: Arc<Node>) {
        let Some(entry) = self.entries[row.index()].as_mut() else { return };
        let old = std::mem::replace(&mut entry.node, node.clone());
        self.node_tree.replace(row, &old, &node);
        if old.status.images != node.status.images {
            self.remove_images(row, &old);
            self.add_images(row, &node);
        }
        self.write_node(row, &node);
    }

    /// Removes a node that has no pods left.
    pub(crate) fn remove(&mut self, row: NodeRow) {
        let Some(entry) = self.entries[row.index()].take() else { return };
        let hash = self.hasher.hash_one(entry.node.name());
        if let Ok(known) = self.by_name.find_entry(hash, |known| *known == row) {
            known.remove();
        }
        assert!(entry.pods.is_empty(), "a node is removed only after its pods");
        self.remove_images(row, &entry.node);
        self.node_tree.remove(row, &entry.node);
        self.n_nodes -= 1;
        self.write_node(row, &Node::default());
        self.columns.occupied[row.index()] = 0;
        self.labels.set_row(row, None);
        self.free.push(row);
    }

    pub(crate) fn add_pod(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        self.count_pod(row, pod.requests(), 1);
        let Some(entry) = self.entries[row.index()].as_mut() else { return };
        entry.count_affinity(&pod);
        self.n_required_anti_affinity += usize::from(pod.template.has_required_anti_affinity());
        if !pod.template.host_ports.is_empty() {
            entry.add_host_ports(&pod);
        }
        entry.pods.push(pod);
    }

    /// Reverts [`NodeTable::add_pod`], the last change of this row, when so many scalar resources were known before it.
    pub(crate) fn undo_add_pod(&mut self, row: NodeRow, n_scalars: usize) -> Option<Arc<PodInfo>> {
        let entry = self.entries[row.index()].as_mut()?;
        let pod = entry.pods.pop()?;
        entry.uncount_affinity(&pod);
        self.n_required_anti_affinity -= usize::from(pod.template.has_required_anti_affinity());
        entry.host_ports.truncate(entry.host_ports.len() - pod.template.host_ports.len());
        self.count_pod(row, pod.requests(), -1);
        self.scalars.truncate(n_scalars);
        Some(pod)
    }

    /// Removes the pod with this index among the node's pods.
    pub(crate) fn remove_pod(&mut self, row: NodeRow, at: usize) -> Option<RemovedPod> {
        let entry = self.entries[row.index()].as_mut()?;
        let pod = entry.pods.swap_remove(at);
        entry.uncount_affinity(&pod);
        self.n_required_anti_affinity -= usize::from(pod.template.has_required_anti_affinity());
        let mut ports = SmallVec::new();
        if !pod.template.host_ports.is_empty() {
            ports = entry.remove_host_ports(&pod);
        }
        self.count_pod(row, pod.requests(), -1);
        Some(RemovedPod { pod, at, ports })
    }

    /// Reverts [`NodeTable::remove_pod`], the last change of this row.
    pub(crate) fn undo_remove_pod(&mut self, row: NodeRow, removed: RemovedPod) {
        let RemovedPod { pod, at, ports } = removed;
        self.count_pod(row, pod.requests(), 1);
        let Some(entry) = self.entries[row.index()].as_mut() else { return };
        entry.count_affinity(&pod);
        self.n_required_anti_affinity += usize::from(pod.template.has_required_anti_affinity());
        for (port, at) in pod.template.host_ports.iter().zip(ports).rev() {
            undo_swap_remove(&mut entry.host_ports, at, port.clone());
        }
        undo_swap_remove(&mut entry.pods, at, pod);
    }

    /// Replaces the stored object of a pod if `same` confirms that nothing changed that columns or counters sum.
    pub(crate) fn refresh_pod(
        &mut self,
        row: NodeRow,
        pod: &Arc<PodInfo>,
        same: impl Fn(&PodInfo) -> bool,
    ) -> bool {
        let Some(entry) = self.entries[row.index()].as_mut() else { return false };
        let known = entry.pods.iter_mut().find(|known| known.uid == pod.uid);
        let Some(known) = known.filter(|known| same(known)) else { return false };
        known.clone_from(pod);
        true
    }

    fn push_row(&mut self) -> NodeRow {
        let row = NodeRow(self.entries.len() as u32);
        self.entries.push(None);
        self.node_labels.push(Labels::default());
        let none = self.taint_set(&[]);
        self.amounts.push();
        let c = &mut self.columns;
        c.allocatable_storage.push(0);
        c.requested_storage.push(0);
        c.occupied.push(0);
        c.unschedulable.push(0);
        c.taints.push(none);
        for scalar in &mut self.scalars {
            scalar.allocatable.push(0);
            scalar.requested.push(0);
            scalar.offered.push(0);
        }
        row
    }

    fn write_node(&mut self, row: NodeRow, node: &Node) {
        self.n_written += 1;
        let offered = Resources::from_resource_list(&node.status.allocatable);
        let at = row.index();
        let taints = self.taint_set(&node.spec.taints);
        self.amounts.set(at, NodeAmount::AllocatableCpu, offered.cpu_milli);
        self.amounts.set(at, NodeAmount::AllocatableMemory, offered.memory_bytes);
        self.amounts.set(at, NodeAmount::AllocatablePods, offered.pods);
        let c = &mut self.columns;
        c.allocatable_storage[at] = offered.ephemeral_storage_bytes;
        c.unschedulable[at] = u8::from(node.spec.unschedulable);
        c.taints[at] = taints;
        for scalar in &mut self.scalars {
            scalar.allocatable[at] = 0;
            scalar.offered[at] = 0;
        }
        for (name, amount) in &offered.scalars {
            let scalar = self.scalar_mut(name);
            scalar.allocatable[at] = *amount;
            scalar.offered[at] = 1;
        }
        self.labels.set_row(row, Some(&node.metadata.labels));
        self.node_labels[row.index()].clone_from(&node.metadata.labels);
    }

    fn count_pod(&mut self, row: NodeRow, requests: &PodRequests, sign: i64) {
        let at = row.index();
        let wanted = &requests.resources;
        let sums = [
            (NodeAmount::RequestedCpu, wanted.cpu_milli),
            (NodeAmount::RequestedMemory, wanted.memory_bytes),
            (NodeAmount::NonzeroCpu, requests.nonzero_cpu_milli),
            (NodeAmount::NonzeroMemory, requests.nonzero_memory_bytes),
            (NodeAmount::Pods, 1),
        ];
        self.amounts.add(at, sums.map(|(sum, more)| (sum, sign.wrapping_mul(more))));
        // Wraps on overflow, too.
        let add = |sum: &mut i64, more: i64| *sum = sum.wrapping_add(sign.wrapping_mul(more));
        if wanted.ephemeral_storage_bytes != 0 {
            add(&mut self.columns.requested_storage[at], wanted.ephemeral_storage_bytes);
        }
        for (name, more) in &wanted.scalars {
            add(&mut self.scalar_mut(name).requested[at], *more);
        }
    }

    fn add_images(&mut self, row: NodeRow, node: &Node) {
        for image in &node.status.images {
            for name in &image.names {
                let state = self.images.entry(name.clone()).or_insert_with(|| ImageState {
                    size_bytes: image.size_bytes,
                    ..ImageState::default()
                });
                if let Err(at) = state.rows.binary_search(&row) {
                    state.rows.insert(at, row);
                    *state.sizes.entry(image.size_bytes).or_default() += 1;
                }
            }
        }
    }

    fn remove_images(&mut self, row: NodeRow, node: &Node) {
        let names = node
            .status
            .images
            .iter()
            .flat_map(|it| it.names.iter().map(|name| (name, it.size_bytes)));
        for (name, size_bytes) in names {
            let Some(state) = self.images.get_mut(name) else { continue };
            if let Ok(at) = state.rows.binary_search(&row) {
                state.rows.remove(at);
                if let Some(n) = state.sizes.get_mut(&size_bytes) {
                    *n -= 1;
                }
                state.sizes.retain(|_, n| *n > 0);
            }
            if state.rows.is_empty() {
                self.images.remove(name);
            }
        }
    }

    /// Sets the size that counts for an image; returns the previous one.
    pub(crate) fn replace_image_size(&mut self, name: &str, size_bytes: i64) -> Option<i64> {
        let state = self.images.get_mut(name)?;
        Some(std::mem::replace(&mut state.size_bytes, size_bytes))
    }

    fn scalar_mut(&mut self, name: &Str) -> &mut ScalarResourceColumn {
        let rows = self.entries.len();
        if let Some(at) = self.scalars.iter().position(|column| column.name == *name) {
            return &mut self.scalars[at];
        }
        self.scalars.push(ScalarResourceColumn {
            name: name.clone(),
            allocatable: vec![0; rows],
            requested: vec![0; rows],
            offered: vec![0; rows],
        });
        let last = self.scalars.len() - 1;
        &mut self.scalars[last]
    }

    fn taint_set(&mut self, taints: &[Taint]) -> TaintSetId {
        if let Some(id) = self.taint_ids.get(taints) {
            return *id;
        }
        let id = TaintSetId(self.taint_sets.len() as u32);
        let shared: Arc<[Taint]> = taints.into();
        self.taint_sets.push(shared.clone());
        self.taint_ids.insert(shared, id);
        id
    }
}

/// Inserts an element where [`Vec::swap_remove`] removed it.
fn undo_swap_remove<T>(list: &mut Vec<T>, at: usize, element: T) {
    list.push(element);
    let last = list.len() - 1;
    list.swap(at, last);
}
