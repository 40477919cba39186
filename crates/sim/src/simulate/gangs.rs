//! Gangs in a simulation: PodGroups, their users, and what the plugin Coscheduling promises about them.
//!
//! | module | |
//! | --- | --- |
//! | `workload` | users: pods of groups, and PodGroups that come, change and go |
//! | `model` | the members that are reserved, wait at Permit or are allowed, and what must hold of them |
//! | `settled` | whether a member may be pending when everything has settled |

mod model;
mod settled;
mod workload;

use std::sync::LazyLock;
use std::time::Duration;

use loadmaster_api::Pod;
use loadmaster_engine::engine::EngineEvent;
use loadmaster_scheduler_plugins::pod_group::{GroupKey, old_pod_groups, pod_groups};
use serde_json::Value;

use super::InjectedBug;
use crate::fake_api_server::WatchedKind;

pub(super) use model::GangModel;
pub(super) use settled::{is_partly_bound, may_be_pending};
pub(super) use workload::GangWorkload;

/// Coscheduling's `permitWaitingTimeSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Coscheduling's `podGroupRejectPercentage`.
const REJECT_PERCENTAGE: usize = 10;

/// The current kind of PodGroups, and the older one.
pub(super) fn kinds() -> &'static [WatchedKind; 2] {
    static KINDS: LazyLock<[WatchedKind; 2]> =
        LazyLock::new(|| [pod_groups(), old_pod_groups()].map(WatchedKind::Other));
    &KINDS
}

fn kind(is_old: bool) -> &'static WatchedKind {
    &kinds()[usize::from(is_old)]
}

/// Whether the injected bug drops an event of a PodGroup.
pub(super) fn is_lost(bug: Option<InjectedBug>, event: &EngineEvent) -> bool {
    let EngineEvent::ObjectChanged { object, value } = event else { return false };
    let is_dropped = match bug {
        Some(InjectedBug::LostPodGroup) => value.is_some(),
        Some(InjectedBug::LostPodGroupDelete) => value.is_none(),
        _ => false,
    };
    is_dropped && object.resource == "podgroups"
}

/// What the engine receives instead of an event of a PodGroup.
pub(super) fn altered_event(bug: Option<InjectedBug>, mut event: EngineEvent) -> EngineEvent {
    if bug == Some(InjectedBug::WrongGangTimeout)
        && let EngineEvent::ObjectChanged { object, value: Some(value) } = &mut event
        && object.resource == "podgroups"
    {
        value["spec"]["scheduleTimeoutSeconds"] = 200.into();
    }
    event
}

/// The group that a pod's label names.
fn group_of(pod: &Pod) -> Option<GroupKey> {
    GroupKey::of_labels(&pod.metadata.namespace, &pod.metadata.labels)
}

/// What the invariants read of a PodGroup.
#[derive(Clone, Copy)]
struct GroupSpec {
    n_min: usize,
    timeout: Duration,
}

impl GroupSpec {
    fn of(pod_group: &Value) -> GroupSpec {
        let number = |field: &str| pod_group["spec"][field].as_u64().filter(|it| *it > 0);
        let timeout = number("scheduleTimeoutSeconds").map(Duration::from_secs);
        GroupSpec {
            n_min: number("minMember").unwrap_or(1) as usize,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
        }
    }

    /// Whether the attempt goes on if a member fits on no node while so many are missing.
    fn tolerates_missing(self, n_missing: usize) -> bool {
        n_missing * 100 <= self.n_min * REJECT_PERCENTAGE
    }
}

/// Numbers of the members of a group that exist, have not finished and are not being deleted.
#[derive(Clone, Copy, Debug, Default)]
struct MemberCounts {
    total: usize,
    /// With a node.
    placed: usize,
    /// With scheduling gates.
    gated: usize,
}

impl MemberCounts {
    /// Counts the members among these pods, none of which has finished.
    fn of<'p>(
        key: &GroupKey,
        pods: impl Iterator<Item = &'p Pod>,
        has_node: impl Fn(&Pod) -> bool,
    ) -> MemberCounts {
        let mut counts = MemberCounts::default();
        let is_member = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none() && group_of(pod).as_ref() == Some(key)
        };
        for pod in pods.filter(is_member) {
            counts.total += 1;
            counts.placed += usize::from(has_node(pod));
            counts.gated += usize::from(!pod.spec.scheduling_gates.is_empty());
        }
        counts
    }

    /// Members that wait for a node.
    fn pending(self) -> usize {
        (self.total - self.placed).saturating_sub(self.gated)
    }

    /// Whether members may be scheduled at all.
    fn is_enough(self, n_min: usize) -> bool {
        self.total >= n_min && (self.gated == 0 || self.total - self.gated >= n_min)
    }
}
