use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::StatefulSetController;
use super::pods::identity;
use crate::kind::Kind;
use crate::test_kubelet::{bench, set};
use crate::testkit::ControllerBench;

fn start(replicas: i32, more: Value) -> ControllerBench {
    let mut bench = bench(vec![Box::<StatefulSetController>::default()]);
    let mut manifest = set("StatefulSet", "db", &more);
    manifest["spec"]["replicas"] = replicas.into();
    manifest["spec"]["serviceName"] = "db".into();
    bench.create(manifest);
    bench.run_until_idle();
    bench
}

fn change(bench: &mut ControllerBench, spec: Value) {
    bench.merge(Kind::StatefulSet, "db", json!({"spec": spec}));
    bench.run_until_idle();
}

fn image(image: &str) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "c", "image": image}]}}})
}

/// Name and image of each pod.
fn pods(bench: &ControllerBench) -> Vec<String> {
    let line = |pod: &Pod| {
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        format!("{} {image}", pod.metadata.name.as_deref().unwrap())
    };
    bench.list::<Pod>().iter().map(line).collect()
}

fn status(bench: &ControllerBench) -> Value {
    let set: StatefulSet = bench.get("default", "db").unwrap();
    serde_json::to_value(set.status.unwrap()).unwrap()
}

fn claims() -> Value {
    json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}])
}

fn wait_from(image: &str) -> Value {
    json!({"template": {"metadata": {"annotations": {"play": "wait"}},
        "spec": {"containers": [{"name": "c", "image": image}]}}})
}

#[test]
fn pod_names_contain_ordinals() {
    assert_eq!(identity("db-0"), Some(("db", 0)));
    assert_eq!(identity("a-b-12"), Some(("a-b", 12)));
    for name in ["db", "db-", "db-x", "db-+1", "db-99999999999"] {
        assert_eq!(identity(name), None, "{name}");
    }
}

#[test]
fn pods_are_created_in_order_with_claims() {
    let mut bench = start(3, json!({"volumeClaimTemplates": claims()}));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1", "db-2 v1"]);
    assert_eq!(bench.names::<PersistentVolumeClaim>(), ["data-db-0", "data-db-1", "data-db-2"]);
    let made = bench.sent.iter().filter_map(|request| match request {
        crate::ControllerRequest::Create(crate::Object::Pod(pod)) => pod.metadata.name.clone(),
        _ => None,
    });
    assert_eq!(made.collect::<Vec<_>>(), ["db-0", "db-1", "db-2"]);
    let pod: Pod = bench.get("default", "db-1").unwrap();
    let labels = pod.metadata.labels.unwrap();
    let revision = bench.list::<ControllerRevision>().remove(0);
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-1");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "1");
    assert_eq!(Some(&labels["controller-revision-hash"]), revision.metadata.name.as_ref());
    let spec = pod.spec.unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-1"), Some("db")));
    let volume = spec.volumes.unwrap().remove(0);
    assert_eq!(volume.persistent_volume_claim.unwrap().claim_name, "data-db-1");
    let status = status(&bench);
    for count in
        ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas"]
    {
        assert_eq!(status[count], 3, "{count}");
    }
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    bench.wait(1);
    let events = bench.events();
    for event in [
        "SuccessfulCreate: Create Pod db-0 in StatefulSet db successful",
        "SuccessfulCreate: Create Claim data-db-0 Pod db-0 in StatefulSet db success",
    ] {
        assert!(events.iter().any(|one| one == event), "{events:?}");
    }
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent);
}

#[test]
fn a_pod_that_is_not_ready_delays_the_next() {
    let wait = json!({"metadata": {"labels": {"app": "db"}, "annotations": {"play": "wait"}},
        "spec": {"containers": [{"name": "c", "image": "v1"}]}});
    let bench = start(3, json!({"template": wait}));
    assert_eq!(pods(&bench), ["db-0 v1"]);
    let wait = json!({"metadata": {"labels": {"app": "db"}, "annotations": {"play": "wait"}},
        "spec": {"containers": [{"name": "c", "image": "v1"}]}});
    let bench = start(3, json!({"template": wait, "podManagementPolicy": "Parallel"}));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1", "db-2 v1"]);
}

#[test]
fn pods_are_deleted_from_the_highest_ordinal_and_replaced() {
    let mut bench = start(4, json!({}));
    change(&mut bench, json!({"replicas": 2}));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1"]);
    bench.delete(Kind::Pod, "db-0");
    bench.run_until_idle();
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1"]);
    bench.set_phase("db-1", "Failed");
    bench.run_until_idle();
    let pod: Pod = bench.get("default", "db-1").unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    change(&mut bench, json!({"replicas": 0}));
    assert_eq!(pods(&bench).len(), 0);
}

#[test]
fn start_ordinal_shifts_the_pods() {
    let mut bench = start(2, json!({"ordinals": {"start": 5}}));
    assert_eq!(pods(&bench), ["db-5 v1", "db-6 v1"]);
    change(&mut bench, json!({"ordinals": {"start": 4}}));
    assert_eq!(pods(&bench), ["db-4 v1", "db-5 v1"]);
}

#[test]
fn a_rolling_update_runs_from_the_highest_ordinal_to_the_partition() {
    let partition = |number: i32| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}});
    let mut bench = start(3, partition(2));
    change(&mut bench, image("v2"));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1", "db-2 v2"]);
    let found = status(&bench);
    assert_eq!((&found["updatedReplicas"], &found["currentReplicas"]), (&json!(1), &json!(2)));
    assert_ne!(found["currentRevision"], found["updateRevision"]);
    bench.delete(Kind::Pod, "db-0");
    bench.run_until_idle();
    assert_eq!(pods(&bench)[0], "db-0 v1");
    change(&mut bench, partition(0));
    assert_eq!(pods(&bench), ["db-0 v2", "db-1 v2", "db-2 v2"]);
    let found = status(&bench);
    assert_eq!(found["currentRevision"], found["updateRevision"]);
    assert_eq!(found["currentReplicas"], 3);
}

#[test]
fn a_bad_update_stops_at_the_first_pod() {
    let mut bench = start(3, json!({}));
    change(&mut bench, wait_from("bad"));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1", "db-2 bad"]);
    // As upstream: the rollback waits until the pod that never becomes ready is deleted.
    change(
        &mut bench,
        json!({"template": {"metadata": {"annotations": null}, "spec": {"containers": [{"name": "c", "image": "v1"}]}}}),
    );
    bench.delete(Kind::Pod, "db-2");
    bench.run_until_idle();
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1", "db-2 v1"]);
    let mut revisions: Vec<i64> =
        bench.list::<ControllerRevision>().iter().map(|one| one.revision).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, [2, 3]);
}

#[test]
fn on_delete_replaces_only_deleted_pods() {
    let mut bench = start(2, json!({"updateStrategy": {"type": "OnDelete"}}));
    change(&mut bench, image("v2"));
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v1"]);
    bench.delete(Kind::Pod, "db-1");
    bench.run_until_idle();
    assert_eq!(pods(&bench), ["db-0 v1", "db-1 v2"]);
}

#[test]
fn old_revisions_above_the_history_limit_are_deleted() {
    let mut bench = start(1, json!({"revisionHistoryLimit": 1}));
    for version in ["v2", "v3", "v4"] {
        change(&mut bench, image(version));
    }
    assert_eq!(bench.list::<ControllerRevision>().len(), 2);
}

#[test]
fn claims_are_deleted_by_the_retention_policy() {
    let policy = |deleted: &str, scaled: &str| {
        json!({"volumeClaimTemplates": claims(), "persistentVolumeClaimRetentionPolicy":
            {"whenDeleted": deleted, "whenScaled": scaled}})
    };
    #[track_caller]
    fn check(bench: &ControllerBench, name: &str, want: Option<&str>) {
        let claim: PersistentVolumeClaim = bench.get("default", name).unwrap();
        let owner =
            claim.metadata.owner_references.and_then(|all| all.first().map(|one| one.kind.clone()));
        assert_eq!(owner.as_deref(), want);
    }
    for (deleted, scaled, want) in [
        ("Retain", "Retain", None),
        ("Delete", "Retain", Some("StatefulSet")),
        ("Delete", "Delete", Some("StatefulSet")),
        ("Retain", "Delete", None),
    ] {
        let mut bench = start(2, policy(deleted, scaled));
        bench.wait(1);
        check(&bench, "data-db-0", want);
        if scaled == "Delete" {
            bench.merge(
                Kind::Pod,
                "db-1",
                json!({"metadata": {"finalizers": ["example.com/wait"]}}),
            );
            change(&mut bench, json!({"replicas": 1}));
            check(&bench, "data-db-1", Some("Pod"));
        }
    }
}

#[test]
fn min_ready_seconds_counts() {
    let mut bench = start(2, json!({"minReadySeconds": 30}));
    assert_eq!(pods(&bench), ["db-0 v1"]);
    bench.wait(29);
    assert_eq!(pods(&bench).len(), 1);
    bench.wait(31);
    assert_eq!(pods(&bench).len(), 2);
    bench.wait(60);
    assert_eq!(status(&bench)["availableReplicas"], 2);
}
