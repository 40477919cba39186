//! Whether a request is allowed: roles and bindings as they are in the store.

use std::sync::Arc;

use super::{ApiServer, Call};
use crate::auth::User;
use crate::authorize::{
    self, Attributes, Decision, Mode, Policy, Resource, Rule, Table, What, decide, joined,
};
use crate::object::meta;
use crate::request::{Query, Target};
use crate::status::ApiError;
use crate::store::{Filter, Span};

/// What may be asked without a name where nothing limits those who have one.
const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];

impl ApiServer {
    /// Decides on a request.
    pub(super) fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        match self.shared.setup.mode {
            Mode::AlwaysAllow => Decision::Allowed { reason: String::new() },
            Mode::Rbac => decide(&self.policy(), attributes),
        }
    }

    /// # Errors
    ///
    /// When the request is not allowed.
    pub(super) fn authorize(&self, attributes: &Attributes<'_>) -> Result<Decision, ApiError> {
        let decision = self.decide(attributes);
        match decision {
            Decision::Allowed { .. } => Ok(decision),
            Decision::Refused { ref reason } => Err(attributes.forbidden(reason)),
        }
    }

    /// Whether somebody without a name may ask for a path.
    pub(super) fn is_open_to_anonymous(&self, path: &str) -> bool {
        let setup = &self.shared.setup;
        setup.anonymous && (setup.mode == Mode::Rbac || PUBLIC.contains(&path))
    }

    /// The roles and bindings as they are.
    pub(super) fn policy(&self) -> Arc<Policy> {
        let tables = Table::ALL.map(|(_, resource)| {
            self.shared.built_in.named(authorize::GROUP, resource).and_then(|kind| kind.table)
        });
        let seen = {
            let state = self.state();
            tables.map(|table| table.map_or(0, |table| state.store.changed(table)))
        };
        let lock = || self.shared.policy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = Arc::clone(&lock());
        if known.is_of(seen) {
            return known;
        }
        let policy = Arc::new(Policy::read(&known, seen, |table| {
            let Some(table) = tables[table as usize] else { return Vec::new() };
            let page = self.state().store.list(table, &Span::default(), &Filter::everything());
            page.map_or_else(|_| Vec::new(), |page| page.objects)
        }));
        *lock() = Arc::clone(&policy);
        policy
    }

    /// The rules of a user in a namespace, and what went wrong on the way.
    pub(super) fn rules_of(&self, user: &User, namespace: &str) -> (Vec<Rule>, Option<String>) {
        let all = |list: &str| vec![list.to_owned()];
        match self.shared.setup.mode {
            Mode::AlwaysAllow => {
                let resources = Rule {
                    verbs: all("*"),
                    api_groups: all("*"),
                    resources: all("*"),
                    ..Rule::default()
                };
                let paths =
                    Rule { verbs: all("*"), non_resource_urls: all("*"), ..Rule::default() };
                (vec![resources, paths], None)
            }
            Mode::Rbac => {
                let (rules, errors) = self.policy().all_rules_of(user, namespace);
                (rules, joined(&errors))
            }
        }
    }
}

/// What a request on a resource is about. `named` is the name that a field selector gives a collection.
pub(super) fn resource_of<'a>(target: &'a Target, named: &'a str) -> Resource<'a> {
    let own = target.group.is_empty() && target.resource == "namespaces";
    Resource {
        group: &target.group,
        resource: &target.resource,
        subresource: &target.subresource,
        // A namespace lies in itself.
        namespace: if own { &target.name } else { &target.namespace },
        name: if target.name.is_empty() { named } else { &target.name },
    }
}

/// The name that a field selector limits a collection to.
pub(super) fn selected_name(query: &Query) -> &str {
    let terms = query.get("fieldSelector").unwrap_or_default().split(',');
    terms
        .filter_map(|term| term.strip_prefix("metadata.name="))
        .map(|name| name.trim_start_matches('='))
        .next()
        .unwrap_or_default()
}

impl<'a> Call<'a> {
    /// Another verb on the object of this request.
    pub(super) fn attributes(&self, verb: &'a str) -> Attributes<'a> {
        let what = What::Resource(resource_of(self.target, ""));
        Attributes { user: self.user, verb, what }
    }
}

/// Whether nothing but owners and finalizers differ: the garbage collector may change these whatever the role allows.
pub(super) fn changes_owners_only(old: &serde_json::Value, new: &serde_json::Value) -> bool {
    let rest = |value: &serde_json::Value| {
        let mut value = value.clone();
        let metadata = crate::object::meta_mut(&mut value);
        for field in ["ownerReferences", "finalizers", "managedFields"] {
            metadata.remove(field);
        }
        value
    };
    meta(old, "uid") == meta(new, "uid") && rest(old) == rest(new)
}
