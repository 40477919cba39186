//! The namespace controller: deletes the content of terminating namespaces, then finalizes them.
//!
//! | | |
//! | --- | --- |
//! | reads | metadata of all kinds that the server serves; at the end the server is asked to count what is left |
//! | writes | deletes all content, status and finalizers of namespaces |
//! | upstream | `pkg/controller/namespace`, 1.36 |
//! | deviations | the condition NamespaceContentRemaining also reports pods, which are deleted first |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus, Pod};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Object};
use crate::meta::is_terminating;
use crate::request::{ControllerRequest, ControllerResponse};
use crate::workload::stamp;

const FINALIZER: &str = "kubernetes";
/// What does not go may not have been seen yet.
const AGAIN: Duration = Duration::from_secs(5);
/// What is not watched is looked for so often.
const UNWATCHED: Duration = Duration::from_secs(1);

/// The controller that empties namespaces.
#[derive(Debug, Default)]
pub(crate) struct NamespaceController {
    sweeps: BTreeMap<Key, Sweep>,
}

/// The server's responses about a terminating namespace. Nothing can be created in it, so that an empty kind stays empty.
#[derive(Debug, Default)]
struct Sweep {
    uid: Option<String>,
    empty: BTreeSet<Kind>,
    /// The cache does not show what is there.
    full: BTreeSet<Kind>,
    /// Of which kinds the content could not be counted or deleted, and why.
    failures: BTreeMap<Kind, String>,
}

impl Controller for NamespaceController {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Namespace]
    }

    fn watches_all_kinds(&self) -> bool {
        true
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        if let Object::Namespace(namespace) = object {
            let is_going = change.new.is_none() || is_terminating(&namespace.metadata);
            return is_going.then(|| object.key()).into_iter().collect();
        }
        let name = object.metadata().namespace.as_deref();
        let namespace = name.and_then(|name| cache.get::<Namespace>("", name));
        let going = namespace.filter(|one| is_terminating(&one.metadata));
        going.map(|one| Key::from_object(&**one)).into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let found = cache.get::<Namespace>("", &key.name);
        let finalizers = found.and_then(|one| one.spec.as_ref()?.finalizers.as_ref());
        let is_held = finalizers.into_iter().flatten().any(|one| one == FINALIZER);
        let Some(namespace) = found.filter(|one| is_held && is_terminating(&one.metadata)) else {
            self.sweeps.remove(key);
            return ReconcileResult::none();
        };
        let sweep = self.sweeps.entry(key.clone()).or_default();
        if sweep.uid != namespace.metadata.uid {
            *sweep = Sweep { uid: namespace.metadata.uid.clone(), ..Sweep::default() };
        }
        let left = Content::of(&key.name, cache);
        let mut outcome = match left.counts.is_empty() {
            true => sweep.go_on(&key.name, cache),
            false => {
                let mut requests = left.delete(&key.name);
                requests.extend(sweep.events(&key.name));
                ReconcileResult { requests, requeue_after: Some(AGAIN) }
            }
        };
        let is_empty = left.counts.is_empty() && outcome.requests.is_empty();
        let status = left.status(&sweep.failures, namespace.status.as_ref(), now);
        let is_reported = namespace.status.as_ref() == Some(&status);
        if !is_reported && (is_empty || !left.counts.is_empty() || !sweep.failures.is_empty()) {
            let mut changed = (**namespace).clone();
            changed.status = Some(status);
            outcome.requests.push(ControllerRequest::update_status(changed));
        } else if is_empty {
            let mut done = (**namespace).clone();
            let finalizers = done.spec.get_or_insert_default().finalizers.get_or_insert_default();
            finalizers.retain(|one| one != FINALIZER);
            outcome = ReconcileResult::with_request(ControllerRequest::Update {
                object: done.into(),
                subresource: "finalize",
            });
        }
        outcome
    }

    fn on_response(
        &mut self,
        key: &Key,
        request: &ControllerRequest,
        response: &ControllerResponse,
        _now: Timestamp,
    ) {
        let Some(sweep) = self.sweeps.get_mut(key) else { return };
        let (ControllerRequest::Count { kind, .. }
        | ControllerRequest::DeleteCollection { kind, .. }) = request
        else {
            return;
        };
        sweep.failures.remove(kind);
        sweep.full.remove(kind);
        let is_empty = match response {
            ControllerResponse::Count(n) => *n == 0,
            // They are not counted again.
            ControllerResponse::Success(_) => *kind == Kind::Event,
            // It is no longer served.
            ControllerResponse::Rejected { status: 404, .. } => true,
            ControllerResponse::Rejected { message, .. } => {
                sweep.failures.insert(*kind, message.clone());
                false
            }
            ControllerResponse::NoResponse { .. } => false,
        };
        if is_empty {
            sweep.empty.insert(*kind);
        } else if let ControllerResponse::Count(_) = response {
            sweep.full.insert(*kind);
        }
    }
}

impl Sweep {
    /// Takes the events away at once, whatever else stays: the cache never shows them.
    fn events(&self, namespace: &str) -> Option<ControllerRequest> {
        (!self.empty.contains(&Kind::Event)).then(|| ControllerRequest::DeleteCollection {
            kind: Kind::Event,
            namespace: namespace.to_owned(),
        })
    }

    /// Asks for all kinds that are not known to be empty; the cache shows nothing of them. No requests: there is nothing left.
    fn go_on(&self, namespace: &str, cache: &Cache) -> ReconcileResult {
        let namespaced = cache.served_kinds().kinds().filter(|kind| kind.info().is_namespaced);
        let request = |kind: Kind| {
            let namespace = namespace.to_owned();
            if kind == Kind::Event || self.full.contains(&kind) {
                ControllerRequest::DeleteCollection { kind, namespace }
            } else {
                ControllerRequest::Count { kind, namespace }
            }
        };
        let unknown = namespaced.filter(|kind| !self.empty.contains(kind));
        let again = if self.full.is_empty() { Duration::ZERO } else { UNWATCHED };
        ReconcileResult { requests: unknown.map(request).collect(), requeue_after: Some(again) }
    }
}

/// What the cache shows in a namespace.
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
        for kind in cache.served_kinds().watchable() {
            let info = kind.info();
            let mut n = 0;
            let mut is_going = true;
            for object in cache.objects_in(*kind, namespace) {
                n += 1;
                is_going &= is_terminating(object.metadata());
                for finalizer in object.metadata().finalizers.iter().flatten() {
                    *content.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
            }
            if n > 0 {
                content.counts.insert(format!("{}.{}", info.resource, info.group), n);
            }
            if !is_going {
                content.to_delete.push(*kind);
            }
        }
        if cache.store::<Pod>().in_namespace(namespace).next().is_some() {
            content.to_delete.retain(|kind| *kind == Kind::Pod);
        }
        content
    }

    fn delete(&self, namespace: &str) -> Vec<ControllerRequest> {
        let all = |kind: &Kind| ControllerRequest::DeleteCollection {
            kind: *kind,
            namespace: namespace.to_owned(),
        };
        self.to_delete.iter().map(all).collect()
    }

    fn status(
        &self,
        failures: &BTreeMap<Kind, String>,
        before: Option<&NamespaceStatus>,
        now: Timestamp,
    ) -> NamespaceStatus {
        let list = |counts: &BTreeMap<String, usize>, word: &str| {
            let one = |(name, count): (&String, &usize)| {
                format!("{name} {word} {count} resource instances")
            };
            counts.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let remaining = format!("Some resources are remaining: {}", list(&self.counts, "has"));
        let held = format!(
            "Some content in the namespace has finalizers remaining: {}",
            list(&self.finalizers, "in")
        );
        let mut why: Vec<&str> = failures.values().map(String::as_str).collect();
        why.sort_unstable();
        let (n_failures, why) = (why.len(), why.join(", "));
        let failed = format!("Failed to delete all resource types, {n_failures} remaining: {why}");
        // Reason and message when all is well, and when not.
        let all = [
            (
                "NamespaceDeletionDiscoveryFailure",
                ("ResourcesDiscovered", "All resources successfully discovered"),
                None,
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
                None,
            ),
            (
                "NamespaceDeletionContentFailure",
                (
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
                (n_failures > 0).then_some(("ContentDeletionFailed", failed.as_str())),
            ),
            (
                "NamespaceContentRemaining",
                ("ContentRemoved", "All content successfully removed"),
                (!self.counts.is_empty()).then_some(("SomeResourcesRemain", remaining.as_str())),
            ),
            (
                "NamespaceFinalizersRemaining",
                ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
                (!self.finalizers.is_empty()).then_some(("SomeFinalizersRemain", held.as_str())),
            ),
        ];
        let mut status = before.cloned().unwrap_or_default();
        status.phase = Some("Terminating".to_owned());
        let conditions = status.conditions.get_or_insert_default();
        for (kind, well, ill) in all {
            let value = if ill.is_some() { "True" } else { "False" };
            let (reason, message) = ill.unwrap_or(well);
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
    use crate::test_kubelet::bench;
    use crate::testkit::ControllerBench;

    fn start() -> ControllerBench {
        let mut bench = bench(vec![Box::<NamespaceController>::default()]);
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        bench.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "x"}}));
        bench.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}));
        bench.create(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        );
        bench.run_until_idle();
        bench
    }

    fn delete(bench: &mut ControllerBench) {
        bench.send_as_client(&ControllerRequest::Delete {
            key: Key::new(Kind::Namespace, "", "x"),
            options: Default::default(),
        });
        bench.wait(10);
    }

    #[test]
    fn content_is_deleted_first() {
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
    fn remaining_content_is_reported() {
        let mut bench = start();
        let key = Key::new(Kind::ConfigMap, "x", "a");
        let finalizers = |finalizers: serde_json::Value| {
            ControllerRequest::patch(
                key.clone(),
                crate::Patch::Merge(json!({"metadata": {"finalizers": finalizers}})),
            )
        };
        bench.send_as_client(&finalizers(json!(["example.com/wait"])));
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
        bench.send_as_client(&finalizers(json!(null)));
        bench.wait(10);
        assert!(bench.get::<Namespace>("", "x").is_none());
    }

    const FOO: &str = "/apis/example.com/v1/namespaces/x/foos/f";

    fn create_foo(bench: &mut ControllerBench, finalizers: &[&str]) {
        let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo",
            "metadata": {"name": "f", "namespace": "x", "finalizers": finalizers}});
        let (path, _) = FOO.rsplit_once('/').unwrap();
        assert_eq!(bench.http("POST", path, &foo).0, 201);
    }

    #[test]
    fn custom_objects_are_content() {
        let mut bench = start();
        // No controller knows the kind by name, and it is made while they run.
        bench.define("Foo", "foos", "Namespaced");
        create_foo(&mut bench, &["example.com/wait"]);
        delete(&mut bench);
        let status = bench.get::<Namespace>("", "x").unwrap().status.unwrap();
        let remaining = status.conditions.unwrap().remove(3);
        assert_eq!(
            remaining.message.unwrap(),
            "Some resources are remaining: foos.example.com has 1 resource instances"
        );
        let (_, mut foo) = bench.http("GET", FOO, &serde_json::Value::Null);
        assert!(foo["metadata"]["deletionTimestamp"].is_string(), "{foo}");
        foo["metadata"]["finalizers"] = json!([]);
        assert_eq!(bench.http("PUT", FOO, &foo).0, 200);
        bench.wait(10);
        assert!(bench.get::<Namespace>("", "x").is_none());
    }

    /// A server that cannot list some content, so that it is not watched.
    #[test]
    fn unwatched_content_is_counted_by_the_server() {
        let mut bench = start();
        bench.define("Foo", "foos", "Namespaced");
        create_foo(&mut bench, &[]);
        bench.unwatched_path = Some("/apis/example.com/");
        delete(&mut bench);
        assert!(bench.get::<Namespace>("", "x").is_none());
        assert_eq!(bench.http("GET", FOO, &serde_json::Value::Null).0, 404);
    }

    #[test]
    fn events_are_deleted_with_the_namespace() {
        let mut bench = start();
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "x"}});
        let path = "/api/v1/namespaces/x/events";
        assert_eq!(bench.http("POST", path, &event).0, 201);
        delete(&mut bench);
        let (_, list) = bench.http("GET", path, &serde_json::Value::Null);
        assert_eq!(list["items"], json!([]));
    }

    #[test]
    fn deletion_failures_are_reported() {
        let mut n = 0;
        let refuse = move |request: &ControllerRequest| {
            let is_of_foos = request.kind().info().kind == "Foo";
            n += usize::from(is_of_foos);
            (is_of_foos && n <= 2).then(|| ControllerResponse::Rejected {
                status: 500,
                reason: String::new(),
                message: "out of order".to_owned(),
                retry_after: Some(Duration::from_secs(20)),
            })
        };
        let mut bench = start().with_faults(refuse);
        bench.define("Foo", "foos", "Namespaced");
        delete(&mut bench);
        let condition = |bench: &ControllerBench| {
            let status = bench.get::<Namespace>("", "x")?.status?;
            let condition = status.conditions?.remove(2);
            Some((condition.status, condition.reason?, condition.message?))
        };
        let status = condition(&bench).unwrap().0;
        assert_eq!(status, "False", "it is reported with the next attempt");
        bench.wait(15);
        let want = "Failed to delete all resource types, 1 remaining: out of order".to_owned();
        assert_eq!(
            condition(&bench),
            Some(("True".to_owned(), "ContentDeletionFailed".to_owned(), want))
        );
        bench.wait(60);
        assert!(bench.get::<Namespace>("", "x").is_none());
    }

    /// Owners of other finalizers see that the content is deleted.
    #[test]
    fn an_empty_namespace_reports_deleted_content() {
        let mut bench = start();
        let hold = json!({"metadata": {"finalizers": ["example.com/wait"]}});
        bench.send_as_client(&ControllerRequest::patch(
            Key::new(Kind::Namespace, "", "x"),
            crate::Patch::Merge(hold),
        ));
        delete(&mut bench);
        let status = bench.get::<Namespace>("", "x").unwrap().status.unwrap();
        let conditions = status.conditions.unwrap();
        assert!(conditions.iter().all(|one| one.status == "False"), "{conditions:?}");
    }
}
