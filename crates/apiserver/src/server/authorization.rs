//! Authorization of requests: RBAC over the roles and bindings in the store.

use std::sync::Arc;

use super::{ApiServer, ResourceRequest};
use crate::authentication::User;
use crate::authorization::{
    self, AuthorizationAttributes, AuthorizationDecision, AuthorizationMode, PolicyRule,
    RbacPolicy, RbacTable, RequestTarget, ResourceAttributes, authorize_by_rbac, join_errors,
};
use crate::object::metadata_text;
use crate::request::{Query, RequestPath};
use crate::status::ApiError;
use crate::store::{Filter, ListOptions};

/// The paths that anonymous users may read in mode AlwaysAllow.
const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];

impl ApiServer {
    /// Authorizes a request.
    pub(super) fn decide(&self, attributes: &AuthorizationAttributes<'_>) -> AuthorizationDecision {
        match self.shared.setup.mode {
            AuthorizationMode::AlwaysAllow => {
                AuthorizationDecision::Allowed { reason: String::new() }
            }
            AuthorizationMode::Rbac => authorize_by_rbac(&self.policy(), attributes),
        }
    }

    /// # Errors
    ///
    /// When the request is not allowed.
    pub(super) fn authorize(
        &self,
        attributes: &AuthorizationAttributes<'_>,
    ) -> Result<AuthorizationDecision, ApiError> {
        let decision = self.decide(attributes);
        match decision {
            AuthorizationDecision::Allowed { .. } => Ok(decision),
            AuthorizationDecision::Refused { ref reason } => Err(attributes.forbidden(reason)),
        }
    }

    /// Whether an anonymous user may read a path.
    pub(super) fn is_open_to_anonymous(&self, path: &str) -> bool {
        let setup = &self.shared.setup;
        setup.anonymous && (setup.mode == AuthorizationMode::Rbac || PUBLIC.contains(&path))
    }

    /// The current roles and bindings.
    pub(super) fn policy(&self) -> Arc<RbacPolicy> {
        let tables = RbacTable::ALL.map(|(_, resource)| {
            self.shared
                .built_in
                .find_stable(authorization::RBAC_GROUP, resource)
                .and_then(|kind| kind.table)
        });
        let seen = {
            let state = self.state();
            tables.map(|table| table.map_or(0, |table| state.store.last_changed(table)))
        };
        let lock = || self.shared.policy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = Arc::clone(&lock());
        if known.is_current(seen) {
            return known;
        }
        let policy = Arc::new(RbacPolicy::read(&known, seen, |table| {
            let Some(table) = tables[table as usize] else { return Vec::new() };
            let page =
                self.state().store.list(table, &ListOptions::default(), &Filter::everything());
            page.map_or_else(|_| Vec::new(), |page| page.objects)
        }));
        *lock() = Arc::clone(&policy);
        policy
    }

    /// The rules of a user in a namespace, and the errors of missing roles.
    pub(super) fn rules_of(
        &self,
        user: &User,
        namespace: &str,
    ) -> (Vec<PolicyRule>, Option<String>) {
        let all = |list: &str| vec![list.to_owned()];
        match self.shared.setup.mode {
            AuthorizationMode::AlwaysAllow => {
                let resources = PolicyRule {
                    verbs: all("*"),
                    api_groups: all("*"),
                    resources: all("*"),
                    ..PolicyRule::default()
                };
                let paths = PolicyRule {
                    verbs: all("*"),
                    non_resource_urls: all("*"),
                    ..PolicyRule::default()
                };
                (vec![resources, paths], None)
            }
            AuthorizationMode::Rbac => {
                let (rules, errors) = self.policy().all_rules_of(user, namespace);
                (rules, join_errors(&errors))
            }
        }
    }
}

/// The resource attributes of a request. `named` is the object name that a field selector gives for a collection.
pub(super) fn resource_of<'a>(target: &'a RequestPath, named: &'a str) -> ResourceAttributes<'a> {
    let own = target.group.is_empty() && target.resource == "namespaces";
    ResourceAttributes {
        group: &target.group,
        resource: &target.resource,
        subresource: &target.subresource,
        // Upstream: a request for a namespace has that namespace.
        namespace: if own { &target.name } else { &target.namespace },
        name: if target.name.is_empty() { named } else { &target.name },
    }
}

/// The object name that a field selector limits a collection to.
pub(super) fn selected_name(query: &Query) -> &str {
    let terms = query.get("fieldSelector").unwrap_or_default().split(',');
    terms
        .filter_map(|term| term.strip_prefix("metadata.name="))
        .map(|name| name.trim_start_matches('='))
        .next()
        .unwrap_or_default()
}

impl<'a> ResourceRequest<'a> {
    /// Another verb on the object of this request.
    pub(super) fn attributes(&self, verb: &'a str) -> AuthorizationAttributes<'a> {
        let what = RequestTarget::Resource(resource_of(self.target, ""));
        AuthorizationAttributes { user: self.user, verb, what }
    }
}

/// Whether only owner references and finalizers differ. The garbage collector may change these without the right to
/// the object's finalizers.
pub(super) fn changes_owners_only(old: &serde_json::Value, new: &serde_json::Value) -> bool {
    let rest = |value: &serde_json::Value| {
        let mut value = value.clone();
        let metadata = crate::object::meta_mut(&mut value);
        for field in ["ownerReferences", "finalizers", "managedFields"] {
            metadata.remove(field);
        }
        value
    };
    metadata_text(old, "uid") == metadata_text(new, "uid") && rest(old) == rest(new)
}
