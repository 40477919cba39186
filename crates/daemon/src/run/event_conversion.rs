//! Converts watch events and API call results into events of the engine.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_api::proto::Object as Read;
use loadmaster_client::Kind;
use loadmaster_client::api_dispatcher::{ApiCallOutcome, FinishedCall};
use loadmaster_engine::engine::{
    ApiError, ApiObject, ApiReply, CallId, DeletedObjectKey, EngineEvent,
};
use loadmaster_framework::api_calls::ObjectRef;

/// An object was added or updated.
pub(super) fn upsert_event(kind: Kind, object: Read) -> Option<EngineEvent> {
    let object = match object {
        Read::Node(it) => ApiObject::Node(Arc::new(*it)),
        Read::Pod(it) => ApiObject::Pod(it),
        Read::Namespace(it) => ApiObject::Namespace(Arc::new(it)),
        Read::Service(it) => ApiObject::Service(Arc::new(it)),
        Read::ReplicationController(it) => ApiObject::ReplicationController(Arc::new(it)),
        Read::ReplicaSet(it) => ApiObject::ReplicaSet(Arc::new(*it)),
        Read::StatefulSet(it) => ApiObject::StatefulSet(Arc::new(*it)),
        Read::PodDisruptionBudget(it) => ApiObject::PodDisruptionBudget(Arc::new(it)),
        Read::PriorityClass(it) => ApiObject::PriorityClass(Arc::new(it)),
        Read::Other(it) => {
            let object = object_ref(kind, it.metadata.namespace.clone(), &it.metadata.name);
            return Some(EngineEvent::ObjectChanged { object, value: Some(it.value) });
        }
        _ => return None,
    };
    Some(EngineEvent::Upsert(object))
}

/// An object was deleted.
pub(super) fn delete_event(
    kind: Kind,
    namespace: Str,
    name: &str,
    uid: Box<str>,
) -> Option<EngineEvent> {
    if let Kind::Dynamic(_) = kind {
        let object = object_ref(kind, namespace, name);
        return Some(EngineEvent::ObjectChanged { object, value: None });
    }
    let name = Str::new(name);
    let name = match kind {
        Kind::Pod => DeletedObjectKey::Pod(uid),
        Kind::Node => DeletedObjectKey::Node(name),
        Kind::Namespace => DeletedObjectKey::Namespace(name),
        Kind::Service => DeletedObjectKey::Service(namespace, name),
        Kind::ReplicationController => DeletedObjectKey::ReplicationController(namespace, name),
        Kind::ReplicaSet => DeletedObjectKey::ReplicaSet(namespace, name),
        Kind::StatefulSet => DeletedObjectKey::StatefulSet(namespace, name),
        Kind::PodDisruptionBudget => DeletedObjectKey::PodDisruptionBudget(namespace, name),
        Kind::PriorityClass => DeletedObjectKey::PriorityClass(name),
        _ => return None,
    };
    Some(EngineEvent::Delete(name))
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
pub(super) fn synced_event(kind: Kind, is_there: bool) -> Option<EngineEvent> {
    let resource = kind.resource();
    let (group, resource) = (Str::new(resource.group), Str::new(resource.resource));
    matches!(kind, Kind::Dynamic(_)).then_some(EngineEvent::Synced {
        group,
        resource,
        has_synced: is_there,
    })
}

/// The reply to an API call.
pub(super) fn reply_event(finished: FinishedCall) -> EngineEvent {
    let error = |code, message| Err(ApiError { code, message });
    let reply: ApiReply = match finished.outcome {
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
    EngineEvent::Replied { call: CallId(finished.id), reply }
}
