//! A builder of a [`ReconcileResult`]: collects the requests of one reconciliation.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde_json::{Value, json};

use crate::controller::ReconcileResult;
use crate::kind::{Key, Object, Typed};
use crate::meta::controller_reference;
use crate::request::{ControllerRequest, DeleteOptions, Patch};

/// A count as Go encodes it in a status: zero is omitted.
pub(crate) fn omit_zero(number: i32) -> Option<i32> {
    (number != 0).then_some(number)
}

/// Text of a field that is omitted when empty.
pub(crate) fn omit_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// A builder of a [`ReconcileResult`].
#[derive(Debug)]
pub(crate) struct ReconcileResultBuilder {
    requests: Vec<ControllerRequest>,
    requeue_after: Option<Duration>,
    now: Timestamp,
    component: &'static str,
}

impl ReconcileResultBuilder {
    /// An empty result. Events have `component` as source.
    pub fn new(component: &'static str, now: Timestamp) -> ReconcileResultBuilder {
        ReconcileResultBuilder { requests: Vec::new(), requeue_after: None, now, component }
    }

    /// How many requests there are so far.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// The result.
    pub fn build(self) -> ReconcileResult {
        ReconcileResult { requests: self.requests, requeue_after: self.requeue_after }
    }

    /// Reconcile again after this time, or earlier if that was requested before.
    pub fn requeue_after(&mut self, wait: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(wait, |before| before.min(wait)));
    }

    /// Any request.
    pub fn push(&mut self, request: ControllerRequest) {
        self.requests.push(request);
    }

    pub fn create<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(ControllerRequest::create(object.clone()));
    }

    pub fn update<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(ControllerRequest::update(object.clone()));
    }

    pub fn update_status<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(ControllerRequest::update_status(object.clone()));
    }

    /// Deletes an object unless it is terminating.
    pub fn delete<K: Typed>(&mut self, object: &K) {
        if object.metadata().deletion_timestamp.is_none() {
            self.push(ControllerRequest::delete(object));
        }
    }

    /// Deletes an object and, in the background, what it owns.
    pub fn delete_in_background<K: Typed>(&mut self, object: &K) {
        if object.metadata().deletion_timestamp.is_none() {
            let uid = object.metadata().uid.clone();
            let options =
                DeleteOptions { uid, propagation: Some("Background"), ..Default::default() };
            self.push(ControllerRequest::Delete { key: Key::from_object(object), options });
        }
    }

    /// A merge patch of the metadata, rejected with a conflict if the object has changed meanwhile.
    pub fn patch_meta<K: Typed>(&mut self, object: &K, mut meta: Value) {
        meta["resourceVersion"] = json!(object.metadata().resource_version);
        self.push(ControllerRequest::patch(
            Key::from_object(object),
            Patch::Merge(json!({"metadata": meta})),
        ));
    }

    /// Adopts an object: makes `owner` its controller.
    pub fn adopt<O: Typed, K: Typed>(&mut self, owner: &O, object: &K) {
        let mut owners = owners(object.metadata());
        owners.retain(|one| Some(&one.uid) != owner.metadata().uid.as_ref());
        owners.push(controller_reference(owner));
        self.patch_meta(object, json!({"ownerReferences": owners}));
    }

    /// Releases an object that `owner` controls.
    pub fn release<O: Typed, K: Typed>(&mut self, owner: &O, object: &K) {
        let mut owners = owners(object.metadata());
        owners.retain(|one| Some(&one.uid) != owner.metadata().uid.as_ref());
        self.patch_meta(object, json!({"ownerReferences": owners}));
    }

    /// Records an Event of type Normal about an object.
    pub fn event<K: Typed>(&mut self, about: &K, reason: &str, message: impl Into<String>) {
        self.record_event(about, "Normal", reason, message.into());
    }

    /// Records an Event of type Warning about an object.
    pub fn warning<K: Typed>(&mut self, about: &K, reason: &str, message: impl Into<String>) {
        self.record_event(about, "Warning", reason, message.into());
    }

    fn record_event<K: Typed>(&mut self, about: &K, kind: &str, reason: &str, message: String) {
        let meta = about.metadata();
        // Events at the same time differ in their text, or in the resourceVersion of the object.
        let what = (self.now.as_nanosecond(), self.requests.len(), &meta.resource_version);
        let number = fnv64(format!("{what:?}{}{reason}{message}", K::KIND).as_bytes());
        let name = meta.name.clone().unwrap_or_default();
        self.push(ControllerRequest::create(event::<K>(
            meta,
            format!("{name}.{number:016x}"),
            (self.component, kind, reason, message),
            self.now,
        )));
    }
}

/// A hash for names.
pub(crate) fn fnv64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn owners(meta: &ObjectMeta) -> Vec<OwnerReference> {
    meta.owner_references.clone().unwrap_or_default()
}

/// An Event about an object.
fn event<K: Typed>(
    about: &ObjectMeta,
    name: String,
    (component, kind, reason, message): (&str, &str, &str, String),
    now: Timestamp,
) -> Event {
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(K::API_VERSION.to_owned()),
            kind: Some(K::KIND.to_owned()),
            name: about.name.clone(),
            namespace: about.namespace.clone(),
            uid: about.uid.clone(),
            resource_version: about.resource_version.clone(),
            field_path: None,
        },
        reason: omit_empty(reason),
        message: Some(message),
        type_: omit_empty(kind),
        source: Some(EventSource { component: omit_empty(component), host: None }),
        reporting_component: omit_empty(component),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
