//! Nodes and pods for tests, from the few words that matter.
//!
//! ```
//! use loadmaster_framework::testkit::{node, pod};
//! let big = node("big").label("zone", "a").allocatable("cpu", "64");
//! let web = pod("web").label("app", "web").request("cpu", "500m").priority(10);
//! # let _: (serde_json::Value, serde_json::Value) = (big.into(), web.into());
//! ```

use serde_json::{Value, json};

/// A node that takes 110 pods, 4 CPUs and 16 GiB, ready for more.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": []},
        "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}},
    }))
}

/// A pod of one container that asks for nothing, in the namespace `default`.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {}}}], "tolerations": []},
    }))
}

/// What [`node`] makes.
#[derive(Clone, Debug)]
pub struct NodeBuilder(Value);

/// What [`pod`] makes.
#[derive(Clone, Debug)]
pub struct PodBuilder(Value);

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
    /// With a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    /// With an annotation, for plugins that [need](crate::Need) them.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Offering this much of a resource.
    #[must_use]
    pub fn allocatable(mut self, resource: &str, amount: &str) -> Self {
        self.0["status"]["allocatable"][resource] = amount.into();
        self
    }

    /// With a taint; the effect is `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        push(&mut self.0["spec"]["taints"], json!({"key": key, "value": value, "effect": effect}));
        self
    }

    /// With anything else, as a JSON pointer says where: `set("/spec/unschedulable", true)`.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, pointer, value.into());
        self
    }
}

impl PodBuilder {
    /// In this namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata/namespace", namespace)
    }

    /// With a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    /// With an annotation, for plugins that [need](crate::Need) them.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Asking for this much of a resource.
    #[must_use]
    pub fn request(mut self, resource: &str, amount: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"][resource] = amount.into();
        self
    }

    /// With this `spec.priority`.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.set("/spec/priority", priority)
    }

    /// Only for nodes with this label.
    #[must_use]
    pub fn node_selector(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["nodeSelector"][key] = value.into();
        self
    }

    /// Tolerating taints with this key, whatever their value and effect.
    #[must_use]
    pub fn tolerates(mut self, key: &str) -> Self {
        push(&mut self.0["spec"]["tolerations"], json!({"key": key, "operator": "Exists"}));
        self
    }

    /// With anything else, as a JSON pointer says where: `set("/spec/schedulerName", "mine")`.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, pointer, value.into());
        self
    }
}

fn push(list: &mut Value, item: Value) {
    if let Value::Array(items) = list {
        items.push(item);
    }
}

/// Objects on the way are made; a list must have the item.
fn set(value: &mut Value, pointer: &str, to: Value) {
    let steps = pointer.split('/').skip(1);
    let place = steps.fold(value, |at, step| match step.parse::<usize>() {
        Ok(item) if at.is_array() => &mut at[item],
        _ => &mut at[step],
    });
    *place = to;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_can_be_set() {
        let built: Value = pod("web")
            .request("cpu", "1")
            .node_selector("disk", "ssd")
            .set("/spec/containers/0/image", "nginx")
            .into();
        assert_eq!(built["spec"]["nodeSelector"], json!({"disk": "ssd"}));
        assert_eq!(built["spec"]["containers"][0]["image"], "nginx");
        assert_eq!(built["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
        let built: Value = node("a").taint("dedicated", "db", "NoSchedule").into();
        assert_eq!(built["spec"]["taints"][0]["key"], "dedicated");
    }
}
