//! The order in which QueueSort puts pods.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use loadmaster_api::Timestamp;
use serde_json::Value;

use crate::extension_points::Cx;
use crate::pod_info::QueuedPodInfo;
use crate::state::CycleState;
use crate::time::{MonoTime, Now};

use super::{BenchResult, PluginTestBench, PluginTestBenchError};

impl PluginTestBench {
    /// The names of these pods in the order of QueueSort. Each pod was queued for its first attempt one second after the one before
    /// it; the first one at the start.
    ///
    /// # Errors
    ///
    /// When a pod is invalid, or the order is not a strict weak order, which would leave the scheduling queue out of order.
    pub fn queue_order<P: Into<Value>>(
        &mut self,
        pods: impl IntoIterator<Item = P>,
    ) -> BenchResult<Vec<String>> {
        let mut queued = Vec::new();
        for (nth, pod) in pods.into_iter().enumerate() {
            let mono = MonoTime::default().after(Duration::from_secs(nth as u64));
            let now = Now { mono, wall: Timestamp(mono.0 as i64) };
            queued.push(QueuedPodInfo {
                pod: Arc::new(self.parse_pod(pod)?),
                queued: now.wall,
                initial_attempt: Some(now),
                attempts: 0,
            });
        }
        self.check_strict_weak_order(&queued)?;
        queued.sort_by(|a, b| self.compare_queued(a, b));
        Ok(queued.into_iter().map(|queued| queued.pod.name.to_string()).collect())
    }

    fn compare_queued(&self, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let Some(sort) = &self.points.queue_sort else { return a.queued.cmp(&b.queued) };
        let cycle = CycleState::default();
        sort.compare(Cx { world: &self.world, cycle: &cycle, states: &self.states }, a, b)
    }

    /// Checks that reversing the arguments reverses the result, and that `Less` and `Equal` are transitive.
    fn check_strict_weak_order(&self, pods: &[QueuedPodInfo]) -> BenchResult<()> {
        let order = |a: usize, b: usize| self.compare_queued(&pods[a], &pods[b]);
        let n = pods.len();
        let name = |at: usize| &*pods[at].pod.name;
        for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
            let result = order(a, b);
            let key = |at: usize| self.points.queue_sort.as_ref()?.sort_key(&pods[at]);
            if let (Some(a), Some(b)) = (key(a), key(b))
                && a.cmp(&b) != result
            {
                return Err(PluginTestBenchError(format!(
                    "compare says {result:?} of {a:?} and {b:?}, which sort_key returns"
                )));
            }
            if order(b, a) != result.reverse() {
                return Err(PluginTestBenchError(format!(
                    "comparing {} with {} and the other way round gives no order",
                    name(a),
                    name(b)
                )));
            }
            let wrong = (0..n).find(|c| order(b, *c) == result && order(a, *c) != result);
            if let Some(c) = wrong {
                return Err(PluginTestBenchError(format!(
                    "the order of {}, {} and {} is not transitive",
                    name(a),
                    name(b),
                    name(c)
                )));
            }
        }
        Ok(())
    }
}
