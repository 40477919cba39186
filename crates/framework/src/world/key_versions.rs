//! When the keys of pods have to be computed again.

use std::collections::VecDeque;

use loadmaster_api::{Selector, Str};
use loadmaster_stdx::Map;

use crate::template::{NamespaceId, PodTemplate};

/// Number of changes in a namespace that are remembered.
const CHANGES_MAX: usize = 32;

/// Increases when an object changes that the [keys](crate::Incremental::key) of pods in a namespace may be resolved from: neither part ever
/// decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyVersion {
    pub(super) of_all: u64,
    pub(super) of_namespace: u64,
}

/// The pods of a namespace that an object selects or owns, and those that it selected before it was updated.
#[derive(Clone, Debug)]
pub struct AffectedPods {
    kind: &'static str,
    name: Box<str>,
    /// `None` if a selector is invalid: the object may then affect all pods.
    selectors: Option<Vec<Selector>>,
}

impl AffectedPods {
    /// The pods of the object of this kind and name, which has or had these selectors; `None` is an invalid one.
    pub fn new(
        kind: &'static str,
        name: &str,
        selectors: impl IntoIterator<Item = Option<Selector>>,
    ) -> AffectedPods {
        AffectedPods { kind, name: name.into(), selectors: selectors.into_iter().collect() }
    }

    /// Whether pods with this template are among them.
    pub fn contains(&self, pod: &PodTemplate) -> bool {
        let Some(selectors) = &self.selectors else { return true };
        let is_owner = || {
            pod.controller
                .as_ref()
                .is_some_and(|owner| *owner.kind == *self.kind && *owner.name == *self.name)
        };
        selectors.iter().any(|selector| selector.matches(&pod.labels)) || is_owner()
    }
}

/// Versions of the objects that keys of pods may be resolved from.
#[derive(Default)]
pub(super) struct KeyVersions {
    /// Objects of unknown namespace.
    all: u64,
    /// The namespaces of changes and of pods.
    ids: Map<Str, NamespaceId>,
    /// By namespace: of its labels, and the services and controllers in it.
    by_namespace: Vec<NamespaceChanges>,
}

/// The changes in a namespace.
#[derive(Default)]
struct NamespaceChanges {
    /// Number of changes so far.
    n: u64,
    /// The pods that the last changes affect; `None` for all pods.
    last: VecDeque<Option<AffectedPods>>,
}

impl KeyVersions {
    /// The id of a namespace; it is not checked that it exists.
    pub fn namespace_id(&mut self, namespace: &Str) -> NamespaceId {
        if let Some(known) = self.ids.get(namespace) {
            return *known;
        }
        let id = NamespaceId(self.by_namespace.len() as u32);
        self.by_namespace.push(NamespaceChanges::default());
        self.ids.insert(namespace.clone(), id);
        id
    }

    /// The keys of all pods may have changed.
    pub fn change_all(&mut self) {
        self.all += 1;
    }

    /// The keys of these pods of a namespace may have changed, or of all.
    pub fn change(&mut self, namespace: &Str, pods: Option<AffectedPods>) {
        let id = self.namespace_id(namespace);
        let changes = &mut self.by_namespace[id.0 as usize];
        changes.n += 1;
        if pods.is_none() {
            changes.last.clear();
        }
        if changes.last.len() >= CHANGES_MAX {
            changes.last.pop_front();
        }
        changes.last.push_back(pods);
    }

    /// The version of a template's namespace, but for the affinity terms of assigned pods.
    pub fn of(&self, pod: &PodTemplate) -> KeyVersion {
        KeyVersion {
            of_all: self.all,
            of_namespace: self.changes_in_namespace_of(pod).map_or(0, |it| it.n),
        }
    }

    /// `None` if the template is of another world.
    fn changes_in_namespace_of(&self, pod: &PodTemplate) -> Option<&NamespaceChanges> {
        self.by_namespace.get(pod.namespace_id.0 as usize)
    }

    /// Whether no change in the template's namespace since this one affects its pods.
    pub fn is_unaffected_since(&self, pod: &PodTemplate, then: u64) -> bool {
        let Some(changes) = self.changes_in_namespace_of(pod) else { return true };
        let n_new = changes.n.saturating_sub(then);
        let Some(n_old) = (changes.last.len() as u64).checked_sub(n_new) else { return false };
        let mut new = changes.last.iter().skip(n_old as usize);
        !new.any(|pods| pods.as_ref().is_none_or(|pods| pods.contains(pod)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loadmaster_api::{ReplicaSet, Service};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::{PodInfo, World};

    fn decode<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn web_pod(world: &mut World) -> PodInfo {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1",
            "controller": true});
        let pod = json!({"metadata": {"name": "web-0", "namespace": "a",
            "labels": {"app": "web", "hash": "1"}, "ownerReferences": [owner]}});
        world.parse_pod(&decode(pod)).unwrap()
    }

    fn service(name: &str, namespace: &str, selector: Value) -> Arc<Service> {
        let metadata = json!({"name": name, "namespace": namespace});
        Arc::new(decode(json!({"metadata": metadata, "spec": {"selector": selector}})))
    }

    fn replica_set(name: &str, selector: Value) -> Arc<ReplicaSet> {
        let metadata = json!({"name": name, "namespace": "a"});
        Arc::new(decode(json!({"metadata": metadata, "spec": {"selector": selector}})))
    }

    #[test]
    fn keys_hold_until_an_object_changes_that_selects_or_owns_the_pod() {
        type Step = fn(&mut World);
        let steps: &[(&str, Step, bool)] = &[
            ("other service", |it| it.upsert_listed(service("x", "a", json!({"app": "x"}))), true),
            ("its service", |it| it.upsert_listed(service("y", "a", json!({"app": "web"}))), false),
            ("equal one", |it| it.upsert_listed(service("y", "a", json!({"app": "web"}))), true),
            ("deselected", |it| it.upsert_listed(service("y", "a", json!({"app": "z"}))), false),
            ("not its any more", |it| it.delete_listed::<Service>(&"a".into(), "y"), true),
            ("elsewhere", |it| it.upsert_listed(service("y", "b", json!({"app": "web"}))), true),
            ("everything", |it| it.upsert_listed(service("all", "a", json!({}))), false),
            (
                "its owner, which does not select it",
                |it| it.upsert_listed(replica_set("web", json!({"matchLabels": {"app": "x"}}))),
                false,
            ),
            (
                "another owner that selects it",
                |it| it.upsert_listed(replica_set("old", json!({"matchLabels": {"app": "web"}}))),
                false,
            ),
            (
                "another owner",
                |it| it.upsert_listed(replica_set("new", json!({"matchLabels": {"hash": "2"}}))),
                true,
            ),
            (
                "an invalid selector",
                |it| {
                    let one = json!({"key": "hash", "operator": "In", "values": []});
                    it.upsert_listed(replica_set("bad", json!({"matchExpressions": [one]})));
                },
                false,
            ),
            ("unknown", |it| it.delete_listed::<ReplicaSet>(&"a".into(), "none"), true),
            ("owner deleted", |it| it.delete_listed::<ReplicaSet>(&"a".into(), "web"), false),
            ("any object of the namespace", |it| it.invalidate_keys(&"a".into()), false),
            ("of another", |it| it.invalidate_keys(&"b".into()), true),
            ("of all", |it| it.invalidate_keys(&"".into()), false),
        ];
        let mut world = World::default();
        let pod = web_pod(&mut world);
        let first = world.key_version(&pod.template);
        for (name, step, want) in steps {
            let then = world.key_version(&pod.template);
            step(&mut world);
            let now = world.key_version(&pod.template);
            assert_eq!(world.keys_hold(&pod.template, then, now), *want, "{name}");
            assert!(then.of_all <= now.of_all && then.of_namespace <= now.of_namespace, "{name}");
        }
        assert!(!world.keys_hold(&pod.template, first, world.key_version(&pod.template)));
    }

    #[test]
    fn changes_that_are_not_remembered_any_more_may_be_of_the_pod() {
        let mut world = World::default();
        let pod = web_pod(&mut world);
        let then = world.key_version(&pod.template);
        for n in 0..=CHANGES_MAX {
            let holds = world.keys_hold(&pod.template, then, world.key_version(&pod.template));
            assert!(holds, "after {n} changes");
            world.upsert_listed(service(&format!("{n}"), "a", json!({"app": "other"})));
        }
        assert!(!world.keys_hold(&pod.template, then, world.key_version(&pod.template)));
    }
}
