//! Plays KWOK stages.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use loadmaster_api::document::Document;
use loadmaster_stdx::Rng;
use serde_json::{Value, json};

use super::ManagedNodes;
use super::gotemplate::TemplateFunctions;
use super::ip_pool::{IpPool, IpRange};
use super::node::{self, address_of, seconds};
use super::pod;
use super::stage::{PatchType, Stage, StageNext, StagePatch};
use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object};
use crate::request::{ControllerRequest, ControllerResponse, DeleteOptions, Patch};
use crate::work_queue::saturating_add;

/// Plays the stages of one kind, for managed nodes or for the pods on them.
pub struct StageController {
    kind: Kind,
    stages: Vec<Stage>,
    managed: ManagedNodes,
    rng: Rng,
    started: Option<Timestamp>,
    /// The plan of each object.
    plans: BTreeMap<Key, Plan>,
    pod_addresses: IpPool,
    node_addresses: IpPool,
}

/// The stage of an object and its progress.
struct Plan {
    uid: Option<String>,
    stage: usize,
    /// The next step; after the first one the stage continues even if its selector no longer matches.
    step: usize,
    /// The previous step must be retried.
    has_failed: bool,
    due: Timestamp,
}

impl StageController {
    /// Plays those stages that select this kind.
    pub fn new(kind: Kind, stages: &[Stage], managed: ManagedNodes, seed: u64) -> StageController {
        StageController {
            kind,
            stages: stages.iter().filter(|stage| stage.kind == kind).cloned().collect(),
            managed,
            rng: Rng::new(seed).split(kind.info().resource),
            started: None,
            plans: BTreeMap::new(),
            pod_addresses: IpPool::default(),
            node_addresses: IpPool::default(),
        }
    }

    /// Reserves the addresses that objects already have.
    fn reserve_used_addresses(&mut self, cache: &Cache) {
        for pod in cache.store::<Pod>().iter() {
            let address =
                pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse().ok());
            if let Some(address) = address {
                let uid = pod.metadata.uid.as_deref().unwrap_or("");
                self.pod_addresses.reserve(&Key::from_object(&**pod), uid, address);
            }
        }
        for node in cache.store::<Node>().iter() {
            if let Some(address) = address_of(node).and_then(|it| it.parse().ok()) {
                let uid = node.metadata.uid.as_deref().unwrap_or("");
                self.node_addresses.reserve(&Key::from_object(&**node), uid, address);
            }
        }
    }

    /// The object, if it is managed.
    fn object(&self, key: &Key, cache: &Cache) -> Option<Object> {
        let object = cache.object(key)?;
        let is_ours = match &object {
            Object::Pod(pod) => pod::managed_node_of(pod, &self.managed, cache).is_some(),
            Object::Node(node) => self.managed.contains(node),
            _ => false,
        };
        is_ours.then_some(object)
    }

    /// The stage that matches the object; a weighted random choice if there are several.
    fn choose(&mut self, json: &Value) -> Option<usize> {
        let found = self.stages.iter().enumerate().filter(|(_, stage)| stage.selects(json));
        let found: Vec<(usize, u64)> = found.map(|(n, stage)| (n, stage.weight(json))).collect();
        let total = found.iter().fold(0u64, |all, (_, weight)| all.saturating_add(*weight));
        match found.as_slice() {
            [] => None,
            [(only, _)] => Some(*only),
            _ if total == 0 => Some(self.rng.pick(&found).0),
            _ => {
                let mut at = self.rng.below(total);
                let hit = found.iter().find(|(_, weight)| {
                    let is_hit = at < *weight;
                    at = at.saturating_sub(*weight);
                    is_hit
                });
                hit.map(|(n, _)| *n)
            }
        }
    }

    /// The plan of an object; it stays as long as the object matches its stage.
    fn plan(
        &mut self,
        key: &Key,
        uid: Option<&String>,
        json: &Value,
        now: Timestamp,
    ) -> Option<(usize, usize, Timestamp)> {
        if let Some(plan) = self.plans.get_mut(key)
            && plan.uid.as_ref() == uid
        {
            plan.step -= usize::from(std::mem::take(&mut plan.has_failed));
        }
        if let Some(plan) = self.plans.get(key)
            && plan.uid.as_ref() == uid
            && plan.step < self.stages[plan.stage].steps.len()
            && (plan.step > 0 || self.stages[plan.stage].selects(json))
        {
            return Some((plan.stage, plan.step, plan.due));
        }
        self.plans.remove(key);
        let stage = self.choose(json)?;
        let due = saturating_add(now, self.stages[stage].delay(json, &mut self.rng, now));
        self.plans.insert(
            key.clone(),
            Plan { uid: uid.cloned(), stage, step: 0, has_failed: false, due },
        );
        Some((stage, 0, due))
    }

    fn play(
        &mut self,
        step: &StageNext,
        object: &Object,
        json: &Value,
        cache: &Cache,
        now: Timestamp,
    ) -> Result<Vec<ControllerRequest>, String> {
        let key = object.key();
        let here = self.template_context(object, cache, now);
        let mut requests = Vec::new();
        if let Some((kind, reason, message)) = &step.event {
            requests.extend(event(object, [kind, reason, &message.render(json, &here)?], now));
        }
        if let Some(finalizers) = &step.finalizers {
            let metadata = object.metadata();
            if let Some(all) = finalizers.apply(metadata.finalizers.as_deref().unwrap_or_default())
            {
                let patch = json!({"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": all}});
                requests.push(ControllerRequest::patch(key.clone(), Patch::Merge(patch)));
            }
        }
        if step.delete {
            let options = DeleteOptions {
                uid: object.metadata().uid.clone(),
                grace_period_seconds: Some(0),
                ..DeleteOptions::default()
            };
            requests.push(ControllerRequest::Delete { key, options });
            return Ok(requests);
        }
        for patch in &step.patches {
            requests.push(change(patch, object, json, &here)?);
        }
        Ok(requests)
    }

    /// The context of a template: addresses and time.
    fn template_context(
        &mut self,
        object: &Object,
        cache: &Cache,
        now: Timestamp,
    ) -> TemplateContext {
        let mut here = TemplateContext {
            now,
            started: self.started.unwrap_or(now),
            ..TemplateContext::default()
        };
        let key = object.key();
        let uid = object.metadata().uid.as_deref().unwrap_or("").to_owned();
        match object {
            Object::Node(node) => {
                here.node_name = key.name.to_string();
                here.node_ip = match address_of(node) {
                    Some(address) => address.to_owned(),
                    None => give(&mut self.node_addresses, &key, &uid, node::NODE_IP_RANGE),
                };
            }
            Object::Pod(pod) => {
                let spec = pod.spec.as_ref();
                here.node_name = spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default();
                let node = cache.get::<Node>("", &here.node_name);
                here.node_ip =
                    node.and_then(|node| address_of(node)).unwrap_or_default().to_owned();
                let cidr = node.and_then(|node| node.spec.as_ref()?.pod_cidr.as_deref());
                let has = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
                here.pod_ip = has.unwrap_or_else(|| {
                    give(&mut self.pod_addresses, &key, &uid, cidr.unwrap_or(pod::POD_IP_RANGE))
                });
            }
            _ => {}
        }
        here
    }
}

fn give(addresses: &mut IpPool, key: &Key, uid: &str, range: &str) -> String {
    let given = IpRange::parse(range).and_then(|range| addresses.allocate(key, uid, range));
    given.map(|address| address.to_string()).unwrap_or_default()
}

fn change(
    patch: &StagePatch,
    object: &Object,
    json: &Value,
    here: &TemplateContext,
) -> Result<ControllerRequest, String> {
    let text = patch.template.render(json, here)?;
    let document = Document::new("template", text);
    let mut body = if document.is_empty() {
        json!({})
    } else {
        document.decode_value().map_err(|error| format!("what it renders is no YAML: {error}"))?
    };
    if !patch.root.is_empty() {
        body = json!({ &*patch.root: body });
    }
    let (key, subresource) = (object.key(), patch.subresource);
    let patch = match patch.form {
        PatchType::Json => Patch::Json(body),
        PatchType::Merge => Patch::Merge(body),
        PatchType::Strategic => Patch::Strategic(body),
    };
    Ok(ControllerRequest::Patch { key, subresource, patch })
}

fn event(
    object: &Object,
    [kind, reason, message]: [&str; 3],
    now: Timestamp,
) -> Option<ControllerRequest> {
    let (key, info, metadata) = (object.key(), object.kind().info(), object.metadata());
    let namespace = if key.namespace.is_empty() { "default" } else { &*key.namespace };
    let (name, at) = (format!("{}.{:x}", key.name, now.as_nanosecond()), seconds(now));
    let event: Event = serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": {"apiVersion": info.api_version, "kind": info.kind, "namespace": metadata.namespace,
            "name": &*key.name, "uid": metadata.uid, "resourceVersion": metadata.resource_version},
        "type": kind, "reason": reason, "message": message, "count": 1, "firstTimestamp": at, "lastTimestamp": at,
        "source": {"component": "loadmaster-kubelets"}}))
    .ok()?;
    Some(ControllerRequest::create(event))
}

impl Controller for StageController {
    fn name(&self) -> &'static str {
        if self.kind == Kind::Pod { "pod-stages" } else { "node-stages" }
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        match (self.kind, object) {
            (Kind::Pod, Object::Node(_)) => {
                pod::pod_keys_for_node_change(change, &self.managed, cache)
            }
            (kind, object) if kind == object.kind() => vec![object.key()],
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        if self.started.is_none() {
            self.started = Some(now);
            self.reserve_used_addresses(cache);
        }
        let Some(object) = self.object(key, cache) else {
            self.plans.remove(key);
            self.pod_addresses.release(key);
            self.node_addresses.release(key);
            return ReconcileResult::none();
        };
        let Ok(json) = object.to_json() else { return ReconcileResult::none() };
        let Some((n, at, due)) = self.plan(key, object.metadata().uid.as_ref(), &json, now) else {
            return ReconcileResult::none();
        };
        if due > now {
            return ReconcileResult::requeue_after(now.duration_until(due).unsigned_abs());
        }
        let stage = self.stages[n].clone();
        let played = stage.steps.get(at).map(|step| self.play(step, &object, &json, cache, now));
        let is_last = at + 1 >= stage.steps.len();
        if let Some(plan) = self.plans.get_mut(key) {
            plan.step += 1;
        }
        let again = (!is_last).then_some(std::time::Duration::ZERO);
        match played {
            Some(Ok(requests)) => ReconcileResult { requests, requeue_after: again },
            Some(Err(error)) => {
                tracing::warn!(stage = %stage.name, object = %key, error, "failed to render a stage template");
                ReconcileResult { requests: Vec::new(), requeue_after: again }
            }
            None => ReconcileResult::none(),
        }
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _: Timestamp,
    ) {
        if !matches!(response, ControllerResponse::Success(_))
            && !request.is_event()
            && let Some(plan) = self.plans.get_mut(key)
        {
            plan.has_failed = true;
        }
    }
}

/// The context of a template.
#[derive(Default)]
struct TemplateContext {
    now: Timestamp,
    started: Timestamp,
    node_name: String,
    node_ip: String,
    pod_ip: String,
}

impl TemplateFunctions for TemplateContext {
    fn call(&self, name: &str, arguments: &[Value]) -> Result<Value, String> {
        // `PodIPWith NODE HOST_NETWORK UID NAME NAMESPACE` is only supported for the current object.
        let is_host = arguments.get(1).and_then(Value::as_bool).unwrap_or(false);
        let pod_ip = if is_host { &self.node_ip } else { &self.pod_ip };
        Ok(match name {
            "Now" => seconds(self.now).into(),
            "StartTime" => seconds(self.started).into(),
            "Version" => env!("CARGO_PKG_VERSION").into(),
            "NodeName" => self.node_name.as_str().into(),
            "NodeIP" | "NodeIPWith" => self.node_ip.as_str().into(),
            "NodeIPsWith" => json!([self.node_ip]),
            // There is no server.
            "NodePort" => Value::Null,
            "PodIP" | "PodIPWith" => pod_ip.as_str().into(),
            "PodIPsWith" => json!([pod_ip]),
            "NodeConditions" => node::conditions().into(),
            other => return Err(format!("{other} is unknown")),
        })
    }
}
