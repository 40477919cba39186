//! Builders of nodes and pods for tests.
//!
//! ```
//! use loadmaster_framework::testkit::{node, pod};
//! let big = node("big").label("zone", "a").allocatable("cpu", "64");
//! let web = pod("web").label("app", "web").request("cpu", "500m").priority(10);
//! # let _: (serde_json::Value, serde_json::Value) = (big.into(), web.into());
//! ```

use serde_json::{Value, json};

/// A builder for a node with 4 CPUs, 16 GiB of memory and 110 pods allocatable.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}},
    }))
}

/// A builder for a pod with one container without requests, in the namespace `default`.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {}}}], "tolerations": []},
    }))
}

/// Builds the JSON of a node; see [`node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder(Value);

/// Builds the JSON of a pod; see [`pod`].
#[derive(Clone, Debug)]
pub struct PodBuilder(Value);

impl From<Value> for PodBuilder {
    /// Changes an existing manifest.
    fn from(manifest: Value) -> PodBuilder {
        PodBuilder(manifest)
    }
}

impl From<NodeBuilder> for Value {
    fn from(node: NodeBuilder) -> Value {
        node.0
    }
}

impl From<PodBuilder> for Value {
    fn from(pod: PodBuilder) -> Value {
        pod.0
    }
}

impl NodeBuilder {
    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    /// Sets an annotation, for plugins that [need](crate::ExtraField) them.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Sets the allocatable amount of a resource.
    #[must_use]
    pub fn allocatable(mut self, resource: &str, amount: &str) -> Self {
        self.0["status"]["allocatable"][resource] = amount.into();
        self
    }

    /// Adds a taint; the effect is `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        push(&mut self.0["spec"]["taints"], json!({"key": key, "value": value, "effect": effect}));
        self
    }

    /// Sets any other field by JSON pointer: `set("/spec/unschedulable", true)`.
    #[must_use]
    pub fn set_field(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, pointer, value.into());
        self
    }
}

impl PodBuilder {
    /// Sets the namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.set_field("/metadata/namespace", namespace)
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    /// Sets an annotation, for plugins that [need](crate::ExtraField) them.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Sets the container's request of a resource.
    #[must_use]
    pub fn request(mut self, resource: &str, amount: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"][resource] = amount.into();
        self
    }

    /// Sets `spec.priority`.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.set_field("/spec/priority", priority)
    }

    /// Adds a label to `spec.nodeSelector`.
    #[must_use]
    pub fn node_selector(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["nodeSelector"][key] = value.into();
        self
    }

    /// Adds a toleration of taints with this key, with any value and effect.
    #[must_use]
    pub fn tolerates(mut self, key: &str) -> Self {
        push(&mut self.0["spec"]["tolerations"], json!({"key": key, "operator": "Exists"}));
        self
    }

    /// Sets any other field by JSON pointer: `set("/spec/schedulerName", "mine")`.
    #[must_use]
    pub fn set_field(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, pointer, value.into());
        self
    }
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(items) = list {
        items.push(item);
    }
}

/// Missing objects on the path are created; list items must exist.
fn set(value: &mut Value, pointer: &str, to: Value) {
    let steps = pointer.split('/').skip(1);
    let target = steps.fold(value, |at, step| match step.parse::<usize>() {
        Ok(item) if at.is_array() => &mut at[item],
        _ => &mut at[step],
    });
    *target = to;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_set_any_field() {
        let built: Value = pod("web")
            .request("cpu", "1")
            .node_selector("disk", "ssd")
            .set_field("/spec/containers/0/image", "nginx")
            .into();
        assert_eq!(built["spec"]["nodeSelector"], json!({"disk": "ssd"}));
        assert_eq!(built["spec"]["containers"][0]["image"], "nginx");
        assert_eq!(built["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
        let built: Value = node("a").taint("dedicated", "db", "NoSchedule").into();
        assert_eq!(built["spec"]["taints"][0]["key"], "dedicated");
    }
}
