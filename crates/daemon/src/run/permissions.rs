//! Checks at start that the permissions which plugins require are granted. Kinds that plugins watch are not checked here: a watch that is
//! not allowed is reported by `missing_kinds`.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use loadmaster_client::api_client::{ApiClient, Request};
use loadmaster_framework::PolicyRule;
use serde_json::{Value, json};
use tokio::time::sleep;

/// A permission: one combination of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Permission {
    plugin: &'static str,
    group: String,
    /// Empty: all objects.
    name: String,
    resource: String,
    verb: String,
}

/// At most so many are checked.
const N_PERMISSIONS_MAX: usize = 500;

/// Pauses between attempts while the API server cannot be reached.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The permissions of these rules, each once.
pub(super) fn permissions<'a>(
    rules: impl Iterator<Item = (&'static str, &'a PolicyRule)>,
) -> Vec<Permission> {
    let mut all = BTreeSet::new();
    for (plugin, rule) in rules {
        let any = [String::new()];
        let names = if rule.resource_names.is_empty() { &any[..] } else { &rule.resource_names };
        for group in &rule.api_groups {
            for resource in &rule.resources {
                for name in names {
                    all.extend(rule.verbs.iter().map(|verb| Permission {
                        plugin,
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
    }
    all.into_iter().take(N_PERMISSIONS_MAX).collect()
}

/// Logs an error for each permission that the scheduler does not have.
pub(super) async fn report_missing(client: ApiClient, permissions: Vec<Permission>) {
    for permission in permissions {
        let is_granted = loop {
            match permission.is_granted(&client).await {
                Ok(is_granted) => break is_granted,
                Err(error) => {
                    tracing::info!(v = 2, %error, "Checking the permissions of plugins failed");
                    sleep(RETRY_DELAY).await;
                }
            }
        };
        if !is_granted {
            let plugin = permission.plugin;
            tracing::error!(plugin, "{}, which the plugin requires", permission.message());
        }
    }
}

impl Permission {
    /// As the message for a watch that is not allowed.
    fn message(&self) -> String {
        let Permission { group, resource, name, verb, .. } = self;
        let group = if group.is_empty() { "core" } else { group };
        let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        format!("not allowed to {verb} {resource}{name} in {group} at cluster scope")
    }

    fn review(&self) -> Value {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "group": self.group,
                "resource": resource,
                "subresource": subresource,
                "name": self.name,
                "verb": self.verb,
            }},
        })
    }

    async fn is_granted(&self, client: &ApiClient) -> Result<bool, String> {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let request = Request::with_body(Method::POST, path, self.review().to_string());
        let reply = client.call(&request).await.map_err(|error| error.to_string())?;
        if !reply.is_success() {
            return Err(format!("SelfSubjectAccessReview: status {}", reply.status));
        }
        let review: Value = loadmaster_stdx::json::from_slice(&reply.body).unwrap_or_default();
        review["status"]["allowed"]
            .as_bool()
            .ok_or_else(|| "SelfSubjectAccessReview: a response without status.allowed".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_a_rule_is_a_permission() {
        let status = PolicyRule::new(&["example.com"], &["podgroups/status"], &["get", "patch"]);
        let pods = PolicyRule::new(&[""], &["pods"], &["delete"]).with_resource_names(&["a", "b"]);
        let rules = [("Group", &status), ("Group", &pods), ("Group", &status)];
        let all = permissions(rules.into_iter());
        let messages: Vec<String> = all.iter().map(Permission::message).collect();
        assert_eq!(
            messages,
            [
                "not allowed to delete pods \"a\" in core at cluster scope",
                "not allowed to delete pods \"b\" in core at cluster scope",
                "not allowed to get podgroups/status in example.com at cluster scope",
                "not allowed to patch podgroups/status in example.com at cluster scope",
            ]
        );
        let attributes = &all[3].review()["spec"]["resourceAttributes"];
        assert_eq!(
            attributes,
            &json!({"group": "example.com", "resource": "podgroups", "subresource": "status",
                "name": "", "verb": "patch"})
        );
    }
}
