//! Objects that came, changed or went: the world, the pending pods and the queue follow (upstream's `eventhandlers.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::pod::PodStatus;
use loadmaster_api::{Node, ObjectMeta, Pod, PodDisruptionBudget, ReplicaSet};
use loadmaster_api::{ReplicationController, Service, StatefulSet, Str};
use loadmaster_framework::cluster::Cluster;
use loadmaster_framework::{Action, ClusterEvent, EventResource, PodInfo, Rejection};
use loadmaster_stdx::{Chain, Map};

use super::effect::{Effect, Effects, Observation};
use super::failure::Failed;
use super::news::{Name, Object};
use super::status::Condition;
use super::{Asking, Engine, Pending};
use crate::queue::{self, Cause, Happened, Object as Subject};
use crate::time::Now;

impl Engine {
    pub(super) fn set(&mut self, now: Now, object: Object, effects: &mut Effects) {
        match object {
            Object::Node(node) => self.set_node(now, node),
            Object::Pod(pod) => self.set_pod(now, &pod, effects),
            Object::Namespace(namespace) => self.world.set_namespace(namespace),
            Object::Service(it) => self.set_listed(it),
            Object::ReplicationController(it) => self.set_listed(it),
            Object::ReplicaSet(it) => self.set_listed(it),
            Object::StatefulSet(it) => self.set_listed(it),
            Object::PodDisruptionBudget(it) => self.set_listed(it),
            Object::PriorityClass(class) => self.world.change_unread(|cluster| {
                cluster.priority_classes.insert(Str::new(&class.metadata.name), class);
            }),
        }
    }

    pub(super) fn gone(&mut self, now: Now, name: &Name, effects: &mut Effects) {
        match name {
            Name::Node(name) => self.node_gone(now, name),
            Name::Pod(uid) => self.pod_gone(now, uid, effects),
            Name::Namespace(name) => {
                if self.world.cluster().namespaces.contains_key(name) {
                    self.world.change_cluster(|cluster| drop(cluster.namespaces.remove(name)));
                }
            }
            Name::Service(namespace, name) => self.listed_gone::<Service>(namespace, name),
            Name::ReplicationController(namespace, name) => {
                self.listed_gone::<ReplicationController>(namespace, name);
            }
            Name::ReplicaSet(namespace, name) => self.listed_gone::<ReplicaSet>(namespace, name),
            Name::StatefulSet(namespace, name) => self.listed_gone::<StatefulSet>(namespace, name),
            Name::PodDisruptionBudget(namespace, name) => {
                self.listed_gone::<PodDisruptionBudget>(namespace, name);
            }
            Name::PriorityClass(name) => {
                self.world.change_unread(|cluster| drop(cluster.priority_classes.remove(name)))
            }
        }
    }

    fn set_node(&mut self, now: Now, mut node: Arc<Node>) {
        if node.extra.is_some() && self.needs.nodes.is_empty() {
            Arc::make_mut(&mut node).extra = None;
        }
        let name = Str::new(node.name());
        let old = self.world.nodes().row(&name).and_then(|row| self.world.nodes().node(row));
        let old = old.cloned();
        let row = self.world.set_node(node.clone());
        let Some(old) = old else {
            for pod in self.orphans.remove(&name).unwrap_or_default() {
                self.world.add_pod(row, pod);
            }
            let event = ClusterEvent::new(EventResource::Node, Action::ADD);
            return self.happened(now, Happened::new(event, None, Some(Subject::Node(node))));
        };
        for event in queue::node_update_events(&old, &node) {
            let (old, new) = (Subject::Node(old.clone()), Subject::Node(node.clone()));
            self.happened(now, Happened::new(event, Some(old), Some(new)));
        }
    }

    fn node_gone(&mut self, now: Now, name: &Str) {
        let row = self.world.nodes().row(name);
        let Some(node) = row.and_then(|row| self.world.nodes().node(row)).cloned() else { return };
        let event = ClusterEvent::new(EventResource::Node, Action::DELETE);
        self.happened(now, Happened::new(event, Some(Subject::Node(node)), None));
        let pods = self.world.remove_node(name);
        if !pods.is_empty() {
            self.orphans.insert(name.clone(), pods);
        }
    }

    fn set_pod(&mut self, now: Now, pod: &Pod, effects: &mut Effects) {
        let info = match self.world.parse(pod) {
            Ok(info) if self.needs.pods.is_empty() => Arc::new(PodInfo { extra: None, ..info }),
            Ok(info) => Arc::new(info),
            Err(error) => {
                let what = format!("pod {}: {}", pod.full_name(), Chain(&error));
                effects.push(Effect::Observe(Observation::Trouble { what }));
                return;
            }
        };
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.pod_gone(now, &info.uid, effects);
        } else if !info.node_name.is_empty() {
            self.set_assigned(now, info, effects);
        } else {
            self.set_unassigned(now, info, pod, effects);
        }
    }

    /// A pod is on a node: put there by us, by somebody else, or long ago.
    fn set_assigned(&mut self, now: Now, pod: Arc<PodInfo>, effects: &mut Effects) {
        if let Some(pending) = self.pending.remove(&pod.uid) {
            self.queue.delete(&pod.uid);
            self.statuses.forget(&pod.uid);
            self.race_for_pod(&pending, &pod, effects);
            if self.options.shadow && !self.assumed.contains_key(&pod.uid) {
                self.judge(pending.seat, &pending.pod, &pod.node_name, effects);
            }
        }
        self.world.forget_nomination(&pod.uid);
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
        if !self.world.renew_pod(&pod) {
            self.remove_assigned(&pod.uid);
            self.put(pod.clone());
        }
        if is_theirs {
            self.race_for_room(&pod, effects);
        }
        let Some(old) = old else {
            return self.happened(now, Happened::assigned_pod_added(pod));
        };
        for event in queue::pod_update_events(&old, &pod) {
            let (old, new) = (Subject::Pod(old.clone()), Subject::Pod(pod.clone()));
            self.happened(now, Happened::new(event, Some(old), Some(new)));
        }
    }

    /// A pod without a node; it matters if a profile of ours decides it.
    fn set_unassigned(&mut self, now: Now, pod: Arc<PodInfo>, object: &Pod, effects: &mut Effects) {
        let Some(seat) = self.seat_of(&pod) else { return };
        let condition = condition(&object.status);
        let generation = object.metadata.generation;
        let known = self.pending.get_mut(&pod.uid);
        let (written_nomination, last, last_bind) = known
            .map(|it| (it.written_nomination.take(), it.last.take(), it.last_bind.take()))
            .unwrap_or_default();
        let written_nomination =
            written_nomination.filter(|written| *written != pod.nominated_node_name);
        let record = Pending {
            pod: pod.clone(),
            seat,
            generation,
            condition,
            written_nomination,
            last,
            last_bind,
        };
        let old = self.pending.insert(pod.uid.clone(), record).map(|old| old.pod);
        if let Some(assumed) = self.assumed.get(&pod.uid) {
            let ends = pod.terminating && old.is_some_and(|old| !old.terminating);
            if ends && !assumed.confirmed {
                self.assumed_pod_gone(now, &pod.uid, effects);
            }
            return;
        }
        let Some(old) = old else {
            let asking = Asking::new(&self.seats, &self.interests, &self.world);
            self.queue.add(now, &asking, seat, pod.clone());
            self.renominate(None, &pod);
            return;
        };
        // Extenders may read what is not kept of a pod, such as its annotations.
        if is_same(&old, &pod) && self.seat(seat).profile.extenders.is_empty() {
            // What only whole objects show, such as a condition that we wrote ourselves, wakes nobody.
            if old.extra != pod.extra {
                self.queue.renew(&pod);
            }
            return;
        }
        let asking = Asking::new(&self.seats, &self.interests, &self.world);
        self.queue.update(now, &asking, seat, pod.clone());
        self.renominate(Some(&old), &pod);
        if !old.nominated_node_name.is_empty() && old.nominated_node_name != pod.nominated_node_name
        {
            self.room_for_lesser(now, old);
        }
    }

    fn pod_gone(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        if let Some(record) = self.pending.remove(uid) {
            self.queue.delete(uid);
            self.statuses.forget(uid);
            self.world.forget_nomination(uid);
            if self.assumed.get(uid).is_some_and(|assumed| !assumed.confirmed) {
                self.assumed_pod_gone(now, uid, effects);
            } else if !record.pod.nominated_node_name.is_empty() {
                self.room_for_lesser(now, record.pod);
            }
            return;
        }
        if let Some(old) = self.remove_assigned(uid) {
            self.happened(now, Happened::assigned_pod_deleted(old));
        }
        // Somebody else may have bound it while a plugin was at work for it here.
        self.give_up_overdue(now, uid, effects);
    }

    /// A pod that we put on a node is deleted before it is bound. Its room is free at once; its binding goes on and will fail.
    fn assumed_pod_gone(&mut self, now: Now, uid: &str, effects: &mut Effects) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        let pod = assumed.pod.clone();
        if assumed.waits_on_permit() {
            let failed = Failed::rejected(None, &Rejection::unschedulable("removed"));
            self.binding_failed(now, uid, failed, effects);
        } else {
            assumed.forgotten = true;
            if assumed.binding.is_none() {
                // It is bound, and the news of that will never come.
                self.assumed.remove(uid);
            }
            self.remove_assigned(uid);
            self.give_up_overdue(now, uid, effects);
        }
        self.happened(now, Happened::assigned_pod_deleted(pod));
    }

    /// A node is no longer promised to this pod: room for those of at most its priority, who had to reckon with it.
    fn room_for_lesser(&mut self, now: Now, pod: Arc<PodInfo>) {
        let most = pod.template.priority();
        self.happened(now, Happened::assigned_pod_deleted(pod).up_to_priority(most));
    }

    /// Tells the queue.
    pub(super) fn happened(&mut self, now: Now, happened: Happened) {
        let heard = self.hearing_since.map(|since| (since, happened.event.clone()));
        let asking = Asking::new(&self.seats, &self.interests, &self.world);
        self.queue.happened(now, &asking, happened);
        if let Some((since, event)) = heard {
            let nanos = (self.options.ticks)().saturating_sub(since);
            self.handled.push(Observation::Handled { event: Cause::Event(event), nanos });
        }
    }

    /// An assigned pod as we last heard of it, on a node that we know or not.
    pub(super) fn assigned_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.world
            .assigned(uid)
            .or_else(|| self.orphans.values().flatten().find(|pod| &*pod.uid == uid))
    }

    pub(super) fn remove_assigned(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        if let Some(pod) = self.world.remove_pod(uid) {
            return Some(pod);
        }
        let mut found = None;
        self.orphans.retain(|_, pods| {
            if let Some(at) = pods.iter().position(|pod| &*pod.uid == uid) {
                found = Some(pods.swap_remove(at));
            }
            !pods.is_empty()
        });
        found
    }

    /// Puts a pod on the node it names, or aside until that node is known.
    fn put(&mut self, pod: Arc<PodInfo>) {
        match self.world.nodes().row(&pod.node_name) {
            Some(row) => self.world.add_pod(row, pod),
            None => self.orphans.entry(pod.node_name.clone()).or_default().push(pod),
        }
    }

    fn set_listed<T: Listed>(&mut self, object: Arc<T>) {
        let (namespace, name) = (&object.metadata().namespace, &object.metadata().name);
        let known = T::list(self.world.cluster()).get(namespace);
        let place = known.and_then(|all| all.iter().position(|it| it.metadata().name == *name));
        if let Some(at) = place
            && known.is_some_and(|all| all[at].reads_as(&object))
        {
            return;
        }
        let namespace = namespace.clone();
        self.change_listed::<T>(move |all| match place {
            Some(at) => all.entry(namespace).or_default()[at] = object,
            None => all.entry(namespace).or_default().push(object),
        });
    }

    fn listed_gone<T: Listed>(&mut self, namespace: &Str, name: &Str) {
        let is_it = |it: &Arc<T>| *it.metadata().name == **name;
        let known = T::list(self.world.cluster()).get(namespace);
        if known.is_some_and(|all| all.iter().any(is_it)) {
            self.change_listed::<T>(|all| {
                if let Some(all) = all.get_mut(namespace) {
                    all.retain(|it| !is_it(it));
                }
            });
        }
    }

    fn change_listed<T: Listed>(&mut self, change: impl FnOnce(&mut ByNamespace<T>)) {
        if T::SELECTS_FOR_SPREAD {
            self.world.change_cluster(|cluster| change(T::list_mut(cluster)));
        } else {
            self.world.change_unread(|cluster| change(T::list_mut(cluster)));
        }
    }
}

/// Whether nothing changed that scheduling reads.
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

type ByNamespace<T> = Map<Str, Vec<Arc<T>>>;

/// A kind of which plugins read a list in a namespace.
trait Listed: Sized {
    /// Whether the default spread constraints of pods hang on it, so that kept answers do.
    const SELECTS_FOR_SPREAD: bool = true;
    fn list(cluster: &Cluster) -> &ByNamespace<Self>;
    fn list_mut(cluster: &mut Cluster) -> &mut ByNamespace<Self>;
    fn metadata(&self) -> &ObjectMeta;
    /// Whether plugins read the same in both. A ReplicaSet's status changes with each of its pods; its selector never does.
    fn reads_as(&self, other: &Self) -> bool;
}

macro_rules! listed {
    ($kind:ty, $list:ident, |$a:ident, $b:ident| $same:expr $(, $spread:literal)?) => {
        impl Listed for $kind {
            $(const SELECTS_FOR_SPREAD: bool = $spread;)?
            fn list(cluster: &Cluster) -> &ByNamespace<Self> {
                &cluster.$list
            }
            fn list_mut(cluster: &mut Cluster) -> &mut ByNamespace<Self> {
                &mut cluster.$list
            }
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn reads_as(&self, other: &Self) -> bool {
                let ($a, $b) = (self, other);
                $same
            }
        }
    };
}

listed!(Service, services, |a, b| a.spec == b.spec);
listed!(ReplicationController, replication_controllers, |a, b| a.spec == b.spec);
listed!(ReplicaSet, replica_sets, |a, b| a.spec.selector == b.spec.selector);
listed!(StatefulSet, stateful_sets, |a, b| a.spec.selector == b.spec.selector);
listed!(
    PodDisruptionBudget,
    disruption_budgets,
    |a, b| a.spec == b.spec && a.status == b.status,
    false
);
