//! The role bindings that upstream's documentation recommends for a second scheduler.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::api_client::ApiClient;

/// Upstream's roles for schedulers; they are cluster-wide.
const CLUSTER_ROLES: [&str; 2] = ["system:kube-scheduler", "system:volume-scheduler"];
/// The role in kube-system with which delegated authentication reads the trusted CAs.
const READER: &str = "extension-apiserver-authentication-reader";

/// A subject of role bindings: all users of a group.
pub fn group(name: &str) -> Value {
    json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name})
}

/// A subject of role bindings: a service account of kube-system.
pub fn service_account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": name})
}

/// Binds the roles that a scheduler needs to `subject`.
pub async fn bind_scheduler_roles(api: &ApiClient, subject: &Value) -> Result<()> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let binding = |kind: &str, role_kind: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": format!("e2e:{role}")},
            "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        })
    };
    for role in CLUSTER_ROLES {
        let object = binding("ClusterRoleBinding", "ClusterRole", role);
        let created = api.create(&format!("{rbac}/clusterrolebindings"), &object).await;
        created.with_context(|| format!("binding the role {role}"))?;
    }
    let object = binding("RoleBinding", "Role", READER);
    let created = api.create(&format!("{rbac}/namespaces/kube-system/rolebindings"), &object).await;
    created.with_context(|| format!("binding the role {READER}"))?;
    Ok(())
}
