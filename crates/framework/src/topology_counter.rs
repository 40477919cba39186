//! Sums over assigned pods by topology domain, owned and updated by the world.
//!
//! A constraint such as "spread these pods over zones" needs the number of matching pods per zone. Computing it anew means
//! iterating over all pods; updating it means a few additions per assigned pod. A plugin describes the sum by a [`TopologyCounterSpec`];
//! equal specs share one counter.

mod counter_sums;
mod domains;
mod recent_changes;
mod sums;

use std::any::{Any, TypeId};
use std::hash::Hash;
use std::sync::Arc;

use loadmaster_api::{Labels, Node, Str};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use crate::affinity_terms::PodTerm;
use crate::label_columns::{LabelColumns, LabelKeyId};
use crate::node_table::{NodeRow, NodeTable};
use crate::slots_by::SlotsBy;

pub use counter_sums::CounterSums;
pub use domains::TopologyDomains;
use recent_changes::RecentChanges;

/// What a counter may read of an assigned pod.
#[derive(Clone, Copy, Debug)]
pub struct AssignedPod<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a Str,
    /// Those of its labels that some counter reads ([`TopologyCounterSpec::label_keys`]).
    pub labels: &'a Labels,
    /// The labels of its namespace; only for a spec that [reads](TopologyCounterSpec::reads_namespace_labels) them.
    pub namespace_labels: &'a Labels,
    /// Its affinity and anti-affinity terms.
    pub terms: &'a [PodTerm],
}

/// What a counter sums: a pure function of an assigned pod, and which nodes count.
pub trait TopologyCounterSpec: Send + Sync + 'static {
    /// Adds to `out` what an assigned pod contributes, by topology key.
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas);

    /// The keys of the pod labels that [`TopologyCounterSpec::delta`] reads. Pods that differ in no label that a counter reads are
    /// counted together.
    fn label_keys(&self) -> Vec<Str>;

    /// The only namespace whose pods count; `None` if those of several may.
    fn namespace(&self) -> Option<&Str> {
        None
    }

    /// Whether pods with a deletion timestamp count.
    fn counts_terminating_pods(&self) -> bool {
        true
    }

    /// Whether [`TopologyCounterSpec::delta`] reads the labels of namespaces.
    fn reads_namespace_labels(&self) -> bool {
        false
    }

    /// Whether the pods of some nodes may not count; only then is [`TopologyCounterSpec::counts_node`] called.
    fn has_node_filter(&self) -> bool {
        false
    }

    /// Whether pods on this node count. Nodes without a topology key never count for that key.
    fn counts_node(&self, node: &Node) -> bool {
        let _ = node;
        true
    }

    /// Whether the minimum over domains and their number are needed ([`TopologyDomains::min_domain_sum`], [`TopologyDomains::n_domains`]);
    /// tracking them makes every update more expensive.
    fn tracks_min(&self) -> bool {
        false
    }

    /// Topology keys for which sums are needed even if no pod contributes.
    fn topology_keys(&self) -> &[Str];
}

/// What one pod contributes, by topology key.
#[derive(Default)]
pub struct TopologyDeltas(SmallVec<[(Str, i64); 2]>);

impl TopologyDeltas {
    /// Adds `amount` to the pod's domain of `key`.
    pub fn add(&mut self, key: &Str, amount: i64) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, sum)) => *sum += amount,
            None => self.0.push((key.clone(), amount)),
        }
    }

    /// Those that are not 0, by the ids of the topology keys.
    pub(crate) fn not_zero(&self, mut key_id: impl FnMut(&Str) -> LabelKeyId) -> KeyDeltas {
        let not_zero = self.0.iter().filter(|(_, amount)| *amount != 0);
        not_zero.map(|(key, amount)| (key_id(key), *amount)).collect()
    }
}

/// The id of a counter of the world, valid until [`crate::World::release_topology_counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopologyCounterId {
    slot: u32,
    /// Distinguishes counters that used the same slot at different times.
    serial: u32,
}

/// A set of counters. It may seem to contain more than were added, so it answers only which counters are surely not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyCounterSet {
    /// A bit for each counter by its number modulo 128: exact if there are not more.
    low: [u64; 2],
    /// A bit for each by the rest of its number, modulo 64.
    high: u64,
}

impl TopologyCounterSet {
    /// The set without counters.
    pub const EMPTY: TopologyCounterSet = TopologyCounterSet { low: [0; 2], high: 0 };
    /// All counters.
    pub const ALL: TopologyCounterSet = TopologyCounterSet { low: [u64::MAX; 2], high: u64::MAX };

    /// The set of one counter.
    pub fn of(id: TopologyCounterId) -> TopologyCounterSet {
        let (low, high) = (id.slot % (2 * u64::BITS), id.slot / (2 * u64::BITS));
        let bit = 1 << (low % u64::BITS);
        let low = if low < u64::BITS { [bit, 0] } else { [0, bit] };
        TopologyCounterSet { low, high: 1 << (high % u64::BITS) }
    }

    /// Adds a counter.
    pub fn insert(&mut self, id: TopologyCounterId) {
        let TopologyCounterSet { low, high } = TopologyCounterSet::of(id);
        self.low.iter_mut().zip(low).for_each(|(own, low)| *own |= low);
        self.high |= high;
    }

    /// `false` if no counter is in both sets. It does not compare all bits, because it is asked for every change and most often enough.
    #[inline]
    pub fn may_intersect(self, other: TopologyCounterSet) -> bool {
        (self.low[0] & other.low[0]) | (self.low[1] & other.low[1]) != 0
    }

    /// `false` if this set does not contain all of the other one.
    #[inline]
    pub fn may_contain(self, other: TopologyCounterSet) -> bool {
        let missing = |own: u64, other: u64| other & !own;
        let low = missing(self.low[0], other.low[0]) | missing(self.low[1], other.low[1]);
        low | missing(self.high, other.high) == 0
    }
}

impl FromIterator<TopologyCounterId> for TopologyCounterSet {
    fn from_iter<I: IntoIterator<Item = TopologyCounterId>>(ids: I) -> Self {
        let mut set = TopologyCounterSet::EMPTY;
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

/// One counter.
pub struct TopologyCounter {
    spec: Arc<dyn TopologyCounterSpec>,
    /// The only namespace whose pods it counts; `None` if it counts those of several.
    namespace: Option<Str>,
    domains: SmallVec<[TopologyDomains; 2]>,
    /// By row; `None` if all nodes count.
    eligible: Option<Vec<bool>>,
    serial: u32,
    users: u32,
    last_used: u64,
    changes: RecentChanges,
}

impl TopologyCounter {
    /// The sums by topology key, in the order in which the keys were added; the list only grows.
    pub fn domains(&self) -> &[TopologyDomains] {
        &self.domains
    }

    /// Whether the sum of every domain is 0.
    pub fn is_zero(&self) -> bool {
        self.domains.iter().all(TopologyDomains::is_zero)
    }

    /// Sequence numbers of the changes of the world from this one on that changed a sum, the last one first; `None` if they are not all known.
    pub fn changes_since(&self, then: u64) -> Option<&[u64]> {
        self.changes.since(then)
    }

    /// Whether pods on this row count.
    pub fn is_eligible(&self, row: NodeRow) -> bool {
        self.eligible.as_ref().is_none_or(|rows| rows.get(row.index()).copied().unwrap_or(false))
    }

    fn domains_mut(&mut self, key: LabelKeyId) -> (&mut TopologyDomains, bool) {
        match self.domains.iter().position(|domains| domains.key() == key) {
            Some(at) => (&mut self.domains[at], false),
            None => {
                self.domains.push(TopologyDomains::new(key, self.spec.tracks_min()));
                let last = self.domains.len() - 1;
                (&mut self.domains[last], true)
            }
        }
    }
}

/// What a pod contributes, by counter and topology key; only counters to which it contributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterDeltas {
    deltas: Vec<(TopologyCounterId, KeyDeltas)>,
    counters: TopologyCounterSet,
}

/// What one pod contributes to a counter, by topology key; not 0.
pub(crate) type KeyDeltas = SmallVec<[(LabelKeyId, i64); 2]>;

/// Maximum number of counters without users that stay for later pods.
const IDLE_COUNTERS_MAX: usize = 256;

/// All counters.
#[derive(Default)]
pub struct TopologyCounters {
    slots: Vec<Option<TopologyCounter>>,
    free: Vec<u32>,
    next_serial: u32,
    /// `None` is for those that may count pods of several.
    by_namespace: SlotsBy<Option<Str>>,
    ids_by_spec: Map<TypeId, Box<dyn CounterIdMap>>,
    n_idle: usize,
    clock: u64,
}

trait CounterIdMap: Any + Send + Sync {
    fn forget(&mut self, id: TopologyCounterId);
}

impl<C: TopologyCounterSpec + Hash + Eq> CounterIdMap for Map<Arc<C>, TopologyCounterId> {
    fn forget(&mut self, id: TopologyCounterId) {
        self.retain(|_, known| *known != id);
    }
}

impl TopologyCounters {
    /// The counter, which must be in use.
    pub fn get(&self, id: TopologyCounterId) -> &TopologyCounter {
        match self.try_get(id) {
            Some(counter) => counter,
            None => unreachable!("a counter is dropped only after its last release"),
        }
    }

    /// The counter, if it still exists.
    pub fn try_get(&self, id: TopologyCounterId) -> Option<&TopologyCounter> {
        self.slots.get(id.slot as usize)?.as_ref().filter(|counter| counter.serial == id.serial)
    }

    /// Sequence number of the last change of the world that changed a sum of one of these counters, which must be in use, or of a later one;
    /// `None` if there was none since they were created.
    pub fn changed_at(&self, ids: impl IntoIterator<Item = TopologyCounterId>) -> Option<u64> {
        ids.into_iter().map(|id| self.get(id).changes.last()).max().flatten()
    }

    /// Sums of any counter may have changed in change `seq` of the world.
    pub(crate) fn mark_all_changed(&mut self, seq: u64) {
        self.slots.iter_mut().flatten().for_each(|counter| counter.changes.add_unknown(seq));
    }

    /// Number of counters.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Releases a counter; ignored if it was dropped already.
    pub fn release(&mut self, id: TopologyCounterId) {
        if let Some(counter) = self.get_mut(id) {
            counter.users -= 1;
            let idle = usize::from(counter.users == 0);
            self.n_idle += idle;
        }
    }

    fn get_mut(&mut self, id: TopologyCounterId) -> Option<&mut TopologyCounter> {
        let counter = self.slots.get_mut(id.slot as usize)?.as_mut()?;
        (counter.serial == id.serial).then_some(counter)
    }

    /// An existing counter, with one more user.
    pub(crate) fn reuse<C: TopologyCounterSpec + Hash + Eq>(
        &mut self,
        spec: &C,
    ) -> Option<TopologyCounterId> {
        self.clock += 1;
        let index = self.ids_by_spec.get_mut(&TypeId::of::<C>())?;
        let index: &mut dyn Any = &mut **index;
        let known: &mut Map<Arc<C>, TopologyCounterId> = index.downcast_mut()?;
        let id = *known.get(spec)?;
        let clock = self.clock;
        let counter = self.get_mut(id)?;
        let was_idle = usize::from(counter.users == 0);
        counter.users += 1;
        counter.last_used = clock;
        self.n_idle -= was_idle;
        Some(id)
    }

    /// Creates a counter with one user; the caller fills its sums.
    pub(crate) fn create<C: TopologyCounterSpec + Hash + Eq>(
        &mut self,
        spec: C,
        nodes: &NodeTable,
    ) -> TopologyCounterId {
        let spec = Arc::new(spec);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.next_serial = self.next_serial.wrapping_add(1);
        let id = TopologyCounterId { slot, serial: self.next_serial };
        let eligible = spec.has_node_filter().then(|| {
            let by_row = (0..nodes.n_rows()).map(|at| nodes.node(NodeRow(at as u32)));
            by_row.map(|node| node.is_some_and(|node| spec.counts_node(node))).collect()
        });
        let index = self
            .ids_by_spec
            .entry(TypeId::of::<C>())
            .or_insert_with(|| Box::new(Map::<Arc<C>, TopologyCounterId>::default()));
        let index: &mut dyn Any = &mut **index;
        if let Some(known) = index.downcast_mut::<Map<Arc<C>, TopologyCounterId>>() {
            known.insert(spec.clone(), id);
        }
        let domains = SmallVec::new();
        let namespace = spec.namespace().cloned();
        self.by_namespace.insert(namespace.clone(), slot);
        let counter = TopologyCounter {
            namespace,
            spec,
            domains,
            eligible,
            serial: id.serial,
            users: 1,
            last_used: self.clock,
            changes: RecentChanges::default(),
        };
        self.slots[slot as usize] = Some(counter);
        id
    }

    /// Drops the least recently used half of the counters without users, if there are too many; returns their ids.
    pub(crate) fn drop_idle(&mut self) -> Vec<TopologyCounterId> {
        if self.n_idle <= IDLE_COUNTERS_MAX {
            return Vec::new();
        }
        let idle = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let counter = slot.as_ref()?;
            let id = TopologyCounterId { slot: at as u32, serial: counter.serial };
            (counter.users == 0).then_some((counter.last_used, id))
        });
        let mut idle: Vec<(u64, TopologyCounterId)> = idle.collect();
        idle.sort_unstable();
        idle.truncate(idle.len() / 2);
        let dropped: Vec<TopologyCounterId> = idle.into_iter().map(|(_, id)| id).collect();
        for id in &dropped {
            self.drop_slot(id.slot);
            #[expect(
                clippy::disallowed_methods,
                reason = "exactly one of the maps has the id, so the order does not matter"
            )]
            for index in self.ids_by_spec.values_mut() {
                index.forget(*id);
            }
        }
        self.n_idle -= dropped.len();
        dropped
    }

    fn drop_slot(&mut self, slot: u32) {
        let Some(counter) = self.slots[slot as usize].take() else { return };
        self.free.push(slot);
        self.by_namespace.remove(&counter.namespace, slot);
    }

    /// The ids of all counters, with or without users.
    pub(crate) fn ids(&self) -> Vec<TopologyCounterId> {
        (0..self.slots.len() as u32).filter_map(|slot| self.id_in_slot(slot)).collect()
    }

    /// The ids of the counters that may count pods of a namespace.
    pub(crate) fn ids_for_namespace(&self, namespace: &Str) -> Vec<TopologyCounterId> {
        let namespaces = [Some(namespace.clone()), None];
        let slots = namespaces.iter().flat_map(|it| self.by_namespace.get(it));
        slots.filter_map(|slot| self.id_in_slot(slot)).collect()
    }

    fn id_in_slot(&self, slot: u32) -> Option<TopologyCounterId> {
        let counter = self.slots[slot as usize].as_ref()?;
        Some(TopologyCounterId { slot, serial: counter.serial })
    }

    pub(crate) fn spec(&self, id: TopologyCounterId) -> Arc<dyn TopologyCounterSpec> {
        self.get(id).spec.clone()
    }

    /// Adds `times` these contributions to a row, in change `seq` of the world; negative `times` subtracts them.
    pub(crate) fn apply(
        &mut self,
        deltas: &CounterDeltas,
        labels: &LabelColumns,
        row: NodeRow,
        times: i64,
        seq: u64,
    ) {
        for (id, deltas) in &deltas.deltas {
            let Some(counter) = self.get_mut(*id) else { continue };
            counter.changes.add(seq);
            counter.apply(deltas, labels, row, times);
        }
    }

    /// The same for one counter and each of these rows.
    pub(crate) fn apply_one(
        &mut self,
        id: TopologyCounterId,
        deltas: &CounterDeltas,
        labels: &LabelColumns,
        rows: &[NodeRow],
        times: i64,
    ) {
        if let (Some(deltas), Some(counter)) = (deltas.get(id), self.get_mut(id)) {
            rows.iter().for_each(|row| counter.apply(deltas, labels, *row, times));
        }
    }

    /// Ensures that a counter has sums and domains for a topology key.
    pub(crate) fn ensure_domains(
        &mut self,
        id: TopologyCounterId,
        key: LabelKeyId,
        nodes: &NodeTable,
    ) {
        let Some(counter) = self.get_mut(id) else { return };
        let (domains, is_new) = counter.domains_mut(key);
        if !is_new || !domains.tracks_nodes() {
            return;
        }
        let column = nodes.labels().column(key);
        for row in nodes.rows() {
            let value = column.value(row);
            if value.is_present() && counter.is_eligible(row) {
                counter.domains_mut(key).0.add_node(value);
            }
        }
    }

    /// Adds a node to (`sign` 1) or removes it from (`sign` -1) its current domains; its pods are counted separately.
    pub(crate) fn count_node(&mut self, nodes: &NodeTable, row: NodeRow, node: &Node, sign: i32) {
        for counter in self.slots.iter_mut().flatten() {
            if let Some(rows) = &mut counter.eligible {
                if rows.len() <= row.index() {
                    rows.resize(row.index() + 1, false);
                }
                if sign > 0 {
                    rows[row.index()] = counter.spec.counts_node(node);
                }
            }
            if !counter.is_eligible(row) {
                continue;
            }
            for domains in counter.domains.iter_mut().filter(|it| it.tracks_nodes()) {
                let value = nodes.labels().column(domains.key()).value(row);
                match (value.is_present(), sign > 0) {
                    (true, true) => domains.add_node(value),
                    (true, false) => domains.remove_node(value),
                    (false, _) => {}
                }
            }
        }
    }
}

impl TopologyCounter {
    fn apply(
        &mut self,
        deltas: &[(LabelKeyId, i64)],
        labels: &LabelColumns,
        row: NodeRow,
        times: i64,
    ) {
        if !self.is_eligible(row) {
            return;
        }
        for (key, amount) in deltas {
            let value = labels.column(*key).value(row);
            if !value.is_present() {
                continue;
            }
            let amount = amount * times;
            match self.domains.iter_mut().find(|domains| domains.key() == *key) {
                Some(domains) => domains.add(value, amount),
                None => self.domains_mut(*key).0.add(value, amount),
            }
        }
    }
}

impl CounterDeltas {
    /// Stores what a pod contributes to a counter, unless that is nothing.
    pub(crate) fn add(&mut self, id: TopologyCounterId, deltas: &KeyDeltas) {
        if !deltas.is_empty() {
            self.deltas.push((id, deltas.clone()));
            self.counters.insert(id);
        }
    }

    pub(crate) fn forget(&mut self, dropped: &[TopologyCounterId]) {
        self.deltas.retain(|(id, _)| !dropped.contains(id));
        self.counters = self.ids().collect();
    }

    /// The counters to which a pod contributes.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TopologyCounterId> {
        self.deltas.iter().map(|(id, _)| *id)
    }

    /// The same as a set.
    pub(crate) fn counters(&self) -> TopologyCounterSet {
        self.counters
    }

    /// What a pod contributes to one counter.
    pub(crate) fn get(&self, id: TopologyCounterId) -> Option<&[(LabelKeyId, i64)]> {
        self.deltas.iter().find(|(known, _)| *known == id).map(|(_, deltas)| &deltas[..])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    #[test]
    fn sets_of_counters_contain_their_members_and_few_others() {
        let mut rng = Rng::new(4);
        let of = |slot| TopologyCounterSet::of(TopologyCounterId { slot, serial: 1 });
        let mut check = |n_counters: u64, n_members: usize, others_max: usize| {
            let ids = (0..n_counters as u32).map(|slot| TopologyCounterId { slot, serial: 1 });
            for _ in 0..20 {
                let members: Vec<TopologyCounterId> = (0..n_members)
                    .map(|_| TopologyCounterId { slot: rng.below(n_counters) as u32, serial: 1 })
                    .collect();
                let set: TopologyCounterSet = members.iter().copied().collect();
                let contained = ids.clone().filter(|id| {
                    let one = TopologyCounterSet::of(*id);
                    assert!(set.may_intersect(one) || !set.may_contain(one));
                    set.may_contain(one)
                });
                let (known, others): (Vec<_>, Vec<_>) =
                    contained.partition(|id| members.contains(id));
                assert!(members.iter().all(|id| known.contains(id)), "{n_counters} {n_members}");
                assert!(others.len() <= others_max, "{n_counters} {n_members}: {}", others.len());
            }
        };
        check(128, 40, 0);
        check(8192, 1, 0);
        check(2_000, 2, 2);
        check(20_000, 4, 40);
        assert!(!TopologyCounterSet::EMPTY.may_contain(of(0)));
        assert!(TopologyCounterSet::ALL.may_contain(of(12_345)));
    }
}
