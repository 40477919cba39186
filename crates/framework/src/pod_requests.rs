//! The requests of a pod: containers, init containers, sidecars, pod-level resources, overhead, and, during an in-place resize,
//! the resources in its status (upstream's `PodRequests` of component-helpers).

use loadmaster_api::pod::{ContainerStatus, PodStatus};
use loadmaster_api::{Container, Quantity, ResourceList, SharedPodSpec, Str};
use smallvec::SmallVec;

use crate::feature_gates::FeatureGates;
use crate::resources::{self, Resources};

/// Requests of a pod, in the two forms that filters and scores use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodRequests {
    /// The requested resources.
    pub resources: Resources,
    /// CPU with [`resources::DEFAULT_CPU_MILLI`] for each container without a CPU request.
    pub nonzero_cpu_milli: i64,
    /// Memory with [`resources::DEFAULT_MEMORY_BYTES`] for each container without a memory request.
    pub nonzero_memory_bytes: i64,
}

impl PodRequests {
    /// Computes both forms; `status` is considered only where it reports resources.
    pub fn new(spec: &SharedPodSpec, status: &PodStatus, gates: &FeatureGates) -> Self {
        let rule = RequestRule { spec, status, gates, fill: &[] };
        let requests = rule.total();
        let pod_level = gates.pod_level_resources && has_pod_level_requests(spec);
        let missing = |name: &Str| !pod_level || requests.get(name).is_none();
        let fill: SmallVec<[(Str, Quantity); 2]> =
            defaults().into_iter().filter(|(name, _)| missing(name)).collect();
        let nonzero = RequestRule { fill: &fill, ..rule }.total();
        let amount = |name: &str| nonzero.get(name).copied().unwrap_or_default();
        PodRequests {
            resources: Resources::from_resource_list(&requests.into_list()),
            nonzero_cpu_milli: amount(resources::RESOURCE_CPU).milli_value(),
            nonzero_memory_bytes: amount(resources::RESOURCE_MEMORY).value(),
        }
    }

    /// The pod's limits, aggregated in the same way; overhead counts where there is a limit (upstream's `PodLimits`).
    pub fn limits(spec: &SharedPodSpec, gates: &FeatureGates) -> Resources {
        let mut spec = spec.clone();
        let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        for resources in containers.map(|it| &mut it.resources).chain(&mut spec.resources) {
            resources.requests = std::mem::take(&mut resources.limits);
        }
        let overhead = std::mem::take(&mut spec.overhead);
        let rule = RequestRule { spec: &spec, status: &PodStatus::default(), gates, fill: &[] };
        let mut total = rule.total();
        let limited: Vec<(&Str, &Quantity)> =
            overhead.iter().filter(|(name, _)| total.get(name).is_some()).collect();
        total.add(limited.into_iter());
        Resources::from_resource_list(&total.into_list())
    }

    /// The requests that NodeResourcesFit's score uses for the incoming pod: those of containers, with defaults for missing CPU
    /// and memory, and overhead, but not pod-level resources, which upstream's scorer ignores here.
    pub fn container_requests(spec: &SharedPodSpec) -> Resources {
        let gates = FeatureGates { pod_level_resources: false, ..FeatureGates::default() };
        let rule =
            RequestRule { spec, status: &PodStatus::default(), gates: &gates, fill: &defaults() };
        Resources::from_resource_list(&rule.total().into_list())
    }
}

/// The requests that a container without CPU or memory request counts as in scores.
fn defaults() -> [(Str, Quantity); 2] {
    [
        (Str::new(resources::RESOURCE_CPU), Quantity::from_milli(resources::DEFAULT_CPU_MILLI)),
        (
            Str::new(resources::RESOURCE_MEMORY),
            Quantity::from_value(resources::DEFAULT_MEMORY_BYTES),
        ),
    ]
}

/// Whether the pod has pod-level requests (upstream's `IsPodLevelRequestsSet`).
pub fn has_pod_level_requests(spec: &SharedPodSpec) -> bool {
    let requests = spec.resources.as_ref().map(|resources| &resources.requests);
    requests.is_some_and(|requests| requests.iter().any(|(name, _)| is_pod_level(name)))
}

/// Whether an init container is a sidecar: it keeps running while the pod's containers run.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_ref().is_some_and(|policy| policy == "Always")
}

/// Whether a pod can request the resource as a whole (upstream's `IsSupportedPodLevelResource`).
pub fn is_pod_level(name: &str) -> bool {
    name == resources::RESOURCE_CPU
        || name == resources::RESOURCE_MEMORY
        || name.starts_with("hugepages-")
}

#[derive(Clone, Copy)]
struct RequestRule<'a> {
    spec: &'a SharedPodSpec,
    status: &'a PodStatus,
    gates: &'a FeatureGates,
    /// Requests for containers that do not request the resource.
    fill: &'a [(Str, Quantity)],
}

impl RequestRule<'_> {
    fn total(&self) -> Sum {
        let mut total = self.containers();
        if self.gates.pod_level_resources && has_pod_level_requests(self.spec) {
            self.override_by_pod_level(&mut total);
        }
        total.add(self.spec.overhead.iter());
        total
    }

    fn override_by_pod_level(&self, total: &mut Sum) {
        let Some(own) = &self.spec.resources else { return };
        let in_place = self.gates.in_place_pod_level_resources_vertical_scaling;
        let effective = match &self.status.resources {
            Some(actuated) if in_place => Some(self.effective(
                &own.requests,
                &actuated.requests,
                &self.status.allocated_resources,
            )),
            _ => None,
        };
        for (name, quantity) in own.requests.iter().filter(|(name, _)| is_pod_level(name)) {
            let quantity = match &effective {
                Some(effective) => effective.get(name).copied().unwrap_or_default(),
                None => *quantity,
            };
            total.set(name, quantity);
        }
    }

    fn containers(&self) -> Sum {
        let mut total = Sum::default();
        for container in &self.spec.containers {
            let requests = self.of_container(container, true);
            total.add(requests.iter());
        }
        let mut sidecars = Sum::default();
        let mut init = Sum::default();
        for container in &self.spec.init_containers {
            if is_sidecar(container) {
                let requests = self.of_container(container, true);
                total.add(requests.iter());
                sidecars.add(requests.iter());
                init.max(sidecars.iter());
            } else {
                let mut step = self.of_container(container, false);
                step.add(sidecars.iter());
                init.max(step.iter());
            }
        }
        total.max(init.iter());
        total
    }

    /// The requests of one container; the status is considered only for containers that keep running.
    fn of_container(&self, container: &Container, runs_on: bool) -> Sum {
        let spec = &container.resources.requests;
        let status = runs_on.then(|| self.status_of(&container.name)).flatten();
        let mut requests =
            match status.and_then(|status| Some((status, status.resources.as_ref()?))) {
                Some((status, actuated)) => {
                    self.effective(spec, &actuated.requests, &status.allocated_resources)
                }
                None => Sum::of(spec),
            };
        for (name, quantity) in self.fill {
            if requests.get(name).is_none() {
                requests.set(name, *quantity);
            }
        }
        requests
    }

    /// The last status with this name, init containers after the others.
    fn status_of(&self, container: &str) -> Option<&ContainerStatus> {
        let init = self.status.init_container_statuses.iter().rev();
        let mut statuses = init.chain(self.status.container_statuses.iter().rev());
        statuses.find(|status| status.name == container)
    }

    /// The maximum of the requests in the spec, the actual and the allocated ones; the spec does not count if the resize is
    /// infeasible.
    fn effective(
        &self,
        spec: &ResourceList,
        actuated: &ResourceList,
        allocated: &ResourceList,
    ) -> Sum {
        let pending =
            self.status.conditions.iter().find(|condition| condition.kind == "PodResizePending");
        let infeasible = pending.is_some_and(|condition| condition.reason == "Infeasible");
        let mut most = if infeasible { Sum::default() } else { Sum::of(spec) };
        most.max(actuated.iter());
        most.max(allocated.iter());
        most
    }
}

/// A resource list that is being computed; small, so an unsorted list.
#[derive(Default)]
struct Sum(SmallVec<[(Str, Quantity); 4]>);

impl Sum {
    fn of(list: &ResourceList) -> Sum {
        Sum(list.iter().map(|(name, quantity)| (name.clone(), *quantity)).collect())
    }

    fn get(&self, name: &str) -> Option<&Quantity> {
        self.0.iter().find(|(known, _)| known.as_str() == name).map(|(_, quantity)| quantity)
    }

    fn iter(&self) -> impl Iterator<Item = (&Str, &Quantity)> {
        self.0.iter().map(|(name, quantity)| (name, quantity))
    }

    fn merge<'a>(
        &mut self,
        other: impl Iterator<Item = (&'a Str, &'a Quantity)>,
        join: fn(Quantity, Quantity) -> Quantity,
    ) {
        for (name, quantity) in other {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, mine)) => *mine = join(*mine, *quantity),
                None => self.0.push((name.clone(), *quantity)),
            }
        }
    }

    fn add<'a>(&mut self, other: impl Iterator<Item = (&'a Str, &'a Quantity)>) {
        self.merge(other, |a, b| a + b);
    }

    fn max<'a>(&mut self, other: impl Iterator<Item = (&'a Str, &'a Quantity)>) {
        self.merge(other, Ord::max);
    }

    fn set(&mut self, name: &Str, quantity: Quantity) {
        self.merge([(name, &quantity)].into_iter(), |_, new| new);
    }

    fn into_list(self) -> ResourceList {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use loadmaster_api::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn line(requests: &PodRequests) -> String {
        let Resources { cpu_milli, memory_bytes, ephemeral_storage_bytes, scalars, .. } =
            &requests.resources;
        let (cpu, memory) = (requests.nonzero_cpu_milli, requests.nonzero_memory_bytes);
        let mut line = format!("{cpu_milli}m {memory_bytes}");
        if *ephemeral_storage_bytes != 0 {
            line.push_str(&format!(" storage {ephemeral_storage_bytes}"));
        }
        for (name, amount) in scalars {
            line.push_str(&format!(" {name} {amount}"));
        }
        line + &format!("; scored {cpu}m {memory}")
    }

    #[track_caller]
    fn check(pod: Value, want: &str) {
        check_under(&FeatureGates::default(), pod, want);
    }

    #[track_caller]
    fn check_under(gates: &FeatureGates, pod: Value, want: &str) {
        let pod: Pod = crate::plugin_args::decode_json_value(&pod).unwrap();
        let requests = PodRequests::new(&pod.spec, &pod.status, gates);
        assert_eq!(line(&requests), want);
    }

    fn asks(name: &str, requests: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests}})
    }

    fn sidecar(name: &str, requests: Value) -> Value {
        json!({"name": name, "restartPolicy": "Always", "resources": {"requests": requests}})
    }

    #[test]
    fn container_requests_are_summed() {
        check(json!({}), "0m 0; scored 0m 0");
        check(json!({"spec": {"containers": [{"name": "a"}]}}), "0m 0; scored 100m 209715200");
        let two = json!([
            asks("a", json!({"cpu": "1", "x.io/y": 2})),
            asks("b", json!({"cpu": "500m", "memory": 7}))
        ]);
        check(json!({"spec": {"containers": two}}), "1500m 7 x.io/y 2; scored 1500m 209715207");
        // A request of 0 is a request.
        let zero = json!([asks("a", json!({"cpu": 0, "memory": 0, "x.io/y": 0}))]);
        check(json!({"spec": {"containers": zero}}), "0m 0 x.io/y 0; scored 0m 0");
        let other = json!([asks(
            "a",
            json!({"ephemeral-storage": "1k", "hugepages-2Mi": "4Mi", "odd": 1})
        )]);
        check(
            json!({"spec": {"containers": other}}),
            "0m 0 storage 1000 hugepages-2Mi 4194304; scored 100m 209715200",
        );
        // Summed exactly, rounded up once.
        let fine = json!([asks("a", json!({"cpu": "0.4m"})), asks("b", json!({"cpu": "0.4m"}))]);
        check(json!({"spec": {"containers": fine}}), "1m 0; scored 1m 419430400");
    }

    #[test]
    fn init_containers_and_overhead() {
        let main = json!([asks("a", json!({"cpu": 1, "memory": 10}))]);
        let init = json!([
            asks("i", json!({"cpu": 2, "memory": 3})),
            asks("j", json!({"cpu": 1, "memory": 4}))
        ]);
        check(
            json!({"spec": {"containers": main, "initContainers": init}}),
            "2000m 10; scored 2000m 10",
        );
        check(
            json!({"spec": {"containers": main, "overhead": {"cpu": "1m", "x.io/y": 1}}}),
            "1001m 10 x.io/y 1; scored 1001m 10",
        );
        // Overhead is added, and does not replace a missing request.
        check(
            json!({"spec": {"containers": [{"name": "a"}], "overhead": {"cpu": "1m", "memory": 5}}}),
            "1m 5; scored 101m 209715205",
        );
        // An init container counts together with the sidecars that started before it.
        let init = json!([
            asks("i", json!({"cpu": 3})),
            sidecar("s", json!({"cpu": 1, "memory": 1})),
            asks("j", json!({"cpu": "2500m"})),
            sidecar("t", json!({"cpu": 1})),
        ]);
        check(
            json!({"spec": {"containers": main, "initContainers": init}}),
            "3500m 11; scored 3500m 209715211",
        );
        let init = json!([sidecar("s", json!({"cpu": 1})), sidecar("t", json!({"cpu": 2}))]);
        check(
            json!({"spec": {"containers": [], "initContainers": init}}),
            "3000m 0; scored 3000m 419430400",
        );
    }

    #[test]
    fn pod_level_requests() {
        let pod = |own: Value| {
            json!({"spec": {"containers": [asks("a", json!({"cpu": 1, "x.io/y": 1})), {"name": "b"}],
                "overhead": {"cpu": "5m"}, "resources": {"requests": own}}})
        };
        let both = json!({"cpu": 3, "memory": 8});
        check(pod(both.clone()), "3005m 8 x.io/y 1; scored 3005m 8");
        let off = FeatureGates { pod_level_resources: false, ..FeatureGates::default() };
        check_under(&off, pod(both.clone()), "1005m 0 x.io/y 1; scored 1105m 419430400");
        // Defaults still apply to resources that neither the pod nor a container requests.
        check(pod(json!({"cpu": 3})), "3005m 0 x.io/y 1; scored 3005m 419430400");
        check(pod(json!({"memory": 8})), "1005m 8 x.io/y 1; scored 1005m 8");
        check(
            pod(json!({"hugepages-2Mi": 8})),
            "1005m 0 hugepages-2Mi 8 x.io/y 1; scored 1005m 419430400",
        );
        check(pod(json!({"x.io/y": 9})), "1005m 0 x.io/y 1; scored 1105m 419430400");
        let pod: Pod = crate::plugin_args::decode_json_value(&pod(both)).unwrap();
        let scored = PodRequests::container_requests(&pod.spec);
        assert_eq!((scored.cpu_milli, scored.memory_bytes), (1105, 419_430_400));
    }

    #[test]
    fn in_place_resize() {
        let status = |name: &str, has: Value, allocated: Value| json!({"name": name, "resources": {"requests": has}, "allocatedResources": allocated});
        let spec = json!({"containers": [asks("a", json!({"cpu": 2, "memory": 5}))]});
        let pod = |statuses: Value, conditions: Value| json!({"spec": spec, "status": {"containerStatuses": statuses, "conditions": conditions}});
        let more = json!([status("a", json!({"cpu": 1, "memory": 9}), json!({"cpu": 3}))]);
        let less = json!([status("a", json!({"cpu": 1, "memory": 1}), json!({"cpu": 1}))]);
        let infeasible = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
        let deferred = json!([{"type": "PodResizePending", "reason": "Deferred"}]);
        check(pod(more.clone(), json!([])), "3000m 9; scored 3000m 9");
        check(pod(less.clone(), json!([])), "2000m 5; scored 2000m 5");
        check(pod(less.clone(), infeasible), "1000m 1; scored 1000m 1");
        check(pod(less, deferred), "2000m 5; scored 2000m 5");
        check(
            pod(json!([{"name": "a", "allocatedResources": {"cpu": 9}}]), json!([])),
            "2000m 5; scored 2000m 5",
        );
        // For sidecars the status counts, for other init containers only the spec.
        let init = json!([sidecar("s", json!({"cpu": 1})), asks("i", json!({"cpu": 1}))]);
        let both = json!([
            status("s", json!({"cpu": 4}), json!({})),
            status("i", json!({"cpu": 8}), json!({}))
        ]);
        check(
            json!({"spec": {"containers": [], "initContainers": init}, "status": {"initContainerStatuses": both}}),
            "5000m 0; scored 5000m 419430400",
        );
        // Pod-level requests, as reported in the status.
        let own = json!({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": 2, "memory": 6}}});
        let report =
            json!({"resources": {"requests": {"cpu": 3}}, "allocatedResources": {"memory": 7}});
        check(json!({"spec": own, "status": report}), "3000m 7; scored 3000m 7");
        let still = FeatureGates {
            in_place_pod_level_resources_vertical_scaling: false,
            ..FeatureGates::default()
        };
        check_under(&still, json!({"spec": own, "status": report}), "2000m 6; scored 2000m 6");
    }
}
