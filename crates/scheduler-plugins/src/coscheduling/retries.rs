//! Which of the groups that back off is tried again when pods are deleted.

use std::collections::BTreeMap;

use loadmaster_stdx::Map;

use crate::pod_group::GroupKey;

/// Groups whose last attempt has failed, in the order in which it did. As soon as as many pods have been deleted as the first one lacks members
/// with a node, its backoff ends. So there are no more such attempts than deletions allow, however many groups wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    /// Each group once, with the number of members that had no node.
    waiting: BTreeMap<u64, (GroupKey, usize)>,
    /// The keys of `waiting`.
    places: Map<GroupKey, u64>,
    n_added: u64,
    /// Assigned pods that were deleted since the first group waits, less those for which groups have been tried again.
    n_deleted: usize,
}

impl Retries {
    /// An attempt of a group has failed in which so many members had no node.
    pub fn add(&mut self, key: GroupKey, n_missing: usize) {
        self.remove(&key);
        self.n_added += 1;
        self.places.insert(key.clone(), self.n_added);
        self.waiting.insert(self.n_added, (key, n_missing));
    }

    /// The group has no pods any more.
    pub fn remove(&mut self, key: &GroupKey) {
        if let Some(place) = self.places.remove(key) {
            self.waiting.remove(&place);
        }
    }

    /// An assigned pod was deleted. Returns the groups whose backoff ends; `backs_off` says whether a group still waits.
    pub fn pod_deleted(&mut self, backs_off: impl Fn(&GroupKey) -> bool) -> Vec<GroupKey> {
        let mut retried = Vec::new();
        self.n_deleted += 1;
        while let Some(first) = self.waiting.first_entry() {
            let (key, n_missing) = first.get();
            let (is_waiting, n_missing) = (backs_off(key), *n_missing);
            if is_waiting && self.n_deleted < n_missing {
                return retried;
            }
            let (key, _) = first.remove();
            self.places.remove(&key);
            if is_waiting {
                self.n_deleted -= n_missing;
                retried.push(key);
            }
        }
        self.n_deleted = 0;
        retried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> GroupKey {
        GroupKey { namespace: "default".into(), name: name.into(), is_old: false }
    }

    /// Adds groups that have failed, and deletes so many pods. Returns the groups that are tried again; those called `gone` do not wait.
    fn deletions(retries: &mut Retries, failed: &[(&str, usize)], n: usize) -> Vec<String> {
        for (name, n_missing) in failed {
            retries.add(key(name), *n_missing);
        }
        let backs_off = |key: &GroupKey| &*key.name != "gone";
        let retried = (0..n).flat_map(|_| retries.pod_deleted(backs_off));
        retried.map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn the_first_group_is_retried_when_enough_pods_are_deleted() {
        let mut retries = Retries::default();
        let mut deletions = |failed: &[(&str, usize)], n| deletions(&mut retries, failed, n);
        assert!(deletions(&[], 10).is_empty(), "they do not count for groups that fail later");
        assert!(deletions(&[("a", 3), ("gone", 1), ("b", 2)], 2).is_empty());
        assert_eq!(deletions(&[], 1), ["a"]);
        assert_eq!(deletions(&[("gone", 1), ("d", 1)], 2), ["b"]);
        assert_eq!(deletions(&[("e", 0)], 1), ["d", "e"]);
        assert!(deletions(&[], 5).is_empty());
    }

    #[test]
    fn a_group_that_fails_again_waits_once_and_behind_the_others() {
        let mut retries = Retries::default();
        for _ in 0..100 {
            retries.add(key("a"), 2);
        }
        assert!(deletions(&mut retries, &[("b", 2), ("a", 2)], 1).is_empty());
        assert_eq!(retries.waiting.len(), 2);
        assert_eq!(deletions(&mut retries, &[], 9), ["b", "a"]);
        retries.add(key("c"), 1);
        retries.remove(&key("c"));
        assert!(retries.waiting.is_empty() && retries.places.is_empty());
    }
}
