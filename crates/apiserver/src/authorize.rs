//! Who may do what: requests as authorization sees them, and roles and bindings (RBAC) that allow them.

mod bootstrap;
mod covers;
mod policy;
mod rule;

use crate::auth::User;
use crate::status::ApiError;

pub use bootstrap::{Made, bootstrap};
pub use covers::missing;
pub use policy::{Policy, Source, Table, gathered};
pub use rule::{Rule, quoted};

/// The group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Those in this group may do everything, whatever roles say.
pub const MASTERS: &str = "system:masters";

/// How requests are decided on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everybody who is known may do everything.
    #[default]
    AlwaysAllow,
    /// By roles and bindings.
    Rbac,
}

/// A request as authorization sees it.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub what: What<'a>,
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    Resource(Resource<'a>),
    /// A path that is no resource, such as `/healthz`.
    Path(&'a str),
}

/// A resource or an object. What does not apply is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resource<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// What came of it. The reason may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed {
        reason: String,
    },
    /// Nothing allows it.
    Refused {
        reason: String,
    },
}

impl Decision {
    /// Whether it is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allowed { .. })
    }

    /// Why; may be empty.
    pub fn reason(&self) -> &str {
        let (Decision::Allowed { reason } | Decision::Refused { reason }) = self;
        reason
    }
}

impl<'a> Attributes<'a> {
    /// The namespace; empty for what has none.
    pub fn namespace(&self) -> &'a str {
        match self.what {
            What::Resource(it) => it.namespace,
            What::Path(_) => "",
        }
    }

    /// 403, in upstream's words.
    pub fn forbidden(&self, reason: &str) -> ApiError {
        let user = &self.user.name;
        let (verb, resource) = (self.verb, self.resource());
        let what = match self.what {
            What::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
            What::Resource(it) => {
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

    fn resource(&self) -> Resource<'a> {
        match self.what {
            What::Resource(it) => it,
            What::Path(_) => Resource::default(),
        }
    }
}

/// Decides by roles and bindings.
pub fn decide(policy: &Policy, attributes: &Attributes<'_>) -> Decision {
    if attributes.user.groups.iter().any(|it| it == MASTERS) {
        return Decision::Allowed { reason: String::new() };
    }
    let mut errors = Vec::new();
    for (source, rules) in policy.rules_of(attributes.user, attributes.namespace()) {
        match rules {
            Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                return Decision::Allowed { reason: format!("RBAC: allowed by {source}") };
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    let reason = match joined(&errors) {
        Some(text) => format!("RBAC: {text}"),
        None => String::new(),
    };
    Decision::Refused { reason }
}

/// Errors as Go prints several of them; none if there are none.
pub fn joined(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.clone()),
        _ => Some(format!("[{}]", errors.join(", "))),
    }
}

#[cfg(test)]
mod tests;
