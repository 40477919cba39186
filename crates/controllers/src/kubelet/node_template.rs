//! Node templates, decoded strictly from files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use loadmaster_api::Quantity;
use loadmaster_api::document::{Document, FieldPath, LocatedError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::FAKE_NODE_ANNOTATION;

/// A template: a Node manifest with the fields that can be set at creation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
pub struct NodeTemplate {
    #[serde(skip_serializing)]
    api_version: String,
    #[serde(skip_serializing)]
    kind: String,
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Metadata {
    /// Prefix of the node names: followed by a hyphen and a number.
    name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Spec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<Taint>,
    unschedulable: bool,
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty")]
    provider_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Taint {
    key: String,
    #[serde(default)]
    value: String,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
enum Effect {
    #[default]
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Status {
    capacity: BTreeMap<String, Amount>,
    /// Defaults to the capacity.
    allocatable: BTreeMap<String, Amount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
    node_info: NodeInfo,
}

/// A quantity, as a text or a number.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a quantity")]
enum Amount {
    Number(i64),
    Text(String),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct Image {
    names: Vec<String>,
    #[serde(default)]
    size_bytes: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "an object")]
struct NodeInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operating_system: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    os_image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubelet_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_runtime_version: Option<String>,
}

/// Default capacity of a node.
const SIZE: [(&str, &str); 4] =
    [("cpu", "32"), ("memory", "128Gi"), ("ephemeral-storage", "512Gi"), ("pods", "110")];

impl NodeTemplate {
    /// Reads the templates of a file: one or several Node manifests.
    ///
    /// # Errors
    ///
    /// When a field is unknown or cannot be set, or a quantity is invalid; with its position.
    pub fn from_document(document: &Document) -> Result<Vec<NodeTemplate>, LocatedError> {
        let templates: Vec<NodeTemplate> = document.decode_all()?;
        if templates.is_empty() {
            return Err(document.error_at(FieldPath::ROOT, "expected a Node, found nothing"));
        }
        for (part, template) in templates.iter().enumerate() {
            let checked = template.check();
            checked.map_err(|(path, text)| document.error_in_part(part, path, text))?;
        }
        Ok(templates)
    }

    fn check(&self) -> Result<(), (FieldPath, String)> {
        let at = |name: &str| FieldPath::ROOT.field(name);
        for (name, found, want) in
            [("apiVersion", &self.api_version, "v1"), ("kind", &self.kind, "Node")]
        {
            if found != want {
                return Err((at(name), format!("expected {want:?}, found {found:?}")));
            }
        }
        let all = [("capacity", &self.status.capacity), ("allocatable", &self.status.allocatable)];
        for (field, amounts) in all {
            for (name, amount) in amounts {
                let wrong = |text: String| (at("status").field(field).field(name), text);
                match amount {
                    Amount::Number(n) if *n < 0 => {
                        return Err(wrong(format!("expected an amount, found {n}")));
                    }
                    Amount::Number(_) => {}
                    Amount::Text(text) => {
                        Quantity::parse(text).map_err(|error| wrong(error.to_string()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Node number `n` of this template.
    fn node(&self, n: usize) -> Result<Node, serde_json::Error> {
        let name = match &*self.metadata.name {
            "" => format!("node-{n}"),
            name => format!("{name}-{n}"),
        };
        let mut json = serde_json::to_value(self)?;
        json["metadata"]["annotations"][FAKE_NODE_ANNOTATION.0] = FAKE_NODE_ANNOTATION.1.into();
        let labels = &mut json["metadata"]["labels"];
        let info = &self.status.node_info;
        let architecture = info.architecture.as_deref().unwrap_or("amd64");
        let system = info.operating_system.as_deref().unwrap_or("linux");
        for (label, value) in [
            ("kubernetes.io/hostname", &*name),
            ("kubernetes.io/arch", architecture),
            ("kubernetes.io/os", system),
        ] {
            if labels[label].is_null() {
                labels[label] = value.into();
            }
        }
        json["metadata"]["name"] = name.into();
        let status = &mut json["status"];
        let mut capacity = json!({});
        for (name, amount) in SIZE {
            capacity[name] = amount.into();
        }
        merge(&mut capacity, &status["capacity"]);
        let mut allocatable = capacity.clone();
        merge(&mut allocatable, &status["allocatable"]);
        status["capacity"] = capacity;
        status["allocatable"] = allocatable;
        // Missing fields are filled in by the kubelet, which knows its own version.
        status["nodeInfo"] = node_info(&status["nodeInfo"]);
        serde_json::from_value(json)
    }
}

/// Quantities as texts.
fn merge(into: &mut Value, from: &Value) {
    for (name, amount) in from.as_object().into_iter().flatten() {
        into[name] = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned).into();
    }
}

/// The node info of a simulated kubelet, with the given fields overridden.
pub(super) fn node_info(said: &Value) -> Value {
    let version = concat!("loadmaster-", env!("CARGO_PKG_VERSION"));
    let mut info = json!({"architecture": "amd64", "operatingSystem": "linux", "osImage": "none", "kernelVersion": version,
        "kubeletVersion": concat!("v1.36.3-loadmaster-", env!("CARGO_PKG_VERSION")), "kubeProxyVersion": "",
        "containerRuntimeVersion": concat!("fake://", env!("CARGO_PKG_VERSION")), "machineID": "", "systemUUID": "", "bootID": ""});
    for (name, value) in said.as_object().into_iter().flatten() {
        if value.as_str().is_some_and(|value| !value.is_empty()) {
            info[name] = value.clone();
        }
    }
    info
}

/// Creates `n_nodes` nodes from the templates in turn.
///
/// # Errors
///
/// Never for templates that were read.
pub fn nodes_from_templates(
    templates: &[NodeTemplate],
    n_nodes: usize,
) -> Result<Vec<Node>, serde_json::Error> {
    let default = [NodeTemplate::default()];
    let templates = if templates.is_empty() { &default } else { templates };
    (0..n_nodes).map(|n| templates[n % templates.len()].node(n)).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const GPU: &str = "\
apiVersion: v1
kind: Node
metadata: {name: gpu, labels: {zone: a, kubernetes.io/os: plan9}}
spec:
  taints: [{key: gpu, effect: NoSchedule}]
status:
  capacity: {cpu: 8, nvidia.com/gpu: '4'}
  allocatable: {cpu: 7500m}
  images: [{names: [a/b:1], sizeBytes: 77}]
---
apiVersion: v1
kind: Node
";

    #[test]
    fn templates_are_used_in_turn() {
        let templates = NodeTemplate::from_document(&Document::new("t", GPU)).unwrap();
        let nodes = nodes_from_templates(&templates, 3).unwrap();
        let names: Vec<_> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        assert_eq!(names, ["gpu-0", "node-1", "gpu-2"]);
        let json = serde_json::to_value(&nodes[2]).unwrap();
        expect![[r#"{"annotations":{"kwok.x-k8s.io/node":"fake"},"labels":{"kubernetes.io/arch":"amd64","kubernetes.io/hostname":"gpu-2","kubernetes.io/os":"plan9","zone":"a"},"name":"gpu-2"} {"taints":[{"effect":"NoSchedule","key":"gpu","value":""}],"unschedulable":false} {"cpu":"8","ephemeral-storage":"512Gi","memory":"128Gi","nvidia.com/gpu":"4","pods":"110"} {"cpu":"7500m","ephemeral-storage":"512Gi","memory":"128Gi","nvidia.com/gpu":"4","pods":"110"} [{"names":["a/b:1"],"sizeBytes":77}]"#]]
        .assert_eq(&format!(
            "{} {} {} {} {}",
            json["metadata"], json["spec"], json["status"]["capacity"], json["status"]["allocatable"], json["status"]["images"]
        ));
    }

    #[test]
    fn invalid_templates() {
        #[track_caller]
        fn check(text: &str, want: &str) {
            let error = NodeTemplate::from_document(&Document::new("t", text)).unwrap_err();
            assert_eq!(error.to_string(), want);
        }
        let node = "apiVersion: v1\nkind: Node\n";
        check("", "t:1:1: expected a Node, found nothing");
        check("kind: Pod\napiVersion: v1\n", "t:1:7: kind: expected \"Node\", found \"Pod\"");
        check(
            &format!("{node}---\n{node}status: {{capacity: {{cpu: 3x}}}}"),
            "t:6:26: status.capacity.cpu: invalid quantity \"3x\": expected a number with an optional suffix such as m, Ki, M or e3",
        );
        check(
            &format!("{node}spec: {{taint: []}}"),
            "t:3:8: spec.taint: unknown field `taint`, expected one of taints, unschedulable, providerID",
        );
        check(
            &format!("{node}spec: {{taints: [{{key: a, effect: Never}}]}}"),
            "t:3:34: spec.taints[0].effect: unknown variant `Never`, expected one of NoSchedule, PreferNoSchedule, NoExecute",
        );
    }
}
