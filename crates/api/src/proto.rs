//! Objects as the API server sends them in protobuf (`application/vnd.kubernetes.protobuf`).
//!
//! An object comes in an envelope: `k8s\0`, then a `runtime.Unknown` with its type and its message. A list is
//! an object, too. A watch is a stream of frames ([`WatchFrames`]), each a `WatchEvent` with an envelope inside.
//!
//! Fields no lean type holds are passed over. Times are whole seconds: upstream sends fractions and ignores
//! them on receipt. The same object decoded here and from JSON is equal.

mod convert;
mod list_items;
mod messages;
mod pod_message;
mod text_messages;
mod watch_frames;
mod wire;

use prost::Message;

use crate::meta::ObjectMeta;
use crate::node::Node;
use crate::pod::Pod;
use crate::quantity::QuantityError;
use crate::workload::{
    Deployment, Namespace, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController,
    Service, StatefulSet,
};

pub use list_items::ListItems;
pub use watch_frames::WatchFrames;
pub use wire::Envelope;

/// An object of any kind that is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// A node.
    Node(Box<Node>),
    /// A pod.
    Pod(Box<Pod>),
    /// A namespace.
    Namespace(Namespace),
    /// A service.
    Service(Service),
    /// A ReplicationController.
    ReplicationController(ReplicationController),
    /// A ReplicaSet.
    ReplicaSet(Box<ReplicaSet>),
    /// A StatefulSet.
    StatefulSet(Box<StatefulSet>),
    /// A Deployment.
    Deployment(Box<Deployment>),
    /// A PodDisruptionBudget.
    PodDisruptionBudget(PodDisruptionBudget),
    /// A PriorityClass.
    PriorityClass(PriorityClass),
    /// An object of any other kind, which comes in JSON alone.
    Other(Box<OtherObject>),
    /// A Status in place of an object.
    Status(Status),
}

/// An object of a kind that this crate does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherObject {
    /// What all objects have.
    pub metadata: ObjectMeta,
    /// The whole object.
    pub value: serde_json::Value,
}

impl Object {
    /// The object's metadata; None for a Status, which has none worth reading.
    pub fn metadata(&self) -> Option<&ObjectMeta> {
        Some(match self {
            Object::Node(object) => &object.metadata,
            Object::Pod(object) => &object.metadata,
            Object::Namespace(object) => &object.metadata,
            Object::Service(object) => &object.metadata,
            Object::ReplicationController(object) => &object.metadata,
            Object::ReplicaSet(object) => &object.metadata,
            Object::StatefulSet(object) => &object.metadata,
            Object::Deployment(object) => &object.metadata,
            Object::PodDisruptionBudget(object) => &object.metadata,
            Object::PriorityClass(object) => &object.metadata,
            Object::Other(object) => &object.metadata,
            Object::Status(_) => return None,
        })
    }
}

/// A Status: the server's response in place of an object, or at the end of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code, for example 410 when a resource version is too old.
    pub code: i32,
    /// In one word, for example `Expired`.
    pub reason: String,
    /// The message of the Status.
    pub message: String,
    /// How long to wait before the next attempt; 0 if the server did not say.
    pub retry_after_seconds: i32,
}

/// A list of objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List<T> {
    /// The resourceVersion at which a watch continues.
    pub resource_version: String,
    /// Asks for the next page; empty on the last one.
    pub continue_token: String,
    /// How many more there are, if the server knows.
    pub remaining_item_count: Option<i64>,
    /// The objects.
    pub items: Vec<T>,
}

/// An event of a watch, with the resourceVersion at which to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent<T> {
    /// An object is there that was not.
    Added {
        /// The object.
        object: T,
        /// Its version.
        resource_version: String,
    },
    /// An object has changed.
    Modified {
        /// The object.
        object: T,
        /// Its version.
        resource_version: String,
    },
    /// An object was deleted.
    Deleted {
        /// Its last state.
        object: T,
        /// The version of its removal.
        resource_version: String,
    },
    /// A bookmark: nothing changed up to this resourceVersion.
    Bookmark {
        /// The version.
        resource_version: String,
        /// All that existed when the watch began has been sent.
        ends_initial_events: bool,
    },
    /// The watch is over.
    Error(Status),
}

/// Why bytes are not the object they should be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtoError {
    /// The bytes are no protobuf of Kubernetes.
    #[error("expected an object in protobuf: bytes beginning with \"k8s\\0\"")]
    NoMagic,
    /// A message ends before its time.
    #[error("unexpected end of a protobuf message")]
    Truncated,
    /// A message cannot be read.
    #[error("malformed protobuf message")]
    Malformed,
    /// The content is compressed or the like.
    #[error("unknown encoding {encoding:?} of an object: expected none")]
    Encoded {
        /// `contentEncoding` of the envelope.
        encoding: String,
    },
    /// The message of an object cannot be read.
    #[error("decoding a {kind} from protobuf")]
    Message {
        /// Kind of the object.
        kind: &'static str,
        /// The error of prost.
        #[source]
        source: prost::DecodeError,
    },
    /// The object is of another kind than asked for.
    #[error("unexpected {kind:?} of {api_version:?}: expected {expected}")]
    Kind {
        /// `apiVersion` of the object.
        api_version: String,
        /// `kind` of the object.
        kind: String,
        /// The expected kind.
        expected: String,
    },
    /// A quantity is none.
    #[error("decoding the amount of {resource:?}")]
    Quantity {
        /// Which resource.
        resource: String,
        /// What is wrong with its amount.
        #[source]
        source: QuantityError,
    },
    /// A time is out of range.
    #[error("time of {seconds} s since 1970 is out of range")]
    Time {
        /// The time.
        seconds: i64,
    },
    /// The type of a watch event is not known.
    #[error("unknown watch event {kind:?}: expected ADDED, MODIFIED, DELETED, BOOKMARK or ERROR")]
    Event {
        /// The type.
        kind: String,
    },
    /// A frame is larger than allowed.
    #[error("frame of {len} bytes is too large: expected at most {len_max}")]
    FrameTooLarge {
        /// Length of the frame.
        len: usize,
        /// The limit.
        len_max: usize,
    },
}

/// Kinds that are decoded from what an API server sends: protobuf, or JSON if a configuration asks for it.
pub trait ProtoKind: Sized + sealed::Sealed {
    /// Its `apiVersion`.
    const API_VERSION: &'static str;
    /// Its `kind`.
    const KIND: &'static str;

    /// Decodes the bare message, as it stands in an envelope or a list.
    ///
    /// # Errors
    ///
    /// When the message is malformed, or a quantity or time in it is.
    fn from_message(raw: &[u8]) -> Result<Self, ProtoError>;

    /// Decodes its JSON. Compiled here, not in each crate that reads JSON.
    ///
    /// # Errors
    ///
    /// When it is not the JSON of such an object.
    fn from_json(text: &[u8]) -> serde_json::Result<Self>;
}

mod sealed {
    pub trait Sealed {}
}

/// Implements [`ProtoKind`], with a function that decodes the message.
macro_rules! kinds {
    ($($api_version:literal $kind:ident: $decode:expr;)*) => {$(
        impl sealed::Sealed for $kind {}

        impl ProtoKind for $kind {
            const API_VERSION: &'static str = $api_version;
            const KIND: &'static str = stringify!($kind);

            fn from_message(raw: &[u8]) -> Result<$kind, ProtoError> {
                let decode: fn(&[u8]) -> Result<$kind, ProtoError> = $decode;
                decode(raw)
            }

            fn from_json(text: &[u8]) -> serde_json::Result<$kind> {
                loadmaster_stdx::json::from_slice(text)
            }
        }
    )*};
}

kinds! {
    "v1" Node: |raw| from_message(raw, convert::node);
    "v1" Pod: pod_message::decode;
    "v1" Namespace: |raw| from_message(raw, |given: messages::Namespace| {
        Ok(Namespace { metadata: convert::metadata(given.metadata)? })
    });
    "v1" Service: |raw| from_message(raw, |given: messages::ObjectWithMapSelector| Ok(Service {
        metadata: convert::metadata(given.metadata)?,
        spec: convert::map_selector(given.spec),
    }));
    "v1" ReplicationController: |raw| {
        from_message(raw, |given: messages::ObjectWithMapSelector| Ok(ReplicationController {
            metadata: convert::metadata(given.metadata)?,
            spec: convert::map_selector(given.spec),
        }))
    };
    "apps/v1" ReplicaSet: |raw| from_message(raw, |given: messages::WorkloadWithReplicas| Ok(ReplicaSet {
        metadata: convert::metadata(given.metadata)?,
        spec: convert::replicas_spec(given.spec)?,
    }));
    "apps/v1" StatefulSet: |raw| from_message(raw, |given: messages::WorkloadWithReplicas| Ok(StatefulSet {
        metadata: convert::metadata(given.metadata)?,
        spec: convert::replicas_spec(given.spec)?,
    }));
    "apps/v1" Deployment: |raw| from_message(raw, |given: messages::WorkloadWithReplicas| Ok(Deployment {
        metadata: convert::metadata(given.metadata)?,
        spec: convert::replicas_spec(given.spec)?,
    }));
    "policy/v1" PodDisruptionBudget: |raw| from_message(raw, convert::disruption_budget);
    "scheduling.k8s.io/v1" PriorityClass: |raw| from_message(raw, convert::priority_class);
}

/// Decodes a message, and converts it to the lean type.
fn from_message<M: Message + Default, T: ProtoKind>(
    raw: &[u8],
    convert: fn(M) -> Result<T, ProtoError>,
) -> Result<T, ProtoError> {
    match M::decode(raw) {
        Ok(message) => convert(message),
        Err(source) => Err(ProtoError::Message { kind: T::KIND, source }),
    }
}

/// Decodes an object of any known kind from its envelope.
///
/// # Errors
///
/// When the envelope or the message is malformed, or the kind is not known.
pub fn decode(bytes: &[u8]) -> Result<Object, ProtoError> {
    let Envelope { api_version, kind, raw } = Envelope::open(bytes)?;
    object(api_version, kind, raw)
}

/// Decodes the bare message of an object of any known kind.
fn object(api_version: &str, kind: &str, raw: &[u8]) -> Result<Object, ProtoError> {
    Ok(match (api_version, kind) {
        ("v1", "Node") => Object::Node(Box::new(ProtoKind::from_message(raw)?)),
        ("v1", "Pod") => Object::Pod(Box::new(ProtoKind::from_message(raw)?)),
        ("v1", "Namespace") => Object::Namespace(ProtoKind::from_message(raw)?),
        ("v1", "Service") => Object::Service(ProtoKind::from_message(raw)?),
        ("v1", "ReplicationController") => {
            Object::ReplicationController(ProtoKind::from_message(raw)?)
        }
        ("apps/v1", "ReplicaSet") => Object::ReplicaSet(Box::new(ProtoKind::from_message(raw)?)),
        ("apps/v1", "StatefulSet") => Object::StatefulSet(Box::new(ProtoKind::from_message(raw)?)),
        ("apps/v1", "Deployment") => Object::Deployment(Box::new(ProtoKind::from_message(raw)?)),
        ("policy/v1", "PodDisruptionBudget") => {
            Object::PodDisruptionBudget(ProtoKind::from_message(raw)?)
        }
        ("scheduling.k8s.io/v1", "PriorityClass") => {
            Object::PriorityClass(ProtoKind::from_message(raw)?)
        }
        ("v1", "Status") => Object::Status(wire::status(raw)?),
        _ => return Err(unexpected(api_version, kind, "a kind that scheduling reads".to_owned())),
    })
}

/// Decodes an object of one kind from its envelope.
///
/// # Errors
///
/// When the envelope or the message is malformed, or the object is of another kind.
pub fn decode_as<T: ProtoKind>(bytes: &[u8]) -> Result<T, ProtoError> {
    let Envelope { api_version, kind, raw } = Envelope::open(bytes)?;
    if (api_version, kind) != (T::API_VERSION, T::KIND) {
        return Err(unexpected(api_version, kind, format!("{} of {}", T::KIND, T::API_VERSION)));
    }
    T::from_message(raw)
}

/// Decodes a list of objects of one kind from its envelope.
///
/// # Errors
///
/// When the envelope or a message is malformed, or the list is of another kind.
pub fn decode_list<T: ProtoKind>(bytes: &[u8]) -> Result<List<T>, ProtoError> {
    let Envelope { api_version, kind, raw } = Envelope::open(bytes)?;
    if api_version != T::API_VERSION || kind.strip_suffix("List") != Some(T::KIND) {
        return Err(unexpected(
            api_version,
            kind,
            format!("{}List of {}", T::KIND, T::API_VERSION),
        ));
    }
    let list = wire::list(raw)?;
    Ok(List {
        resource_version: list.resource_version.to_owned(),
        continue_token: list.continue_token.to_owned(),
        remaining_item_count: list.remaining_item_count,
        items: list.items.into_iter().map(T::from_message).collect::<Result<_, _>>()?,
    })
}

/// Decodes a frame of a watch of objects of one kind.
///
/// # Errors
///
/// When the frame is malformed, or the object is of another kind.
pub fn decode_event<T: ProtoKind>(frame: &[u8]) -> Result<WatchEvent<T>, ProtoError> {
    decode_event_with(frame, decode_as)
}

/// Decodes a frame of a watch of any known kind.
///
/// # Errors
///
/// When the frame is malformed, or the kind is not known.
pub fn decode_any_event(frame: &[u8]) -> Result<WatchEvent<Object>, ProtoError> {
    decode_event_with(frame, decode)
}

/// Decodes a frame of a watch; the object in it, given as its envelope, by `decode`.
///
/// # Errors
///
/// When the frame is malformed, or `decode` fails.
pub fn decode_event_with<T>(
    frame: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, ProtoError>,
) -> Result<WatchEvent<T>, ProtoError> {
    let (event, bytes) = wire::watch_event(frame)?;
    let Envelope { raw, api_version, kind } = Envelope::open(bytes)?;
    if event == "ERROR" {
        if (api_version, kind) != ("v1", "Status") {
            return Err(unexpected(api_version, kind, "Status of v1".to_owned()));
        }
        return Ok(WatchEvent::Error(wire::status(raw)?));
    }
    let (version, ends_initial_events) = wire::version(raw)?;
    let resource_version = version.to_owned();
    match event {
        "ADDED" => Ok(WatchEvent::Added { object: decode(bytes)?, resource_version }),
        "MODIFIED" => Ok(WatchEvent::Modified { object: decode(bytes)?, resource_version }),
        "DELETED" => Ok(WatchEvent::Deleted { object: decode(bytes)?, resource_version }),
        "BOOKMARK" => Ok(WatchEvent::Bookmark { resource_version, ends_initial_events }),
        _ => Err(ProtoError::Event { kind: event.to_owned() }),
    }
}

fn unexpected(api_version: &str, kind: &str, expected: String) -> ProtoError {
    ProtoError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned(), expected }
}

#[cfg(test)]
mod tests;
