//! Conversion of events and effects to messages, and of messages to events.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::raw_object::RawObjectError;
use loadmaster_api::{Encoding, ExtraFields, ExtraFieldsByKind, Node, Pod, RawObject, Str};
use loadmaster_framework::api_calls::{ObjectRef, Verb};
use serde_json::Value;

use super::message::{
    Attempt, Call, CycleResult, Delete, Effect, EffectBody, EntryBody, EventRecord, ExtenderCall,
    ExtenderReplied, Kind, Named, ObjectChanged, Permit, Published, RecordedEffects, Replied,
    Synced, Uids, Upsert,
};
use crate::engine::{
    self, ApiError, ApiObject, AttemptOutcome, CallId, DeletedObjectKey, EngineEvent, Observation,
    RegardingObject,
};
use crate::queue::ProfileIdx;

/// An event as a message. `None` for an object without its bytes.
pub(super) fn event(event: &EngineEvent, raw: Option<&RawObject>) -> Option<EntryBody> {
    Some(match event {
        EngineEvent::Upsert(object) => EntryBody::Upsert(upsert(kind_of(object), raw?)),
        EngineEvent::Delete(name) => EntryBody::Delete(delete(name)),
        EngineEvent::Replied { call: CallId(call), reply } => EntryBody::Replied(match reply {
            Ok(value) => {
                Replied { call: *call, value: Some(value.to_string()), ..Replied::default() }
            }
            Err(ApiError { code, message }) => Replied {
                call: *call,
                value: None,
                code: u32::from(*code),
                message: message.clone(),
            },
        }),
        EngineEvent::ExtenderReplied { call: CallId(call), reply: answer } => {
            // Such a reply can always be written: its keys are strings.
            let written = answer.as_ref().map(serde_json::to_string);
            let (answer, error) = match written {
                Ok(answer) => (Some(answer.ok()?), String::new()),
                Err(error) => (None, error.clone()),
            };
            EntryBody::ExtenderReplied(ExtenderReplied { call: *call, reply: answer, error })
        }
        EngineEvent::ObjectChanged {
            object: ObjectRef { group, resource, namespace, name },
            value,
        } => EntryBody::ObjectChanged(ObjectChanged {
            group: group.to_string(),
            resource: resource.to_string(),
            namespace: namespace.to_string(),
            name: name.to_string(),
            value: value.as_ref().map(Value::to_string),
        }),
        EngineEvent::Synced { group, resource, has_synced } => EntryBody::Synced(Synced {
            group: group.to_string(),
            resource: resource.to_string(),
            has_synced: *has_synced,
        }),
        EngineEvent::Published { plugin, value, ttl } => EntryBody::Published(Published {
            plugin: plugin.to_string(),
            value: value.to_string(),
            ttl_nanos: u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX),
        }),
        EngineEvent::Permit { uid, plugin, decision } => EntryBody::Permit(Permit {
            uid: uid.to_string(),
            plugin: plugin.as_ref().map(ToString::to_string),
            rejected: match decision {
                engine::PermitDecision::Allow => None,
                engine::PermitDecision::Reject(reason) => Some(reason.clone()),
            },
        }),
        EngineEvent::Reconfigured(configuration) => {
            EntryBody::Reconfigured(configuration.yaml.clone())
        }
        EngineEvent::Activate(uids) => {
            EntryBody::Activate(Uids { uids: uids.iter().map(ToString::to_string).collect() })
        }
    })
}

fn upsert(kind: Kind, raw: &RawObject) -> Upsert {
    let bytes = Some(raw.bytes.clone());
    match raw.encoding {
        Encoding::Protobuf => Upsert { kind: kind.into(), protobuf: bytes, json: None },
        Encoding::Json => Upsert { kind: kind.into(), protobuf: None, json: bytes },
    }
}

fn kind_of(object: &ApiObject) -> Kind {
    match object {
        ApiObject::Node(_) => Kind::Node,
        ApiObject::Pod(_) => Kind::Pod,
        ApiObject::Namespace(_) => Kind::Namespace,
        ApiObject::Service(_) => Kind::Service,
        ApiObject::ReplicationController(_) => Kind::ReplicationController,
        ApiObject::ReplicaSet(_) => Kind::ReplicaSet,
        ApiObject::StatefulSet(_) => Kind::StatefulSet,
        ApiObject::PodDisruptionBudget(_) => Kind::PodDisruptionBudget,
        ApiObject::PriorityClass(_) => Kind::PriorityClass,
    }
}

fn delete(name: &DeletedObjectKey) -> Delete {
    let (kind, namespace, name): (Kind, &str, &str) = match name {
        DeletedObjectKey::Pod(uid) => (Kind::Pod, "", uid),
        DeletedObjectKey::Node(name) => (Kind::Node, "", name),
        DeletedObjectKey::Namespace(name) => (Kind::Namespace, "", name),
        DeletedObjectKey::PriorityClass(name) => (Kind::PriorityClass, "", name),
        DeletedObjectKey::Service(namespace, name) => (Kind::Service, namespace, name),
        DeletedObjectKey::ReplicationController(namespace, name) => {
            (Kind::ReplicationController, namespace, name)
        }
        DeletedObjectKey::ReplicaSet(namespace, name) => (Kind::ReplicaSet, namespace, name),
        DeletedObjectKey::StatefulSet(namespace, name) => (Kind::StatefulSet, namespace, name),
        DeletedObjectKey::PodDisruptionBudget(namespace, name) => {
            (Kind::PodDisruptionBudget, namespace, name)
        }
    };
    Delete { kind: kind.into(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Why a message cannot be converted to an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The bytes of an object cannot be decoded.
    #[error(transparent)]
    Object(#[from] RawObjectError),
    /// The JSON of a reply cannot be decoded.
    #[error("decoding a reply of the API server")]
    Json(#[from] serde_json::Error),
    /// An unknown number, or a missing field.
    #[error("expected {expected}")]
    Field {
        /// What was expected.
        expected: &'static str,
    },
}

const A_KIND: EventError =
    EventError::Field { expected: "an object of a kind that the scheduler watches" };

/// Decodes an object, with the fields that plugins need.
pub(super) fn object(upsert: Upsert, needs: ExtraFieldsByKind) -> Result<ApiObject, EventError> {
    let kind = upsert.kind();
    let raw = match (upsert.protobuf, upsert.json) {
        (Some(bytes), None) => RawObject { encoding: Encoding::Protobuf, bytes },
        (None, Some(bytes)) => RawObject { encoding: Encoding::Json, bytes },
        _ => return Err(EventError::Field { expected: "an object as protobuf or as JSON" }),
    };
    Ok(match kind {
        Kind::Unknown => return Err(A_KIND),
        Kind::Pod => {
            let extra = ExtraFields::read(raw.encoding, &raw.bytes, needs.pods)?;
            ApiObject::Pod(Box::new(Pod { extra, ..raw.decode()? }))
        }
        Kind::Node => {
            let extra = ExtraFields::read(raw.encoding, &raw.bytes, needs.nodes)?;
            ApiObject::Node(Arc::new(Node { extra, ..raw.decode()? }))
        }
        Kind::Namespace => ApiObject::Namespace(Arc::new(raw.decode()?)),
        Kind::Service => ApiObject::Service(Arc::new(raw.decode()?)),
        Kind::ReplicationController => ApiObject::ReplicationController(Arc::new(raw.decode()?)),
        Kind::ReplicaSet => ApiObject::ReplicaSet(Arc::new(raw.decode()?)),
        Kind::StatefulSet => ApiObject::StatefulSet(Arc::new(raw.decode()?)),
        Kind::PodDisruptionBudget => ApiObject::PodDisruptionBudget(Arc::new(raw.decode()?)),
        Kind::PriorityClass => ApiObject::PriorityClass(Arc::new(raw.decode()?)),
    })
}

/// The key of a deleted object.
pub(super) fn object_key(deleted: &Delete) -> Result<DeletedObjectKey, EventError> {
    let (namespace, name) = (Str::new(&deleted.namespace), Str::new(&deleted.name));
    Ok(match deleted.kind() {
        Kind::Unknown => return Err(A_KIND),
        Kind::Pod => DeletedObjectKey::Pod((*deleted.name).into()),
        Kind::Node => DeletedObjectKey::Node(name),
        Kind::Namespace => DeletedObjectKey::Namespace(name),
        Kind::Service => DeletedObjectKey::Service(namespace, name),
        Kind::ReplicationController => DeletedObjectKey::ReplicationController(namespace, name),
        Kind::ReplicaSet => DeletedObjectKey::ReplicaSet(namespace, name),
        Kind::StatefulSet => DeletedObjectKey::StatefulSet(namespace, name),
        Kind::PodDisruptionBudget => DeletedObjectKey::PodDisruptionBudget(namespace, name),
        Kind::PriorityClass => DeletedObjectKey::PriorityClass(name),
    })
}

/// A reply of the API server.
pub(super) fn replied(replied: Replied) -> Result<EngineEvent, EventError> {
    let reply = match replied.value {
        Some(text) => Ok(serde_json::from_str(&text)?),
        None => {
            let code = u16::try_from(replied.code)
                .map_err(|_| EventError::Field { expected: "a status code" })?;
            Err(ApiError { code, message: replied.message })
        }
    };
    Ok(EngineEvent::Replied { call: CallId(replied.call), reply })
}

/// A reply of an extender.
pub(super) fn extender_replied(replied: ExtenderReplied) -> Result<EngineEvent, EventError> {
    let answer = match replied.reply {
        Some(text) => Ok(serde_json::from_str(&text)?),
        None => Err(replied.error),
    };
    Ok(EngineEvent::ExtenderReplied { call: CallId(replied.call), reply: answer })
}

/// A change of an object that only plugins use.
pub(super) fn changed(changed: &ObjectChanged) -> Result<EngineEvent, EventError> {
    let value = changed.value.as_deref().map(serde_json::from_str).transpose()?;
    let object = ObjectRef {
        group: Str::new(&changed.group),
        resource: Str::new(&changed.resource),
        namespace: Str::new(&changed.namespace),
        name: Str::new(&changed.name),
    };
    Ok(EngineEvent::ObjectChanged { object, value })
}

/// The initial list of a kind has been delivered.
pub(super) fn synced(synced: &Synced) -> EngineEvent {
    EngineEvent::Synced {
        group: Str::new(&synced.group),
        resource: Str::new(&synced.resource),
        has_synced: synced.has_synced,
    }
}

/// A value that a service published.
pub(super) fn published(published: Published) -> Result<EngineEvent, EventError> {
    Ok(EngineEvent::Published {
        plugin: published.plugin.into(),
        value: serde_json::from_str(&published.value)?,
        ttl: Duration::from_nanos(published.ttl_nanos),
    })
}

/// A decision about a pod that waits on Permit.
pub(super) fn permit(permit: Permit) -> EngineEvent {
    EngineEvent::Permit {
        uid: permit.uid.into(),
        plugin: permit.plugin.map(Into::into),
        decision: permit
            .rejected
            .map_or(engine::PermitDecision::Allow, engine::PermitDecision::Reject),
    }
}

impl RecordedEffects {
    pub(super) fn of(
        effects: &[engine::Effect],
        cycled: Option<engine::CycleResult>,
    ) -> RecordedEffects {
        let cycled = cycled.map(|cycled| match cycled {
            engine::CycleResult::Ran => CycleResult::Ran,
            engine::CycleResult::Idle => CycleResult::Idle,
            engine::CycleResult::Waiting => CycleResult::Waiting,
        });
        let effects = effects.iter().filter_map(body);
        RecordedEffects {
            effects: effects.map(|body| Effect { body: Some(body) }).collect(),
            cycled: cycled.map(Into::into),
        }
    }
}

/// An effect as a message. `None` for measurements.
fn body(effect: &engine::Effect) -> Option<EffectBody> {
    Some(match effect {
        engine::Effect::Call(call) => EffectBody::Call(of_call(call)),
        engine::Effect::CallExtender(engine::ExtenderCall { id, request, .. }) => {
            EffectBody::CallExtender(ExtenderCall {
                id: id.0,
                extender: request.extender as u64,
                pod: Some(Named {
                    namespace: request.namespace.to_string(),
                    name: request.name.to_string(),
                    uid: request.uid.to_string(),
                }),
                question: format!("{:?}", request.operation),
            })
        }
        engine::Effect::RecordEvent(event) => EffectBody::RecordEvent(of_event(event)),
        engine::Effect::Observe(seen) => match seen {
            Observation::Attempt { profile_idx: ProfileIdx(profile), outcome, .. } => {
                let outcome: AttemptOutcome = *outcome;
                EffectBody::Attempt(Attempt {
                    profile: *profile,
                    outcome: outcome.name().to_owned(),
                })
            }
            Observation::ShadowCompared(comparison) => {
                EffectBody::ShadowCompared(comparison.to_string())
            }
            Observation::Conflict(conflict) => EffectBody::Conflict(conflict.to_string()),
            Observation::InternalError { message } => EffectBody::InternalError(message.clone()),
            Observation::Algorithm { .. }
            | Observation::Bound { .. }
            | Observation::PermitWait { .. }
            | Observation::Preemption { .. }
            | Observation::EventHandled { .. }
            | Observation::PluginStuck(_)
            | Observation::PluginPanicked(_)
            | Observation::PluginLogs(_)
            | Observation::PluginExecutions(_) => return None,
        },
    })
}

fn of_call(call: &engine::ApiServerCall) -> Call {
    let request = &call.request;
    let verb = match request.verb {
        Verb::Get => "get",
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::JsonPatch => "json-patch",
        Verb::MergePatch => "merge-patch",
        Verb::StrategicMergePatch => "strategic-merge-patch",
        Verb::Delete => "delete",
    };
    Call {
        id: call.id.0,
        verb: verb.to_owned(),
        group: request.group.to_string(),
        version: request.version.to_string(),
        resource: request.resource.to_string(),
        namespace: request.namespace.to_string(),
        name: request.name.to_string(),
        subresource: request.subresource.to_string(),
        body: request.body.as_ref().map(Value::to_string),
    }
}

fn of_event(event: &engine::EventRecord) -> EventRecord {
    let named = |it: &RegardingObject| Named {
        namespace: it.namespace.to_string(),
        name: it.name.to_string(),
        uid: it.uid.to_string(),
    };
    EventRecord {
        is_warning: event.is_warning,
        reason: event.reason.to_string(),
        action: event.action.to_string(),
        note: event.note.clone(),
        regarding: Some(named(&event.regarding)),
        related: event.related.as_ref().map(named),
        controller: event.controller.to_string(),
    }
}
