//! The reference model: an independent record of the events that the engine received and of its calls: objects, assumed pods, binds in
//! flight. A [`World`] can be built from it from scratch.
//!
//! While an attempt waits for an extender, the engine defers events and the end of failed binding cycles, so that the attempt sees one
//! world. So does the model: what the engine receives is collected, and [`ReferenceModel::handle_deferred`] handles it, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str};
use loadmaster_engine::engine::{
    ApiObject, ApiReply, ApiServerCall, CallId, DeletedObjectKey, EngineEvent,
};
use loadmaster_framework::api_calls::Verb;
use loadmaster_framework::{FeatureGates, World};
use loadmaster_plugins::volume_binding;
use serde_json::Value;

use super::plugin_model::PluginModel;
use super::reloads::CountingModel;
use super::run_configuration::RunConfiguration;
use crate::fake_api_server::is_pod_terminal;

#[derive(Default)]
pub(super) struct ReferenceModel {
    /// The engine decides by it.
    pub configuration: Arc<RunConfiguration>,
    pub nodes: BTreeMap<Str, Arc<Node>>,
    /// Pods that are not terminal, by uid.
    pub pods: BTreeMap<Box<str>, Pod>,
    budgets: BTreeMap<Str, Arc<PodDisruptionBudget>>,
    /// Assumed pods and their nodes, by uid: each as it was when it was assumed.
    pub assumed: BTreeMap<Box<str>, (Pod, Str)>,
    /// Binds in flight, by uid.
    pub binds: BTreeMap<Box<str>, CallId>,
    /// Pods whose bind succeeded.
    pub bound: BTreeSet<Box<str>>,
    /// Pods whose eviction has started.
    pub victims: BTreeSet<Box<str>>,
    /// Priority by uid of every pod ever seen.
    pub priorities: BTreeMap<Box<str>, i32>,
    /// Nominated pods and their nodes when the engine was last called: an attempt that ended in that call saw them.
    pub nominated: Vec<(Box<str>, Str)>,
    deferred: VecDeque<Deferred>,
    /// The states of the plugin that counts, in runs whose configuration is replaced.
    pub counting: CountingModel,
    /// The test plugins.
    pub plugins: PluginModel,
}

/// What the engine received and the model has not handled yet.
enum Deferred {
    Event(EngineEvent),
    Configuration(Arc<RunConfiguration>),
    FailedBind { call: CallId, uid: Box<str> },
}

/// What an API call does.
pub(super) enum CallKind {
    Bind {
        uid: Box<str>,
        node: Str,
    },
    /// PreBind binds a volume, of this version, to the claim with this uid.
    BindVolume {
        volume: Str,
        claim: Box<str>,
        version: Box<str>,
    },
    /// PreBind selects a node for the claim with this uid.
    SelectNode {
        claim: Box<str>,
        node: Str,
    },
    DisruptionCondition {
        uid: Box<str>,
    },
    DeletePod {
        uid: Box<str>,
    },
    /// The status of a pod, or a request of a test plugin.
    Other,
}

impl CallKind {
    pub fn of_call(call: &ApiServerCall) -> CallKind {
        let request = &call.request;
        let body = request.body.as_ref().unwrap_or(&Value::Null);
        let text = |at: &str| body.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let kind = text("/status/conditions/0/type");
        match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => CallKind::Bind {
                uid: text("/metadata/uid").into(),
                node: Str::new(text("/target/name")),
            },
            (Verb::Update, _) if request.resource == "persistentvolumes" => CallKind::BindVolume {
                volume: request.name.clone(),
                claim: text("/spec/claimRef/uid").into(),
                version: text("/metadata/resourceVersion").into(),
            },
            (Verb::Update, _) => CallKind::SelectNode {
                claim: text("/metadata/uid").into(),
                node: Str::new(text("/metadata/annotations/volume.kubernetes.io~1selected-node")),
            },
            (Verb::Delete, _) => CallKind::DeletePod { uid: text("/preconditions/uid").into() },
            (_, "status") if kind == "DisruptionTarget" => {
                CallKind::DisruptionCondition { uid: text("/metadata/uid").into() }
            }
            _ => CallKind::Other,
        }
    }
}

impl ReferenceModel {
    /// The engine is about to receive an event.
    pub fn defer_event(&mut self, event: EngineEvent) {
        if let Some(volumes) = &mut self.plugins.volumes {
            volumes.receive_event(&event);
        }
        if let EngineEvent::Synced { group, resource, .. } = &event {
            self.plugins.awaited_kinds.remove(&(group.clone(), resource.clone()));
        }
        self.deferred.push_back(Deferred::Event(event));
    }

    /// The engine is about to receive another configuration.
    pub fn defer_configuration(&mut self, configuration: Arc<RunConfiguration>) {
        self.deferred.push_back(Deferred::Configuration(configuration));
    }

    /// A configuration takes effect.
    pub fn handle_configuration(&mut self, configuration: Arc<RunConfiguration>) {
        self.counting.handle_configuration(&configuration);
        let before = std::mem::replace(&mut self.configuration, configuration);
        if let Some(volumes) = &mut self.plugins.volumes
            && !self.configuration.has_same_plugin(&before, volume_binding::NAME)
        {
            volumes.forget_assumed();
        }
    }

    /// No attempt is suspended: handles everything that the engine received.
    pub fn handle_deferred(&mut self) {
        while let Some(deferred) = self.deferred.pop_front() {
            match deferred {
                Deferred::Event(event) => self.handle_event(&event),
                Deferred::Configuration(configuration) => self.handle_configuration(configuration),
                Deferred::FailedBind { call, uid } => {
                    if self.end_binding(call, &uid) {
                        self.assumed.remove(&uid);
                    }
                }
            }
        }
    }

    fn handle_event(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Upsert(ApiObject::Node(node)) => {
                self.nodes.insert(Str::new(node.name()), node.clone());
            }
            EngineEvent::Delete(DeletedObjectKey::Node(name)) => drop(self.nodes.remove(name)),
            EngineEvent::Upsert(ApiObject::PodDisruptionBudget(budget)) => {
                self.budgets.insert(Str::new(&budget.metadata.name), budget.clone());
            }
            EngineEvent::Upsert(ApiObject::Pod(pod)) => self.upsert_pod(pod),
            EngineEvent::Delete(DeletedObjectKey::Pod(uid)) => self.delete_pod(uid),
            other => self.plugins.handle_event(other),
        }
    }

    fn upsert_pod(&mut self, pod: &Pod) {
        let uid = &pod.metadata.uid;
        self.priorities.insert(uid.clone(), pod.spec.priority.unwrap_or(0));
        if is_pod_terminal(pod) {
            return self.delete_pod(uid);
        }
        if !pod.spec.node_name.is_empty() || pod.metadata.deletion_timestamp.is_some() {
            self.assumed.remove(uid);
        }
        self.pods.insert(uid.clone(), pod.clone());
    }

    fn delete_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.assumed.remove(uid);
    }

    /// The engine has started to bind a pod.
    pub fn start_binding(&mut self, call: CallId, uid: &str) {
        self.binds.insert(uid.into(), call);
    }

    /// The engine has selected a node for a pod.
    pub fn assume(&mut self, uid: &str, node: Str) {
        if let Some(pod) = self.pods.get(uid) {
            self.assumed.insert(uid.into(), (pod.clone(), node));
        }
    }

    /// The engine has reserved the claims of a pod on the node, which has this name.
    pub fn reserve_claims(&mut self, uid: &str, node: &Str, object: Option<Arc<Node>>) {
        if let Some(volumes) = &mut self.plugins.volumes
            && let Some(pod) = self.pods.get(uid)
        {
            volumes.reserve(&self.plugins.objects, pod, node, object);
        }
    }

    /// The engine is about to receive the reply of an API call. A pod whose bind failed stays assumed until its binding cycle ends, which is
    /// deferred.
    pub fn handle_reply(&mut self, call: &ApiServerCall, reply: &ApiReply) {
        let CallKind::Bind { uid, .. } = CallKind::of_call(call) else { return };
        if reply.is_err() {
            self.deferred.push_back(Deferred::FailedBind { call: call.id, uid });
        } else if self.end_binding(call.id, &uid) {
            self.bound.insert(uid);
        }
    }

    /// Whether this was the bind in flight of the pod.
    fn end_binding(&mut self, call: CallId, uid: &str) -> bool {
        let is_in_flight = self.binds.get(uid) == Some(&call);
        if is_in_flight {
            self.binds.remove(uid);
        }
        is_in_flight
    }

    /// The engine gave up waiting for the extender that should bind the pod. While an attempt is suspended it tells so later, so that the
    /// extender's reply may have arrived in between.
    pub fn abandon_extender_binding(&mut self, uid: &str) {
        self.binds.remove(uid);
        self.bound.remove(uid);
        self.assumed.remove(uid);
    }

    /// Whether a pod is not assigned and a profile is responsible for it.
    pub fn is_pending(&self, pod: &Pod) -> bool {
        pod.spec.node_name.is_empty() && self.configuration.profile_of(pod).is_some()
    }

    /// The pods that our profiles have to place.
    pub fn pending_pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(|pod| self.is_pending(pod))
    }

    /// The assigned and assumed pods with their nodes.
    pub fn placed_pods(&self) -> impl Iterator<Item = (&Pod, Str)> {
        let assigned = self.pods.iter().filter(|(uid, pod)| {
            !pod.spec.node_name.is_empty() && !self.assumed.contains_key(*uid)
        });
        let assigned = assigned.map(|(_, pod)| (pod, pod.spec.node_name.clone()));
        assigned.chain(self.assumed.values().map(|(pod, node)| (pod, node.clone())))
    }

    /// Builds the world from these objects, without one pod.
    pub fn world(&self, gates: &FeatureGates, without: &str) -> World {
        let pods = self.placed_pods().filter(|(pod, _)| *pod.metadata.uid != *without);
        build_world(gates, self.nodes.values(), self.budgets.values(), pods)
    }
}

pub(super) fn has_scheduler_name(pod: &Pod, scheduler_name: &str) -> bool {
    let name = pod.spec.scheduler_name.as_str();
    name == scheduler_name || name.is_empty() && scheduler_name == "default-scheduler"
}

/// Builds a world from scratch. Pods on missing nodes and pods that cannot be parsed are left out.
pub(super) fn build_world<'a>(
    gates: &FeatureGates,
    nodes: impl Iterator<Item = &'a Arc<Node>>,
    budgets: impl Iterator<Item = &'a Arc<PodDisruptionBudget>>,
    pods: impl Iterator<Item = (&'a Pod, Str)>,
) -> World {
    let mut world = World::new(gates.clone());
    for node in nodes {
        world.upsert_node(node.clone());
    }
    for budget in budgets {
        world.update_without_invalidation(|cluster| {
            let namespace = budget.metadata.namespace.clone();
            cluster.disruption_budgets.entry(namespace).or_default().push(budget.clone());
        });
    }
    for (pod, node) in pods {
        if let Some(row) = world.nodes().row(&node)
            && let Ok(mut info) = world.parse_pod(pod)
        {
            info.node_name = node;
            world.add_pod(row, Arc::new(info));
        }
    }
    world
}
