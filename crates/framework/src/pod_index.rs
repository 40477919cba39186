//! Indexes of pods: the pods with a value of a label, or with the same controller, pending and assigned, without a scan.
//!
//! A plugin declares an index when it is built ([`crate::ExtensionPoints::pod_index`]) and reads it from the world. Plugins that
//! declare the same index share it. Without any index nothing is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_stdx::Map;

use crate::pod_info::PodInfo;
use crate::waiting_pods::{WaitingPod, WaitingPods};

/// What an index groups pods by, always within a namespace. Pods without such a value are not in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodIndexKey {
    /// The value of this label.
    Label(Str),
    /// The uid of the controller: the owner reference with `controller: true`.
    Controller,
}

impl PodIndexKey {
    /// The pod's value.
    fn value_of<'p>(&self, pod: &'p PodInfo) -> Option<&'p Str> {
        match self {
            PodIndexKey::Label(key) => pod.template.labels.get(key),
            PodIndexKey::Controller => pod.template.controller.as_ref().map(|owner| &owner.uid),
        }
    }
}

/// An index that a plugin declared.
#[derive(Clone, Debug)]
pub struct PodIndex(PodIndexKey);

impl PodIndex {
    pub(crate) fn new(key: PodIndexKey) -> PodIndex {
        PodIndex(key)
    }

    /// What it groups pods by.
    pub fn key(&self) -> &PodIndexKey {
        &self.0
    }
}

/// The pods with one value of an index. All lists are ordered by uid.
///
/// A pod is *pending* if a profile of this scheduler has to place it, wherever it is: gated, in any part of the scheduling queue, or
/// in a scheduling cycle. It is *assigned* as soon as it is assumed on a node, and pending again if its binding cycle fails. Pods on
/// nodes that are not known, and pods that have finished, are neither. Dry runs change no index.
#[derive(Clone, Copy)]
pub struct IndexedPods<'a> {
    pods: Option<&'a PodsWithValue>,
    waiting: &'a WaitingPods,
}

impl<'a> IndexedPods<'a> {
    /// The pending pods.
    pub fn pending(&self) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        self.pods.into_iter().flat_map(|pods| pods.pending.values())
    }

    /// The assigned pods, assumed ones included.
    pub fn assigned(&self) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        self.pods.into_iter().flat_map(|pods| pods.assigned.values())
    }

    /// Those of the assigned pods that wait at Permit.
    pub fn waiting(&self) -> impl Iterator<Item = &'a WaitingPod> + use<'a> {
        let waiting = self.waiting;
        self.assigned().filter_map(|pod| waiting.get(&pod.uid))
    }

    /// Number of pending pods.
    pub fn n_pending(&self) -> usize {
        self.pods.map_or(0, |pods| pods.pending.len())
    }

    /// Number of assigned pods, assumed ones included.
    pub fn n_assigned(&self) -> usize {
        self.pods.map_or(0, |pods| pods.assigned.len())
    }
}

/// All indexes of a world.
#[derive(Default)]
pub(crate) struct PodIndexes {
    indexes: Vec<(PodIndexKey, ByNamespace)>,
    /// The pending pods by uid; they may also be assumed.
    pending: Map<Box<str>, Arc<PodInfo>>,
}

type ByNamespace = BTreeMap<Str, BTreeMap<Str, PodsWithValue>>;

/// By uid; no pod is in both.
#[derive(Default)]
struct PodsWithValue {
    pending: BTreeMap<Box<str>, Arc<PodInfo>>,
    assigned: BTreeMap<Box<str>, Arc<PodInfo>>,
}

/// The list of an index that a pod is in.
#[derive(Clone, Copy)]
enum List {
    Pending,
    Assigned,
}

impl PodsWithValue {
    fn list_mut(&mut self, list: List) -> &mut BTreeMap<Box<str>, Arc<PodInfo>> {
        match list {
            List::Pending => &mut self.pending,
            List::Assigned => &mut self.assigned,
        }
    }
}

impl PodIndexes {
    /// Whether there are none, so that pods need not be reported.
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// Adds an index, unless it exists. `assigned` are all assigned pods. To be called before there are pending pods.
    pub fn add<'p>(&mut self, key: &PodIndexKey, assigned: impl Iterator<Item = &'p Arc<PodInfo>>) {
        if self.indexes.iter().any(|(known, _)| known == key) {
            return;
        }
        let mut pods = ByNamespace::default();
        for pod in assigned {
            insert(&mut pods, key, pod, List::Assigned);
        }
        self.indexes.push((key.clone(), pods));
    }

    /// The pods with a value.
    pub fn get<'a>(
        &'a self,
        index: &PodIndex,
        namespace: &str,
        value: &str,
        waiting: &'a WaitingPods,
    ) -> IndexedPods<'a> {
        let known = self.indexes.iter().find(|(key, _)| *key == index.0);
        let pods = known.and_then(|(_, pods)| pods.get(namespace)?.get(value));
        IndexedPods { pods, waiting }
    }

    /// The pods with the same value as this one.
    pub fn siblings<'a>(
        &'a self,
        index: &PodIndex,
        pod: &PodInfo,
        waiting: &'a WaitingPods,
    ) -> IndexedPods<'a> {
        match index.0.value_of(pod) {
            Some(value) => self.get(index, &pod.template.namespace, value, waiting),
            None => IndexedPods { pods: None, waiting },
        }
    }

    /// Adds or updates a pending pod; one that is assumed is listed when it is no longer assigned.
    pub fn upsert_pending(&mut self, pod: &Arc<PodInfo>, is_assigned: bool) {
        if self.is_empty() {
            return;
        }
        self.delete_pending(&pod.uid);
        self.pending.insert(pod.uid.clone(), pod.clone());
        if !is_assigned {
            self.insert(pod, List::Pending);
        }
    }

    pub fn delete_pending(&mut self, uid: &str) {
        if let Some(old) = self.pending.remove(uid) {
            self.remove(&old, List::Pending);
        }
    }

    pub fn add_assigned(&mut self, pod: &Arc<PodInfo>) {
        if !self.is_empty() {
            self.add_to_assigned(pod);
        }
    }

    #[inline(never)]
    fn add_to_assigned(&mut self, pod: &Arc<PodInfo>) {
        if let Some(pending) = self.pending.get(&pod.uid).cloned() {
            self.remove(&pending, List::Pending);
        }
        self.insert(pod, List::Assigned);
    }

    pub fn remove_assigned(&mut self, pod: &PodInfo) {
        if !self.is_empty() {
            self.remove_from_assigned(pod);
        }
    }

    #[inline(never)]
    fn remove_from_assigned(&mut self, pod: &PodInfo) {
        self.remove(pod, List::Assigned);
        if let Some(pending) = self.pending.get(&pod.uid).cloned() {
            self.insert(&pending, List::Pending);
        }
    }

    fn insert(&mut self, pod: &Arc<PodInfo>, list: List) {
        self.indexes.iter_mut().for_each(|(key, pods)| insert(pods, key, pod, list));
    }

    fn remove(&mut self, pod: &PodInfo, list: List) {
        self.indexes.iter_mut().for_each(|(key, pods)| remove(pods, key, pod, list));
    }
}

fn insert(pods: &mut ByNamespace, key: &PodIndexKey, pod: &Arc<PodInfo>, list: List) {
    let Some(value) = key.value_of(pod) else { return };
    let values = pods.entry(pod.template.namespace.clone()).or_default();
    let with_value = values.entry(value.clone()).or_default();
    with_value.list_mut(list).insert(pod.uid.clone(), pod.clone());
}

fn remove(pods: &mut ByNamespace, key: &PodIndexKey, pod: &PodInfo, list: List) {
    let Some(value) = key.value_of(pod) else { return };
    let Some(values) = pods.get_mut(&pod.template.namespace) else { return };
    let Some(with_value) = values.get_mut(value) else { return };
    with_value.list_mut(list).remove(&*pod.uid);
    if with_value.pending.is_empty() && with_value.assigned.is_empty() {
        values.remove(value);
    }
    if values.is_empty() {
        pods.remove(&pod.template.namespace);
    }
}

#[cfg(test)]
mod tests;
