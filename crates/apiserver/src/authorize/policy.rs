//! All roles and bindings, read once and looked up by who asks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use loadmaster_stdx::Map;
use serde::Deserialize;
use serde_json::Value;

use super::Rule;
use crate::auth::User;
use crate::store::Object;

/// The four kinds, in the order of [`Table::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Roles,
    RoleBindings,
    ClusterRoles,
    ClusterRoleBindings,
}

impl Table {
    /// With their resources.
    pub const ALL: [(Table, &'static str); 4] = [
        (Table::Roles, "roles"),
        (Table::RoleBindings, "rolebindings"),
        (Table::ClusterRoles, "clusterroles"),
        (Table::ClusterRoleBindings, "clusterrolebindings"),
    ];
}

/// Roles and bindings as they were at one time.
#[derive(Debug, Default)]
pub struct Policy {
    /// The revisions of the four tables.
    seen: [u64; 4],
    roles: Kept<Role>,
    role_bindings: Kept<Binding>,
    cluster_roles: Kept<Role>,
    cluster_role_bindings: Kept<Binding>,
    /// Bindings by namespace (empty for those of the whole cluster), then by who they are for.
    by_subject: Map<Box<str>, BySubject>,
}

/// Bindings by who they are for, with the place of that subject.
type BySubject = Map<Who, Vec<(Arc<Binding>, usize)>>;

/// What objects say, by their keys, with the revision at which they said it.
type Kept<T> = BTreeMap<Arc<str>, (u64, Arc<T>)>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Role {
    rules: Option<Vec<Rule>>,
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

/// Whom a binding is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

impl Binding {
    fn subjects(&self) -> &[Subject] {
        self.subjects.as_deref().unwrap_or_default()
    }
}

impl Subject {
    /// None for a subject that is nobody.
    fn who(&self, binding_namespace: &str) -> Option<Who> {
        match self.kind.as_str() {
            "User" => Some(Who::User(self.name.clone())),
            "Group" => Some(Who::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace = self.namespace_or(binding_namespace);
                let name = format!("system:serviceaccount:{namespace}:{}", self.name);
                (!namespace.is_empty()).then_some(Who::User(name))
            }
            _ => None,
        }
    }

    fn namespace_or<'a>(&'a self, other: &'a str) -> &'a str {
        if self.namespace.is_empty() { other } else { &self.namespace }
    }
}

/// By which binding somebody has a role. Its text is upstream's.
#[derive(Debug)]
pub struct Source<'a> {
    binding: &'a Binding,
    subject: usize,
}

impl fmt::Display for Source<'_> {
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

impl Policy {
    /// Whether the tables are as they were.
    pub fn is_of(&self, revisions: [u64; 4]) -> bool {
        self.seen == revisions
    }

    /// Reads what changed since `old`. `list` gives the objects of a table.
    pub fn read(old: &Policy, seen: [u64; 4], list: impl Fn(Table) -> Vec<Arc<Object>>) -> Policy {
        let mut policy = Policy {
            seen,
            roles: kept(&old.roles, list(Table::Roles)),
            role_bindings: kept(&old.role_bindings, list(Table::RoleBindings)),
            cluster_roles: kept(&old.cluster_roles, list(Table::ClusterRoles)),
            cluster_role_bindings: kept(
                &old.cluster_role_bindings,
                list(Table::ClusterRoleBindings),
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
    ) -> impl Iterator<Item = (Source<'_>, Result<&[Rule], String>)> {
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
    pub fn all_rules_of(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
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
    ) -> Result<&[Rule], String> {
        let role = match kind {
            "Role" => self.roles.get(&*format!("{namespace}/{name}")),
            "ClusterRole" => self.cluster_roles.get(name),
            _ => return Err(format!("unsupported role reference kind: {kind:?}")),
        };
        let (_, role) = role.ok_or_else(|| {
            format!("{}.{} {name:?} not found", kind.to_ascii_lowercase(), super::GROUP)
        })?;
        Ok(role.rules.as_deref().unwrap_or_default())
    }

    fn sources(&self, user: &User, namespace: &str) -> Vec<Source<'_>> {
        let Some(by_subject) = self.by_subject.get(namespace) else { return Vec::new() };
        let groups = user.groups.iter().map(|it| Who::Group(it.clone()));
        let mut sources: Vec<Source<'_>> = groups
            .chain([Who::User(user.name.clone())])
            .filter_map(|who| by_subject.get(&who))
            .flatten()
            .map(|(binding, subject)| Source { binding, subject: *subject })
            .collect();
        // One that names the user twice counts once, by the first subject.
        sources.sort_by_key(|it| (&it.binding.metadata.name, it.subject));
        sources.dedup_by_key(|it| &it.binding.metadata.name);
        sources
    }
}

fn kept<T>(old: &Kept<T>, objects: Vec<Arc<Object>>) -> Kept<T>
where
    T: Default + for<'de> Deserialize<'de>,
{
    let mut all = Kept::new();
    for object in objects {
        let revision = object.revision();
        let value = match old.get(object.key()) {
            Some((known, value)) if *known == revision => Arc::clone(value),
            // What cannot be read allows nothing.
            _ => Arc::new(serde_json::from_slice(&object.json()).unwrap_or_default()),
        };
        all.insert(object.shared_key(), (revision, value));
    }
    all
}

/// The rules that an aggregating role has: those of the roles that its selectors select, in the order of their names,
/// each once. None if the role does not aggregate. `roles` are all cluster roles.
pub fn gathered(role: &Value, roles: &[Value]) -> Option<Value> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let mut all: Vec<&Value> = Vec::new();
    for selector in selectors {
        for other in roles {
            let labels = crate::object::labels(other);
            let is_self = other["metadata"]["name"] == role["metadata"]["name"];
            if is_self || !crate::select::selects(selector, &labels) {
                continue;
            }
            for rule in crate::object::entries(&other["rules"]) {
                if !all.contains(&rule) {
                    all.push(rule);
                }
            }
        }
    }
    Some(all.into_iter().cloned().collect())
}
