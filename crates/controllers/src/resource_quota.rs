//! The resource quota controller: recounts the usage of ResourceQuotas when objects are created, changed or deleted. The API server's
//! admission itself raises the usage; deletions are counted here.
//!
//! | | |
//! | --- | --- |
//! | reads | quotas, and all kinds that the server serves |
//! | writes | the status of ResourceQuotas |
//! | upstream | `pkg/controller/resourcequota`, 1.36 |
//! | deviations | counts soon after every change; upstream after deletions, and all quotas every five minutes |
//! | cost | O(objects that a quota counts), a pause that grows with their number apart |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use loadmaster_api::Quantity;
use loadmaster_api::quota::{QuotaResource, ResourceAmounts, add_resource_amounts};
use loadmaster_stdx::CollectByInsertion as _;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::result_builder::ReconcileResultBuilder;
use crate::work_queue::saturating_add;

/// So long after a change it is counted: kinds are watched separately, and what the server has counted must have been seen.
const PAUSE: Duration = Duration::from_millis(200);
/// More for each object that was counted last.
const PAUSE_EACH: Duration = Duration::from_micros(100);
/// Upstream's `ResourceQuotaSyncPeriod`: a pod past its grace period stops counting although no event comes.
const RESYNC: Duration = Duration::from_secs(300);

/// The controller of quotas.
#[derive(Debug, Default)]
pub(crate) struct ResourceQuotaController {
    counts: BTreeMap<Key, Count>,
}

/// When a quota is counted.
#[derive(Debug, Default)]
struct Count {
    /// Something has changed; it is counted then.
    due: Option<Timestamp>,
    /// How many objects it had to look at last.
    n_objects: u32,
}

impl Controller for ResourceQuotaController {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::ResourceQuota, Kind::Pod, Kind::Service, Kind::PersistentVolumeClaim]
    }

    fn watches_all_kinds(&self) -> bool {
        true
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        let kind = object.kind();
        let mut keys = Vec::new();
        if kind == Kind::ResourceQuota {
            keys.push(object.key());
        }
        // Of most objects it only counts that they are there.
        let has_amounts = matches!(
            kind,
            Kind::Pod | Kind::Service | Kind::PersistentVolumeClaim | Kind::ResourceClaim
        );
        if has_amounts || change.old.is_none() || change.new.is_none() {
            let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
            let here = cache.store::<ResourceQuota>().in_namespace(namespace);
            let counting = here
                .filter(|quota| hard(quota).keys().any(|it| counted(kind).matches_quota_name(it)));
            keys.extend(counting.map(|quota| Key::from_object(&**quota)));
        }
        keys
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let Some(quota) = cache.get::<ResourceQuota>(&key.namespace, &key.name) else {
            self.counts.remove(key);
            return ReconcileResult::none();
        };
        let count = self.counts.entry(key.clone()).or_default();
        let before = quota.status.clone().unwrap_or_default();
        let hard = hard(quota);
        // Admission uses the status: a change of the quota itself is handled immediately.
        if hard == amounts(before.hard.as_ref()) {
            let pause = PAUSE + PAUSE_EACH * count.n_objects;
            let due = *count.due.get_or_insert_with(|| saturating_add(now, pause));
            if now < due {
                return ReconcileResult::requeue_after(due.duration_since(now).unsigned_abs());
            }
        }
        let mut used = amounts(before.used.as_ref());
        let (found, n_objects) = found(quota, &hard, cache, now);
        *count = Count { due: None, n_objects };
        // What nothing is known about stays as it was.
        used.extend(found);
        used.retain(|name, _| hard.contains_key(name));
        let mut writes = ReconcileResultBuilder::new(self.name(), now);
        if hard != amounts(before.hard.as_ref()) || used != amounts(before.used.as_ref()) {
            let mut changed = (**quota).clone();
            changed.status =
                Some(ResourceQuotaStatus { hard: Some(texts(hard)), used: Some(texts(used)) });
            writes.update_status(&changed);
        }
        writes.requeue_after(RESYNC);
        writes.build()
    }
}

fn counted(kind: Kind) -> QuotaResource<'static> {
    let info = kind.info();
    QuotaResource { group: info.group, resource: info.resource }
}

/// What a quota is to allow.
fn hard(quota: &ResourceQuota) -> ResourceAmounts {
    amounts(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()))
}

fn amounts(list: Option<&BTreeMap<String, Text>>) -> ResourceAmounts {
    let members = list.into_iter().flatten();
    members
        .filter_map(|(name, it)| Some((name.clone(), Quantity::parse(&it.0).ok()?)))
        .collect_by_insertion()
}

fn texts(amounts: ResourceAmounts) -> BTreeMap<String, Text> {
    amounts
        .into_iter()
        .map(|(name, amount)| (name, Text(amount.to_string())))
        .collect_by_insertion()
}

/// What the objects of a quota's namespace use of it, and how many there are.
fn found(
    quota: &ResourceQuota,
    hard: &ResourceAmounts,
    cache: &Cache,
    now: Timestamp,
) -> (ResourceAmounts, u32) {
    let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
    let spec = serde_json::to_value(&quota.spec).unwrap_or_default();
    let (mut used, mut n_objects) = (ResourceAmounts::new(), 0);
    for kind in cache.served_kinds().watchable() {
        let counted = counted(*kind);
        let mut names = hard.keys().filter(|name| counted.matches_quota_name(name)).peekable();
        if names.peek().is_none() || !kind.info().is_namespaced {
            continue;
        }
        for name in names {
            used.entry(name.clone()).or_insert(Quantity::ZERO);
        }
        for object in cache.objects_in(*kind, namespace) {
            n_objects += 1;
            let Ok(object) = object.to_json() else { continue };
            if counted.is_in_scope(&spec, &object) {
                let mut more = counted.usage(&object, now);
                more.retain(|name, _| hard.contains_key(name));
                add_resource_amounts(&mut used, &more);
            }
        }
    }
    (used, n_objects)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testkit::ControllerBench;

    fn quota(bench: &mut ControllerBench, spec: Value) {
        bench.create(json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "default"}, "spec": spec}));
        bench.run_until_idle();
    }

    fn object(bench: &mut ControllerBench, kind: &str, name: &str, more: Value) {
        let version = if kind == "Crew" { "example.com/v1" } else { "v1" };
        let mut whole = json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": "default"}});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bench.create(whole);
    }

    fn pod(bench: &mut ControllerBench, name: &str) {
        let container =
            json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}});
        object(bench, "Pod", name, json!({"spec": {"containers": [container]}}));
    }

    /// What is used of what there is, after a while.
    #[track_caller]
    fn check(bench: &mut ControllerBench, want: &str) {
        bench.wait(1);
        let status = bench.get::<ResourceQuota>("default", "q").unwrap().status.unwrap();
        let (hard, used) = (amounts(status.hard.as_ref()), amounts(status.used.as_ref()));
        let shown = hard.iter().map(|(name, hard)| match used.get(name) {
            Some(used) => format!("{name} {used}/{hard}"),
            None => format!("{name} ?/{hard}"),
        });
        assert_eq!(shown.collect::<Vec<_>>().join(", "), want);
        let n_sent = bench.sent.len();
        bench.wait(1000);
        assert_eq!(bench.sent.len(), n_sent, "it comes to rest");
    }

    fn start() -> ControllerBench {
        ControllerBench::new(vec![Box::<ResourceQuotaController>::default()])
    }

    #[test]
    fn existing_objects_are_counted() {
        let mut bench = start();
        pod(&mut bench, "a");
        object(&mut bench, "ConfigMap", "m", json!({}));
        let ports = json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        object(&mut bench, "Service", "s", ports);
        let hard = json!({"pods": "3", "requests.cpu": "2", "count/configmaps": "1", "services.nodeports": "5",
            "count/nobodies.example.com": "1", "resourcequotas": "1"});
        quota(&mut bench, json!({"hard": hard}));
        check(
            &mut bench,
            "count/configmaps 1/1, count/nobodies.example.com ?/1, pods 1/3, requests.cpu 500m/2, resourcequotas 1/1, services.nodeports 1/5",
        );
        bench.delete(Kind::ConfigMap, "m");
        bench.merge(Kind::Service, "s", json!({"spec": {"type": "ClusterIP"}}));
        check(
            &mut bench,
            "count/configmaps 0/1, count/nobodies.example.com ?/1, pods 1/3, requests.cpu 500m/2, resourcequotas 1/1, services.nodeports 0/5",
        );
    }

    #[test]
    fn usage_follows_created_and_deleted_objects() {
        let mut bench = start();
        quota(&mut bench, json!({"hard": {"pods": "2", "count/pods": "3", "cpu": "5"}}));
        pod(&mut bench, "a");
        pod(&mut bench, "b");
        check(&mut bench, "count/pods 2/3, cpu 1/5, pods 2/2");
        assert_eq!(bench.sent.len(), 1, "the server has counted what came");
        bench.set_phase("a", "Succeeded");
        check(&mut bench, "count/pods 2/3, cpu 500m/5, pods 1/2");
        bench.delete(Kind::Pod, "b");
        check(&mut bench, "count/pods 1/3, cpu 0/5, pods 0/2");
    }

    #[test]
    fn usage_follows_changes_of_the_quota() {
        let mut bench = start();
        quota(&mut bench, json!({"hard": {"pods": "1"}}));
        pod(&mut bench, "a");
        bench.merge(
            Kind::ResourceQuota,
            "q",
            json!({"spec": {"hard": {"pods": null, "requests.cpu": "1"}}}),
        );
        bench.run_until_idle();
        let status = bench.get::<ResourceQuota>("default", "q").unwrap().status.unwrap();
        assert_eq!(texts(amounts(status.used.as_ref()))["requests.cpu"].0, "500m", "at once");
        check(&mut bench, "requests.cpu 500m/1");
        let path = "/api/v1/namespaces/default/resourcequotas/q/status";
        let odd = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
            "status": {"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "9", "pods": "9"}}});
        assert_eq!(bench.http("PUT", path, &odd).0, 200);
        check(&mut bench, "requests.cpu 500m/1");
    }

    #[test]
    fn scopes_and_custom_objects() {
        let mut bench = start();
        bench.define("Crew", "crews", "Namespaced");
        let hard = json!({"pods": "5"});
        quota(&mut bench, json!({"hard": hard, "scopes": ["NotBestEffort"]}));
        pod(&mut bench, "a");
        let plain = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
        object(&mut bench, "Pod", "b", plain);
        check(&mut bench, "pods 1/5");
        bench.delete(Kind::ResourceQuota, "q");
        bench.run_until_idle();
        object(&mut bench, "Crew", "a", json!({}));
        quota(&mut bench, json!({"hard": {"count/crews.example.com": "2"}}));
        object(&mut bench, "Crew", "b", json!({}));
        check(&mut bench, "count/crews.example.com 2/2");
    }

    #[test]
    fn a_pod_past_its_grace_period_does_not_count() {
        let mut bench = start();
        quota(&mut bench, json!({"hard": {"pods": "1"}}));
        let held = json!({"metadata": {"name": "a", "namespace": "default", "finalizers": ["x.io/y"]},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        object(&mut bench, "Pod", "a", held);
        bench.delete(Kind::Pod, "a");
        bench.wait(10);
        let used = |bench: &ControllerBench| {
            let status = bench.get::<ResourceQuota>("default", "q").unwrap().status.unwrap();
            status.used.unwrap()["pods"].0.clone()
        };
        assert_eq!(used(&bench), "1");
        bench.wait(400);
        assert_eq!(used(&bench), "0");
    }
}
