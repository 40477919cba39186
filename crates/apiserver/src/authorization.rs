//! Authorization: the attributes of requests, and RBAC.

mod bootstrap;
mod escalation;
mod policy;
mod rule;

use crate::authentication::User;
use crate::status::ApiError;

pub use bootstrap::{BootstrapObject, bootstrap_objects};
pub use escalation::missing_rights;
pub use policy::{RbacPolicy, RbacTable, RuleSource, aggregated_rules};
pub use rule::{PolicyRule, quoted_list};

/// The group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The group that may do everything, whatever the roles are.
pub const MASTERS_GROUP: &str = "system:masters";

/// The authorization mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Every authenticated user may do everything.
    #[default]
    AlwaysAllow,
    /// RBAC.
    Rbac,
}

/// The attributes of a request for authorization.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizationAttributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub what: RequestTarget<'a>,
}

/// The resource or path of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestTarget<'a> {
    Resource(ResourceAttributes<'a>),
    /// A path that is no resource, such as `/healthz`.
    Path(&'a str),
}

/// A resource or an object. What does not apply is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceAttributes<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// An authorization decision. The reason may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationDecision {
    Allowed {
        reason: String,
    },
    /// Nothing allows it.
    Refused {
        reason: String,
    },
}

impl AuthorizationDecision {
    /// Whether it is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self, AuthorizationDecision::Allowed { .. })
    }

    /// Why; may be empty.
    pub fn reason(&self) -> &str {
        let (AuthorizationDecision::Allowed { reason } | AuthorizationDecision::Refused { reason }) =
            self;
        reason
    }
}

impl<'a> AuthorizationAttributes<'a> {
    /// The namespace; empty for what has none.
    pub fn namespace(&self) -> &'a str {
        match self.what {
            RequestTarget::Resource(it) => it.namespace,
            RequestTarget::Path(_) => "",
        }
    }

    /// A 403 with upstream's message.
    pub fn forbidden(&self, reason: &str) -> ApiError {
        let user = &self.user.name;
        let (verb, resource) = (self.verb, self.resource());
        let what = match self.what {
            RequestTarget::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
            RequestTarget::Resource(it) => {
                let slash = if it.subresource.is_empty() { "" } else { "/" };
                let named = format!("{}{slash}{}", it.resource, it.subresource);
                let scope = match it.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                format!(
                    "User {user:?} cannot {verb} resource {named:?} in API group {:?} {scope}",
                    it.group
                )
            }
        };
        // Nothing in a refusal shall look like markup.
        let mut why = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if !reason.is_empty() {
            why = format!("{why}: {reason}");
        }
        ApiError::forbidden_resource(resource.group, resource.resource, resource.name, &why)
    }

    fn resource(&self) -> ResourceAttributes<'a> {
        match self.what {
            RequestTarget::Resource(it) => it,
            RequestTarget::Path(_) => ResourceAttributes::default(),
        }
    }
}

/// Authorizes a request with RBAC.
pub fn authorize_by_rbac(
    policy: &RbacPolicy,
    attributes: &AuthorizationAttributes<'_>,
) -> AuthorizationDecision {
    if attributes.user.groups.iter().any(|it| it == MASTERS_GROUP) {
        return AuthorizationDecision::Allowed { reason: String::new() };
    }
    let mut errors = Vec::new();
    for (source, rules) in policy.rules_of(attributes.user, attributes.namespace()) {
        match rules {
            Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                return AuthorizationDecision::Allowed {
                    reason: format!("RBAC: allowed by {source}"),
                };
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    let reason = match join_errors(&errors) {
        Some(text) => format!("RBAC: {text}"),
        None => String::new(),
    };
    AuthorizationDecision::Refused { reason }
}

/// Errors as Go prints several of them; none if there are none.
pub fn join_errors(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.clone()),
        _ => Some(format!("[{}]", errors.join(", "))),
    }
}

#[cfg(test)]
mod tests;
