//! What the watches tell, as the engine hears it.

use std::sync::Arc;

use loadmaster_api::Str;
use loadmaster_api::proto::Object as Read;
use loadmaster_client::Kind;
use loadmaster_client::calls::{Finished, Outcome};
use loadmaster_engine::engine::{ApiError, CallId, Event, Name, Object, Reply};
use loadmaster_framework::request::ObjectRef;

/// An object is there, or is now like this.
pub(super) fn set(kind: Kind, object: Read) -> Option<Event> {
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
            let object = other(kind, it.metadata.namespace.clone(), &it.metadata.name);
            return Some(Event::Changed { object, value: Some(it.value) });
        }
        _ => return None,
    };
    Some(Event::Set(object))
}

/// An object is gone.
pub(super) fn gone(kind: Kind, namespace: Str, name: &str, uid: Box<str>) -> Option<Event> {
    if let Kind::Other(_) = kind {
        let object = other(kind, namespace, name);
        return Some(Event::Changed { object, value: None });
    }
    let name = Str::new(name);
    let name = match kind {
        Kind::Pod => Name::Pod(uid),
        Kind::Node => Name::Node(name),
        Kind::Namespace => Name::Namespace(name),
        Kind::Service => Name::Service(namespace, name),
        Kind::ReplicationController => Name::ReplicationController(namespace, name),
        Kind::ReplicaSet => Name::ReplicaSet(namespace, name),
        Kind::StatefulSet => Name::StatefulSet(namespace, name),
        Kind::PodDisruptionBudget => Name::PodDisruptionBudget(namespace, name),
        Kind::PriorityClass => Name::PriorityClass(name),
        _ => return None,
    };
    Some(Event::Gone(name))
}

/// An object of a kind that only plugins know.
fn other(kind: Kind, namespace: Str, name: &str) -> ObjectRef {
    let resource = kind.resource();
    ObjectRef {
        group: Str::new(resource.group),
        resource: Str::new(resource.resource),
        namespace,
        name: Str::new(name),
    }
}

/// Whether such a kind can be read; of the others the engine need not know.
pub(super) fn listed(kind: Kind, is_there: bool) -> Option<Event> {
    let resource = kind.resource();
    let (group, resource) = (Str::new(resource.group), Str::new(resource.resource));
    matches!(kind, Kind::Other(_)).then_some(Event::Listed { group, resource, is_there })
}

/// The answer to a call.
pub(super) fn replied(finished: Finished) -> Event {
    let error = |code, message| Err(ApiError { code, message });
    let reply: Reply = match finished.outcome {
        Outcome::Done(value) => Ok(value),
        Outcome::Refused { status, message, .. } => error(status, message),
        Outcome::BoundElsewhere { node } => {
            error(409, format!("the pod is already assigned to node {node:?}"))
        }
        Outcome::NotSent { message } | Outcome::Unknown { message } => error(0, message),
        other => error(0, format!("{other:?}")),
    };
    Event::Replied { call: CallId(finished.id), reply }
}
