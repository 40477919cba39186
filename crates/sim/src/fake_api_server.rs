//! An API server in memory: nodes, pods, PodDisruptionBudgets and other kinds as JSON, the API calls of a scheduler, and a watch event
//! for every change.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::pod::PodCondition;
use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str, Timestamp};
use loadmaster_engine::engine::{ApiError, ApiObject, ApiReply, DeletedObjectKey, EngineEvent};
use loadmaster_framework::Gvr;
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, Verb};
use serde_json::Value;

/// Kinds that are watched, each with its own watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchedKind {
    Node,
    Pod,
    Budget,
    /// A custom kind: which apps a node accepts.
    NodePool,
    /// A custom kind: created for a pod by a plugin, and made ready by a controller.
    Attachment,
    /// Another kind that plugins watch ([`FakeApiServer::serve_kind`]). Its objects have uids and resource versions.
    Other(Gvr),
}

impl WatchedKind {
    /// The built-in kinds, and those of the test plugins.
    pub const ALL: [WatchedKind; 5] = [
        WatchedKind::Node,
        WatchedKind::Pod,
        WatchedKind::Budget,
        WatchedKind::NodePool,
        WatchedKind::Attachment,
    ];

    /// The kinds that every scheduler watches.
    pub const BUILT_IN: [WatchedKind; 3] =
        [WatchedKind::Node, WatchedKind::Pod, WatchedKind::Budget];

    /// The API group and the plural name.
    pub fn group_resource(&self) -> (&str, &str) {
        match self {
            WatchedKind::Node => ("", "nodes"),
            WatchedKind::Pod => ("", "pods"),
            WatchedKind::Budget => ("policy", "poddisruptionbudgets"),
            WatchedKind::NodePool => ("simulation.example.com", "nodepools"),
            WatchedKind::Attachment => ("simulation.example.com", "attachments"),
            WatchedKind::Other(kind) => (&kind.group, &kind.resource),
        }
    }

    /// Whether it is a custom kind, which only plugins watch.
    pub fn is_custom(&self) -> bool {
        !WatchedKind::BUILT_IN.contains(self)
    }

    /// The object of a custom kind with this name, or `namespace/name`.
    pub(crate) fn object_ref(&self, name: &Str) -> ObjectRef {
        let (group, resource) = self.group_resource();
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        ObjectRef {
            group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

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
    /// Objects of custom kinds, by name, or `namespace/name`.
    custom_objects: BTreeMap<WatchedKind, BTreeMap<Str, Value>>,
    other_kinds: Vec<WatchedKind>,
    /// The last resource version.
    version: u64,
    pending_events: Vec<WatchEvent>,
    /// Number of watch events until now.
    n_changes: u64,
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

    /// Serves another kind that plugins watch.
    pub fn serve_kind(&mut self, kind: Gvr) {
        self.other_kinds.push(WatchedKind::Other(kind));
    }

    /// Number of changes until now.
    pub fn n_changes(&self) -> u64 {
        self.n_changes
    }

    /// The objects of a custom kind, by name, or `namespace/name`.
    pub fn custom_objects(
        &self,
        kind: &WatchedKind,
    ) -> impl Iterator<Item = (&Str, &Value)> + use<'_> {
        self.custom_objects.get(kind).into_iter().flatten()
    }

    /// The objects of all custom kinds.
    pub fn all_custom_objects(&self) -> impl Iterator<Item = (&WatchedKind, &Str, &Value)> {
        let all = self.custom_objects.iter();
        all.flat_map(|(kind, of_kind)| of_kind.iter().map(move |(name, it)| (kind, name, it)))
    }

    /// An object of a custom kind by its name, or `namespace/name`.
    pub fn custom_object(&self, kind: &WatchedKind, name: &str) -> Option<&Value> {
        self.custom_objects.get(kind)?.get(name)
    }

    /// Creates or replaces an object of a custom kind.
    pub fn upsert_custom_object(&mut self, kind: WatchedKind, name: &Str, mut object: Value) {
        let before = self.custom_object(&kind, name);
        let is_versioned = matches!(kind, WatchedKind::Other(_));
        if is_versioned {
            let known = |field: &str| before.map(|before| before["metadata"][field].clone());
            let uid = known("uid").unwrap_or_else(|| format!("o{}", self.version).into());
            let version = known("resourceVersion").unwrap_or_default();
            object["metadata"]["uid"] = uid;
            object["metadata"]["resourceVersion"] = version;
        }
        if before == Some(&object) {
            return;
        }
        if is_versioned {
            self.version += 1;
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
        }
        self.push(custom_event(kind.clone(), name, Some(object.clone())));
        self.custom_objects.entry(kind).or_default().insert(name.clone(), object);
    }

    pub fn delete_custom_object(&mut self, kind: WatchedKind, name: &Str) {
        let of_kind = self.custom_objects.get_mut(&kind);
        if of_kind.is_some_and(|of_kind| of_kind.remove(name).is_some()) {
            self.version += 1;
            self.push(custom_event(kind, name, None));
        }
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
    pub fn list(&self, kind: &WatchedKind) -> Vec<WatchEvent> {
        let node = |node: &Arc<Node>| WatchEvent {
            kind: WatchedKind::Node,
            key: node.name().into(),
            event: EngineEvent::Upsert(ApiObject::Node(node.clone())),
        };
        let budget = |budget: &Arc<PodDisruptionBudget>| WatchEvent {
            kind: WatchedKind::Budget,
            key: budget.metadata.name.clone(),
            event: EngineEvent::Upsert(ApiObject::PodDisruptionBudget(budget.clone())),
        };
        match kind {
            WatchedKind::Node => self.nodes.values().map(node).collect(),
            WatchedKind::Pod => self.pods.values().map(pod_event).collect(),
            WatchedKind::Budget => self.budgets.values().map(budget).collect(),
            WatchedKind::NodePool | WatchedKind::Attachment | WatchedKind::Other(_) => self
                .custom_objects(kind)
                .map(|(name, object)| custom_event(kind.clone(), name, Some(object.clone())))
                .collect(),
        }
    }

    /// Handles an API request, or rejects it as kube-apiserver does.
    pub fn handle_request(&mut self, request: &ApiRequest, now: Timestamp) -> ApiReply {
        let kinds = WatchedKind::ALL.into_iter().filter(|kind| kind.is_custom());
        let custom = kinds.chain(self.other_kinds.iter().cloned()).find(|kind| {
            kind.group_resource() == (request.group.as_str(), request.resource.as_str())
        });
        if let Some(kind) = custom {
            return self.handle_custom_request(kind, request);
        }
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

    fn handle_custom_request(&mut self, kind: WatchedKind, request: &ApiRequest) -> ApiReply {
        let (ApiRequest { namespace, name, .. }, resource) = (request, &request.resource);
        let name = match namespace.is_empty() {
            true => name,
            false => &Str::new(&format!("{namespace}/{name}")),
        };
        let known = self.custom_object(&kind, name);
        match (request.verb, known) {
            (Verb::Create, Some(_)) => {
                rejected(409, format!("{resource} {:?} already exists", name.as_str()))
            }
            (Verb::Create, None) => {
                let object = request.body.clone().unwrap_or_default();
                self.upsert_custom_object(kind, name, object.clone());
                Ok(object)
            }
            (Verb::Get, Some(object)) => Ok(object.clone()),
            (Verb::Update, Some(known)) => {
                let mut object = request.body.clone().unwrap_or_default();
                let differs = |field: &str| known["metadata"][field] != object["metadata"][field];
                if differs("uid") || differs("resourceVersion") {
                    return rejected(
                        409,
                        format!(
                            "Operation cannot be fulfilled on {resource} {:?}: the object has been modified; please apply your changes to the latest version and try again",
                            name.as_str()
                        ),
                    );
                }
                // The status is a subresource.
                if let Some(status) = known.get("status") {
                    object["status"] = status.clone();
                }
                self.upsert_custom_object(kind.clone(), name, object);
                Ok(self.custom_object(&kind, name).cloned().unwrap_or_default())
            }
            (Verb::Get | Verb::Update, None) => {
                rejected(404, format!("{resource} {:?} not found", name.as_str()))
            }
            (verb, _) => rejected(405, format!("{verb:?} of {resource}")),
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
        self.push(pod_event(pod));
    }

    fn push_event(&mut self, kind: WatchedKind, key: Box<str>, event: EngineEvent) {
        self.push(WatchEvent { kind, key, event });
    }

    fn push(&mut self, event: WatchEvent) {
        self.n_changes += 1;
        self.pending_events.push(event);
    }
}

fn pod_event(pod: &Pod) -> WatchEvent {
    let event = EngineEvent::Upsert(ApiObject::Pod(Box::new(pod.clone())));
    WatchEvent { kind: WatchedKind::Pod, key: pod.metadata.uid.clone(), event }
}

fn custom_event(kind: WatchedKind, name: &Str, value: Option<Value>) -> WatchEvent {
    let event = EngineEvent::ObjectChanged { object: kind.object_ref(name), value };
    WatchEvent { kind, key: name.as_str().into(), event }
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
        last_transition_time: None,
    };
    let conditions = &mut pod.status.conditions;
    match conditions.iter_mut().find(|known| known.kind == kind) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
