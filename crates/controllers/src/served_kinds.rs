//! The kinds that an API server serves, from API discovery: built-in kinds, and all others that can be listed and deleted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::kind::Kind;

/// The kinds whose objects can be listed and deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedKinds {
    kinds: BTreeSet<Kind>,
    /// Those that can be watched, without Events, which are many and not needed.
    watched: BTreeSet<Kind>,
    /// By apiVersion and kind, in all versions. A kind that is no longer served stays: reads of its objects return 404.
    by_name: BTreeMap<(String, String), Kind>,
}

/// Of both documents of aggregated discovery, `apidiscovery.k8s.io/v2`.
#[derive(Deserialize)]
struct Document {
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Name,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
    /// `Stale` when the server of the group does not respond.
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(default)]
    response_kind: ResponseKind,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

impl Resource {
    fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
}

impl ServedKinds {
    /// The `Accept` header for [`ServedKinds::DISCOVERY_PATHS`].
    pub const DISCOVERY_ACCEPT: &str =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    /// The paths of aggregated discovery.
    pub const DISCOVERY_PATHS: [&str; 2] = ["/api", "/apis"];

    /// Kinds whose objects can be listed and deleted.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied()
    }

    /// Those of them that can be watched, without Events.
    pub fn watchable(&self) -> &BTreeSet<Kind> {
        &self.watched
    }

    /// The kind with this apiVersion and kind, as owner references write it.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<Kind> {
        self.by_name.get(&(api_version.to_owned(), kind.to_owned())).copied()
    }

    /// The served kinds according to discovery documents; `self` is the previous result.
    ///
    /// # Errors
    ///
    /// When a document is not an `APIGroupDiscoveryList`.
    pub fn read_discovery(
        &self,
        documents: &[impl AsRef<[u8]>],
    ) -> Result<ServedKinds, serde_json::Error> {
        let mut now = ServedKinds::default();
        for document in documents {
            let document: Document = loadmaster_stdx::json::from_slice(document.as_ref())?;
            // The same objects as those of the core group.
            let groups = document.items.iter().filter(|it| it.metadata.name != "events.k8s.io");
            groups.for_each(|group| now.add(group, self));
        }
        for (name, kind) in &self.by_name {
            let info = kind.info();
            let is_same = |other: &&Kind| {
                let other = other.info();
                (other.group, other.resource) == (info.group, info.resource)
            };
            let kind = now.kinds.iter().find(is_same).unwrap_or(kind);
            now.by_name.entry(name.clone()).or_insert(*kind);
        }
        Ok(now)
    }

    fn add(&mut self, group: &Group, before: &ServedKinds) {
        let name = group.metadata.name.as_str();
        let mut chosen: BTreeMap<&str, Kind> = BTreeMap::new();
        for version in &group.versions {
            if version.freshness == "Stale" {
                self.keep(before, name, &version.version);
            }
            for resource in &version.resources {
                if !resource.has_verb("delete") || !resource.has_verb("list") {
                    continue;
                }
                // The first version is the preferred one.
                let kind = *chosen.entry(&resource.resource).or_insert_with(|| {
                    of_table(group, resource)
                        .or_else(|| before.known(name, &version.version, resource))
                        .unwrap_or_else(|| made(name, &version.version, resource))
                });
                self.kinds.insert(kind);
                if resource.has_verb("watch") && kind != Kind::Event {
                    self.watched.insert(kind);
                }
                let api_version = api_version(name, &version.version);
                self.by_name.insert((api_version, resource.response_kind.kind.clone()), kind);
            }
        }
    }

    /// Keeps the previous kinds of a version whose server does not respond.
    fn keep(&mut self, before: &ServedKinds, group: &str, version: &str) {
        let is_of = |kind: &&Kind| {
            let info = kind.info();
            (info.group, info.version) == (group, version)
        };
        self.kinds.extend(before.kinds.iter().filter(is_of));
        self.watched.extend(before.watched.iter().filter(is_of));
    }

    fn known(&self, group: &str, version: &str, resource: &Resource) -> Option<Kind> {
        self.by_name.values().copied().find(|kind| {
            let info = kind.info();
            (info.group, info.version, info.resource) == (group, version, &*resource.resource)
                && info.kind == resource.response_kind.kind
                && info.is_namespaced == (resource.scope == "Namespaced")
        })
    }
}

/// A resource whose version in the table is served.
fn of_table(group: &Group, resource: &Resource) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|kind| {
        let info = kind.info();
        (info.group, info.resource) == (&*group.metadata.name, &*resource.resource)
            && group.versions.iter().any(|version| version.version == info.version)
    })
}

fn made(group: &str, version: &str, resource: &Resource) -> Kind {
    let name = (&*resource.response_kind.kind, &*resource.resource);
    Kind::dynamic((group, version), name, resource.scope == "Namespaced")
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ALL: [&str; 3] = ["list", "watch", "delete"];

    fn resource(kind: &str, resource: &str, scope: &str, verbs: &[&str]) -> Value {
        json!({"resource": resource, "scope": scope, "verbs": verbs,
            "responseKind": {"group": "", "version": "", "kind": kind}})
    }

    fn group(name: &str, versions: &[(&str, &[Value])]) -> Value {
        let version = |(version, resources): &(&str, &[Value])| json!({"version": version, "resources": resources, "freshness": "Current"});
        let versions: Vec<Value> = versions.iter().map(version).collect();
        json!({"metadata": {"name": name}, "versions": versions})
    }

    fn read(before: &ServedKinds, groups: &[Value]) -> ServedKinds {
        before.read_discovery(&[json!({"items": groups}).to_string()]).unwrap()
    }

    fn names(kinds: impl Iterator<Item = Kind>) -> Vec<String> {
        kinds.map(|kind| kind.api_path("")).collect()
    }

    #[test]
    fn kinds_that_can_be_listed_and_deleted_are_served() {
        let core = [
            resource("Pod", "pods", "Namespaced", &ALL),
            resource("Binding", "bindings", "Namespaced", &["create"]),
            resource("ComponentStatus", "componentstatuses", "Cluster", &["get", "list"]),
            resource("Event", "events", "Namespaced", &ALL),
            resource("Secret", "secrets", "Namespaced", &["list", "delete"]),
        ];
        let twins = [resource("Event", "events", "Namespaced", &ALL)];
        let served = read(
            &ServedKinds::default(),
            &[group("", &[("v1", &core)]), group("events.k8s.io", &[("v1", &twins)])],
        );
        assert_eq!(names(served.kinds()), ["/api/v1/pods", "/api/v1/events", "/api/v1/secrets"]);
        assert_eq!(names(served.watchable().iter().copied()), ["/api/v1/pods"]);
        assert_eq!(served.find("v1", "Pod"), Some(Kind::Pod));
        assert_eq!(served.find("v1", "Binding"), None);
        // The response of a server without aggregated discovery.
        assert!(
            ServedKinds::default()
                .read_discovery(&[r#"{"kind":"APIGroupList","groups":[]}"#])
                .is_err()
        );
    }

    #[test]
    fn one_version_of_a_kind_is_used() {
        let foos = [resource("Foo", "foos", "Namespaced", &ALL)];
        let both = [foos[0].clone(), resource("Bar", "bars", "Cluster", &ALL)];
        let groups = [group("example.com", &[("v2", &foos), ("v1", &both)])];
        let served = read(&ServedKinds::default(), &groups);
        assert_eq!(
            names(served.kinds()),
            ["/apis/example.com/v1/bars", "/apis/example.com/v2/foos"]
        );
        let foo = served.find("example.com/v1", "Foo").unwrap();
        assert_eq!(served.find("example.com/v2", "Foo"), Some(foo));
        assert!(foo.info().is_namespaced);
        assert_eq!(read(&served, &groups), served);
    }

    #[test]
    fn the_built_in_version_is_preferred() {
        let jobs = [resource("CronJob", "cronjobs", "Namespaced", &ALL)];
        let served =
            read(&ServedKinds::default(), &[group("batch", &[("v2beta1", &jobs), ("v1", &jobs)])]);
        assert_eq!(served.find("batch/v2beta1", "CronJob"), Some(Kind::CronJob));
        let served = read(&ServedKinds::default(), &[group("batch", &[("v1beta1", &jobs)])]);
        assert_eq!(names(served.kinds()), ["/apis/batch/v1beta1/cronjobs"]);
    }

    #[test]
    fn kinds_that_are_no_longer_served_are_still_found() {
        let foos = [resource("Foo", "foos", "Namespaced", &ALL)];
        let before = read(&ServedKinds::default(), &[group("example.com", &[("v1", &foos)])]);
        let foo = before.find("example.com/v1", "Foo");
        let gone = read(&before, &[]);
        assert_eq!((gone.kinds().count(), gone.find("example.com/v1", "Foo")), (0, foo));
        // If it is served under another version, that one is used.
        let later = read(&gone, &[group("example.com", &[("v2", &foos)])]);
        assert_eq!(later.find("example.com/v1", "Foo"), later.find("example.com/v2", "Foo"));
        assert_eq!(names(later.kinds()), ["/apis/example.com/v2/foos"]);
    }

    #[test]
    fn a_stale_group_keeps_its_kinds() {
        let foos = [resource("Foo", "foos", "Namespaced", &ALL)];
        let before = read(&ServedKinds::default(), &[group("example.com", &[("v1", &foos)])]);
        let stale = json!({"metadata": {"name": "example.com"},
            "versions": [{"version": "v1", "freshness": "Stale"}]});
        assert_eq!(read(&before, &[stale]), before);
    }
}
