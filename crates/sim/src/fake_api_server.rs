//! An API server in memory: nodes, pods and PodDisruptionBudgets, the API calls of a scheduler, and a watch event for every change.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::pod::PodCondition;
use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str, Timestamp};
use loadmaster_engine::engine::{ApiError, ApiObject, ApiReply, DeletedObjectKey, EngineEvent};
use loadmaster_framework::api_calls::{ApiRequest, Verb};
use serde_json::Value;

/// Kinds that are watched, each with its own watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedKind {
    Node,
    Pod,
    Budget,
}

pub const WATCHED_KINDS: [WatchedKind; 3] =
    [WatchedKind::Node, WatchedKind::Pod, WatchedKind::Budget];

/// A change of an object, as a watch delivers it.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    pub kind: WatchedKind,
    /// Key of the object: the uid of a pod, else the name.
    pub key: Box<str>,
    pub event: EngineEvent,
}

/// The objects, and the watch events that were not taken yet.
#[derive(Default)]
pub struct FakeApiServer {
    nodes: BTreeMap<Str, Arc<Node>>,
    /// By `namespace/name`.
    pods: BTreeMap<String, Pod>,
    budgets: BTreeMap<Str, Arc<PodDisruptionBudget>>,
    pending_events: Vec<WatchEvent>,
    /// Node by uid of every pod that was ever bound.
    bound: BTreeMap<Box<str>, Str>,
    /// Pods that were bound to a second node, which must not happen.
    bound_twice: Vec<String>,
}

impl FakeApiServer {
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    pub fn pod(&self, full_name: &str) -> Option<&Pod> {
        self.pods.get(full_name)
    }

    /// Full names of the pods that match, sorted.
    pub fn pod_names_matching(&self, is_wanted: impl Fn(&Pod) -> bool) -> Vec<String> {
        let wanted = self.pods.iter().filter(|(_, pod)| is_wanted(pod));
        wanted.map(|(name, _)| name.clone()).collect()
    }

    pub fn disruption_budgets(&self) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        self.budgets.values()
    }

    pub fn pods_bound_twice(&self) -> &[String] {
        &self.bound_twice
    }

    /// Takes the watch events since the last call.
    pub fn take_watch_events(&mut self) -> Vec<WatchEvent> {
        std::mem::take(&mut self.pending_events)
    }

    pub fn upsert_node(&mut self, node: Node) {
        let node = Arc::new(node);
        self.push_event(
            WatchedKind::Node,
            node.name().into(),
            EngineEvent::Upsert(ApiObject::Node(node.clone())),
        );
        self.nodes.insert(Str::new(node.name()), node);
    }

    pub fn delete_node(&mut self, name: &Str) -> Option<Arc<Node>> {
        let node = self.nodes.remove(name)?;
        self.push_event(
            WatchedKind::Node,
            node.name().into(),
            EngineEvent::Delete(DeletedObjectKey::Node(name.clone())),
        );
        Some(node)
    }

    pub fn upsert_disruption_budget(&mut self, budget: PodDisruptionBudget) {
        let budget = Arc::new(budget);
        let name = Str::new(&budget.metadata.name);
        let event = EngineEvent::Upsert(ApiObject::PodDisruptionBudget(budget.clone()));
        self.push_event(WatchedKind::Budget, name.as_str().into(), event);
        self.budgets.insert(name, budget);
    }

    /// Creates a pod. A pod of the same name must not exist.
    pub fn create_pod(&mut self, pod: Pod) {
        self.push_pod_event(&pod);
        self.pods.insert(pod.full_name(), pod);
    }

    /// Changes a pod, with a watch event unless nothing changed.
    pub fn update_pod(&mut self, full_name: &str, change: impl FnOnce(&mut Pod)) {
        let Some(pod) = self.pods.get_mut(full_name) else { return };
        let before = pod.clone();
        change(pod);
        if *pod == before {
            return;
        }
        if pod.spec != before.spec {
            pod.metadata.generation += 1;
        }
        let pod = pod.clone();
        self.record_binding(&before, &pod);
        self.push_pod_event(&pod);
    }

    /// Deletes a pod gracefully: an assigned pod only gets a deletion timestamp.
    pub fn delete_pod_gracefully(&mut self, full_name: &str, now: Timestamp) {
        let Some(pod) = self.pods.get(full_name) else { return };
        if pod.spec.node_name.is_empty() || is_pod_terminal(pod) {
            self.delete_pod(full_name);
        } else {
            self.update_pod(full_name, |pod| {
                pod.metadata.deletion_timestamp.get_or_insert(now);
            });
        }
    }

    /// Removes a pod at once.
    pub fn delete_pod(&mut self, full_name: &str) {
        if let Some(pod) = self.pods.remove(full_name) {
            let uid = pod.metadata.uid;
            self.push_event(
                WatchedKind::Pod,
                uid.clone(),
                EngineEvent::Delete(DeletedObjectKey::Pod(uid)),
            );
        }
    }

    /// Lists all objects of a kind, as watch events.
    pub fn list(&self, kind: WatchedKind) -> Vec<WatchEvent> {
        let node = |node: &Arc<Node>| WatchEvent {
            kind,
            key: node.name().into(),
            event: EngineEvent::Upsert(ApiObject::Node(node.clone())),
        };
        let budget = |budget: &Arc<PodDisruptionBudget>| WatchEvent {
            kind,
            key: budget.metadata.name.clone(),
            event: EngineEvent::Upsert(ApiObject::PodDisruptionBudget(budget.clone())),
        };
        match kind {
            WatchedKind::Node => self.nodes.values().map(node).collect(),
            WatchedKind::Pod => self.pods.values().map(pod_event).collect(),
            WatchedKind::Budget => self.budgets.values().map(budget).collect(),
        }
    }

    /// Handles an API request, or rejects it as kube-apiserver does.
    pub fn handle_request(&mut self, request: &ApiRequest, now: Timestamp) -> ApiReply {
        let full_name = format!("{}/{}", request.namespace, request.name);
        let Some(pod) = self.pods.get(&full_name) else {
            return rejected(404, format!("pods {:?} not found", request.name.as_str()));
        };
        let body = request.body.as_ref().unwrap_or(&Value::Null);
        let uid = ["/metadata/uid", "/preconditions/uid"].into_iter();
        let uid = uid.filter_map(|at| body.pointer(at)).find_map(Value::as_str);
        if let Some(uid) = uid
            && *pod.metadata.uid != *uid
        {
            let known = &pod.metadata.uid;
            return rejected(409, format!("the UID in the precondition ({uid}) is not {known}"));
        }
        match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => {
                let node = body.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
                self.bind_pod(&full_name, Str::new(node))
            }
            (Verb::StrategicMergePatch, "status") => {
                let status = body.get("status").cloned().unwrap_or_default();
                self.update_pod(&full_name, |pod| merge_status(pod, &status));
                Ok(Value::Null)
            }
            (Verb::Delete, "") => {
                self.delete_pod_gracefully(&full_name, now);
                Ok(Value::Null)
            }
            _ => rejected(405, format!("{:?} of pods/{}", request.verb, request.subresource)),
        }
    }

    /// Binds a pod. As in kube-apiserver, the node need not exist.
    pub fn bind_pod(&mut self, full_name: &str, node: Str) -> ApiReply {
        let Some(pod) = self.pods.get(full_name) else {
            return rejected(404, format!("pod {full_name} not found"));
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return rejected(409, format!("pod {full_name} is being deleted"));
        }
        if !pod.spec.node_name.is_empty() {
            let node = &pod.spec.node_name;
            return rejected(409, format!("pod {full_name} is already assigned to node {node:?}"));
        }
        if !pod.spec.scheduling_gates.is_empty() {
            return rejected(409, format!("pod {full_name} has non-empty .spec.schedulingGates"));
        }
        self.update_pod(full_name, |pod| {
            pod.spec.node_name = node;
            pod.status.nominated_node_name = Str::default();
            set_condition(pod, "PodScheduled", "True", "", "");
        });
        Ok(Value::Null)
    }

    fn record_binding(&mut self, before: &Pod, after: &Pod) {
        let node = &after.spec.node_name;
        if before.spec.node_name == *node {
            return;
        }
        let known = self.bound.insert(after.metadata.uid.clone(), node.clone());
        if known.is_some() || !before.spec.node_name.is_empty() {
            self.bound_twice.push(after.full_name());
        }
    }

    fn push_pod_event(&mut self, pod: &Pod) {
        self.pending_events.push(pod_event(pod));
    }

    fn push_event(&mut self, kind: WatchedKind, key: Box<str>, event: EngineEvent) {
        self.pending_events.push(WatchEvent { kind, key, event });
    }
}

fn pod_event(pod: &Pod) -> WatchEvent {
    let event = EngineEvent::Upsert(ApiObject::Pod(Box::new(pod.clone())));
    WatchEvent { kind: WatchedKind::Pod, key: pod.metadata.uid.clone(), event }
}

fn rejected(code: u16, message: String) -> ApiReply {
    Err(ApiError { code, message })
}

/// Whether a pod has succeeded or failed, so that it uses no resources (upstream's IsPodTerminal).
pub fn is_pod_terminal(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn merge_status(pod: &mut Pod, status: &Value) {
    if let Some(node) = status.get("nominatedNodeName") {
        pod.status.nominated_node_name = Str::new(node.as_str().unwrap_or_default());
    }
    for condition in status.get("conditions").and_then(Value::as_array).into_iter().flatten() {
        let [kind, is, reason, message] = ["type", "status", "reason", "message"]
            .map(|field| condition.get(field).and_then(Value::as_str).unwrap_or_default());
        set_condition(pod, kind, is, reason, message);
    }
}

fn set_condition(pod: &mut Pod, kind: &str, status: &str, reason: &str, message: &str) {
    let condition = PodCondition {
        kind: Str::new(kind),
        status: Str::new(status),
        reason: Str::new(reason),
        message: message.into(),
    };
    let conditions = &mut pod.status.conditions;
    match conditions.iter_mut().find(|known| known.kind == kind) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
