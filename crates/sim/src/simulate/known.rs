//! What the engine was told and what it did, as an independent bookkeeper writes it down: the objects, the pods on their way to a node,
//! the calls under way. From these a world can be built from nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str};
use loadmaster_engine::engine::{Call, CallId, Event, Name, Object, Reply};
use loadmaster_framework::request::Verb;
use loadmaster_framework::{FeatureGates, World};
use serde_json::Value;

use crate::truth::has_ended;

#[derive(Default)]
pub(super) struct Known {
    pub nodes: BTreeMap<Str, Arc<Node>>,
    /// Pods that have not ended, by uid.
    pub pods: BTreeMap<Box<str>, Pod>,
    budgets: BTreeMap<Str, Arc<PodDisruptionBudget>>,
    /// Pods that hold room on a node though nobody told that they are there: as they were when they got it.
    pub assumed: BTreeMap<Box<str>, (Pod, Str)>,
    /// Binds under way, by uid.
    pub binds: BTreeMap<Box<str>, CallId>,
    /// Pods whose bind was answered well.
    pub bound: BTreeSet<Box<str>>,
    /// Pods whose eviction has begun.
    pub victims: BTreeSet<Box<str>>,
    /// Of every pod ever told.
    pub priorities: BTreeMap<Box<str>, i32>,
}

/// What a call is about.
pub(super) enum About {
    Bind { uid: Box<str>, node: Str },
    Condition { uid: Box<str> },
    Deletion { uid: Box<str> },
    Status,
}

impl About {
    pub fn of(call: &Call) -> About {
        let request = &call.request;
        let body = request.body.as_ref().unwrap_or(&Value::Null);
        let text = |at: &str| body.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let kind = text("/status/conditions/0/type");
        match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => About::Bind {
                uid: text("/metadata/uid").into(),
                node: Str::new(text("/target/name")),
            },
            (Verb::Delete, _) => About::Deletion { uid: text("/preconditions/uid").into() },
            (_, "status") if kind == "DisruptionTarget" => {
                About::Condition { uid: text("/metadata/uid").into() }
            }
            _ => About::Status,
        }
    }
}

impl Known {
    /// The engine is told an object.
    pub fn told(&mut self, event: &Event) {
        match event {
            Event::Set(Object::Node(node)) => {
                self.nodes.insert(Str::new(node.name()), node.clone());
            }
            Event::Gone(Name::Node(name)) => drop(self.nodes.remove(name)),
            Event::Set(Object::PodDisruptionBudget(budget)) => {
                self.budgets.insert(Str::new(&budget.metadata.name), budget.clone());
            }
            Event::Set(Object::Pod(pod)) => self.told_pod(pod),
            Event::Gone(Name::Pod(uid)) => self.pod_gone(uid),
            _ => {}
        }
    }

    fn told_pod(&mut self, pod: &Pod) {
        let uid = &pod.metadata.uid;
        self.priorities.insert(uid.clone(), pod.spec.priority.unwrap_or(0));
        if has_ended(pod) {
            return self.pod_gone(uid);
        }
        if !pod.spec.node_name.is_empty() || pod.metadata.deletion_timestamp.is_some() {
            self.assumed.remove(uid);
        }
        self.pods.insert(uid.clone(), pod.clone());
    }

    fn pod_gone(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.assumed.remove(uid);
    }

    /// The engine binds a pod.
    pub fn binds(&mut self, call: CallId, uid: &str, node: Str) {
        self.binds.insert(uid.into(), call);
        if let Some(pod) = self.pods.get(uid) {
            self.assumed.insert(uid.into(), (pod.clone(), node));
        }
    }

    /// The engine is told what became of a call.
    pub fn answered(&mut self, call: &Call, reply: &Reply) {
        let About::Bind { uid, .. } = About::of(call) else { return };
        if self.binds.get(&uid) != Some(&call.id) {
            return;
        }
        self.binds.remove(&uid);
        if reply.is_ok() {
            self.bound.insert(uid);
        } else {
            self.assumed.remove(&uid);
        }
    }

    /// The engine does not wait any longer for whoever was asked to bind the pod.
    pub fn gave_up(&mut self, uid: &str) {
        self.binds.remove(uid);
        self.assumed.remove(uid);
    }

    /// Whether a pod has no node yet and is for us to place.
    pub fn is_pending(&self, pod: &Pod, scheduler_name: &str) -> bool {
        pod.spec.node_name.is_empty() && is_for(pod, scheduler_name)
    }

    /// The world that these objects make, without one pod.
    pub fn world(&self, gates: &FeatureGates, without: &str) -> World {
        let assigned = self.pods.iter().filter(|(uid, pod)| {
            !pod.spec.node_name.is_empty() && !self.assumed.contains_key(*uid)
        });
        let assigned = assigned.map(|(_, pod)| (pod, pod.spec.node_name.clone()));
        let assumed = self.assumed.values().map(|(pod, node)| (pod, node.clone()));
        let pods = assigned.chain(assumed).filter(|(pod, _)| *pod.metadata.uid != *without);
        world(gates, self.nodes.values(), self.budgets.values(), pods)
    }
}

pub(super) fn is_for(pod: &Pod, scheduler_name: &str) -> bool {
    let name = pod.spec.scheduler_name.as_str();
    name == scheduler_name || name.is_empty() && scheduler_name == "default-scheduler"
}

/// A world from nothing. Pods on nodes that are not there are left out, and so are those that cannot be read.
pub(super) fn world<'a>(
    gates: &FeatureGates,
    nodes: impl Iterator<Item = &'a Arc<Node>>,
    budgets: impl Iterator<Item = &'a Arc<PodDisruptionBudget>>,
    pods: impl Iterator<Item = (&'a Pod, Str)>,
) -> World {
    let mut world = World::new(gates.clone());
    for node in nodes {
        world.set_node(node.clone());
    }
    for budget in budgets {
        world.change_unread(|cluster| {
            let namespace = budget.metadata.namespace.clone();
            cluster.disruption_budgets.entry(namespace).or_default().push(budget.clone());
        });
    }
    for (pod, node) in pods {
        if let Some(row) = world.nodes().row(&node)
            && let Ok(mut info) = world.parse(pod)
        {
            info.node_name = node;
            world.add_pod(row, Arc::new(info));
        }
    }
    world
}
