//! Label values, equal to kube-scheduler's.

/// The result of a scheduling attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// Bound.
    Scheduled,
    /// No feasible node.
    Unschedulable,
    /// An internal error.
    Error,
    /// A pod group waits for the eviction of its victims; only for pod groups.
    WaitingOnPreemption,
}

impl AttemptResult {
    pub(super) fn label(self) -> &'static str {
        match self {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::Error => "error",
            AttemptResult::WaitingOnPreemption => "waiting_on_preemption",
        }
    }
}

/// The queue of a pending pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLabel {
    /// activeQ.
    Active,
    /// backoffQ.
    Backoff,
    /// unschedulablePods, attempted before.
    Unschedulable,
    /// Gated by a PreEnqueue plugin.
    Gated,
}

impl QueueLabel {
    pub(super) const ALL: [QueueLabel; 4] =
        [QueueLabel::Active, QueueLabel::Backoff, QueueLabel::Unschedulable, QueueLabel::Gated];

    pub(super) fn label(self) -> &'static str {
        match self {
            QueueLabel::Active => "active",
            QueueLabel::Backoff => "backoff",
            QueueLabel::Unschedulable => "unschedulable",
            QueueLabel::Gated => "gated",
        }
    }
}

/// The kinds of cached items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Nodes.
    Nodes,
    /// Assigned pods, assumed ones included.
    Pods,
    /// Assumed pods.
    AssumedPods,
}

impl CacheKind {
    pub(super) const ALL: [CacheKind; 3] =
        [CacheKind::Nodes, CacheKind::Pods, CacheKind::AssumedPods];

    pub(super) fn label(self) -> &'static str {
        match self {
            CacheKind::Nodes => "nodes",
            CacheKind::Pods => "pods",
            CacheKind::AssumedPods => "assumed_pods",
        }
    }
}

/// The extension points at which evaluations of single plugins are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluatedExtensionPoint {
    /// PreFilter.
    PreFilter,
    /// Filter.
    Filter,
    /// PreScore.
    PreScore,
    /// Score.
    Score,
}

impl EvaluatedExtensionPoint {
    pub(super) fn label(self) -> &'static str {
        match self {
            EvaluatedExtensionPoint::PreFilter => "PreFilter",
            EvaluatedExtensionPoint::Filter => "Filter",
            EvaluatedExtensionPoint::PreScore => "PreScore",
            EvaluatedExtensionPoint::Score => "Score",
        }
    }
}

/// The result of a call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCallResult {
    /// It succeeded.
    Success,
    /// It failed.
    Error,
}

impl ApiCallResult {
    pub(super) fn label(self) -> &'static str {
        match self {
            ApiCallResult::Success => "success",
            ApiCallResult::Error => "error",
        }
    }
}

/// The result of a binding that was sent to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindResult {
    /// The pod is bound.
    Success,
    /// The pod was deleted or bound elsewhere meanwhile.
    Conflict,
    /// It failed for another reason.
    Error,
}

impl BindResult {
    pub(super) const ALL: [BindResult; 3] =
        [BindResult::Success, BindResult::Conflict, BindResult::Error];

    pub(super) fn label(self) -> &'static str {
        match self {
            BindResult::Success => "success",
            BindResult::Conflict => "conflict",
            BindResult::Error => "error",
        }
    }
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventResult {
    /// It was written.
    Written,
    /// The queue was full.
    Dropped,
    /// The API server refused it or was not reached.
    Error,
}

impl EventResult {
    pub(super) const ALL: [EventResult; 3] =
        [EventResult::Written, EventResult::Dropped, EventResult::Error];

    pub(super) fn label(self) -> &'static str {
        match self {
            EventResult::Written => "written",
            EventResult::Dropped => "dropped",
            EventResult::Error => "error",
        }
    }
}
