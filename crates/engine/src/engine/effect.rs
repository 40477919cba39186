//! What an engine wants done. Effects are values; whoever owns the engine carries them out, binds before other calls.

use loadmaster_api::Str;
use loadmaster_extender::Ask;
use loadmaster_framework::PodInfo;
use loadmaster_framework::request::ApiRequest;

use super::overdue::Overdue;
use super::races::LostRace;
use super::shadow::Judgement;
use crate::guard::{Panic, Timed};
use crate::queue::{Cause, SeatIdx};

/// Effects in the order in which they came up.
pub type Effects = Vec<Effect>;

/// Something to do outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask the API server, and come back with [`Event::Replied`](super::Event::Replied).
    Call(Call),
    /// Ask an extender, and come back with [`Event::Extended`](super::Event::Extended).
    Extend(Extend),
    /// Tell people what happened: an Event object.
    Tell(Tell),
    /// For metrics.
    Observe(Observation),
}

/// A call's number, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A call on the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: CallId,
    pub request: ApiRequest,
}

/// A call on an extender.
#[derive(Clone, Debug, PartialEq)]
pub struct Extend {
    pub id: CallId,
    pub ask: Ask,
}

/// Names an object in an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: Str,
    pub name: Box<str>,
    pub uid: Box<str>,
}

impl From<&PodInfo> for ObjectName {
    fn from(pod: &PodInfo) -> ObjectName {
        ObjectName {
            namespace: pod.template.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// An Event about a pod, with upstream's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    /// `Warning` instead of `Normal`.
    pub is_warning: bool,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
    pub regarding: ObjectName,
    pub related: Option<ObjectName>,
    /// The schedulerName of the profile that says it.
    pub controller: Str,
}

/// Something that metrics count. Durations are in nanoseconds: those within one call to the engine by
/// [`Options::ticks`](super::Options::ticks), longer ones by the time the engine was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// An attempt ended.
    Attempt { seat: SeatIdx, outcome: Outcome, nanos: u64 },
    /// Filtering and scoring of an attempt, with PostFilter.
    Algorithm { nanos: u64 },
    /// A pod was bound: after so many attempts, and so long after the first one began.
    Bound { attempts: u32, nanos: u64, after_flush: bool },
    /// Permit held a pod for so long; whether it was allowed.
    PermitWait { allowed: bool, nanos: u64 },
    /// A PostFilter plugin answered: whether that counts as an attempt to preempt, and how many victims it chose (`None`: it made
    /// no room).
    Preemption { counts: bool, victims: Option<usize> },
    /// News was handled: upstream's `event_handling_duration_seconds`.
    Handled { event: Cause, nanos: u64 },
    /// Another scheduler placed a pod of ours ([`Options::shadow`](super::Options::shadow)).
    Judged(Box<Judgement>),
    /// A plugin has been at work for one pod for a long time.
    Overdue(Box<Overdue>),
    /// Another scheduler got a pod, or room on a node, that we wanted.
    LostRace(Box<LostRace>),
    /// Some calls of plugins, timed.
    Timed(Vec<Timed>),
    /// A plugin panicked, and was made anew.
    Panicked(Box<Panic>),
    /// Something went wrong inside that no pod is told about.
    Trouble { what: String },
}

/// How an attempt ended, as upstream's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    /// The value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Scheduled => "scheduled",
            Outcome::Unschedulable => "unschedulable",
            Outcome::Error => "error",
        }
    }
}
