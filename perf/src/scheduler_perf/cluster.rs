//! A cluster in memory: the objects of an API server, and an engine that hears of each change at once. Its time is simulated: it goes on
//! while pods are created and while everything waits.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use loadmaster_api::{Namespace, Node, Pod, Service, Str};
use loadmaster_apiserver::defaults::apply_defaults;
use loadmaster_apiserver::schema::{Kind, Kinds};
use loadmaster_apiserver::store::{Store, StoreLimits};
use loadmaster_engine::engine::{ApiObject, CycleResult, DeletedObjectKey};
use loadmaster_engine::{Effects, EngineEvent, Now};
use loadmaster_framework::api_calls::{ApiRequest, ObjectRef, Verb};
use serde_json::{Value, json};

use super::throughput::Throughput;
use crate::timed_engine::{self, TimedEngine};

/// Resource, namespace, name.
type Key = (&'static str, String, String);

/// A pod.
pub struct PodState {
    pub namespace: String,
    object: Value,
    pub is_bound: bool,
    /// Whether an attempt to schedule it has ended.
    pub is_attempted: bool,
}

impl PodState {
    /// Whether it has all these labels.
    pub fn has_labels(&self, selector: &BTreeMap<String, String>) -> bool {
        let labels = &self.object["metadata"]["labels"];
        selector.iter().all(|(key, value)| labels[key] == json!(value))
    }

    /// Name and message of the last attempt.
    pub fn summary(&self) -> String {
        let conditions = self.object["status"]["conditions"].as_array();
        let messages = conditions.into_iter().flatten().filter_map(|it| it["message"].as_str());
        format!(
            "{}: {}",
            text(&self.object["metadata"]["name"]),
            messages.collect::<Vec<_>>().join("; ")
        )
    }
}

/// The cluster.
pub struct Cluster {
    engine: TimedEngine,
    now: Duration,
    n_objects: u64,
    version: u64,
    /// By uid.
    pub pods: BTreeMap<String, PodState>,
    /// The uids of pods by namespace and name.
    pod_uids: BTreeMap<(String, String), String>,
    /// All other objects.
    objects: BTreeMap<Key, Value>,
    /// Pods whose binding is counted.
    pub throughput: Option<Throughput>,
}

impl Cluster {
    /// Without objects.
    pub fn new(engine: TimedEngine) -> Result<Cluster> {
        let mut cluster = Cluster {
            engine,
            now: Duration::ZERO,
            n_objects: 0,
            version: 0,
            pods: BTreeMap::new(),
            pod_uids: BTreeMap::new(),
            objects: BTreeMap::new(),
            throughput: None,
        };
        for kind in cluster.engine.watched_kinds.clone() {
            let (group, resource) = (kind.group, kind.resource);
            cluster.apply(EngineEvent::Synced { group, resource, has_synced: true })?;
        }
        Ok(cluster)
    }

    /// The simulated time.
    pub fn time(&self) -> Duration {
        self.now
    }

    /// Time in the engine.
    pub fn engine_time(&self) -> Duration {
        self.engine.elapsed
    }

    /// When the engine's next timer expires.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.engine.next_timeout().map(|at| Duration::from_nanos(at.0))
    }

    /// Goes on to this time, and lets the engine do what it can then.
    pub fn advance_to(&mut self, time: Duration) -> Result<()> {
        self.now = self.now.max(time);
        if self.next_timeout().is_some_and(|at| at <= self.now) {
            let effects = self.engine.handle_timeouts(self.now());
            self.execute(effects)?;
        }
        loop {
            let (cycled, effects) = self.engine.cycle(self.now());
            self.execute(effects)?;
            if cycled != CycleResult::Ran {
                return Ok(());
            }
        }
    }

    /// Creates an object as the API server does: with a name, a uid and defaults. Returns its name.
    pub fn create(&mut self, namespace: &str, mut object: Value) -> Result<String> {
        let kind = kind_of(&object)?;
        self.n_objects += 1;
        let metadata = &object["metadata"];
        let name = match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(prefix)) => format!("{prefix}{}", self.n_objects),
            (None, None) => bail!("a {} without a name", kind.kind),
        };
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(format!("uid-{}", self.n_objects));
        let namespace = if kind.is_namespaced { namespace } else { "" };
        if kind.is_namespaced {
            ensure!(!namespace.is_empty(), "no namespace for {} {name}", kind.kind);
            object["metadata"]["namespace"] = json!(namespace);
        }
        apply_defaults(kind, &mut object);
        set_allocatable(kind, &mut object);
        self.write(kind, namespace, &name, object)?;
        Ok(name)
    }

    /// Replaces an object and its status, or only what belongs to a subresource.
    pub fn update(
        &mut self,
        namespace: &str,
        template: Value,
        subresources: &[String],
    ) -> Result<()> {
        let kind = kind_of(&template)?;
        let name = template["metadata"]["name"].as_str().context("an update without a name")?;
        let name = name.to_owned();
        let old = self.object(kind, namespace, &name)?.clone();
        let new = match subresources.first().map(String::as_str) {
            None => {
                let mut new = template;
                new["metadata"]["uid"] = old["metadata"]["uid"].clone();
                new["metadata"]["namespace"] = old["metadata"]["namespace"].clone();
                if new["status"].is_null() {
                    new["status"] = old["status"].clone();
                }
                set_allocatable(kind, &mut new);
                if !old["spec"]["nodeName"].is_null() {
                    new["spec"]["nodeName"] = old["spec"]["nodeName"].clone();
                }
                apply_defaults(kind, &mut new);
                new
            }
            Some("resize") => {
                let mut new = old;
                new["spec"]["containers"] = template["spec"]["containers"].clone();
                apply_defaults(kind, &mut new);
                new
            }
            Some(other) => bail!("an update of the subresource {other}"),
        };
        self.write(kind, namespace, &name, new)
    }

    /// Deletes an object.
    pub fn delete(&mut self, kind: &str, namespace: &str, name: &str) -> Result<()> {
        if kind == "Pod" {
            let key = (namespace.to_owned(), name.to_owned());
            let uid = self.pod_uids.get(&key).cloned();
            return uid.map_or(Ok(()), |uid| self.delete_pod(&uid));
        }
        let kind = kinds().iter().find(|it| it.kind == kind && it.group.is_empty());
        let kind = kind.with_context(|| format!("no kind to delete {name}"))?;
        let namespace = if kind.is_namespaced { namespace } else { "" };
        self.objects.remove(&(kind.resource, namespace.to_owned(), name.to_owned()));
        let (namespace, name) = (Str::new(namespace), Str::new(name));
        self.apply(EngineEvent::Delete(match kind.kind {
            "Node" => DeletedObjectKey::Node(name),
            "Service" => DeletedObjectKey::Service(namespace, name),
            "Namespace" => DeletedObjectKey::Namespace(name),
            other => bail!("deleting a {other}"),
        }))
    }

    /// Deletes a pod. One with finalizers stays, as in a cluster in which nobody removes them.
    pub fn delete_pod(&mut self, uid: &str) -> Result<()> {
        let Some(pod) = self.pods.get_mut(uid) else { return Ok(()) };
        let metadata = &mut pod.object["metadata"];
        if metadata["finalizers"].as_array().is_some_and(|it| !it.is_empty()) {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            let event = upsert_pod(&pod.object)?;
            return self.apply(event);
        }
        let key = (pod.namespace.clone(), text(&pod.object["metadata"]["name"]));
        self.pod_uids.remove(&key);
        self.pods.remove(uid);
        self.apply(EngineEvent::Delete(DeletedObjectKey::Pod(uid.into())))
    }

    fn object(&self, kind: &Kind, namespace: &str, name: &str) -> Result<&Value> {
        let found = if kind.kind == "Pod" {
            let uid = self.pod_uids.get(&(namespace.to_owned(), name.to_owned()));
            uid.and_then(|uid| self.pods.get(uid)).map(|pod| &pod.object)
        } else {
            self.objects.get(&(kind.resource, namespace.to_owned(), name.to_owned()))
        };
        found.with_context(|| format!("no {} {name}", kind.kind))
    }

    /// Stores an object and tells the engine.
    fn write(
        &mut self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Result<()> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let upsert = match kind.kind {
            "Pod" => {
                let uid = text(&object["metadata"]["uid"]);
                let event = upsert_pod(&object)?;
                self.pod_uids.insert((namespace.to_owned(), name.to_owned()), uid.clone());
                match self.pods.get_mut(&uid) {
                    Some(pod) => pod.object = object,
                    None => {
                        let namespace = namespace.to_owned();
                        // The API server gives gated pods the condition of a failed attempt.
                        let is_attempted = object["spec"]["schedulingGates"].is_array();
                        let pod = PodState { namespace, object, is_bound: false, is_attempted };
                        self.pods.insert(uid, pod);
                    }
                }
                return self.apply(event);
            }
            "Node" => ApiObject::Node(Arc::new(decode::<Node>(&object)?)),
            "Service" => ApiObject::Service(Arc::new(decode::<Service>(&object)?)),
            "Namespace" => ApiObject::Namespace(Arc::new(decode::<Namespace>(&object)?)),
            _ => {
                let of_group = ["", "storage.k8s.io"].contains(&kind.group);
                ensure!(of_group, "objects of the kind {}", kind.kind);
                let object_ref = ObjectRef {
                    group: Str::new(kind.group),
                    resource: Str::new(kind.resource),
                    namespace: Str::new(namespace),
                    name: Str::new(name),
                };
                let value = Some(object.clone());
                self.store(kind, namespace, name, object);
                return self.apply(EngineEvent::ObjectChanged { object: object_ref, value });
            }
        };
        self.store(kind, namespace, name, object);
        self.apply(EngineEvent::Upsert(upsert))
    }

    fn store(&mut self, kind: &'static Kind, namespace: &str, name: &str, object: Value) {
        self.objects.insert((kind.resource, namespace.to_owned(), name.to_owned()), object);
    }

    fn now(&self) -> Now {
        timed_engine::time_of_call(self.now)
    }

    fn apply(&mut self, event: EngineEvent) -> Result<()> {
        let effects = self.engine.apply(self.now(), event);
        self.execute(effects)
    }

    fn execute(&mut self, effects: Effects) -> Result<()> {
        for call in timed_engine::requests(effects)? {
            let reply = Ok(self.answer(&call.request)?);
            self.apply(EngineEvent::Replied { call: call.id, reply })?;
        }
        Ok(())
    }

    /// Does what a request asks for; returns the object.
    fn answer(&mut self, request: &ApiRequest) -> Result<Value> {
        let key = (request.namespace.to_string(), request.name.to_string());
        let uid = self.pod_uids.get(&key).cloned();
        let body = request.body.as_ref().context("a request without an object")?;
        match (request.verb, request.resource.as_str(), request.subresource.as_str()) {
            (Verb::Create, "pods", "binding") => {
                let uid = uid.context("a pod that does not exist is bound")?;
                let pod = self.pods.get_mut(&uid).context("no such pod")?;
                pod.object["spec"]["nodeName"] = body["target"]["name"].clone();
                (pod.is_bound, pod.is_attempted) = (true, true);
                if let Some(throughput) = self.throughput.as_mut().filter(|it| it.counts(pod)) {
                    throughput.add_pod(self.engine.elapsed);
                }
                let event = upsert_pod(&pod.object)?;
                self.apply(event)?;
                Ok(body.clone())
            }
            (Verb::StrategicMergePatch, "pods", "status") => {
                let Some(pod) = uid.and_then(|uid| self.pods.get_mut(&uid)) else {
                    return Ok(body.clone());
                };
                pod.is_attempted = true;
                merge_status(&mut pod.object["status"], &body["status"]);
                let (object, event) = (pod.object.clone(), upsert_pod(&pod.object)?);
                self.apply(event)?;
                Ok(object)
            }
            (Verb::Delete, "pods", "") => {
                uid.map_or(Ok(()), |uid| self.delete_pod(&uid))?;
                Ok(body.clone())
            }
            (Verb::Update, "persistentvolumes" | "persistentvolumeclaims", "") => {
                let kind =
                    kind_of(&json!({"apiVersion": "v1", "kind": match request.resource.as_str() {
                        "persistentvolumes" => "PersistentVolume",
                        _ => "PersistentVolumeClaim",
                    }}))?;
                self.write(kind, &key.0, &key.1, body.clone())?;
                self.object(kind, &key.0, &key.1).cloned()
            }
            (verb, resource, subresource) => {
                bail!("unexpected request: {verb:?} {resource} {subresource}")
            }
        }
    }
}

/// What a node can allocate is its capacity unless it says otherwise.
fn set_allocatable(kind: &Kind, object: &mut Value) {
    if kind.kind == "Node" && object["status"]["allocatable"].is_null() {
        object["status"]["allocatable"] = object["status"]["capacity"].clone();
    }
}

/// Applies a patch of a pod's status: conditions by their type, the nominated node as it is.
fn merge_status(status: &mut Value, patch: &Value) {
    for condition in patch["conditions"].as_array().into_iter().flatten() {
        let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|it| it["type"] != condition["type"]);
        conditions.push(condition.clone());
        status["conditions"] = conditions.into();
    }
    if let Some(node) = patch.get("nominatedNodeName") {
        status["nominatedNodeName"] = node.clone();
    }
}

/// The kinds that an API server serves.
fn kinds() -> &'static Kinds {
    static ALL: OnceLock<Kinds> = OnceLock::new();
    ALL.get_or_init(|| Kinds::new(&mut Store::new(StoreLimits::default()), &[]))
}

fn kind_of(object: &Value) -> Result<&'static Kind> {
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let mut all = kinds().iter();
    let found = all.find(|it| it.group == group && it.version == version && it.kind == kind);
    found.with_context(|| format!("no kind {kind} in {api_version}"))
}

fn upsert_pod(object: &Value) -> Result<EngineEvent> {
    Ok(EngineEvent::Upsert(ApiObject::Pod(Box::new(decode::<Pod>(object)?))))
}

fn decode<T: serde::de::DeserializeOwned>(object: &Value) -> Result<T> {
    Ok(serde_json::from_value(object.clone())?)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
