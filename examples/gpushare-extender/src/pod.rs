//! Reads shared GPUs from Kubernetes objects: requests, annotations, capacities, unhealthy devices.

use std::collections::{BTreeMap, BTreeSet};

use crate::devices::{Capacity, Claim};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use loadmaster_api::quantity::Quantity;

const MEMORY: &str = "aliyun.com/gpu-mem";
const COUNT: &str = "aliyun.com/gpu-count";

const DEVICE: &str = "ALIYUN_COM_GPU_MEM_IDX";
const DEVICE_MEMORY: &str = "ALIYUN_COM_GPU_MEM_DEV";
const POD_MEMORY: &str = "ALIYUN_COM_GPU_MEM_POD";
const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";

/// Prefix of the ConfigMaps in kube-system that list a node's unhealthy devices under `gpus`; the node's name follows.
const UNHEALTHY: &str = "unhealthy-gpu-";

/// Maximum number of devices per node, so that a wrong count does not cost much time.
const DEVICES_MAX: u32 = 1024;

/// The GPU memory that a pod requests: the sum over its containers' limits. Init containers do not count, as in the original.
pub fn memory(pod: &Pod) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|it| it.resources.as_ref()?.limits.as_ref());
    limits.map(|limits| amount(limits, MEMORY)).fold(0, u64::saturating_add)
}

/// The memory that a pod uses; `None` if it has no node or no device, or is terminal. A terminating pod still uses it: its containers
/// run until the pod is removed.
pub fn claim(pod: &Pod) -> Option<Claim> {
    let node = pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let annotations = pod.metadata.annotations.as_ref()?;
    let device = annotations.get(DEVICE)?.parse().ok()?;
    let memory = annotations.get(POD_MEMORY).and_then(|it| it.parse().ok());
    Some(Claim {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        node,
        device,
        memory: memory.unwrap_or_else(|| self::memory(pod)),
    })
}

/// Annotations by name.
pub type Annotations = BTreeMap<&'static str, String>;

/// The annotations that tell the device plugin which device a pod got. It then sets `ASSIGNED` to "true".
pub fn annotations(device: u32, device_memory: u64, memory: u64, now_ns: i128) -> Annotations {
    BTreeMap::from([
        (DEVICE, device.to_string()),
        (DEVICE_MEMORY, device_memory.to_string()),
        (POD_MEMORY, memory.to_string()),
        (ASSIGNED, "false".to_owned()),
        (ASSUME_TIME, now_ns.to_string()),
    ])
}

/// The capacity that a node's device plugin reports; `None` if the node does not share devices.
pub fn capacity(node: &Node) -> Option<Capacity> {
    let given = node.status.as_ref()?.capacity.as_ref()?;
    let memory = amount(given, MEMORY);
    let count = amount(given, COUNT).try_into().unwrap_or(u32::MAX).min(DEVICES_MAX);
    (memory > 0).then_some(Capacity { memory, count })
}

/// The node whose unhealthy devices a ConfigMap lists.
pub fn node_of(map: &ConfigMap) -> Option<&str> {
    map.metadata.name.as_deref()?.strip_prefix(UNHEALTHY)
}

/// The listed devices, separated by commas; invalid numbers are skipped.
pub fn unhealthy(map: &ConfigMap) -> BTreeSet<u32> {
    let list = map.data.as_ref().and_then(|data| data.get("gpus"));
    let list = list.map(String::as_str).unwrap_or_default();
    list.split(',').filter_map(|device| device.trim().parse().ok()).collect()
}

/// An amount in whole units; 0 if it is absent, invalid or negative.
fn amount(amounts: &BTreeMap<String, Amount>, name: &str) -> u64 {
    let parsed = amounts.get(name).and_then(|it| Quantity::parse(&it.0).ok());
    parsed.map_or(0, |it| it.value().try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn requests_are_summed_over_containers() {
        let check = |limits: Value, want: u64| {
            let container = |limit| json!({"name": "c", "resources": {"limits": limit}});
            let containers: Vec<Value> =
                limits.as_array().unwrap().iter().cloned().map(container).collect();
            let init = [container(json!({MEMORY: "100"}))];
            let pod = pod(json!({"spec": {"containers": containers, "initContainers": init}}));
            assert_eq!(memory(&pod), want, "{limits}");
        };
        check(json!([]), 0);
        check(json!([null, {"cpu": "1"}]), 0);
        check(json!([{MEMORY: "2"}, {MEMORY: "3"}]), 5);
        check(json!([{MEMORY: "1k"}]), 1000);
        check(json!([{MEMORY: "-3"}, {MEMORY: "x"}]), 0);
        check(
            json!([{MEMORY: "9223372036854775807"}, {MEMORY: "9223372036854775807"}]),
            u64::MAX - 1,
        );
    }

    #[test]
    fn a_pod_holds_what_its_annotations_say() {
        let check = |change: Value, want: Option<(u32, u64)>| {
            let mut object = json!({
                "metadata": {"name": "p", "namespace": "n", "annotations": {DEVICE: "1", POD_MEMORY: "3"}},
                "spec": {"nodeName": "a", "containers": [
                    {"name": "c", "resources": {"limits": {MEMORY: "7"}}}]},
                "status": {"phase": "Running"},
            });
            merge(&mut object, &change);
            let claim = claim(&pod(object));
            assert_eq!(claim.map(|it| (it.device, it.memory)), want, "{change}");
        };
        check(json!({}), Some((1, 3)));
        check(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Some((1, 3)));
        check(json!({"metadata": {"annotations": {POD_MEMORY: null}}}), Some((1, 7)));
        check(json!({"metadata": {"annotations": {DEVICE: null}}}), None);
        check(json!({"metadata": {"annotations": {DEVICE: "-1"}}}), None);
        check(json!({"spec": {"nodeName": null}}), None);
        check(json!({"status": {"phase": "Succeeded"}}), None);
        check(json!({"status": {"phase": "Failed"}}), None);
    }

    #[test]
    fn annotations_are_read_as_they_are_written() {
        let written = annotations(2, 16, 3, 12_345);
        let want = json!({"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_DEV": "16",
            "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "12345"});
        assert_eq!(json!(written), want);
        let pod = pod(json!({
            "metadata": {"annotations": written}, "spec": {"nodeName": "a", "containers": []}}));
        assert_eq!(claim(&pod).map(|it| (it.device, it.memory)), Some((2, 3)));
    }

    #[test]
    fn nodes_and_config_maps() {
        let check = |capacity: Value, want: Option<(u64, u32)>| {
            let node = serde_json::from_value(json!({"status": {"capacity": capacity}})).unwrap();
            let got = self::capacity(&node);
            assert_eq!(got.map(|it| (it.device_memory(), it.count)), want, "{capacity}");
        };
        check(json!({MEMORY: "32", COUNT: "2"}), Some((16, 2)));
        check(json!({MEMORY: "31", COUNT: "2"}), Some((15, 2)));
        check(json!({MEMORY: "32"}), Some((0, 0)));
        check(json!({MEMORY: "0", COUNT: "2"}), None);
        check(json!({COUNT: "2"}), None);
        check(json!({MEMORY: "1M", COUNT: "1Ei"}), Some((976, 1024)));
        let map = json!({"metadata": {"name": "unhealthy-gpu-a"}, "data": {"gpus": "0, 2,x,"}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        assert_eq!(node_of(&map), Some("a"));
        assert_eq!(unhealthy(&map), BTreeSet::from([0, 2]));
    }

    /// JSON merge patch, as the API server applies it.
    fn merge(object: &mut Value, patch: &Value) {
        let (Some(fields), Value::Object(changes)) = (object.as_object_mut(), patch) else {
            *object = patch.clone();
            return;
        };
        for (name, change) in changes {
            match change {
                Value::Null => {
                    fields.remove(name);
                }
                change => merge(fields.entry(name).or_insert(Value::Null), change),
            }
        }
    }
}
