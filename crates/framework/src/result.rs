//! What the extension points answer: one result type a point, and the one conversion to upstream's status codes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use loadmaster_api::Str;
use loadmaster_stdx::Set;
use smallvec::SmallVec;

/// Upstream's status codes, spelled as upstream spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Go on; of a node: it is feasible.
    Success,
    /// A plugin failed.
    Error,
    /// Turned down; preemption may help.
    Unschedulable,
    /// Turned down; preemption cannot help.
    UnschedulableAndUnresolvable,
    /// Held by Permit.
    Wait,
    /// Nothing to do for this pod.
    Skip,
    /// Turned down until somebody outside does something.
    Pending,
}

impl Code {
    /// The name on the wire, in metrics and in `explain`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Success => "Success",
            Code::Error => "Error",
            Code::Unschedulable => "Unschedulable",
            Code::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
            Code::Wait => "Wait",
            Code::Skip => "Skip",
            Code::Pending => "Pending",
        }
    }
}

/// Why a node or a pod was turned down. A value; its text, which equals upstream's byte for byte, is made when
/// somebody reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A fixed text.
    Text(&'static str),
    /// `Insufficient <resource>`.
    Insufficient(Str),
    /// A text with values in it, made for this rejection.
    Owned(Box<str>),
    /// A text that a plugin made once: a Filter may refuse thousands of nodes a pod.
    Shared(Str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Text(text) => f.write_str(text),
            Reason::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Reason::Owned(text) => f.write_str(text),
            Reason::Shared(text) => f.write_str(text),
        }
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Reason {
        Reason::Text(text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        Reason::Owned(text.into())
    }
}

impl From<Str> for Reason {
    fn from(text: Str) -> Reason {
        Reason::Shared(text)
    }
}

/// One or more reasons, in the order in which upstream lists them.
pub type Reasons = SmallVec<[Reason; 1]>;

/// A plugin turned a pod or a node down, or failed. A rejection is a decision, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Preemption may help (`Unschedulable`).
    Unschedulable(Reasons),
    /// Preemption cannot help (`UnschedulableAndUnresolvable`).
    Unresolvable(Reasons),
    /// The pod waits for something outside; a hint then skips its backoff (`Pending`).
    Pending(Reasons),
    /// The plugin could not answer: the attempt ends with an error.
    Failed(Failure),
}

impl Rejection {
    /// [`Rejection::Unschedulable`] with one reason.
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Rejection::Unschedulable(SmallVec::from_buf([reason.into()]))
    }

    /// [`Rejection::Unresolvable`] with one reason.
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Rejection::Unresolvable(SmallVec::from_buf([reason.into()]))
    }

    /// Upstream's status code.
    pub fn code(&self) -> Code {
        match self {
            Rejection::Unschedulable(_) => Code::Unschedulable,
            Rejection::Unresolvable(_) => Code::UnschedulableAndUnresolvable,
            Rejection::Pending(_) => Code::Pending,
            Rejection::Failed(_) => Code::Error,
        }
    }

    /// The texts, in order.
    pub fn reasons(&self) -> Vec<String> {
        match self {
            Rejection::Unschedulable(all)
            | Rejection::Unresolvable(all)
            | Rejection::Pending(all) => all.iter().map(Reason::to_string).collect(),
            Rejection::Failed(failure) => vec![failure.to_string()],
        }
    }

    /// Upstream's status message: the reasons joined by `", "`.
    pub fn message(&self) -> String {
        self.reasons().join(", ")
    }
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Rejection::Failed(failure)
    }
}

/// A plugin could not do its work; the text says what went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub Cow<'static, str>);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Failure(text.into())
    }
}

/// Upstream's text for a pod that fits nowhere, from the number of nodes that gave each reason:
/// `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`
pub fn nodes_are_unavailable(n_nodes: usize, counts: &BTreeMap<String, usize>) -> String {
    let head = format!("0/{n_nodes} nodes are available:");
    // Upstream sorts the texts with their numbers, so that "10 x" comes before "2 y".
    let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.sort_unstable();
    if parts.is_empty() { head } else { format!("{head} {}.", parts.join(", ")) }
}

/// What PreFilter answers when it does not reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreFiltered {
    /// Every node may be asked.
    All,
    /// Only these nodes may be asked.
    Nodes(Set<Str>),
    /// The plugin has nothing to say about this pod: its Filter is not called in this cycle.
    Skip,
}

/// What PreScore answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreScored {
    /// Score will be called.
    Ready,
    /// The plugin has no preference for this pod: its Score is not called in this cycle.
    Skip,
}

/// What Permit answers when it does not reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// Go on to bind.
    Allow,
    /// Hold the pod until it is allowed or rejected, or until this much time has passed (at most 15 minutes).
    Wait(std::time::Duration),
}
