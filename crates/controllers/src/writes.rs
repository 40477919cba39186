//! The writes of one reconciliation, as they come up: an [`Outcome`] in the making.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde_json::{Value, json};

use crate::controller::Outcome;
use crate::kind::{Key, Object, Typed};
use crate::meta::controller_reference;
use crate::request::{DeleteOptions, Patch, Request};

/// A count as Go writes it into a status: zero is not written.
pub(crate) fn count(number: i32) -> Option<i32> {
    (number != 0).then_some(number)
}

/// Text in a field that is left out when empty.
pub(crate) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// An [`Outcome`] in the making.
#[derive(Debug)]
pub(crate) struct Writes {
    requests: Vec<Request>,
    again: Option<Duration>,
    now: Timestamp,
    component: &'static str,
}

impl Writes {
    /// Nothing yet. Events come from `component`.
    pub fn new(component: &'static str, now: Timestamp) -> Writes {
        Writes { requests: Vec::new(), again: None, now, component }
    }

    /// How many requests there are so far.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// The outcome.
    pub fn done(self) -> Outcome {
        Outcome { requests: self.requests, again: self.again }
    }

    /// Look again after so long, or sooner if that was said before.
    pub fn again_in(&mut self, wait: Duration) {
        self.again = Some(self.again.map_or(wait, |before| before.min(wait)));
    }

    /// Any request.
    pub fn push(&mut self, request: Request) {
        self.requests.push(request);
    }

    pub fn create<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(Request::create(object.clone()));
    }

    pub fn update<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(Request::update(object.clone()));
    }

    pub fn update_status<K: Typed + Into<Object>>(&mut self, object: &K) {
        self.push(Request::update_status(object.clone()));
    }

    /// Deletes an object that is not on its way out already.
    pub fn delete<K: Typed>(&mut self, object: &K) {
        if object.metadata().deletion_timestamp.is_none() {
            self.push(Request::delete(object));
        }
    }

    /// Deletes an object and, in the background, what it owns.
    pub fn delete_in_background<K: Typed>(&mut self, object: &K) {
        if object.metadata().deletion_timestamp.is_none() {
            let uid = object.metadata().uid.clone();
            let options =
                DeleteOptions { uid, propagation: Some("Background"), ..Default::default() };
            self.push(Request::Delete { key: Key::of(object), options });
        }
    }

    /// A merge patch, refused if the object has changed meanwhile.
    pub fn patch_meta<K: Typed>(&mut self, object: &K, mut meta: Value) {
        meta["resourceVersion"] = json!(object.metadata().resource_version);
        self.push(Request::patch(Key::of(object), Patch::Merge(json!({"metadata": meta}))));
    }

    /// Makes `owner` control an object.
    pub fn adopt<O: Typed, K: Typed>(&mut self, owner: &O, object: &K) {
        let mut owners = owners(object.metadata());
        owners.retain(|one| Some(&one.uid) != owner.metadata().uid.as_ref());
        owners.push(controller_reference(owner));
        self.patch_meta(object, json!({"ownerReferences": owners}));
    }

    /// Lets go of an object that `owner` controls.
    pub fn release<O: Typed, K: Typed>(&mut self, owner: &O, object: &K) {
        let mut owners = owners(object.metadata());
        owners.retain(|one| Some(&one.uid) != owner.metadata().uid.as_ref());
        self.patch_meta(object, json!({"ownerReferences": owners}));
    }

    /// Tells about an object: an Event of type Normal.
    pub fn event<K: Typed>(&mut self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about, "Normal", reason, message.into());
    }

    /// An Event of type Warning.
    pub fn warning<K: Typed>(&mut self, about: &K, reason: &str, message: impl Into<String>) {
        self.tell(about, "Warning", reason, message.into());
    }

    fn tell<K: Typed>(&mut self, about: &K, kind: &str, reason: &str, message: String) {
        let meta = about.metadata();
        // Two that are told at one time differ in what they say, or in what the object was like.
        let what = (self.now.as_nanosecond(), self.requests.len(), &meta.resource_version);
        let number = fnv64(format!("{what:?}{}{reason}{message}", K::KIND).as_bytes());
        let name = meta.name.clone().unwrap_or_default();
        self.push(Request::create(event::<K>(
            meta,
            format!("{name}.{number:016x}"),
            (self.component, kind, reason, message),
            self.now,
        )));
    }
}

fn fnv64(bytes: &[u8]) -> u64 {
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
        reason: some(reason),
        message: Some(message),
        type_: some(kind),
        source: Some(EventSource { component: some(component), host: None }),
        reporting_component: some(component),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
