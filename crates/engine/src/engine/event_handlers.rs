//! Objects that were added, updated or deleted: updates the world, the pending pods and the queue (upstream's `eventhandlers.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::pod::PodStatus;
use loadmaster_api::{Node, Pod, PodDisruptionBudget, ReplicaSet};
use loadmaster_api::{ReplicationController, Service, StatefulSet, Str};
use loadmaster_framework::{ActionType, ClusterEvent, EventResource, PodInfo, Rejection};
use loadmaster_stdx::ErrorChain;

use super::attempt_failure::AttemptFailure;
use super::effect::{Effect, Effects, Observation};
use super::event::{ApiObject, DeletedObjectKey};
use super::reconfigure::OtherPod;
use super::shadow::{BoundPod, Step};
use super::status_patch::Condition;
use super::{Engine, PendingPod, PluginHandle};
use crate::queue::{
    self, ClusterEventOccurrence, EnqueueCause, OwnedEventObject as QueueObject, ProfileIdx,
};
use crate::time::Now;

impl Engine {
    pub(super) fn upsert_object(&mut self, now: Now, object: ApiObject, effects: &mut Effects) {
        match object {
            ApiObject::Node(node) => self.upsert_node(now, node),
            ApiObject::Pod(pod) => self.upsert_pod(now, &pod, effects),
            ApiObject::Namespace(namespace) => self.world.upsert_namespace(namespace),
            ApiObject::Service(it) => self.world.upsert_listed(it),
            ApiObject::ReplicationController(it) => self.world.upsert_listed(it),
            ApiObject::ReplicaSet(it) => self.world.upsert_listed(it),
            ApiObject::StatefulSet(it) => self.world.upsert_listed(it),
            ApiObject::PodDisruptionBudget(it) => self.world.upsert_listed(it),
            ApiObject::PriorityClass(class) => self.world.update_without_invalidation(|cluster| {
                cluster.priority_classes.insert(Str::new(&class.metadata.name), class);
            }),
        }
    }

    pub(super) fn delete_object(
        &mut self,
        now: Now,
        name: &DeletedObjectKey,
        effects: &mut Effects,
    ) {
        match name {
            DeletedObjectKey::Node(name) => self.delete_node(now, name),
            DeletedObjectKey::Pod(uid) => self.delete_pod(now, uid, effects),
            DeletedObjectKey::Namespace(name) => {
                self.world.remove_namespace(name);
            }
            DeletedObjectKey::Service(namespace, name) => {
                self.world.delete_listed::<Service>(namespace, name)
            }
            DeletedObjectKey::ReplicationController(namespace, name) => {
                self.world.delete_listed::<ReplicationController>(namespace, name);
            }
            DeletedObjectKey::ReplicaSet(namespace, name) => {
                self.world.delete_listed::<ReplicaSet>(namespace, name)
            }
            DeletedObjectKey::StatefulSet(namespace, name) => {
                self.world.delete_listed::<StatefulSet>(namespace, name)
            }
            DeletedObjectKey::PodDisruptionBudget(namespace, name) => {
                self.world.delete_listed::<PodDisruptionBudget>(namespace, name);
            }
            DeletedObjectKey::PriorityClass(name) => self
                .world
                .update_without_invalidation(|cluster| drop(cluster.priority_classes.remove(name))),
        }
    }

    fn upsert_node(&mut self, now: Now, mut node: Arc<Node>) {
        if node.extra.is_some() && self.needs.nodes.is_empty() {
            Arc::make_mut(&mut node).extra = None;
        }
        let name = Str::new(node.name());
        let old = self.world.nodes().row(&name).and_then(|row| self.world.nodes().node(row));
        let old = old.cloned();
        let row = self.world.upsert_node(node.clone());
        let Some(old) = old else {
            for pod in self.orphaned_pods.take_node(&mut self.world, &name) {
                self.world.add_pod(row, pod);
            }
            self.notify_node_change(None, Some(&node));
            self.record_step(Step::NodeChanged { node: name });
            let event = ClusterEvent::new(EventResource::Node, ActionType::ADD);
            return self.on_cluster_event(
                now,
                ClusterEventOccurrence::new(event, None, Some(QueueObject::Node(node))),
            );
        };
        if *old != *node {
            self.notify_node_change(Some(&old), Some(&node));
        }
        let events = queue::node_update_events(&old, &node, self.world.gates());
        if !events.is_empty() {
            self.record_step(Step::NodeChanged { node: name });
        }
        for event in events {
            let (old, new) = (QueueObject::Node(old.clone()), QueueObject::Node(node.clone()));
            self.on_cluster_event(now, ClusterEventOccurrence::new(event, Some(old), Some(new)));
        }
    }

    fn delete_node(&mut self, now: Now, name: &Str) {
        let row = self.world.nodes().row(name);
        let Some(node) = row.and_then(|row| self.world.nodes().node(row)).cloned() else { return };
        let pods = self.world.remove_node(name);
        for pod in pods {
            self.orphaned_pods.insert(&mut self.world, name, pod);
        }
        self.notify_node_change(Some(&node), None);
        let event = ClusterEvent::new(EventResource::Node, ActionType::DELETE);
        self.on_cluster_event(
            now,
            ClusterEventOccurrence::new(event, Some(QueueObject::Node(node)), None),
        );
    }

    fn upsert_pod(&mut self, now: Now, pod: &Pod, effects: &mut Effects) {
        let info = match self.world.parse_pod(pod) {
            Ok(info) if self.needs.pods.is_empty() => Arc::new(PodInfo { extra: None, ..info }),
            Ok(info) => Arc::new(info),
            Err(error) => {
                let message = format!("pod {}: {}", pod.full_name(), ErrorChain(&error));
                effects.push(Effect::Observe(Observation::InternalError { message }));
                return;
            }
        };
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.delete_pod(now, &info.uid, effects);
        } else if !info.node_name.is_empty() {
            self.upsert_assigned_pod(now, info, effects);
        } else {
            let (generation, condition) = (pod.metadata.generation, condition(&pod.status));
            self.upsert_pending_pod(now, info, generation, condition, effects);
        }
    }

    /// A pod has a node: bound by this scheduler, by another one, or before this one started.
    fn upsert_assigned_pod(&mut self, now: Now, pod: Arc<PodInfo>, effects: &mut Effects) {
        self.others.remove(&pod.uid);
        let (mut as_pending, mut pending_since) = (None, None);
        if let Some(pending) = self.pending.remove(&pod.uid) {
            as_pending = Some(pending.pod.clone());
            self.world.delete_pending_pod(&pod.uid);
            self.delete_queued_pod(&pod.uid);
            self.status_patches.drop_patch_of_pod(&pod.uid);
            self.detect_pod_conflict(&pending, &pod, effects);
            if self.options.shadow && !self.assumed.contains_key(&pod.uid) {
                let (profile_idx, since) = (pending.profile_idx, pending.since);
                let node = &pod.node_name;
                let bound = BoundPod { pod: &pending.pod, profile_idx, since, node };
                self.compare_placement(now, &bound, effects);
            }
            pending_since = Some(pending.since);
        }
        self.world.delete_nominated_pod(&pod.uid);
        let mut old = self.assigned_pod(&pod.uid).cloned();
        let is_theirs = old.is_none() && !self.assumed.contains_key(&pod.uid);
        if let Some(assumed) = self.assumed.get_mut(&pod.uid) {
            if !assumed.confirmed {
                old = None;
            }
            assumed.confirmed = true;
            if assumed.binding.is_none() {
                self.assumed.remove(&pod.uid);
            }
        }
        if !self.world.refresh_pod(&pod) {
            self.remove_assigned_pod(&pod.uid);
            self.add_assigned_pod(pod.clone());
            if old.is_none() {
                self.record_step(Step::Placed { pod: pod.clone(), pending_since });
            }
        }
        self.notify_pod_change(as_pending.or_else(|| old.clone()), Some(&pod));
        if is_theirs {
            self.detect_resource_conflict(&pod, effects);
        }
        let Some(old) = old else {
            return self.on_cluster_event(now, ClusterEventOccurrence::assigned_pod_added(pod));
        };
        for event in queue::pod_update_events(&old, &pod) {
            let (old, new) = (QueueObject::Pod(old.clone()), QueueObject::Pod(pod.clone()));
            self.on_cluster_event(now, ClusterEventOccurrence::new(event, Some(old), Some(new)));
        }
    }

    /// A pod without a node. It only counts if one of our profiles is responsible for it.
    pub(super) fn upsert_pending_pod(
        &mut self,
        now: Now,
        pod: Arc<PodInfo>,
        generation: i64,
        condition: Option<Condition>,
        effects: &mut Effects,
    ) {
        let Some(profile_idx) = self.responsible_profile(&pod) else {
            // It was bound under a profile that is gone, and is being deleted before an event confirms that.
            self.release_pod(now, &pod.uid);
            let since = self.others.get(&pod.uid).map_or(self.n_engine_calls, |it| it.since);
            let uid = pod.uid.clone();
            self.others.insert(uid, OtherPod { pod, generation, condition, since });
            return;
        };
        let known = self.pending.get_mut(&pod.uid);
        let since = known.as_ref().map_or(self.n_engine_calls, |it| it.since);
        let (written_nomination, rejected_for, last_attempt, last_failed_bind) = known
            .map(|it| {
                let nomination = (it.written_nomination.take(), it.rejected_for.take());
                (nomination.0, nomination.1, it.last_attempt.take(), it.last_failed_bind.take())
            })
            .unwrap_or_default();
        let written_nomination =
            written_nomination.filter(|written| *written != pod.nominated_node_name);
        let record = PendingPod {
            pod: pod.clone(),
            profile_idx,
            generation,
            condition,
            written_nomination,
            rejected_for: rejected_for.clone().filter(|_| !pod.nominated_node_name.is_empty()),
            since,
            last_attempt,
            last_failed_bind,
        };
        let old = self.pending.insert(pod.uid.clone(), record).map(|old| old.pod);
        self.world.upsert_pending_pod(&pod);
        self.notify_pod_change(old.clone(), Some(&pod));
        if self.assumed.contains_key(&pod.uid) {
            return self.update_assumed_pod(now, old, pod, profile_idx, effects);
        }
        let Some(old) = old else {
            let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
            self.queue.add(now, &handle, profile_idx, pod.clone());
            self.update_nomination(None, &pod);
            return;
        };
        // Extenders may read fields that are not stored here, such as annotations.
        if is_same(&old, &pod) && self.profile_scheduler(profile_idx).profile.extenders.is_empty() {
            // Changes that only the whole object shows, such as a condition that we wrote ourselves, requeue no pod.
            if old.extra != pod.extra {
                self.queue.refresh_pod(&pod);
            }
            return;
        }
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        self.queue.update(now, &handle, profile_idx, pod.clone());
        self.update_nomination(Some(&old), &pod);
        if !old.nominated_node_name.is_empty() && old.nominated_node_name != pod.nominated_node_name
        {
            self.requeue_lower_priority(now, old, rejected_for.as_deref());
        }
    }

    /// An assumed pod without a node in the API server was updated. While it waits at Permit it is in flight, and is requeued in this version
    /// if it is rejected.
    fn update_assumed_pod(
        &mut self,
        now: Now,
        old: Option<Arc<PodInfo>>,
        pod: Arc<PodInfo>,
        profile_idx: ProfileIdx,
        effects: &mut Effects,
    ) {
        let is_in_flight = self.queue.is_in_flight(&pod.uid);
        if is_in_flight
            && old.as_ref().is_some_and(|old| !Arc::ptr_eq(&old.template, &pod.template))
        {
            let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
            self.queue.update(now, &handle, profile_idx, pod.clone());
        } else if is_in_flight {
            // Its nomination, which we wrote ourselves, requeues no pod.
            self.queue.refresh_pod(&pod);
        }
        let ends = pod.terminating && old.is_some_and(|old| !old.terminating);
        if ends && self.assumed.get(&pod.uid).is_some_and(|assumed| !assumed.confirmed) {
            self.delete_assumed_pod(now, &pod.uid, effects);
        }
    }

    fn delete_pod(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        self.others.remove(uid);
        self.world.ongoing_preemptions_mut().remove_victim(uid);
        if let Some(record) = self.pending.remove(uid) {
            self.world.delete_pending_pod(uid);
            self.delete_queued_pod(uid);
            self.status_patches.drop_patch_of_pod(uid);
            self.world.delete_nominated_pod(uid);
            self.notify_pod_change(Some(record.pod.clone()), None);
            if self.assumed.get(uid).is_some_and(|assumed| !assumed.confirmed) {
                self.delete_assumed_pod(now, uid, effects);
            } else if !record.pod.nominated_node_name.is_empty() {
                self.requeue_lower_priority(now, record.pod, None);
            }
            return;
        }
        if let Some(old) = self.remove_assigned_pod(uid) {
            self.record_step(Step::Removed { pod: old.clone() });
            self.notify_pod_change(Some(old.clone()), None);
            self.on_cluster_event(now, ClusterEventOccurrence::assigned_pod_deleted(old.clone()));
            self.activate_preemptors(now, &old);
        }
        // Another scheduler may have bound it while a plugin was running for it here.
        self.cancel_stuck_binding(now, uid, effects);
    }

    pub(super) fn delete_queued_pod(&mut self, uid: &str) {
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        self.queue.delete(&handle, uid);
    }

    /// An assumed pod is deleted before it is bound. Its resources are released at once; its binding cycle continues and will fail.
    fn delete_assumed_pod(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let pod = assumed.pod.clone();
        if assumed.waits_on_permit() {
            let failed =
                AttemptFailure::single_node_rejected(None, &Rejection::unschedulable("removed"));
            self.handle_binding_error(now, uid, failed, effects);
        } else {
            assumed.forgotten = true;
            if assumed.binding.is_none() {
                // It is bound, and no event will confirm that.
                self.assumed.remove(uid);
            }
            self.remove_assigned_pod(uid);
            self.cancel_stuck_binding(now, uid, effects);
        }
        self.on_cluster_event(now, ClusterEventOccurrence::assigned_pod_deleted(pod));
    }

    /// A pod lost its nominated node: requeues pods of at most its priority, because their Filter counted it on that node.
    pub(super) fn requeue_lower_priority(
        &mut self,
        now: Now,
        pod: Arc<PodInfo>,
        except: Option<&str>,
    ) {
        let most = pod.template.priority();
        let event = ClusterEventOccurrence::assigned_pod_deleted(pod).up_to_priority(most);
        self.on_cluster_event(now, except.into_iter().fold(event, |it, uid| it.except_pod(uid)));
    }

    /// Moves pods in the queue for which the event may help (upstream's `MoveAllToActiveOrBackoffQueue`).
    pub(super) fn on_cluster_event(&mut self, now: Now, occurrence: ClusterEventOccurrence) {
        let handling = self.handling_since.map(|since| (since, occurrence.event.clone()));
        let handle = PluginHandle::new(&self.profiles, &self.registrations, &self.world);
        self.queue.on_cluster_event(now, &handle, occurrence);
        if let Some((since, event)) = handling {
            let nanos = (self.options.stopwatch)().saturating_sub(since);
            self.handled
                .push(Observation::EventHandled { event: EnqueueCause::Event(event), nanos });
        }
    }

    /// The last known version of an assigned pod, whether its node is known or not.
    pub(super) fn assigned_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.world.assigned_pod(uid).or_else(|| self.orphaned_pods.get(uid))
    }

    pub(super) fn remove_assigned_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let removed = self.world.remove_pod(uid);
        removed.or_else(|| self.orphaned_pods.remove(&mut self.world, uid))
    }

    /// Adds a pod to its node, or to the orphaned pods until that node is known.
    fn add_assigned_pod(&mut self, pod: Arc<PodInfo>) {
        match self.world.nodes().row(&pod.node_name) {
            Some(row) => self.world.add_pod(row, pod),
            None => {
                let node = pod.node_name.clone();
                self.orphaned_pods.insert(&mut self.world, &node, pod);
            }
        }
    }
}

/// Whether nothing changed that plugins read.
fn is_same(a: &PodInfo, b: &PodInfo) -> bool {
    Arc::ptr_eq(&a.template, &b.template)
        && a.nominated_node_name == b.nominated_node_name
        && a.terminating == b.terminating
        && a.resized == b.resized
        && annotations(a) == annotations(b)
}

fn annotations(pod: &PodInfo) -> Option<&BTreeMap<Box<str>, Box<str>>> {
    pod.extra.as_ref().map(|extra| &extra.annotations)
}

fn condition(status: &PodStatus) -> Option<Condition> {
    let known = status.conditions.iter().find(|condition| condition.kind == "PodScheduled")?;
    Some(Condition {
        status: known.status.clone(),
        reason: known.reason.clone(),
        message: known.message.clone(),
    })
}
