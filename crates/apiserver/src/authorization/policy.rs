//! All roles and bindings, parsed once and indexed by subject.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use loadmaster_stdx::Map;
use loadmaster_stdx::SortCompactly as _;
use serde::Deserialize;
use serde_json::Value;

use super::PolicyRule;
use crate::authentication::User;
use crate::store::Object;

/// The four kinds, in the order of [`RbacTable::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbacTable {
    Roles,
    RoleBindings,
    ClusterRoles,
    ClusterRoleBindings,
}

impl RbacTable {
    /// With their resources.
    pub const ALL: [(RbacTable, &'static str); 4] = [
        (RbacTable::Roles, "roles"),
        (RbacTable::RoleBindings, "rolebindings"),
        (RbacTable::ClusterRoles, "clusterroles"),
        (RbacTable::ClusterRoleBindings, "clusterrolebindings"),
    ];
}

/// A snapshot of roles and bindings.
#[derive(Debug, Default)]
pub struct RbacPolicy {
    /// The revisions of the four tables.
    seen: [u64; 4],
    roles: Cached<Role>,
    role_bindings: Cached<Binding>,
    cluster_roles: Cached<Role>,
    cluster_role_bindings: Cached<Binding>,
    /// Bindings by namespace (empty for those of the whole cluster), then by who they are for.
    by_subject: Map<Box<str>, BySubject>,
}

/// Bindings by who they are for, with the place of that subject.
type BySubject = Map<SubjectKey, Vec<(Arc<Binding>, usize)>>;

/// Parsed objects by key, with their revision.
type Cached<T> = BTreeMap<Arc<str>, (u64, Arc<T>)>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Role {
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Binding {
    metadata: Metadata,
    role_ref: RoleRef,
    subjects: Option<Vec<Subject>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SubjectKey {
    User(String),
    Group(String),
}

impl Binding {
    fn subjects(&self) -> &[Subject] {
        self.subjects.as_deref().unwrap_or_default()
    }
}

impl Subject {
    /// None for an invalid subject.
    fn who(&self, binding_namespace: &str) -> Option<SubjectKey> {
        match self.kind.as_str() {
            "User" => Some(SubjectKey::User(self.name.clone())),
            "Group" => Some(SubjectKey::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace = self.namespace_or(binding_namespace);
                let name = format!("system:serviceaccount:{namespace}:{}", self.name);
                (!namespace.is_empty()).then_some(SubjectKey::User(name))
            }
            _ => None,
        }
    }

    fn namespace_or<'a>(&'a self, other: &'a str) -> &'a str {
        if self.namespace.is_empty() { other } else { &self.namespace }
    }
}

/// The binding that grants a role to a user, with upstream's text.
#[derive(Debug)]
pub struct RuleSource<'a> {
    binding: &'a Binding,
    subject: usize,
}

impl fmt::Display for RuleSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metadata { name, namespace } = &self.binding.metadata;
        let role = &self.binding.role_ref;
        let binding = match namespace.as_str() {
            "" => format!("ClusterRoleBinding {name:?}"),
            _ => format!("RoleBinding {:?}", format!("{name}/{namespace}")),
        };
        write!(f, "{binding} of {} {:?} to ", role.kind, role.name)?;
        let Some(subject) = self.binding.subjects().get(self.subject) else { return Ok(()) };
        match subject.kind.as_str() {
            "ServiceAccount" => {
                let at = subject.namespace_or(namespace);
                write!(f, "ServiceAccount {:?}", format!("{}/{at}", subject.name))
            }
            kind => write!(f, "{kind} {:?}", subject.name),
        }
    }
}

impl RbacPolicy {
    /// Whether the tables are unchanged.
    pub fn is_current(&self, revisions: [u64; 4]) -> bool {
        self.seen == revisions
    }

    /// Parses what changed since `old`. `list` returns the objects of a table.
    pub fn read(
        old: &RbacPolicy,
        seen: [u64; 4],
        list: impl Fn(RbacTable) -> Vec<Arc<Object>>,
    ) -> RbacPolicy {
        let mut policy = RbacPolicy {
            seen,
            roles: update_cache(&old.roles, list(RbacTable::Roles)),
            role_bindings: update_cache(&old.role_bindings, list(RbacTable::RoleBindings)),
            cluster_roles: update_cache(&old.cluster_roles, list(RbacTable::ClusterRoles)),
            cluster_role_bindings: update_cache(
                &old.cluster_role_bindings,
                list(RbacTable::ClusterRoleBindings),
            ),
            by_subject: Map::default(),
        };
        let all = policy.role_bindings.values().chain(policy.cluster_role_bindings.values());
        for (_, binding) in all {
            let namespace = binding.metadata.namespace.as_str();
            let of_namespace = policy.by_subject.entry(namespace.into()).or_default();
            for (at, subject) in binding.subjects().iter().enumerate() {
                if let Some(who) = subject.who(namespace) {
                    of_namespace.entry(who).or_default().push((Arc::clone(binding), at));
                }
            }
        }
        policy
    }

    /// The rules that apply to a user, first those of the whole cluster, then those of the namespace, if one is given;
    /// each with its binding. An error stands for a role that is not there.
    pub fn rules_of(
        &self,
        user: &User,
        namespace: &str,
    ) -> impl Iterator<Item = (RuleSource<'_>, Result<&[PolicyRule], String>)> {
        let mut sources = self.sources(user, "");
        if !namespace.is_empty() {
            sources.extend(self.sources(user, namespace));
        }
        sources.into_iter().map(|source| {
            let Metadata { namespace, .. } = &source.binding.metadata;
            let RoleRef { kind, name } = &source.binding.role_ref;
            let rules = self.rules_of_role(kind, namespace, name);
            (source, rules)
        })
    }

    /// All rules that apply to a user, and the errors on the way.
    pub fn all_rules_of(&self, user: &User, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        for (_, rules) in self.rules_of(user, namespace) {
            match rules {
                Ok(rules) => all.extend_from_slice(rules),
                Err(error) => errors.push(error),
            }
        }
        (all, errors)
    }

    /// The rules of the role that a binding in a namespace names.
    ///
    /// # Errors
    ///
    /// When there is no such role.
    pub fn rules_of_role(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<&[PolicyRule], String> {
        let role = match kind {
            "Role" => self.roles.get(&*format!("{namespace}/{name}")),
            "ClusterRole" => self.cluster_roles.get(name),
            _ => return Err(format!("unsupported role reference kind: {kind:?}")),
        };
        let (_, role) = role.ok_or_else(|| {
            format!("{}.{} {name:?} not found", kind.to_ascii_lowercase(), super::RBAC_GROUP)
        })?;
        Ok(role.rules.as_deref().unwrap_or_default())
    }

    fn sources(&self, user: &User, namespace: &str) -> Vec<RuleSource<'_>> {
        let Some(by_subject) = self.by_subject.get(namespace) else { return Vec::new() };
        let groups = user.groups.iter().map(|it| SubjectKey::Group(it.clone()));
        let mut sources: Vec<RuleSource<'_>> = groups
            .chain([SubjectKey::User(user.name.clone())])
            .filter_map(|who| by_subject.get(&who))
            .flatten()
            .map(|(binding, subject)| RuleSource { binding, subject: *subject })
            .collect();
        // One that names the user twice counts once, by the first subject.
        sources.sort_compactly_by_key(|it| (&it.binding.metadata.name, it.subject));
        sources.dedup_by_key(|it| &it.binding.metadata.name);
        sources
    }
}

fn update_cache<T>(old: &Cached<T>, objects: Vec<Arc<Object>>) -> Cached<T>
where
    T: Default + for<'de> Deserialize<'de>,
{
    let mut all = Cached::new();
    for object in objects {
        let revision = object.revision();
        let value = match old.get(object.key()) {
            Some((known, value)) if *known == revision => Arc::clone(value),
            // What cannot be read allows nothing.
            _ => Arc::new(loadmaster_stdx::json::from_slice(&object.json()).unwrap_or_default()),
        };
        all.insert(object.shared_key(), (revision, value));
    }
    all
}

/// The rules that an aggregating role has: those of the roles that its selectors select, in the order of their names,
/// each once. None if the role does not aggregate. `roles` are all cluster roles.
pub fn aggregated_rules(role: &Value, roles: &[Value]) -> Option<Value> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let mut all: Vec<&Value> = Vec::new();
    for selector in selectors {
        for other in roles {
            let labels = crate::object::labels(other);
            let is_self = other["metadata"]["name"] == role["metadata"]["name"];
            if is_self || !crate::selector::label_selector_matches(selector, &labels) {
                continue;
            }
            for rule in crate::object::list_entries(&other["rules"]) {
                if !all.contains(&rule) {
                    all.push(rule);
                }
            }
        }
    }
    Some(all.into_iter().cloned().collect())
}
