//! Observations: what metrics and logs show of the engine's work.

use std::fmt;

use loadmaster_api::Str;
use loadmaster_framework::plugin_log::PluginLogLine;

use super::shadow_comparison::ShadowComparison;
use crate::guard::{ExtensionPoint, PluginExecutionDuration, PluginPanic, PluginRef};
use crate::queue::{EnqueueCause, ProfileIdx};

/// Input for metrics and logs. Durations are in nanoseconds: those within one call to the engine are measured with
/// [`EngineOptions::stopwatch`](super::EngineOptions::stopwatch), longer ones with the time that is passed to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// An attempt ended.
    Attempt { profile_idx: ProfileIdx, outcome: AttemptOutcome, nanos: u64 },
    /// Filtering and scoring of an attempt, with PostFilter.
    Algorithm { nanos: u64 },
    /// A pod was bound: the number of attempts, and the time since the first attempt began.
    Bound { attempts: u32, nanos: u64, after_flush: bool },
    /// How long a pod waited on Permit, and whether it was allowed.
    PermitWait { allowed: bool, nanos: u64 },
    /// A PostFilter plugin finished: whether that counts as a preemption attempt, and how many victims it chose (`None`: preemption does not
    /// help).
    Preemption { counts: bool, victims: Option<usize> },
    /// An event was handled: upstream's `event_handling_duration_seconds`.
    EventHandled { event: EnqueueCause, nanos: u64 },
    /// Another scheduler bound a pod of our profiles ([`EngineOptions::shadow`](super::EngineOptions::shadow)).
    ShadowCompared(Box<ShadowComparison>),
    /// A plugin has been running for one pod for a long time.
    PluginStuck(Box<StuckPlugin>),
    /// Another scheduler bound a pod, or took resources of a node, that we had chosen.
    Conflict(Box<Conflict>),
    /// Durations of plugin calls.
    PluginExecutions(Vec<PluginExecutionDuration>),
    /// A plugin panicked, and its state was reset.
    PluginPanicked(Box<PluginPanic>),
    /// Log lines of plugins up to [`Engine::set_log_verbosity`](super::Engine::set_log_verbosity).
    PluginLogs(Vec<PluginLogLine>),
    /// An error that no pod's Event or condition reports.
    InternalError { message: String },
}

/// How an attempt ended, as upstream's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl AttemptOutcome {
    /// The value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            AttemptOutcome::Scheduled => "scheduled",
            AttemptOutcome::Unschedulable => "unschedulable",
            AttemptOutcome::Error => "error",
        }
    }
}

/// The kind of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// Our bind was rejected: another scheduler's came first.
    Bind,
    /// Another scheduler bound the pod while it was pending or assumed here.
    Pod,
    /// The resources of a node are insufficient for another scheduler's pod and assumed_pods together.
    Resources,
}

impl ConflictKind {
    /// The value of the label `kind`.
    pub fn name(self) -> &'static str {
        match self {
            ConflictKind::Bind => "bind",
            ConflictKind::Pod => "pod",
            ConflictKind::Resources => "resources",
        }
    }
}

/// A conflict with another scheduler, which bound its pod first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub kind: ConflictKind,
    /// The schedulerName of our profile.
    pub profile: Str,
    /// Our pod, `namespace/name`.
    pub pod: String,
    /// The node on which it was assumed; empty if none.
    pub node: Str,
    /// The node to which the pod is bound now; for a conflict on resources, the same node.
    pub bound_to: Str,
    /// The pod that took the resources.
    pub other: Option<ConflictingPod>,
}

/// A pod that another scheduler bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictingPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its schedulerName.
    pub scheduler: Str,
    /// The insufficient resource, or `pods`.
    pub resource: Str,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { pod, node, bound_to, .. } = self;
        match &self.other {
            Some(ConflictingPod { pod: other, scheduler, resource }) => write!(
                f,
                "node {node} has insufficient {resource} for pod {pod}, which is assumed on it: pod {other} of scheduler {scheduler} was bound first"
            ),
            None if node.is_empty() => write!(
                f,
                "pod {pod} was bound to node {bound_to} by another scheduler while it was pending"
            ),
            None => write!(
                f,
                "pod {pod} was bound to node {bound_to} by another scheduler while it was assumed on node {node}"
            ),
        }
    }
}

/// A plugin that has been running for one pod for a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckPlugin {
    pub plugin: PluginRef,
    pub extension_point: ExtensionPoint,
    /// `namespace/name`.
    pub pod: String,
    /// The node on which the pod is assumed; empty if there is none.
    pub node: Str,
}
