//! The incremental form: the world keeps the sums, and nodes of equal domains are one class.
//!
//! A row's words are: one that says what its own domains forbid and one that says what they are
//! worth, both for the keys that no two nodes share (host names), and then the row's domain for
//! every other key that a sum is kept for.

use loadmaster_framework::counter::{Counted, CounterId, Domains};
use loadmaster_framework::label::{KeyId, ValueId};
use loadmaster_framework::prepare::{Classes, Reads, RowPart, Words};
use loadmaster_framework::{NodeTable, PodInfo, Prepare, Prepared, Row, Run, World};
use smallvec::SmallVec;

use super::counted::{Company, Outspoken, Unwilling, Weights};
use super::score::Range;
use super::terms::all_own_speak_of;
use super::{InterPodAffinity, has_preferred_terms};

/// The word of a row that lacks a label; others are numbers of values.
const ABSENT: i64 = -1;

/// Bits of the word about domains of a single node.
const FORBIDDEN: i64 = 1;
const LACKING: i64 = 2;

impl Prepare for InterPodAffinity {
    /// Never skips: whether pods on nodes speak of this pod may change with the next of them.
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let template = &pod.template;
        let mut run = AffinityRun::default();
        if !template.required_affinity.is_empty() {
            let wanted = run.acquire(world, Company::wanted(template));
            let cluster = world.cluster();
            run.accepts_itself = all_own_speak_of(&template.required_affinity, template, cluster);
            run.wanted = run.sums(world, wanted);
        }
        if !template.required_anti_affinity.is_empty() {
            let unwanted = run.acquire(world, Company::unwanted(template));
            run.forbidding = run.sums(world, unwanted);
        }
        if run.is_any(world, Outspoken::Refusing) {
            let unwilling = run.acquire(world, Unwilling::about(template));
            let sums = run.sums(world, unwilling);
            run.forbidding.extend(sums);
        }
        let hard = self.hard_weight > 0;
        if self.scores(template)
            && (has_preferred_terms(template) || run.is_any(world, Outspoken::Preferring { hard }))
        {
            let weights = run.acquire(world, Weights::of(self.subject(template)));
            run.weights = run.sums(world, weights);
        }
        run.has_row_verdict = run.wanted.iter().chain(&run.forbidding).any(Sum::is_of_row);
        run.has_row_weight = run.weights.iter().any(Sum::is_of_row);
        Prepared::Run(Box::new(run))
    }
}

#[derive(Default)]
struct AffinityRun {
    /// Pods that all required affinity terms speak of: there must be one in each domain.
    wanted: Sums,
    /// The pod is wanted by its own terms, so that it may be the first.
    accepts_itself: bool,
    /// Pods that must not be in a domain, whoever refuses whom.
    forbidding: Sums,
    /// What the pods in a domain are worth.
    weights: Sums,
    /// Whether a row's own domains forbid anything, and whether they are worth anything.
    has_row_verdict: bool,
    has_row_weight: bool,
    /// Keys of the sums above whose domains nodes share, in the order of their words.
    shared: SmallVec<[KeyId; 2]>,
    /// What is given back in the end, with the number of keys the counter had.
    counters: SmallVec<[(CounterId, usize); 4]>,
}

type Sums = SmallVec<[Sum; 2]>;

/// The sums of one counter for one key.
#[derive(Clone, Copy)]
struct Sum {
    counter: CounterId,
    /// Which of the counter's keys it is.
    nth: usize,
    key: KeyId,
    domain: Domain,
}

/// Where the domain of a row is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Domain {
    /// No two nodes share one: in the row.
    OfRow,
    /// In the n-th word about shared domains.
    Word(usize),
}

impl Sum {
    fn domains<'a>(&self, world: &'a World) -> Option<&'a Domains> {
        world.counter(self.counter).domains().get(self.nth)
    }

    fn is_of_row(&self) -> bool {
        self.domain == Domain::OfRow
    }

    /// The sum in the domain of a row.
    fn at_row(&self, world: &World, row: Row) -> i64 {
        let domain = world.nodes().labels().column(self.key).value(row);
        self.domains(world).map_or(0, |domains| domains.sum(domain))
    }

    /// The sum in the shared domain that a class is in; 0 for other keys.
    fn at_class(&self, world: &World, shared: &[i64]) -> i64 {
        let Domain::Word(word) = self.domain else { return 0 };
        if shared[word] == ABSENT {
            return 0;
        }
        self.domains(world).map_or(0, |domains| domains.sum(ValueId(shared[word] as u32)))
    }
}

impl AffinityRun {
    fn acquire<C: Counted + std::hash::Hash + Eq>(
        &mut self,
        world: &mut World,
        what: C,
    ) -> CounterId {
        let counter = world.acquire(what);
        self.counters.push((counter, world.counter(counter).domains().len()));
        counter
    }

    /// Whether there are pods with such terms; if not, the run is stale once there are.
    fn is_any(&mut self, world: &mut World, what: Outspoken) -> bool {
        let counter = self.acquire(world, what);
        !world.counter(counter).domains().is_empty()
    }

    fn sums(&mut self, world: &World, counter: CounterId) -> Sums {
        let domains = world.counter(counter).domains().iter().map(Domains::key).enumerate();
        domains
            .map(|(nth, key)| Sum { counter, nth, key, domain: self.domain(world, key) })
            .collect()
    }

    fn domain(&mut self, world: &World, key: KeyId) -> Domain {
        if world.nodes().labels().column(key).is_unique() {
            return Domain::OfRow;
        }
        let known = self.shared.iter().position(|known| *known == key);
        Domain::Word(known.unwrap_or_else(|| {
            self.shared.push(key);
            self.shared.len() - 1
        }))
    }

    /// Where the words about shared domains begin.
    fn first_shared(&self) -> usize {
        usize::from(self.has_row_verdict) + usize::from(self.has_row_weight)
    }

    fn row_verdict(&self, world: &World, row: Row) -> i64 {
        let of_row = |sum: &&Sum| sum.is_of_row();
        let mut forbidding = self.forbidding.iter().filter(of_row);
        let mut wanted = self.wanted.iter().filter(of_row);
        let is_forbidden = forbidding.any(|sum| sum.at_row(world, row) > 0);
        let is_lacking = wanted.any(|sum| sum.at_row(world, row) <= 0);
        FORBIDDEN * i64::from(is_forbidden) + LACKING * i64::from(is_lacking)
    }

    fn row_weight(&self, world: &World, row: Row) -> i64 {
        let of_row = self.weights.iter().filter(|sum| sum.is_of_row());
        of_row.map(|sum| sum.at_row(world, row)).sum()
    }

    fn is_forbidden(&self, world: &World, shared: &[i64]) -> bool {
        self.forbidding.iter().any(|sum| sum.at_class(world, shared) > 0)
    }

    fn is_lacking(&self, world: &World, shared: &[i64]) -> bool {
        let mut wanted = self.wanted.iter().filter(|sum| !sum.is_of_row());
        wanted.any(|sum| sum.at_class(world, shared) <= 0)
    }

    /// Whether the pod would be the first of a group that asks for its own kind.
    fn may_be_first(&self, world: &World) -> bool {
        let is_none = |sum: &Sum| sum.domains(world).is_none_or(|domains| domains.total() == 0);
        self.accepts_itself && self.wanted.iter().all(is_none)
    }
}

impl Run for AffinityRun {
    fn reads(&self) -> Reads {
        let part = if self.first_shared() > 0 { RowPart::Pods } else { RowPart::Node };
        Reads {
            filter: (!self.wanted.is_empty()).then_some(RowPart::Node),
            class: (self.n_words() > 0).then_some(part),
            ..Reads::default()
        }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        let labels = nodes.labels();
        self.wanted.iter().all(|sum| labels.column(sum.key).value(row).is_present())
    }

    fn n_words(&self) -> usize {
        self.first_shared() + self.shared.len()
    }

    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        if self.has_row_verdict {
            out.push(self.row_verdict(world, row));
        }
        if self.has_row_weight {
            out.push(self.row_weight(world, row));
        }
        let labels = world.nodes().labels();
        out.extend(self.shared.iter().map(|key| {
            let domain = labels.column(*key).value(row);
            if domain.is_present() { i64::from(domain.0) } else { ABSENT }
        }));
    }

    fn class_filter(&self, world: &World, words: &[i64]) -> bool {
        let shared = &words[self.first_shared()..];
        let of_row = if self.has_row_verdict { words[0] } else { 0 };
        if of_row & FORBIDDEN != 0 || self.is_forbidden(world, shared) {
            return false;
        }
        let is_lacking = of_row & LACKING != 0 || self.is_lacking(world, shared);
        !is_lacking || self.may_be_first(world)
    }

    fn scores_classes(&self) -> bool {
        !self.weights.is_empty()
    }

    fn class_score(&self, world: &World, classes: &Classes<'_>, out: &mut [i64]) {
        let first_shared = self.first_shared();
        let row_weight = self.has_row_weight.then(|| usize::from(self.has_row_verdict));
        for class in classes.feasible() {
            let words = classes.words(class);
            let shared = &words[first_shared..];
            let of_row = row_weight.map_or(0, |at| words[at]);
            let sums = self.weights.iter().map(|sum| sum.at_class(world, shared));
            out[class] = of_row + sums.sum::<i64>();
        }
        let range = Range::new(classes.feasible().map(|class| out[class]));
        for class in classes.feasible() {
            out[class] = range.normalize(out[class]);
        }
    }

    /// Pods with terms about other keys became known.
    fn is_stale(&self, world: &World) -> bool {
        let is_stale = |(counter, n_keys): &(CounterId, usize)| {
            let counter = world.counters().try_get(*counter);
            counter.is_none_or(|counter| counter.domains().len() != *n_keys)
        };
        self.counters.iter().any(is_stale)
    }

    fn release(&mut self, world: &mut World) {
        for (counter, _) in self.counters.drain(..) {
            world.release(counter);
        }
    }
}
