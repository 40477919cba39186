//! Messages from news and effects, and news from messages.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::raw::RawError;
use loadmaster_api::{Encoding, Extra, Needs, Node, Pod, Raw, Str};
use loadmaster_framework::request::{ObjectRef, Verb};
use serde_json::Value;

use super::message::{
    Attempt, Call, Changed, Cycled, Effect, Extend, Extended, Gone, Kind, Left, Listed, Named,
    Permit, Published, Replied, Set, Step, Tell, Uids, Wanted,
};
use crate::engine::{
    self, ApiError, CallId, Event, Name, Object, ObjectName, Observation, Outcome,
};
use crate::queue::SeatIdx;

/// News as a message. `None` when it is an object without its bytes.
pub(super) fn event(event: &Event, raw: Option<&Raw>) -> Option<Step> {
    Some(match event {
        Event::Set(object) => Step::Set(set(kind_of(object), raw?)),
        Event::Gone(name) => Step::Gone(gone(name)),
        Event::Replied { call: CallId(call), reply } => Step::Replied(match reply {
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
        Event::Extended { call: CallId(call), answer } => {
            // Such an answer can always be written: its keys are texts.
            let written = answer.as_ref().map(serde_json::to_string);
            let (answer, error) = match written {
                Ok(answer) => (Some(answer.ok()?), String::new()),
                Err(error) => (None, error.clone()),
            };
            Step::Extended(Extended { call: *call, answer, error })
        }
        Event::Changed { object: ObjectRef { group, resource, namespace, name }, value } => {
            Step::Changed(Changed {
                group: group.to_string(),
                resource: resource.to_string(),
                namespace: namespace.to_string(),
                name: name.to_string(),
                value: value.as_ref().map(Value::to_string),
            })
        }
        Event::Listed { group, resource, is_there } => Step::Listed(Listed {
            group: group.to_string(),
            resource: resource.to_string(),
            is_there: *is_there,
        }),
        Event::Published { plugin, value, good_for } => Step::Published(Published {
            plugin: plugin.to_string(),
            value: value.to_string(),
            good_for_nanos: u64::try_from(good_for.as_nanos()).unwrap_or(u64::MAX),
        }),
        Event::Permit { uid, plugin, verdict } => Step::Permit(Permit {
            uid: uid.to_string(),
            plugin: plugin.as_ref().map(ToString::to_string),
            rejected: match verdict {
                engine::Verdict::Allow => None,
                engine::Verdict::Reject(why) => Some(why.clone()),
            },
        }),
        Event::Activate(uids) => {
            Step::Activate(Uids { uids: uids.iter().map(ToString::to_string).collect() })
        }
    })
}

fn set(kind: Kind, raw: &Raw) -> Set {
    let bytes = Some(raw.bytes.clone());
    match raw.encoding {
        Encoding::Protobuf => Set { kind: kind.into(), protobuf: bytes, json: None },
        Encoding::Json => Set { kind: kind.into(), protobuf: None, json: bytes },
    }
}

fn kind_of(object: &Object) -> Kind {
    match object {
        Object::Node(_) => Kind::Node,
        Object::Pod(_) => Kind::Pod,
        Object::Namespace(_) => Kind::Namespace,
        Object::Service(_) => Kind::Service,
        Object::ReplicationController(_) => Kind::ReplicationController,
        Object::ReplicaSet(_) => Kind::ReplicaSet,
        Object::StatefulSet(_) => Kind::StatefulSet,
        Object::PodDisruptionBudget(_) => Kind::PodDisruptionBudget,
        Object::PriorityClass(_) => Kind::PriorityClass,
    }
}

fn gone(name: &Name) -> Gone {
    let (kind, namespace, name): (Kind, &str, &str) = match name {
        Name::Pod(uid) => (Kind::Pod, "", uid),
        Name::Node(name) => (Kind::Node, "", name),
        Name::Namespace(name) => (Kind::Namespace, "", name),
        Name::PriorityClass(name) => (Kind::PriorityClass, "", name),
        Name::Service(namespace, name) => (Kind::Service, namespace, name),
        Name::ReplicationController(namespace, name) => {
            (Kind::ReplicationController, namespace, name)
        }
        Name::ReplicaSet(namespace, name) => (Kind::ReplicaSet, namespace, name),
        Name::StatefulSet(namespace, name) => (Kind::StatefulSet, namespace, name),
        Name::PodDisruptionBudget(namespace, name) => (Kind::PodDisruptionBudget, namespace, name),
    };
    Gone { kind: kind.into(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Why a message cannot be turned into news.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// An object's bytes.
    #[error(transparent)]
    Object(#[from] RawError),
    /// The JSON of an answer.
    #[error("reading an answer of the API server")]
    Json(#[from] serde_json::Error),
    /// A number that stands for nothing, or a field that is missing.
    #[error("expected {expected}")]
    Field {
        /// What should be there.
        expected: &'static str,
    },
}

const A_KIND: EventError =
    EventError::Field { expected: "an object of a kind that a scheduler follows" };

/// An object from its bytes, with what is needed of it.
pub(super) fn object(set: Set, needs: Needs) -> Result<Object, EventError> {
    let kind = set.kind();
    let raw = match (set.protobuf, set.json) {
        (Some(bytes), None) => Raw { encoding: Encoding::Protobuf, bytes },
        (None, Some(bytes)) => Raw { encoding: Encoding::Json, bytes },
        _ => return Err(EventError::Field { expected: "one form of an object" }),
    };
    Ok(match kind {
        Kind::Unknown => return Err(A_KIND),
        Kind::Pod => {
            let extra = Extra::read(raw.encoding, &raw.bytes, needs.pods)?;
            Object::Pod(Box::new(Pod { extra, ..raw.decode()? }))
        }
        Kind::Node => {
            let extra = Extra::read(raw.encoding, &raw.bytes, needs.nodes)?;
            Object::Node(Arc::new(Node { extra, ..raw.decode()? }))
        }
        Kind::Namespace => Object::Namespace(Arc::new(raw.decode()?)),
        Kind::Service => Object::Service(Arc::new(raw.decode()?)),
        Kind::ReplicationController => Object::ReplicationController(Arc::new(raw.decode()?)),
        Kind::ReplicaSet => Object::ReplicaSet(Arc::new(raw.decode()?)),
        Kind::StatefulSet => Object::StatefulSet(Arc::new(raw.decode()?)),
        Kind::PodDisruptionBudget => Object::PodDisruptionBudget(Arc::new(raw.decode()?)),
        Kind::PriorityClass => Object::PriorityClass(Arc::new(raw.decode()?)),
    })
}

/// The name of what is gone.
pub(super) fn name(gone: &Gone) -> Result<Name, EventError> {
    let (namespace, name) = (Str::new(&gone.namespace), Str::new(&gone.name));
    Ok(match gone.kind() {
        Kind::Unknown => return Err(A_KIND),
        Kind::Pod => Name::Pod((*gone.name).into()),
        Kind::Node => Name::Node(name),
        Kind::Namespace => Name::Namespace(name),
        Kind::Service => Name::Service(namespace, name),
        Kind::ReplicationController => Name::ReplicationController(namespace, name),
        Kind::ReplicaSet => Name::ReplicaSet(namespace, name),
        Kind::StatefulSet => Name::StatefulSet(namespace, name),
        Kind::PodDisruptionBudget => Name::PodDisruptionBudget(namespace, name),
        Kind::PriorityClass => Name::PriorityClass(name),
    })
}

/// An answer.
pub(super) fn replied(replied: Replied) -> Result<Event, EventError> {
    let reply = match replied.value {
        Some(text) => Ok(serde_json::from_str(&text)?),
        None => {
            let code = u16::try_from(replied.code)
                .map_err(|_| EventError::Field { expected: "a status code" })?;
            Err(ApiError { code, message: replied.message })
        }
    };
    Ok(Event::Replied { call: CallId(replied.call), reply })
}

/// An extender's answer.
pub(super) fn extended(extended: Extended) -> Result<Event, EventError> {
    let answer = match extended.answer {
        Some(text) => Ok(serde_json::from_str(&text)?),
        None => Err(extended.error),
    };
    Ok(Event::Extended { call: CallId(extended.call), answer })
}

/// News of an object that only plugins know.
pub(super) fn changed(changed: &Changed) -> Result<Event, EventError> {
    let value = changed.value.as_deref().map(serde_json::from_str).transpose()?;
    let object = ObjectRef {
        group: Str::new(&changed.group),
        resource: Str::new(&changed.resource),
        namespace: Str::new(&changed.namespace),
        name: Str::new(&changed.name),
    };
    Ok(Event::Changed { object, value })
}

/// That all objects of a kind have been told.
pub(super) fn listed(listed: &Listed) -> Event {
    Event::Listed {
        group: Str::new(&listed.group),
        resource: Str::new(&listed.resource),
        is_there: listed.is_there,
    }
}

/// A service's word.
pub(super) fn published(published: Published) -> Result<Event, EventError> {
    Ok(Event::Published {
        plugin: published.plugin.into(),
        value: serde_json::from_str(&published.value)?,
        good_for: Duration::from_nanos(published.good_for_nanos),
    })
}

/// Somebody's word about a pod that Permit holds.
pub(super) fn permit(permit: Permit) -> Event {
    Event::Permit {
        uid: permit.uid.into(),
        plugin: permit.plugin.map(Into::into),
        verdict: permit.rejected.map_or(engine::Verdict::Allow, engine::Verdict::Reject),
    }
}

impl Left {
    pub(super) fn of(effects: &[engine::Effect], cycled: Option<engine::Cycled>) -> Left {
        let cycled = cycled.map(|cycled| match cycled {
            engine::Cycled::Ran => Cycled::Ran,
            engine::Cycled::Idle => Cycled::Idle,
            engine::Cycled::Waiting => Cycled::Waiting,
        });
        let effects = effects.iter().filter_map(wanted);
        Left {
            effects: effects.map(|wanted| Effect { wanted: Some(wanted) }).collect(),
            cycled: cycled.map(Into::into),
        }
    }
}

/// An effect as a message. `None` for what is only measured.
fn wanted(effect: &engine::Effect) -> Option<Wanted> {
    Some(match effect {
        engine::Effect::Call(call) => Wanted::Call(of_call(call)),
        engine::Effect::Extend(engine::Extend { id, ask }) => Wanted::Extend(Extend {
            id: id.0,
            extender: ask.extender as u64,
            pod: Some(Named {
                namespace: ask.namespace.to_string(),
                name: ask.name.to_string(),
                uid: ask.uid.to_string(),
            }),
            question: format!("{:?}", ask.question),
        }),
        engine::Effect::Tell(tell) => Wanted::Tell(of_tell(tell)),
        engine::Effect::Observe(seen) => match seen {
            Observation::Attempt { seat: SeatIdx(profile), outcome, .. } => {
                let outcome: Outcome = *outcome;
                Wanted::Attempt(Attempt { profile: *profile, outcome: outcome.name().to_owned() })
            }
            Observation::Judged(judgement) => Wanted::Judged(judgement.to_string()),
            Observation::LostRace(lost) => Wanted::LostRace(lost.to_string()),
            Observation::Trouble { what } => Wanted::Trouble(what.clone()),
            Observation::Algorithm { .. }
            | Observation::Bound { .. }
            | Observation::PermitWait { .. }
            | Observation::Preemption { .. }
            | Observation::Handled { .. }
            | Observation::Overdue(_)
            | Observation::Panicked(_)
            | Observation::Timed(_) => return None,
        },
    })
}

fn of_call(call: &engine::Call) -> Call {
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

fn of_tell(tell: &engine::Tell) -> Tell {
    let named = |it: &ObjectName| Named {
        namespace: it.namespace.to_string(),
        name: it.name.to_string(),
        uid: it.uid.to_string(),
    };
    Tell {
        is_warning: tell.is_warning,
        reason: tell.reason.to_string(),
        action: tell.action.to_string(),
        note: tell.note.clone(),
        regarding: Some(named(&tell.regarding)),
        related: tell.related.as_ref().map(named),
        controller: tell.controller.to_string(),
    }
}
