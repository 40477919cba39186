//! What `explain` says: which affinity term has no pod in a node's domain, and which pods are there that must not be.

use loadmaster_api::{PodAffinity, PodAffinityTerm, Str};
use loadmaster_framework::{Cx, Detail, Explain, NodeInfo, PodInfo};

use super::InterPodAffinity;
use super::filter::PreFilterState;
use super::terms::{ExistingPod, existing_term_matches, own_term_matches};
use crate::explain_text::{PodsByDomain, facts_detail, shown_label_selector};

impl Explain for InterPodAffinity {
    fn details_of_nodes(
        &self,
        cx: Cx<'_>,
        pod: &PodInfo,
        nodes: &[NodeInfo<'_>],
    ) -> Vec<Vec<Detail>> {
        let none = || vec![Vec::new(); nodes.len()];
        let Some(state) = cx.cycle.get(self.pre_filter_state) else { return none() };
        let violates = |node: &NodeInfo<'_>| {
            !state.satisfies_anti_affinity(node.labels())
                || !state.satisfies_existing_anti_affinity(node.labels())
        };
        let unwanted = match nodes.iter().any(violates) {
            true => UnwantedPods::new(cx, pod),
            false => UnwantedPods::default(),
        };
        let details = |node: &NodeInfo<'_>| {
            let missing = missing_pods(cx, pod, *node, state);
            [
                facts_detail("affinity", missing.into_iter()),
                facts_detail("antiAffinity", unwanted.by_own_terms(pod, *node).into_iter()),
                facts_detail("antiAffinityOfOthers", unwanted.by_their_terms(*node).into_iter()),
            ]
            .concat()
        };
        nodes.iter().map(details).collect()
    }
}

/// Pods that keep a pod away from their domains.
#[derive(Default)]
struct UnwantedPods {
    /// Pods that match an anti-affinity term of the pod, by the term's index.
    matching: PodsByDomain,
    /// Pods with an anti-affinity term that matches the pod, by the index of the topology key.
    repelling: PodsByDomain,
    /// The topology keys of the terms of those pods.
    keys: Vec<Str>,
}

impl UnwantedPods {
    fn new(cx: Cx<'_>, pod: &PodInfo) -> UnwantedPods {
        let (template, cluster) = (&pod.template, cx.world.cluster_objects());
        let mut all = UnwantedPods::default();
        for node in cx.world.node_infos() {
            let labels = node.labels();
            let terms = template.required_anti_affinity.iter().enumerate();
            for (at, term) in terms {
                let matches = |other: &PodInfo| {
                    own_term_matches(term, ExistingPod::new(&other.template, cluster))
                };
                for other in node.pods().filter(|other| matches(other)) {
                    all.matching.add(at, &term.topology_key, labels, other);
                }
            }
            for other in node.pods_with_required_anti_affinity() {
                for term in &other.template.required_anti_affinity {
                    if existing_term_matches(term, &template.namespace, &template.labels, cluster) {
                        let at = all.key(&term.topology_key);
                        all.repelling.add(at, &term.topology_key, labels, other);
                    }
                }
            }
        }
        all
    }

    /// The index of a topology key.
    fn key(&mut self, key: &Str) -> usize {
        let known = self.keys.iter().position(|known| known == key);
        known.unwrap_or_else(|| {
            self.keys.push(key.clone());
            self.keys.len() - 1
        })
    }

    fn by_own_terms(&self, pod: &PodInfo, node: NodeInfo<'_>) -> Vec<String> {
        let terms = pod.template.required_anti_affinity.iter().enumerate();
        let facts = terms.filter_map(|(at, term)| {
            let key = &term.topology_key;
            let domain = node.labels().get(key)?;
            let names = self.matching.get(at, domain)?.names();
            Some(format!("{} has {names} in {key}={domain}", shown_term(pod, Terms::Anti, at)))
        });
        facts.collect()
    }

    fn by_their_terms(&self, node: NodeInfo<'_>) -> Vec<String> {
        let facts = self.keys.iter().enumerate().filter_map(|(at, key)| {
            let domain = node.labels().get(key)?;
            let names = self.repelling.get(at, domain)?.names();
            Some(format!("of {names} in {key}={domain}"))
        });
        facts.collect()
    }
}

/// The affinity terms of the pod that have no matching pod in the domain of a node.
fn missing_pods(
    cx: Cx<'_>,
    pod: &PodInfo,
    node: NodeInfo<'_>,
    state: &PreFilterState,
) -> Vec<String> {
    let labels = node.labels();
    if state.satisfies_affinity(&pod.template, cx.world.cluster_objects(), labels) {
        return Vec::new();
    }
    let terms = pod.template.required_affinity.iter().enumerate();
    let facts =
        terms.filter(|(_, term)| !state.has_matching_pod(term, labels)).map(|(at, term)| {
            let (key, shown) = (&term.topology_key, shown_term(pod, Terms::Affinity, at));
            match labels.get(key) {
                Some(domain) => format!("{shown} has no pod in {key}={domain}"),
                None => format!("{shown}: the node has no {key}"),
            }
        });
    facts.collect()
}

#[derive(Clone, Copy)]
enum Terms {
    Affinity,
    Anti,
}

/// `term 1 (app=web)`.
fn shown_term(pod: &PodInfo, terms: Terms, at: usize) -> String {
    let affinity = pod.template.spec.affinity.as_deref();
    let terms: Option<&PodAffinity> = affinity.and_then(|affinity| match terms {
        Terms::Affinity => affinity.pod_affinity.as_ref(),
        Terms::Anti => affinity.pod_anti_affinity.as_ref(),
    });
    let term: Option<&PodAffinityTerm> = terms.and_then(|terms| terms.required.get(at));
    let selector = shown_label_selector(term.and_then(|term| term.label_selector.as_ref()));
    format!("term {} ({selector})", at + 1)
}
