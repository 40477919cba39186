//! The world as the scheduler knows it: nodes, assigned pods, what surrounds them, and the sums kept over them.
//!
//! All changes go through the methods here, so that columns, counters and the change log cannot drift apart.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use loadmaster_api::{Namespace, Node, Pod, Str};
use loadmaster_stdx::Map;

use crate::cluster::Cluster;
use crate::counter::{Counted, Counter, CounterId, Counters, Effects};
use crate::gates::FeatureGates;
use crate::label::KeyId;
use crate::node::NodeInfo;
use crate::objects::{Changed, ObjectStore, Watch};
use crate::pod::PodInfo;
use crate::preemption::Underway;
use crate::request::ObjectRef;
use crate::table::{NodeTable, Row};
use crate::template::{PodTemplate, Shared, TemplateError, TemplateId};
use crate::waiting::WaitingPods;

/// What changed, for answers that are kept current instead of computed anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pods came to or left a row.
    Pods(Row),
    /// The node in a row appeared, changed or went.
    Node(Row),
    /// The number of nodes, or the images they hold, changed.
    NodeSet,
    /// Something that answers may depend on in any way: namespaces, services, the meaning of a label column.
    Everything,
}

/// How many changes are remembered; an answer that lags further behind is made anew.
const LOG_LEN_MAX: usize = 1 << 16;

/// Nodes, pods and the sums over them.
#[derive(Default)]
pub struct World {
    nodes: NodeTable,
    cluster: Cluster,
    counters: Counters,
    templates: Templates,
    /// Row by uid of every assigned pod.
    assigned: Map<Box<str>, Row>,
    /// By node name; in order, because [`World::nominated_nodes`] shows it.
    nominated: BTreeMap<Str, Vec<Arc<PodInfo>>>,
    n_promises: u64,
    preemptions: Underway,
    objects: ObjectStore,
    waiting: WaitingPods,
    log: Vec<Change>,
    /// Number of the first entry of `log`.
    log_start: u64,
    gates: FeatureGates,
}

/// All templates that a pod has or had not long ago.
#[derive(Default)]
struct Templates {
    ids: Map<Arc<PodTemplate>, TemplateId>,
    placed: Vec<Option<Placed>>,
    free: Vec<TemplateId>,
    /// When so many are known, those that no pod has are dropped.
    sweep_at: usize,
}

/// Where the pods of a template are, and what each adds to the counters.
struct Placed {
    template: Arc<PodTemplate>,
    /// Per row: pods, and terminating pods.
    rows: Map<Row, [u32; 2]>,
    /// Of a pod, and of a terminating pod.
    effects: [Effects; 2],
}

impl World {
    /// An empty world in which pods are read under these gates.
    pub fn new(gates: FeatureGates) -> Self {
        World { gates, ..World::default() }
    }

    /// The nodes.
    pub fn nodes(&self) -> &NodeTable {
        &self.nodes
    }

    /// A node with its pods.
    pub fn node(&self, row: Row) -> Option<NodeInfo<'_>> {
        NodeInfo::new(&self.nodes, row)
    }

    /// All nodes, by row.
    pub fn node_infos(&self) -> impl Iterator<Item = NodeInfo<'_>> + Clone {
        self.nodes.rows().filter_map(|row| self.node(row))
    }

    /// Namespaces and controllers.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The gates under which pods are read.
    pub fn gates(&self) -> &FeatureGates {
        &self.gates
    }

    /// The counters in use.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A counter in use.
    pub fn counter(&self, id: CounterId) -> &Counter {
        self.counters.get(id)
    }

    /// Number of assigned pods.
    pub fn n_assigned(&self) -> usize {
        self.assigned.len()
    }

    /// The row of an assigned pod.
    pub fn row_of_pod(&self, uid: &str) -> Option<Row> {
        self.assigned.get(uid).copied()
    }

    /// An assigned pod.
    pub fn assigned(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.nodes.pods(self.row_of_pod(uid)?).iter().find(|pod| &*pod.uid == uid)
    }

    /// Pending pods that were promoted to a node by preemption.
    pub fn nominated(&self, node: &str) -> &[Arc<PodInfo>] {
        self.nominated.get(node).map_or(&[], Vec::as_slice)
    }

    /// Nodes that pods are nominated to, by name.
    pub fn nominated_nodes(&self) -> impl Iterator<Item = &Str> {
        self.nominated.keys()
    }

    /// The parsed form of a pod; equal pods share their template.
    pub fn parse(&mut self, pod: &Pod) -> Result<PodInfo, TemplateError> {
        // Looked up before anything is parsed or copied: most pods of a cluster have equals.
        let template = match self.templates.ids.get_key_value(&Shared::of(pod)) {
            Some((known, _)) => known.clone(),
            None => {
                let fresh = PodTemplate::new(pod, &self.gates)?;
                self.learn_template(fresh)
            }
        };
        Ok(PodInfo::new(pod, template, &self.gates))
    }

    /// Adds a node, or replaces the one of this name.
    pub fn set_node(&mut self, node: Arc<Node>) -> Row {
        match self.nodes.row(node.name()) {
            Some(row) => {
                self.replace_node(row, node);
                row
            }
            None => {
                let unique = self.unique_keys();
                let row = self.nodes.insert(node.clone());
                self.counters.count_node(&self.nodes, row, &node, 1);
                self.note(Change::Node(row));
                self.note(Change::NodeSet);
                self.note_label_meaning(&unique);
                row
            }
        }
    }

    /// Removes a node and the pods on it; answers the pods.
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
        self.note(Change::Node(row));
        self.note(Change::NodeSet);
        self.note_label_meaning(&unique);
        pods
    }

    /// Puts a pod on a node. A pod that is already somewhere is moved.
    pub fn add_pod(&mut self, row: Row, pod: Arc<PodInfo>) {
        self.remove_pod(&pod.uid);
        self.assigned.insert(pod.uid.clone(), row);
        self.count_pod(row, &pod, 1);
        self.nodes.add_pod(row, pod);
        self.note(Change::Pods(row));
    }

    /// Takes a pod off its node.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let row = self.assigned.remove(uid)?;
        let pod = self.nodes.remove_pod(row, uid)?;
        self.count_pod(row, &pod, -1);
        self.note(Change::Pods(row));
        Some(pod)
    }

    /// Puts a pod in the place of itself when nothing changed that sums or answers depend on: the same node, template and
    /// requests. `false`, and nothing done, when something did or the pod is not there.
    pub fn renew_pod(&mut self, pod: &Arc<PodInfo>) -> bool {
        let Some(row) = self.row_of_pod(&pod.uid) else { return false };
        let same = |known: &PodInfo| {
            Arc::ptr_eq(&known.template, &pod.template)
                && known.node_name == pod.node_name
                && known.terminating == pod.terminating
                && known.resized == pod.resized
                && known.extra == pod.extra
        };
        self.nodes.renew_pod(row, pod, same)
    }

    /// Promises a node to a pending pod.
    pub fn nominate(&mut self, node: Str, pod: Arc<PodInfo>) {
        self.forget_nomination(&pod.uid);
        self.n_promises += 1;
        self.nominated.entry(node).or_default().push(pod);
    }

    /// The node that is promised to a pod.
    pub fn nomination(&self, uid: &str) -> Option<&Str> {
        let holds = |pods: &Vec<Arc<PodInfo>>| pods.iter().any(|pod| &*pod.uid == uid);
        self.nominated.iter().find(|(_, pods)| holds(pods)).map(|(node, _)| node)
    }

    /// How often a promise was made or taken back; what hangs on promises holds while it stays.
    pub fn n_promises(&self) -> u64 {
        self.n_promises
    }

    /// Takes a promise back.
    pub fn forget_nomination(&mut self, uid: &str) {
        if self.nomination(uid).is_none() {
            return;
        }
        self.n_promises += 1;
        for pods in self.nominated.values_mut() {
            pods.retain(|pod| &*pod.uid != uid);
        }
        self.nominated.retain(|_, pods| !pods.is_empty());
    }

    /// Adds or replaces a namespace. Affinity terms may select it by its labels, so every sum over pods is made anew.
    pub fn set_namespace(&mut self, namespace: Arc<Namespace>) {
        let name = Str::new(&namespace.metadata.name);
        let changed = self.cluster.namespace_labels(&name) != &namespace.metadata.labels;
        self.cluster.namespaces.insert(name, namespace);
        if changed {
            self.recount();
        }
    }

    /// Changes anything else that plugins read; every kept answer is made anew.
    pub fn change_cluster(&mut self, change: impl FnOnce(&mut Cluster)) {
        change(&mut self.cluster);
        self.recount();
    }

    /// Changes what no verdict or score reads: disruption budgets, priority classes. Kept answers stay.
    pub fn change_unread(&mut self, change: impl FnOnce(&mut Cluster)) {
        change(&mut self.cluster);
    }

    /// Evictions under way.
    pub fn preemptions(&self) -> &Underway {
        &self.preemptions
    }

    /// The same, for the one who carries them out.
    pub fn preemptions_mut(&mut self) -> &mut Underway {
        &mut self.preemptions
    }

    /// Objects of the kinds that plugins watch.
    pub fn objects(&self) -> &ObjectStore {
        &self.objects
    }

    /// Keeps objects of one more kind.
    pub fn watch(&mut self, watch: &Watch) {
        self.objects.watch(watch);
    }

    /// All objects of such a kind have been read, or the server does not have it. `false` when that is no news.
    pub fn set_there(&mut self, group: &str, resource: &str, is_there: bool) -> bool {
        let is_news = self.objects.set_there(group, resource, is_there);
        if is_news {
            self.note(Change::Everything);
        }
        is_news
    }

    /// Takes news of an object that plugins watch: as it is now, or `None` when it is gone.
    pub fn change_object(
        &mut self,
        object: &ObjectRef,
        value: Option<&serde_json::Value>,
    ) -> Changed {
        let changed = self.objects.change(object, value);
        if changed.is_kept && changed.change.is_some() {
            self.note(Change::Everything);
        }
        changed
    }

    /// The pods that Permit holds.
    pub fn waiting_pods(&self) -> &WaitingPods {
        &self.waiting
    }

    /// The same, for the one who carries bindings out.
    pub fn waiting_pods_mut(&mut self) -> &mut WaitingPods {
        &mut self.waiting
    }

    /// The column of a label key, made if it is new.
    pub fn ensure_key(&mut self, key: &Str) -> KeyId {
        self.nodes.ensure_key(key)
    }

    /// The counter of these sums, made and filled if it is new. Give it back with [`World::release`].
    pub fn acquire<C: Counted + Hash + Eq>(&mut self, what: C) -> CounterId {
        if let Some(id) = self.counters.reuse(&what) {
            return id;
        }
        let keys: Vec<KeyId> = what.keys().iter().map(|key| self.nodes.ensure_key(key)).collect();
        let id = self.counters.create(what, &self.nodes);
        for key in keys {
            self.counters.ensure_domains(id, key, &self.nodes);
        }
        self.fill(id);
        let gone = self.counters.trim();
        if !gone.is_empty() {
            for placed in self.templates.placed.iter_mut().flatten() {
                placed.effects.iter_mut().for_each(|effects| effects.forget(&gone));
            }
        }
        id
    }

    /// Gives a counter back; it is kept for a while in case it is wanted again.
    pub fn release(&mut self, id: CounterId) {
        self.counters.release(id);
    }

    /// The number of the next change; what [`World::changes_since`] is asked with later.
    pub fn now(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// What changed since then; `None` when that is longer ago than the log reaches.
    pub fn changes_since(&self, then: u64) -> Option<&[Change]> {
        let from = then.checked_sub(self.log_start)?;
        self.log.get(usize::try_from(from).ok()?..)
    }

    fn note(&mut self, change: Change) {
        if self.log.len() >= LOG_LEN_MAX {
            let half = self.log.len() / 2;
            self.log.drain(..half);
            self.log_start += half as u64;
        }
        self.log.push(change);
    }

    fn replace_node(&mut self, row: Row, node: Arc<Node>) {
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
        self.note(Change::Node(row));
        if old.status.images != node.status.images {
            self.note(Change::NodeSet);
        }
        self.note_label_meaning(&unique);
    }

    fn unique_keys(&self) -> Vec<bool> {
        self.nodes.labels().iter().map(|(_, column)| column.is_unique()).collect()
    }

    fn note_label_meaning(&mut self, before: &[bool]) {
        if self.unique_keys() != before {
            self.note(Change::Everything);
        }
    }

    fn count_pods_of(&mut self, row: Row, sign: i64) {
        for pod in self.nodes.pods(row) {
            if let Some(placed) = self.templates.placed[pod.template.id.0 as usize].as_ref() {
                let effects = &placed.effects[usize::from(pod.terminating)];
                self.counters.apply(effects, self.nodes.labels(), row, sign);
            }
        }
    }

    fn count_pod(&mut self, row: Row, pod: &PodInfo, sign: i64) {
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

    fn learn_template(&mut self, mut fresh: PodTemplate) -> Arc<PodTemplate> {
        if self.templates.ids.len() >= self.templates.sweep_at {
            self.templates.sweep();
        }
        let id = self.templates.free.pop().unwrap_or_else(|| {
            self.templates.placed.push(None);
            TemplateId(self.templates.placed.len() as u32 - 1)
        });
        fresh.id = id;
        let template = Arc::new(fresh);
        let mut placed = Placed::new(template.clone());
        for counter in self.counters.ids() {
            let what = self.counters.what(counter);
            self.learn_effects(counter, &*what, &mut placed);
        }
        self.templates.placed[id.0 as usize] = Some(placed);
        self.templates.ids.insert(template.clone(), id);
        template
    }

    fn learn_effects(&mut self, id: CounterId, what: &dyn Counted, placed: &mut Placed) {
        let pod = &placed.template;
        for (kind, effects) in placed.effects.iter_mut().enumerate() {
            let nodes = &mut self.nodes;
            let keys =
                effects.learn(id, what, pod, kind == 1, &self.cluster, |key| nodes.ensure_key(key));
            for key in keys {
                self.counters.ensure_domains(id, key, &self.nodes);
            }
        }
    }

    /// Fills a new counter from the pods that are there.
    fn fill(&mut self, id: CounterId) {
        let what = self.counters.what(id);
        let mut all = std::mem::take(&mut self.templates.placed);
        for placed in all.iter_mut().flatten() {
            self.learn_effects(id, &*what, placed);
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

    /// What pods add may have changed: all counters are emptied, and whoever holds one must let go and ask again.
    fn recount(&mut self) {
        self.counters.clear();
        for placed in self.templates.placed.iter_mut().flatten() {
            placed.effects.iter_mut().for_each(Effects::clear);
        }
        self.note(Change::Everything);
    }
}

impl Placed {
    fn new(template: Arc<PodTemplate>) -> Self {
        Placed { template, rows: Map::default(), effects: Default::default() }
    }
}

impl Templates {
    fn sweep(&mut self) {
        for at in 0..self.placed.len() {
            // One reference here and one in the index: no pod has this template.
            let unused = self.placed[at]
                .as_ref()
                .is_some_and(|placed| Arc::strong_count(&placed.template) == 2);
            if let Some(gone) = self.placed[at].take_if(|_| unused) {
                self.ids.remove(&gone.template);
                self.free.push(TemplateId(at as u32));
            }
        }
        self.sweep_at = 2 * self.ids.len() + 1024;
    }
}
