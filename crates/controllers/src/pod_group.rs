//! The PodGroup controller of scheduler-plugins: writes the status of PodGroups from their pods.
//!
//! | | |
//! | --- | --- |
//! | writes | the status of PodGroups |
//! | upstream | `pkg/controllers/podgroup_controller.go`, scheduler-plugins 0.35 |
//! | deviations | only pods in the PodGroup's own namespace count; a group of which enough pods run is not Failed, and one that has failed may run again; nothing is written that does not change |
//!
//! Upstream also stops 48 hours after `status.scheduleStartTime`. Nothing writes that field, so that never happens.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use loadmaster_scheduler_plugins::pod_group::{LABEL, PodGroupSpec, PodGroupStatus};
use serde_json::{Map, Value, json};

use crate::cache::Cache;
use crate::controller::{Controller, ObjectChange, ReconcileResult};
use crate::custom_resource::custom_resource;
use crate::kind::{Key, Kind};
use crate::meta::label_value;
use crate::request::{ControllerRequest, Patch};
use crate::workload::phase;

custom_resource!(
    /// A PodGroup.
    PodGroup("podgroups"),
    spec: PodGroupSpec,
    status: PodGroupStatus,
);

/// The controller of PodGroups. A key is a PodGroup.
#[derive(Debug, Default)]
pub(crate) struct PodGroupController;

impl Controller for PodGroupController {
    fn name(&self) -> &'static str {
        "PodGroupController"
    }

    fn watches(&self) -> &'static [Kind] {
        &[Kind::PodGroup, Kind::Pod]
    }

    fn keys_to_enqueue(&self, change: &ObjectChange<'_>, _: &Cache) -> Vec<Key> {
        if let Some(group) = change.new_or_old_typed::<PodGroup>() {
            return vec![Key::from_object(group)];
        }
        let pods = [change.old::<Pod>(), change.new::<Pod>()].into_iter().flatten();
        let keys: BTreeSet<Key> = pods.filter_map(group_of).collect();
        keys.into_iter().collect()
    }

    fn reconcile(&mut self, key: &Key, cache: &Cache, _: Timestamp) -> ReconcileResult {
        let Some(group) = cache.get::<PodGroup>(&key.namespace, &key.name) else {
            return ReconcileResult::none();
        };
        let pods = cache.store::<Pod>().in_namespace(&key.namespace);
        let pods = pods.map(|pod| &**pod).filter(|pod| is_member(pod, &key.name));
        let old = group.status.clone().unwrap_or_default();
        let n_min = group.spec.as_ref().map_or(0, |spec| spec.min_member);
        let new = next_status(&old, n_min, pods);
        match status_patch(&old, &new) {
            Some(patch) => ReconcileResult::with_request(ControllerRequest::patch_status(
                key.clone(),
                Patch::Merge(patch),
            )),
            None => ReconcileResult::none(),
        }
    }
}

/// The PodGroup of a pod.
fn group_of(pod: &Pod) -> Option<Key> {
    let name = label_value(&pod.metadata, LABEL).filter(|name| !name.is_empty())?;
    Some(Key::new(Kind::PodGroup, pod.metadata.namespace.as_deref().unwrap_or_default(), name))
}

fn is_member(pod: &Pod, group: &str) -> bool {
    label_value(&pod.metadata, LABEL) == Some(group)
}

/// The status after one step: a new group is Pending, then Scheduling when it has enough pods, then follows its pods until enough have
/// succeeded.
fn next_status<'a>(
    old: &PodGroupStatus,
    n_min: i32,
    pods: impl Iterator<Item = &'a Pod>,
) -> PodGroupStatus {
    let pods: Vec<&Pod> = pods.collect();
    let n_pods = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let mut new = old.clone();
    match &*old.phase {
        "" => new.phase = "Pending".to_owned(),
        "Finished" => {}
        "Pending" => {
            if n_pods >= n_min {
                new.phase = "Scheduling".to_owned();
                let owners = pods.first().map(|pod| occupied_by(pod)).unwrap_or_default();
                if !owners.is_empty() {
                    new.occupied_by = owners;
                }
            }
        }
        _ => {
            let n_in = |wanted: &str| {
                let n = pods.iter().filter(|pod| phase(pod) == wanted).count();
                i32::try_from(n).unwrap_or(i32::MAX)
            };
            new.running = n_in("Running");
            new.succeeded = n_in("Succeeded");
            new.failed = n_in("Failed");
            new.phase = phase_of_group(&new, n_min, n_pods).to_owned();
        }
    }
    new
}

fn phase_of_group(counts: &PodGroupStatus, n_min: i32, n_pods: i32) -> &'static str {
    let n_good = counts.running + counts.succeeded;
    if n_pods < n_min {
        "Pending"
    } else if counts.succeeded >= n_min {
        "Finished"
    } else if n_good >= n_min {
        "Running"
    } else if counts.failed > 0 && n_good + counts.failed >= n_min {
        "Failed"
    } else {
        "Scheduling"
    }
}

/// The owners of a pod, as `namespace/name`, sorted.
fn occupied_by(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut names: Vec<String> =
        owners.map(|owner| format!("{namespace}/{}", owner.name)).collect();
    names.sort_unstable();
    names.join(",")
}

/// The fields that differ. As Go's encoder does, zeros are omitted.
fn status_patch(old: &PodGroupStatus, new: &PodGroupStatus) -> Option<Value> {
    let number = |n: i32| if n == 0 { Value::Null } else { n.into() };
    let mut patch = Map::new();
    let mut set = |name: &str, is_changed: bool, value: Value| {
        if is_changed {
            patch.insert(name.to_owned(), value);
        }
    };
    set("phase", old.phase != new.phase, json!(new.phase));
    set("occupiedBy", old.occupied_by != new.occupied_by, json!(new.occupied_by));
    set("running", old.running != new.running, number(new.running));
    set("succeeded", old.succeeded != new.succeeded, number(new.succeeded));
    set("failed", old.failed != new.failed, number(new.failed));
    (!patch.is_empty()).then(|| json!({"status": patch}))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::Resource as _;

    use super::*;
    use crate::testkit::ControllerBench;

    const DEFINITION: &str =
        loadmaster_scheduler_plugins::custom_resource_definitions::CUSTOM_RESOURCE_DEFINITIONS[0];

    /// A server with the definition of PodGroups, and one PodGroup.
    fn bench(n_min: i32) -> ControllerBench {
        let bench = ControllerBench::new(vec![Box::new(PodGroupController)]);
        create_definition(&bench);
        create_group(&bench, "default", n_min);
        bench
    }

    fn create_definition(bench: &ControllerBench) {
        let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(bench.http("POST", path, &definition).0, 201);
    }

    fn create_group(bench: &ControllerBench, namespace: &str, n_min: i32) {
        let group = json!({"apiVersion": PodGroup::API_VERSION, "kind": "PodGroup",
            "metadata": {"name": "g"}, "spec": {"minMember": n_min}});
        let path = Kind::PodGroup.api_path(namespace);
        let (status, made) = bench.http("POST", &path, &group);
        assert_eq!(status, 201, "{made}");
    }

    fn create_pod(bench: &mut ControllerBench, namespace: &str, name: &str) {
        bench.create(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: "g"},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1"},
                    {"apiVersion": "x/v1", "kind": "Queue", "name": "batch", "uid": "2"},
                ]},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    }

    fn set_phase(bench: &mut ControllerBench, name: &str, phase: &str) {
        let key = Key::new(Kind::Pod, "default", name);
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        bench.send_as_client(&ControllerRequest::patch_status(key, patch));
        bench.run_until_idle();
    }

    /// `Phase running/succeeded/failed` of the group.
    fn status(bench: &ControllerBench) -> String {
        let group = bench.get::<PodGroup>("default", "g").unwrap();
        let PodGroupStatus { phase, running, succeeded, failed, .. } = group.status.unwrap();
        format!("{phase} {running}/{succeeded}/{failed}")
    }

    #[test]
    fn the_phase_follows_the_pods() {
        let mut bench = bench(2);
        bench.run_until_idle();
        assert_eq!(status(&bench), "Pending 0/0/0");
        create_pod(&mut bench, "default", "a");
        bench.run_until_idle();
        assert_eq!(status(&bench), "Pending 0/0/0");
        create_pod(&mut bench, "default", "b");
        bench.run_until_idle();
        assert_eq!(status(&bench), "Scheduling 0/0/0");
        let group = bench.get::<PodGroup>("default", "g").unwrap();
        assert_eq!(group.status.unwrap().occupied_by, "default/batch,default/train");
        for (name, phase, want) in [
            ("a", "Running", "Scheduling 1/0/0"),
            ("b", "Running", "Running 2/0/0"),
            ("b", "Failed", "Failed 1/0/1"),
        ] {
            set_phase(&mut bench, name, phase);
            assert_eq!(status(&bench), want);
        }
        // The pod is replaced: upstream's group stays Failed.
        create_pod(&mut bench, "default", "c");
        set_phase(&mut bench, "c", "Running");
        assert_eq!(status(&bench), "Running 2/0/1");
        set_phase(&mut bench, "a", "Succeeded");
        assert_eq!(status(&bench), "Running 1/1/1");
        set_phase(&mut bench, "c", "Succeeded");
        assert_eq!(status(&bench), "Finished 0/2/1");
        let n_sent = bench.sent.len();
        for name in ["a", "b", "c"] {
            bench.send_as_client(&ControllerRequest::Delete {
                key: Key::new(Kind::Pod, "default", name),
                options: Default::default(),
            });
        }
        bench.run_until_idle();
        assert_eq!(status(&bench), "Finished 0/2/1");
        assert_eq!(bench.sent.len(), n_sent);
    }

    #[test]
    fn a_group_that_loses_pods_is_pending() {
        let mut bench = bench(2);
        for name in ["a", "b"] {
            create_pod(&mut bench, "default", name);
            bench.run_until_idle();
            set_phase(&mut bench, name, "Running");
        }
        assert_eq!(status(&bench), "Running 2/0/0");
        let key = Key::new(Kind::Pod, "default", "a");
        let options =
            crate::request::DeleteOptions { grace_period_seconds: Some(0), ..Default::default() };
        bench.send_as_client(&ControllerRequest::Delete { key, options });
        bench.run_until_idle();
        assert_eq!(status(&bench), "Pending 1/0/0");
    }

    /// Upstream counts the pods of equally named groups in all namespaces.
    #[test]
    fn pods_of_other_namespaces_do_not_count() {
        let mut bench = bench(2);
        bench.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}));
        create_group(&bench, "x", 2);
        create_pod(&mut bench, "default", "a");
        create_pod(&mut bench, "x", "a");
        bench.run_until_idle();
        assert_eq!(status(&bench), "Pending 0/0/0");
    }

    #[test]
    fn a_restarted_controller_finds_the_right_status() {
        let mut bench = bench(1);
        bench.run_until_idle();
        bench.restart(Vec::new());
        create_pod(&mut bench, "default", "a");
        set_phase(&mut bench, "a", "Running");
        assert_eq!(status(&bench), "Pending 0/0/0");
        bench.restart(vec![Box::new(PodGroupController)]);
        bench.run_until_idle();
        assert_eq!(status(&bench), "Running 1/0/0");
    }

    #[test]
    fn definitions_may_be_installed_later() {
        let mut bench = ControllerBench::new(vec![Box::new(PodGroupController)]);
        create_pod(&mut bench, "default", "a");
        bench.run_until_idle();
        create_definition(&bench);
        create_group(&bench, "default", 1);
        bench.run_until_idle();
        assert_eq!(status(&bench), "Scheduling 0/0/0");
    }

    #[test]
    fn objects_survive_a_round_trip() {
        let object = json!({"apiVersion": PodGroup::API_VERSION, "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"minMember": 3, "minResources": {"cpu": "3"}, "scheduleTimeoutSeconds": 10}});
        let group: PodGroup = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&group).unwrap(), object);
    }
}
