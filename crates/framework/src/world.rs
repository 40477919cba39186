//! The scheduler's view of the cluster (upstream's cache and snapshot in one): nodes, assigned pods, nominated pods, the objects
//! that plugins read, and the sums over them.
//!
//! All changes go through the methods here, so that columns, counters and the change log stay consistent.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Pod, Str};
use loadmaster_stdx::Map;

use crate::api_calls::ObjectRef;
use crate::cluster_objects::ClusterObjects;
use crate::feature_gates::FeatureGates;
use crate::label_columns::LabelKeyId;
use crate::node_info::NodeInfo;
use crate::node_table::{NodeRow, NodeTable};
use crate::pod_info::PodInfo;
use crate::preemption::OngoingPreemptions;
use crate::template::{PodTemplate, TemplateError, TemplateId, TemplateKey};
use crate::topology_counter::{
    CounterDeltas, TopologyCounter, TopologyCounterId, TopologyCounterSpec, TopologyCounters,
};
use crate::waiting_pods::WaitingPods;
use crate::watched_objects::{ObjectStore, ObjectUpdate, ObjectWatch};

/// One entry of the world's change log, from which cached evaluations are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorldChange {
    /// Pods were added to or removed from a row.
    Pods(NodeRow),
    /// The node in a row was added, updated or deleted.
    Node(NodeRow),
    /// The number of nodes, or their images, changed.
    NodeSet,
    /// Something changed that any evaluation may depend on: namespaces, services, whether a label's values are unique.
    Everything,
}

/// Length of the change log; an evaluation that is further behind is computed again.
const LOG_LEN_MAX: usize = 1 << 16;

/// The scheduler's view of the cluster: nodes, pods, other objects, and sums over them.
#[derive(Default)]
pub struct World {
    nodes: NodeTable,
    cluster: ClusterObjects,
    counters: TopologyCounters,
    templates: Templates,
    /// Row by uid of every assigned pod.
    assigned: Map<Box<str>, NodeRow>,
    /// By node name; sorted, because [`World::nominated_nodes`] exposes the order.
    nominated: BTreeMap<Str, Vec<Arc<PodInfo>>>,
    nominations_version: u64,
    ongoing_preemptions: OngoingPreemptions,
    objects: ObjectStore,
    waiting: WaitingPods,
    log: Vec<WorldChange>,
    /// Number of the first entry of `log`.
    log_start: u64,
    gates: FeatureGates,
}

/// All templates that a pod has or recently had.
#[derive(Default)]
struct Templates {
    ids: Map<Arc<PodTemplate>, TemplateId>,
    placed: Vec<Option<PlacedTemplate>>,
    free: Vec<TemplateId>,
    /// Number of templates at which unused ones are dropped.
    sweep_at: usize,
}

/// The rows of a template's pods, and what each of these pods adds to the counters.
struct PlacedTemplate {
    template: Arc<PodTemplate>,
    /// Per row: pods, and terminating pods.
    rows: Map<NodeRow, [u32; 2]>,
    /// For a running pod, and for a terminating pod.
    effects: [CounterDeltas; 2],
}

impl World {
    /// An empty world; the gates determine how pods are parsed.
    pub fn new(gates: FeatureGates) -> Self {
        World { gates, ..World::default() }
    }

    /// The nodes.
    pub fn nodes(&self) -> &NodeTable {
        &self.nodes
    }

    /// A node with its pods; `None` for a free row.
    pub fn node(&self, row: NodeRow) -> Option<NodeInfo<'_>> {
        NodeInfo::new(&self.nodes, row)
    }

    /// All nodes, by row.
    pub fn node_infos(&self) -> impl Iterator<Item = NodeInfo<'_>> + Clone {
        self.nodes.rows().filter_map(|row| self.node(row))
    }

    /// Namespaces, controllers, PodDisruptionBudgets and priority classes.
    pub fn cluster_objects(&self) -> &ClusterObjects {
        &self.cluster
    }

    /// The feature gates with which pods are parsed.
    pub fn gates(&self) -> &FeatureGates {
        &self.gates
    }

    /// All topology counters.
    pub fn topology_counters(&self) -> &TopologyCounters {
        &self.counters
    }

    /// A counter that was acquired and not released.
    pub fn topology_counter(&self, id: TopologyCounterId) -> &TopologyCounter {
        self.counters.get(id)
    }

    /// Number of assigned pods.
    pub fn n_assigned_pods(&self) -> usize {
        self.assigned.len()
    }

    /// The row of an assigned pod.
    pub fn row_of_pod(&self, uid: &str) -> Option<NodeRow> {
        self.assigned.get(uid).copied()
    }

    /// An assigned pod.
    pub fn assigned_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.nodes.pods(self.row_of_pod(uid)?).iter().find(|pod| &*pod.uid == uid)
    }

    /// Pods that are nominated to a node (upstream's `NominatedPodsForNode`).
    pub fn nominated_pods_for_node(&self, node: &str) -> &[Arc<PodInfo>] {
        self.nominated.get(node).map_or(&[], Vec::as_slice)
    }

    /// Names of the nodes that pods are nominated to, sorted.
    pub fn nominated_nodes(&self) -> impl Iterator<Item = &Str> {
        self.nominated.keys()
    }

    /// Parses a pod; equal pods share one template.
    ///
    /// # Errors
    ///
    /// When a selector in the pod is invalid.
    pub fn parse_pod(&mut self, pod: &Pod) -> Result<PodInfo, TemplateError> {
        // Looked up before anything is parsed or copied: most pods of a cluster share their template with others.
        let template = match self.templates.ids.get_key_value(&TemplateKey::of(pod)) {
            Some((known, _)) => known.clone(),
            None => {
                let fresh = PodTemplate::new(pod, &self.gates)?;
                self.add_template(fresh)
            }
        };
        Ok(PodInfo::new(pod, template, &self.gates))
    }

    /// Adds a node, or replaces the one with this name.
    pub fn upsert_node(&mut self, node: Arc<Node>) -> NodeRow {
        match self.nodes.row(node.name()) {
            Some(row) => {
                self.replace_node(row, node);
                row
            }
            None => {
                let unique = self.unique_keys();
                let row = self.nodes.insert(node.clone());
                self.counters.count_node(&self.nodes, row, &node, 1);
                self.log_change(WorldChange::Node(row));
                self.log_change(WorldChange::NodeSet);
                self.log_label_meaning(&unique);
                row
            }
        }
    }

    /// Removes a node and the pods on it; returns the pods.
    pub fn remove_node(&mut self, name: &str) -> Vec<Arc<PodInfo>> {
        let Some(row) = self.nodes.row(name) else { return Vec::new() };
        let pods: Vec<Arc<PodInfo>> = self.nodes.pods(row).to_vec();
        for pod in &pods {
            self.remove_pod(&pod.uid);
        }
        let unique = self.unique_keys();
        if let Some(node) = self.nodes.node(row).cloned() {
            self.counters.count_node(&self.nodes, row, &node, -1);
        }
        self.nodes.remove(row);
        self.log_change(WorldChange::Node(row));
        self.log_change(WorldChange::NodeSet);
        self.log_label_meaning(&unique);
        pods
    }

    /// Adds a pod to a node. A pod that is already on a node is moved.
    pub fn add_pod(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        self.remove_pod(&pod.uid);
        self.assigned.insert(pod.uid.clone(), row);
        self.count_pod(row, &pod, 1);
        self.nodes.add_pod(row, pod);
        self.log_change(WorldChange::Pods(row));
    }

    /// Removes a pod from its node; returns it.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let row = self.assigned.remove(uid)?;
        let pod = self.nodes.remove_pod(row, uid)?;
        self.count_pod(row, &pod, -1);
        self.log_change(WorldChange::Pods(row));
        Some(pod)
    }

    /// Replaces the stored object of a pod if nothing changed that sums or evaluations depend on: node, template and requests are
    /// equal. Otherwise, or if the pod is not assigned, changes nothing and returns `false`.
    pub fn refresh_pod(&mut self, pod: &Arc<PodInfo>) -> bool {
        let Some(row) = self.row_of_pod(&pod.uid) else { return false };
        let same = |known: &PodInfo| {
            Arc::ptr_eq(&known.template, &pod.template)
                && known.node_name == pod.node_name
                && known.terminating == pod.terminating
                && known.resized == pod.resized
                && known.extra == pod.extra
        };
        self.nodes.refresh_pod(row, pod, same)
    }

    /// Nominates a pending pod to a node (upstream's `AddNominatedPod`).
    pub fn add_nominated_pod(&mut self, node: Str, pod: Arc<PodInfo>) {
        self.delete_nominated_pod(&pod.uid);
        self.nominations_version += 1;
        self.nominated.entry(node).or_default().push(pod);
    }

    /// The node that a pod is nominated to.
    pub fn nominated_node(&self, uid: &str) -> Option<&Str> {
        let holds = |pods: &Vec<Arc<PodInfo>>| pods.iter().any(|pod| &*pod.uid == uid);
        self.nominated.iter().find(|(_, pods)| holds(pods)).map(|(node, _)| node)
    }

    /// Increases with every change of a nomination; results that depend on nominations are valid while it is unchanged.
    pub fn nominations_version(&self) -> u64 {
        self.nominations_version
    }

    /// Deletes a pod's nomination, if it has one (upstream's `DeleteNominatedPodIfExists`).
    pub fn delete_nominated_pod(&mut self, uid: &str) {
        if self.nominated_node(uid).is_none() {
            return;
        }
        self.nominations_version += 1;
        for pods in self.nominated.values_mut() {
            pods.retain(|pod| &*pod.uid != uid);
        }
        self.nominated.retain(|_, pods| !pods.is_empty());
    }

    /// Adds or replaces a namespace. Affinity terms may select it by its labels, so new labels invalidate every counter.
    pub fn upsert_namespace(&mut self, namespace: Arc<Namespace>) {
        let name = Str::new(&namespace.metadata.name);
        let changed = self.cluster.namespace_labels(&name) != &namespace.metadata.labels;
        self.cluster.namespaces.insert(name, namespace);
        if changed {
            self.drop_counters();
        }
    }

    /// Changes other objects that plugins read; invalidates every counter and every cached evaluation.
    pub fn update_cluster_objects(&mut self, change: impl FnOnce(&mut ClusterObjects)) {
        change(&mut self.cluster);
        self.drop_counters();
    }

    /// Changes objects that no Filter or Score plugin reads: PodDisruptionBudgets, priority classes. Cached evaluations stay
    /// valid.
    pub fn update_without_invalidation(&mut self, change: impl FnOnce(&mut ClusterObjects)) {
        change(&mut self.cluster);
    }

    /// Preemptions whose victims are being evicted.
    pub fn ongoing_preemptions(&self) -> &OngoingPreemptions {
        &self.ongoing_preemptions
    }

    /// Mutable access, for the engine, which evicts the victims.
    pub fn ongoing_preemptions_mut(&mut self) -> &mut OngoingPreemptions {
        &mut self.ongoing_preemptions
    }

    /// The objects of the kinds that plugins watch.
    pub fn watched_objects(&self) -> &ObjectStore {
        &self.objects
    }

    /// Starts storing the objects of one more kind.
    pub fn watch_objects(&mut self, watch: &ObjectWatch) {
        self.objects.watch(watch);
    }

    /// Sets whether the initial list of a kind is complete. Returns whether that changed.
    pub fn set_synced(&mut self, group: &str, resource: &str, has_synced: bool) -> bool {
        let is_changed = self.objects.set_synced(group, resource, has_synced);
        if is_changed {
            self.log_change(WorldChange::Everything);
        }
        is_changed
    }

    /// Handles a watch event of a kind that plugins watch: the object as it is now, or `None` when it was deleted.
    pub fn update_watched_object(
        &mut self,
        object: &ObjectRef,
        value: Option<&serde_json::Value>,
    ) -> ObjectUpdate {
        let changed = self.objects.update(object, value);
        if changed.is_kept && changed.change.is_some() {
            self.log_change(WorldChange::Everything);
        }
        changed
    }

    /// The pods that wait at Permit.
    pub fn waiting_pods(&self) -> &WaitingPods {
        &self.waiting
    }

    /// Mutable access, for the engine, which runs the binding cycles.
    pub fn waiting_pods_mut(&mut self) -> &mut WaitingPods {
        &mut self.waiting
    }

    /// The id of a label key's column; the column is created if it does not exist.
    pub fn ensure_label_column(&mut self, key: &Str) -> LabelKeyId {
        self.nodes.ensure_label_column(key)
    }

    /// The counter for this spec, created and filled if it does not exist. Release it with [`World::release_topology_counter`].
    pub fn acquire_topology_counter<C: TopologyCounterSpec + Hash + Eq>(
        &mut self,
        spec: C,
    ) -> TopologyCounterId {
        if let Some(id) = self.counters.reuse(&spec) {
            return id;
        }
        let keys: Vec<LabelKeyId> =
            spec.topology_keys().iter().map(|key| self.nodes.ensure_label_column(key)).collect();
        let id = self.counters.create(spec, &self.nodes);
        for key in keys {
            self.counters.ensure_domains(id, key, &self.nodes);
        }
        self.fill_counter(id);
        let dropped = self.counters.drop_idle();
        if !dropped.is_empty() {
            for placed in self.templates.placed.iter_mut().flatten() {
                placed.effects.iter_mut().for_each(|effects| effects.forget(&dropped));
            }
        }
        id
    }

    /// Releases a counter; it stays for a while in case it is acquired again.
    pub fn release_topology_counter(&mut self, id: TopologyCounterId) {
        self.counters.release(id);
    }

    /// Sequence number of the next change, for [`World::changes_since`].
    pub fn next_change_seq(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// The changes since a sequence number; `None` when the log does not reach back that far.
    pub fn changes_since(&self, then: u64) -> Option<&[WorldChange]> {
        let from = then.checked_sub(self.log_start)?;
        self.log.get(usize::try_from(from).ok()?..)
    }

    fn log_change(&mut self, change: WorldChange) {
        if self.log.len() >= LOG_LEN_MAX {
            let half = self.log.len() / 2;
            self.log.drain(..half);
            self.log_start += half as u64;
        }
        self.log.push(change);
    }

    fn replace_node(&mut self, row: NodeRow, node: Arc<Node>) {
        let Some(old) = self.nodes.node(row).cloned() else { return };
        if *old == *node {
            return;
        }
        let moved = old.metadata.labels != node.metadata.labels || old.spec != node.spec;
        let unique = self.unique_keys();
        if moved {
            self.count_pods_of(row, -1);
            self.counters.count_node(&self.nodes, row, &old, -1);
        }
        self.nodes.replace(row, node.clone());
        if moved {
            self.counters.count_node(&self.nodes, row, &node, 1);
            self.count_pods_of(row, 1);
        }
        self.log_change(WorldChange::Node(row));
        if old.status.images != node.status.images {
            self.log_change(WorldChange::NodeSet);
        }
        self.log_label_meaning(&unique);
    }

    fn unique_keys(&self) -> Vec<bool> {
        self.nodes.labels().iter().map(|(_, column)| column.is_unique()).collect()
    }

    fn log_label_meaning(&mut self, before: &[bool]) {
        if self.unique_keys() != before {
            self.log_change(WorldChange::Everything);
        }
    }

    fn count_pods_of(&mut self, row: NodeRow, sign: i64) {
        for pod in self.nodes.pods(row) {
            if let Some(placed) = self.templates.placed[pod.template.id.0 as usize].as_ref() {
                let effects = &placed.effects[usize::from(pod.terminating)];
                self.counters.apply(effects, self.nodes.labels(), row, sign);
            }
        }
    }

    fn count_pod(&mut self, row: NodeRow, pod: &PodInfo, sign: i64) {
        let placed = self.templates.placed.get_mut(pod.template.id.0 as usize);
        let Some(placed) = placed.and_then(Option::as_mut) else { return };
        let kind = usize::from(pod.terminating);
        let here = placed.rows.entry(row).or_default();
        here[kind] = here[kind].saturating_add_signed(sign as i32);
        if *here == [0, 0] {
            placed.rows.remove(&row);
        }
        let effects = &placed.effects[kind];
        if !effects.is_empty() {
            self.counters.apply(effects, self.nodes.labels(), row, sign);
        }
    }

    fn add_template(&mut self, mut fresh: PodTemplate) -> Arc<PodTemplate> {
        if self.templates.ids.len() >= self.templates.sweep_at {
            self.templates.remove_unused();
        }
        let id = self.templates.free.pop().unwrap_or_else(|| {
            self.templates.placed.push(None);
            TemplateId(self.templates.placed.len() as u32 - 1)
        });
        fresh.id = id;
        let template = Arc::new(fresh);
        let mut placed = PlacedTemplate::new(template.clone());
        for counter in self.counters.ids() {
            let spec = self.counters.spec(counter);
            self.add_contributions(counter, &*spec, &mut placed);
        }
        self.templates.placed[id.0 as usize] = Some(placed);
        self.templates.ids.insert(template.clone(), id);
        template
    }

    fn add_contributions(
        &mut self,
        id: TopologyCounterId,
        spec: &dyn TopologyCounterSpec,
        placed: &mut PlacedTemplate,
    ) {
        let pod = &placed.template;
        for (kind, effects) in placed.effects.iter_mut().enumerate() {
            let nodes = &mut self.nodes;
            let keys = effects.add_counter(id, spec, pod, kind == 1, &self.cluster, |key| {
                nodes.ensure_label_column(key)
            });
            for key in keys {
                self.counters.ensure_domains(id, key, &self.nodes);
            }
        }
    }

    /// Counts all assigned pods in a new counter.
    fn fill_counter(&mut self, id: TopologyCounterId) {
        let spec = self.counters.spec(id);
        let mut all = std::mem::take(&mut self.templates.placed);
        for placed in all.iter_mut().flatten() {
            self.add_contributions(id, &*spec, placed);
            for (row, counts) in &placed.rows {
                for (effects, n) in placed.effects.iter().zip(counts) {
                    if *n > 0 {
                        self.counters.apply_one(
                            id,
                            effects,
                            self.nodes.labels(),
                            *row,
                            i64::from(*n),
                        );
                    }
                }
            }
        }
        self.templates.placed = all;
    }

    /// What pods add to counters may have changed: drops all counters. Evaluators that use one must release it and acquire it
    /// again.
    fn drop_counters(&mut self) {
        self.counters.clear();
        for placed in self.templates.placed.iter_mut().flatten() {
            placed.effects.iter_mut().for_each(CounterDeltas::clear);
        }
        self.log_change(WorldChange::Everything);
    }
}

impl PlacedTemplate {
    fn new(template: Arc<PodTemplate>) -> Self {
        PlacedTemplate { template, rows: Map::default(), effects: Default::default() }
    }
}

impl Templates {
    fn remove_unused(&mut self) {
        for at in 0..self.placed.len() {
            // Two references, here and in `ids`, mean that no pod has this template.
            let unused = self.placed[at]
                .as_ref()
                .is_some_and(|placed| Arc::strong_count(&placed.template) == 2);
            if let Some(removed) = self.placed[at].take_if(|_| unused) {
                self.ids.remove(&removed.template);
                self.free.push(TemplateId(at as u32));
            }
        }
        self.sweep_at = 2 * self.ids.len() + 1024;
    }
}
