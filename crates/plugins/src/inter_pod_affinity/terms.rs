//! Whether an affinity term matches a pod, and sums by topology.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::template::AffinityTerm;
use loadmaster_framework::topology_counter::AssignedPod;
use loadmaster_stdx::Map;

/// What terms of an incoming pod are compared with: an existing pod.
#[derive(Clone, Copy)]
pub(super) struct ExistingPod<'a> {
    namespace: &'a Str,
    namespace_labels: &'a Labels,
    labels: &'a Labels,
}

impl<'a> ExistingPod<'a> {
    pub(super) fn new(pod: &'a PodTemplate, cluster: &'a ClusterObjects) -> ExistingPod<'a> {
        ExistingPod {
            namespace: &pod.namespace,
            namespace_labels: cluster.namespace_labels(&pod.namespace),
            labels: &pod.labels,
        }
    }
}

impl<'a> From<&AssignedPod<'a>> for ExistingPod<'a> {
    fn from(pod: &AssignedPod<'a>) -> Self {
        let AssignedPod { namespace, namespace_labels, labels, .. } = *pod;
        ExistingPod { namespace, namespace_labels, labels }
    }
}

/// Whether a term of the incoming pod matches an existing pod.
///
/// Upstream replaces the term's namespace selector by the names of the selected namespaces, but then
/// evaluates the selector once more, against empty labels. So a selector that matches empty labels
/// (`DoesNotExist`, `NotIn`) selects every namespace here.
pub(super) fn own_term_matches(term: &AffinityTerm, other: ExistingPod<'_>) -> bool {
    term.matches(other.namespace, &Labels::default(), other.labels)
        || term.matches(other.namespace, other.namespace_labels, other.labels)
}

/// Whether all terms of the incoming pod match an existing pod; false without terms (upstream's
/// `podMatchesAllAffinityTerms`).
pub(super) fn all_own_terms_match(terms: &[AffinityTerm], other: ExistingPod<'_>) -> bool {
    !terms.is_empty() && terms.iter().all(|term| own_term_matches(term, other))
}

/// Whether a term of an existing pod matches the incoming pod, which has this namespace and these labels.
pub(super) fn existing_term_matches(
    term: &AffinityTerm,
    namespace: &Str,
    labels: &Labels,
    cluster: &ClusterObjects,
) -> bool {
    term.matches(namespace, cluster.namespace_labels(namespace), labels)
}

/// Sums by topology pair: label key and value.
#[derive(Clone, Debug, Default)]
pub(super) struct TopologySums(Map<Str, Map<Str, i64>>);

impl TopologySums {
    /// Adds to the sum of the node's topology pair, if the node has the key.
    pub(super) fn add(&mut self, labels: &Labels, key: &Str, amount: i64) {
        if let Some(value) = labels.get(key) {
            *self.0.entry(key.clone()).or_default().entry(value.clone()).or_insert(0) += amount;
        }
    }

    /// Removes the sum of the node's topology pair if it is zero.
    pub(super) fn remove_if_zero(&mut self, labels: &Labels, key: &Str) {
        let Some(by_value) = self.0.get_mut(key) else { return };
        if let Some(value) = labels.get(key)
            && by_value.get(value) == Some(&0)
        {
            by_value.remove(value);
        }
        if by_value.is_empty() {
            self.0.remove(key);
        }
    }

    /// The sum of a topology pair.
    pub(super) fn get(&self, key: &Str, value: &Str) -> i64 {
        self.0.get(key).and_then(|by_value| by_value.get(value)).copied().unwrap_or(0)
    }

    /// Whether there are no sums.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sums of a node's topology pairs, one per key, in any order.
    #[expect(clippy::disallowed_methods, reason = "callers add them up or look for one above 0")]
    pub(super) fn of_node(&self, labels: &Labels) -> impl Iterator<Item = i64> {
        self.0.iter().filter_map(|(key, by_value)| by_value.get(labels.get(key)?)).copied()
    }
}
