//! What was decided about a pod.

use loadmaster_framework::NodeRow;

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This node is selected. `n_ties` nodes have this total; `None` if they were not counted, because a score index need not know.
    Selected { row: NodeRow, total: i64, n_ties: Option<u64> },
    /// No node is feasible; [`Scheduler::evaluate_for_diagnosis`](crate::Scheduler::evaluate_for_diagnosis) says why.
    Unschedulable,
    /// A plugin failed.
    Failed(String),
}
