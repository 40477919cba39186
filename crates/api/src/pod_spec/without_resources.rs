//! Pods of one kind often differ in their requests only.

use std::hash::{Hash, Hasher};

use crate::SharedPodSpec;
use crate::pod::Container;

/// A spec as if the pod and its containers had no requests and limits: equal for all specs that differ in nothing else.
#[derive(Clone, Copy)]
pub struct SpecWithoutResources<'a>(pub &'a SharedPodSpec);

impl<'a> SpecWithoutResources<'a> {
    fn fields(self) -> impl Hash + PartialEq + use<'a> {
        let SharedPodSpec {
            node_name,
            scheduler_name,
            priority,
            priority_class_name,
            preemption_policy,
            node_selector,
            affinity,
            tolerations,
            topology_spread_constraints,
            init_containers,
            containers,
            overhead,
            resources: _,
            scheduling_gates,
            volumes,
            resource_claims,
            host_network,
            host_users,
        } = self.0;
        (
            (node_name, scheduler_name, priority, priority_class_name, preemption_policy),
            (node_selector, affinity, tolerations, topology_spread_constraints),
            (Containers(init_containers), Containers(containers), overhead, scheduling_gates),
            (volumes, resource_claims, host_network, host_users),
        )
    }
}

impl PartialEq for SpecWithoutResources<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == SpecWithoutResources(other.0).fields()
    }
}

impl Eq for SpecWithoutResources<'_> {}

impl Hash for SpecWithoutResources<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fields().hash(state);
    }
}

/// Containers without requests and limits.
struct Containers<'a>(&'a [Container]);

impl<'a> Containers<'a> {
    fn fields(&self) -> impl Iterator<Item = impl Hash + PartialEq + use<'a>> + use<'a> {
        self.0.iter().map(|container| {
            let Container {
                name,
                image,
                resources: _,
                ports,
                restart_policy,
                restart_policy_rules,
            } = container;
            (name, image, ports, restart_policy, restart_policy_rules)
        })
    }
}

impl PartialEq for Containers<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.fields().eq(other.fields())
    }
}

impl Hash for Containers<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
        self.fields().for_each(|fields| fields.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use serde_json::{Value, json};

    use super::*;

    fn spec(pointer: &str, value: Value) -> SharedPodSpec {
        let requests = json!({"requests": {"cpu": "1"}});
        let mut spec = json!({"containers": [{"name": "main", "image": "app:v1", "resources": requests}],
            "initContainers": [{"name": "first", "resources": requests}], "resources": requests,
            "nodeSelector": {"disk": "ssd"}, "overhead": {"cpu": "1"}, "priority": 1});
        *spec.pointer_mut(pointer).unwrap() = value;
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn only_requests_and_limits_make_no_difference() {
        let requests = json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2"}});
        let cases = [
            ("/containers/0/resources", requests.clone(), true),
            ("/initContainers/0/resources", requests.clone(), true),
            ("/resources", requests, true),
            ("/resources", Value::Null, true),
            ("/containers/0/name", json!("other"), false),
            ("/containers/0/image", json!("app:v2"), false),
            ("/containers", json!([]), false),
            ("/initContainers/0/name", json!("other"), false),
            ("/initContainers", json!([]), false),
            ("/nodeSelector", json!({}), false),
            ("/overhead", json!({}), false),
            ("/priority", json!(2), false),
        ];
        let first = spec("/priority", json!(1));
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        for (pointer, value, want) in cases {
            let other = spec(pointer, value);
            assert_ne!(other, first, "{pointer}");
            let both = [&first, &other].map(SpecWithoutResources);
            assert_eq!(both[0] == both[1], want, "{pointer}");
            assert_eq!(hasher.hash_one(both[0]) == hasher.hash_one(both[1]), want, "{pointer}");
        }
    }
}
