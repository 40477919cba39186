//! PriorityClasses of pods that come from another cluster without them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The classes that every cluster has.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// The highest value of other classes (upstream's `HighestUserDefinablePriority`).
const USER_PRIORITY_MAX: i64 = 1_000_000_000;

/// Returns the PriorityClasses that pods have and no object defines, made from the priorities of these pods. A pod with a priority and
/// without a class gets the class of this value: the API server computes priorities from classes, and rejects any other.
pub(super) fn complete<'a>(objects: impl Iterator<Item = &'a mut Value>) -> Vec<Value> {
    let (classes, pods): (Vec<_>, Vec<_>) = objects
        .filter(|it| it["kind"] == "PriorityClass" || it["kind"] == "Pod")
        .partition(|it| it["kind"] == "PriorityClass");
    let system = SYSTEM_CLASSES.map(|(name, value)| (name.to_owned(), value));
    let mut known: BTreeMap<String, i64> = system.into();
    let mut default: Option<i64> = None;
    for class in &classes {
        let (Some(name), Some(value)) =
            (class["metadata"]["name"].as_str(), class["value"].as_i64())
        else {
            continue;
        };
        known.insert(name.to_owned(), value);
        if class["globalDefault"] == true {
            default = Some(default.map_or(value, |other| other.min(value)));
        }
    }
    let mut missing = Vec::new();
    for pod in pods {
        let Some(priority) = pod["spec"]["priority"].as_i64() else { continue };
        let name = match pod["spec"]["priorityClassName"].as_str() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ if priority == default.unwrap_or(0) => continue,
            _ => match known.iter().find(|(_, value)| **value == priority) {
                Some((name, _)) => name.clone(),
                None => format!("priority-{priority}"),
            },
        };
        if !known.contains_key(&name) {
            if priority > USER_PRIORITY_MAX {
                continue;
            }
            missing.push(json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": name}, "value": priority}));
            known.insert(name.clone(), priority);
        }
        pod["spec"]["priorityClassName"] = name.into();
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes of the pods, and the missing ones with their values.
    #[track_caller]
    fn check(pods: &[Value], want: &str) {
        let class = |name: &str, value: i64| json!({"kind": "PriorityClass", "metadata": {"name": name}, "value": value});
        let mut objects = vec![class("low", -5), class("high", 1000)];
        objects.extend(pods.iter().map(|spec| json!({"kind": "Pod", "spec": spec})));
        let missing = complete(objects.iter_mut());
        let text = |it: &Value| it.as_str().unwrap_or("none").to_owned();
        let classes: Vec<_> =
            objects[2..].iter().map(|it| text(&it["spec"]["priorityClassName"])).collect();
        let missing =
            missing.iter().map(|it| format!("{}={}", text(&it["metadata"]["name"]), it["value"]));
        let missing: Vec<_> = missing.collect();
        assert_eq!(format!("{}; {}", classes.join(" "), missing.join(" ")), want);
    }

    #[test]
    fn pods_get_the_classes_of_their_priorities() {
        let pod = |priority: i64| json!({"priority": priority});
        let named =
            |name: &str, priority: i64| json!({"priority": priority, "priorityClassName": name});
        check(&[json!({}), pod(0), json!({"priorityClassName": "gone"})], "none none gone; ");
        check(&[pod(1000), pod(-5), pod(2_000_001_000)], "high low system-node-critical; ");
        check(
            &[pod(7), pod(7), pod(-7)],
            "priority-7 priority-7 priority--7; priority-7=7 priority--7=-7",
        );
        check(&[named("gone", 7), named("gone", 7), pod(7)], "gone gone gone; gone=7");
        // The API server rejects these.
        check(&[named("high", 7), pod(1_500_000_000)], "high none; ");
    }

    #[test]
    fn a_default_class_applies_to_pods_without_a_class() {
        let mut objects = [
            json!({"kind": "PriorityClass", "metadata": {"name": "usual"}, "value": 10, "globalDefault": true}),
            json!({"kind": "Pod", "spec": {"priority": 10}}),
            json!({"kind": "Pod", "spec": {"priority": 0}}),
        ];
        let missing = complete(objects.iter_mut());
        assert_eq!(objects[1]["spec"]["priorityClassName"], Value::Null);
        assert_eq!(objects[2]["spec"]["priorityClassName"], "priority-0");
        assert_eq!(missing.len(), 1);
    }
}
