//! Effects: the output of an engine. They are values; the owner of the engine executes them, binds before other calls.

use loadmaster_api::Str;
use loadmaster_extender::ExtenderRequest;
use loadmaster_framework::PodInfo;
use loadmaster_framework::api_calls::ApiRequest;

pub use super::observation::{AttemptOutcome, Observation};

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
    /// The number of the configuration that has the extender: a pod in flight is finished by the one under which it began.
    pub configuration: u64,
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
