//! Counters that the world maintains for pods with terms and for pods that terms match.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::template::{AffinityTerm, WeightedAffinityTerm};
use loadmaster_framework::topology_counter::{TopologyCounterSpec, TopologyDeltas};

use super::score::IncomingPod;
use super::terms::{all_own_terms_match, existing_term_matches, own_term_matches};

/// Counts the existing pods that match the incoming pod's required terms, once per term, by the term's
/// topology key.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct MatchingPods {
    terms: Box<[AffinityTerm]>,
    /// Whether a pod must match all terms to count, or counts for each term that it matches.
    all: bool,
    keys: Box<[Str]>,
}

impl MatchingPods {
    /// Pods that match all required affinity terms.
    pub(super) fn affinity(pod: &PodTemplate) -> MatchingPods {
        MatchingPods::new(&pod.required_affinity, true)
    }

    /// Pods that match a required anti-affinity term.
    pub(super) fn anti_affinity(pod: &PodTemplate) -> MatchingPods {
        MatchingPods::new(&pod.required_anti_affinity, false)
    }

    fn new(terms: &[AffinityTerm], all: bool) -> MatchingPods {
        MatchingPods { terms: terms.into(), all, keys: keys(terms.iter()) }
    }
}

impl TopologyCounterSpec for MatchingPods {
    fn delta(
        &self,
        pod: &PodTemplate,
        _terminating: bool,
        cluster: &ClusterObjects,
        out: &mut TopologyDeltas,
    ) {
        if self.all && !all_own_terms_match(&self.terms, pod, cluster) {
            return;
        }
        for term in &self.terms {
            if self.all || own_term_matches(term, pod, cluster) {
                out.add(&term.topology_key, 1);
            }
        }
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Counts the existing pods with required anti-affinity terms that match a pod with these labels.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct ExistingAntiAffinity {
    namespace: Str,
    labels: Labels,
}

impl ExistingAntiAffinity {
    pub(super) fn new(pod: &PodTemplate) -> ExistingAntiAffinity {
        ExistingAntiAffinity { namespace: pod.namespace.clone(), labels: pod.labels.clone() }
    }
}

impl TopologyCounterSpec for ExistingAntiAffinity {
    fn delta(
        &self,
        pod: &PodTemplate,
        _terminating: bool,
        cluster: &ClusterObjects,
        out: &mut TopologyDeltas,
    ) {
        for term in &pod.required_anti_affinity {
            if existing_term_matches(term, &self.namespace, &self.labels, cluster) {
                out.add(&term.topology_key, 1);
            }
        }
    }

    fn topology_keys(&self) -> &[Str] {
        &[]
    }
}

/// Sums the weights of preferred terms between the incoming pod and existing pods, in both directions.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct TopologyScore {
    namespace: Str,
    labels: Labels,
    preferred_affinity: Box<[WeightedAffinityTerm]>,
    preferred_anti_affinity: Box<[WeightedAffinityTerm]>,
    hard_weight: i64,
    keys: Box<[Str]>,
}

impl TopologyScore {
    pub(super) fn new(incoming_pod: IncomingPod<'_>) -> TopologyScore {
        let near = incoming_pod.preferred_affinity;
        let apart = incoming_pod.preferred_anti_affinity;
        TopologyScore {
            namespace: incoming_pod.namespace.clone(),
            labels: incoming_pod.labels.clone(),
            preferred_affinity: near.into(),
            preferred_anti_affinity: apart.into(),
            hard_weight: incoming_pod.hard_weight,
            keys: keys(near.iter().chain(apart).map(|weighted| &weighted.term)),
        }
    }

    fn incoming_pod(&self) -> IncomingPod<'_> {
        IncomingPod {
            namespace: &self.namespace,
            labels: &self.labels,
            preferred_affinity: &self.preferred_affinity,
            preferred_anti_affinity: &self.preferred_anti_affinity,
            hard_weight: self.hard_weight,
        }
    }
}

impl TopologyCounterSpec for TopologyScore {
    fn delta(
        &self,
        pod: &PodTemplate,
        _terminating: bool,
        cluster: &ClusterObjects,
        out: &mut TopologyDeltas,
    ) {
        self.incoming_pod().process_existing_pod(pod, cluster, |key, weight| out.add(key, weight));
    }

    fn topology_keys(&self) -> &[Str] {
        &self.keys
    }
}

/// Counts the existing pods that have terms, whatever pods these match: one counter for all incoming
/// pods. While it has no key there is no such pod, and no counter is needed per kind of incoming
/// pod.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum PodsWithTerms {
    /// Required anti-affinity terms.
    RequiredAntiAffinity,
    /// Preferred terms, and required affinity terms if their weight is above 0.
    PreferredTerms { hard: bool },
}

impl TopologyCounterSpec for PodsWithTerms {
    fn delta(
        &self,
        pod: &PodTemplate,
        _terminating: bool,
        _cluster: &ClusterObjects,
        out: &mut TopologyDeltas,
    ) {
        let mut add = |term: &AffinityTerm| out.add(&term.topology_key, 1);
        match self {
            PodsWithTerms::RequiredAntiAffinity => pod.required_anti_affinity.iter().for_each(add),
            PodsWithTerms::PreferredTerms { hard } => {
                let required = pod.required_affinity.iter().filter(|_| *hard);
                required.for_each(&mut add);
                let preferred = pod.preferred_affinity.iter().chain(&pod.preferred_anti_affinity);
                preferred.map(|weighted| &weighted.term).for_each(add);
            }
        }
    }

    fn topology_keys(&self) -> &[Str] {
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
