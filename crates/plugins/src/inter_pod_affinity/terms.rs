//! Whether an affinity term matches a pod, and sums by topology.

use std::sync::Arc;

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
///
/// Dry runs clone sums over the whole cluster and change a few of them: a clone shares the sums, and its changes are kept apart.
#[derive(Clone, Debug, Default)]
pub(super) struct TopologySums {
    sums: Arc<SumsByKey>,
    /// The sums that differ, each once; `None` where there is none any more.
    changed: Vec<ChangedSum>,
}

type SumsByKey = Map<Str, Map<Str, i64>>;

#[derive(Clone, Debug)]
struct ChangedSum {
    key: Str,
    value: Str,
    sum: Option<i64>,
}

/// With more changes than these a clone gets sums of its own.
const CHANGED_MAX: usize = 16;

impl TopologySums {
    /// Adds to the sum of the node's topology pair, if the node has the key.
    pub(super) fn add(&mut self, labels: &Labels, key: &Str, amount: i64) {
        let Some(value) = labels.get(key) else { return };
        if let Some(own) = self.own_sums() {
            *own.entry(key.clone()).or_default().entry(value.clone()).or_insert(0) += amount;
            return;
        }
        let sum = Some(self.sum(key, value).unwrap_or(0) + amount);
        self.set(key, value, sum);
    }

    /// Removes the sum of the node's topology pair if it is zero.
    pub(super) fn remove_if_zero(&mut self, labels: &Labels, key: &Str) {
        let Some(value) = labels.get(key) else { return };
        if self.sum(key, value) != Some(0) {
            return;
        }
        match self.own_sums() {
            Some(own) => remove(own, key, value),
            None => self.set(key, value, None),
        }
    }

    /// The sum of a topology pair.
    pub(super) fn get(&self, key: &Str, value: &Str) -> i64 {
        self.sum(key, value).unwrap_or(0)
    }

    /// Whether there are no sums.
    pub(super) fn is_empty(&self) -> bool {
        if self.changed.is_empty() {
            return self.sums.is_empty();
        }
        #[expect(clippy::disallowed_methods, reason = "a sum of lengths")]
        let n_shared: usize = self.sums.values().map(Map::len).sum();
        let is_shared = |it: &&ChangedSum| self.shared_sum(&it.key, &it.value).is_some();
        let n_removed = self.changed.iter().filter(|it| it.sum.is_none()).filter(is_shared).count();
        n_shared == n_removed && self.changed.iter().all(|it| it.sum.is_none())
    }

    /// The sums of a node's topology pairs, one per key, in any order.
    #[expect(clippy::disallowed_methods, reason = "callers add them up or look for one above 0")]
    pub(super) fn of_node(&self, labels: &Labels) -> impl Iterator<Item = i64> {
        let shared = self.sums.keys().filter_map(|key| self.sum(key, labels.get(key)?));
        let is_new = |it: &&ChangedSum| !self.sums.contains_key(&it.key);
        let is_of_node = |it: &&ChangedSum| labels.get(&it.key) == Some(&it.value);
        let changed = self.changed.iter().filter(is_new).filter(is_of_node);
        shared.chain(changed.filter_map(|it| it.sum))
    }

    /// The sums, if no clone shares them.
    fn own_sums(&mut self) -> Option<&mut SumsByKey> {
        Arc::get_mut(&mut self.sums).filter(|_| self.changed.is_empty())
    }

    fn sum(&self, key: &Str, value: &Str) -> Option<i64> {
        let mut changed = self.changed.iter();
        match changed.find(|it| it.key == *key && it.value == *value) {
            Some(it) => it.sum,
            None => self.shared_sum(key, value),
        }
    }

    fn shared_sum(&self, key: &Str, value: &Str) -> Option<i64> {
        self.sums.get(key)?.get(value).copied()
    }

    fn set(&mut self, key: &Str, value: &Str, sum: Option<i64>) {
        let mut changed = self.changed.iter_mut();
        if let Some(known) = changed.find(|it| it.key == *key && it.value == *value) {
            known.sum = sum;
            return;
        }
        self.changed.push(ChangedSum { key: key.clone(), value: value.clone(), sum });
        if self.changed.len() > CHANGED_MAX {
            let own = Arc::make_mut(&mut self.sums);
            for ChangedSum { key, value, sum } in self.changed.drain(..) {
                match sum {
                    Some(sum) => {
                        own.entry(key).or_default().insert(value, sum);
                    }
                    None => remove(own, &key, &value),
                }
            }
        }
    }
}

fn remove(sums: &mut SumsByKey, key: &Str, value: &Str) {
    let Some(by_value) = sums.get_mut(key) else { return };
    by_value.remove(value);
    if by_value.is_empty() {
        sums.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_stdx::Rng;

    use super::*;

    /// Changes of a clone equal changes of sums that nobody shares, and leave the original as it is.
    #[test]
    fn a_clone_is_changed_apart() {
        let mut rng = Rng::new(1);
        let keys: Vec<Str> = ["zone", "host"].map(Str::new).to_vec();
        let node = |zone: u64, host: u64| {
            let labels = [("zone", zone), ("host", host)];
            Labels::from_iter(labels.map(|(key, n)| (Str::new(key), Str::from(n.to_string()))))
        };
        for n_changes in [0, 1, 5, 40, 200] {
            let mut original = TopologySums::default();
            let mut alone = TopologySums::default();
            for _ in 0..rng.below(6) {
                let (labels, key) = (node(rng.below(3), rng.below(30)), rng.pick(&keys).clone());
                original.add(&labels, &key, 1);
                alone.add(&labels, &key, 1);
            }
            let all: Vec<Labels> =
                (0..3).flat_map(|zone| (0..30).map(move |host| node(zone, host))).collect();
            let sums_of = |sums: &TopologySums| -> Vec<Vec<i64>> {
                let sorted = |labels: &Labels| {
                    let mut sums: Vec<i64> = sums.of_node(labels).collect();
                    sums.sort_unstable();
                    sums
                };
                all.iter().map(sorted).collect()
            };
            let before = (sums_of(&original), original.is_empty());
            let mut clone = original.clone();
            for _ in 0..n_changes {
                let (labels, key) = (rng.pick(&all).clone(), rng.pick(&keys).clone());
                let amount = if rng.one_in(2) { 1 } else { -1 };
                for sums in [&mut clone, &mut alone] {
                    sums.add(&labels, &key, amount);
                    if amount < 0 {
                        sums.remove_if_zero(&labels, &key);
                    }
                }
                assert_eq!(sums_of(&clone), sums_of(&alone));
                assert_eq!(clone.is_empty(), alone.is_empty());
            }
            assert_eq!((sums_of(&original), original.is_empty()), before);
        }
    }
}
