//! Writes Events with a connection pool and a rate limit of their own, so that they never delay other requests; when too many wait,
//! Events are dropped.
//!
//! [`EventCorrelator`] decides what is written, and owns no clock: as upstream, an event that repeats within six minutes becomes a
//! series; its first repetition is written at once, later ones are counted and the count is written every 30 minutes and at the
//! end.
//! Only an event with the same note is a repetition. (Upstream compares the resourceVersion of the regarding object instead of the
//! note. A pod's resourceVersion changes with the message in its condition, which is the note of its event.)
//!
//! The API server accepts notes of up to 1,024 bytes; callers truncate longer ones.

mod correlator;
mod requests;
mod write_window;
mod writer;

use loadmaster_api::Str;

pub use correlator::{Event, EventCorrelator, EventWrite};
pub use writer::{EventRecorder, EventRecorderOptions, EventRecorderStats};

/// A reference to an object (`v1.ObjectReference`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// Such as `v1`.
    pub api_version: Str,
    /// Such as `Pod`.
    pub kind: Str,
    /// Empty for kinds without namespaces.
    pub namespace: Str,
    /// The name of the object.
    pub name: Box<str>,
    /// The uid of the object.
    pub uid: Box<str>,
}

/// An event to be recorded: the arguments of upstream's `EventRecorder.Eventf`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewEvent {
    /// The object that the event is about.
    pub regarding: ObjectReference,
    /// A secondary object.
    pub related: Option<ObjectReference>,
    /// Whether its type is Warning; else Normal.
    pub is_warning: bool,
    /// The reason, such as `Scheduled`.
    pub reason: Str,
    /// The action, such as `Binding`. Without one the Event is written as core/v1, as upstream does for `LeaderElection`.
    pub action: Str,
    /// The message.
    pub note: String,
    /// The reporting controller: a profile's schedulerName.
    pub controller: Str,
}

impl NewEvent {
    /// Upstream's event about leader election: `IDENTITY became leader` or `IDENTITY stopped leading`.
    pub fn leader_election(
        lease: ObjectReference,
        identity: &str,
        what: &str,
        controller: &str,
    ) -> NewEvent {
        NewEvent {
            regarding: lease,
            related: None,
            is_warning: false,
            reason: "LeaderElection".into(),
            action: Str::default(),
            note: format!("{identity} {what}"),
            controller: controller.into(),
        }
    }
}
