//! The incremental form: the world keeps the counts, and nodes of equal domains are one class.
//!
//! A placement moves one count, but with it the least count, the number of feasible domains and
//! thereby every verdict and score. So nothing of that hangs on a row: a row's words only say which
//! domains it is in, and a decision works the rest out once a class. For keys that no two nodes
//! share (host names) the word is the count itself, as naming the domain would make a class of
//! every row.

use loadmaster_framework::counter::{CounterId, Domains};
use loadmaster_framework::label::{KeyId, LabelColumn, LabelColumns, ValueId};
use loadmaster_framework::prepare::{Classes, Reads, RowPart, Words};
use loadmaster_framework::{
    Failure, NodeInfo, NodeTable, PodInfo, Prepare, Prepared, Rejection, Row, Run, World,
};
use smallvec::SmallVec;

use super::constraint::{Constraint, Matching, Spread};
use super::score::{self, Range};
use super::{HOSTNAME, PodTopologySpread};

/// The word of a row that lacks a label: neither a count nor the number of a value.
const ABSENT: i64 = -1;

impl Prepare for PodTopologySpread {
    fn prepare(&self, world: &mut World, pod: &PodInfo) -> Prepared {
        let hard = match self.hard(world.cluster(), &pod.template) {
            Ok(hard) => hard,
            Err(error) => {
                let error = Failure::new(format!("get constraints from pod: {error}"));
                return Prepared::Rejected(Rejection::Failed(error));
            }
        };
        // Fails only once nodes are scored, which is not ours to foresee.
        let Ok(soft) = self.soft(world.cluster(), &pod.template) else { return Prepared::OneByOne };
        if hard.is_empty() && soft.is_empty() {
            return Prepared::Skip;
        }
        let mut run = SpreadRun {
            hard: hard.iter().map(|constraint| Hard::new(world, constraint, pod)).collect(),
            soft: soft.iter().map(|constraint| Soft::new(world, constraint)).collect(),
            all_keys: self.scores_need_all_keys(&pod.template),
        };
        if run.is_stale(world) {
            run.release(world);
            return Prepared::OneByOne;
        }
        Prepared::Run(Box::new(run))
    }
}

/// Where nodes without a label are scored they make up the domain of the empty value. Should a node
/// really carry it, the two would have to be counted as one; that is left to the one-node form.
fn has_empty_value(column: &LabelColumn) -> bool {
    column.key() != HOSTNAME && column.id("").is_some()
}

struct SpreadRun {
    hard: SmallVec<[Hard; 2]>,
    soft: SmallVec<[Soft; 2]>,
    /// Rows that lack a key of a soft constraint are not scored.
    all_keys: bool,
}

/// A hard constraint. Its word is the count of the row's domain if nodes do not share domains, else
/// the domain.
struct Hard {
    counter: CounterId,
    key: KeyId,
    is_unique: bool,
    /// 1 if the pod counts itself.
    own: i64,
    max_skew: i64,
    min_domains: i64,
}

impl Hard {
    fn new(world: &mut World, constraint: &Constraint, pod: &PodInfo) -> Hard {
        let counter = world.acquire(Spread::hard(constraint));
        let key = world.ensure_key(&constraint.key);
        Hard {
            counter,
            key,
            is_unique: world.nodes().labels().column(key).is_unique(),
            own: i64::from(constraint.pods.selector.matches(&pod.template.labels)),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
        }
    }

    fn word(&self, world: &World, row: Row) -> i64 {
        let domain = world.nodes().labels().column(self.key).value(row);
        if self.is_unique { sum(world, self.counter, domain) } else { i64::from(domain.0) }
    }

    fn allows(&self, world: &World, word: i64) -> bool {
        let Some(domains) = domains(world, self.counter) else { return true };
        let count = if self.is_unique { word } else { domains.sum(ValueId(word as u32)) };
        let enough = i64::from(domains.n_domains()) >= self.min_domains;
        let least = if enough { domains.min().unwrap_or(i64::from(i32::MAX)) } else { 0 };
        count + self.own - least <= self.max_skew
    }
}

/// A soft constraint. Its word is [`ABSENT`], the domain, or the count.
struct Soft {
    key: KeyId,
    max_skew: i64,
    source: Source,
}

/// Where a soft constraint finds its counts.
enum Source {
    /// Domains of many nodes: looked up once a class.
    Shared(CounterId),
    /// Domains of one node each, but for host names.
    Unique(CounterId),
    /// Host names: pods count also on nodes that the inclusion policies leave out.
    Hostname(CounterId),
    /// Host names that nodes share, which is a mistake of the cluster's: counted anew for every
    /// row.
    SharedHostname(Matching),
}

impl Soft {
    fn new(world: &mut World, constraint: &Constraint) -> Soft {
        let key = world.ensure_key(&constraint.key);
        let is_unique = world.nodes().labels().column(key).is_unique();
        let source = match (constraint.key == HOSTNAME, is_unique) {
            (false, false) => Source::Shared(world.acquire(Spread::soft(constraint))),
            (false, true) => Source::Unique(world.acquire(Spread::soft(constraint))),
            (true, true) => Source::Hostname(world.acquire(Spread::anywhere(constraint))),
            (true, false) => Source::SharedHostname(constraint.pods.clone()),
        };
        Soft { key, max_skew: constraint.max_skew, source }
    }

    fn domain(&self, labels: &LabelColumns, row: Row) -> ValueId {
        labels.column(self.key).value(row)
    }

    fn word(&self, world: &World, row: Row) -> i64 {
        let domain = self.domain(world.nodes().labels(), row);
        if !domain.is_present() {
            return ABSENT;
        }
        match &self.source {
            Source::Shared(_) => i64::from(domain.0),
            Source::Unique(counter) | Source::Hostname(counter) => sum(world, *counter, domain),
            Source::SharedHostname(pods) => {
                NodeInfo::new(world.nodes(), row).map_or(0, |node| pods.n_on(node))
            }
        }
    }

    fn counter(&self) -> Option<CounterId> {
        match self.source {
            Source::Shared(id) | Source::Unique(id) | Source::Hostname(id) => Some(id),
            Source::SharedHostname(_) => None,
        }
    }

    fn reads_pods(&self) -> bool {
        !matches!(self.source, Source::Shared(_))
    }

    /// In how many domains the scored nodes are; those that lack the label are one more. Host names
    /// are as many as nodes.
    fn n_domains(&self, world: &World, scored: &Scored<'_>, word: usize) -> usize {
        match self.source {
            Source::Hostname(_) | Source::SharedHostname(_) => {
                scored.classes().map(|class| scored.rows(class)).sum()
            }
            Source::Unique(_) => {
                let present = |class: &usize| scored.word(*class, word) != ABSENT;
                let rows: usize =
                    scored.classes().filter(present).map(|class| scored.rows(class)).sum();
                rows + usize::from(!scored.classes().all(|class| present(&class)))
            }
            Source::Shared(_) => {
                let ids_max = world.nodes().labels().column(self.key).ids_max();
                n_different(scored.classes().map(|class| scored.word(class, word)), ids_max)
            }
        }
    }
}

/// The feasible classes that are scored, seen from the soft constraints.
struct Scored<'a> {
    classes: &'a Classes<'a>,
    /// Where the soft constraints' words begin.
    first: usize,
    all_keys: bool,
}

impl Scored<'_> {
    fn classes(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.classes.feasible().filter(|class| !self.is_ignored(*class))
    }

    /// A row that is not scored lacks all keys as far as its words go.
    fn is_ignored(&self, class: usize) -> bool {
        self.all_keys && self.word(class, 0) == ABSENT
    }

    fn word(&self, class: usize, at: usize) -> i64 {
        self.classes.words(class)[self.first + at]
    }

    fn rows(&self, class: usize) -> usize {
        self.classes.rows[class] as usize
    }
}

/// What scoring needs of one soft constraint at a decision.
struct Weighed<'a> {
    /// `None` where the word is the count.
    domains: Option<&'a Domains>,
    max_skew: i64,
    weight: f64,
}

impl Weighed<'_> {
    fn score(&self, word: i64) -> f64 {
        if word == ABSENT {
            return 0.0;
        }
        let count = self.domains.map_or(word, |domains| domains.sum(ValueId(word as u32)));
        score::score_of_count(count, self.max_skew, self.weight)
    }
}

impl Run for SpreadRun {
    fn reads(&self) -> Reads {
        let has_words = self.n_words() > 0;
        let reads_pods = self.hard.iter().any(|constraint| constraint.is_unique)
            || self.soft.iter().any(Soft::reads_pods);
        let part = if reads_pods { RowPart::Pods } else { RowPart::Node };
        Reads {
            filter: (!self.hard.is_empty()).then_some(RowPart::Node),
            class: has_words.then_some(part),
            ..Reads::default()
        }
    }

    fn filter_row(&self, nodes: &NodeTable, row: Row) -> bool {
        let labels = nodes.labels();
        self.hard.iter().all(|hard| labels.column(hard.key).value(row).is_present())
    }

    fn n_words(&self) -> usize {
        self.hard.len() + self.soft.len()
    }

    fn class_row(&self, world: &World, row: Row, out: &mut Words) {
        out.extend(self.hard.iter().map(|hard| hard.word(world, row)));
        let labels = world.nodes().labels();
        let is_ignored =
            self.all_keys && !self.soft.iter().all(|soft| soft.domain(labels, row).is_present());
        out.extend(
            self.soft.iter().map(|soft| if is_ignored { ABSENT } else { soft.word(world, row) }),
        );
    }

    fn class_filter(&self, world: &World, words: &[i64]) -> bool {
        self.hard.iter().zip(words).all(|(hard, word)| hard.allows(world, *word))
    }

    fn scores_classes(&self) -> bool {
        !self.soft.is_empty()
    }

    fn class_score(&self, world: &World, classes: &Classes<'_>, out: &mut [i64]) {
        let scored = Scored { classes, first: self.hard.len(), all_keys: self.all_keys };
        let weighed = self.soft.iter().enumerate().map(|(at, soft)| Weighed {
            domains: match soft.source {
                Source::Shared(counter) => domains(world, counter),
                _ => None,
            },
            max_skew: soft.max_skew,
            weight: score::weight(soft.n_domains(world, &scored, at)),
        });
        let weighed: SmallVec<[Weighed<'_>; 4]> = weighed.collect();
        let mut range = Range::default();
        for class in scored.classes() {
            let words = &classes.words(class)[scored.first..];
            let sum: f64 =
                weighed.iter().zip(words).fold(0.0, |sum, (soft, word)| sum + soft.score(*word));
            out[class] = score::rounded(sum);
            range.add(out[class]);
        }
        for class in classes.feasible() {
            out[class] = if scored.is_ignored(class) { 0 } else { range.normalize(out[class]) };
        }
    }

    fn is_stale(&self, world: &World) -> bool {
        let labels = world.nodes().labels();
        let is_empty_domain = |soft: &Soft| has_empty_value(labels.column(soft.key));
        !self.all_keys && self.soft.iter().any(is_empty_domain)
    }

    fn release(&mut self, world: &mut World) {
        let hard = self.hard.iter().map(|hard| hard.counter);
        for counter in hard.chain(self.soft.iter().filter_map(Soft::counter)) {
            world.release(counter);
        }
    }
}

/// The domains of a counter, which has one key.
fn domains(world: &World, counter: CounterId) -> Option<&Domains> {
    world.counter(counter).domains().first()
}

fn sum(world: &World, counter: CounterId, domain: ValueId) -> i64 {
    domains(world, counter).map_or(0, |domains| domains.sum(domain))
}

/// How many different words there are: values below `ids_max`, and [`ABSENT`].
fn n_different(words: impl Iterator<Item = i64>, ids_max: usize) -> usize {
    let mut seen: SmallVec<[u64; 16]> = SmallVec::from_elem(0, ids_max / 64 + 1);
    let mut n = 0;
    let mut is_any_absent = false;
    for word in words {
        if word == ABSENT {
            is_any_absent = true;
            continue;
        }
        let (at, bit) = (word as usize / 64, 1 << (word % 64));
        n += usize::from(seen[at] & bit == 0);
        seen[at] |= bit;
    }
    n + usize::from(is_any_absent)
}
