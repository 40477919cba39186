//! Events: the input of an engine.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::{
    Namespace, Node, Pod, PodDisruptionBudget, PriorityClass, ReplicaSet, ReplicationController,
    Service, StatefulSet, Str,
};
use loadmaster_extender::ExtenderResponse;
use loadmaster_framework::api_calls::ObjectRef;
use serde_json::Value;

use super::configuration::EngineConfiguration;
use super::effect::CallId;

/// Something that happened outside the engine.
#[derive(Clone, Debug)]
pub enum EngineEvent {
    /// An object was added or updated. Repeating it changes nothing.
    Upsert(ApiObject),
    /// An object was deleted.
    Delete(DeletedObjectKey),
    /// The reply to an [`Effect::Call`](super::Effect::Call).
    Replied { call: CallId, reply: ApiReply },
    /// The reply to an [`Effect::CallExtender`](super::Effect::CallExtender), or the error, in upstream's words.
    ExtenderReplied { call: CallId, reply: Result<ExtenderResponse, String> },
    /// An object of a kind that only plugins use was added or updated, or deleted (`None`).
    ObjectChanged { object: ObjectRef, value: Option<Value> },
    /// The initial list of a kind that only plugins use has been delivered (`has_synced`); or the server does not serve the kind, or does not let
    /// us read it.
    Synced { group: Str, resource: Str, has_synced: bool },
    /// A service publishes a value to the plugins with this name. It expires after `ttl`.
    Published { plugin: Box<str>, value: Value, ttl: Duration },
    /// Allows or rejects a pod that waits on Permit, on behalf of one plugin or of all.
    Permit { uid: Box<str>, plugin: Option<Box<str>>, decision: PermitDecision },
    /// Moves pods to activeQ, by uid (upstream's `Activate`).
    Activate(Vec<Box<str>>),
    /// Other profiles replace the running ones. An attempt that waits for an extender ends first.
    Reconfigured(Arc<EngineConfiguration>),
}

/// An object as the API server has it.
#[derive(Clone, Debug)]
pub enum ApiObject {
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

/// Identifies an object that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletedObjectKey {
    Node(Str),
    /// By uid: a new pod may have the same name.
    Pod(Box<str>),
    Namespace(Str),
    Service(Str, Str),
    ReplicationController(Str, Str),
    ReplicaSet(Str, Str),
    StatefulSet(Str, Str),
    PodDisruptionBudget(Str, Str),
    PriorityClass(Str),
}

/// A reply of the API server: the object, or an error.
pub type ApiReply = Result<Value, ApiError>;

/// The API server rejected a request, or could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status code; 0 when there was no response.
    pub code: u16,
    pub message: String,
}

/// Whether a pod that waits on Permit may be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitDecision {
    Allow,
    /// With the reason.
    Reject(String),
}
