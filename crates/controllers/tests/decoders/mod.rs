//! Parses stage files from any bytes: used by the tests and by a fuzz target. Nothing may panic,
//! and playing the stages is deterministic.

use std::time::Duration;

use jiff::Timestamp;
use loadmaster_api::document::Document;
use loadmaster_controllers::kubelet::stage::Stage;
use loadmaster_controllers::kubelet::{FAKE_NODE_ANNOTATION, ManagedNodes, StageController};
use loadmaster_controllers::{
    Cache, Controller, ControllerRequest, ControllerResponse, Kind, Object, Patch,
};
use serde_json::{Value, json};

/// Number of reconciliations per object.
const N_LOOKS: usize = 6;

/// A file of stages, played with a node and a pod of it.
pub fn stages(bytes: &[u8]) {
    let document = Document::new("fuzz", String::from_utf8_lossy(bytes));
    match Stage::from_document(&document) {
        Ok(stages) => {
            for kind in [Kind::Node, Kind::Pod] {
                let played = play(kind, &stages);
                assert_eq!(played, play(kind, &stages), "{kind:?} once more");
            }
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz:"), "{error}"),
    }
}

/// What is asked for. What is asked of the object itself is done as far as a merge goes; all else is refused.
fn play(kind: Kind, stages: &[Stage]) -> Vec<ControllerRequest> {
    let mut cache = Cache::default();
    let [node, pod] = objects();
    cache.upsert(&node);
    cache.upsert(&pod);
    let mut object = if kind == Kind::Node { node } else { pod };
    let key = object.key();
    let mut staged = StageController::new(kind, stages, ManagedNodes::default(), 7);
    let mut now = Timestamp::constant(1_767_323_045, 0);
    let mut asked = Vec::new();
    for _ in 0..N_LOOKS {
        let outcome = staged.reconcile(&key, &cache, now);
        for request in &outcome.requests {
            let answer = match changed(&object, request) {
                Some(changed) => {
                    object = changed;
                    cache.upsert(&object);
                    ControllerResponse::Success(Some(object.clone()))
                }
                None => ControllerResponse::NoResponse { message: String::new() },
            };
            staged.on_response(&key, request, &answer, now);
        }
        asked.extend(outcome.requests);
        let Some(again) = outcome.requeue_after else { break };
        now = now.checked_add(again.min(Duration::from_secs(1 << 40))).unwrap_or(Timestamp::MAX);
    }
    asked
}

fn objects() -> [Object; 2] {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "1", "annotations": {FAKE_NODE_ANNOTATION.0: FAKE_NODE_ANNOTATION.1}, "labels": {"a": "b"}},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "2", "labels": {"a": "b"}, "finalizers": ["x/y"],
            "annotations": {"delay": "2s", "weight": "3", "until": "2026-01-02T03:05:00Z"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}});
    let read = |kind: Kind, value: Value| {
        Object::from_json(kind, value).unwrap_or_else(|error| panic!("{error}"))
    };
    [read(Kind::Node, node), read(Kind::Pod, pod)]
}

/// The object after a request; None if it is not about the object, or makes what is none of its kind.
fn changed(object: &Object, request: &ControllerRequest) -> Option<Object> {
    let ControllerRequest::Patch {
        key, patch: Patch::Merge(body) | Patch::Strategic(body), ..
    } = request
    else {
        return None;
    };
    let mut value = object.to_json().ok()?;
    merge(&mut value, body);
    let changed = Object::from_json(key.kind, value).ok()?;
    (changed.key() == *key && *key == object.key()).then_some(changed)
}

fn merge(into: &mut Value, from: &Value) {
    let (Value::Object(into), Value::Object(from)) = (&mut *into, from) else {
        *into = from.clone();
        return;
    };
    for (name, value) in from {
        if value.is_null() {
            into.remove(name);
        } else {
            merge(into.entry(name).or_insert(Value::Null), value);
        }
    }
}
