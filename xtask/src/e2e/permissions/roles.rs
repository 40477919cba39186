//! The roles that `config rbac` prints, and the permissions in them.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::e2e::api_client::ApiClient;
use crate::e2e::audit::AuditEntry;
use crate::e2e::{manifest, special_pods};

/// The roles, their bindings and the account, as `config rbac` prints them.
#[derive(Clone)]
pub struct Roles {
    objects: Vec<Value>,
}

/// One verb on one resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permission {
    /// Index among the objects, and of the rule in it.
    role: usize,
    rule: usize,
    group: String,
    pub resource: String,
    pub verb: String,
    /// The only object's name; empty if there is no such restriction.
    name: String,
    /// Empty for all namespaces.
    namespace: String,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in {}", self.namespace)?;
        }
        Ok(())
    }
}

impl Permission {
    /// Whether a request needs this permission, by verb and resource.
    pub fn allows(&self, entry: &AuditEntry) -> bool {
        self.verb == entry.verb && self.resource == entry.resource
    }

    /// Whether only an API server without events.k8s.io/v1 needs it.
    pub fn is_core_event(&self) -> bool {
        self.resource == "events" && self.group.is_empty()
    }

    /// Whether only a lost response makes it necessary: whether the pod was bound has to be looked up.
    pub fn needs_lost_responses(&self) -> bool {
        (self.verb.as_str(), self.resource.as_str()) == ("get", "pods")
    }
}

impl Roles {
    /// What `config rbac` prints for a configuration, for an account in kube-system.
    pub fn printed(loadmaster: &Path, config: &Path, account: &str) -> Result<Roles> {
        let mut command = Command::new(loadmaster);
        command.args(["config", "rbac"]).arg(config).args(["--with-controllers", "--name"]);
        command.args([account, "--service-account", &format!("kube-system/{account}")]);
        let output = command.output().context("running config rbac")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "config rbac: {}: {errors}", output.status);
        let text = String::from_utf8(output.stdout).context("roles that are not UTF-8")?;
        Ok(Roles { objects: manifest::parse(&text)? })
    }

    /// All permissions, in their order.
    pub fn permissions(&self) -> Vec<Permission> {
        let mut all = Vec::new();
        for (role, object) in self.objects.iter().enumerate() {
            for (rule, written) in object["rules"].as_array().into_iter().flatten().enumerate() {
                let texts = |field: &str| {
                    let items = written[field].as_array().into_iter().flatten();
                    items.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
                };
                let name = texts("resourceNames").pop().unwrap_or_default();
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                for group in texts("apiGroups") {
                    for resource in texts("resources") {
                        all.extend(texts("verbs").into_iter().map(|verb| Permission {
                            role,
                            rule,
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                            name: name.clone(),
                            namespace: namespace.to_owned(),
                        }));
                    }
                }
            }
        }
        all
    }

    /// The roles without one permission: its rule is replaced by one for each of its other permissions.
    pub fn without(&self, left_out: &Permission) -> Roles {
        let mut roles = self.clone();
        let others = self.permissions().into_iter().filter(|other| {
            (other.role, other.rule) == (left_out.role, left_out.rule) && other != left_out
        });
        let rule_of = |permission: Permission| {
            let mut rule = json!({"apiGroups": [permission.group], "resources": [permission.resource], "verbs": [permission.verb]});
            if !permission.name.is_empty() {
                rule["resourceNames"] = json!([permission.name]);
            }
            rule
        };
        if let Some(rules) = roles.objects[left_out.role]["rules"].as_array_mut() {
            rules.splice(left_out.rule..=left_out.rule, others.map(rule_of));
        }
        roles
    }

    /// Creates the account, the roles and the bindings, and waits until the API server applies them.
    pub async fn create(&self, api: &ApiClient, user: &str) -> Result<()> {
        for object in &self.objects {
            manifest::create(api, object).await?;
        }
        for permission in self.permissions() {
            special_pods::wait_until(
                "a role to be applied",
                special_pods::STEP_TIMEOUT,
                async || is_allowed(api, user, &permission).await,
            )
            .await
            .with_context(|| permission.to_string())?;
        }
        Ok(())
    }
}

async fn is_allowed(api: &ApiClient, user: &str, permission: &Permission) -> Result<bool> {
    let (resource, subresource) =
        permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": user,
        "resourceAttributes": {
            "group": permission.group, "resource": resource, "subresource": subresource,
            "verb": permission.verb, "name": permission.name, "namespace": permission.namespace}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    Ok(api.create(path, &review).await?["status"]["allowed"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_permission_is_left_out() {
        let rule = json!({"apiGroups": ["", "e"], "resources": ["a", "b/c"], "verbs": ["get"], "resourceNames": ["n"]});
        let other = json!({"apiGroups": [""], "resources": ["d"], "verbs": ["list", "watch"]});
        let objects = vec![
            json!({"kind": "ServiceAccount"}),
            json!({"kind": "Role", "metadata": {"namespace": "s"}, "rules": [rule, other]}),
        ];
        let roles = Roles { objects };
        let names = |roles: &Roles| {
            let all = roles.permissions();
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let all = [
            "get a in s",
            "get b/c in s",
            "get a.e in s",
            "get b/c.e in s",
            "list d in s",
            "watch d in s",
        ];
        assert_eq!(names(&roles), all);
        for (at, left_out) in roles.permissions().iter().enumerate() {
            let without = roles.without(left_out);
            let mut want = all.to_vec();
            want.remove(at);
            assert_eq!(names(&without), want);
            assert!(
                without.permissions().iter().filter(|it| it.verb == "get").all(|it| it.name == "n")
            );
        }
    }
}
