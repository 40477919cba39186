//! Converts watch events and API call results into events of the engine.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_api::proto::Object as Read;
use loadmaster_client::Kind;
use loadmaster_client::api_dispatcher::{ApiCallOutcome, FinishedCall};
use loadmaster_engine::engine::{ApiError, CallId, Event, Object, ObjectKey, Reply};
use loadmaster_framework::api_calls::ObjectRef;

/// An object was added or updated.
pub(super) fn upsert_event(kind: Kind, object: Read) -> Option<Event> {
    let object = match object {
        Read::Node(it) => Object::Node(Arc::new(*it)),
        Read::Pod(it) => Object::Pod(it),
        Read::Namespace(it) => Object::Namespace(Arc::new(it)),
        Read::Service(it) => Object::Service(Arc::new(it)),
        Read::ReplicationController(it) => Object::ReplicationController(Arc::new(it)),
        Read::ReplicaSet(it) => Object::ReplicaSet(Arc::new(*it)),
        Read::StatefulSet(it) => Object::StatefulSet(Arc::new(*it)),
        Read::PodDisruptionBudget(it) => Object::PodDisruptionBudget(Arc::new(it)),
        Read::PriorityClass(it) => Object::PriorityClass(Arc::new(it)),
        Read::Other(it) => {
            let object = object_ref(kind, it.metadata.namespace.clone(), &it.metadata.name);
            return Some(Event::ObjectChanged { object, value: Some(it.value) });
        }
        _ => return None,
    };
    Some(Event::Upsert(object))
}

/// An object was deleted.
pub(super) fn delete_event(kind: Kind, namespace: Str, name: &str, uid: Box<str>) -> Option<Event> {
    if let Kind::Other(_) = kind {
        let object = object_ref(kind, namespace, name);
        return Some(Event::ObjectChanged { object, value: None });
    }
    let name = Str::new(name);
    let name = match kind {
        Kind::Pod => ObjectKey::Pod(uid),
        Kind::Node => ObjectKey::Node(name),
        Kind::Namespace => ObjectKey::Namespace(name),
        Kind::Service => ObjectKey::Service(namespace, name),
        Kind::ReplicationController => ObjectKey::ReplicationController(namespace, name),
        Kind::ReplicaSet => ObjectKey::ReplicaSet(namespace, name),
        Kind::StatefulSet => ObjectKey::StatefulSet(namespace, name),
        Kind::PodDisruptionBudget => ObjectKey::PodDisruptionBudget(namespace, name),
        Kind::PriorityClass => ObjectKey::PriorityClass(name),
        _ => return None,
    };
    Some(Event::Delete(name))
}

/// A reference to an object of a kind that only plugins watch.
fn object_ref(kind: Kind, namespace: Str, name: &str) -> ObjectRef {
    let resource = kind.resource();
    ObjectRef {
        group: Str::new(resource.group),
        resource: Str::new(resource.resource),
        namespace,
        name: Str::new(name),
    }
}

/// A kind that only plugins watch has synced, or cannot be read. The engine needs no such event for other kinds.
pub(super) fn synced_event(kind: Kind, is_there: bool) -> Option<Event> {
    let resource = kind.resource();
    let (group, resource) = (Str::new(resource.group), Str::new(resource.resource));
    matches!(kind, Kind::Other(_)).then_some(Event::Synced {
        group,
        resource,
        has_synced: is_there,
    })
}

/// The reply to an API call.
pub(super) fn reply_event(finished: FinishedCall) -> Event {
    let error = |code, message| Err(ApiError { code, message });
    let reply: Reply = match finished.outcome {
        ApiCallOutcome::Done(value) => Ok(value),
        ApiCallOutcome::Refused { status, message, .. } => error(status, message),
        ApiCallOutcome::BoundElsewhere { node } => {
            error(409, format!("the pod is already assigned to node {node:?}"))
        }
        ApiCallOutcome::NotSent { message } | ApiCallOutcome::Unknown { message } => {
            error(0, message)
        }
        other => error(0, format!("{other:?}")),
    };
    Event::Replied { call: CallId(finished.id), reply }
}
