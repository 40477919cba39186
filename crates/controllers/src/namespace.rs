//! Namespaces that are deleted: first what is in them goes, then they do.
//!
//! | | |
//! | --- | --- |
//! | writes | deletes all content, status and finalizers of namespaces |
//! | upstream | `pkg/controller/namespace`, 1.36 |
//! | deviations | content of kinds that the program does not know is not deleted |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus, Pod};

use crate::cache::Cache;
use crate::controller::{Change, Controller, Outcome};
use crate::kind::{Key, Kind, Object};
use crate::meta::is_terminating;
use crate::request::Request;
use crate::workload::stamp;

const FINALIZER: &str = "kubernetes";
/// What does not go may not have been seen yet.
const AGAIN: Duration = Duration::from_secs(5);

/// The controller that empties namespaces.
#[derive(Debug, Default)]
pub(crate) struct Namespaces;

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        Kind::ALL
    }

    fn concerns(&self, change: &Change<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.object() else { return Vec::new() };
        let meta = object.metadata();
        let name = match object.kind() {
            Kind::Namespace => meta.name.as_deref(),
            _ => meta.namespace.as_deref(),
        };
        let namespace = name.and_then(|name| cache.get::<Namespace>("", name));
        let going = namespace.filter(|one| is_terminating(&one.metadata));
        going.map(|one| Key::of(&**one)).into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> Outcome {
        let found = cache.get::<Namespace>("", &key.name);
        let Some(namespace) = found.filter(|one| is_terminating(&one.metadata)) else {
            return Outcome::none();
        };
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
        if !finalizers.into_iter().flatten().any(|one| one == FINALIZER) {
            return Outcome::none();
        }
        let left = Content::of(&key.name, cache);
        if left.counts.is_empty() {
            let mut done = (**namespace).clone();
            let finalizers = done.spec.get_or_insert_default().finalizers.get_or_insert_default();
            finalizers.retain(|one| one != FINALIZER);
            return Outcome::one(Request::Update { object: done.into(), subresource: "finalize" });
        }
        let mut requests: Vec<Request> = left
            .to_delete
            .iter()
            .map(|kind| Request::DeleteCollection { kind: *kind, namespace: key.name.to_string() })
            .collect();
        let status = left.status(namespace.status.as_ref(), now);
        if namespace.status.as_ref() != Some(&status) {
            let mut changed = (**namespace).clone();
            changed.status = Some(status);
            requests.push(Request::update_status(changed));
        }
        Outcome { requests, again: Some(AGAIN) }
    }
}

/// What is left in a namespace.
struct Content {
    /// Of each resource how many.
    counts: BTreeMap<String, usize>,
    /// Of each finalizer on how many objects.
    finalizers: BTreeMap<String, usize>,
    /// Kinds with objects that have not been deleted. While there are pods, only these: they may need the rest to end well.
    to_delete: Vec<Kind>,
}

impl Content {
    fn of(namespace: &str, cache: &Cache) -> Content {
        let mut content =
            Content { counts: BTreeMap::new(), finalizers: BTreeMap::new(), to_delete: Vec::new() };
        for kind in Kind::ALL.iter().copied().filter(|kind| kind.info().is_namespaced) {
            // Events are too many to look at, and nobody waits for them.
            if kind == Kind::Event {
                continue;
            }
            let here = |object: &Object| object.metadata().namespace.as_deref() == Some(namespace);
            let objects: Vec<Object> = cache.objects(kind).filter(here).collect();
            if objects.iter().any(|object| !is_terminating(object.metadata())) {
                content.to_delete.push(kind);
            }
            for object in &objects {
                let info = kind.info();
                *content.counts.entry(format!("{}.{}", info.resource, info.group)).or_default() +=
                    1;
                for finalizer in object.metadata().finalizers.iter().flatten() {
                    *content.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
            }
        }
        if cache.of::<Pod>().in_namespace(namespace).next().is_some() {
            content.to_delete.retain(|kind| *kind == Kind::Pod);
        }
        content
    }

    fn status(&self, before: Option<&NamespaceStatus>, now: Timestamp) -> NamespaceStatus {
        let list = |counts: &BTreeMap<String, usize>, what: &str| {
            let one = |(name, count): (&String, &usize)| match what {
                "" => format!("{name} has {count} resource instances"),
                _ => format!("{name} in {count} resource instances"),
            };
            counts.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let remaining = format!("Some resources are remaining: {}", list(&self.counts, ""));
        let held = format!(
            "Some content in the namespace has finalizers remaining: {}",
            list(&self.finalizers, "in")
        );
        let is_held = !self.finalizers.is_empty();
        let content_deleted = "All content successfully deleted, may be waiting on finalization";
        let all = [
            (
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            ("NamespaceDeletionContentFailure", false, "ContentDeleted", content_deleted),
            ("NamespaceContentRemaining", true, "SomeResourcesRemain", remaining.as_str()),
            if is_held {
                ("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", held.as_str())
            } else {
                (
                    "NamespaceFinalizersRemaining",
                    false,
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                )
            },
        ];
        let mut status = before.cloned().unwrap_or_default();
        status.phase = Some("Terminating".to_owned());
        let conditions = status.conditions.get_or_insert_default();
        for (kind, is_true, reason, message) in all {
            let value = if is_true { "True" } else { "False" };
            let found = conditions.iter().position(|one| one.type_ == kind);
            let before = found.map(|place| conditions.remove(place));
            let same = before.as_ref().filter(|one| one.status == value);
            let since = same.and_then(|one| one.last_transition_time.clone());
            let condition = NamespaceCondition {
                type_: kind.to_owned(),
                status: value.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(since.unwrap_or_else(|| stamp(now))),
            };
            conditions.insert(found.unwrap_or(conditions.len()), condition);
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::player::bench;
    use crate::testkit::Bench;

    fn start() -> Bench {
        let mut bench = bench(vec![Box::<Namespaces>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        bench.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "x"}}));
        bench.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}));
        bench.create(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        );
        bench.settle();
        bench
    }

    fn delete(bench: &mut Bench) {
        bench.apply(&Request::Delete {
            key: Key::new(Kind::Namespace, "", "x"),
            options: Default::default(),
        });
        bench.wait(10);
    }

    #[test]
    fn content_goes_first() {
        let mut bench = start();
        delete(&mut bench);
        assert!(bench.get::<Namespace>("", "x").is_none());
        assert_eq!(
            bench
                .list::<ConfigMap>()
                .iter()
                .filter(|one| one.metadata.namespace.as_deref() == Some("x"))
                .count(),
            0
        );
        assert!(bench.get::<ConfigMap>("default", "a").is_some());
    }

    #[test]
    fn what_stays_is_told() {
        let mut bench = start();
        let key = Key::new(Kind::ConfigMap, "x", "a");
        let finalizers = |finalizers: serde_json::Value| {
            Request::patch(
                key.clone(),
                crate::Patch::Merge(json!({"metadata": {"finalizers": finalizers}})),
            )
        };
        bench.apply(&finalizers(json!(["example.com/wait"])));
        delete(&mut bench);
        let status = bench.get::<Namespace>("", "x").unwrap().status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Terminating"));
        let line = |one: &NamespaceCondition| {
            format!("{} {} {}", one.type_, one.status, one.message.as_deref().unwrap())
        };
        let all: Vec<String> = status.conditions.unwrap().iter().map(line).collect();
        assert_eq!(
            all[3],
            "NamespaceContentRemaining True Some resources are remaining: configmaps. has 1 resource instances"
        );
        assert_eq!(
            all[4],
            "NamespaceFinalizersRemaining True Some content in the namespace has finalizers remaining: example.com/wait in 1 resource instances"
        );
        bench.apply(&finalizers(json!(null)));
        bench.wait(10);
        assert!(bench.get::<Namespace>("", "x").is_none());
    }
}
