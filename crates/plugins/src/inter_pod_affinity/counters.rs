//! The sums over assigned pods that the incremental form reads.

use loadmaster_api::Str;
use loadmaster_framework::affinity_terms::{AffinityTerms, TermId, TermRole};
use loadmaster_framework::template::{AffinityTerm, WeightedAffinityTerm};
use loadmaster_framework::topology_counter::{AssignedPod, TopologyCounterSpec, TopologyDeltas};

use super::terms::{ExistingPod, all_own_terms_match, own_term_matches};

/// Counts the existing pods that the required terms of an incoming pod match.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct MatchingPods {
    terms: Box<[AffinityTerm]>,
    /// A pod counts only if all terms match it (affinity); else for each term that does (anti-affinity).
    all: bool,
    keys: Box<[Str]>,
}

impl MatchingPods {
    pub(super) fn affinity(terms: &[AffinityTerm]) -> MatchingPods {
        MatchingPods { terms: terms.into(), all: true, keys: topology_keys(terms.iter()) }
    }

    pub(super) fn anti_affinity(terms: &[AffinityTerm]) -> MatchingPods {
        MatchingPods { all: false, ..MatchingPods::affinity(terms) }
    }
}

impl TopologyCounterSpec for MatchingPods {
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas) {
        let pod = ExistingPod::from(pod);
        if self.all && !all_own_terms_match(&self.terms, pod) {
            return;
        }
        for term in &self.terms {
            if self.all || own_term_matches(term, pod) {
                out.add(&term.topology_key, 1);
            }
        }
    }

    fn label_keys(&self) -> Vec<Str> {
        selector_keys(self.terms.iter())
    }

    fn namespace(&self) -> Option<&Str> {
        only_namespace(self.terms.iter())
    }

    fn reads_namespace_labels(&self) -> bool {
        self.terms.iter().any(selects_namespaces)
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Counts the existing pods with a required anti-affinity term that matches the incoming pod.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ExistingAntiAffinity {
    /// The terms that match it, by id.
    matching: Box<[TermId]>,
    keys: Box<[Str]>,
}

impl ExistingAntiAffinity {
    pub(super) fn new(matching: &[TermId], terms: &AffinityTerms) -> ExistingAntiAffinity {
        let keys = topology_keys(matching.iter().filter_map(|id| terms.get(*id)));
        ExistingAntiAffinity { matching: matching.into(), keys }
    }
}

impl TopologyCounterSpec for ExistingAntiAffinity {
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas) {
        let required = pod.terms.iter().filter(|term| term.role == TermRole::RequiredAntiAffinity);
        for term in required.filter(|term| self.matching.binary_search(&term.id).is_ok()) {
            out.add(&term.topology_key, 1);
        }
    }

    fn label_keys(&self) -> Vec<Str> {
        Vec::new()
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

/// What the score of an incoming pod depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScoredTerms {
    pub(super) preferred_affinity: Box<[WeightedAffinityTerm]>,
    pub(super) preferred_anti_affinity: Box<[WeightedAffinityTerm]>,
    /// The terms of existing pods that match the incoming pod and are scored, by id.
    pub(super) existing: Box<[TermId]>,
}

impl ScoredTerms {
    /// Whether every node gets the same score.
    pub(super) fn is_empty(&self) -> bool {
        self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty()
            && self.existing.is_empty()
    }
}

/// The weights of all matching terms between the incoming pod and existing pods (upstream's `topologyScore`).
#[derive(PartialEq, Eq, Hash)]
pub(super) struct TopologyScore {
    terms: ScoredTerms,
    /// Weight of the required affinity terms of existing pods.
    hard_weight: i64,
    keys: Box<[Str]>,
}

impl TopologyScore {
    pub(super) fn new(terms: &ScoredTerms, hard_weight: i64, all: &AffinityTerms) -> TopologyScore {
        let own = terms.preferred_affinity.iter().chain(&terms.preferred_anti_affinity);
        let own = own.map(|weighted| &weighted.term);
        let existing = terms.existing.iter().filter_map(|id| all.get(*id));
        let keys = topology_keys(own.chain(existing));
        TopologyScore { terms: terms.clone(), hard_weight, keys }
    }

    fn own_terms(&self) -> impl Iterator<Item = &WeightedAffinityTerm> {
        self.terms.preferred_affinity.iter().chain(&self.terms.preferred_anti_affinity)
    }
}

impl TopologyCounterSpec for TopologyScore {
    fn delta(&self, pod: &AssignedPod<'_>, out: &mut TopologyDeltas) {
        let existing = ExistingPod::from(pod);
        let own = [(&self.terms.preferred_affinity, 1), (&self.terms.preferred_anti_affinity, -1)];
        for (terms, sign) in own {
            for weighted in terms.iter().filter(|w| own_term_matches(&w.term, existing)) {
                out.add(&weighted.term.topology_key, sign * weighted.weight);
            }
        }
        for term in pod.terms {
            let weight = match term.role {
                TermRole::RequiredAffinity => self.hard_weight,
                TermRole::PreferredAffinity => term.weight,
                TermRole::PreferredAntiAffinity => -term.weight,
                TermRole::RequiredAntiAffinity => continue,
            };
            if self.terms.existing.binary_search(&term.id).is_ok() {
                out.add(&term.topology_key, weight);
            }
        }
    }

    fn label_keys(&self) -> Vec<Str> {
        selector_keys(self.own_terms().map(|weighted| &weighted.term))
    }

    /// The terms of existing pods may be in other namespaces.
    fn namespace(&self) -> Option<&Str> {
        let own_terms = self.own_terms().map(|weighted| &weighted.term);
        only_namespace(own_terms).filter(|_| self.terms.existing.is_empty())
    }

    fn reads_namespace_labels(&self) -> bool {
        self.own_terms().any(|weighted| selects_namespaces(&weighted.term))
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Whether the term matches pods according to the labels of their namespaces.
fn selects_namespaces(term: &AffinityTerm) -> bool {
    !term.namespace_selector.is_nothing() && !term.namespace_selector.is_empty()
}

/// The namespace of the pods that the terms match, if it is the same for all.
fn only_namespace<'a>(mut terms: impl Iterator<Item = &'a AffinityTerm>) -> Option<&'a Str> {
    let of_term = |term: &'a AffinityTerm| match &*term.namespaces {
        [only] if term.namespace_selector.is_nothing() => Some(only),
        _ => None,
    };
    let first = of_term(terms.next()?)?;
    terms.all(|term| of_term(term) == Some(first)).then_some(first)
}

fn topology_keys<'a>(terms: impl Iterator<Item = &'a AffinityTerm>) -> Box<[Str]> {
    sorted(terms.map(|term| term.topology_key.clone()).collect()).into()
}

fn selector_keys<'a>(terms: impl Iterator<Item = &'a AffinityTerm>) -> Vec<Str> {
    sorted(terms.flat_map(|term| term.selector.keys()).cloned().collect())
}

fn sorted(mut keys: Vec<Str>) -> Vec<Str> {
    keys.sort();
    keys.dedup();
    keys
}
