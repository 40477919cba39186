//! PrioritySort: pods of higher priority go first; among equals, those that wait longer.
//!
//! | | |
//! | --- | --- |
//! | extension points | QueueSort |
//! | woken by | nothing: it rejects no pod |
//! | upstream | `plugins/queuesort`, 1.36 |
//! | deviations | none |
//! | cost | two comparisons |

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_framework::{PluginDef, PluginError, Points, QueueSort, QueuedPodInfo};
use serde_json::Value;

pub const NAME: &str = "PrioritySort";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct PrioritySort;

fn build(points: &mut Points, _args: &Value) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(PrioritySort));
    Ok(())
}

impl QueueSort for PrioritySort {
    fn compare(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let priority = |info: &QueuedPodInfo| info.pod.template.priority();
        priority(b).cmp(&priority(a)).then(a.queued.cmp(&b.queued))
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::Timestamp;
    use loadmaster_framework::testkit::Bench;
    use serde_json::json;

    use super::*;

    /// A pod of this priority (a missing one is 0), queued at this time.
    type Queued = (Option<i32>, i64);

    #[track_caller]
    fn check(a: Queued, b: Queued, want: Ordering) {
        let mut bench = Bench::new(&DEF, json!({})).unwrap();
        let mut queued = |(priority, time): Queued| QueuedPodInfo {
            pod: Arc::new(bench.pod(json!({"spec": {"priority": priority}})).unwrap()),
            queued: Timestamp(time),
            attempts: 0,
        };
        let (a, b) = (queued(a), queued(b));
        let sort = bench.points().queue_sort.as_ref().unwrap();
        assert_eq!(sort.compare(&a, &b), want);
        assert_eq!(sort.compare(&b, &a), want.reverse());
    }

    #[test]
    fn table() {
        check((Some(2), 5), (Some(1), 1), Ordering::Less);
        check((Some(-1), 1), (None, 5), Ordering::Greater);
        check((Some(i32::MAX), 5), (Some(i32::MIN), 1), Ordering::Less);
        check((None, 1), (Some(0), 2), Ordering::Less);
        check((Some(1), 1), (Some(1), 1), Ordering::Equal);
    }
}
