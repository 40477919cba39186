//! The disruption controller: how many pods each PodDisruptionBudget allows to be disrupted.
//!
//! | | |
//! | --- | --- |
//! | writes | status of PodDisruptionBudgets, Events |
//! | upstream | `pkg/controller/disruption`, 1.36 |
//! | deviations | scale subresources of custom resources are not read; a stale DisruptionTarget condition stays |

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::kind::{Key, Kind};
use crate::meta::{controller_of, is_terminating, selector_matches};
use crate::result_builder::ReconcileResultBuilder;
use crate::workload::{is_ready, scaled_value, stamp};

const ALLOWED: &str = "DisruptionAllowed";
/// How long a granted eviction counts before its pod is observed terminating (upstream's `DeletionTimeout`).
const GRANTED: SignedDuration = SignedDuration::from_secs(120);

/// The controller of PodDisruptionBudgets.
#[derive(Debug, Default)]
pub(crate) struct DisruptionController;

impl Controller for DisruptionController {
    fn name(&self) -> &'static str {
        "disruption-controller"
    }

    fn watches(&self) -> &'static [Kind] {
        &[
            Kind::PodDisruptionBudget,
            Kind::Pod,
            Kind::ReplicaSet,
            Kind::Deployment,
            Kind::StatefulSet,
            Kind::ReplicationController,
        ]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, cache: &Cache) -> Vec<Key> {
        let Some(object) = change.new_or_old() else { return Vec::new() };
        let budgets = cache.store::<PodDisruptionBudget>();
        match object.kind() {
            Kind::PodDisruptionBudget => vec![object.key()],
            Kind::Pod => {
                let meta = object.metadata();
                let here = budgets.in_namespace(meta.namespace.as_deref().unwrap_or_default());
                let before = change.old.map(|one| one.metadata());
                let here = here.filter(|budget| {
                    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                    selector.is_some_and(|selector| {
                        selector_matches(selector, meta.labels.as_ref())
                            || before.is_some_and(|meta| {
                                selector_matches(selector, meta.labels.as_ref())
                            })
                    })
                });
                here.map(|budget| Key::from_object(&**budget)).collect()
            }
            // A controller's size counts, and controllers are few.
            _ => {
                let namespace = object.metadata().namespace.as_deref().unwrap_or_default();
                budgets.in_namespace(namespace).map(|budget| Key::from_object(&**budget)).collect()
            }
        }
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, now: Timestamp) -> ReconcileResult {
        let found = cache.get::<PodDisruptionBudget>(&key.namespace, &key.name);
        let Some(budget) = found else { return ReconcileResult::none() };
        let Some(spec) = &budget.spec else { return ReconcileResult::none() };
        let mut writes = ReconcileResultBuilder::new("controllermanager", now);
        let selector = spec.selector.as_ref();
        let is_selected = |pod: &&Pod| {
            selector.is_some_and(|one| selector_matches(one, pod.metadata.labels.as_ref()))
        };
        let pods = cache.store::<Pod>().in_namespace(&key.namespace).map(|pod| &**pod);
        let pods: Vec<&Pod> = pods.filter(is_selected).collect();
        let scale = |owner: &OwnerReference| scale(owner, &key.namespace, cache);
        let before = budget.status.clone().unwrap_or_default();
        let status = status(budget, spec, &pods, &scale, now, &mut writes);
        if status != before {
            let mut changed = (**budget).clone();
            changed.status = Some(status);
            writes.update_status(&changed);
        }
        writes.build()
    }
}

/// The desired number of pods of a controller, and that controller: for a ReplicaSet its Deployment.
fn scale(owner: &OwnerReference, namespace: &str, cache: &Cache) -> Option<(String, i32)> {
    let uid = |meta: &ObjectMeta| meta.uid.clone().filter(|uid| *uid == owner.uid);
    match owner.kind.as_str() {
        "ReplicaSet" => {
            let set = cache.get::<ReplicaSet>(namespace, &owner.name)?;
            let own = uid(&set.metadata)?;
            let above = controller_of(&set.metadata).filter(|above| above.kind == "Deployment");
            match above.and_then(|above| scale(above, namespace, cache)) {
                Some(above) => Some(above),
                None => Some((own, set.spec.as_ref()?.replicas.unwrap_or(1))),
            }
        }
        "Deployment" => {
            let found = cache.get::<Deployment>(namespace, &owner.name)?;
            Some((uid(&found.metadata)?, found.spec.as_ref()?.replicas.unwrap_or(1)))
        }
        "StatefulSet" => {
            let found = cache.get::<StatefulSet>(namespace, &owner.name)?;
            Some((uid(&found.metadata)?, found.spec.as_ref()?.replicas.unwrap_or(1)))
        }
        "ReplicationController" => {
            let found = cache.get::<ReplicationController>(namespace, &owner.name)?;
            Some((uid(&found.metadata)?, found.spec.as_ref()?.replicas.unwrap_or(1)))
        }
        _ => None,
    }
}

type Scale<'a> = dyn Fn(&OwnerReference) -> Option<(String, i32)> + 'a;

/// The number of pods there should be, and of those that must stay healthy.
fn expected(
    spec: &PodDisruptionBudgetSpec,
    pods: &[&Pod],
    scale: &Scale<'_>,
) -> Result<(i32, i32), String> {
    let by_controllers = || {
        let mut sizes: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else { continue };
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let (uid, size) =
                scale(owner).ok_or_else(|| format!("found no controllers for pod \"{name}\""))?;
            sizes.insert(uid, size);
        }
        Ok::<i32, String>(sizes.values().fold(0, |sum, size| sum.saturating_add(*size)))
    };
    Ok(match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = by_controllers()?;
            (expected, (expected - scaled_value(Some(most), expected, true)).max(0))
        }
        (None, Some(IntOrString::Int(least))) => (pods.len() as i32, *least),
        (None, Some(least)) => {
            let expected = by_controllers()?;
            (expected, scaled_value(Some(least), expected, true))
        }
        (None, None) => (0, 0),
    })
}

fn status(
    budget: &PodDisruptionBudget,
    spec: &PodDisruptionBudgetSpec,
    pods: &[&Pod],
    scale: &Scale<'_>,
    now: Timestamp,
    writes: &mut ReconcileResultBuilder,
) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    let is_known =
        status.observed_generation == budget.metadata.generation && status.expected_pods == Some(0);
    if pods.is_empty() && !is_known {
        writes.event(budget, "NoPods", "No matching pods found");
    }
    let (expected, desired) = match expected(spec, pods, scale) {
        Ok(found) => found,
        Err(error) => {
            let is_new = status.conditions.iter().flatten().all(|one| one.message != error);
            if is_new {
                let text = format!("Failed to calculate the number of expected pods: {error}");
                writes.warning(budget, "CalculateExpectedPodCountFailed", text);
            }
            status.disruptions_allowed = Some(0);
            set(&mut status, false, "SyncFailed", &error, now);
            return status;
        }
    };
    // Pods whose eviction was granted and that still exist.
    let mut granted: BTreeMap<String, Time> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_terminating(&pod.metadata)) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let since = status.disrupted_pods.as_ref().and_then(|all| all.get(&name));
        let Some(since) = since else { continue };
        let left = GRANTED - now.duration_since(since.0);
        if left.is_negative() {
            let budget_name = budget.metadata.name.as_deref().unwrap_or_default();
            let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
            let text = format!(
                "Pod was expected by PDB {namespace}/{budget_name} to be deleted but it wasn't"
            );
            writes.warning(*pod, "NotDeleted", text);
        } else {
            writes.requeue_after(left.unsigned_abs() + std::time::Duration::from_secs(1));
            granted.insert(name, since.clone());
        }
    }
    let is_healthy = |pod: &&&Pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        !is_terminating(&pod.metadata) && !granted.contains_key(name) && is_ready(pod)
    };
    let healthy = pods.iter().filter(is_healthy).count() as i32;
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    status.current_healthy = Some(healthy);
    status.desired_healthy = Some(desired);
    status.expected_pods = Some(expected);
    status.disruptions_allowed = Some(allowed);
    status.disrupted_pods = Some(granted).filter(|all| !all.is_empty());
    status.observed_generation = budget.metadata.generation;
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    set(&mut status, allowed > 0, reason, "", now);
    status
}

fn set(
    status: &mut PodDisruptionBudgetStatus,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let value = if is_true { "True" } else { "False" };
    let all = status.conditions.get_or_insert_default();
    let before = all.iter().position(|one| one.type_ == ALLOWED);
    let same = before.map(|place| &all[place]).filter(|one| one.status == value);
    let since = same.map_or_else(|| stamp(now), |one| one.last_transition_time.clone());
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: since,
    };
    match before {
        Some(place) => all[place] = condition,
        None => all.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::replica_set::ReplicaSetController;
    use crate::test_kubelet::bench;
    use crate::testkit::ControllerBench;

    /// A ReplicaSet of so many pods, and a budget.
    fn start(replicas: i32, budget: Value) -> ControllerBench {
        let mut bench = bench(vec![
            Box::<DisruptionController>::default(),
            Box::<ReplicaSetController>::default(),
        ]);
        bench.create(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}));
        bench.run_until_idle();
        let mut spec = budget;
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        bench.create(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"}, "spec": spec}));
        bench.run_until_idle();
        bench
    }

    fn found(bench: &ControllerBench) -> PodDisruptionBudgetStatus {
        bench.get::<PodDisruptionBudget>("default", "web").unwrap().status.unwrap()
    }

    /// Allowed, healthy, desired and expected.
    fn numbers(bench: &ControllerBench) -> [i32; 4] {
        let one = found(bench);
        [one.disruptions_allowed, one.current_healthy, one.desired_healthy, one.expected_pods]
            .map(Option::unwrap)
    }

    #[test]
    fn limits() {
        for (spec, want) in [
            (json!({"maxUnavailable": 1}), [1, 4, 3, 4]),
            (json!({"maxUnavailable": "50%"}), [2, 4, 2, 4]),
            (json!({"maxUnavailable": 9}), [4, 4, 0, 4]),
            (json!({"minAvailable": 3}), [1, 4, 3, 4]),
            (json!({"minAvailable": 5}), [0, 4, 5, 4]),
            (json!({"minAvailable": "60%"}), [1, 4, 3, 4]),
            (json!({"minAvailable": "100%"}), [0, 4, 4, 4]),
        ] {
            let bench = start(4, spec.clone());
            assert_eq!(numbers(&bench), want, "{spec}");
            let condition = found(&bench).conditions.unwrap().remove(0);
            let want = if want[0] > 0 {
                ("True", "SufficientPods")
            } else {
                ("False", "InsufficientPods")
            };
            assert_eq!((condition.status.as_str(), condition.reason.as_str()), want);
        }
    }

    #[test]
    fn budgets_follow_pods() {
        let mut bench = start(3, json!({"maxUnavailable": 1}));
        let pod = bench.names::<Pod>().remove(0);
        bench.set_phase(&pod, "Running");
        bench.run_until_idle();
        assert_eq!(numbers(&bench), [0, 2, 2, 3]);
        bench.merge(Kind::ReplicaSet, "web", json!({"spec": {"replicas": 0}}));
        bench.run_until_idle();
        assert_eq!(numbers(&bench), [0, 0, 0, 0]);
    }

    #[test]
    fn a_pod_without_controller() {
        let mut bench = start(1, json!({"maxUnavailable": 1}));
        let owner =
            json!({"apiVersion": "v1", "kind": "Odd", "name": "x", "uid": "1", "controller": true});
        bench.create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd", "namespace": "default",
            "labels": {"app": "web"}, "ownerReferences": [owner]}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
        bench.run_until_idle();
        let status = found(&bench);
        assert_eq!(status.disruptions_allowed, Some(0));
        assert_eq!(status.conditions.unwrap()[0].message, "found no controllers for pod \"odd\"");
    }

    #[test]
    fn granted_evictions_count_for_a_while() {
        let mut bench = start(3, json!({"maxUnavailable": 1}));
        let pod = bench.names::<Pod>().remove(0);
        bench.merge(Kind::Pod, &pod, json!({"metadata": {"finalizers": ["example.com/wait"]}}));
        let time = Timestamp::from_second(bench.now().as_second()).unwrap().to_string();
        let key = Key::new(Kind::PodDisruptionBudget, "default", "web");
        let patch = crate::Patch::Merge(json!({"status": {"disruptedPods": {pod: time}}}));
        bench.send_as_client(&crate::ControllerRequest::patch_status(key, patch));
        bench.run_until_idle();
        assert_eq!(numbers(&bench), [0, 2, 2, 3]);
        bench.wait(122);
        assert_eq!(numbers(&bench), [1, 3, 2, 3]);
        assert!(bench.events().iter().any(|one| one.starts_with("NotDeleted: ")));
    }
}
