//! The ElasticQuota controller of scheduler-plugins: writes what the running pods of a namespace use into the status of its ElasticQuota.
//!
//! | | |
//! | --- | --- |
//! | writes | the status of ElasticQuotas, Events about them |
//! | upstream | `pkg/controllers/elasticquota_controller.go`, scheduler-plugins 0.35 |
//! | deviations | requests count as the scheduler counts them (sidecars, overhead, pod-level resources); of several quotas in a namespace the first by name counts; warnings about quotas that have no effect, or guarantee more than they allow; Events name the quota, upstream's also a pod that has changed |
//! | cost | O(pods of the namespace) for each change of a pod in a namespace with a quota |

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use loadmaster_api::quota::{ResourceAmounts, add_resource_amounts, pod_requests};
use loadmaster_api::{Quantity, ResourceList};
use loadmaster_scheduler_plugins::elastic_quota::{ElasticQuotaSpec, ElasticQuotaStatus};
use loadmaster_stdx::CollectByInsertion as _;
use serde_json::{Map, Value, json};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::custom_resource::custom_resource;
use crate::kind::{Key, Kind};
use crate::request::{ControllerRequest, Patch};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::phase;

custom_resource!(
    /// An ElasticQuota.
    ElasticQuota("elasticquotas"),
    spec: ElasticQuotaSpec,
    status: ElasticQuotaStatus,
);

/// The controller of ElasticQuotas. A key is an ElasticQuota.
#[derive(Debug, Default)]
pub(crate) struct ElasticQuotaController {
    /// The running pods of namespaces with a quota, by name.
    running: BTreeMap<Arc<str>, BTreeMap<String, RunningPod>>,
    /// The last warning about a quota.
    warnings: BTreeMap<Key, String>,
}

/// A pod and what it requests, which is computed once.
#[derive(Debug)]
struct RunningPod {
    pod: Arc<Pod>,
    requests: ResourceAmounts,
}

impl Controller for ElasticQuotaController {
    fn name(&self) -> &'static str {
        "ElasticQuotaController"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::ElasticQuota, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
        let quotas = cache.store::<ElasticQuota>().in_namespace(namespace);
        if object.kind() == Kind::ElasticQuota {
            // Another quota may be the first one now.
            let others = quotas.map(|quota| Key::from_object(&**quota));
            return others.chain([object.key()]).collect();
        }
        quotas.take(1).map(|quota| Key::from_object(&**quota)).collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let quotas = cache.store::<ElasticQuota>();
        let Some(first) = quotas.in_namespace(&key.namespace).next() else {
            self.running.remove(&key.namespace);
            self.warnings.remove(key);
            return ReconcileResult::none();
        };
        let Some(quota) = cache.get::<ElasticQuota>(&key.namespace, &key.name) else {
            self.warnings.remove(key);
            return ReconcileResult::none();
        };
        let counts = Arc::ptr_eq(first, quota);
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        let first_name = first.metadata.name.as_deref().unwrap_or_default();
        match warning(quota, (!counts).then_some(first_name)) {
            None => drop(self.warnings.remove(key)),
            Some((reason, text)) => {
                if self.warnings.insert(key.clone(), text.clone()).as_ref() != Some(&text) {
                    writes.warning(&**quota, reason, text);
                }
            }
        }
        if counts {
            let used = self.used(&key.namespace, quota, cache);
            let status = quota.status.as_ref().and_then(|status| status.used.as_ref());
            if let Some(patch) = status_patch(status, &used) {
                writes.push(ControllerRequest::patch_status(key.clone(), Patch::Merge(patch)));
                let Key { namespace, name, .. } = key;
                let text = format!("Elastic Quota {namespace}/{name} synced successfully");
                writes.event(&**quota, "Synced", text);
            }
        }
        writes.build()
    }
}

impl ElasticQuotaController {
    /// What the running pods of the namespace request: at least all resources that the quota bounds, with upstream's zeros.
    fn used(
        &mut self,
        namespace: &Arc<str>,
        quota: &ElasticQuota,
        cache: &Cache,
    ) -> ResourceAmounts {
        let spec = quota.spec.iter();
        let lists = spec.flat_map(|spec| [&spec.min, &spec.max]).flatten();
        let names = lists.flat_map(|list| list.iter().map(|(name, _)| name.to_string()));
        let mut used: ResourceAmounts =
            names.map(|name| (name, Quantity::ZERO)).collect_by_insertion();
        let mut known = self.running.remove(namespace).unwrap_or_default();
        let mut running = BTreeMap::new();
        let pods = cache.store::<Pod>().in_namespace(namespace);
        for pod in pods.filter(|pod| phase(pod) == "Running") {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let same = known.remove(&name).filter(|known| Arc::ptr_eq(&known.pod, pod));
            let counted = same.unwrap_or_else(|| RunningPod::new(pod));
            add_resource_amounts(&mut used, &counted.requests);
            running.insert(name, counted);
        }
        self.running.insert(namespace.clone(), running);
        used
    }
}

impl RunningPod {
    fn new(pod: &Arc<Pod>) -> RunningPod {
        let object = serde_json::to_value(&**pod).unwrap_or_default();
        RunningPod { pod: pod.clone(), requests: pod_requests(&object) }
    }
}

/// Reason and text of a warning about a quota. `first` is the quota of the namespace that counts, if it is another one.
fn warning(quota: &ElasticQuota, first: Option<&str>) -> Option<(&'static str, String)> {
    if let Some(first) = first {
        let text = format!("has no effect: the ElasticQuota {first} of this namespace counts");
        return Some(("Ignored", text));
    }
    let resource = quota.spec.as_ref()?.min_above_max()?;
    let text = format!(
        "min is above max for {resource}: max is the limit, but min counts in full in what all namespaces may use together"
    );
    Some(("MinAboveMax", text))
}

/// The amounts that differ.
fn status_patch(old: Option<&ResourceList>, new: &ResourceAmounts) -> Option<Value> {
    let before = |name: &str| old.and_then(|list| list.get(name));
    let mut patch = Map::new();
    for (name, amount) in new.iter().filter(|(name, amount)| before(name) != Some(*amount)) {
        patch.insert(name.clone(), json!(amount.to_string()));
    }
    let gone = old.into_iter().flat_map(ResourceList::iter).map(|(name, _)| name.as_str());
    for name in gone.filter(|name| !new.contains_key(*name)) {
        patch.insert(name.to_owned(), Value::Null);
    }
    let is_empty = patch.is_empty() && (old.is_some() || new.is_empty());
    (!is_empty).then(|| json!({"status": {"used": patch}}))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Event;

    use super::*;
    use crate::testkit::ControllerBench;

    const DEFINITION: &str =
        loadmaster_scheduler_plugins::custom_resource_definitions::CUSTOM_RESOURCE_DEFINITIONS[1];

    fn bench() -> ControllerBench {
        let bench = ControllerBench::new(vec![Box::<ElasticQuotaController>::default()]);
        create_definition(&bench);
        bench
    }

    fn create_definition(bench: &ControllerBench) {
        let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(bench.http("POST", path, &definition).0, 201);
    }

    fn create_quota(bench: &ControllerBench, name: &str, spec: Value) {
        let quota = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": name}, "spec": spec});
        let (status, made) = bench.http("POST", &Kind::ElasticQuota.api_path("default"), &quota);
        assert_eq!(status, 201, "{made}");
    }

    fn create_pod(bench: &mut ControllerBench, namespace: &str, name: &str, more: &Value) {
        let container = |requests: Value| json!({"name": "c", "image": "i", "resources": {"requests": requests}});
        let mut spec = json!({"containers": [container(json!({"cpu": "500m", "memory": "1Gi"}))]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bench.create(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec}));
    }

    fn set_phase(bench: &mut ControllerBench, namespace: &str, name: &str, phase: &str) {
        let key = Key::new(Kind::Pod, namespace, name);
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        bench.send_as_client(&ControllerRequest::patch_status(key, patch));
        bench.run_until_idle();
    }

    fn run_pod(bench: &mut ControllerBench, namespace: &str, name: &str, more: &Value) {
        create_pod(bench, namespace, name, more);
        set_phase(bench, namespace, name, "Running");
    }

    /// `name amount` of all resources that a quota uses.
    fn used(bench: &ControllerBench, name: &str) -> String {
        let quota = bench.get::<ElasticQuota>("default", name).unwrap();
        let used = quota.status.and_then(|status| status.used).unwrap_or_default();
        let texts: Vec<String> =
            used.iter().map(|(name, amount)| format!("{name} {amount}")).collect();
        texts.join(", ")
    }

    fn events(bench: &ControllerBench) -> Vec<String> {
        let events = bench.list::<Event>();
        let text = |it: Option<String>| it.unwrap_or_default();
        let lines = events
            .into_iter()
            .map(|it| format!("{} {}: {}", text(it.type_), text(it.reason), text(it.message)));
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines.dedup();
        lines
    }

    #[test]
    fn running_pods_count_until_they_have_finished() {
        let mut bench = bench();
        create_quota(
            &bench,
            "q",
            json!({"min": {"cpu": "1"}, "max": {"cpu": "2", "memory": "4Gi"}}),
        );
        bench.run_until_idle();
        assert_eq!(used(&bench, "q"), "cpu 0, memory 0");
        create_pod(&mut bench, "default", "a", &json!({}));
        bench.run_until_idle();
        assert_eq!(used(&bench, "q"), "cpu 0, memory 0");
        set_phase(&mut bench, "default", "a", "Running");
        assert_eq!(used(&bench, "q"), "cpu 500m, memory 1Gi");
        run_pod(&mut bench, "default", "b", &json!({}));
        assert_eq!(used(&bench, "q"), "cpu 1, memory 2Gi");
        // Nothing is written that does not change.
        let n_sent = bench.sent.len();
        bench.wait(60);
        assert_eq!(bench.sent.len(), n_sent);
        set_phase(&mut bench, "default", "a", "Succeeded");
        assert_eq!(used(&bench, "q"), "cpu 500m, memory 1Gi");
        set_phase(&mut bench, "default", "b", "Failed");
        assert_eq!(used(&bench, "q"), "cpu 0, memory 0");
        assert_eq!(events(&bench), ["Normal Synced: Elastic Quota default/q synced successfully"]);
    }

    #[test]
    fn other_namespaces_do_not_count() {
        let mut bench = bench();
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        create_quota(&bench, "q", json!({"min": {"cpu": 1}}));
        run_pod(&mut bench, "x", "a", &json!({}));
        assert_eq!(used(&bench, "q"), "cpu 0");
    }

    /// Upstream knows no sidecars and forgets the overhead.
    #[test]
    fn requests_count_as_the_scheduler_counts_them() {
        let mut bench = bench();
        create_quota(&bench, "q", json!({"min": {"cpu": 1}}));
        let init = |cpu: &str, policy: Value| {
            json!({"name": format!("i{cpu}"), "image": "i", "restartPolicy": policy,
                "resources": {"requests": {"cpu": cpu}}})
        };
        let more =
            json!({"initContainers": [init("100m", json!("Always")), init("1", Value::Null)]});
        run_pod(&mut bench, "default", "a", &more);
        assert_eq!(used(&bench, "q"), "cpu 1100m, memory 1Gi");
    }

    #[test]
    fn a_resource_that_nothing_requests_any_more_is_removed() {
        let mut bench = bench();
        create_quota(&bench, "q", json!({"min": {"cpu": 1}}));
        run_pod(&mut bench, "default", "a", &json!({}));
        assert_eq!(used(&bench, "q"), "cpu 500m, memory 1Gi");
        set_phase(&mut bench, "default", "a", "Succeeded");
        assert_eq!(used(&bench, "q"), "cpu 0");
    }

    /// Pods and quotas may come in any order, and the controller may be restarted between them.
    #[test]
    fn a_quota_may_come_after_its_pods() {
        let mut bench = ControllerBench::new(vec![Box::<ElasticQuotaController>::default()]);
        run_pod(&mut bench, "default", "a", &json!({}));
        create_definition(&bench);
        create_quota(&bench, "q", json!({"min": {"cpu": 1}}));
        bench.run_until_idle();
        assert_eq!(used(&bench, "q"), "cpu 500m, memory 1Gi");
        bench.restart(Vec::new());
        run_pod(&mut bench, "default", "b", &json!({}));
        assert_eq!(used(&bench, "q"), "cpu 500m, memory 1Gi");
        bench.restart(vec![Box::<ElasticQuotaController>::default()]);
        bench.run_until_idle();
        assert_eq!(used(&bench, "q"), "cpu 1, memory 2Gi");
    }

    #[test]
    fn the_first_quota_by_name_counts() {
        let mut bench = bench();
        create_quota(&bench, "b", json!({"min": {"cpu": 1}}));
        run_pod(&mut bench, "default", "p", &json!({}));
        assert_eq!(used(&bench, "b"), "cpu 500m, memory 1Gi");
        create_quota(&bench, "a", json!({"min": {"cpu": 1}}));
        bench.run_until_idle();
        assert_eq!(used(&bench, "a"), "cpu 500m, memory 1Gi");
        let ignored = "Warning Ignored: has no effect: the ElasticQuota a of this namespace counts";
        assert!(events(&bench).contains(&ignored.to_owned()), "{:?}", events(&bench));
        // The other one counts again.
        let key = Key::new(Kind::ElasticQuota, "default", "a");
        bench.send_as_client(&ControllerRequest::Delete { key, options: Default::default() });
        set_phase(&mut bench, "default", "p", "Succeeded");
        assert_eq!(used(&bench, "b"), "cpu 0");
    }

    #[test]
    fn a_minimum_above_the_maximum_is_reported_once() {
        let mut bench = bench();
        create_quota(&bench, "q", json!({"min": {"cpu": 2}, "max": {"cpu": 1}}));
        run_pod(&mut bench, "default", "p", &json!({}));
        let n_warnings = events(&bench).iter().filter(|it| it.contains("MinAboveMax")).count();
        assert_eq!(n_warnings, 1, "{:?}", events(&bench));
        let sent = bench.sent.iter().filter(|it| format!("{it:?}").contains("MinAboveMax"));
        assert_eq!(sent.count(), 1);
    }

    #[test]
    fn objects_survive_a_round_trip() {
        let object = json!({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": "q"}, "spec": {"min": {"cpu": "3"}, "max": {"cpu": "4"}},
            "status": {"used": {"cpu": "1"}}});
        let quota: ElasticQuota = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&quota).unwrap(), object);
    }
}
