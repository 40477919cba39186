//! Why an attempt failed.

use std::sync::Arc;

use loadmaster_framework::{CycleState, Failure, Rejection};

use super::node_filter_cache::NodeFilterId;
use super::observation::AttemptOutcome;
use super::rejection_summary::{AttemptDetails, RejectionSummary};
use crate::diagnosis::{self, Diagnosis};
use crate::evaluate::PluginRejection;
use crate::profile::Profile;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptFailure {
    /// `Unschedulable` when a plugin rejected the pod, `Error` after an error.
    pub outcome: AttemptOutcome,
    pub message: String,
    /// Plugins that rejected it, by index. If empty, the pod is retried after its backoff.
    pub unschedulable: Box<[usize]>,
    /// Plugins that returned Pending.
    pub pending: Box<[usize]>,
    /// The uid of a pod that the release of the failed pod's resources does not requeue.
    pub except: Option<Box<str>>,
    /// Details for the record of the attempt.
    pub details: AttemptDetails,
}

impl AttemptFailure {
    pub fn error(message: impl Into<String>) -> AttemptFailure {
        AttemptFailure {
            outcome: AttemptOutcome::Error,
            message: message.into(),
            unschedulable: Box::default(),
            pending: Box::default(),
            except: None,
            details: AttemptDetails::default(),
        }
    }

    /// No node is feasible (upstream's `FitError`).
    pub fn fit_error(unschedulable: &UnschedulableAttempt) -> AttemptFailure {
        let diagnosis = &unschedulable.diagnosis;
        AttemptFailure {
            outcome: AttemptOutcome::Unschedulable,
            message: diagnosis.message.clone(),
            unschedulable: diagnosis.unschedulable_plugins.as_slice().into(),
            pending: diagnosis.pending_plugins.as_slice().into(),
            except: None,
            details: AttemptDetails::from_rejection_summary(&unschedulable.reasons),
        }
    }

    /// A plugin rejected the only node that was evaluated.
    pub fn single_node_rejected(plugin: Option<usize>, rejection: &Rejection) -> AttemptFailure {
        let mut failed = AttemptFailure {
            outcome: AttemptOutcome::Unschedulable,
            ..AttemptFailure::error(diagnosis::single_node_message(rejection))
        };
        match rejection {
            Rejection::Pending(_) => failed.pending = plugin.into_iter().collect(),
            _ => failed.unschedulable = plugin.into_iter().collect(),
        }
        failed
    }

    /// A plugin rejected the pod in Reserve or Permit.
    pub fn rejected_by_reserve_or_permit(
        point: &str,
        name: &str,
        plugin: usize,
        rejection: &Rejection,
    ) -> AttemptFailure {
        match rejection {
            Rejection::Failed(Failure(text)) => {
                AttemptFailure::error(format!("running {point} plugin {name:?}: {text}"))
            }
            rejection => AttemptFailure::single_node_rejected(Some(plugin), rejection),
        }
    }

    /// A plugin rejected the pod in PreBind or Bind: in any case the pod is retried after its backoff.
    pub fn binding_error(point: &str, name: &str, rejection: Rejection) -> AttemptFailure {
        match rejection {
            Rejection::Failed(Failure(text)) => {
                AttemptFailure::error(format!("running {point} plugin {name:?}: {text}"))
            }
            rejection => AttemptFailure {
                outcome: AttemptOutcome::Unschedulable,
                ..AttemptFailure::error(rejection.message())
            },
        }
    }

    /// A plugin accepted the node in the decision and rejected it when it ran again.
    pub fn rejected_on_rerun(profile: &Profile, rejected: &PluginRejection) -> AttemptFailure {
        let named = |name: &str| profile.plugins.iter().position(|plugin| plugin.name == name);
        match &rejected.rejection {
            Rejection::Failed(failure) => AttemptFailure::error(failure.to_string()),
            rejection => {
                AttemptFailure::single_node_rejected(rejected.plugin.and_then(named), rejection)
            }
        }
    }
}

/// An attempt that found no feasible node.
pub(super) struct UnschedulableAttempt {
    pub cycle: CycleState,
    /// Indexes of plugins whose Filter is not called in this cycle.
    pub skipped: Vec<usize>,
    /// The pods for which the results of Filter are cached.
    pub node_filter_id: Option<NodeFilterId>,
    pub diagnosis: Arc<Diagnosis>,
    pub reasons: Arc<RejectionSummary>,
}
