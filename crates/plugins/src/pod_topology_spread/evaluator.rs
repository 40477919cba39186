//! The incremental form: the world maintains the counts, and nodes in the same domains form a class.
//!
//! A placement changes one count, but with it the global minimum, the number of feasible domains and
//! so the result and the score of every node. None of these may be stored per row: the class key of a
//! row has only its domains, and a decision computes the rest once per class. For topology keys with
//! one node per domain (host names) the key element is the count itself, because the domain would make
//! every row a class of its own.

use loadmaster_api::Str;
use loadmaster_framework::incremental::{
    ClassKey, EvaluatorKey, FilterScope, NodeClasses, ResultDependencies, RowDependency,
};
use loadmaster_framework::label_columns::{LabelColumn, LabelColumns, LabelKeyId, LabelValueId};
use loadmaster_framework::topology_counter::CounterSums;
use loadmaster_framework::{
    EvaluatorCx, Failure, Incremental, NodeInfo, NodeRow, PluginEvaluator, PodInfo, PrepareCx,
    PrepareResult, Rejection, World,
};
use smallvec::SmallVec;

use super::constraint::{self, Constraint, MatchCounter, MatchingPods};
use super::default_selector::default_selector_label_keys;
use super::score::{self, ScoreRange, Weight};
use super::{HOSTNAME, PodTopologySpread};

/// The key element of a row without the label: neither a count nor a value id.
const ABSENT: i64 = -1;

/// All that the plugin reads of an incoming pod: its constraints, with the selectors that they resolve to now, and what the inclusion
/// policies read.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PodTopologySpreadKey {
    /// Each with whether the pod matches the selector itself (upstream's `selfMatchNum`), or why they are invalid.
    hard: Result<Vec<(Constraint, bool)>, Failure>,
    soft: Vec<Constraint>,
    /// Nodes without the keys of all soft constraints are not scored.
    all_keys: bool,
}

impl Incremental for PodTopologySpread {
    type Key = PodTopologySpreadKey;

    fn key(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<PodTopologySpreadKey> {
        let (cluster, template) = (cx.world.cluster_objects(), &*pod.template);
        let hard = self.hard_constraints(cluster, template).map(|all| {
            let matches_itself =
                |constraint: &Constraint| constraint.pods.selector.matches(&template.labels);
            let with_itself = all.into_iter().map(|constraint| {
                let itself = matches_itself(&constraint);
                (constraint, itself)
            });
            with_itself.collect()
        });
        // Invalid soft constraints fail the attempt only if nodes are scored, which only the per-node form finds out.
        let soft = self.soft_constraints(cluster, template).ok()?;
        let all_keys = !soft.is_empty() && self.scores_need_all_keys(template);
        Some(PodTopologySpreadKey { hard, soft, all_keys })
    }

    /// Those of its own constraints, or of the Services that may select it and of its owner.
    fn label_keys(&self, cx: EvaluatorCx<'_>, pod: &PodInfo) -> Option<Vec<Str>> {
        let own = &pod.template.spec.topology_spread_constraints;
        if own.is_empty() && !self.defaults.is_empty() {
            return Some(default_selector_label_keys(cx.world.cluster_objects(), &pod.template));
        }
        Some(own.iter().flat_map(constraint::label_keys).cloned().collect())
    }

    fn key_reads_resources(&self) -> bool {
        false
    }

    fn prepare(&self, cx: &mut PrepareCx<'_>, key: &PodTopologySpreadKey) -> PrepareResult {
        let hard = match &key.hard {
            Ok(hard) => hard,
            Err(error) => {
                let error = Failure::new(format!("get constraints from pod: {error}"));
                return PrepareResult::Rejected(Rejection::Failed(error));
            }
        };
        if hard.is_empty() && key.soft.is_empty() {
            return PrepareResult::Skip;
        }
        let hard = hard.iter().map(|(it, itself)| HardConstraint::new(cx, it, *itself)).collect();
        let soft = SoftConstraint::all(cx, &key.soft);
        let evaluator = PodTopologySpreadEvaluator { hard, soft, all_keys: key.all_keys };
        if evaluator.is_stale(cx.cx()) {
            return PrepareResult::PerNode;
        }
        PrepareResult::Evaluator(Box::new(evaluator))
    }
}

/// Scored nodes without the label form the domain of the empty value. If a node has the label with an
/// empty value, the two would have to be counted as one; that is left to the per-node form.
fn has_empty_value(column: &LabelColumn) -> bool {
    column.key() != HOSTNAME && column.id("").is_some()
}

struct PodTopologySpreadEvaluator {
    hard: SmallVec<[HardConstraint; 2]>,
    soft: SmallVec<[SoftConstraint; 2]>,
    /// Rows without the keys of all soft constraints are not scored.
    all_keys: bool,
}

/// A hard constraint. Its key element is the count of the row's domain if every domain has one node,
/// else the domain.
struct HardConstraint {
    sums: CounterSums,
    key: LabelKeyId,
    is_unique: bool,
    /// 1 if the incoming pod matches the selector itself, else 0 (upstream's `selfMatchNum`).
    self_match_num: i64,
    max_skew: i64,
    min_domains: i64,
}

impl HardConstraint {
    fn new(cx: &mut PrepareCx<'_>, constraint: &Constraint, itself: bool) -> HardConstraint {
        let counter = cx.topology_counter(MatchCounter::for_filter(constraint));
        let key = cx.label_column(&constraint.key);
        HardConstraint {
            sums: CounterSums { counter, nth: 0 },
            key,
            is_unique: cx.world().nodes().labels().column(key).is_unique(),
            self_match_num: i64::from(itself),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
        }
    }

    fn key_element(&self, world: &World, row: NodeRow, count: impl CountPods) -> i64 {
        let domain = world.nodes().labels().column(self.key).value(row);
        if self.is_unique { count(self.sums, domain) } else { i64::from(domain.0) }
    }

    fn allows(&self, world: &World, key_element: i64) -> bool {
        let Some(domains) = self.sums.domains(world.topology_counters()) else { return true };
        let count = if self.is_unique {
            key_element
        } else {
            domains.domain_sum(LabelValueId(key_element as u32))
        };
        let enough = domains.n_domains().map_or(0, i64::from) >= self.min_domains;
        let least =
            if enough { domains.min_domain_sum().unwrap_or(i64::from(i32::MAX)) } else { 0 };
        count + self.self_match_num - least <= self.max_skew
    }
}

/// A soft constraint. Its key element is [`ABSENT`], the domain, or the count.
struct SoftConstraint {
    key: LabelKeyId,
    max_skew: i64,
    source: CountSource,
}

/// Where the counts of a soft constraint come from.
enum CountSource {
    /// Domains of several nodes: looked up once per class.
    Shared(CounterSums),
    /// Domains of one node each, for keys other than the host name.
    Unique(CounterSums),
    /// Host names: pods also count on nodes that the inclusion policies exclude.
    Hostname(CounterSums),
    /// Several nodes with the same host name, which is an error of the cluster: counted for every
    /// row.
    SharedHostname(MatchingPods),
}

impl SoftConstraint {
    /// Those of a pod. Constraints that count the same pods on the same nodes have one counter.
    fn all(cx: &mut PrepareCx<'_>, constraints: &[Constraint]) -> SmallVec<[SoftConstraint; 2]> {
        let mut counters = SmallVec::new();
        let mut parsed = SmallVec::<[_; 2]>::new();
        for constraint in constraints {
            let key = cx.label_column(&constraint.key);
            let is_unique = cx.world().nodes().labels().column(key).is_unique();
            let counter = match (constraint.key == HOSTNAME, is_unique) {
                (false, _) => Some(MatchCounter::for_score(constraint)),
                (true, true) => Some(MatchCounter::on_all_nodes(constraint)),
                (true, false) => None,
            };
            parsed.push((key, is_unique, counter.map(|counter| counter.add_to(&mut counters))));
        }
        let ids: SmallVec<[_; 2]> =
            counters.into_iter().map(|counter| cx.topology_counter(counter)).collect();
        let all = constraints.iter().zip(parsed).map(|(constraint, (key, is_unique, place))| {
            let sums = place.map(|(at, nth)| CounterSums { counter: ids[at], nth });
            let source = match sums {
                None => CountSource::SharedHostname(constraint.pods.clone()),
                Some(sums) if constraint.key == HOSTNAME => CountSource::Hostname(sums),
                Some(sums) if is_unique => CountSource::Unique(sums),
                Some(sums) => CountSource::Shared(sums),
            };
            SoftConstraint { key, max_skew: constraint.max_skew, source }
        });
        all.collect()
    }

    /// Whether the key has domains of one node each.
    fn is_unique(&self) -> bool {
        matches!(self.source, CountSource::Unique(_) | CountSource::Hostname(_))
    }

    fn domain(&self, labels: &LabelColumns, row: NodeRow) -> LabelValueId {
        labels.column(self.key).value(row)
    }

    fn key_element(&self, world: &World, row: NodeRow, count: impl CountPods) -> i64 {
        let domain = self.domain(world.nodes().labels(), row);
        if !domain.is_present() {
            return ABSENT;
        }
        match &self.source {
            CountSource::Shared(_) => i64::from(domain.0),
            CountSource::Unique(sums) | CountSource::Hostname(sums) => count(*sums, domain),
            CountSource::SharedHostname(pods) => {
                NodeInfo::new(world.nodes(), row).map_or(0, |node| pods.count_on_node(node))
            }
        }
    }

    fn reads_pods(&self) -> bool {
        !matches!(self.source, CountSource::Shared(_))
    }

    /// Whether pods are counted here, and not by a counter.
    fn counts_pods_itself(&self) -> bool {
        matches!(self.source, CountSource::SharedHostname(_))
    }

    /// The number of domains of the scored nodes, which are `n_rows`; those without the label form one more domain. For host names, the
    /// number of scored nodes. Classes without [`NOT_SCORED`] are scored.
    fn n_domains(
        &self,
        world: &World,
        classes: &NodeClasses<'_>,
        elements: KeyElements<'_>,
        (scores, n_rows): (&[i64], usize),
    ) -> usize {
        match self.source {
            CountSource::Hostname(_) | CountSource::SharedHostname(_) => n_rows,
            CountSource::Unique(_) => {
                let is_absent = |class: &usize| elements.get(*class) == ABSENT;
                let absent = scored(scores).filter(is_absent).map(|class| classes.rows[class]);
                let n_absent: usize = absent.clone().map(|n_rows| n_rows as usize).sum();
                n_rows - n_absent + usize::from(n_absent > 0)
            }
            CountSource::Shared(_) => {
                let ids_max = world.nodes().labels().column(self.key).id_upper_bound();
                n_distinct(scored(scores).map(|class| elements.get(class)), ids_max)
            }
        }
    }

    /// Adds the scores of all scored classes, which have these key elements.
    fn add_scores(
        &self,
        world: &World,
        weight: Weight,
        elements: KeyElements<'_>,
        (scores, sums): (&[i64], &mut [f64]),
    ) {
        let classes = scored(scores).map(|class| (class, elements.get(class)));
        let classes = classes.filter(|(_, element)| *element != ABSENT);
        match self.source {
            CountSource::Shared(counted) => {
                let Some(domains) = counted.domains(world.topology_counters()) else { return };
                for (class, domain) in classes {
                    let count = domains.domain_sum(LabelValueId(domain as u32));
                    sums[class] += weight.score(count);
                }
            }
            _ => classes.for_each(|(class, count)| sums[class] += weight.score(count)),
        }
    }
}

/// The score of a class that is not scored, before its score becomes 0.
const NOT_SCORED: i64 = i64::MIN;

/// The classes that are scored.
fn scored(scores: &[i64]) -> impl Iterator<Item = usize> + Clone + '_ {
    (0..scores.len()).filter(|class| scores[*class] != NOT_SCORED)
}

/// One element of the key of each class. Most often there are few classes, so that loops over them are not made to be vectorized.
#[derive(Clone, Copy)]
struct KeyElements<'a> {
    keys: &'a [i64],
    stride: usize,
}

impl<'a> KeyElements<'a> {
    fn new(classes: &NodeClasses<'a>, at: usize) -> KeyElements<'a> {
        KeyElements { keys: classes.keys.get(at..).unwrap_or_default(), stride: classes.stride }
    }

    #[inline]
    fn get(self, class: usize) -> i64 {
        self.keys[class * self.stride]
    }
}

/// All that [`PodTopologySpreadEvaluator::filter_row`] and `uncounted_class_key` depend on: topology keys, each with whether its domains
/// have one node each.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Uncounted {
    hard: SmallVec<[(LabelKeyId, bool); 2]>,
    soft: SmallVec<[(LabelKeyId, bool); 2]>,
    all_keys: bool,
}

/// How many pods a counter counts in a domain.
trait CountPods: Fn(CounterSums, LabelValueId) -> i64 + Copy {}

impl<F: Fn(CounterSums, LabelValueId) -> i64 + Copy> CountPods for F {}

impl PodTopologySpreadEvaluator {
    /// Appends the class key of a row, given the counts in domains of one node.
    fn push_key(&self, world: &World, row: NodeRow, out: &mut ClassKey, count: impl CountPods) {
        for hard in &self.hard {
            out.push(hard.key_element(world, row, count));
        }
        let first = out.len();
        let mut is_any_absent = false;
        for soft in &self.soft {
            let key_element = soft.key_element(world, row, count);
            is_any_absent |= key_element == ABSENT;
            out.push(key_element);
        }
        // A row that lacks a key is not scored.
        if self.all_keys && is_any_absent {
            out[first..].fill(ABSENT);
        }
    }

    /// Finds the classes that are scored: the others get the score [`NOT_SCORED`]. Returns the number of their rows.
    fn find_scored(&self, classes: &NodeClasses<'_>, scores: &mut [i64]) -> usize {
        let elements = KeyElements::new(classes, classes.offset + self.hard.len());
        let (rows, feasible) = (classes.rows, classes.feasible);
        let mut n_scored = 0;
        for (class, score) in scores.iter_mut().enumerate() {
            // A row that is not scored has `ABSENT` for every soft constraint.
            let is_ignored = self.all_keys && elements.get(class) == ABSENT;
            let is_scored = feasible[class] & !is_ignored;
            *score = if is_scored { 0 } else { NOT_SCORED };
            n_scored += if is_scored { rows[class] as usize } else { 0 };
        }
        n_scored
    }
}

impl PluginEvaluator for PodTopologySpreadEvaluator {
    fn dependencies(&self) -> ResultDependencies {
        let has_key = self.class_key_len() > 0;
        let reads_pods = self.hard.iter().any(|constraint| constraint.is_unique)
            || self.soft.iter().any(SoftConstraint::reads_pods);
        let part = if reads_pods { RowDependency::Pods } else { RowDependency::Node };
        ResultDependencies {
            filter: (!self.hard.is_empty()).then_some(RowDependency::Node),
            class: has_key.then_some(part),
            class_reads_counters_only: !self.soft.iter().any(SoftConstraint::counts_pods_itself),
            ..ResultDependencies::default()
        }
    }

    fn filter_scope(&self) -> FilterScope {
        if self.hard.is_empty() { FilterScope::Nothing } else { FilterScope::Cluster }
    }

    fn filter_row(&self, cx: EvaluatorCx<'_>, row: NodeRow) -> bool {
        let labels = cx.nodes().labels();
        self.hard.iter().all(|hard| labels.column(hard.key).value(row).is_present())
    }

    fn class_key_len(&self) -> usize {
        self.hard.len() + self.soft.len()
    }

    fn class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        let counters = cx.world.topology_counters();
        self.push_key(cx.world, row, out, |sums, domain| sums.domain_sum(counters, domain));
    }

    fn uncounted(&self) -> Option<EvaluatorKey> {
        if self.soft.iter().any(SoftConstraint::counts_pods_itself) {
            return None;
        }
        let hard = self.hard.iter().map(|hard| (hard.key, hard.is_unique));
        let soft = self.soft.iter().map(|soft| (soft.key, soft.is_unique()));
        Some(EvaluatorKey::new(Uncounted {
            hard: hard.collect(),
            soft: soft.collect(),
            all_keys: self.all_keys,
        }))
    }

    fn uncounted_class_key(&self, cx: EvaluatorCx<'_>, row: NodeRow, out: &mut ClassKey) {
        self.push_key(cx.world, row, out, |_, _| 0);
    }

    fn filter_class(&self, cx: EvaluatorCx<'_>, key: &[i64]) -> bool {
        self.hard.iter().zip(key).all(|(hard, key_element)| hard.allows(cx.world, *key_element))
    }

    fn has_class_scores(&self) -> bool {
        !self.soft.is_empty()
    }

    fn score_classes(&self, cx: EvaluatorCx<'_>, classes: &NodeClasses<'_>, out: &mut [i64]) {
        let (mut few, mut many) = ([0.0; 16], Vec::new());
        let sums = match few.get_mut(..out.len()) {
            Some(few) => few,
            None => {
                many.resize(out.len(), 0.0);
                &mut many
            }
        };
        let n_rows = self.find_scored(classes, out);
        for (at, soft) in (classes.offset + self.hard.len()..).zip(&self.soft) {
            let elements = KeyElements::new(classes, at);
            let n_domains = soft.n_domains(cx.world, classes, elements, (out, n_rows));
            let weight = Weight::new(n_domains, soft.max_skew);
            soft.add_scores(cx.world, weight, elements, (out, sums));
        }
        let mut range = ScoreRange::default();
        for (score, sum) in out.iter_mut().zip(&*sums) {
            if *score != NOT_SCORED {
                *score = score::rounded(*sum);
                range.add(*score);
            }
        }
        for score in out {
            *score = if *score == NOT_SCORED { 0 } else { range.normalize(*score) };
        }
    }

    /// Stale once a key has domains of several nodes instead of one, or the other way round.
    fn is_stale(&self, cx: EvaluatorCx<'_>) -> bool {
        let labels = cx.nodes().labels();
        let is_unique = |key: LabelKeyId| labels.column(key).is_unique();
        let is_empty_domain = |soft: &SoftConstraint| has_empty_value(labels.column(soft.key));
        self.hard.iter().any(|hard| hard.is_unique != is_unique(hard.key))
            || self.soft.iter().any(|soft| soft.is_unique() != is_unique(soft.key))
            || !self.all_keys && self.soft.iter().any(is_empty_domain)
    }
}

/// The number of distinct key elements: value ids below `ids_max`, and [`ABSENT`].
fn n_distinct(elements: impl Iterator<Item = i64>, ids_max: usize) -> usize {
    const BITS: usize = u64::BITS as usize;
    if ids_max < BITS {
        let (mut seen, mut n) = (0_u64, 0);
        for element in elements {
            // `ABSENT` gets the last bit.
            let bit = 1 << (element as u64 % BITS as u64);
            n += usize::from(seen & bit == 0);
            seen |= bit;
        }
        return n;
    }
    let mut seen = vec![false; ids_max + 1];
    let place = |element: i64| if element == ABSENT { ids_max } else { element as usize };
    elements.filter(|element| !std::mem::replace(&mut seen[place(*element)], true)).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use loadmaster_stdx::Rng;

    use super::{ABSENT, n_distinct};

    #[test]
    fn distinct_elements_are_counted_for_any_number_of_values() {
        let mut rng = Rng::new(7);
        for ids_max in [0, 1, 3, 62, 63, 64, 65, 200] {
            for n in [0, 1, 20, 500] {
                let some = (0..n).map(|_| rng.below(ids_max + 1) as i64 - 1);
                let some: Vec<i64> = some.collect();
                let expected = some.iter().collect::<BTreeSet<_>>().len();
                let found = n_distinct(some.iter().copied(), ids_max as usize);
                assert_eq!(found, expected, "{ids_max} values: {some:?}");
            }
        }
        assert_eq!(n_distinct([ABSENT, 62, ABSENT].into_iter(), 63), 2);
    }
}
