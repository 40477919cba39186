//! A kubelet for tests of controllers: pods run immediately, unless an annotation says otherwise.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind, Typed};
use crate::meta::{annotation_value, is_terminating};
use crate::request::{ControllerRequest, Patch};
use crate::testkit::ControllerBench;
use crate::workload::phase;

/// Runs pods. One with the annotation `play: wait` stays pending.
pub(crate) struct TestKubelet;

impl Controller for TestKubelet {
    fn name(&self) -> &'static str {
        "test-kubelet"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _cache: &Cache) -> Vec<Key> {
        change.new.into_iter().map(|object| object.key()).collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(pod) = cache.get::<Pod>(&key.namespace, &key.name) else {
            return ReconcileResult::none();
        };
        let waits = annotation_value(&pod.metadata, "play") == Some("wait");
        if waits || phase(pod) != "Pending" || is_terminating(&pod.metadata) {
            return ReconcileResult::none();
        }
        ReconcileResult::with_request(ControllerRequest::patch_status(
            key.clone(),
            Patch::Merge(running(now)),
        ))
    }
}

fn running(now: Timestamp) -> Value {
    let time = Timestamp::from_second(now.as_second()).unwrap().to_string();
    json!({"status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": time}]}})
}

/// A bench with the test kubelet and some controllers.
pub(crate) fn bench(controllers: Vec<Box<dyn Controller>>) -> ControllerBench {
    let mut all: Vec<Box<dyn Controller>> = vec![Box::new(TestKubelet)];
    all.extend(controllers);
    ControllerBench::new(all)
}

/// A set of `apps/v1` in the namespace `default` with pods of its name, and more in its spec.
pub(crate) fn set(kind: &str, name: &str, more: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "v1"}]}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

impl ControllerBench {
    /// Sets a pod's phase, and that it is not ready.
    #[track_caller]
    pub(crate) fn set_phase(&mut self, pod: &str, phase: &str) {
        let time = Timestamp::from_second(self.now().as_second()).unwrap().to_string();
        let status = json!({"status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": time}]}});
        self.send_as_client(&ControllerRequest::patch_status(
            Key::new(Kind::Pod, "default", pod),
            Patch::Merge(status),
        ));
    }

    /// A merge patch on an object of the namespace `default`.
    #[track_caller]
    pub(crate) fn merge(&mut self, kind: Kind, name: &str, patch: Value) {
        self.send_as_client(&ControllerRequest::patch(
            Key::new(kind, "default", name),
            Patch::Merge(patch),
        ));
    }

    /// Deletes an object of the namespace `default`.
    #[track_caller]
    pub(crate) fn delete(&mut self, kind: Kind, name: &str) {
        let key = Key::new(kind, "default", name);
        self.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
    }

    /// A definition of `example.com`, whose objects may have anything in them.
    #[track_caller]
    pub(crate) fn define(&mut self, kind: &str, plural: &str, scope: &str) {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({"metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}]}});
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (status, made) = self.http("POST", path, &definition);
        assert_eq!(status, 201, "{made}");
    }

    /// Names of all objects of a kind.
    pub(crate) fn names<K: Typed>(&self) -> Vec<String> {
        self.list::<K>().iter().map(|one| one.metadata().name.clone().unwrap()).collect()
    }

    /// Reasons and messages of all Events, in the order of their making.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut all = self.list::<Event>();
        all.sort_by_key(|one| {
            one.metadata.resource_version.as_ref().map(|it| it.parse::<u64>().unwrap())
        });
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        all.iter().map(|one| format!("{}: {}", text(&one.reason), text(&one.message))).collect()
    }

    /// Seconds pass.
    #[track_caller]
    pub(crate) fn wait(&mut self, seconds: u64) {
        self.advance_time(Duration::from_secs(seconds));
    }
}
