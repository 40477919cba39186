//! PrioritySort: orders activeQ by priority, then by the time at which the pods were added to the queue.
//!
//! | | |
//! | --- | --- |
//! | extension points | QueueSort |
//! | woken by | no event: it rejects no pod |
//! | upstream | `plugins/queuesort`, 1.36 |
//! | deviations | none |
//! | cost | two comparisons |

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::{Cx, ExtensionPoints, PluginDef, PluginError, QueueSort, QueuedPodInfo};
use serde_json::Value;

pub const NAME: &str = "PrioritySort";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct PrioritySort;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(PrioritySort));
    Ok(())
}

impl QueueSort for PrioritySort {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let priority = |info: &QueuedPodInfo| info.pod.template.priority();
        priority(b).cmp(&priority(a)).then(a.queued.cmp(&b.queued))
    }

    fn sort_key(&self, pod: &QueuedPodInfo) -> Option<[i64; 2]> {
        Some([-i64::from(pod.pod.template.priority()), pod.queued.0])
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::Timestamp;
    use loadmaster_framework::testkit::PluginTestBench;
    use loadmaster_framework::{CycleState, PluginStates};
    use serde_json::json;

    use super::*;

    /// A priority (0 when missing) and the time at which the pod was queued.
    type Queued = (Option<i32>, i64);

    #[track_caller]
    fn check(a: Queued, b: Queued, want: Ordering) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let mut queued = |(priority, time): Queued| QueuedPodInfo {
            pod: Arc::new(bench.parse_pod(json!({"spec": {"priority": priority}})).unwrap()),
            queued: Timestamp(time),
            initial_attempt: None,
            attempts: 0,
        };
        let (a, b) = (queued(a), queued(b));
        let sort = bench.extension_points().queue_sort.as_ref().unwrap();
        let (cycle, states) = (CycleState::default(), PluginStates::default());
        let cx = Cx { world: &bench.world, cycle: &cycle, states: &states };
        assert_eq!(sort.compare(cx, &a, &b), want);
        assert_eq!(sort.sort_key(&a).unwrap().cmp(&sort.sort_key(&b).unwrap()), want);
        assert_eq!(sort.compare(cx, &b, &a), want.reverse());
    }

    #[test]
    fn orders_by_priority_then_by_time_queued() {
        check((Some(2), 5), (Some(1), 1), Ordering::Less);
        check((Some(-1), 1), (None, 5), Ordering::Greater);
        check((Some(i32::MAX), 5), (Some(i32::MIN), 1), Ordering::Less);
        check((None, 1), (Some(0), 2), Ordering::Less);
        check((Some(1), 1), (Some(1), 1), Ordering::Equal);
    }
}
