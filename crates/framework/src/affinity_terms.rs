//! The affinity and anti-affinity terms of assigned pods, each once, and which of them match an incoming pod.
//!
//! A term of an assigned pod may match an incoming pod by its labels. Usually few terms do, and pods of one controller match the same
//! ones, although their labels differ: the ordinal label of a StatefulSet is in no selector. So the matching terms, not the labels,
//! are what a decision depends on.

use std::collections::BTreeSet;
use std::sync::Arc;

use loadmaster_api::{Labels, Str};
use loadmaster_stdx::Map;

use crate::template::{AffinityTerm, PodTemplate};

/// The id of a term of assigned pods; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(u64);

/// Which list of a pod spec a term is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TermRole {
    /// `podAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    RequiredAffinity,
    /// `podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution`.
    RequiredAntiAffinity,
    /// `podAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    PreferredAffinity,
    /// `podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution`.
    PreferredAntiAffinity,
}

impl TermRole {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// One term of an assigned pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodTerm {
    /// Equal terms have equal ids, in any role.
    pub id: TermId,
    /// The list that it is from.
    pub role: TermRole,
    /// In `1..=100` for a preferred term, else 0.
    pub weight: i64,
    /// The node label whose values are the domains.
    pub topology_key: Str,
}

/// Number of terms without pods that are kept in case such a pod is assigned again.
const IDLE_TERMS_MAX: usize = 1024;

/// All terms that an assigned pod has or recently had.
#[derive(Default)]
pub struct AffinityTerms {
    ids: Map<Arc<AffinityTerm>, TermId>,
    entries: Map<TermId, Entry>,
    /// Terms whose selector requires one of some values of a label, by label key and value.
    by_label: Map<Str, Map<Str, Vec<TermId>>>,
    /// All other terms.
    other: Vec<TermId>,
    /// The keys of the labels of pods that terms read.
    label_keys: BTreeSet<Str>,
    next: u64,
    n_idle: usize,
    version: u64,
}

struct Entry {
    term: Arc<AffinityTerm>,
    users: u32,
    /// The roles in which it was ever used.
    roles: u8,
}

impl AffinityTerms {
    /// The terms with one of these roles that match a pod in this namespace with these labels, by id. Terms that no pod has any more
    /// may be among them.
    pub fn matching(
        &self,
        roles: &[TermRole],
        namespace: &Str,
        namespace_labels: &Labels,
        labels: &Labels,
    ) -> Box<[TermId]> {
        let roles = roles.iter().fold(0, |all, role| all | role.bit());
        let by_label = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        let candidates = by_label.flatten().chain(&self.other);
        let matches = |id: &&TermId| {
            self.entries.get(*id).is_some_and(|entry| {
                entry.roles & roles != 0 && entry.term.matches(namespace, namespace_labels, labels)
            })
        };
        let mut found: Vec<TermId> = candidates.filter(matches).copied().collect();
        found.sort_unstable();
        found.into_boxed_slice()
    }

    /// The term with this id.
    pub fn get(&self, id: TermId) -> Option<&AffinityTerm> {
        self.entries.get(&id).map(|entry| &*entry.term)
    }

    /// The keys of all labels of a pod that decide which terms match it.
    pub fn label_keys(&self) -> impl Iterator<Item = &Str> {
        self.label_keys.iter()
    }

    /// Increases when a term is added or removed, so that another list of terms may match a pod.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The terms of a template, each of which is added if it is new.
    pub(crate) fn terms_of(&mut self, pod: &PodTemplate) -> Box<[PodTerm]> {
        let mut all = Vec::new();
        let required = [
            (TermRole::RequiredAffinity, &pod.required_affinity),
            (TermRole::RequiredAntiAffinity, &pod.required_anti_affinity),
        ];
        for (role, terms) in required {
            all.extend(terms.iter().map(|term| self.intern(term, role, 0)));
        }
        let preferred = [
            (TermRole::PreferredAffinity, &pod.preferred_affinity),
            (TermRole::PreferredAntiAffinity, &pod.preferred_anti_affinity),
        ];
        for (role, terms) in preferred {
            all.extend(
                terms.iter().map(|weighted| self.intern(&weighted.term, role, weighted.weight)),
            );
        }
        all.into_boxed_slice()
    }

    /// Adds one user to each of these terms.
    pub(crate) fn acquire(&mut self, terms: &[PodTerm]) {
        for term in terms {
            if let Some(entry) = self.entries.get_mut(&term.id) {
                self.n_idle -= usize::from(entry.users == 0);
                entry.users += 1;
            }
        }
    }

    /// Removes one user from each of these terms.
    pub(crate) fn release(&mut self, terms: &[PodTerm]) {
        for term in terms {
            if let Some(entry) = self.entries.get_mut(&term.id) {
                entry.users -= 1;
                self.n_idle += usize::from(entry.users == 0);
            }
        }
    }

    /// Drops the terms without users, if there are too many. Not to be called while pods are being counted anew: their terms must keep
    /// their ids, because prepared evaluators have them.
    pub(crate) fn trim(&mut self) {
        if self.n_idle > IDLE_TERMS_MAX {
            self.drop_idle();
        }
    }

    fn intern(&mut self, term: &AffinityTerm, role: TermRole, weight: i64) -> PodTerm {
        let topology_key = term.topology_key.clone();
        let id = match self.ids.get(term) {
            Some(id) => *id,
            None => self.insert(term),
        };
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.roles & role.bit() == 0
        {
            entry.roles |= role.bit();
            self.version += 1;
        }
        PodTerm { id, role, weight, topology_key }
    }

    fn insert(&mut self, term: &AffinityTerm) -> TermId {
        let id = TermId(self.next);
        self.next += 1;
        self.n_idle += 1;
        let term = Arc::new(term.clone());
        self.label_keys.extend(term.selector.keys().cloned());
        match term.selector.required_values() {
            Some((key, values)) => {
                let by_value = self.by_label.entry(key.clone()).or_default();
                for value in values {
                    by_value.entry(value.clone()).or_default().push(id);
                }
            }
            None if term.selector.is_nothing() => {}
            None => self.other.push(id),
        }
        self.ids.insert(term.clone(), id);
        self.entries.insert(id, Entry { term, users: 0, roles: 0 });
        id
    }

    fn drop_idle(&mut self) {
        self.entries.retain(|_, entry| entry.users > 0);
        let entries = &self.entries;
        self.ids.retain(|_, id| entries.contains_key(id));
        self.other.retain(|id| entries.contains_key(id));
        self.by_label.retain(|_, by_value| {
            by_value.retain(|_, ids| {
                ids.retain(|id| entries.contains_key(id));
                !ids.is_empty()
            });
            !by_value.is_empty()
        });
        #[expect(clippy::disallowed_methods, reason = "collected into a sorted set")]
        let terms = self.entries.values();
        self.label_keys = terms.flat_map(|entry| entry.term.selector.keys().cloned()).collect();
        self.n_idle = 0;
        self.version += 1;
    }
}
