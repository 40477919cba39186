//! The scheduler's view of the cluster (upstream's cache and snapshot in one): nodes, assigned pods, nominated pods, the objects
//! that plugins read, and the sums over them.
//!
//! All changes go through the methods here, so that columns, counters and the change log stay consistent. Changes of pods and
//! nominations can be tried and undone ([`trial`]).

pub mod trial;

mod assigned_pods;
mod contributions;
mod counters;
mod key_versions;
mod nominations;
mod objects;
mod templates;

use std::collections::BTreeMap;
use std::hash::Hash;
use std::hint::black_box;
use std::sync::Arc;

use loadmaster_api::{Node, Pod, Str};
use loadmaster_stdx::Map;

use crate::affinity_terms::AffinityTerms;
use crate::claim_users::{ClaimUser, ClaimUsers};
use crate::cluster_objects::ClusterObjects;
use crate::feature_gates::FeatureGates;
use crate::label_columns::LabelKeyId;
use crate::node_info::NodeInfo;
use crate::node_table::{NodeRow, NodeTable};
use crate::ongoing_preemptions::OngoingPreemptions;
use crate::pod_index::{IndexedPods, PodIndex, PodIndexKey, PodIndexes};
use crate::pod_info::PodInfo;
use crate::pod_sums::{AllPodSums, NamespaceSums, NamespaceTotal, PodSum, PodSums, PodSumsDef};
use crate::template::{PodTemplate, TemplateError};
use crate::time::Now;
use crate::topology_counter::{
    TopologyCounter, TopologyCounterId, TopologyCounterSet, TopologyCounters,
};
use crate::waiting_pods::WaitingPods;
use crate::watched_objects::ObjectStore;
use trial::UndoLog;

pub use key_versions::{AffectedPods, KeyVersion};
pub use trial::{Checkpoint, DryRun, Trial};

use assigned_pods::{AssignedPods, UidHash};
use contributions::Contributions;
use key_versions::KeyVersions;
use templates::Templates;

/// One entry of the world's change log, from which cached evaluations are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorldChange {
    /// Pods were added to or removed from a row, or nominated to its node, or no longer nominated to it. Only these counters have other
    /// sums than before.
    Pods(NodeRow, TopologyCounterSet),
    /// The node in a row was added, updated or deleted.
    Node(NodeRow),
    /// The number of nodes, or their images, changed.
    NodeSet,
}

impl WorldChange {
    /// The row that changed, if it is one.
    #[inline]
    pub fn row(&self) -> Option<NodeRow> {
        match *self {
            WorldChange::Pods(row, _) | WorldChange::Node(row) => Some(row),
            WorldChange::NodeSet => None,
        }
    }
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
    contributions: Contributions,
    versions: KeyVersions,
    /// Evaluators that were prepared before this change are invalid.
    evaluators_valid_since: u64,
    /// Without the changes of open dry runs.
    assigned: AssignedPods,
    /// By node name; sorted, because [`World::nominated_nodes`] exposes the order.
    nominated: BTreeMap<Str, Vec<Arc<PodInfo>>>,
    nominated_nodes_by_uid: Map<Box<str>, Str>,
    nominations_version: u64,
    /// The last number given to `nominations_version`; no number is given twice, also when a nomination is undone.
    last_nominations_version: u64,
    ongoing_preemptions: OngoingPreemptions,
    objects: ObjectStore,
    waiting: WaitingPods,
    pod_indexes: PodIndexes,
    pod_sums: AllPodSums,
    claim_users: ClaimUsers,
    log: Vec<WorldChange>,
    /// Number of the first entry of `log`.
    log_start: u64,
    undo: UndoLog,
    gates: FeatureGates,
    now: Now,
}

impl World {
    /// An empty world; the gates determine how pods are parsed.
    pub fn new(gates: FeatureGates) -> Self {
        World { gates, ..World::default() }
    }

    /// The time of the engine's current call. An attempt that waits for an extender continues at a later time.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Sets the time, for the engine.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// The nodes.
    pub fn nodes(&self) -> &NodeTable {
        &self.nodes
    }

    /// Writes the amounts that changed since the last time to the columns of the node table. To be called before a scan of all nodes, which
    /// copies all columns otherwise ([`AllAmounts::columns`](crate::node_amounts::AllAmounts::columns)).
    pub fn update_columns(&mut self) {
        self.nodes.update_columns();
    }

    /// A node with its pods; `None` for a free row.
    #[inline]
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

    /// The affinity terms of assigned pods.
    pub fn affinity_terms(&self) -> &AffinityTerms {
        self.contributions.terms()
    }

    /// Number of different contributions of assigned pods to counters.
    pub fn n_contribution_classes(&self) -> usize {
        self.contributions.len()
    }

    /// Increases when an object changes that the [keys](crate::Incremental::key) of pods in a namespace may be resolved from: the
    /// namespace, its services and controllers, watched objects, states of plugins, and the affinity terms and claims of assigned pods.
    pub fn key_version(&self, pod: &PodTemplate) -> KeyVersion {
        let version = self.versions.of(pod);
        KeyVersion { of_all: version.of_all + self.affinity_terms().version(), ..version }
    }

    /// Whether the keys of pods with this template, computed in version `then` of their namespace, are those in version `now`, which is the
    /// current one: nothing changed, or only services that do not select these pods and controllers of other pods.
    pub fn keys_hold(&self, pod: &PodTemplate, then: KeyVersion, now: KeyVersion) -> bool {
        then == now
            || then.of_all == now.of_all
                && self.versions.is_unaffected_since(pod, then.of_namespace)
    }

    /// The first change whose evaluators are valid: those that were prepared before it are not.
    pub fn evaluators_valid_since(&self) -> u64 {
        self.evaluators_valid_since
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
        if self.undo.is_dry_run() {
            return self.nodes.rows().map(|row| self.nodes.pods(row).len()).sum();
        }
        self.assigned.len()
    }

    /// The assigned pods that use a PersistentVolumeClaim (upstream's `IsPVCUsedByPods`), assumed ones included; without the changes of
    /// open dry runs. When a claim begins or ends to be used, the [keys](crate::Incremental::key) of pods in its namespace are computed
    /// again.
    pub fn claim_users(&self, namespace: &str, claim: &str) -> &[ClaimUser] {
        self.claim_users.get(namespace, claim)
    }

    /// Number of volumes of assigned pods that are disks named by the pod itself, or ephemeral; without the changes of open dry runs.
    pub fn n_volumes_outside_claims(&self) -> usize {
        self.claim_users.n_outside_claims()
    }

    /// Parses a pod; equal pods share one template.
    ///
    /// # Errors
    ///
    /// When a selector in the pod is invalid.
    pub fn parse_pod(&mut self, pod: &Pod) -> Result<PodInfo, TemplateError> {
        let mut dropped = Vec::new();
        let (gates, versions) = (&self.gates, &mut self.versions);
        let template = self.templates.of_pod(pod, gates, versions, &mut dropped)?;
        dropped.into_iter().for_each(|class| self.contributions.remove_template(class));
        Ok(PodInfo::new(pod, template, &self.gates))
    }

    /// Whether more than one pod that exists has this template of the world.
    pub fn has_several_pods(&self, template: &Arc<PodTemplate>) -> bool {
        Templates::has_several_pods(template)
    }

    /// Reads what the placement of a pod with this template reads of it first, so that it comes from memory while a node is selected.
    #[inline]
    pub fn preload_template(&self, template: &PodTemplate) {
        black_box(self.templates.class(template.id));
    }

    /// Adds a node, or replaces the one with this name.
    ///
    /// # Panics
    ///
    /// In a [trial].
    pub fn upsert_node(&mut self, node: Arc<Node>) -> NodeRow {
        self.assert_no_trial();
        match self.nodes.row(node.name()) {
            Some(row) => {
                self.replace_node(row, node);
                row
            }
            None => {
                let row = self.nodes.insert(node.clone());
                self.counters.count_node(&self.nodes, row, &node, 1);
                self.log_change(WorldChange::Node(row));
                self.log_change(WorldChange::NodeSet);
                row
            }
        }
    }

    /// Removes a node and the pods on it; returns the pods.
    ///
    /// # Panics
    ///
    /// In a [trial].
    pub fn remove_node(&mut self, name: &str) -> Vec<Arc<PodInfo>> {
        self.assert_no_trial();
        let Some(row) = self.nodes.row(name) else { return Vec::new() };
        let pods: Vec<Arc<PodInfo>> = self.nodes.pods(row).to_vec();
        for pod in &pods {
            self.remove_pod(&pod.uid);
        }
        if let Some(node) = self.nodes.node(row).cloned() {
            self.counters.count_node(&self.nodes, row, &node, -1);
        }
        self.nodes.remove(row);
        self.log_change(WorldChange::Node(row));
        self.log_change(WorldChange::NodeSet);
        pods
    }

    /// Adds a pod to a node. A pod that is already on a node is moved.
    pub fn add_pod(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        let hash = self.assigned.hash(&pod.uid);
        self.remove_hashed(hash, &pod.uid);
        if !self.undo.is_dry_run() {
            self.assigned.insert(hash, row, pod.clone());
        }
        self.place_pod(row, pod);
    }

    fn place_pod(&mut self, row: NodeRow, pod: Arc<PodInfo>) {
        let counters = self.count_pod(row, &pod, 1);
        self.undo.pod_added(row, self.nodes.scalars().len());
        self.nodes.add_pod(row, pod);
        self.log_change(WorldChange::Pods(row, counters));
    }

    /// Removes a pod from its node; returns it.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        self.remove_hashed(self.assigned.hash(uid), uid)
    }

    fn remove_hashed(&mut self, hash: UidHash, uid: &str) -> Option<Arc<PodInfo>> {
        let (row, at) = self.position_of_hashed(hash, uid)?;
        let removed = self.nodes.remove_pod(row, at)?;
        if !self.undo.is_dry_run() {
            self.assigned.remove(hash, &removed.pod);
        }
        let counters = self.count_pod(row, &removed.pod, -1);
        let pod = self.undo.take_removed(row, removed);
        self.log_change(WorldChange::Pods(row, counters));
        Some(pod)
    }

    /// Replaces the stored object of a pod if nothing changed that sums or evaluations depend on: node, template and requests are
    /// equal. Otherwise, or if the pod is not assigned, changes nothing and returns `false`.
    ///
    /// # Panics
    ///
    /// In a [trial].
    pub fn refresh_pod(&mut self, pod: &Arc<PodInfo>) -> bool {
        self.assert_no_trial();
        let hash = self.assigned.hash(&pod.uid);
        let Some((row, _)) = self.position_of_hashed(hash, &pod.uid) else { return false };
        let same = |known: &PodInfo| {
            Arc::ptr_eq(&known.template, &pod.template)
                && known.node_name == pod.node_name
                && known.terminating == pod.terminating
                && known.resized == pod.resized
                && known.extra == pod.extra
        };
        let is_refreshed = self.nodes.refresh_pod(row, pod, same);
        if is_refreshed {
            self.assigned.replace(hash, pod);
            self.pod_indexes.add_assigned(pod);
        }
        is_refreshed
    }

    /// Starts an index of pods, unless it exists. Pending pods must be added after that.
    pub fn index_pods(&mut self, key: &PodIndexKey) {
        let assigned = self.nodes.rows().flat_map(|row| self.nodes.pods(row));
        self.pod_indexes.add(key, assigned);
    }

    /// Whether there is an index of pods, so that pending pods are stored.
    pub fn indexes_pods(&self) -> bool {
        !self.pod_indexes.is_empty()
    }

    /// Adds or updates a pod that a profile has to place, for the indexes. It stays pending until it is deleted here, but counts
    /// as assigned while it is assumed.
    pub fn upsert_pending_pod(&mut self, pod: &Arc<PodInfo>) {
        let is_assigned = self.row_of_pod(&pod.uid).is_some();
        self.pod_indexes.upsert_pending(pod, is_assigned);
    }

    /// Deletes a pending pod: it was deleted, or the API server has it on a node.
    pub fn delete_pending_pod(&mut self, uid: &str) {
        self.pod_indexes.delete_pending(uid);
    }

    /// The pods with a value of an index.
    pub fn pods_by_index(&self, index: &PodIndex, namespace: &str, value: &str) -> IndexedPods<'_> {
        self.pod_indexes.get(index, namespace, value, &self.waiting)
    }

    /// The pods with the same namespace and value of the index as this pod, which is one of them; none if it has no value.
    pub fn sibling_pods(&self, index: &PodIndex, pod: &PodInfo) -> IndexedPods<'_> {
        self.pod_indexes.siblings(index, pod, &self.waiting)
    }

    /// Starts the sums that a plugin declared.
    pub fn sum_pods(&mut self, def: &PodSumsDef) {
        self.sum_pods_and(def, &[]);
    }

    /// The same for a world that knows of assigned pods on unknown nodes.
    pub fn sum_pods_and(&mut self, def: &PodSumsDef, orphaned: &[Arc<PodInfo>]) {
        let assigned = self.nodes.rows().flat_map(|row| self.nodes.pods(row));
        self.pod_sums.add(def, assigned.chain(orphaned), &self.objects);
    }

    /// Drops the sums of a plugin that is not used any more.
    pub fn forget_pod_sums(&mut self, def: &PodSumsDef) {
        self.pod_sums.remove(def);
    }

    /// The sum of the assigned pods with this key, assumed pods and those on unknown nodes included.
    pub fn pod_sum<K: Eq + Hash + 'static>(&self, sums: &PodSums<K>, key: &K) -> &PodSum {
        self.pod_sums.get(sums, key)
    }

    /// The sums over all namespaces that have an object of the plugin's kind.
    pub fn namespace_total(&self, sums: &NamespaceSums) -> &NamespaceTotal {
        self.pod_sums.total(sums)
    }

    /// Adds (`sign` 1) or subtracts (`sign` -1) an assigned pod whose node is not known, which is otherwise not in the world, in the
    /// sums of plugins.
    pub fn sum_orphaned_pod(&mut self, pod: &PodInfo, sign: i64) {
        if !self.pod_sums.is_empty() {
            self.pod_sums.count(pod, sign);
            self.log_change(WorldChange::NodeSet);
        }
    }

    /// Preemptions whose victims are being evicted.
    pub fn ongoing_preemptions(&self) -> &OngoingPreemptions {
        &self.ongoing_preemptions
    }

    /// Mutable access, for the engine, which evicts the victims.
    pub fn ongoing_preemptions_mut(&mut self) -> &mut OngoingPreemptions {
        &mut self.ongoing_preemptions
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

    /// Sequence number of the next change, for [`World::changes_since`].
    pub fn next_change_seq(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// The changes since a sequence number; `None` when the log does not reach back that far.
    pub fn changes_since(&self, then: u64) -> Option<&[WorldChange]> {
        let from = then.checked_sub(self.log_start)?;
        self.log.get(usize::try_from(from).ok()?..)
    }

    /// Makes the keys of the pods in a namespace be computed again, because something changed that they are resolved from; with an
    /// empty name, those of all pods. Evaluators stay valid.
    pub fn invalidate_keys(&mut self, namespace: &Str) {
        if namespace.is_empty() {
            self.versions.change_all();
        } else {
            self.versions.change(namespace, None);
        }
    }

    /// Invalidates what evaluators computed for a node, because something else than the node and its pods changed that they read.
    pub fn invalidate_node(&mut self, row: NodeRow) {
        self.log_change(WorldChange::Node(row));
    }

    /// Invalidates all evaluators, because something changed that any of them may have read.
    pub fn invalidate_evaluators(&mut self) {
        self.versions.change_all();
        // An evaluator that is prepared at this sequence number was prepared after this.
        self.log_change(WorldChange::NodeSet);
        self.evaluators_valid_since = self.next_change_seq();
    }

    /// Sets the size of an image, as if another one of its nodes had been the first to report it; returns the previous size. Not a logged
    /// change: evaluations from scratch see it, score indexes do not, and the caller sets it back before anything else is evaluated.
    pub fn replace_image_size(&mut self, name: &str, size_bytes: i64) -> Option<i64> {
        self.nodes.replace_image_size(name, size_bytes)
    }

    fn assert_no_trial(&self) {
        assert!(!self.undo.is_open(), "only pods and nominations change in a trial");
    }

    fn log_change(&mut self, change: WorldChange) {
        if self.undo.is_dry_run() {
            return;
        }
        if self.log.len() >= LOG_LEN_MAX {
            self.forget_half_of_log();
        }
        self.log.push(change);
    }

    #[cold]
    fn forget_half_of_log(&mut self) {
        let half = self.log.len() / 2;
        self.log.drain(..half);
        self.log_start += half as u64;
    }

    fn replace_node(&mut self, row: NodeRow, node: Arc<Node>) {
        let Some(old) = self.nodes.node(row).cloned() else { return };
        if *old == *node {
            return;
        }
        let moved = old.metadata.labels != node.metadata.labels || old.spec != node.spec;
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
    }

    /// Adds (`sign` 1) or removes (`sign` -1) a pod in all sums but those of its node. Returns the counters whose sums changed.
    fn count_pod(&mut self, row: NodeRow, pod: &Arc<PodInfo>, sign: i64) -> TopologyCounterSet {
        self.pod_sums.count(pod, sign);
        if self.undo.is_dry_run() {
            return TopologyCounterSet::EMPTY;
        }
        match sign {
            1 => self.pod_indexes.add_assigned(pod),
            _ => self.pod_indexes.remove_assigned(pod),
        }
        let change = self.claim_users.count(row, pod, sign == 1);
        if change.of_namespace {
            self.invalidate_keys(&pod.template.namespace);
        }
        if change.of_all {
            self.versions.change_all();
        }
        let class = self.class_of(&pod.template);
        let (contributions, mut sums) = self.contributions_and_sums();
        contributions.count_pod(class, row, pod.terminating, sign, &mut sums)
    }
}
