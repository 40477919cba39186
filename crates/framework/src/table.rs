//! The node table: nodes in rows with stable numbers, their sums in columns.

mod order;

use std::sync::Arc;

use loadmaster_api::{Labels, Node, Str, Taint};
use loadmaster_stdx::Map;

use crate::label::{KeyId, LabelColumns};
use crate::pod::PodInfo;
use crate::requests::PodRequests;
use crate::resources::Resources;
use crate::template::HostPort;

pub use order::NodeOrder;

/// A node's number: stable while the node exists, reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row(pub u32);

impl Row {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of distinct taints, in their order on the node; nodes with equal taints share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaintSetId(pub u32);

/// What a node offers and what its pods ask for, column by column. Units: milli-CPU, bytes, pods.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Milli-CPU the node offers.
    pub allocatable_cpu: Vec<i64>,
    /// Bytes of memory the node offers.
    pub allocatable_memory: Vec<i64>,
    /// Bytes of local scratch space the node offers.
    pub allocatable_storage: Vec<i64>,
    /// How many pods the node takes.
    pub allocatable_pods: Vec<i64>,
    /// Milli-CPU its pods ask for.
    pub requested_cpu: Vec<i64>,
    /// Bytes of memory its pods ask for.
    pub requested_memory: Vec<i64>,
    /// Bytes of local scratch space its pods ask for.
    pub requested_storage: Vec<i64>,
    /// With defaults for containers that ask for none: what scores count.
    pub nonzero_cpu: Vec<i64>,
    /// Likewise for memory.
    pub nonzero_memory: Vec<i64>,
    /// Number of its pods.
    pub pods: Vec<i64>,
    /// 1 where the row holds a node.
    pub live: Vec<u8>,
    /// 1 where `spec.unschedulable` is set.
    pub unschedulable: Vec<u8>,
    /// What [`NodeTable`] knows the taints of the node by.
    pub taints: Vec<TaintSetId>,
}

/// One scalar resource over all rows.
#[derive(Clone, Debug)]
pub struct ScalarColumn {
    /// The resource.
    pub name: Str,
    /// What each node offers.
    pub allocatable: Vec<i64>,
    /// What the pods of each node ask for.
    pub requested: Vec<i64>,
    /// Rows that mention the resource in their allocatable.
    pub offered: Vec<u8>,
}

/// What does not fit in columns.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub node: Arc<Node>,
    /// Those of `node`, where a Filter that reads them of one node after the other need not go through it.
    pub labels: Labels,
    pub pods: Vec<Arc<PodInfo>>,
    pub host_ports: Vec<HostPort>,
    /// Pods with any affinity term, and those with required anti-affinity.
    pub n_affinity: u32,
    pub n_required_anti_affinity: u32,
}

/// All nodes. Changed only through [`crate::world::World`].
#[derive(Clone, Debug, Default)]
pub struct NodeTable {
    pub(crate) entries: Vec<Option<Entry>>,
    by_name: Map<Box<str>, Row>,
    free: Vec<Row>,
    n_nodes: usize,
    columns: Columns,
    scalars: Vec<ScalarColumn>,
    labels: LabelColumns,
    taint_sets: Vec<Arc<[Taint]>>,
    taint_ids: Map<Arc<[Taint]>, TaintSetId>,
    /// Images by every name that a node reports.
    images: Map<Str, ImageState>,
    order: NodeOrder,
}

/// Which nodes hold an image.
#[derive(Clone, Debug, Default)]
pub struct ImageState {
    /// As the first of these nodes reported it, also while others report another size (upstream's `ImageStateSummary`).
    pub size_bytes: i64,
    /// Ascending.
    pub rows: Vec<Row>,
}

impl NodeTable {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.n_nodes
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
    pub fn rows(&self) -> impl Iterator<Item = Row> + Clone {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
        live.map(|(at, _)| Row(at as u32))
    }

    /// The row of a node.
    pub fn row(&self, name: &str) -> Option<Row> {
        self.by_name.get(name).copied()
    }

    /// The order in which a search that ends early visits them.
    pub fn order(&self) -> &NodeOrder {
        &self.order
    }

    /// The node in a row; `None` for a free row.
    pub fn node(&self, row: Row) -> Option<&Arc<Node>> {
        self.entry(row).map(|entry| &entry.node)
    }

    /// The pods on a node.
    pub fn pods(&self, row: Row) -> &[Arc<PodInfo>] {
        self.entry(row).map_or(&[], |entry| &entry.pods)
    }

    /// The host ports in use on a node, once a pod.
    pub fn host_ports(&self, row: Row) -> &[HostPort] {
        self.entry(row).map_or(&[], |entry| &entry.host_ports)
    }

    /// The sums.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The column of a scalar resource; `None` when neither a node nor a pod on a node ever mentioned it.
    pub fn scalar(&self, name: &str) -> Option<&ScalarColumn> {
        self.scalars.iter().find(|column| column.name.as_str() == name)
    }

    /// All scalar columns.
    pub fn scalars(&self) -> &[ScalarColumn] {
        &self.scalars
    }

    /// The label columns.
    pub fn labels(&self) -> &LabelColumns {
        &self.labels
    }

    /// The taints behind an id.
    pub fn taints(&self, set: TaintSetId) -> &[Taint] {
        &self.taint_sets[set.0 as usize]
    }

    /// How many different sets of taints were ever seen: ids are below this.
    pub fn n_taint_sets(&self) -> usize {
        self.taint_sets.len()
    }

    /// How many nodes report an image under this name.
    pub fn n_nodes_with_image(&self, name: &str) -> u32 {
        self.images.get(name).map_or(0, |image| image.rows.len() as u32)
    }

    /// The nodes that report an image under this name; `None` when there is none.
    pub fn image(&self, name: &str) -> Option<&ImageState> {
        self.images.get(name)
    }

    pub(crate) fn entry(&self, row: Row) -> Option<&Entry> {
        self.entries.get(row.index())?.as_ref()
    }

    pub(crate) fn ensure_key(&mut self, key: &Str) -> KeyId {
        let rows = self.entries.len();
        let entries = self.entries.iter().enumerate();
        let labels =
            entries.filter_map(|(at, entry)| Some((Row(at as u32), &entry.as_ref()?.labels)));
        self.labels.ensure(key, rows, labels)
    }

    /// Adds a node whose name is new.
    pub(crate) fn insert(&mut self, node: Arc<Node>) -> Row {
        let row = self.free.pop().unwrap_or_else(|| self.push_row());
        self.by_name.insert(node.name().into(), row);
        self.n_nodes += 1;
        self.columns.live[row.index()] = 1;
        self.entries[row.index()] = Some(Entry {
            node: node.clone(),
            labels: node.metadata.labels.clone(),
            pods: Vec::new(),
            host_ports: Vec::new(),
            n_affinity: 0,
            n_required_anti_affinity: 0,
        });
        self.add_images(row, &node);
        self.order.insert(row, &node);
        self.write_node(row, &node);
        row
    }

    /// Replaces the node in a row; its pods stay.
    pub(crate) fn replace(&mut self, row: Row, node: Arc<Node>) {
        let Some(entry) = self.entries[row.index()].as_mut() else { return };
        let old = std::mem::replace(&mut entry.node, node.clone());
        entry.labels = node.metadata.labels.clone();
        self.order.replace(row, &old, &node);
        if old.status.images != node.status.images {
            self.remove_images(row, &old);
            self.add_images(row, &node);
        }
        self.write_node(row, &node);
    }

    /// Removes a node that has no pods left.
    pub(crate) fn remove(&mut self, row: Row) {
        let Some(entry) = self.entries[row.index()].take() else { return };
        assert!(entry.pods.is_empty(), "a node leaves the table only after its pods");
        self.remove_images(row, &entry.node);
        self.order.remove(row, &entry.node);
        self.by_name.remove(entry.node.name());
        self.n_nodes -= 1;
        self.write_node(row, &Node::default());
        self.columns.live[row.index()] = 0;
        self.labels.set_row(row, None);
        self.free.push(row);
    }

    pub(crate) fn add_pod(&mut self, row: Row, pod: Arc<PodInfo>) {
        self.count_pod(row, pod.requests(), 1);
        let Some(entry) = self.entries[row.index()].as_mut() else { return };
        entry.n_affinity += u32::from(pod.template.has_pod_affinity());
        entry.n_required_anti_affinity += u32::from(pod.template.has_required_anti_affinity());
        entry.host_ports.extend(pod.template.host_ports.iter().cloned());
        entry.pods.push(pod);
    }

    pub(crate) fn remove_pod(&mut self, row: Row, uid: &str) -> Option<Arc<PodInfo>> {
        let entry = self.entries[row.index()].as_mut()?;
        // Pods leave mostly in the order in which they came or soon after they came; lists are short.
        let at = entry.pods.iter().rposition(|pod| &*pod.uid == uid)?;
        let pod = entry.pods.swap_remove(at);
        entry.n_affinity -= u32::from(pod.template.has_pod_affinity());
        entry.n_required_anti_affinity -= u32::from(pod.template.has_required_anti_affinity());
        for port in &pod.template.host_ports {
            if let Some(at) = entry.host_ports.iter().position(|used| used == port) {
                entry.host_ports.swap_remove(at);
            }
        }
        self.count_pod(row, pod.requests(), -1);
        Some(pod)
    }

    /// Puts a pod in the place of itself, if `same` says that nothing changed that is summed up.
    pub(crate) fn renew_pod(
        &mut self,
        row: Row,
        pod: &Arc<PodInfo>,
        same: impl Fn(&PodInfo) -> bool,
    ) -> bool {
        let Some(entry) = self.entries[row.index()].as_mut() else { return false };
        let known = entry.pods.iter_mut().find(|known| known.uid == pod.uid);
        let Some(known) = known.filter(|known| same(known)) else { return false };
        known.clone_from(pod);
        true
    }

    fn push_row(&mut self) -> Row {
        let row = Row(self.entries.len() as u32);
        self.entries.push(None);
        let none = self.taint_set(&[]);
        let c = &mut self.columns;
        for column in [
            &mut c.allocatable_cpu,
            &mut c.allocatable_memory,
            &mut c.allocatable_storage,
            &mut c.allocatable_pods,
            &mut c.requested_cpu,
            &mut c.requested_memory,
            &mut c.requested_storage,
            &mut c.nonzero_cpu,
            &mut c.nonzero_memory,
            &mut c.pods,
        ] {
            column.push(0);
        }
        c.live.push(0);
        c.unschedulable.push(0);
        c.taints.push(none);
        for scalar in &mut self.scalars {
            scalar.allocatable.push(0);
            scalar.requested.push(0);
            scalar.offered.push(0);
        }
        row
    }

    fn write_node(&mut self, row: Row, node: &Node) {
        let offered = Resources::from_list(&node.status.allocatable);
        let at = row.index();
        let taints = self.taint_set(&node.spec.taints);
        let c = &mut self.columns;
        c.allocatable_cpu[at] = offered.cpu_milli;
        c.allocatable_memory[at] = offered.memory_bytes;
        c.allocatable_storage[at] = offered.ephemeral_storage_bytes;
        c.allocatable_pods[at] = offered.pods;
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
    }

    fn count_pod(&mut self, row: Row, requests: &PodRequests, sign: i64) {
        let at = row.index();
        let wanted = &requests.resources;
        let c = &mut self.columns;
        // Wrapping, as upstream: what was added can be taken away again, whatever the amounts.
        let add = |column: &mut Vec<i64>, amount: i64| {
            column[at] = column[at].wrapping_add(sign.wrapping_mul(amount));
        };
        add(&mut c.requested_cpu, wanted.cpu_milli);
        add(&mut c.requested_memory, wanted.memory_bytes);
        add(&mut c.requested_storage, wanted.ephemeral_storage_bytes);
        add(&mut c.nonzero_cpu, requests.nonzero_cpu_milli);
        add(&mut c.nonzero_memory, requests.nonzero_memory_bytes);
        add(&mut c.pods, 1);
        for (name, amount) in &wanted.scalars {
            let requested = &mut self.scalar_mut(name).requested[at];
            *requested = requested.wrapping_add(sign.wrapping_mul(*amount));
        }
    }

    fn add_images(&mut self, row: Row, node: &Node) {
        for image in &node.status.images {
            for name in &image.names {
                let state = self.images.entry(name.clone()).or_insert_with(|| ImageState {
                    size_bytes: image.size_bytes,
                    rows: Vec::new(),
                });
                if let Err(at) = state.rows.binary_search(&row) {
                    state.rows.insert(at, row);
                }
            }
        }
    }

    fn remove_images(&mut self, row: Row, node: &Node) {
        for name in node.status.images.iter().flat_map(|image| &image.names) {
            let Some(state) = self.images.get_mut(name) else { continue };
            if let Ok(at) = state.rows.binary_search(&row) {
                state.rows.remove(at);
            }
            if state.rows.is_empty() {
                self.images.remove(name);
            }
        }
    }

    fn scalar_mut(&mut self, name: &Str) -> &mut ScalarColumn {
        let rows = self.entries.len();
        if let Some(at) = self.scalars.iter().position(|column| column.name == *name) {
            return &mut self.scalars[at];
        }
        self.scalars.push(ScalarColumn {
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
