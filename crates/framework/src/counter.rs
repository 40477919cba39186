//! Sums over assigned pods by topology domain, owned and kept current by the world.
//!
//! A constraint such as "spread these pods over zones" needs, per zone, how many matching pods run there. Computed from
//! nothing that costs a walk over all pods; kept current it costs a few additions a placement. A plugin describes the sum by a
//! [`Counted`] value; equal values share one counter, whichever pod asks.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use loadmaster_api::{Node, Str};
use loadmaster_stdx::Map;
use smallvec::SmallVec;

use crate::cluster::Cluster;
use crate::label::{KeyId, LabelColumns, ValueId};
use crate::table::{NodeTable, Row};
use crate::template::PodTemplate;

/// What is summed: a pure function of a pod's template, and which nodes count.
pub trait Counted: Send + Sync + 'static {
    /// What an assigned pod with this template adds, by topology key. `terminating` pods have a deletion timestamp.
    fn delta(&self, pod: &PodTemplate, terminating: bool, cluster: &Cluster, out: &mut Deltas);

    /// Whether there may be nodes whose pods do not count; only then is [`Counted::counts_on`] asked.
    fn is_selective(&self) -> bool {
        false
    }

    /// Whether pods on this node count. Nodes without the key never count for that key.
    fn counts_on(&self, node: &Node) -> bool {
        let _ = node;
        true
    }

    /// Whether [`Domains::min`] will be asked: keeping it current makes every addition dearer.
    fn wants_min(&self) -> bool {
        false
    }

    /// Topology keys that the sums are wanted for even while no pod adds to them.
    fn keys(&self) -> &[Str];
}

/// What one pod adds, key by key.
#[derive(Default)]
pub struct Deltas(SmallVec<[(Str, i64); 2]>);

impl Deltas {
    /// Adds `amount` at the pod's domain of `key`.
    pub fn add(&mut self, key: &Str, amount: i64) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, sum)) => *sum += amount,
            None => self.0.push((key.clone(), amount)),
        }
    }
}

/// A counter of the world. Given back with [`Counters::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterId {
    slot: u32,
    /// Tells counters apart that used the same slot one after the other.
    serial: u32,
}

/// The sums of one counter for one topology key.
#[derive(Clone, Debug)]
pub struct Domains {
    key: KeyId,
    sums: Vec<i64>,
    /// Eligible nodes by domain: a domain exists while it has one.
    nodes: Vec<u32>,
    /// How many existing domains have which sum, if the least is wanted.
    histogram: Option<BTreeMap<i64, u32>>,
    n_domains: u32,
    total: i64,
}

impl Domains {
    fn new(key: KeyId, wants_min: bool) -> Self {
        let histogram = wants_min.then(BTreeMap::new);
        Domains { key, sums: vec![], nodes: vec![], histogram, n_domains: 0, total: 0 }
    }

    /// The topology key.
    pub fn key(&self) -> KeyId {
        self.key
    }

    /// The sum of a domain; 0 where nothing was counted or the node lacks the key.
    pub fn sum(&self, domain: ValueId) -> i64 {
        self.sums.get(domain.0 as usize).copied().unwrap_or(0)
    }

    /// Whether an eligible node carries this value.
    pub fn exists(&self, domain: ValueId) -> bool {
        self.nodes.get(domain.0 as usize).is_some_and(|nodes| *nodes > 0)
    }

    /// How many values eligible nodes carry.
    pub fn n_domains(&self) -> u32 {
        self.n_domains
    }

    /// The least sum over existing domains; `None` without any, or if nobody wanted it kept.
    pub fn min(&self) -> Option<i64> {
        self.histogram.as_ref()?.first_key_value().map(|(sum, _)| *sum)
    }

    /// The sum over all domains.
    pub fn total(&self) -> i64 {
        self.total
    }

    fn reserve(&mut self, domain: ValueId) -> usize {
        let at = domain.0 as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, 0);
            self.nodes.resize(at + 1, 0);
        }
        at
    }

    fn add(&mut self, domain: ValueId, amount: i64) {
        let at = self.reserve(domain);
        let exists = self.nodes[at] > 0;
        if exists {
            self.leave_histogram(self.sums[at]);
        }
        self.sums[at] += amount;
        self.total += amount;
        if exists {
            self.enter_histogram(self.sums[at]);
        }
    }

    fn add_node(&mut self, domain: ValueId) {
        let at = self.reserve(domain);
        self.nodes[at] += 1;
        if self.nodes[at] == 1 {
            self.n_domains += 1;
            self.enter_histogram(self.sums[at]);
        }
    }

    fn remove_node(&mut self, domain: ValueId) {
        let at = self.reserve(domain);
        self.nodes[at] -= 1;
        if self.nodes[at] == 0 {
            self.n_domains -= 1;
            self.leave_histogram(self.sums[at]);
        }
    }

    fn enter_histogram(&mut self, sum: i64) {
        if let Some(histogram) = &mut self.histogram {
            *histogram.entry(sum).or_insert(0) += 1;
        }
    }

    fn leave_histogram(&mut self, sum: i64) {
        let Some(histogram) = &mut self.histogram else { return };
        if let Some(n) = histogram.get_mut(&sum) {
            *n -= 1;
            if *n == 0 {
                histogram.remove(&sum);
            }
        }
    }
}

/// One counter.
pub struct Counter {
    what: Arc<dyn Counted>,
    domains: SmallVec<[Domains; 1]>,
    /// By row, for counters that do not count every node.
    eligible: Option<Vec<bool>>,
    serial: u32,
    users: u32,
    last_used: u64,
}

impl Counter {
    /// The sums by topology key, in the order in which the keys became known; the list only grows.
    pub fn domains(&self) -> &[Domains] {
        &self.domains
    }

    /// The sums for one key.
    pub fn at(&self, key: KeyId) -> Option<&Domains> {
        self.domains.iter().find(|domains| domains.key == key)
    }

    /// Whether pods on this row count.
    pub fn is_eligible(&self, row: Row) -> bool {
        self.eligible.as_ref().is_none_or(|rows| rows.get(row.index()).copied().unwrap_or(false))
    }

    fn domains_mut(&mut self, key: KeyId) -> (&mut Domains, bool) {
        match self.domains.iter().position(|domains| domains.key == key) {
            Some(at) => (&mut self.domains[at], false),
            None => {
                self.domains.push(Domains::new(key, self.what.wants_min()));
                let last = self.domains.len() - 1;
                (&mut self.domains[last], true)
            }
        }
    }
}

/// What a template adds to the counters it concerns: per counter, per key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects(Vec<(CounterId, KeyDeltas)>);

type KeyDeltas = SmallVec<[(KeyId, i64); 1]>;

/// How many counters are kept for pods that may come again, beside those in use.
const IDLE_COUNTERS_MAX: usize = 256;

/// All counters.
#[derive(Default)]
pub struct Counters {
    slots: Vec<Option<Counter>>,
    free: Vec<u32>,
    next_serial: u32,
    known: Map<TypeId, Box<dyn Index>>,
    n_idle: usize,
    clock: u64,
}

trait Index: Any + Send + Sync {
    fn forget(&mut self, id: CounterId);
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<C: Counted + Hash + Eq> Index for Map<Arc<C>, CounterId> {
    fn forget(&mut self, id: CounterId) {
        self.retain(|_, known| *known != id);
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Counters {
    /// The counter, which must be in use.
    pub fn get(&self, id: CounterId) -> &Counter {
        match self.try_get(id) {
            Some(counter) => counter,
            None => unreachable!("a counter is dropped only after its last release"),
        }
    }

    /// The counter, if it still exists: all are dropped when what pods add may have changed.
    pub fn try_get(&self, id: CounterId) -> Option<&Counter> {
        self.slots.get(id.slot as usize)?.as_ref().filter(|counter| counter.serial == id.serial)
    }

    /// Number of counters held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a counter back; one that is gone already is ignored.
    pub fn release(&mut self, id: CounterId) {
        if let Some(counter) = self.get_mut(id) {
            counter.users -= 1;
            let idle = usize::from(counter.users == 0);
            self.n_idle += idle;
        }
    }

    /// Drops every counter; the ids handed out so far become stale.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.known.clear();
        self.n_idle = 0;
    }

    fn get_mut(&mut self, id: CounterId) -> Option<&mut Counter> {
        let counter = self.slots.get_mut(id.slot as usize)?.as_mut()?;
        (counter.serial == id.serial).then_some(counter)
    }

    /// A known counter, now with one more user.
    pub(crate) fn reuse<C: Counted + Hash + Eq>(&mut self, what: &C) -> Option<CounterId> {
        self.clock += 1;
        let index = self.known.get_mut(&TypeId::of::<C>())?;
        let known: &mut Map<Arc<C>, CounterId> = (**index).as_any_mut().downcast_mut()?;
        let id = *known.get(what)?;
        let clock = self.clock;
        let counter = self.get_mut(id)?;
        let was_idle = usize::from(counter.users == 0);
        counter.users += 1;
        counter.last_used = clock;
        self.n_idle -= was_idle;
        Some(id)
    }

    /// A new counter with one user; its sums still have to be filled.
    pub(crate) fn create<C: Counted + Hash + Eq>(
        &mut self,
        what: C,
        nodes: &NodeTable,
    ) -> CounterId {
        let what = Arc::new(what);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.next_serial = self.next_serial.wrapping_add(1);
        let id = CounterId { slot, serial: self.next_serial };
        let eligible = what.is_selective().then(|| {
            let by_row = (0..nodes.n_rows()).map(|at| nodes.node(Row(at as u32)));
            by_row.map(|node| node.is_some_and(|node| what.counts_on(node))).collect()
        });
        let index = self
            .known
            .entry(TypeId::of::<C>())
            .or_insert_with(|| Box::new(Map::<Arc<C>, CounterId>::default()));
        if let Some(known) = (**index).as_any_mut().downcast_mut::<Map<Arc<C>, CounterId>>() {
            known.insert(what.clone(), id);
        }
        let domains = SmallVec::new();
        let counter =
            Counter { what, domains, eligible, serial: id.serial, users: 1, last_used: self.clock };
        self.slots[slot as usize] = Some(counter);
        id
    }

    /// Drops the idle counters that were not used for longest; answers which are gone.
    pub(crate) fn trim(&mut self) -> Vec<CounterId> {
        if self.n_idle <= IDLE_COUNTERS_MAX {
            return Vec::new();
        }
        let idle = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let counter = slot.as_ref()?;
            let id = CounterId { slot: at as u32, serial: counter.serial };
            (counter.users == 0).then_some((counter.last_used, id))
        });
        let mut idle: Vec<(u64, CounterId)> = idle.collect();
        idle.sort_unstable();
        idle.truncate(idle.len() / 2);
        let gone: Vec<CounterId> = idle.into_iter().map(|(_, id)| id).collect();
        for id in &gone {
            self.slots[id.slot as usize] = None;
            self.free.push(id.slot);
            #[expect(
                clippy::disallowed_methods,
                reason = "one of them knows it, whichever comes first"
            )]
            for index in self.known.values_mut() {
                index.forget(*id);
            }
        }
        self.n_idle -= gone.len();
        gone
    }

    /// All counters in use or kept.
    pub(crate) fn ids(&self) -> impl Iterator<Item = CounterId> + use<> {
        let held = self.slots.iter().enumerate().filter_map(|(at, slot)| {
            Some(CounterId { slot: at as u32, serial: slot.as_ref()?.serial })
        });
        held.collect::<Vec<_>>().into_iter()
    }

    pub(crate) fn what(&self, id: CounterId) -> Arc<dyn Counted> {
        self.get(id).what.clone()
    }

    /// Adds or takes away what pods with these effects count on a row.
    pub(crate) fn apply(&mut self, effects: &Effects, labels: &LabelColumns, row: Row, times: i64) {
        for (id, deltas) in &effects.0 {
            let Some(counter) = self.get_mut(*id) else { continue };
            counter.apply(deltas, labels, row, times);
        }
    }

    /// The same for one counter alone.
    pub(crate) fn apply_one(
        &mut self,
        id: CounterId,
        effects: &Effects,
        labels: &LabelColumns,
        row: Row,
        times: i64,
    ) {
        let deltas = effects.0.iter().find(|(known, _)| *known == id);
        if let (Some((_, deltas)), Some(counter)) = (deltas, self.get_mut(id)) {
            counter.apply(deltas, labels, row, times);
        }
    }

    /// Makes sure that a counter has sums for a key, with the nodes' domains in place.
    pub(crate) fn ensure_domains(&mut self, id: CounterId, key: KeyId, nodes: &NodeTable) {
        let Some(counter) = self.get_mut(id) else { return };
        if !counter.domains_mut(key).1 {
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

    /// A node appears in (`sign` 1) or leaves (`sign` -1) the domains it has at this moment; its pods are counted apart.
    pub(crate) fn count_node(&mut self, nodes: &NodeTable, row: Row, node: &Node, sign: i32) {
        for counter in self.slots.iter_mut().flatten() {
            if let Some(rows) = &mut counter.eligible {
                if rows.len() <= row.index() {
                    rows.resize(row.index() + 1, false);
                }
                if sign > 0 {
                    rows[row.index()] = counter.what.counts_on(node);
                }
            }
            if !counter.is_eligible(row) {
                continue;
            }
            for domains in &mut counter.domains {
                let value = nodes.labels().column(domains.key).value(row);
                match (value.is_present(), sign > 0) {
                    (true, true) => domains.add_node(value),
                    (true, false) => domains.remove_node(value),
                    (false, _) => {}
                }
            }
        }
    }
}

impl Counter {
    fn apply(&mut self, deltas: &[(KeyId, i64)], labels: &LabelColumns, row: Row, times: i64) {
        if !self.is_eligible(row) {
            return;
        }
        for (key, amount) in deltas {
            let value = labels.column(*key).value(row);
            if value.is_present() {
                self.domains_mut(*key).0.add(value, amount * times);
            }
        }
    }
}

impl Effects {
    /// Works out what a template adds to a counter and remembers it if it is anything; answers the keys concerned.
    pub(crate) fn learn(
        &mut self,
        id: CounterId,
        what: &dyn Counted,
        pod: &PodTemplate,
        terminating: bool,
        cluster: &Cluster,
        mut key_id: impl FnMut(&Str) -> KeyId,
    ) -> SmallVec<[KeyId; 1]> {
        let mut deltas = Deltas::default();
        what.delta(pod, terminating, cluster, &mut deltas);
        let known: KeyDeltas = deltas
            .0
            .iter()
            .filter(|(_, amount)| *amount != 0)
            .map(|(key, n)| (key_id(key), *n))
            .collect();
        let keys = known.iter().map(|(key, _)| *key).collect();
        if !known.is_empty() {
            self.0.push((id, known));
        }
        keys
    }

    pub(crate) fn forget(&mut self, gone: &[CounterId]) {
        self.0.retain(|(id, _)| !gone.contains(id));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
