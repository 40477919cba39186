//! Pods that are assumed on a node, and their binding cycles.

use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Str;
use loadmaster_framework::extension_points::PreBindPreFlight;
use loadmaster_framework::{CycleState, PodInfo};

use crate::queue::{ProfileIdx, QueuedPod};
use crate::time::MonoTime;

/// A pod for which this engine has chosen a node.
pub(super) struct AssumedPod {
    pub pod: Arc<PodInfo>,
    pub profile_idx: ProfileIdx,
    /// The serial number of its binding cycle: later cycles have greater numbers.
    pub serial: u64,
    /// Its binding cycle; `None` once it is bound and the watch has not confirmed it yet.
    pub binding: Option<Box<Binding>>,
    /// The watch says that it has a node.
    pub confirmed: bool,
    /// It was deleted meanwhile, and its resources are already released.
    pub forgotten: bool,
    /// A pod of another scheduler took its resources, and an Event reported that.
    pub conflict_reported: bool,
}

impl AssumedPod {
    pub fn waits_on_permit(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| binding.stage.waits_on_permit())
    }
}

/// One binding cycle.
pub(super) struct Binding {
    /// Distinguishes replies to this cycle from late replies to an earlier cycle of the pod.
    pub serial: u64,
    pub queued: QueuedPod,
    pub node: Str,
    pub cycle: CycleState,
    pub stage: Stage,
    /// The PreBindPreFlight result of each PreBind plugin, in order.
    pub pre_flights: Vec<PreBindPreFlight>,
    /// It counts against the bind window.
    pub in_window: bool,
    /// The running plugins have been reported as stuck.
    pub is_stuck: bool,
    /// It failed while the world was frozen, and ends when the suspended attempt resumes.
    pub is_failing: bool,
    /// Another scheduler bound the pod, and the conflict has been reported.
    pub conflict_reported: bool,
    pub began: MonoTime,
    /// When the running plugins were started.
    pub started: MonoTime,
}

/// The stage of a binding cycle.
pub(super) enum Stage {
    Permit {
        waits: Vec<PermitWait>,
        since: MonoTime,
    },
    /// PreBind plugins that are running, and the first one that has not started.
    PreBind {
        running: Vec<usize>,
        next: usize,
    },
    /// The running plugin; `None` for an extender.
    Bind {
        member: Option<usize>,
    },
}

impl Stage {
    pub fn waits_on_permit(&self) -> bool {
        matches!(self, Stage::Permit { waits, .. } if !waits.is_empty())
    }
}

/// A Permit plugin that the pod waits for.
pub(super) struct PermitWait {
    pub plugin: usize,
    pub name: &'static str,
    pub time: Duration,
    pub until: MonoTime,
}
