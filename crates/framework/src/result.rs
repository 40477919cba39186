//! Results of the extension points, and their conversion to upstream's status codes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use loadmaster_api::Str;
use loadmaster_stdx::Set;
use smallvec::SmallVec;

/// Upstream's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The plugin succeeded; for Filter: the node is feasible.
    Success,
    /// A plugin failed.
    Error,
    /// Rejected; preemption may help.
    Unschedulable,
    /// Rejected; preemption cannot help.
    UnschedulableAndUnresolvable,
    /// The pod waits at Permit.
    Wait,
    /// The plugin has nothing to do for this pod.
    Skip,
    /// Rejected until an external component acts.
    Pending,
}

impl Code {
    /// Upstream's name, used in metrics and in `explain`.
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

/// Why a node or a pod was rejected. A value; its text is formatted only when it is read, and equals upstream's byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A fixed text.
    Text(&'static str),
    /// `Insufficient <resource>`.
    Insufficient(Str),
    /// A text that was formatted for this rejection.
    Owned(Box<str>),
    /// A text that a plugin formatted once and shares, because a Filter may reject thousands of nodes per pod.
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

/// A plugin rejected a pod or a node, or failed (upstream's `Status`). A rejection is a decision, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Preemption may help (`Unschedulable`).
    Unschedulable(Reasons),
    /// Preemption cannot help (`UnschedulableAndUnresolvable`).
    Unresolvable(Reasons),
    /// The pod waits for an external component; when a hint then queues it, it skips its backoff (`Pending`).
    Pending(Reasons),
    /// The plugin failed: the attempt ends with an error (`Error`).
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
        let mut reasons = self.reasons();
        match reasons.as_mut_slice() {
            [only] => std::mem::take(only),
            several => several.join(", "),
        }
    }
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Rejection::Failed(failure)
    }
}

/// A plugin failed; the text is its error message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub Cow<'static, str>);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Failure(text.into())
    }
}

/// Upstream's `FitError` message for an unschedulable pod, from the number of nodes per reason:
/// `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`
pub fn nodes_unavailable_message(n_nodes: usize, counts: &BTreeMap<String, usize>) -> String {
    let head = format!("0/{n_nodes} nodes are available:");
    if counts.len() == 1
        && let Some((reason, n)) = counts.first_key_value()
    {
        return format!("{head} {n} {reason}.");
    }
    // Upstream sorts the texts with their numbers, so that "10 x" comes before "2 y".
    let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.sort_unstable();
    if parts.is_empty() { head } else { format!("{head} {}.", parts.join(", ")) }
}

/// The result of PreFilter when it does not reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreFilterResult {
    /// All nodes are candidates.
    All,
    /// Only the nodes with these names are candidates.
    Nodes(Set<Str>),
    /// The plugin's Filter is not called for this pod in this cycle.
    Skip,
}

/// The result of PreScore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreScoreResult {
    /// Score will be called.
    Ready,
    /// The plugin's Score is not called for this pod in this cycle.
    Skip,
}

/// The result of Permit when it does not reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitResult {
    /// The binding cycle continues.
    Allow,
    /// The pod waits until it is allowed or rejected; after this timeout (at most 15 minutes) it is rejected.
    Wait(std::time::Duration),
}
