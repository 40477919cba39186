//! The sums that the world keeps for pods with terms and for pods that terms speak of.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::counter::{Counted, Deltas};
use loadmaster_framework::template::{AffinityTerm, WeightedTerm};

use super::score::Subject;
use super::terms::{all_own_speak_of, other_speaks_of, own_speaks_of};

/// Pods on nodes of which a pod's own required terms speak; each counts once a term, at the term's
/// key.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Company {
    terms: Box<[AffinityTerm]>,
    /// Whether all terms must speak of a pod for it to count, or each by itself.
    all: bool,
    keys: Box<[Str]>,
}

impl Company {
    /// Pods of which all required affinity terms speak.
    pub(super) fn wanted(pod: &PodTemplate) -> Company {
        Company::new(&pod.required_affinity, true)
    }

    /// Pods of which a required anti-affinity term speaks.
    pub(super) fn unwanted(pod: &PodTemplate) -> Company {
        Company::new(&pod.required_anti_affinity, false)
    }

    fn new(terms: &[AffinityTerm], all: bool) -> Company {
        Company { terms: terms.into(), all, keys: keys(terms.iter()) }
    }
}

impl Counted for Company {
    fn delta(&self, pod: &PodTemplate, _terminating: bool, cluster: &Cluster, out: &mut Deltas) {
        if self.all && !all_own_speak_of(&self.terms, pod, cluster) {
            return;
        }
        for term in &self.terms {
            if self.all || own_speaks_of(term, pod, cluster) {
                out.add(&term.topology_key, 1);
            }
        }
    }

    fn keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Pods on nodes with required anti-affinity terms that speak of pods with these labels.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Unwilling {
    namespace: Str,
    labels: Labels,
}

impl Unwilling {
    pub(super) fn about(pod: &PodTemplate) -> Unwilling {
        Unwilling { namespace: pod.namespace.clone(), labels: pod.labels.clone() }
    }
}

impl Counted for Unwilling {
    fn delta(&self, pod: &PodTemplate, _terminating: bool, cluster: &Cluster, out: &mut Deltas) {
        for term in &pod.required_anti_affinity {
            if other_speaks_of(term, &self.namespace, &self.labels, cluster) {
                out.add(&term.topology_key, 1);
            }
        }
    }

    fn keys(&self) -> &[Str] {
        &[]
    }
}

/// The weights between a pod and the pods on nodes, in both directions.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Weights {
    namespace: Str,
    labels: Labels,
    preferred_affinity: Box<[WeightedTerm]>,
    preferred_anti_affinity: Box<[WeightedTerm]>,
    hard_weight: i64,
    keys: Box<[Str]>,
}

impl Weights {
    pub(super) fn of(subject: Subject<'_>) -> Weights {
        let near = subject.preferred_affinity;
        let apart = subject.preferred_anti_affinity;
        Weights {
            namespace: subject.namespace.clone(),
            labels: subject.labels.clone(),
            preferred_affinity: near.into(),
            preferred_anti_affinity: apart.into(),
            hard_weight: subject.hard_weight,
            keys: keys(near.iter().chain(apart).map(|weighted| &weighted.term)),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            namespace: &self.namespace,
            labels: &self.labels,
            preferred_affinity: &self.preferred_affinity,
            preferred_anti_affinity: &self.preferred_anti_affinity,
            hard_weight: self.hard_weight,
        }
    }
}

impl Counted for Weights {
    fn delta(&self, pod: &PodTemplate, _terminating: bool, cluster: &Cluster, out: &mut Deltas) {
        self.subject().weigh(pod, cluster, |key, weight| out.add(key, weight));
    }

    fn keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Pods on nodes with terms that may speak of others, whomever: one counter for all pods. As long
/// as it knows no key, there is no such pod, and no counter is needed for each kind of pod that is
/// asked about.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Outspoken {
    /// Required anti-affinity terms.
    Refusing,
    /// Preferred terms, and required affinity terms if they are worth anything.
    Preferring { hard: bool },
}

impl Counted for Outspoken {
    fn delta(&self, pod: &PodTemplate, _terminating: bool, _cluster: &Cluster, out: &mut Deltas) {
        let mut add = |term: &AffinityTerm| out.add(&term.topology_key, 1);
        match self {
            Outspoken::Refusing => pod.required_anti_affinity.iter().for_each(add),
            Outspoken::Preferring { hard } => {
                let required = pod.required_affinity.iter().filter(|_| *hard);
                required.for_each(&mut add);
                let preferred = pod.preferred_affinity.iter().chain(&pod.preferred_anti_affinity);
                preferred.map(|weighted| &weighted.term).for_each(add);
            }
        }
    }

    fn keys(&self) -> &[Str] {
        &[]
    }
}

/// The topology keys of terms, each once.
fn keys<'a>(terms: impl Iterator<Item = &'a AffinityTerm>) -> Box<[Str]> {
    let mut keys: Vec<Str> = terms.map(|term| term.topology_key.clone()).collect();
    keys.sort();
    keys.dedup();
    keys.into()
}
