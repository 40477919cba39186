//! What an API server does to a pod before it stores it, as far as placement depends on it.

use loadmaster_api::{Container, ContainerResources, Pod, PriorityClass, ResourceList, Str};
use loadmaster_stdx::Map;

/// The priority classes that every cluster has (upstream's `scheduling.SystemPriorityClasses`).
const SYSTEM_CLASSES: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

const PREEMPT_LOWER_PRIORITY: &str = "PreemptLowerPriority";

/// A pod names a class that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no PriorityClass with name {class} was found")]
pub struct UnknownClass {
    /// The name.
    pub class: String,
}

/// The rules that pods are admitted by.
#[derive(Default)]
pub(super) struct Admission {
    classes: Map<Str, PriorityClass>,
}

impl Admission {
    /// Adds or replaces a priority class.
    pub fn set_class(&mut self, class: PriorityClass) {
        self.classes.insert(Str::new(&class.metadata.name), class);
    }

    /// Resolves the priority and fills in what placement reads.
    pub fn admit(&self, pod: &mut Pod) -> Result<(), UnknownClass> {
        self.prioritize(pod)?;
        let host_network = pod.spec.host_network;
        for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
            default_container(container, host_network);
        }
        Ok(())
    }

    /// A pod with a priority has been admitted before: its class need not be known here.
    fn prioritize(&self, pod: &mut Pod) -> Result<(), UnknownClass> {
        let spec = &mut pod.spec;
        if spec.priority.is_some() {
            return Ok(());
        }
        let name = spec.priority_class_name.clone();
        let (value, policy) = if !name.is_empty() {
            self.class(&name).ok_or_else(|| UnknownClass { class: name.to_string() })?
        } else {
            let (class, value, policy) = self.global_default();
            spec.priority_class_name = class;
            (value, policy)
        };
        spec.priority = Some(value);
        spec.preemption_policy.get_or_insert(policy);
        Ok(())
    }

    fn class(&self, name: &str) -> Option<(i32, Str)> {
        if let Some(class) = self.classes.get(name) {
            return Some((class.value, policy_of(class)));
        }
        let system = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name);
        system.map(|(_, value)| (*value, Str::new(PREEMPT_LOWER_PRIORITY)))
    }

    /// Of several default classes the API server takes the one of lowest value.
    fn global_default(&self) -> (Str, i32, Str) {
        #[expect(clippy::disallowed_methods, reason = "the least of them is the same in any order")]
        let defaults = self.classes.values().filter(|class| class.global_default);
        match defaults.min_by_key(|class| (class.value, class.metadata.name.clone())) {
            Some(class) => (Str::new(&class.metadata.name), class.value, policy_of(class)),
            None => (Str::default(), 0, Str::new(PREEMPT_LOWER_PRIORITY)),
        }
    }
}

fn policy_of(class: &PriorityClass) -> Str {
    class.preemption_policy.clone().unwrap_or_else(|| Str::new(PREEMPT_LOWER_PRIORITY))
}

/// A limit without a request is a request, and a port of a pod in the node's network is a port of the node.
fn default_container(container: &mut Container, host_network: bool) {
    container.resources.requests = requests_of(&container.resources);
    if host_network {
        for port in container.ports.iter_mut().filter(|port| port.host_port == 0) {
            port.host_port = port.container_port;
        }
    }
}

fn requests_of(resources: &ContainerResources) -> ResourceList {
    // Of equal names the later one stays: what is requested wins over what is limited.
    let both = resources.limits.iter().chain(resources.requests.iter());
    both.map(|(name, amount)| (name.clone(), *amount)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(classes: serde_json::Value, spec: serde_json::Value, want: Result<(i32, &str), &str>) {
        let mut admission = Admission::default();
        for class in serde_json::from_value::<Vec<PriorityClass>>(classes).unwrap() {
            admission.set_class(class);
        }
        let mut pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let got = admission.admit(&mut pod).map_err(|error| error.to_string());
        let got =
            got.map(|()| (pod.spec.priority.unwrap(), pod.spec.priority_class_name.to_string()));
        assert_eq!(got, want.map(|(n, name)| (n, name.to_owned())).map_err(str::to_owned));
    }

    #[test]
    fn priority() {
        let high = || json!({"metadata": {"name": "high"}, "value": 7});
        let default = || json!({"metadata": {"name": "usual"}, "value": 3, "globalDefault": true});
        check(json!([]), json!({}), Ok((0, "")));
        check(json!([high()]), json!({"priorityClassName": "high"}), Ok((7, "high")));
        check(json!([high(), default()]), json!({}), Ok((3, "usual")));
        let system = json!({"priorityClassName": "system-node-critical"});
        check(json!([]), system, Ok((2_000_001_000, "system-node-critical")));
        check(json!([]), json!({"priorityClassName": "low", "priority": 5}), Ok((5, "low")));
        let low = json!({"priorityClassName": "low"});
        check(json!([high()]), low, Err("no PriorityClass with name low was found"));
    }

    #[test]
    fn limits_are_requests_and_ports_are_the_nodes() {
        let mut pod: Pod =
            serde_json::from_value(json!({"spec": {"hostNetwork": true, "containers": [{
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}},
                "ports": [{"containerPort": 80}],
            }]}}))
            .unwrap();
        Admission::default().admit(&mut pod).unwrap();
        let container = &pod.spec.containers[0];
        let amount = |name: &str| container.resources.requests.get(name).unwrap().value();
        assert_eq!((amount("cpu"), amount("memory")), (1, 1 << 30));
        assert_eq!(container.ports[0].host_port, 80);
    }
}
