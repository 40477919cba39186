//! The incremental form: the world maintains the sums, and nodes in the same domains form a class.
//!
//! The class key of a row has these elements: the filter result and the score of the row's domains for
//! keys with one node per value (host names), if there are such keys, and then the row's domain for
//! every other key that has a sum.

use loadmaster_framework::incremental::{ClassKey, NodeClasses, ResultDependencies, RowDependency};
use loadmaster_framework::label_columns::{LabelKeyId, LabelValueId};
use loadmaster_framework::topology_counter::{
    TopologyCounterId, TopologyCounterSpec, TopologyDomains,
};
use loadmaster_framework::{
    Incremental, NodeRow, NodeTable, PluginEvaluator, PodInfo, PrepareResult, World,
};
use smallvec::SmallVec;

use super::counters::{ExistingAntiAffinity, MatchingPods, PodsWithTerms, TopologyScore};
use super::score::ScoreRange;
use super::terms::all_own_terms_match;
use super::{InterPodAffinity, has_preferred_terms};

/// The key element of a row without the label; otherwise the element is a value id.
const ABSENT: i64 = -1;

/// Bits of the key element with the filter result of single-node domains.
const VIOLATES_ANTI_AFFINITY: i64 = 1;
const LACKS_AFFINITY: i64 = 2;

impl Incremental for InterPodAffinity {
    /// Never returns Skip: the next existing pod may have terms that match this pod.
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> PrepareResult {
        let template = &pod.template;
        let mut evaluator = InterPodAffinityEvaluator::default();
        if !template.required_affinity.is_empty() {
            let affinity = evaluator.acquire_counter(world, MatchingPods::affinity(template));
            let cluster = world.cluster_objects();
            evaluator.matches_own_affinity =
                all_own_terms_match(&template.required_affinity, template, cluster);
            evaluator.affinity = evaluator.counter_keys(world, affinity);
        }
        if !template.required_anti_affinity.is_empty() {
            let anti_affinity =
                evaluator.acquire_counter(world, MatchingPods::anti_affinity(template));
            evaluator.anti_affinity = evaluator.counter_keys(world, anti_affinity);
        }
        if evaluator.has_pods_with_terms(world, PodsWithTerms::RequiredAntiAffinity) {
            let existing_anti_affinity =
                evaluator.acquire_counter(world, ExistingAntiAffinity::new(template));
            let sums = evaluator.counter_keys(world, existing_anti_affinity);
            evaluator.anti_affinity.extend(sums);
        }
        let hard = self.hard_weight > 0;
        if self.scores(template)
            && (has_preferred_terms(template)
                || evaluator.has_pods_with_terms(world, PodsWithTerms::PreferredTerms { hard }))
        {
            let weights =
                evaluator.acquire_counter(world, TopologyScore::new(self.incoming_pod(template)));
            evaluator.topology_score = evaluator.counter_keys(world, weights);
        }
        evaluator.has_node_filter_result = evaluator
            .affinity
            .iter()
            .chain(&evaluator.anti_affinity)
            .any(CounterKey::is_single_node);
        evaluator.has_node_score = evaluator.topology_score.iter().any(CounterKey::is_single_node);
        PrepareResult::Evaluator(Box::new(evaluator))
    }
}

#[derive(Default)]
struct InterPodAffinityEvaluator {
    /// Pods that match all required affinity terms: there must be one in each domain of the node.
    affinity: CounterKeys,
    /// The pod matches its own affinity terms, so it may be the first pod of its group.
    matches_own_affinity: bool,
    /// Pods that must not be in a domain of the node, by the anti-affinity of either side.
    anti_affinity: CounterKeys,
    /// Sums of the weights of preferred terms.
    topology_score: CounterKeys,
    /// Whether the class key has an element for the filter result, and one for the score, of
    /// single-node domains.
    has_node_filter_result: bool,
    has_node_score: bool,
    /// Topology keys of the sums above with domains of several nodes, in the order of the class key.
    shared: SmallVec<[LabelKeyId; 2]>,
    /// The counters to release, each with the number of keys that it had.
    counters: SmallVec<[(TopologyCounterId, usize); 4]>,
}

type CounterKeys = SmallVec<[CounterKey; 2]>;

/// The sums of one counter for one key.
#[derive(Clone, Copy)]
struct CounterKey {
    counter: TopologyCounterId,
    /// Index of the key in the counter.
    nth: usize,
    key: LabelKeyId,
    domain: DomainSource,
}

/// How the domain of a row is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DomainSource {
    /// One node per domain: from the row's label.
    SingleNode,
    /// From the n-th class key element for shared domains.
    ClassKey(usize),
}

impl CounterKey {
    fn domains<'a>(&self, world: &'a World) -> Option<&'a TopologyDomains> {
        world.topology_counter(self.counter).domains().get(self.nth)
    }

    fn is_single_node(&self) -> bool {
        self.domain == DomainSource::SingleNode
    }

    /// The sum in the domain of a row.
    fn at_row(&self, world: &World, row: NodeRow) -> i64 {
        let domain = world.nodes().labels().column(self.key).value(row);
        self.domains(world).map_or(0, |domains| domains.domain_sum(domain))
    }

    /// The sum in the shared domain that a class is in; 0 for other keys.
    fn at_class(&self, world: &World, shared: &[i64]) -> i64 {
        let DomainSource::ClassKey(index) = self.domain else { return 0 };
        if shared[index] == ABSENT {
            return 0;
        }
        self.domains(world)
            .map_or(0, |domains| domains.domain_sum(LabelValueId(shared[index] as u32)))
    }
}

impl InterPodAffinityEvaluator {
    fn acquire_counter<C: TopologyCounterSpec + std::hash::Hash + Eq>(
        &mut self,
        world: &mut World,
        what: C,
    ) -> TopologyCounterId {
        let counter = world.acquire_topology_counter(what);
        self.counters.push((counter, world.topology_counter(counter).domains().len()));
        counter
    }

    /// Whether there are pods with such terms. If not, the evaluator becomes stale with the first one.
    fn has_pods_with_terms(&mut self, world: &mut World, what: PodsWithTerms) -> bool {
        let counter = self.acquire_counter(world, what);
        !world.topology_counter(counter).domains().is_empty()
    }

    fn counter_keys(&mut self, world: &World, counter: TopologyCounterId) -> CounterKeys {
        let domains =
            world.topology_counter(counter).domains().iter().map(TopologyDomains::key).enumerate();
        domains
            .map(|(nth, key)| CounterKey {
                counter,
                nth,
                key,
                domain: self.domain_source(world, key),
            })
            .collect()
    }

    fn domain_source(&mut self, world: &World, key: LabelKeyId) -> DomainSource {
        if world.nodes().labels().column(key).is_unique() {
            return DomainSource::SingleNode;
        }
        let known = self.shared.iter().position(|known| *known == key);
        DomainSource::ClassKey(known.unwrap_or_else(|| {
            self.shared.push(key);
            self.shared.len() - 1
        }))
    }

    /// Index of the first class key element for shared domains.
    fn first_shared_index(&self) -> usize {
        usize::from(self.has_node_filter_result) + usize::from(self.has_node_score)
    }

    fn node_filter_result(&self, world: &World, row: NodeRow) -> i64 {
        let single_node = |sum: &&CounterKey| sum.is_single_node();
        let mut anti_affinity = self.anti_affinity.iter().filter(single_node);
        let mut affinity = self.affinity.iter().filter(single_node);
        let violates_anti_affinity = anti_affinity.any(|sum| sum.at_row(world, row) > 0);
        let lacks_affinity = affinity.any(|sum| sum.at_row(world, row) <= 0);
        VIOLATES_ANTI_AFFINITY * i64::from(violates_anti_affinity)
            + LACKS_AFFINITY * i64::from(lacks_affinity)
    }

    fn node_score(&self, world: &World, row: NodeRow) -> i64 {
        let single_node = self.topology_score.iter().filter(|sum| sum.is_single_node());
        single_node.map(|sum| sum.at_row(world, row)).sum()
    }

    fn violates_anti_affinity(&self, world: &World, shared: &[i64]) -> bool {
        self.anti_affinity.iter().any(|sum| sum.at_class(world, shared) > 0)
    }

    fn lacks_affinity(&self, world: &World, shared: &[i64]) -> bool {
        let mut affinity = self.affinity.iter().filter(|sum| !sum.is_single_node());
        affinity.any(|sum| sum.at_class(world, shared) <= 0)
    }

    /// Whether the pod would be the first one of a group with affinity to itself.
    fn is_first_of_group(&self, world: &World) -> bool {
        let is_none =
            |sum: &CounterKey| sum.domains(world).is_none_or(|domains| domains.total() == 0);
        self.matches_own_affinity && self.affinity.iter().all(is_none)
    }
}

impl PluginEvaluator for InterPodAffinityEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let part =
            if self.first_shared_index() > 0 { RowDependency::Pods } else { RowDependency::Node };
        ResultDependencies {
            filter: (!self.affinity.is_empty()).then_some(RowDependency::Node),
            class: (self.class_key_len() > 0).then_some(part),
            ..ResultDependencies::default()
        }
    }

    fn filter_row(&self, nodes: &NodeTable, row: NodeRow) -> bool {
        let labels = nodes.labels();
        self.affinity.iter().all(|sum| labels.column(sum.key).value(row).is_present())
    }

    fn class_key_len(&self) -> usize {
        self.first_shared_index() + self.shared.len()
    }

    fn class_key(&self, world: &World, row: NodeRow, out: &mut ClassKey) {
        if self.has_node_filter_result {
            out.push(self.node_filter_result(world, row));
        }
        if self.has_node_score {
            out.push(self.node_score(world, row));
        }
        let labels = world.nodes().labels();
        out.extend(self.shared.iter().map(|key| {
            let domain = labels.column(*key).value(row);
            if domain.is_present() { i64::from(domain.0) } else { ABSENT }
        }));
    }

    fn filter_class(&self, world: &World, key: &[i64]) -> bool {
        let shared = &key[self.first_shared_index()..];
        let node_result = if self.has_node_filter_result { key[0] } else { 0 };
        if node_result & VIOLATES_ANTI_AFFINITY != 0 || self.violates_anti_affinity(world, shared) {
            return false;
        }
        let lacks_affinity =
            node_result & LACKS_AFFINITY != 0 || self.lacks_affinity(world, shared);
        !lacks_affinity || self.is_first_of_group(world)
    }

    fn has_class_scores(&self) -> bool {
        !self.topology_score.is_empty()
    }

    fn score_classes(&self, world: &World, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let first_shared_index = self.first_shared_index();
        let score_index = self.has_node_score.then(|| usize::from(self.has_node_filter_result));
        for class in classes.feasible() {
            let key = classes.key(class);
            let shared = &key[first_shared_index..];
            let node_score = score_index.map_or(0, |at| key[at]);
            let sums = self.topology_score.iter().map(|sum| sum.at_class(world, shared));
            out[class] = node_score + sums.sum::<i64>();
        }
        let range = ScoreRange::new(classes.feasible().map(|class| out[class]));
        for class in classes.feasible() {
            out[class] = range.normalize(out[class]);
        }
    }

    /// Stale once a counter has more keys: pods with terms for other topology keys were added.
    fn is_stale(&self, world: &World) -> bool {
        let is_stale = |(counter, n_keys): &(TopologyCounterId, usize)| {
            let counter = world.topology_counters().try_get(*counter);
            counter.is_none_or(|counter| counter.domains().len() != *n_keys)
        };
        self.counters.iter().any(is_stale)
    }

    fn release(&mut self, world: &mut World) {
        for (counter, _) in self.counters.drain(..) {
            world.release_topology_counter(counter);
        }
    }
}
