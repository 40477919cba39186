//! Writing roles and bindings: nobody gives away what they do not have, and roles that gather others are kept up to date.

use serde_json::Value;

use super::access::changes_owners_only;
use super::{ApiServer, Call};
use crate::authorize::{self, Attributes, MASTERS, Mode, Resource, Rule, What, gathered, joined};
use crate::object::{entries, meta, parsed};
use crate::status::ApiError;
use crate::store::{Filter, Span};

/// How often roles that gather roles that gather are gone through. A chain is never that long.
const ROUNDS_MAX: usize = 16;

impl ApiServer {
    /// Refuses a role or binding by which the user would give away more than they have.
    ///
    /// # Errors
    ///
    /// When that is so.
    pub(super) fn check_escalation(
        &self,
        call: &Call<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let is_free = self.shared.setup.mode == Mode::AlwaysAllow
            || call.kind.group != authorize::GROUP
            || call.user.groups.iter().any(|it| it == MASTERS)
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
        call: &Call<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        if self.decide(&call.attributes("escalate")).is_allowed() {
            return Ok(());
        }
        let forbidden = |why: &str| ApiError::forbidden(call.kind, meta(new, "name"), why);
        self.check_held(call, &rules(new)).map_err(|why| forbidden(&why))?;
        let gathers =
            |role: &Value| !entries(&role["aggregationRule"]["clusterRoleSelectors"]).is_empty();
        if gathers(new) || old.is_some_and(gathers) {
            self.check_held(call, &everything()).map_err(|_| {
                forbidden("must have cluster-admin privileges to use the aggregationRule")
            })?;
        }
        Ok(())
    }

    fn check_binding(&self, call: &Call<'_>, new: &Value) -> Result<(), ApiError> {
        let text = |field: &str| new["roleRef"][field].as_str().unwrap_or_default();
        let (kind, name) = (text("kind"), text("name"));
        let namespace = call.target.namespace.as_str();
        let resource = match kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            // Validation says what is wrong with it.
            _ => return Ok(()),
        };
        let what = What::Resource(Resource {
            group: authorize::GROUP,
            resource,
            namespace,
            name,
            ..Resource::default()
        });
        if self.decide(&Attributes { user: call.user, verb: "bind", what }).is_allowed() {
            return Ok(());
        }
        let policy = self.policy();
        // Upstream names the binding's kind, with the role's name.
        let granted = policy
            .rules_of_role(kind, namespace, name)
            .map_err(|_| ApiError::not_found(call.kind, name))?;
        self.check_held(call, granted)
            .map_err(|why| ApiError::forbidden(call.kind, meta(new, "name"), &why))
    }

    /// Whether the user has these rights; else which not.
    fn check_held(&self, call: &Call<'_>, wanted: &[Rule]) -> Result<(), String> {
        let (owned, errors) = self.policy().all_rules_of(call.user, &call.target.namespace);
        let missing = authorize::missing(&owned, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            call.user.name,
            authorize::quoted(&call.user.groups),
            missing.join("\n")
        );
        if let Some(errors) = joined(&errors) {
            why.push_str(&format!("; resolution errors: [{errors}]"));
        }
        Err(why)
    }

    /// Gives the roles that gather others the rules of these, as upstream's controller manager does.
    pub(super) fn aggregate_roles(&self) -> Result<(), ApiError> {
        let kind = self.own_kind(authorize::GROUP, "clusterroles")?;
        let table = kind.table.ok_or_else(ApiError::no_such_resource)?;
        for _ in 0..ROUNDS_MAX {
            let page = self.state().store.list(table, &Span::default(), &Filter::everything());
            let page = page.map_err(|error| ApiError::internal(&error.to_string()))?;
            let roles: Result<Vec<Value>, ApiError> =
                page.objects.iter().map(|object| parsed(object)).collect();
            let roles = roles?;
            let mut changed = false;
            for role in &roles {
                let Some(rules) = gathered(role, &roles) else { continue };
                if entries(&role["rules"]) == entries(&rules) {
                    continue;
                }
                changed = true;
                let written = self.rewrite(kind, ("", meta(role, "name")), false, |old| {
                    let mut new = old.clone();
                    new["rules"] = rules.clone();
                    Ok(new)
                });
                match written {
                    // Somebody took it away meanwhile, which is no failure of the write that led here.
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

fn rules(role: &Value) -> Vec<Rule> {
    let rules = entries(&role["rules"]).iter();
    rules.filter_map(|rule| serde_json::from_value(rule.clone()).ok()).collect()
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}
