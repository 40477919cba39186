//! The served resources and their kinds.

use std::borrow::Cow;
use std::sync::Arc;
#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
use std::sync::{Mutex, PoisonError};

use loadmaster_stdx::Set;

use super::{TypeId, schema};
use crate::custom_resource::{CurrentCustomResourceVersion, CustomResourceVersion};
use crate::store::{Store, TableId};

/// A served resource and its kind.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// Plural, as in paths.
    pub resource: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub is_namespaced: bool,
    pub verbs: Vec<&'static str>,
    pub short_names: Vec<&'static str>,
    pub categories: Vec<&'static str>,
    /// The warning for users of a deprecated resource.
    pub warning: Option<String>,
    pub subresources: Vec<Subresource>,
    /// The type of one object.
    pub type_id: TypeId,
    /// The table of the objects; none for kinds that are not stored.
    pub table: Option<TableId>,
    /// Present for custom resources; `type_id` is that of bare metadata then.
    pub(crate) custom: Option<CurrentCustomResourceVersion>,
}

/// A subresource, such as `status` or `scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: Vec<&'static str>,
    pub type_id: TypeId,
}

impl Kind {
    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        api_version(self.group, self.version)
    }

    /// `deployments.apps`, or `pods` for the core group: as errors name it.
    pub fn group_resource(&self) -> String {
        match self.group {
            "" => self.resource.to_owned(),
            group => format!("{}.{group}", self.resource),
        }
    }

    /// Whether this is that resource.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }

    /// Its definition if it is a custom resource.
    pub(crate) fn custom(&self) -> Option<Arc<CustomResourceVersion>> {
        self.custom.as_ref().map(CurrentCustomResourceVersion::get)
    }

    /// The kind of its lists.
    pub fn list_kind(&self) -> Cow<'static, str> {
        match self.custom() {
            Some(custom) => Cow::Owned(custom.list_kind.clone()),
            None => Cow::Owned(format!("{}List", self.kind)),
        }
    }

    /// The verbs in discovery: while its definition is being deleted, objects cannot be created or changed.
    pub(crate) fn advertised_verbs(&self) -> Vec<&'static str> {
        let is_going = self.custom().is_some_and(|it| it.is_terminating);
        let advertised =
            |verb: &&&str| !is_going || !matches!(**verb, "create" | "patch" | "update");
        self.verbs.iter().filter(advertised).copied().collect()
    }

    /// Whether objects have a status that only the status subresource writes.
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|it| it.name == "status")
    }

    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|it| it.name == name)
    }
}

/// `group/version`, or the version alone for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[expect(clippy::disallowed_types, reason = "a shell: requests come on many threads")]
static NAMES: Mutex<Option<Set<&'static str>>> = Mutex::new(None);

/// Interns a name for the lifetime of the process. Those of custom resources are few and recur.
pub fn intern(name: &str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let interned: &'static str = name.to_owned().leak();
    names.insert(interned);
    interned
}

static KINDS: &str = include_str!("kinds.txt");

/// All resources served.
#[derive(Clone, Debug)]
pub struct Kinds(Vec<Kind>);

/// Groups that are not served, because their objects would have no effect.
const NOT_SERVED: &[&str] = &[
    "admissionregistration.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
];

/// Subresources of pods, nodes and services that reach into a kubelet or a proxy. They are not served.
pub const NO_BACKEND: &[&str] = &["attach", "exec", "log", "portforward", "proxy"];

impl Kinds {
    /// The resources of the stable versions and of `also` (such as `scheduling.k8s.io/v1alpha2`); each kind gets a
    /// table.
    pub fn new(store: &mut Store, also: &[String]) -> Kinds {
        let mut kinds: Vec<Kind> = Vec::new();
        let mut served = false;
        for line in KINDS.lines().filter(|line| !line.starts_with('#')) {
            if let Some(line) = line.strip_prefix("  ") {
                if let (true, Some(last)) = (served, kinds.last_mut()) {
                    last.subresources.extend(parse_subresource(line));
                }
                continue;
            }
            let words: Vec<&'static str> = line.split(' ').collect();
            served = is_served(words[0], also) && words[1] != "componentstatuses";
            if served {
                kinds.extend(parse_kind(&words));
            }
        }
        for at in 0..kinds.len() {
            if !kinds[at].verbs.contains(&"list") {
                continue;
            }
            // Versions are forms of one set of objects. Events have two groups.
            let twin = kinds[..at]
                .iter()
                .find(|it| {
                    let is_same_group = it.group == kinds[at].group || it.resource == "events";
                    it.resource == kinds[at].resource && is_same_group
                })
                .and_then(|it| it.table);
            let name = kinds[at].group_resource();
            kinds[at].table = Some(twin.unwrap_or_else(|| store.add_table(&name)));
        }
        Kinds(kinds)
    }

    /// Whether [`Kinds::new`] can serve a group and version beside the stable ones: it must be known, and none of its
    /// resources may be a stable one in another form.
    pub fn can_also_serve(group_version: &str) -> bool {
        let group = group_version.split_once('/').map_or("", |(group, _)| group);
        let lines = || KINDS.lines().filter(|line| !line.starts_with(['#', ' ']));
        let named = |line: &'static str| line.split_once(' ').unwrap_or((line, ""));
        let resource = |rest: &'static str| rest.split(' ').next().unwrap_or(rest);
        let stable: Vec<&str> = lines()
            .map(named)
            .filter(|(gv, _)| {
                gv.split_once('/').map_or("", |(it, _)| it) == group && is_served(gv, &[])
            })
            .map(|(_, rest)| resource(rest))
            .collect();
        let mut own = lines().map(named).filter(|(gv, _)| *gv == group_version).peekable();
        !NOT_SERVED.contains(&group)
            && own.peek().is_some()
            && own.all(|(_, rest)| !stable.contains(&resource(rest)))
    }

    /// These resources followed by custom ones.
    pub(crate) fn with_custom(&self, custom: impl Iterator<Item = Kind>) -> Kinds {
        let built_in = self.0.iter().filter(|it| it.custom.is_none()).cloned();
        Kinds(built_in.chain(custom).collect())
    }

    /// In the order of discovery.
    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }

    /// A resource by group, version and plural name.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&Kind> {
        self.0.iter().find(|it| it.is(group, resource) && it.version == version)
    }

    /// The stable version of a resource.
    pub fn find_stable(&self, group: &str, resource: &str) -> Option<&Kind> {
        self.0.iter().find(|it| it.is(group, resource))
    }

    /// Groups with their versions, in the order of discovery; the core group first.
    pub fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
        for kind in &self.0 {
            match groups.iter_mut().find(|(group, _)| *group == kind.group) {
                Some((_, versions)) if versions.contains(&kind.version) => {}
                Some((_, versions)) => versions.push(kind.version),
                None => groups.push((kind.group, vec![kind.version])),
            }
        }
        groups
    }
}

fn is_served(group_version: &str, also: &[String]) -> bool {
    if also.iter().any(|it| it == group_version && Kinds::can_also_serve(it)) {
        return true;
    }
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let is_stable = !version.contains("alpha") && !version.contains("beta");
    is_stable && !NOT_SERVED.contains(&group)
}

fn list(word: &'static str) -> Vec<&'static str> {
    if word == "-" { Vec::new() } else { word.split(',').collect() }
}

fn parse_kind(words: &[&'static str]) -> Option<Kind> {
    let &[gv, resource, singular, kind, scope, verbs, short_names, categories, ref warning @ ..] =
        words
    else {
        return None;
    };
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    Some(Kind {
        group,
        version,
        resource,
        singular,
        kind,
        is_namespaced: scope == "namespaced",
        verbs: list(verbs),
        short_names: list(short_names),
        categories: list(categories),
        warning: (!warning.is_empty()).then(|| warning.join(" ")),
        subresources: Vec::new(),
        type_id: schema().find_kind(group, version, kind)?,
        table: None,
        custom: None,
    })
}

fn parse_subresource(line: &'static str) -> Option<Subresource> {
    let words: Vec<&'static str> = line.split(' ').collect();
    let &[name, gv, kind, verbs] = words.as_slice() else { return None };
    if NO_BACKEND.contains(&name) {
        return None;
    }
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    let type_id = schema().find_kind(group, version, kind)?;
    Some(Subresource { name, group, version, kind, verbs: list(verbs), type_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_beside_the_stable_ones() {
        let cases = [
            ("scheduling.k8s.io/v1alpha2", true),
            ("coordination.k8s.io/v1beta1", true),
            ("resource.k8s.io/v1beta2", false),
            ("autoscaling/v1", false),
            ("apps/v1", false),
            ("flowcontrol.apiserver.k8s.io/v1", false),
            ("example.com/v1", false),
        ];
        for (group_version, want) in cases {
            assert_eq!(Kinds::can_also_serve(group_version), want, "{group_version}");
        }
    }
}
