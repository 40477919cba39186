//! The incremental form: the world maintains the sums, and nodes in the same domains form a class.
//!
//! The class key of a row has these elements: the filter result and the score of the row's domains for
//! keys with one node per value (host names), if there are such keys, and then the row's domain for
//! every other key that has a sum.

use loadmaster_api::Str;
use loadmaster_framework::affinity_terms::{TermId, TermRole};
use loadmaster_framework::incremental::{
    ClassKey, EvaluatorKey, FilterScope, NodeClasses, ResultDependencies, RowDependency,
};
use loadmaster_framework::label_columns::{LabelKeyId, LabelValueId};
use loadmaster_framework::template::AffinityTerm;
use loadmaster_framework::topology_counter::{CounterSums, TopologyCounterId, TopologyDomains};
use loadmaster_framework::{
    EvaluatorCx, Incremental, NodeRow, PluginEvaluator, PodInfo, PrepareCx, PrepareResult, World,
};
use smallvec::SmallVec;

use super::InterPodAffinity;
use super::counters::{ExistingAntiAffinity, MatchingPods, ScoredTerms, TopologyScore};
use super::score::ScoreRange;
use super::terms::{ExistingPod, all_own_terms_match};

/// The key element of a row without the label; otherwise the element is a value id.
const ABSENT: i64 = -1;

/// Bits of the key element with the filter result of single-node domains.
const VIOLATES_ANTI_AFFINITY: i64 = 1;
const LACKS_AFFINITY: i64 = 2;

/// All that the plugin reads of an incoming pod. Its labels are not part of it: what matters is which terms match them.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct InterPodAffinityKey {
    required_affinity: Box<[AffinityTerm]>,
    /// Whether the pod's required affinity terms all match the pod itself.
    matches_own_affinity: bool,
    required_anti_affinity: Box<[AffinityTerm]>,
    /// The required anti-affinity terms of existing pods that match the pod, by id.
    existing_anti_affinity: Box<[TermId]>,
    /// `None` if nodes are not scored for the pod.
    scored: Option<ScoredTerms>,
}

impl Incremental for InterPodAffinity {
    type Key = InterPodAffinityKey;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<InterPodAffinityKey> {
        let (world, template) = (cx.world, &*pod.template);
        let cluster = world.cluster_objects();
        let namespace_labels = cluster.namespace_labels(&template.namespace);
        let matching = |roles: &[TermRole]| {
            let terms = world.affinity_terms();
            terms.matching(roles, &template.namespace, namespace_labels, &template.labels)
        };
        let mut scored_roles = SmallVec::<[_; 3]>::from_slice(&[
            TermRole::PreferredAffinity,
            TermRole::PreferredAntiAffinity,
        ]);
        if self.hard_weight > 0 {
            scored_roles.push(TermRole::RequiredAffinity);
        }
        Some(InterPodAffinityKey {
            matches_own_affinity: all_own_terms_match(
                &template.required_affinity,
                ExistingPod::new(template, cluster),
            ),
            required_affinity: template.required_affinity.clone(),
            required_anti_affinity: template.required_anti_affinity.clone(),
            existing_anti_affinity: matching(&[TermRole::RequiredAntiAffinity]),
            scored: self.scores(template).then(|| ScoredTerms {
                preferred_affinity: template.preferred_affinity.clone(),
                preferred_anti_affinity: template.preferred_anti_affinity.clone(),
                existing: matching(&scored_roles),
            }),
        })
    }

    /// Those of its own required terms, and of existing pods' terms.
    fn label_keys(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Vec<Str>> {
        let own = pod.template.required_affinity.iter().flat_map(|term| term.selector.keys());
        Some(own.chain(cx.world.affinity_terms().label_keys()).cloned().collect())
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, key: &InterPodAffinityKey) -> PrepareResult {
        let mut evaluator = InterPodAffinityEvaluator {
            matches_own_affinity: key.matches_own_affinity,
            ..InterPodAffinityEvaluator::default()
        };
        if !key.required_affinity.is_empty() {
            let affinity = cx.topology_counter(MatchingPods::affinity(&key.required_affinity));
            evaluator.affinity = evaluator.counter_keys(cx.world(), affinity);
        }
        if !key.required_anti_affinity.is_empty() {
            let spec = MatchingPods::anti_affinity(&key.required_anti_affinity);
            let anti_affinity = cx.topology_counter(spec);
            evaluator.anti_affinity = evaluator.counter_keys(cx.world(), anti_affinity);
        }
        if !key.existing_anti_affinity.is_empty() {
            let terms = cx.world().affinity_terms();
            let spec = ExistingAntiAffinity::new(&key.existing_anti_affinity, terms);
            let existing = cx.topology_counter(spec);
            let sums = evaluator.counter_keys(cx.world(), existing);
            evaluator.anti_affinity.extend(sums);
        }
        if let Some(scored) = key.scored.as_ref().filter(|scored| !scored.is_empty()) {
            let terms = cx.world().affinity_terms();
            let weights = cx.topology_counter(TopologyScore::new(scored, self.hard_weight, terms));
            evaluator.topology_score = evaluator.counter_keys(cx.world(), weights);
        }
        if evaluator.is_empty() {
            return PrepareResult::Skip;
        }
        let is_single_node = CounterKey::is_single_node;
        let filtered = evaluator.affinity.iter().chain(&evaluator.anti_affinity);
        evaluator.has_node_filter_result = { filtered }.any(is_single_node);
        evaluator.has_node_score = evaluator.topology_score.iter().any(is_single_node);
        PrepareResult::Evaluator(Box::new(evaluator))
    }
}

/// Sums by topology key, each with the way in which its domains enter the class key.
#[derive(Default)]
struct InterPodAffinityEvaluator {
    affinity: CounterKeys,
    matches_own_affinity: bool,
    /// Of the pod itself and of existing pods.
    anti_affinity: CounterKeys,
    topology_score: CounterKeys,
    /// Whether a sum for a key with one node per domain is filtered by.
    has_node_filter_result: bool,
    /// Whether such a sum is scored by.
    has_node_score: bool,
    /// Keys with domains of several nodes: elements of the class key.
    shared: SmallVec<[LabelKeyId; 2]>,
    /// Keys with domains of one node.
    single_node: SmallVec<[LabelKeyId; 2]>,
}

type CounterKeys = SmallVec<[CounterKey; 2]>;

/// The sums of one counter for one key.
#[derive(Clone, Copy)]
struct CounterKey {
    sums: CounterSums,
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
    fn is_single_node(&self) -> bool {
        self.domain == DomainSource::SingleNode
    }

    /// The sum in the domain of a row.
    fn at_row(&self, world: &World, row: NodeRow) -> i64 {
        let domain = world.nodes().labels().column(self.key).value(row);
        self.sums.domain_sum(world.topology_counters(), domain)
    }

    /// The sum in the shared domain that a class is in; 0 for other keys.
    fn at_class(&self, world: &World, shared: &[i64]) -> i64 {
        let DomainSource::ClassKey(index) = self.domain else { return 0 };
        if shared[index] == ABSENT {
            return 0;
        }
        self.sums.domain_sum(world.topology_counters(), LabelValueId(shared[index] as u32))
    }
}

impl InterPodAffinityEvaluator {
    fn is_empty(&self) -> bool {
        self.affinity.is_empty() && self.anti_affinity.is_empty() && self.topology_score.is_empty()
    }

    fn counter_keys(&mut self, world: &World, counter: TopologyCounterId) -> CounterKeys {
        let domains =
            world.topology_counter(counter).domains().iter().map(TopologyDomains::key).enumerate();
        domains
            .map(|(nth, key)| CounterKey {
                sums: CounterSums { counter, nth },
                key,
                domain: self.domain_source(world, key),
            })
            .collect()
    }

    fn domain_source(&mut self, world: &World, key: LabelKeyId) -> DomainSource {
        if world.nodes().labels().column(key).is_unique() {
            if !self.single_node.contains(&key) {
                self.single_node.push(key);
            }
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

    /// The filter result of the domains of one node, given their sums.
    fn node_filter_result(&self, sum_at: impl Fn(&CounterKey) -> i64) -> i64 {
        let single_node = |sum: &&CounterKey| sum.is_single_node();
        let mut anti_affinity = self.anti_affinity.iter().filter(single_node);
        let mut affinity = self.affinity.iter().filter(single_node);
        let violates_anti_affinity = anti_affinity.any(|sum| sum_at(sum) > 0);
        let lacks_affinity = affinity.any(|sum| sum_at(sum) <= 0);
        VIOLATES_ANTI_AFFINITY * i64::from(violates_anti_affinity)
            + LACKS_AFFINITY * i64::from(lacks_affinity)
    }

    /// Appends the class key of a row, given the sums in domains of one node.
    fn push_key(
        &self,
        world: &World,
        row: NodeRow,
        out: &mut ClassKey,
        sum_at: impl Fn(&CounterKey) -> i64,
    ) {
        if self.has_node_filter_result {
            out.push(self.node_filter_result(&sum_at));
        }
        if self.has_node_score {
            out.push(self.node_score(&sum_at));
        }
        let labels = world.nodes().labels();
        out.extend(self.shared.iter().map(|key| {
            let domain = labels.column(*key).value(row);
            if domain.is_present() { i64::from(domain.0) } else { ABSENT }
        }));
    }

    /// The score of the domains of one node, given their sums.
    fn node_score(&self, sum_at: impl Fn(&CounterKey) -> i64) -> i64 {
        self.topology_score.iter().filter(|sum| sum.is_single_node()).map(sum_at).sum()
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
        let counters = world.topology_counters();
        let is_none = |sum: &CounterKey| {
            sum.sums.domains(counters).is_none_or(|domains| domains.total() == 0)
        };
        self.matches_own_affinity && self.affinity.iter().all(is_none)
    }
}

/// All that [`InterPodAffinityEvaluator::filter_row`] and `uncounted_class_key` depend on.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Uncounted {
    /// Keys of required affinity, which a node must have.
    required_keys: SmallVec<[LabelKeyId; 2]>,
    node_filter_result: Option<i64>,
    has_node_score: bool,
    shared: SmallVec<[LabelKeyId; 2]>,
}

impl PluginEvaluator for InterPodAffinityEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let part =
            if self.first_shared_index() > 0 { RowDependency::Pods } else { RowDependency::Node };
        ResultDependencies {
            filter: (!self.affinity.is_empty()).then_some(RowDependency::Node),
            class: (self.class_key_len() > 0).then_some(part),
            class_reads_counters_only: true,
            ..ResultDependencies::default()
        }
    }

    fn filter_scope(&self) -> FilterScope {
        // Whether the pod is the first one of a group with affinity to itself depends on all nodes.
        if self.affinity.is_empty() && self.anti_affinity.is_empty() {
            FilterScope::Nothing
        } else if self.affinity.is_empty()
            && self.anti_affinity.iter().all(CounterKey::is_single_node)
        {
            FilterScope::Node
        } else {
            FilterScope::Cluster
        }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let labels = cx.nodes().labels();
        self.affinity.iter().all(|sum| labels.column(sum.key).value(row).is_present())
    }

    fn class_key_len(&self) -> usize {
        self.first_shared_index() + self.shared.len()
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        self.push_key(cx.world, row, out, |sum| sum.at_row(cx.world, row));
    }

    fn uncounted(&self) -> Option<EvaluatorKey> {
        Some(EvaluatorKey::new(Uncounted {
            required_keys: self.affinity.iter().map(|sum| sum.key).collect(),
            node_filter_result: self.has_node_filter_result.then(|| self.node_filter_result(|_| 0)),
            has_node_score: self.has_node_score,
            shared: self.shared.clone(),
        }))
    }

    fn uncounted_class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        self.push_key(cx.world, row, out, |_| 0);
    }

    fn filter_class(&self, cx: EvaluatorCx<'_>, key: &[i64]) -> bool {
        let shared = &key[self.first_shared_index()..];
        let node_result = if self.has_node_filter_result { key[0] } else { 0 };
        if node_result & VIOLATES_ANTI_AFFINITY != 0
            || self.violates_anti_affinity(cx.world, shared)
        {
            return false;
        }
        let lacks_affinity =
            node_result & LACKS_AFFINITY != 0 || self.lacks_affinity(cx.world, shared);
        !lacks_affinity || self.is_first_of_group(cx.world)
    }

    fn has_class_scores(&self) -> bool {
        !self.topology_score.is_empty()
    }

    fn score_classes(&self, cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let first_shared_index = self.first_shared_index();
        let score_index = self.has_node_score.then(|| usize::from(self.has_node_filter_result));
        for class in classes.feasible() {
            let key = classes.key(class);
            let shared = &key[first_shared_index..];
            let node_score = score_index.map_or(0, |at| key[at]);
            let sums = self.topology_score.iter().map(|sum| sum.at_class(cx.world, shared));
            out[class] = node_score + sums.sum::<i64>();
        }
        let range = ScoreRange::new(classes.feasible().map(|class| out[class]));
        for class in classes.feasible() {
            out[class] = range.normalize(out[class]);
        }
    }

    /// Stale once a key has domains of several nodes instead of one, or the other way round.
    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let is_unique = |key: &LabelKeyId| cx.nodes().labels().column(*key).is_unique();
        self.shared.iter().any(is_unique) || !self.single_node.iter().all(is_unique)
    }
}
