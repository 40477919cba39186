//! QOSSort: orders activeQ by priority, then by QoS class, then by the time at which the pods were added to the queue.
//!
//! | | |
//! | --- | --- |
//! | extension points | QueueSort |
//! | woken by | no event: it rejects no pod |
//! | upstream | `pkg/qos` of scheduler-plugins 0.35 |
//! | deviations | none: the class is computed from the spec, as the API server does when it writes `status.qosClass` |
//! | cost | O(containers) for two pods of equal priority |

use std::cmp::Ordering;
use std::sync::Arc;

use loadmaster_api::{Quantity, ResourceList, SharedPodSpec};
use loadmaster_framework::{Cx, ExtensionPoints, PluginDef, PluginError, QueueSort, QueuedPodInfo};
use serde_json::Value;

pub const NAME: &str = "QOSSort";

pub const DEF: PluginDef = PluginDef { name: NAME, build, args: None };

struct QosSort;

fn build(points: &mut ExtensionPoints, _args: &Value) -> Result<(), PluginError> {
    points.queue_sort = Some(Arc::new(QosSort));
    Ok(())
}

impl QueueSort for QosSort {
    fn compare(&self, _: Cx<'_>, a: &QueuedPodInfo, b: &QueuedPodInfo) -> Ordering {
        let priority = |info: &QueuedPodInfo| info.pod.template.priority();
        let class = |info: &QueuedPodInfo| qos_class(&info.pod.template.spec);
        priority(b)
            .cmp(&priority(a))
            .then_with(|| class(a).cmp(&class(b)))
            .then(a.queued.cmp(&b.queued))
    }
}

/// A pod's quality of service, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// Upstream's `ComputePodQOS`: pod-level resources count if they are set, else those of all containers and init containers together.
/// Only positive amounts of CPU and memory count.
fn qos_class(spec: &SharedPodSpec) -> QosClass {
    let containers = spec.containers.iter().chain(&spec.init_containers).map(|it| &it.resources);
    let (mut requests, mut limits) = (QosAmounts::default(), QosAmounts::default());
    let mut all_limited = true;
    let mut add = |given: &ResourceList, limited: &ResourceList, needs_limits: bool| {
        requests.add(&QosAmounts::of(given));
        let limited = QosAmounts::of(limited);
        all_limited &= !needs_limits || limited.0.iter().all(|amount| !amount.is_zero());
        limits.add(&limited);
    };
    match &spec.resources {
        // Without any limit the pod is not Guaranteed either, because its requests then differ from its limits.
        Some(own) => add(&own.requests, &own.limits, own.limits.iter().next().is_some()),
        None => containers.for_each(|it| add(&it.requests, &it.limits, true)),
    }
    if requests == QosAmounts::default() && limits == QosAmounts::default() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Amounts of CPU and memory; zero where none is set.
#[derive(Default, PartialEq)]
struct QosAmounts([Quantity; 2]);

impl QosAmounts {
    fn of(list: &ResourceList) -> Self {
        QosAmounts(["cpu", "memory"].map(|name| {
            let amount = list.get(name).copied().unwrap_or_default();
            amount.max(Quantity::ZERO)
        }))
    }

    fn add(&mut self, other: &QosAmounts) {
        for (sum, amount) in self.0.iter_mut().zip(other.0) {
            *sum += amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::Timestamp;
    use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, pod};
    use loadmaster_framework::{CycleState, PluginStates};
    use serde_json::json;

    use super::*;

    fn resources(name: &str, requests: &Value, limits: &Value) -> PodBuilder {
        pod(name).set_field(
            "/spec/containers/0/resources",
            json!({"requests": requests, "limits": limits}),
        )
    }

    fn guaranteed(name: &str) -> PodBuilder {
        let amounts = json!({"cpu": "1", "memory": "1Gi"});
        resources(name, &amounts, &amounts)
    }

    #[track_caller]
    fn check_class(pod: PodBuilder, want: QosClass) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        assert_eq!(qos_class(&bench.parse_pod(pod).unwrap().template.spec), want);
    }

    #[test]
    fn qos_classes() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let own = |it: &Value| guaranteed("own").set_field("/spec/resources", it.clone());
        let with_init = |it: &Value| {
            guaranteed("init")
                .set_field("/spec/initContainers", json!([{"name": "i", "resources": it}]))
        };
        check_class(guaranteed("a"), Guaranteed);
        check_class(resources("limit above request", &json!({"cpu": "1"}), &full), Burstable);
        check_class(resources("request only", &json!({"memory": "1Gi"}), &json!({})), Burstable);
        check_class(resources("limits only", &json!({}), &full), Burstable);
        check_class(pod("nothing"), BestEffort);
        check_class(resources("zero", &json!({"cpu": "0"}), &json!({"memory": "0"})), BestEffort);
        check_class(pod("other resources").request("example.com/gpu", "1"), BestEffort);
        // Init containers count, also those that are not sidecars.
        check_class(with_init(&json!({"requests": full, "limits": full})), Guaranteed);
        check_class(with_init(&json!({"requests": full})), Burstable);
        check_class(with_init(&json!({})), Burstable);
        // Pod-level resources replace those of the containers.
        check_class(own(&json!({"requests": full, "limits": full})), Guaranteed);
        check_class(own(&json!({"requests": full})), Burstable);
        let cpu = json!({"cpu": "1"});
        check_class(own(&json!({"requests": cpu, "limits": cpu})), Burstable);
        check_class(own(&json!({})), BestEffort);
    }

    /// A pod and the time at which it was queued.
    type Queued = (PodBuilder, i64);

    #[track_caller]
    fn check_order(a: Queued, b: Queued, want: Ordering) {
        let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
        let mut queued = |(pod, time): Queued| QueuedPodInfo {
            pod: Arc::new(bench.parse_pod(pod).unwrap()),
            queued: Timestamp(time),
            initial_attempt: None,
            attempts: 0,
        };
        let (a, b) = (queued(a), queued(b));
        let sort = bench.extension_points().queue_sort.as_ref().unwrap();
        let (cycle, states) = (CycleState::default(), PluginStates::default());
        let cx = Cx { world: &bench.world, cycle: &cycle, states: &states };
        assert_eq!(sort.compare(cx, &a, &b), want);
        assert_eq!(sort.compare(cx, &b, &a), want.reverse());
    }

    #[test]
    fn orders_by_priority_then_by_class_then_by_time_queued() {
        let burstable = |name| pod(name).request("cpu", "1");
        let (first, later) = (1, 5);
        check_order((pod("a").priority(2), later), (guaranteed("b"), first), Ordering::Less);
        check_order((guaranteed("a"), later), (burstable("b"), first), Ordering::Less);
        check_order((burstable("a"), later), (pod("b"), first), Ordering::Less);
        check_order((guaranteed("a"), later), (pod("b"), first), Ordering::Less);
        check_order((pod("a"), first), (pod("b"), later), Ordering::Less);
        check_order((guaranteed("a"), first), (guaranteed("b"), first), Ordering::Equal);
    }
}
