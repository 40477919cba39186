//! What was decided about a pod.

use loadmaster_framework::NodeRow;

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This node is selected, one of those with this total.
    Selected { row: NodeRow, total: i64 },
    /// No node is feasible; [`Scheduler::evaluate_for_diagnosis`](crate::Scheduler::evaluate_for_diagnosis) says why.
    Unschedulable,
    /// A plugin failed.
    Failed(String),
}
