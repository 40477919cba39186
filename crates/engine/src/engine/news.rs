//! What an engine is told.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{
    Namespace, Node, Pod, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController,
    Service, StatefulSet, Str,
};
use loadmaster_extender::Answer;
use loadmaster_framework::request::ObjectRef;
use serde_json::Value;

use super::effect::CallId;

/// One piece of news.
#[derive(Clone, Debug)]
pub enum Event {
    /// An object is there, or is now like this. Told again it changes nothing.
    Set(Object),
    /// An object is gone.
    Gone(Name),
    /// The answer to an [`Effect::Call`](super::Effect::Call).
    Replied { call: CallId, reply: Reply },
    /// The answer to an [`Effect::Extend`](super::Effect::Extend), or why there is none, in upstream's words.
    Extended { call: CallId, answer: Result<Answer, String> },
    /// An object of a kind that only plugins know changed (`None`: it is gone), for those that watch it or wait for it.
    Changed { object: ObjectRef, value: Option<Value> },
    /// All objects of such a kind have been told, or the server does not have it or does not let us read it.
    Listed { group: Str, resource: Str, is_there: bool },
    /// A service publishes something to the plugins of this name, to be forgotten after so long.
    Published { plugin: Box<str>, value: Value, good_for: Duration },
    /// Somebody outside allows or rejects a pod that Permit holds: on behalf of one plugin, or of all.
    Permit { uid: Box<str>, plugin: Option<Box<str>>, verdict: Verdict },
    /// Pods that should be tried now, by uid.
    Activate(Vec<Box<str>>),
}

/// An object as the API server has it.
#[derive(Clone, Debug)]
pub enum Object {
    Node(Arc<Node>),
    Pod(Box<Pod>),
    Namespace(Arc<Namespace>),
    Service(Arc<Service>),
    ReplicationController(Arc<ReplicationController>),
    ReplicaSet(Arc<ReplicaSet>),
    StatefulSet(Arc<StatefulSet>),
    PodDisruptionBudget(Arc<PodDisruptionBudget>),
    PriorityClass(Arc<PriorityClass>),
}

/// Which object is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Node(Str),
    /// By uid: a pod of the same name may be there again.
    Pod(Box<str>),
    Namespace(Str),
    Service(Str, Str),
    ReplicationController(Str, Str),
    ReplicaSet(Str, Str),
    StatefulSet(Str, Str),
    PodDisruptionBudget(Str, Str),
    PriorityClass(Str),
}

/// What came back from the API server: the object, or why not.
pub type Reply = Result<Value, ApiError>;

/// The API server said no, or could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status; 0 when there was no answer.
    pub code: u16,
    pub message: String,
}

/// What becomes of a pod that Permit holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// Why not.
    Reject(String),
}
