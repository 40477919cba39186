//! The rights that upstream's documentation gives a second scheduler, by binding built-in roles.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::api::Api;

/// Upstream's roles for schedulers; they are cluster-wide.
const CLUSTER_ROLES: [&str; 2] = ["system:kube-scheduler", "system:volume-scheduler"];
/// Lets delegated authentication read whom to trust; a role of kube-system.
const READER: &str = "extension-apiserver-authentication-reader";

/// A subject of role bindings: all users of a group.
pub fn group(name: &str) -> Value {
    json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name})
}

/// A subject of role bindings: a service account of kube-system.
pub fn service_account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": name})
}

/// Gives `subject` what a scheduler needs, and nothing else.
pub async fn scheduler_roles(api: &Api, subject: &Value) -> Result<()> {
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
        let made = api.create(&format!("{rbac}/clusterrolebindings"), &object).await;
        made.with_context(|| format!("binding the role {role}"))?;
    }
    let object = binding("RoleBinding", "Role", READER);
    let made = api.create(&format!("{rbac}/namespaces/kube-system/rolebindings"), &object).await;
    made.with_context(|| format!("binding the role {READER}"))?;
    Ok(())
}
