use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{DeploymentController, MOST, REVISION, REVISION_HISTORY};
use crate::kind::Kind;
use crate::meta::annotation_value;
use crate::replica_set::ReplicaSetController;
use crate::test_kubelet::{bench, set};
use crate::testkit::ControllerBench;

fn start(replicas: i32, more: Value) -> ControllerBench {
    let mut bench =
        bench(vec![Box::<DeploymentController>::default(), Box::<ReplicaSetController>::default()]);
    let mut manifest = set("Deployment", "web", &more);
    manifest["metadata"]["annotations"] = json!({"team": "a"});
    manifest["spec"]["replicas"] = replicas.into();
    bench.create(manifest);
    bench.run_until_idle();
    bench
}

fn image(bench: &mut ControllerBench, image: &str) {
    let template =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
    bench.merge(Kind::Deployment, "web", template);
    bench.run_until_idle();
}

fn scale(bench: &mut ControllerBench, replicas: i32) {
    bench.merge(Kind::Deployment, "web", json!({"spec": {"replicas": replicas}}));
    bench.run_until_idle();
}

fn deployment(bench: &ControllerBench) -> Deployment {
    bench.get("default", "web").unwrap()
}

/// Image, size, revision and former revisions of each set, by revision.
fn sets(bench: &ControllerBench) -> Vec<String> {
    let mut all = bench.list::<ReplicaSet>();
    all.sort_by_key(|set| {
        annotation_value(&set.metadata, REVISION).unwrap_or("0").parse::<i64>().unwrap()
    });
    let line = |set: &ReplicaSet| {
        let spec = set.spec.as_ref().unwrap();
        let pod = spec.template.as_ref().unwrap().spec.as_ref().unwrap();
        let note = |key| annotation_value(&set.metadata, key).unwrap_or("-").to_owned();
        let image = pod.containers[0].image.as_deref().unwrap();
        format!("{image} {} r{} {}", spec.replicas.unwrap(), note(REVISION), note(REVISION_HISTORY))
    };
    all.iter().map(line).collect()
}

/// Type, status and reason of each condition.
fn conditions(bench: &ControllerBench) -> Vec<String> {
    let status = deployment(bench).status.unwrap();
    let line = |one: &DeploymentCondition| {
        format!("{} {} {}", one.type_, one.status, one.reason.as_deref().unwrap())
    };
    status.conditions.iter().flatten().map(line).collect()
}

#[test]
fn a_deployment_creates_a_replica_set_that_creates_pods() {
    let mut bench = start(3, json!({}));
    let set = bench.list::<ReplicaSet>().remove(0);
    let name = set.metadata.name.clone().unwrap();
    let hash = name.strip_prefix("web-").unwrap();
    let labels = set.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["pod-template-hash"], hash);
    assert_eq!(set.spec.as_ref().unwrap().selector.match_labels.as_ref(), Some(labels));
    assert_eq!(annotation_value(&set.metadata, "team"), Some("a"));
    assert_eq!(annotation_value(&set.metadata, MOST), Some("4"));
    let owner = &set.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.block_owner_deletion), ("Deployment", Some(true)));
    assert_eq!(bench.list::<Pod>().len(), 3);
    let found = deployment(&bench);
    assert_eq!(annotation_value(&found.metadata, REVISION), Some("1"));
    let status = serde_json::to_value(found.status.unwrap()).unwrap();
    for count in ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"] {
        assert_eq!(status[count], 3, "{count}");
    }
    assert_eq!(
        (&status["observedGeneration"], &status["terminatingReplicas"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        conditions(&bench),
        ["Available True MinimumReplicasAvailable", "Progressing True NewReplicaSetAvailable"]
    );
    let message = status["conditions"][1]["message"].as_str().unwrap();
    assert_eq!(message, format!("ReplicaSet \"{name}\" has successfully progressed."));
    bench.run_until_idle();
    let events = bench.events();
    assert!(
        events.contains(&format!("ScalingReplicaSet: Scaled up replica set {name} from 0 to 3")),
        "{events:?}"
    );
    assert_eq!(
        events.iter().filter(|one| one.starts_with("SuccessfulCreate: Created pod: web-")).count(),
        3
    );
    // At rest nothing is written any more.
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent);
}

#[test]
fn a_new_template_rolls_out_and_an_old_one_rolls_back() {
    let mut bench = start(4, json!({}));
    image(&mut bench, "v2");
    assert_eq!(sets(&bench), ["v1 0 r1 -", "v2 4 r2 -"]);
    image(&mut bench, "v3");
    image(&mut bench, "v1");
    assert_eq!(sets(&bench), ["v2 0 r2 -", "v3 0 r3 -", "v1 4 r4 1"]);
    image(&mut bench, "v2");
    image(&mut bench, "v1");
    assert_eq!(sets(&bench), ["v3 0 r3 -", "v2 0 r5 2", "v1 4 r6 1,4"]);
    assert_eq!(annotation_value(&deployment(&bench).metadata, REVISION), Some("6"));
    assert_eq!(bench.list::<Pod>().len(), 4);
}

#[test]
fn a_rollout_respects_max_surge_and_max_unavailable() {
    let wait = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"play": "wait"}}});
    let rolling =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 2}});
    let mut bench = start(10, json!({"strategy": rolling}));
    bench.merge(Kind::Deployment, "web", json!({"spec": {"template": wait}}));
    bench.run_until_idle();
    assert_eq!(sets(&bench), ["v1 8 r1 -", "v1 3 r2 -"]);
    assert_eq!(conditions(&bench)[0], "Available True MinimumReplicasAvailable");
    let status = deployment(&bench).status.unwrap();
    assert_eq!((status.unavailable_replicas, status.updated_replicas), (Some(3), Some(3)));
    // Scaling in the middle keeps shares; then the deadline passes.
    scale(&mut bench, 20);
    assert_eq!(sets(&bench), ["v1 15 r1 -", "v1 6 r2 -"]);
    bench.wait(599);
    assert_eq!(conditions(&bench)[1], "Progressing True ReplicaSetUpdated");
    bench.wait(5);
    assert_eq!(conditions(&bench)[1], "Progressing False ProgressDeadlineExceeded");
}

#[test]
fn a_failing_rollout_is_rolled_back() {
    let mut bench = start(10, json!({}));
    let wait = json!({"metadata": {"annotations": {"play": "wait"}}});
    bench.merge(Kind::Deployment, "web", json!({"spec": {"template": wait}}));
    bench.run_until_idle();
    assert_eq!(sets(&bench), ["v1 8 r1 -", "v1 5 r2 -"]);
    bench.merge(
        Kind::Deployment,
        "web",
        json!({"spec": {"template": {"metadata": {"annotations": null}}}}),
    );
    bench.run_until_idle();
    assert_eq!(sets(&bench), ["v1 0 r2 -", "v1 10 r3 1"]);
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll_out() {
    let mut bench = start(4, json!({}));
    bench.merge(Kind::Deployment, "web", json!({"spec": {"paused": true}}));
    image(&mut bench, "v2");
    scale(&mut bench, 6);
    assert_eq!(sets(&bench), ["v1 6 r1 -"]);
    assert_eq!(conditions(&bench)[0], "Progressing Unknown DeploymentPaused");
    bench.wait(3600);
    bench.merge(Kind::Deployment, "web", json!({"spec": {"paused": false}}));
    bench.run_until_idle();
    assert_eq!(sets(&bench), ["v1 0 r1 -", "v2 6 r2 -"]);
    assert_eq!(conditions(&bench)[1], "Progressing True NewReplicaSetAvailable");
}

#[test]
fn recreate_waits_for_the_last_pod() {
    let mut bench = start(2, json!({"strategy": {"type": "Recreate"}}));
    for pod in bench.names::<Pod>() {
        bench.merge(Kind::Pod, &pod, json!({"metadata": {"finalizers": ["example.com/wait"]}}));
    }
    image(&mut bench, "v2");
    assert_eq!(sets(&bench), ["v1 0 r1 -"]);
    assert_eq!(bench.list::<Pod>().len(), 2);
    for pod in bench.names::<Pod>() {
        bench.merge(Kind::Pod, &pod, json!({"metadata": {"finalizers": null}}));
        bench.run_until_idle();
    }
    assert_eq!(sets(&bench), ["v1 0 r1 -", "v2 2 r2 -"]);
    assert_eq!(bench.list::<Pod>().len(), 2);
}

#[test]
fn old_replica_sets_above_the_history_limit_are_deleted() {
    let mut bench = start(1, json!({"revisionHistoryLimit": 2}));
    for version in ["v2", "v3", "v4", "v5"] {
        image(&mut bench, version);
    }
    assert_eq!(sets(&bench), ["v3 0 r3 -", "v4 0 r4 -", "v5 1 r5 -"]);
}

#[test]
fn replica_sets_are_adopted_and_released() {
    let mut bench = start(1, json!({}));
    let name = bench.names::<ReplicaSet>().remove(0);
    bench.merge(Kind::ReplicaSet, &name, json!({"metadata": {"labels": {"app": "other"}}}));
    bench.run_until_idle();
    let set: ReplicaSet = bench.get("default", &name).unwrap();
    assert_eq!(set.metadata.owner_references, None);
    // Its name is taken, so that the next one gets another.
    assert_eq!(bench.list::<ReplicaSet>().len(), 2);
    assert_eq!(deployment(&bench).status.unwrap().collision_count, Some(1));
    bench.merge(Kind::ReplicaSet, &name, json!({"metadata": {"labels": {"app": "web"}}}));
    bench.run_until_idle();
    let set: ReplicaSet = bench.get("default", &name).unwrap();
    assert_eq!(set.metadata.owner_references.unwrap()[0].name, "web");
}

#[test]
fn failures_to_create_pods_are_reported() {
    use crate::request::{ControllerRequest, ControllerResponse};
    let mut bench = start(0, json!({})).with_faults(|request| match request {
        ControllerRequest::Create(object) if object.kind() == Kind::Pod => {
            Some(ControllerResponse::Rejected {
                status: 403,
                reason: "Forbidden".into(),
                message: "pods \"web-\" is forbidden: exceeded quota".into(),
                retry_after: None,
            })
        }
        _ => None,
    });
    scale(&mut bench, 2);
    bench.wait(10);
    let failure = "ReplicaFailure True FailedCreate".to_owned();
    assert!(conditions(&bench).contains(&failure), "{:?}", conditions(&bench));
    let text =
        "FailedCreate: Error creating: pods \"web-\" is forbidden: exceeded quota".to_owned();
    assert!(bench.events().contains(&text));
    let mut bench = bench.with_faults(|_| None);
    bench.wait(60);
    assert!(!conditions(&bench).contains(&failure));
    assert_eq!(bench.list::<Pod>().len(), 2);
}
