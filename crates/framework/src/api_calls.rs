//! API requests of plugins, and the steps of resumable plugins. Plugins do no I/O: requests are values, which the engine emits as
//! effects.

use loadmaster_api::Str;
use serde_json::Value;

use crate::preemption_candidate::Candidate;
use crate::time::MonoTime;

/// A request to the API server, for any resource of any group.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// The operation.
    pub verb: Verb,
    /// Empty for the core group.
    pub group: Str,
    /// The version, such as `v1`.
    pub version: Str,
    /// The plural name, such as `persistentvolumeclaims`.
    pub resource: Str,
    /// Empty for resources without namespaces.
    pub namespace: Str,
    /// The name of the object.
    pub name: Str,
    /// The subresource, such as `status` or `binding`; empty for the object itself.
    pub subresource: Str,
    /// The object, or the patch; `None` where the verb takes none.
    pub body: Option<Value>,
}

/// The operation of an API request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read it.
    Get,
    /// Create it.
    Create,
    /// Replace it.
    Update,
    /// Patch it with a JSON patch (RFC 6902).
    JsonPatch,
    /// Patch it with a JSON merge patch (RFC 7386).
    MergePatch,
    /// Patch it with a strategic merge patch, which merges lists by their keys.
    StrategicMergePatch,
    /// Delete it.
    Delete,
}

/// The input of a resumable plugin (PreBind, Bind, PostFilter): the result of its previous step.
#[derive(Clone, Debug)]
pub enum PluginStepInput<'a> {
    /// The first call in this attempt.
    Start,
    /// The reply to the last [`PluginStep::Call`]: the object, or the error's status code and message.
    Reply(Result<&'a Value, (u16, &'a str)>),
    /// An object of the last [`PluginStep::Wait`] changed; `None` when it was deleted.
    Changed(Option<&'a Value>),
    /// The candidates that extenders left of the last [`PluginStep::CallExtenders`], or the error that ends preemption.
    ExtendersReplied(Result<&'a [Candidate], &'a str>),
    /// The deadline of the last [`PluginStep::Wait`] has passed.
    Deadline,
    /// The attempt was cancelled; the plugin cleans up and returns [`PluginStep::Done`].
    Cancelled,
}

/// The next step of a resumable plugin (PreBind, Bind, PostFilter).
#[derive(Clone, Debug)]
pub enum PluginStep<T> {
    /// Send this request and call the plugin again with the reply.
    Call(ApiRequest),
    /// Call the plugin again when one of these objects changes, or with [`PluginStepInput::Deadline`] at a time. A plugin that
    /// waits several times for one timeout computes the deadline once, from the `now` of its context, and keeps it in the cycle
    /// state.
    Wait {
        /// The objects; may be empty.
        on: Vec<ObjectRef>,
        /// The deadline. One that has passed already is due at once.
        until: MonoTime,
    },
    /// From PostFilter: send these candidates to the extenders that support preemption, and call the plugin again with those that
    /// are left. Only allowed if [`crate::FitError::has_preempting_extenders`].
    CallExtenders(Vec<Candidate>),
    /// Finished.
    Done(T),
    /// The attempt failed.
    Fail(crate::result::Rejection),
}

/// Identifies one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Empty for the core group.
    pub group: Str,
    /// The plural name.
    pub resource: Str,
    /// Empty for resources without namespaces.
    pub namespace: Str,
    /// The name of the object.
    pub name: Str,
}
