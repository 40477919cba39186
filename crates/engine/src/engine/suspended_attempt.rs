//! The state of an attempt that waits for an extender.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_extender::{ExtenderScores, FilterChain, NodeFailure, PreemptChain};
use loadmaster_framework::NodeRow;

use super::effect::CallId;
use super::post_filter::PostFilterRun;
use crate::queue::QueuedPod;
use crate::scheduler::FeasibleNodes;
use crate::time::MonoTime;

/// An attempt that waits for an extender.
pub(super) enum SuspendedAttempt {
    Filter {
        attempt: Attempt,
        filter_chain: FilterChain,
        feasible: Feasible,
        pending: PendingExtenderCall,
    },
    Prioritize {
        attempt: Attempt,
        totals: Totals,
        scores: ExtenderScores,
        pending: Vec<PendingExtenderCall>,
    },
    Preempt {
        post_filter_run: Box<PostFilterRun>,
        preempt_chain: PreemptChain,
        pending: PendingExtenderCall,
    },
}

/// State of an attempt that does not change while extenders are called.
pub(super) struct Attempt {
    pub queued: QueuedPod,
    /// When it began, by the stopwatch.
    pub began: u64,
    /// Nodes that extenders have rejected so far.
    pub failures: BTreeMap<String, NodeFailure>,
}

/// The nodes that are sent to extenders.
pub(super) enum Feasible {
    /// The nominated node alone.
    Nominated(Arc<FeasibleNodes>),
    /// All nodes that pass the plugins.
    All(Arc<FeasibleNodes>),
}

impl Feasible {
    /// The nodes, whichever they are.
    pub fn nodes(&self) -> &Arc<FeasibleNodes> {
        match self {
            Feasible::Nominated(nodes) | Feasible::All(nodes) => nodes,
        }
    }
}

/// The plugins' total scores of the nodes that extenders score.
pub(super) enum Totals {
    /// By row.
    Rows(Vec<(NodeRow, i64)>),
    /// For all feasible nodes, read from the score index when needed: the world is frozen meanwhile.
    Index(Arc<FeasibleNodes>),
}

/// A call in flight.
pub(super) struct PendingExtenderCall {
    pub call: CallId,
    pub extender: usize,
    pub until: MonoTime,
}

impl SuspendedAttempt {
    /// The pod of the attempt.
    pub fn queued_pod(&self) -> &QueuedPod {
        match self {
            SuspendedAttempt::Filter { attempt, .. }
            | SuspendedAttempt::Prioritize { attempt, .. } => &attempt.queued,
            SuspendedAttempt::Preempt { post_filter_run, .. } => &post_filter_run.queued,
        }
    }

    /// Indices of the extenders with a call in flight.
    pub fn awaited_extenders(&self) -> impl Iterator<Item = usize> {
        self.pending().iter().map(|pending| pending.extender)
    }

    /// The calls in flight.
    pub fn pending(&self) -> &[PendingExtenderCall] {
        match self {
            SuspendedAttempt::Filter { pending, .. }
            | SuspendedAttempt::Preempt { pending, .. } => std::slice::from_ref(pending),
            SuspendedAttempt::Prioritize { pending, .. } => pending,
        }
    }
}
