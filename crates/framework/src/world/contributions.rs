//! What assigned pods add to topology counters.
//!
//! A pod adds to a counter according to its namespace, its affinity terms, and those of its labels that some counter reads. Pods for
//! which these are equal form a contribution class, whatever else they differ in: the ordinal label of a StatefulSet is in no selector,
//! so its pods are one class.

mod pod_rows;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::Equivalent;
use loadmaster_api::{Labels, Str};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use crate::affinity_terms::{AffinityTerms, PodTerm};
use crate::cluster_objects::ClusterObjects;
use crate::node_table::{NodeRow, NodeTable};
use crate::slots_by::SlotsBy;
use crate::template::{PodTemplate, WithoutResourcesId};
use crate::topology_counter::{
    AssignedPod, CounterDeltas, TopologyCounterId, TopologyCounterSet, TopologyCounterSpec,
    TopologyCounters, TopologyDeltas,
};

use pod_rows::PodRows;

/// The id of a contribution class; reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContributionClassId(u32);

/// All that the contribution of an assigned pod depends on, but whether it is terminating.
#[derive(PartialEq, Eq)]
struct ContributionKey {
    namespace: Str,
    /// Only labels that a counter reads.
    labels: Labels,
    terms: Box<[PodTerm]>,
}

/// The labels with one of these keys.
fn projected<'a>(labels: &'a Labels, keys: &'a [Str]) -> SmallVec<[(&'a Str, &'a Str); 4]> {
    match keys.len() <= labels.len() {
        true => keys.iter().filter_map(|key| Some((key, labels.get(key)?))).collect(),
        false => labels.iter().filter(|(key, _)| keys.contains(key)).collect(),
    }
}

/// The same, borrowed from a template.
#[derive(Hash)]
struct ContributionKeyRef<'a> {
    namespace: &'a Str,
    labels: SmallVec<[(&'a Str, &'a Str); 4]>,
    terms: &'a [PodTerm],
}

impl ContributionKeyRef<'_> {
    fn to_owned(&self) -> ContributionKey {
        let labels = self.labels.iter().map(|(key, value)| ((*key).clone(), (*value).clone()));
        ContributionKey {
            namespace: self.namespace.clone(),
            labels: labels.collect(),
            terms: self.terms.into(),
        }
    }
}

impl Equivalent<Arc<ContributionKey>> for ContributionKeyRef<'_> {
    fn equivalent(&self, key: &Arc<ContributionKey>) -> bool {
        *self.namespace == key.namespace
            && key.labels.iter().eq(self.labels.iter().copied())
            && *self.terms == *key.terms
    }
}

impl ContributionKey {
    fn borrowed(&self) -> ContributionKeyRef<'_> {
        let labels = self.labels.iter().collect();
        ContributionKeyRef { namespace: &self.namespace, labels, terms: &self.terms }
    }
}

/// As the borrowed form.
impl Hash for ContributionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

struct ContributionClass {
    key: Arc<ContributionKey>,
    /// Where pods are, and terminating pods.
    rows: [PodRows; 2],
    /// For a running pod, and for a terminating pod.
    deltas: [CounterDeltas; 2],
    n_templates: u32,
}

/// The contribution classes of all assigned pods.
#[derive(Default)]
pub(super) struct Contributions {
    slots: Vec<Option<ContributionClass>>,
    free: Vec<u32>,
    ids: Map<Arc<ContributionKey>, ContributionClassId>,
    /// Most counters count the pods of one namespace.
    by_namespace: SlotsBy<Str>,
    /// The classes whose pods a counter counts.
    by_counter: SlotsBy<TopologyCounterId>,
    /// The labels that some counter reads.
    label_keys: Vec<Str>,
    /// The class of the last of the templates that differ in nothing but labels, requests and limits: no counter reads these two.
    last: Map<WithoutResourcesId, LastClass>,
    terms: AffinityTerms,
}

/// The class of a template.
struct LastClass {
    /// Of the labels that some counter reads.
    values: SmallVec<[Option<Str>; 4]>,
    class: ContributionClassId,
}

/// Maximum number of classes of last templates that are remembered, and of labels that are compared for that.
const LAST_MAX: usize = 1 << 14;
const LAST_KEYS_MAX: usize = 8;

/// What contributions are computed from and added to.
pub(super) struct Sums<'a> {
    pub counters: &'a mut TopologyCounters,
    pub nodes: &'a mut NodeTable,
    pub cluster: &'a ClusterObjects,
    /// Sequence number of the next change of the world.
    pub next_seq: u64,
}

impl Contributions {
    /// The terms of assigned pods.
    pub fn terms(&self) -> &AffinityTerms {
        &self.terms
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Adds a template to its class, which is created if it does not exist.
    pub fn add_template(&mut self, pod: &PodTemplate, sums: &mut Sums<'_>) -> ContributionClassId {
        let has_values = |values: &[Option<Str>]| {
            let values = values.iter().map(Option::as_ref);
            values.eq(self.label_keys.iter().map(|key| pod.labels.get(key)))
        };
        let last = self.last.get(&pod.without_resources_id).filter(|last| has_values(&last.values));
        let id = match last {
            Some(last) => last.class,
            None => self.class_of(pod, sums),
        };
        if let Some(class) = self.get_mut(id) {
            class.n_templates += 1;
        }
        id
    }

    /// The class of a template, which is created if it does not exist.
    #[inline(never)]
    fn class_of(&mut self, pod: &PodTemplate, sums: &mut Sums<'_>) -> ContributionClassId {
        let terms = self.terms.terms_of(pod);
        let found = {
            let labels = projected(&pod.labels, &self.label_keys);
            let key = ContributionKeyRef { namespace: &pod.namespace, labels, terms: &terms };
            self.ids.get(&key).copied().ok_or_else(|| key.to_owned())
        };
        let id = found.unwrap_or_else(|key| self.insert(key, sums));
        if self.label_keys.len() <= LAST_KEYS_MAX {
            if self.last.len() >= LAST_MAX {
                self.last.clear();
            }
            let values = self.label_keys.iter().map(|key| pod.labels.get(key).cloned());
            let last = LastClass { values: values.collect(), class: id };
            self.last.insert(pod.without_resources_id, last);
        }
        id
    }

    /// Removes a template, of which there is no pod any more, from its class.
    pub fn remove_template(&mut self, id: ContributionClassId) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else { return };
        let Some(class) = slot else { return };
        class.n_templates -= 1;
        if class.n_templates > 0 {
            return;
        }
        self.last.clear();
        self.ids.remove(&class.key);
        self.by_namespace.remove(&class.key.namespace, id.0);
        let counters = class.deltas.iter().flat_map(CounterDeltas::ids);
        counters.for_each(|counter| self.by_counter.remove(&counter, id.0));
        self.terms.release(&class.key.terms);
        self.terms.trim();
        *slot = None;
        self.free.push(id.0);
    }

    /// Adds a pod of a class to a row (`sign` 1), or removes it (`sign` -1). Returns the counters whose sums changed.
    pub fn count_pod(
        &mut self,
        id: ContributionClassId,
        row: NodeRow,
        terminating: bool,
        sign: i64,
        sums: &mut Sums<'_>,
    ) -> TopologyCounterSet {
        let Some(class) = self.get_mut(id) else { return TopologyCounterSet::EMPTY };
        let kind = usize::from(terminating);
        match sign {
            1 => class.rows[kind].add(row),
            _ => class.rows[kind].remove(row),
        }
        let deltas = &class.deltas[kind];
        if !deltas.is_empty() {
            sums.counters.apply(deltas, sums.nodes.labels(), row, sign, sums.next_seq);
        }
        deltas.counters()
    }

    /// The same for the counters only, because the domains of the row change.
    pub fn move_pod(
        &self,
        id: ContributionClassId,
        row: NodeRow,
        terminating: bool,
        sign: i64,
        sums: &mut Sums<'_>,
    ) {
        if let Some(Some(class)) = self.slots.get(id.0 as usize) {
            let deltas = &class.deltas[usize::from(terminating)];
            sums.counters.apply(deltas, sums.nodes.labels(), row, sign, sums.next_seq);
        }
    }

    /// Counts all assigned pods in a new counter.
    pub fn fill_counter(&mut self, id: TopologyCounterId, sums: &mut Sums<'_>) {
        let spec = sums.counters.spec(id);
        for slot in self.slots_counted(spec.namespace()) {
            if let Some(class) = &mut self.slots[slot as usize]
                && class.add_counter(id, &*spec, sums)
            {
                class.apply_to(id, 1, sums);
                self.by_counter.insert(id, slot);
            }
        }
    }

    /// The slots of classes that a counter of the pods of this namespace may count; all if it is that of several.
    fn slots_counted(&self, namespace: Option<&Str>) -> Vec<u32> {
        match namespace {
            Some(namespace) => self.by_namespace.get(namespace).collect(),
            None => (0..self.slots.len() as u32).collect(),
        }
    }

    /// The rows of all pods that one of these counters counts, and of some that are not there any more; rows may repeat.
    pub fn rows_counted_by(
        &self,
        counters: &[TopologyCounterId],
    ) -> impl Iterator<Item = NodeRow> + use<'_> {
        // Most often all counters count the same pods.
        let mut slots: Vec<u32> = counters.iter().flat_map(|id| self.by_counter.get(id)).collect();
        slots.sort_unstable();
        slots.dedup();
        let classes = slots.into_iter().filter_map(|slot| self.slots[slot as usize].as_ref());
        let rows = classes.flat_map(|class| &class.rows);
        rows.flat_map(|rows| rows.added.iter().copied())
    }

    /// Forgets what pods contribute to counters that were dropped.
    pub fn forget_counters(&mut self, dropped: &[TopologyCounterId]) {
        let slots: BTreeSet<u32> = dropped.iter().flat_map(|id| self.by_counter.take(id)).collect();
        for slot in slots {
            if let Some(class) = &mut self.slots[slot as usize] {
                class.deltas.iter_mut().for_each(|deltas| deltas.forget(dropped));
            }
        }
    }

    /// Whether these labels are all read already, so that no class has to be split.
    pub fn reads_labels(&self, keys: &[Str]) -> bool {
        keys.iter().all(|key| self.label_keys.contains(key))
    }

    /// Sets the labels that counters read, and drops all classes. The caller adds the templates and pods again.
    pub fn reset(&mut self, label_keys: BTreeSet<Str>) {
        for class in self.slots.drain(..).flatten() {
            self.terms.release(&class.key.terms);
        }
        self.ids.clear();
        self.by_namespace.clear();
        self.by_counter.clear();
        self.last.clear();
        self.free.clear();
        self.label_keys = label_keys.into_iter().collect();
    }

    /// Adds a pod to its class without counting it, because the counters have it already.
    pub fn restore_pod(&mut self, id: ContributionClassId, row: NodeRow, terminating: bool) {
        if let Some(class) = self.get_mut(id) {
            class.rows[usize::from(terminating)].add(row);
        }
    }

    /// Counts the pods of a namespace again in the counters that read its labels, which changed. Returns the rows of pods that
    /// contribute something else now.
    pub fn recount_namespace(&mut self, namespace: &Str, sums: &mut Sums<'_>) -> Vec<NodeRow> {
        let ids: Vec<TopologyCounterId> = sums
            .counters
            .ids()
            .into_iter()
            .filter(|id| sums.counters.spec(*id).reads_namespace_labels())
            .collect();
        let mut rows = BTreeSet::new();
        if ids.is_empty() {
            return Vec::new();
        }
        for slot in self.by_namespace.get(namespace) {
            let Some(class) = &mut self.slots[slot as usize] else { continue };
            let before = class.deltas.clone();
            for id in &ids {
                class.apply_to(*id, -1, sums);
                class.deltas.iter_mut().for_each(|deltas| deltas.forget(&[*id]));
                let spec = sums.counters.spec(*id);
                match class.add_counter(*id, &*spec, sums) {
                    true => self.by_counter.insert(*id, slot),
                    false => self.by_counter.remove(id, slot),
                }
                class.apply_to(*id, 1, sums);
            }
            let is_changed = ids.iter().any(|id| {
                before.iter().zip(&class.deltas).any(|(old, new)| old.get(*id) != new.get(*id))
            });
            if is_changed {
                class.rows.iter_mut().for_each(PodRows::compact);
                rows.extend(class.rows.iter().flat_map(|rows| rows.added.iter().copied()));
            }
        }
        rows.into_iter().collect()
    }

    fn insert(&mut self, key: ContributionKey, sums: &mut Sums<'_>) -> ContributionClassId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.terms.acquire(&key.terms);
        let key = Arc::new(key);
        let deltas = Default::default();
        let mut class = ContributionClass {
            key: key.clone(),
            rows: Default::default(),
            deltas,
            n_templates: 0,
        };
        for counter in sums.counters.ids_for_namespace(&class.key.namespace) {
            let spec = sums.counters.spec(counter);
            if class.add_counter(counter, &*spec, sums) {
                self.by_counter.insert(counter, index);
            }
        }
        self.slots[index as usize] = Some(class);
        let id = ContributionClassId(index);
        self.by_namespace.insert(key.namespace.clone(), index);
        self.ids.insert(key, id);
        id
    }

    fn get_mut(&mut self, id: ContributionClassId) -> Option<&mut ContributionClass> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }
}

impl ContributionClass {
    /// Computes what the pods of the class contribute to a counter; returns whether that is anything.
    fn add_counter(
        &mut self,
        id: TopologyCounterId,
        spec: &dyn TopologyCounterSpec,
        sums: &mut Sums<'_>,
    ) -> bool {
        let pod = AssignedPod {
            namespace: &self.key.namespace,
            labels: &self.key.labels,
            namespace_labels: sums.cluster.namespace_labels(&self.key.namespace),
            terms: &self.key.terms,
        };
        let mut deltas = TopologyDeltas::default();
        spec.delta(&pod, &mut deltas);
        let deltas = deltas.not_zero(|key| sums.nodes.ensure_label_column(key));
        for (key, _) in &deltas {
            sums.counters.ensure_domains(id, *key, sums.nodes);
        }
        let [running, terminating] = &mut self.deltas;
        running.add(id, &deltas);
        if spec.counts_terminating_pods() {
            terminating.add(id, &deltas);
        }
        !deltas.is_empty()
    }

    /// Adds the pods of the class to one counter (`sign` 1), or removes them (`sign` -1).
    fn apply_to(&self, id: TopologyCounterId, sign: i64, sums: &mut Sums<'_>) {
        for (rows, deltas) in self.rows.iter().zip(&self.deltas) {
            let labels = sums.nodes.labels();
            sums.counters.apply_one(id, deltas, labels, &rows.added, sign);
            sums.counters.apply_one(id, deltas, labels, &rows.removed, -sign);
        }
    }
}
