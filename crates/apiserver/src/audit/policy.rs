//! The audit policy (`audit.k8s.io/v1` `Policy`): the first matching rule decides. The levels with bodies are
//! rejected: bodies can contain secrets.

use loadmaster_api::document::from_yaml;
use serde::Deserialize;

use crate::authorization::{AuthorizationAttributes, RequestTarget};

/// The stage at which a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// The response of a watch has started.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    /// As the log has it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// Which requests are logged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuditPolicy {
    api_version: String,
    kind: String,
    metadata: serde::de::IgnoredAny,
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    /// There are no bodies from which they could be left out.
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Resources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// Why a policy is rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error("reading the audit policy")]
    Text(#[source] serde_saphyr::Error),
    #[error("{field} is {found:?}, not {wanted:?}")]
    Kind { field: &'static str, found: String, wanted: &'static str },
    #[error("rules[{at}].level {level:?} is not supported here: None and Metadata are")]
    Level { at: usize, level: String },
}

impl AuditPolicy {
    /// Every request, when its response is complete.
    pub fn everything() -> AuditPolicy {
        let rule = Rule { level: "Metadata".to_owned(), ..Rule::default() };
        AuditPolicy { rules: vec![rule], ..AuditPolicy::default() }
    }

    /// Reads a policy, YAML or JSON.
    ///
    /// # Errors
    ///
    /// When it cannot be parsed or has a level with bodies.
    pub fn read(text: &str) -> Result<AuditPolicy, PolicyError> {
        let policy: AuditPolicy = from_yaml(text).map_err(PolicyError::Text)?;
        for (field, found, wanted) in [
            ("apiVersion", &policy.api_version, "audit.k8s.io/v1"),
            ("kind", &policy.kind, "Policy"),
        ] {
            if found != wanted {
                return Err(PolicyError::Kind { field, found: found.clone(), wanted });
            }
        }
        for (at, rule) in policy.rules.iter().enumerate() {
            if !matches!(rule.level.as_str(), "None" | "Metadata") {
                return Err(PolicyError::Level { at, level: rule.level.clone() });
            }
        }
        Ok(policy)
    }

    /// The stages that are left out of a request's lines; none if it has no lines at all.
    pub(super) fn wants(&self, attributes: &AuthorizationAttributes<'_>) -> Option<Vec<Stage>> {
        let rule = self.rules.iter().find(|rule| rule.fits(attributes))?;
        let all = self.omit_stages.iter().chain(&rule.omit_stages).copied();
        (rule.level != "None").then(|| all.collect())
    }
}

fn is_in(list: &[String], text: &str) -> bool {
    list.iter().any(|it| it == text)
}

impl Rule {
    fn fits(&self, attributes: &AuthorizationAttributes<'_>) -> bool {
        let user = attributes.user;
        let has_group = || user.groups.iter().any(|group| is_in(&self.user_groups, group));
        if (!self.users.is_empty() && !is_in(&self.users, &user.name))
            || (!self.user_groups.is_empty() && !has_group())
            || (!self.verbs.is_empty() && !is_in(&self.verbs, attributes.verb))
        {
            return false;
        }
        let wants_resources = !self.namespaces.is_empty() || !self.resources.is_empty();
        match attributes.what {
            RequestTarget::Path(path) => {
                let fits = |rule: &String| {
                    rule == path
                        || rule.strip_suffix('*').is_some_and(|start| path.starts_with(start))
                };
                !wants_resources
                    && (self.non_resource_urls.is_empty()
                        || self.non_resource_urls.iter().any(fits))
            }
            RequestTarget::Resource(it) if wants_resources => {
                (self.namespaces.is_empty() || is_in(&self.namespaces, it.namespace))
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|rule| rule.fits(&it)))
            }
            RequestTarget::Resource(_) => self.non_resource_urls.is_empty(),
        }
    }
}

impl Resources {
    fn fits(&self, it: &crate::authorization::ResourceAttributes<'_>) -> bool {
        if self.group != it.group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let is_named = self.resource_names.is_empty() || is_in(&self.resource_names, it.name);
        is_named
            && self.resources.iter().any(|rule| match rule.split_once('/') {
                _ if rule == "*" => true,
                None => rule == it.resource && it.subresource.is_empty(),
                Some(("*", sub)) => !it.subresource.is_empty() && sub == it.subresource,
                Some((resource, "*")) => resource == it.resource,
                Some((resource, sub)) => resource == it.resource && sub == it.subresource,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authentication::User;
    use crate::authorization::ResourceAttributes;

    const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [ann]
  verbs: [watch]
- level: Metadata
  resources:
  - {group: '', resources: [pods/binding, '*/status', secrets/*]}
- level: None
  nonResourceURLs: ['/healthz*']
- level: Metadata
  namespaces: ['']
  omitStages: [ResponseStarted]
- level: Metadata
  nonResourceURLs: ['*']
";

    #[track_caller]
    fn check(user: &str, verb: &str, what: RequestTarget<'_>, want: Option<usize>) {
        let policy = AuditPolicy::read(POLICY).expect("a policy");
        let user = User::authenticated(user, Vec::new());
        let stages = policy.wants(&AuthorizationAttributes { user: &user, verb, what });
        assert_eq!(stages.map(|it| it.len()), want, "{verb} {what:?}");
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let of = |resource, subresource, namespace| {
            RequestTarget::Resource(ResourceAttributes {
                resource,
                subresource,
                namespace,
                ..ResourceAttributes::default()
            })
        };
        check("ann", "watch", of("nodes", "", ""), None);
        check("bob", "watch", of("nodes", "", ""), Some(2));
        check("bob", "create", of("pods", "binding", "a"), Some(1));
        check("bob", "update", of("pods", "status", "a"), Some(1));
        check("bob", "get", of("secrets", "", "a"), Some(1));
        check("bob", "get", of("pods", "", "a"), None);
        check("bob", "get", RequestTarget::Path("/healthz/ping"), None);
        check("bob", "get", RequestTarget::Path("/version"), Some(1));
    }

    #[test]
    fn refusals() {
        let error = |text: &str| AuditPolicy::read(text).expect_err("a bad policy").to_string();
        assert_eq!(error("{kind: Policy}"), r#"apiVersion is "", not "audit.k8s.io/v1""#);
        let text = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Request}]}";
        assert!(error(text).starts_with(r#"rules[0].level "Request" is not supported"#));
        assert_eq!(error("{rule: []}"), "reading the audit policy");
    }
}
