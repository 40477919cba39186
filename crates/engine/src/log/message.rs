//! Calls and effects as protobuf messages. What stands here is the format: numbers are never used for something else. How they are
//! made and read is in [`super::convert`].

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// One entry. Times are relative to the entry before; the first of a block is absolute.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    /// Nanoseconds of the engine's clock.
    #[prost(sint64, tag = "1")]
    pub mono: i64,
    /// By how much more, or less, the wall clock has gone on.
    #[prost(sint64, tag = "2")]
    pub wall: i64,
    #[prost(oneof = "Step", tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15")]
    pub step: Option<Step>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Step {
    #[prost(message, tag = "3")]
    Set(Set),
    #[prost(message, tag = "4")]
    Gone(Gone),
    #[prost(message, tag = "5")]
    Replied(Replied),
    #[prost(message, tag = "6")]
    Changed(Changed),
    #[prost(message, tag = "7")]
    Permit(Permit),
    #[prost(message, tag = "8")]
    Activate(Uids),
    #[prost(message, tag = "9")]
    Cycle(Nothing),
    #[prost(message, tag = "10")]
    Wake(Nothing),
    #[prost(message, tag = "11")]
    Left(Left),
    #[prost(int32, tag = "12")]
    End(i32),
    #[prost(message, tag = "13")]
    Extended(Extended),
    #[prost(message, tag = "14")]
    Listed(Listed),
    #[prost(message, tag = "15")]
    Published(Published),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

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

/// An object, as the API server sent it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Set {
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    /// The bare protobuf message.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub protobuf: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub json: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gone {
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Of a pod, its uid.
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

/// An extender's answer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Extended {
    #[prost(uint64, tag = "1")]
    pub call: u64,
    /// JSON; without it, an error.
    #[prost(string, optional, tag = "2")]
    pub answer: Option<String>,
    #[prost(string, tag = "3")]
    pub error: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Changed {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub resource: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
    /// JSON; without it, the object is gone.
    #[prost(string, optional, tag = "5")]
    pub value: Option<String>,
}

/// All objects of a kind that only plugins know have been told.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Listed {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub resource: String,
    #[prost(bool, tag = "3")]
    pub is_there: bool,
}

/// A service's word to a plugin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Published {
    #[prost(string, tag = "1")]
    pub plugin: String,
    /// JSON.
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(uint64, tag = "3")]
    pub good_for_nanos: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Permit {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(string, optional, tag = "2")]
    pub plugin: Option<String>,
    /// Why not; without it, allowed.
    #[prost(string, optional, tag = "3")]
    pub rejected: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Uids {
    #[prost(string, repeated, tag = "1")]
    pub uids: Vec<String>,
}

/// What a call left. Of observations, those that hang on nothing but the calls.
#[derive(Clone, PartialEq, Message)]
pub struct Left {
    #[prost(message, repeated, tag = "1")]
    pub(super) effects: Vec<Effect>,
    /// What a cycle did.
    #[prost(enumeration = "Cycled", optional, tag = "2")]
    pub(super) cycled: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum Cycled {
    Ran = 0,
    Idle = 1,
    Waiting = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Effect {
    #[prost(oneof = "Wanted", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub wanted: Option<Wanted>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Wanted {
    #[prost(message, tag = "1")]
    Call(Call),
    #[prost(message, tag = "2")]
    Tell(Tell),
    #[prost(message, tag = "3")]
    Attempt(Attempt),
    /// [`Observation::Judged`], in words.
    #[prost(string, tag = "4")]
    Judged(String),
    #[prost(string, tag = "5")]
    Trouble(String),
    #[prost(message, tag = "6")]
    Extend(Extend),
    /// [`Observation::LostRace`], in words.
    #[prost(string, tag = "7")]
    LostRace(String),
}

/// A call on an extender.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Extend {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its place in the configuration.
    #[prost(uint64, tag = "2")]
    pub extender: u64,
    #[prost(message, optional, tag = "3")]
    pub pod: Option<Named>,
    /// In words.
    #[prost(string, tag = "4")]
    pub question: String,
}

/// A call on the API server. The verb by name, for people.
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
pub(super) struct Tell {
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
    /// Number of the profile.
    #[prost(uint32, tag = "1")]
    pub profile: u32,
    /// As metrics name it.
    #[prost(string, tag = "2")]
    pub outcome: String,
}
