//! Objects other than nodes and pods: what in-tree plugins read, and the kinds that plugins watch. A change invalidates what was computed
//! from the object, and nothing else.

use std::sync::Arc;

use loadmaster_api::{Namespace, Str};

use super::{AffectedPods, World, WorldChange};
use crate::api_calls::ObjectRef;
use crate::cluster_objects::{ClusterObjects, ListedObject};
use crate::node_table::NodeRow;
use crate::topology_counter::TopologyCounterSet;
use crate::watched_objects::{Invalidated, ObjectStore, ObjectUpdate, ObjectWatch};

impl World {
    /// Adds or replaces a namespace. If its labels changed, the pods in it are counted again where counters read them.
    pub fn upsert_namespace(&mut self, namespace: Arc<Namespace>) {
        let name = Str::new(&namespace.metadata.name);
        let changed = self.cluster.namespace_labels(&name) != &namespace.metadata.labels;
        self.cluster.namespaces.insert(name.clone(), namespace);
        if changed {
            self.handle_namespace_labels(&name);
        }
    }

    /// Removes a namespace. Pods that are still in it are counted as if it had no labels.
    pub fn remove_namespace(&mut self, name: &Str) {
        let removed = self.cluster.namespaces.remove(name);
        if removed.is_some_and(|namespace| !namespace.metadata.labels.is_empty()) {
            self.handle_namespace_labels(name);
        }
    }

    fn handle_namespace_labels(&mut self, name: &Str) {
        self.invalidate_keys(name);
        let (contributions, mut sums) = self.contributions_and_sums();
        for row in contributions.recount_namespace(name, &mut sums) {
            self.counters.mark_all_changed(self.next_change_seq());
            self.log_change(WorldChange::Pods(row, TopologyCounterSet::ALL));
        }
    }

    /// Adds or replaces a service, a controller or a PodDisruptionBudget, unless nothing changed that plugins read. The keys of pods that it
    /// neither selects nor owns hold.
    pub fn upsert_listed<T: ListedObject>(&mut self, object: Arc<T>) {
        let (namespace, name) = (object.metadata().namespace.clone(), &object.metadata().name);
        let all = T::list_mut(&mut self.cluster).entry(namespace.clone()).or_default();
        let known = all.iter_mut().find(|it| it.metadata().name == *name);
        if known.as_ref().is_some_and(|known| known.is_equivalent(&object)) {
            return;
        }
        let before = known.as_deref().cloned();
        let affected = T::KIND_FOR_KEYS.map(|kind| {
            let versions = before.iter().chain([&object]);
            AffectedPods::new(kind, name, versions.map(|it| it.selector()))
        });
        match known {
            Some(known) => *known = object,
            None => all.push(object),
        }
        if affected.is_some() {
            self.versions.change(&namespace, affected);
        }
    }

    /// Deletes such an object.
    pub fn delete_listed<T: ListedObject>(&mut self, namespace: &Str, name: &str) {
        let Some(all) = T::list_mut(&mut self.cluster).get_mut(namespace) else { return };
        let Some(at) = all.iter().position(|it| *it.metadata().name == *name) else { return };
        let object = all.remove(at);
        if let Some(kind) = T::KIND_FOR_KEYS {
            let affected = AffectedPods::new(kind, name, [object.selector()]);
            self.versions.change(namespace, Some(affected));
        }
    }

    /// Changes objects that keys of pods are resolved from, in whatever namespaces: all keys are computed again.
    pub fn update_cluster_objects(&mut self, change: impl FnOnce(&mut ClusterObjects)) {
        change(&mut self.cluster);
        self.versions.change_all();
    }

    /// Changes objects that no Filter or Score plugin reads: PodDisruptionBudgets, priority classes. Cached evaluations stay
    /// valid.
    pub fn update_without_invalidation(&mut self, change: impl FnOnce(&mut ClusterObjects)) {
        change(&mut self.cluster);
    }

    /// The objects of the kinds that plugins watch.
    pub fn watched_objects(&self) -> &ObjectStore {
        &self.objects
    }

    /// Starts storing the objects of one more kind.
    pub fn watch_objects(&mut self, watch: &ObjectWatch) {
        self.objects.watch(watch);
    }

    /// Sets whether the initial list of a kind is complete. Returns whether that changed.
    pub fn set_synced(&mut self, group: &str, resource: &str, has_synced: bool) -> bool {
        let is_changed = self.objects.set_synced(group, resource, has_synced);
        if is_changed {
            self.invalidate_evaluators();
        }
        is_changed
    }

    /// Handles a watch event of a kind that plugins watch: the object as it is now, or `None` when it was deleted.
    pub fn update_watched_object(
        &mut self,
        object: &ObjectRef,
        value: Option<&serde_json::Value>,
    ) -> ObjectUpdate {
        let changed = self.objects.update(object, value);
        self.pod_sums.on_object_change(object, &self.objects);
        match &changed.invalidated {
            Invalidated::Nothing => {}
            Invalidated::Keys => self.invalidate_keys(&object.namespace),
            Invalidated::Nodes(nodes) => {
                self.versions.change_all();
                let rows = nodes.iter().filter_map(|name| self.nodes.row(name));
                let rows: Vec<NodeRow> = rows.collect();
                rows.into_iter().for_each(|row| self.invalidate_node(row));
            }
            Invalidated::Everything => self.invalidate_evaluators(),
        }
        changed
    }
}
