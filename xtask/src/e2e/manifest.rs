//! Creates objects of any kind, such as those of an example's manifest.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::api_client::ApiClient;

/// The kinds of objects: kind, resource, and whether it is namespaced.
const KINDS: [(&str, &str, bool); 22] = [
    ("CSIDriver", "csidrivers", false),
    ("CSINode", "csinodes", false),
    ("ClusterRole", "clusterroles", false),
    ("ClusterRoleBinding", "clusterrolebindings", false),
    ("ConfigMap", "configmaps", true),
    ("CustomResourceDefinition", "customresourcedefinitions", false),
    ("Deployment", "deployments", true),
    ("Namespace", "namespaces", false),
    ("NetworkPolicy", "networkpolicies", true),
    ("PersistentVolume", "persistentvolumes", false),
    ("PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("Pod", "pods", true),
    ("PodDisruptionBudget", "poddisruptionbudgets", true),
    ("PriorityClass", "priorityclasses", false),
    ("PrometheusRule", "prometheusrules", true),
    ("Role", "roles", true),
    ("RoleBinding", "rolebindings", true),
    ("Service", "services", true),
    ("ServiceAccount", "serviceaccounts", true),
    ("ServiceMonitor", "servicemonitors", true),
    ("StatefulSet", "statefulsets", true),
    ("StorageClass", "storageclasses", false),
];

/// The objects of a file below the root of the repository, in order.
pub fn read(path: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(crate::root()?.join(path));
    let text = text.with_context(|| format!("reading {path}"))?;
    parse(&text).with_context(|| format!("reading {path}"))
}

/// The objects of a YAML text, in order.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let objects = text.split("\n---\n").map(serde_saphyr::from_str);
    objects.collect::<Result<_, _>>().context("a document that is not an object")
}

/// Creates an object in its collection.
pub async fn create(api: &ApiClient, object: &Value) -> Result<()> {
    api.create(&collection_path(object)?, object).await.map(drop)
}

/// The path of the collection to which an object belongs.
pub fn collection_path(object: &Value) -> Result<String> {
    let (version, kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    let known = KINDS.iter().find(|(name, ..)| Some(*name) == kind);
    let (Some(version), Some((_, plural, is_namespaced))) = (version, known) else {
        bail!("a manifest of kind {kind:?} in version {version:?}");
    };
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let namespace = match object["metadata"]["namespace"].as_str() {
        _ if !is_namespaced => String::new(),
        Some(namespace) => format!("/namespaces/{namespace}"),
        None => bail!("{kind:?} without a namespace"),
    };
    Ok(format!("{root}/{version}{namespace}/{plural}"))
}

/// A token of a service account in kube-system.
pub async fn account_token(api: &ApiClient, account: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}/token");
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let response = api.create(&path, &request).await?;
    let token = response["status"]["token"].as_str().context("a token request without a token")?;
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_object_has_a_collection_path() {
        for (path, first) in [
            ("examples/gang/crd.yaml", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            (
                "examples/gpushare-extender/deploy/gpushare-extender.yaml",
                "/api/v1/namespaces/kube-system/serviceaccounts",
            ),
            (
                "examples/sample-plugin/deploy/sample-plugin.yaml",
                "/api/v1/namespaces/kube-system/serviceaccounts",
            ),
        ] {
            let objects = read(path).unwrap();
            assert_eq!(collection_path(&objects[0]).unwrap(), first);
            objects.iter().for_each(|object| drop(collection_path(object).unwrap()));
        }
    }
}
