//! Writes of roles and bindings: privilege escalation is rejected, and aggregated ClusterRoles are updated.

use serde_json::Value;

use super::authorization::changes_owners_only;
use super::{ApiServer, ResourceRequest};
use crate::authorization::{
    self, AuthorizationAttributes, AuthorizationMode, MASTERS_GROUP, PolicyRule, RequestTarget,
    ResourceAttributes, aggregated_rules, join_errors,
};
use crate::object::{list_entries, metadata_text, parsed};
use crate::status::ApiError;
use crate::store::{Filter, ListOptions};

/// How many rounds of aggregation are done for aggregated roles that select aggregated roles.
const ROUNDS_MAX: usize = 16;

impl ApiServer {
    /// Rejects a role or binding that would grant rights that the user does not have.
    ///
    /// # Errors
    ///
    /// When that is so.
    pub(super) fn check_escalation(
        &self,
        call: &ResourceRequest<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let is_free = self.shared.setup.mode == AuthorizationMode::AlwaysAllow
            || call.kind.group != authorization::RBAC_GROUP
            || call.user.groups.iter().any(|it| it == MASTERS_GROUP)
            || old.is_some_and(|old| changes_owners_only(old, new));
        if is_free {
            return Ok(());
        }
        match call.kind.resource {
            "roles" | "clusterroles" => self.check_role(call, old, new),
            "rolebindings" | "clusterrolebindings" => self.check_binding(call, new),
            _ => Ok(()),
        }
    }

    fn check_role(
        &self,
        call: &ResourceRequest<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        if self.decide(&call.attributes("escalate")).is_allowed() {
            return Ok(());
        }
        let forbidden = |why: &str| ApiError::forbidden(call.kind, metadata_text(new, "name"), why);
        self.check_held(call, &rules(new)).map_err(|why| forbidden(&why))?;
        let gathers = |role: &Value| {
            !list_entries(&role["aggregationRule"]["clusterRoleSelectors"]).is_empty()
        };
        if gathers(new) || old.is_some_and(gathers) {
            self.check_held(call, &everything()).map_err(|_| {
                forbidden("must have cluster-admin privileges to use the aggregationRule")
            })?;
        }
        Ok(())
    }

    fn check_binding(&self, call: &ResourceRequest<'_>, new: &Value) -> Result<(), ApiError> {
        let text = |field: &str| new["roleRef"][field].as_str().unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        let namespace = call.target.namespace.as_str();
        let resource = match kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            // Validation says what is wrong with it.
            _ => return Ok(()),
        };
        let what = RequestTarget::Resource(ResourceAttributes {
            group: authorization::RBAC_GROUP,
            resource,
            namespace,
            name,
            ..ResourceAttributes::default()
        });
        if self
            .decide(&AuthorizationAttributes { user: call.user, verb: "bind", what })
            .is_allowed()
        {
            return Ok(());
        }
        let policy = self.policy();
        // Upstream names the binding's kind, with the role's name.
        let granted = policy
            .rules_of_role(kind, namespace, name)
            .map_err(|_| ApiError::not_found(call.kind, name))?;
        self.check_held(call, granted)
            .map_err(|why| ApiError::forbidden(call.kind, metadata_text(new, "name"), &why))
    }

    /// Whether the user has these rights; else which not.
    fn check_held(&self, call: &ResourceRequest<'_>, wanted: &[PolicyRule]) -> Result<(), String> {
        let (owned, errors) = self.policy().all_rules_of(call.user, &call.target.namespace);
        let missing = authorization::missing_rights(&owned, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            call.user.name,
            authorization::quoted_list(&call.user.groups),
            missing.join("\n")
        );
        if let Some(errors) = join_errors(&errors) {
            why.push_str(&format!("; resolution errors: [{errors}]"));
        }
        Err(why)
    }

    /// Updates the rules of aggregated ClusterRoles, as upstream's controller manager does.
    pub(super) fn aggregate_roles(&self) -> Result<(), ApiError> {
        let kind = self.own_kind(authorization::RBAC_GROUP, "clusterroles")?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        for _ in 0..ROUNDS_MAX {
            let page =
                self.state().store.list(table, &ListOptions::default(), &Filter::everything());
            let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
            let roles: Result<Vec<Value>, ApiError> =
                page.objects.iter().map(|object| parsed(object)).collect();
            let roles = roles?;
            let mut changed = false;
            for role in &roles {
                let Some(rules) = aggregated_rules(role, &roles) else { continue };
                if list_entries(&role["rules"]) == list_entries(&rules) {
                    continue;
                }
                changed = true;
                let written =
                    self.retry_update(kind, ("", metadata_text(role, "name")), false, |old| {
                        let mut new = old.clone();
                        new["rules"] = rules.clone();
                        Ok(new)
                    });
                match written {
                    // It was deleted meanwhile, which is no failure of this write.
                    Err(error) if error.code == 404 => {}
                    written => drop(written?),
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }
}

fn rules(role: &Value) -> Vec<PolicyRule> {
    let rules = list_entries(&role["rules"]).iter();
    rules.filter_map(|rule| serde_json::from_value(rule.clone()).ok()).collect()
}

fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}
