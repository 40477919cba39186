//! What plugins ask of the API server: values, which the engine emits as effects. Plugins do no I/O.

use loadmaster_api::Str;
use serde_json::Value;

use crate::preemption::Candidate;

/// A call on any resource of any group.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// What to do.
    pub verb: Verb,
    /// Empty for the core group.
    pub group: Str,
    /// Such as `v1`.
    pub version: Str,
    /// The plural name, such as `persistentvolumeclaims`.
    pub resource: Str,
    /// Empty for resources without namespaces.
    pub namespace: Str,
    /// The name of the object.
    pub name: Str,
    /// Such as `status` or `binding`; empty for the object itself.
    pub subresource: Str,
    /// The object, or the patch; `None` where the verb takes none.
    pub body: Option<Value>,
}

/// What to do with the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read it.
    Get,
    /// Make it.
    Create,
    /// Replace it.
    Update,
    /// Change it by a list of operations (RFC 6902).
    JsonPatch,
    /// Change it by a part of it (RFC 7386).
    MergePatch,
    /// Change it by a part of it, lists merged by their keys.
    StrategicMergePatch,
    /// Delete it.
    Delete,
}

/// What a resumable point is told when it is called.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// First call of this attempt.
    Start,
    /// The answer to the last [`Step::Call`]: the object, or the error's status code and message.
    Reply(Result<&'a Value, (u16, &'a str)>),
    /// An object named in the last [`Step::Wait`] changed; `None` when it is gone.
    Changed(Option<&'a Value>),
    /// What extenders left of the candidates of the last [`Step::AskExtenders`], or the error that ends the search.
    Extended(Result<&'a [Candidate], &'a str>),
    /// The deadline of the last [`Step::Wait`] passed.
    Deadline,
    /// The attempt was given up; undo what must be undone and answer [`Step::Done`].
    Cancelled,
}

/// What a resumable point (PreBind, Bind, PostFilter) answers.
#[derive(Clone, Debug)]
pub enum Step<T> {
    /// Make this call and come back with its answer.
    Call(ApiRequest),
    /// Come back when one of these objects changes, or when this much time has passed.
    Wait {
        /// Whose changes count.
        on: Vec<ObjectRef>,
        /// How long at most.
        timeout: std::time::Duration,
    },
    /// From PostFilter: let the extenders that have a say in preemption look at these candidates, and come back with what is
    /// left. Only where [`crate::Unfit::extenders`] says that there is one.
    AskExtenders(Vec<Candidate>),
    /// Finished.
    Done(T),
    /// The attempt failed.
    Fail(crate::result::Rejection),
}

/// Names one object.
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
