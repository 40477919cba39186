//! Effects: the output of an engine. They are values; the owner of the engine executes them, binds before other calls.

use loadmaster_api::Str;
use loadmaster_extender::ExtenderRequest;
use loadmaster_framework::PodInfo;
use loadmaster_framework::api_calls::ApiRequest;

use super::conflicts::Conflict;
use super::shadow::ShadowComparison;
use super::stuck::StuckPlugin;
use crate::guard::{PluginExecutionDuration, PluginPanic};
use crate::queue::{EnqueueCause, ProfileIdx};

/// Effects in the order in which they were produced.
pub type Effects = Vec<Effect>;

/// Something that the owner of the engine must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Call the API server; its reply is [`EngineEvent::Replied`](super::EngineEvent::Replied).
    Call(ApiServerCall),
    /// Call an extender; its reply is [`EngineEvent::ExtenderReplied`](super::EngineEvent::ExtenderReplied).
    CallExtender(ExtenderCall),
    /// Create an Event object.
    RecordEvent(EventRecord),
    /// For metrics.
    Observe(Observation),
}

/// The id of a call, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A call to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiServerCall {
    pub id: CallId,
    pub request: ApiRequest,
}

/// A call to an extender.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtenderCall {
    pub id: CallId,
    pub request: ExtenderRequest,
}

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegardingObject {
    pub namespace: Str,
    pub name: Box<str>,
    pub uid: Box<str>,
}

impl From<&PodInfo> for RegardingObject {
    fn from(pod: &PodInfo) -> RegardingObject {
        RegardingObject {
            namespace: pod.template.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// An Event about a pod, with upstream's reason and action where upstream has such an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// `Warning` instead of `Normal`.
    pub is_warning: bool,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
    pub regarding: RegardingObject,
    pub related: Option<RegardingObject>,
    /// The schedulerName of the profile, used as `reportingController`.
    pub controller: Str,
}

/// Input for metrics and logs. Durations are in nanoseconds: those within one call to the engine are measured with
/// [`EngineOptions::stopwatch`](super::EngineOptions::stopwatch), longer ones with the time that is passed to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// An attempt ended.
    Attempt { profile_idx: ProfileIdx, outcome: AttemptOutcome, nanos: u64 },
    /// Filtering and scoring of an attempt, with PostFilter.
    Algorithm { nanos: u64 },
    /// A pod was bound: the number of attempts, and the time since the first attempt began.
    Bound { attempts: u32, nanos: u64, after_flush: bool },
    /// How long a pod waited on Permit, and whether it was allowed.
    PermitWait { allowed: bool, nanos: u64 },
    /// A PostFilter plugin finished: whether that counts as a preemption attempt, and how many victims it chose (`None`: preemption does not
    /// help).
    Preemption { counts: bool, victims: Option<usize> },
    /// An event was handled: upstream's `event_handling_duration_seconds`.
    EventHandled { event: EnqueueCause, nanos: u64 },
    /// Another scheduler bound a pod of our profiles ([`EngineOptions::shadow`](super::EngineOptions::shadow)).
    ShadowCompared(Box<ShadowComparison>),
    /// A plugin has been running for one pod for a long time.
    PluginStuck(Box<StuckPlugin>),
    /// Another scheduler bound a pod, or took resources of a node, that we had chosen.
    Conflict(Box<Conflict>),
    /// Durations of plugin calls.
    PluginExecutions(Vec<PluginExecutionDuration>),
    /// A plugin panicked, and its state was reset.
    PluginPanicked(Box<PluginPanic>),
    /// An error that no pod's Event or condition reports.
    InternalError { message: String },
}

/// How an attempt ended, as upstream's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl AttemptOutcome {
    /// The value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            AttemptOutcome::Scheduled => "scheduled",
            AttemptOutcome::Unschedulable => "unschedulable",
            AttemptOutcome::Error => "error",
        }
    }
}
