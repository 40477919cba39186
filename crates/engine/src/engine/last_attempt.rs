//! Why a pod's last attempt failed, as long as the pod has no node: the state at that time, not what an evaluation would find now.
//!
//! A record is small whatever the cluster's size: nodes that were rejected for one reason are a number and a few names, and pods of
//! one template that failed in the same world share them, as they share the diagnosis.

use std::borrow::Cow;
use std::sync::Arc;

use loadmaster_api::{Str, Timestamp};
use loadmaster_framework::{NodeRow, PodInfo, World};

use super::effect::AttemptOutcome;
use super::nominator::Nomination;
use super::scheduling_failure::AttemptFailure;
use super::scheduling_state::{LastAttempt, RejectedNodes};
use crate::diagnosis::excluded_node_reason;
use crate::evaluate::{Evaluation, FilterResult, PluginRejection};
use crate::explain::{self, EXCLUDED_BY_PRE_FILTER, Status};

/// Maximal number of reasons in a record; nodes with further reasons are only counted.
const N_REASONS_MAX: usize = 16;
/// Maximal number of node names per reason, and of names of victims.
const N_NAMES_MAX: usize = 3;
/// Maximal length of a message in a record, in bytes.
const MESSAGE_LEN_MAX: usize = 4096;

/// Nodes by the reason of their rejection, most nodes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RejectionSummary {
    by_reason: Vec<RejectedNodes>,
    /// Number of nodes with reasons that are not in `by_reason`.
    n_others: usize,
}

/// Details of a failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AttemptDetails {
    /// `None` when no node or only one was evaluated.
    reasons: Option<Arc<RejectionSummary>>,
    /// Victims of preemption: the first few names, and how many there are.
    victims: Vec<String>,
    n_victims: usize,
}

/// The record of a failed attempt.
pub(crate) struct FailedAttempt {
    at: Timestamp,
    attempt: u32,
    outcome: AttemptOutcome,
    message: Box<str>,
    nominated_node: Str,
    details: AttemptDetails,
}

impl RejectionSummary {
    /// Summarizes an evaluation without a feasible node.
    pub fn from_evaluation(world: &World, evaluation: &Evaluation) -> RejectionSummary {
        if let Some(rejected) = &evaluation.pre_filter_rejection {
            let mut everywhere = Group::new(Some(rejected));
            world.nodes().rows().for_each(|row| everywhere.add(row));
            return RejectionSummary {
                by_reason: vec![everywhere.to_rejected_nodes(world, evaluation)],
                n_others: 0,
            };
        }
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut n_others = 0;
        for node in &evaluation.nodes {
            let rejected = match &node.filter_result {
                FilterResult::Feasible => continue,
                FilterResult::Excluded => None,
                FilterResult::Rejected(rejected) => Some(rejected),
            };
            match groups.iter().position(|group| group.rejected == rejected) {
                Some(at) => groups[at].add(node.row),
                None if groups.len() == N_REASONS_MAX => n_others += 1,
                None => {
                    let mut group = Group::new(rejected);
                    group.add(node.row);
                    groups.push(group);
                }
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.n_nodes));
        let by_reason =
            groups.iter().map(|group| group.to_rejected_nodes(world, evaluation)).collect();
        RejectionSummary { by_reason, n_others }
    }
}

/// Nodes with the same reason; without a reason, PreFilter excluded them.
struct Group<'a> {
    rejected: Option<&'a PluginRejection>,
    n_nodes: usize,
    examples: Vec<NodeRow>,
}

impl<'a> Group<'a> {
    fn new(rejected: Option<&'a PluginRejection>) -> Group<'a> {
        Group { rejected, n_nodes: 0, examples: Vec::new() }
    }

    fn add(&mut self, row: NodeRow) {
        self.n_nodes += 1;
        if self.examples.len() < N_NAMES_MAX {
            self.examples.push(row);
        }
    }

    fn to_rejected_nodes(&self, world: &World, evaluation: &Evaluation) -> RejectedNodes {
        let status = self.rejected.map_or_else(
            || Status {
                code: Cow::Borrowed(EXCLUDED_BY_PRE_FILTER),
                plugin: None,
                reasons: vec![excluded_node_reason(evaluation)],
            },
            explain::status,
        );
        let names = self.examples.iter().filter_map(|row| world.node(*row));
        RejectedNodes {
            status,
            n_nodes: self.n_nodes,
            examples: names.map(|node| node.name().to_owned()).collect(),
        }
    }
}

impl AttemptDetails {
    pub fn from_rejection_summary(reasons: &Arc<RejectionSummary>) -> AttemptDetails {
        AttemptDetails { reasons: Some(reasons.clone()), ..AttemptDetails::default() }
    }

    /// Sets the victims that preemption chose.
    pub fn set_victims(&mut self, victims: &[Arc<PodInfo>]) {
        self.n_victims = victims.len();
        self.victims = victims.iter().take(N_NAMES_MAX).map(|victim| victim.full_name()).collect();
    }
}

impl FailedAttempt {
    /// The message of its FailedScheduling Event.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn new(
        at: Timestamp,
        attempt: u32,
        failed: &AttemptFailure,
        nomination: &Nomination,
    ) -> FailedAttempt {
        let end = failed.message.floor_char_boundary(MESSAGE_LEN_MAX);
        FailedAttempt {
            at,
            attempt,
            outcome: failed.outcome,
            message: failed.message[..end].into(),
            nominated_node: nomination.new_status_value().unwrap_or_default(),
            details: failed.details.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn reasons(&self) -> Option<Arc<RejectionSummary>> {
        self.details.reasons.clone()
    }

    pub(super) fn to_last_attempt(&self) -> LastAttempt {
        let AttemptDetails { reasons, victims, n_victims } = &self.details;
        let reasons = reasons.as_deref().cloned().unwrap_or_default();
        LastAttempt {
            time: self.at.to_string(),
            attempt: self.attempt,
            result: self.outcome.name().into(),
            message: self.message.to_string(),
            rejected_nodes: reasons.by_reason,
            n_other_nodes: reasons.n_others,
            nominated_node: self.nominated_node.to_string(),
            victims: victims.clone(),
            n_victims: *n_victims,
        }
    }
}
