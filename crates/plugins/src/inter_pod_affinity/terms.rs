//! When a term speaks of a pod.

use loadmaster_api::{Labels, Str};
use loadmaster_framework::PodTemplate;
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::template::AffinityTerm;
use loadmaster_stdx::Map;

/// Whether a term of the pod at hand speaks of a pod on a node.
///
/// Upstream turns the term's namespace selector into the names of the namespaces it selects, means
/// to drop it, and forgets to: it is evaluated once more, against no labels at all. So a selector
/// that is content with absent labels (`DoesNotExist`, `NotIn`) selects every namespace here.
pub(super) fn own_speaks_of(term: &AffinityTerm, other: &PodTemplate, cluster: &Cluster) -> bool {
    term.matches(&other.namespace, &Labels::default(), &other.labels)
        || term.matches(&other.namespace, cluster.namespace_labels(&other.namespace), &other.labels)
}

/// Whether all terms of the pod at hand speak of a pod on a node; no terms speak of no pod.
pub(super) fn all_own_speak_of(
    terms: &[AffinityTerm],
    other: &PodTemplate,
    cluster: &Cluster,
) -> bool {
    !terms.is_empty() && terms.iter().all(|term| own_speaks_of(term, other, cluster))
}

/// Whether a term of a pod on a node speaks of the pod at hand, which has these labels.
pub(super) fn other_speaks_of(
    term: &AffinityTerm,
    namespace: &Str,
    labels: &Labels,
    cluster: &Cluster,
) -> bool {
    term.matches(namespace, cluster.namespace_labels(namespace), labels)
}

/// Sums by topology: label key and value.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(Map<Str, Map<Str, i64>>);

impl Sums {
    /// Adds at the node's value of the key, if it has one.
    pub(super) fn add(&mut self, labels: &Labels, key: &Str, amount: i64) {
        if let Some(value) = labels.get(key) {
            *self.0.entry(key.clone()).or_default().entry(value.clone()).or_insert(0) += amount;
        }
    }

    /// Forgets the sum at the node's value of the key if it has come to nothing.
    pub(super) fn forget_zero(&mut self, labels: &Labels, key: &Str) {
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

    /// The sum at a value of a key.
    pub(super) fn at(&self, key: &Str, value: &Str) -> i64 {
        self.0.get(key).and_then(|by_value| by_value.get(value)).copied().unwrap_or(0)
    }

    /// Whether nothing was ever added, or all of it was forgotten.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sums at a node's labels, a key each, in any order.
    #[expect(clippy::disallowed_methods, reason = "callers add them up or look for one above 0")]
    pub(super) fn of_node(&self, labels: &Labels) -> impl Iterator<Item = i64> {
        self.0.iter().filter_map(|(key, by_value)| by_value.get(labels.get(key)?)).copied()
    }
}
