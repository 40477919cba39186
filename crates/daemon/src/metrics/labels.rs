//! Values of labels, as kube-scheduler spells them.

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// Bound.
    Scheduled,
    /// No node.
    Unschedulable,
    /// Something failed.
    Error,
    /// A group waits for its victims; of groups only.
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

/// Where a pending pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// activeQ.
    Active,
    /// backoffQ.
    Backoff,
    /// unschedulablePods, tried.
    Unschedulable,
    /// Held by PreEnqueue.
    Gated,
}

impl Queue {
    pub(super) const ALL: [Queue; 4] =
        [Queue::Active, Queue::Backoff, Queue::Unschedulable, Queue::Gated];

    pub(super) fn label(self) -> &'static str {
        match self {
            Queue::Active => "active",
            Queue::Backoff => "backoff",
            Queue::Unschedulable => "unschedulable",
            Queue::Gated => "gated",
        }
    }
}

/// What the cache holds.
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
pub enum PluginPoint {
    /// PreFilter.
    PreFilter,
    /// Filter.
    Filter,
    /// PreScore.
    PreScore,
    /// Score.
    Score,
}

impl PluginPoint {
    pub(super) fn label(self) -> &'static str {
        match self {
            PluginPoint::PreFilter => "PreFilter",
            PluginPoint::Filter => "Filter",
            PluginPoint::PreScore => "PreScore",
            PluginPoint::Score => "Score",
        }
    }
}

/// How a call to the API server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCallResult {
    /// It was done.
    Success,
    /// It was not.
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
