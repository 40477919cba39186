//! An API server in memory: nodes, pods and disruption budgets, the calls that a scheduler makes on them, and the news of every change.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::pod::PodCondition;
use loadmaster_api::{Node, Pod, PodDisruptionBudget, Str, Timestamp};
use loadmaster_engine::engine::{ApiError, Event, Name, Object, Reply};
use loadmaster_framework::request::{ApiRequest, Verb};
use serde_json::Value;

/// Kinds that are watched, each by a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Node,
    Pod,
    Budget,
}

pub const KINDS: [Kind; 3] = [Kind::Node, Kind::Pod, Kind::Budget];

/// A change, as a watch tells it.
#[derive(Clone, Debug)]
pub struct News {
    pub kind: Kind,
    /// Which object: its name, of pods the uid.
    pub key: Box<str>,
    pub event: Event,
}

/// The objects as they are.
#[derive(Default)]
pub struct Truth {
    nodes: BTreeMap<Str, Arc<Node>>,
    /// By `namespace/name`.
    pods: BTreeMap<String, Pod>,
    budgets: BTreeMap<Str, Arc<PodDisruptionBudget>>,
    news: Vec<News>,
    /// Node by uid of every pod that ever got one.
    bound: BTreeMap<Box<str>, Str>,
    /// Pods that got a second node, which must not be.
    bound_twice: Vec<String>,
}

impl Truth {
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

    /// Full names of pods, in order.
    pub fn pods_that(&self, is_wanted: impl Fn(&Pod) -> bool) -> Vec<String> {
        let wanted = self.pods.iter().filter(|(_, pod)| is_wanted(pod));
        wanted.map(|(name, _)| name.clone()).collect()
    }

    pub fn budgets(&self) -> impl Iterator<Item = &Arc<PodDisruptionBudget>> {
        self.budgets.values()
    }

    pub fn bound_twice(&self) -> &[String] {
        &self.bound_twice
    }

    /// What changed since this was asked last.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub fn set_node(&mut self, node: Node) {
        let node = Arc::new(node);
        self.tell(Kind::Node, node.name().into(), Event::Set(Object::Node(node.clone())));
        self.nodes.insert(Str::new(node.name()), node);
    }

    pub fn remove_node(&mut self, name: &Str) -> Option<Arc<Node>> {
        let node = self.nodes.remove(name)?;
        self.tell(Kind::Node, node.name().into(), Event::Gone(Name::Node(name.clone())));
        Some(node)
    }

    pub fn set_budget(&mut self, budget: PodDisruptionBudget) {
        let budget = Arc::new(budget);
        let name = Str::new(&budget.metadata.name);
        let event = Event::Set(Object::PodDisruptionBudget(budget.clone()));
        self.tell(Kind::Budget, name.as_str().into(), event);
        self.budgets.insert(name, budget);
    }

    /// A new pod; one of its name must not be there.
    pub fn create_pod(&mut self, pod: Pod) {
        self.tell_pod(&pod);
        self.pods.insert(pod.full_name(), pod);
    }

    /// Changes a pod and tells it, unless nothing changed.
    pub fn change_pod(&mut self, full_name: &str, change: impl FnOnce(&mut Pod)) {
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
        self.note_binding(&before, &pod);
        self.tell_pod(&pod);
    }

    /// Deletes as people do: a pod on a node ends first.
    pub fn delete_pod(&mut self, full_name: &str, now: Timestamp) {
        let Some(pod) = self.pods.get(full_name) else { return };
        if pod.spec.node_name.is_empty() || has_ended(pod) {
            self.remove_pod(full_name);
        } else {
            self.change_pod(full_name, |pod| {
                pod.metadata.deletion_timestamp.get_or_insert(now);
            });
        }
    }

    /// The pod is gone.
    pub fn remove_pod(&mut self, full_name: &str) {
        if let Some(pod) = self.pods.remove(full_name) {
            let uid = pod.metadata.uid;
            self.tell(Kind::Pod, uid.clone(), Event::Gone(Name::Pod(uid)));
        }
    }

    /// What a list of a kind shows, as news.
    pub fn list(&self, kind: Kind) -> Vec<News> {
        let node = |node: &Arc<Node>| News {
            kind,
            key: node.name().into(),
            event: Event::Set(Object::Node(node.clone())),
        };
        let budget = |budget: &Arc<PodDisruptionBudget>| News {
            kind,
            key: budget.metadata.name.clone(),
            event: Event::Set(Object::PodDisruptionBudget(budget.clone())),
        };
        match kind {
            Kind::Node => self.nodes.values().map(node).collect(),
            Kind::Pod => self.pods.values().map(pod_news).collect(),
            Kind::Budget => self.budgets.values().map(budget).collect(),
        }
    }

    /// Carries out a call, or refuses it as upstream does.
    pub fn call(&mut self, request: &ApiRequest, now: Timestamp) -> Reply {
        let full_name = format!("{}/{}", request.namespace, request.name);
        let Some(pod) = self.pods.get(&full_name) else {
            return refused(404, format!("pods {:?} not found", request.name.as_str()));
        };
        let body = request.body.as_ref().unwrap_or(&Value::Null);
        let uid = ["/metadata/uid", "/preconditions/uid"].into_iter();
        let uid = uid.filter_map(|at| body.pointer(at)).find_map(Value::as_str);
        if let Some(uid) = uid
            && *pod.metadata.uid != *uid
        {
            let known = &pod.metadata.uid;
            return refused(409, format!("the UID in the precondition ({uid}) is not {known}"));
        }
        match (request.verb, request.subresource.as_str()) {
            (Verb::Create, "binding") => {
                let node = body.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
                self.bind(&full_name, Str::new(node))
            }
            (Verb::StrategicMergePatch, "status") => {
                let status = body.get("status").cloned().unwrap_or_default();
                self.change_pod(&full_name, |pod| merge_status(pod, &status));
                Ok(Value::Null)
            }
            (Verb::Delete, "") => {
                self.delete_pod(&full_name, now);
                Ok(Value::Null)
            }
            _ => refused(405, format!("{:?} of pods/{}", request.verb, request.subresource)),
        }
    }

    /// Binds a pod; whether the node exists is not asked.
    pub fn bind(&mut self, full_name: &str, node: Str) -> Reply {
        let Some(pod) = self.pods.get(full_name) else {
            return refused(404, format!("pod {full_name} not found"));
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return refused(409, format!("pod {full_name} is being deleted"));
        }
        if !pod.spec.node_name.is_empty() {
            let node = &pod.spec.node_name;
            return refused(409, format!("pod {full_name} is already assigned to node {node:?}"));
        }
        if !pod.spec.scheduling_gates.is_empty() {
            return refused(409, format!("pod {full_name} has non-empty .spec.schedulingGates"));
        }
        self.change_pod(full_name, |pod| {
            pod.spec.node_name = node;
            pod.status.nominated_node_name = Str::default();
            set_condition(pod, "PodScheduled", "True", "", "");
        });
        Ok(Value::Null)
    }

    fn note_binding(&mut self, before: &Pod, after: &Pod) {
        let node = &after.spec.node_name;
        if before.spec.node_name == *node {
            return;
        }
        let known = self.bound.insert(after.metadata.uid.clone(), node.clone());
        if known.is_some() || !before.spec.node_name.is_empty() {
            self.bound_twice.push(after.full_name());
        }
    }

    fn tell_pod(&mut self, pod: &Pod) {
        self.news.push(pod_news(pod));
    }

    fn tell(&mut self, kind: Kind, key: Box<str>, event: Event) {
        self.news.push(News { kind, key, event });
    }
}

fn pod_news(pod: &Pod) -> News {
    let event = Event::Set(Object::Pod(Box::new(pod.clone())));
    News { kind: Kind::Pod, key: pod.metadata.uid.clone(), event }
}

fn refused(code: u16, message: String) -> Reply {
    Err(ApiError { code, message })
}

/// Whether a pod takes no room any more.
pub fn has_ended(pod: &Pod) -> bool {
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
