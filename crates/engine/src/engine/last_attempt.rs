//! Why a pod's last attempt failed, as long as the pod has no node: the state at that time, not what an evaluation would find now.
//!
//! A record is small whatever the cluster's size: nodes that were rejected for one reason are a number and a few names, and pods of
//! one template that failed in the same world share them, as they share the diagnosis.

use loadmaster_api::{Str, Timestamp};
use serde::{Deserialize, Serialize};

use super::attempt_failure::AttemptFailure;
use super::nominator::Nomination;
use super::observation::AttemptOutcome;
use super::rejection_summary::{AttemptDetails, RejectedNodes};
use crate::explain::CowName;

/// Maximal length of a message in a record, in bytes.
const MESSAGE_LEN_MAX: usize = 4096;

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastAttempt {
    /// When it ended.
    pub time: String,
    /// 1 for the first one.
    pub attempt: u32,
    /// `unschedulable` or `error`.
    pub result: CowName,
    /// The message of the FailedScheduling event, truncated to 4 KiB.
    pub message: String,
    /// Nodes by reason, most nodes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected_nodes: Vec<RejectedNodes>,
    /// Number of nodes with further reasons that are not listed.
    #[serde(default, rename = "otherNodes", skip_serializing_if = "is_zero")]
    pub n_other_nodes: usize,
    /// The node that preemption nominated; empty if none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nominated_node: String,
    /// Victims of preemption, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<String>,
    /// Number of victims.
    #[serde(default, rename = "allVictims", skip_serializing_if = "is_zero")]
    pub n_victims: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
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
    pub(super) fn reasons(
        &self,
    ) -> Option<std::sync::Arc<super::rejection_summary::RejectionSummary>> {
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
