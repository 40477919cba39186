//! Calls and effects as protobuf messages. These messages are the format of recordings: tags and enum numbers must never be reused. Their
//! conversion is in [`super::convert`].

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// One entry. Times are relative to the entry before; the first of a block is absolute.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    /// Nanoseconds of the monotonic clock.
    #[prost(sint64, tag = "1")]
    pub mono: i64,
    /// How much more or less the wall clock has advanced.
    #[prost(sint64, tag = "2")]
    pub wall: i64,
    #[prost(oneof = "EntryBody", tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
    pub step: Option<EntryBody>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EntryBody {
    #[prost(message, tag = "3")]
    Upsert(Upsert),
    #[prost(message, tag = "4")]
    Delete(Delete),
    #[prost(message, tag = "5")]
    Replied(Replied),
    #[prost(message, tag = "6")]
    ObjectChanged(ObjectChanged),
    #[prost(message, tag = "7")]
    Permit(Permit),
    #[prost(message, tag = "8")]
    Activate(Uids),
    #[prost(message, tag = "9")]
    Cycle(Empty),
    #[prost(message, tag = "10")]
    HandleTimeouts(Empty),
    #[prost(message, tag = "11")]
    Effects(RecordedEffects),
    #[prost(int32, tag = "12")]
    End(i32),
    #[prost(message, tag = "13")]
    ExtenderReplied(ExtenderReplied),
    #[prost(message, tag = "14")]
    Synced(Synced),
    #[prost(message, tag = "15")]
    Published(Published),
    /// Another KubeSchedulerConfiguration with all defaults, as YAML.
    #[prost(string, tag = "16")]
    Reconfigured(String),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unknown = 0,
    Pod = 1,
    Node = 2,
    Namespace = 3,
    Service = 4,
    ReplicationController = 5,
    ReplicaSet = 6,
    StatefulSet = 7,
    PodDisruptionBudget = 8,
    PriorityClass = 9,
}

/// An object that was added or updated, as the API server sent it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Upsert {
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    /// The bare protobuf message.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub protobuf: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub json: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// For a pod, its uid.
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Replied {
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// JSON; without it, an error.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
    #[prost(uint32, tag = "3")]
    pub code: u32,
    #[prost(string, tag = "4")]
    pub message: String,
}

/// A reply of an extender.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExtenderReplied {
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// JSON; without it, an error.
    #[prost(string, optional, tag = "2")]
    pub reply: Option<String>,
    #[prost(string, tag = "3")]
    pub error: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectChanged {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub resource: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
    /// JSON; if absent, the object was deleted.
    #[prost(string, optional, tag = "5")]
    pub value: Option<String>,
}

/// The initial list of a kind that only plugins use has been delivered.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Synced {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub resource: String,
    #[prost(bool, tag = "3")]
    pub has_synced: bool,
}

/// A value that a service published to a plugin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Published {
    #[prost(string, tag = "1")]
    pub plugin: String,
    /// JSON.
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(uint64, tag = "3")]
    pub ttl_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Permit {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(string, optional, tag = "2")]
    pub plugin: Option<String>,
    /// The reason; if absent, the pod is allowed.
    #[prost(string, optional, tag = "3")]
    pub rejected: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Uids {
    #[prost(string, repeated, tag = "1")]
    pub uids: Vec<String>,
}

/// The effects of a call. Only observations that depend on nothing but the calls are included.
#[derive(Clone, PartialEq, Message)]
pub struct RecordedEffects {
    #[prost(message, repeated, tag = "1")]
    pub(super) effects: Vec<Effect>,
    /// The result of a scheduling cycle.
    #[prost(enumeration = "CycleResult", optional, tag = "2")]
    pub(super) cycled: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum CycleResult {
    Ran = 0,
    Idle = 1,
    Waiting = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Effect {
    #[prost(oneof = "EffectBody", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub body: Option<EffectBody>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EffectBody {
    #[prost(message, tag = "1")]
    Call(Call),
    #[prost(message, tag = "2")]
    RecordEvent(EventRecord),
    #[prost(message, tag = "3")]
    Attempt(Attempt),
    /// [`crate::engine::effect::Observation::ShadowCompared`] as text.
    #[prost(string, tag = "4")]
    ShadowCompared(String),
    #[prost(string, tag = "5")]
    InternalError(String),
    #[prost(message, tag = "6")]
    CallExtender(ExtenderCall),
    /// [`crate::engine::effect::Observation::Conflict`] as text.
    #[prost(string, tag = "7")]
    Conflict(String),
}

/// A call to an extender.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExtenderCall {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its index in the configuration.
    #[prost(uint64, tag = "2")]
    pub extender: u64,
    #[prost(message, optional, tag = "3")]
    pub pod: Option<Named>,
    /// As text.
    #[prost(string, tag = "4")]
    pub question: String,
}

/// A call to the API server. The verb is text, to be readable.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Call {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub verb: String,
    #[prost(string, tag = "3")]
    pub group: String,
    #[prost(string, tag = "4")]
    pub version: String,
    #[prost(string, tag = "5")]
    pub resource: String,
    #[prost(string, tag = "6")]
    pub namespace: String,
    #[prost(string, tag = "7")]
    pub name: String,
    #[prost(string, tag = "8")]
    pub subresource: String,
    #[prost(string, optional, tag = "9")]
    pub body: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EventRecord {
    #[prost(bool, tag = "1")]
    pub is_warning: bool,
    #[prost(string, tag = "2")]
    pub reason: String,
    #[prost(string, tag = "3")]
    pub action: String,
    #[prost(string, tag = "4")]
    pub note: String,
    #[prost(message, optional, tag = "5")]
    pub regarding: Option<Named>,
    #[prost(message, optional, tag = "6")]
    pub related: Option<Named>,
    #[prost(string, tag = "7")]
    pub controller: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attempt {
    /// Index of the profile.
    #[prost(uint32, tag = "1")]
    pub profile: u32,
    /// The value of the metric label `result`.
    #[prost(string, tag = "2")]
    pub outcome: String,
}
