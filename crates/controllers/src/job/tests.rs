use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::JobController;
use crate::kind::Kind;
use crate::meta::annotation_value;
use crate::test_kubelet::bench;
use crate::testkit::ControllerBench;
use crate::workload::phase;

fn start(more: Value) -> ControllerBench {
    let mut bench = bench(vec![Box::<JobController>::default()]);
    let mut manifest = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "sum", "namespace": "default"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}]}}}});
    for (key, value) in more.as_object().unwrap() {
        manifest["spec"][key] = value.clone();
    }
    bench.create(manifest);
    bench.run_until_idle();
    bench
}

/// Names of pods that run.
fn running(bench: &ControllerBench) -> Vec<String> {
    let all = bench.list::<Pod>();
    let running = all
        .iter()
        .filter(|pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none());
    running.map(|pod| pod.metadata.name.clone().unwrap()).collect()
}

#[track_caller]
fn end(bench: &mut ControllerBench, phase: &str) {
    let name = running(bench).remove(0);
    bench.set_phase(&name, phase);
    bench.run_until_idle();
}

fn status(bench: &ControllerBench) -> Value {
    let job: Job = bench.get("default", "sum").unwrap();
    serde_json::to_value(job.status.unwrap_or_default()).unwrap()
}

/// Active, succeeded and failed pods.
fn counts(bench: &ControllerBench) -> [i64; 3] {
    let status = status(bench);
    ["active", "succeeded", "failed"].map(|name| status[name].as_i64().unwrap_or(0))
}

/// Type and reason of the conditions that are true.
fn conditions(bench: &ControllerBench) -> Vec<String> {
    let status = status(bench);
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let is_true = |one: &&Value| one["status"] == "True";
    let line = |one: &Value| {
        format!("{} {}", one["type"].as_str().unwrap(), one["reason"].as_str().unwrap())
    };
    all.iter().filter(is_true).map(line).collect()
}

const DONE: [&str; 2] = ["SuccessCriteriaMet CompletionsReached", "Complete CompletionsReached"];

fn lost(reason: &str) -> [String; 2] {
    [format!("FailureTarget {reason}"), format!("Failed {reason}")]
}

#[test]
fn a_job_ends_with_its_pods() {
    let mut bench = start(json!({"completions": 3, "parallelism": 2}));
    assert_eq!((running(&bench).len(), counts(&bench)), (2, [2, 0, 0]));
    end(&mut bench, "Succeeded");
    assert_eq!(counts(&bench), [2, 1, 0]);
    end(&mut bench, "Succeeded");
    assert_eq!(counts(&bench), [1, 2, 0]);
    assert_eq!(conditions(&bench), [] as [&str; 0]);
    end(&mut bench, "Succeeded");
    assert_eq!((counts(&bench), conditions(&bench)), ([0, 3, 0], DONE.map(String::from).to_vec()));
    let found = status(&bench);
    assert!(found["completionTime"].is_string() && found["startTime"].is_string());
    assert_eq!((&found["uncountedTerminatedPods"], &found["terminating"]), (&json!({}), &json!(0)));
    // Pods stay, without what kept them.
    let pods = bench.list::<Pod>();
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod.metadata.finalizers.is_none()));
    let events = bench.events();
    assert!(events.contains(&"Completed: Job completed".to_owned()));
    assert_eq!(
        events.iter().filter(|one| one.starts_with("SuccessfulCreate: Created pod: sum-")).count(),
        3
    );
    let n_sent = bench.sent.len();
    bench.wait(3600);
    assert_eq!(bench.sent.len(), n_sent);
}

#[test]
fn without_completions_one_success_is_enough() {
    let mut bench = start(json!({"parallelism": 3}));
    assert_eq!(counts(&bench), [3, 0, 0]);
    end(&mut bench, "Succeeded");
    assert_eq!(counts(&bench), [2, 1, 0]);
    end(&mut bench, "Failed");
    end(&mut bench, "Succeeded");
    assert_eq!((counts(&bench), conditions(&bench)), ([0, 2, 1], DONE.map(String::from).to_vec()));
}

#[test]
fn failures_are_retried_with_backoff_up_to_the_limit() {
    let mut bench = start(json!({"backoffLimit": 2}));
    end(&mut bench, "Failed");
    assert_eq!(counts(&bench), [0, 0, 1]);
    bench.wait(9);
    assert_eq!(running(&bench).len(), 0);
    bench.wait(1);
    assert_eq!(counts(&bench), [1, 0, 1]);
    end(&mut bench, "Failed");
    bench.wait(19);
    assert_eq!(running(&bench).len(), 0);
    bench.wait(1);
    end(&mut bench, "Failed");
    assert_eq!(
        (counts(&bench), conditions(&bench)),
        ([0, 0, 3], lost("BackoffLimitExceeded").to_vec())
    );
    let text = "BackoffLimitExceeded: Job has reached the specified backoff limit".to_owned();
    assert!(bench.events().contains(&text));
}

#[test]
fn a_deleted_pod_counts_as_failed_and_is_replaced() {
    let mut bench = start(json!({}));
    let name = running(&bench).remove(0);
    bench.delete(Kind::Pod, &name);
    bench.run_until_idle();
    assert_eq!(counts(&bench), [0, 0, 1]);
    bench.wait(10);
    assert_eq!(counts(&bench), [1, 0, 1]);
    assert_ne!(running(&bench), [name]);
}

#[test]
fn active_deadline_fails_a_job() {
    let mut bench = start(json!({"activeDeadlineSeconds": 30, "parallelism": 2, "completions": 2}));
    end(&mut bench, "Succeeded");
    bench.wait(29);
    assert_eq!(conditions(&bench), [] as [&str; 0]);
    bench.wait(1);
    assert_eq!(
        (counts(&bench), conditions(&bench)),
        ([0, 1, 1], lost("DeadlineExceeded").to_vec())
    );
    assert_eq!(bench.list::<Pod>().len(), 1);
}

#[test]
fn each_index_succeeds_once() {
    let mut bench = start(json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed"}));
    let index = |pod: &Pod| annotation_value(&pod.metadata, super::INDEX).unwrap().to_owned();
    let mut indexes: Vec<String> = bench.list::<Pod>().iter().map(index).collect();
    indexes.sort();
    assert_eq!(indexes, ["0", "1"]);
    let pod = bench.list::<Pod>().into_iter().find(|pod| index(pod) == "1").unwrap();
    assert!(pod.metadata.name.as_ref().unwrap().starts_with("sum-1-"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("sum-1"));
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "JOB_COMPLETION_INDEX");
    bench.set_phase(&pod.metadata.name.unwrap(), "Succeeded");
    bench.run_until_idle();
    assert_eq!((&status(&bench)["completedIndexes"], counts(&bench)), (&json!("1"), [2, 1, 0]));
    end(&mut bench, "Succeeded");
    end(&mut bench, "Succeeded");
    assert_eq!(
        (&status(&bench)["completedIndexes"], conditions(&bench)),
        (&json!("0-2"), DONE.map(String::from).to_vec())
    );
}

#[test]
fn backoff_limit_per_index() {
    let mut bench = start(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1}),
    );
    let bad = |bench: &ControllerBench| {
        let all = bench.list::<Pod>();
        let index = |pod: &&Pod| {
            annotation_value(&pod.metadata, super::INDEX) == Some("0") && phase(pod) == "Running"
        };
        all.iter().find(index).map(|pod| pod.metadata.name.clone().unwrap())
    };
    let name = bad(&bench).unwrap();
    bench.set_phase(&name, "Failed");
    bench.run_until_idle();
    bench.wait(10);
    let name = bad(&bench).unwrap();
    let pod: Pod = bench.get("default", &name).unwrap();
    assert_eq!(annotation_value(&pod.metadata, super::pod_tracking::FAILURES), Some("1"));
    bench.set_phase(&name, "Failed");
    bench.run_until_idle();
    bench.wait(60);
    assert_eq!((&status(&bench)["failedIndexes"], bad(&bench)), (&json!("0"), None));
    end(&mut bench, "Succeeded");
    assert_eq!((counts(&bench), conditions(&bench)), ([0, 1, 2], lost("FailedIndexes").to_vec()));
}

#[test]
fn pod_failure_and_success_policies() {
    let rules =
        json!([{"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "False"}]}]);
    let mut bench = start(json!({"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}));
    end(&mut bench, "Failed");
    bench.wait(60);
    assert_eq!(counts(&bench), [1, 0, 0]);
    let rules =
        json!([{"action": "FailJob", "onPodConditions": [{"type": "Ready", "status": "False"}]}]);
    let mut bench =
        start(json!({"parallelism": 2, "completions": 2, "podFailurePolicy": {"rules": rules}}));
    end(&mut bench, "Failed");
    assert_eq!(
        (counts(&bench), conditions(&bench)),
        ([0, 0, 2], lost("PodFailurePolicy").to_vec())
    );
    let policy = json!({"rules": [{"succeededIndexes": "0"}]});
    let mut bench = start(
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "successPolicy": policy}),
    );
    let first = |pod: &&Pod| annotation_value(&pod.metadata, super::INDEX) == Some("0");
    let name = bench.list::<Pod>().iter().find(first).unwrap().metadata.name.clone().unwrap();
    bench.set_phase(&name, "Succeeded");
    bench.run_until_idle();
    assert_eq!(conditions(&bench), ["SuccessCriteriaMet SuccessPolicy", "Complete SuccessPolicy"]);
    assert_eq!((counts(&bench), bench.list::<Pod>().len()), ([0, 1, 0], 1));
}

#[test]
fn a_suspended_job_has_no_pods() {
    let mut bench = start(json!({"suspend": true}));
    assert_eq!(
        (counts(&bench), conditions(&bench)),
        ([0, 0, 0], vec!["Suspended JobSuspended".to_owned()])
    );
    assert!(status(&bench)["startTime"].is_null());
    let suspend = |bench: &mut ControllerBench, suspend: bool| {
        bench.merge(Kind::Job, "sum", json!({"spec": {"suspend": suspend}}));
        bench.run_until_idle();
    };
    suspend(&mut bench, false);
    assert_eq!((counts(&bench), conditions(&bench)), ([1, 0, 0], Vec::<String>::new()));
    suspend(&mut bench, true);
    assert_eq!((counts(&bench), bench.list::<Pod>().len()), ([0, 0, 0], 0));
    suspend(&mut bench, false);
    end(&mut bench, "Succeeded");
    assert_eq!(conditions(&bench), DONE);
    let events = bench.events();
    for event in ["Suspended: Job suspended", "Resumed: Job resumed"] {
        assert!(events.iter().any(|one| one == event), "{events:?}");
    }
}

#[test]
fn parallelism_can_be_changed() {
    let mut bench = start(json!({"completions": 10, "parallelism": 4}));
    bench.merge(Kind::Job, "sum", json!({"spec": {"parallelism": 1}}));
    bench.run_until_idle();
    assert_eq!((counts(&bench), bench.list::<Pod>().len()), ([1, 0, 0], 1));
    bench.merge(Kind::Job, "sum", json!({"spec": {"parallelism": 3}}));
    bench.run_until_idle();
    assert_eq!(counts(&bench), [3, 0, 0]);
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl() {
    let mut bench = start(json!({"ttlSecondsAfterFinished": 20}));
    end(&mut bench, "Succeeded");
    bench.wait(19);
    assert_eq!(bench.list::<Job>().len(), 1);
    bench.wait(1);
    // Foreground: the garbage collector deletes it after its pods.
    let job: Job = bench.get("default", "sum").unwrap();
    assert!(job.metadata.deletion_timestamp.is_some());
}

#[test]
fn pods_of_a_deleted_job_lose_their_finalizers() {
    let mut bench = start(json!({"parallelism": 2}));
    bench.delete(Kind::Job, "sum");
    bench.run_until_idle();
    let pods = bench.list::<Pod>();
    assert!(pods.len() == 2 && pods.iter().all(|pod| pod.metadata.finalizers.is_none()));
}

#[test]
fn a_job_with_another_managed_by_is_ignored() {
    let bench = start(json!({"managedBy": "example.com/jobs"}));
    assert_eq!(bench.list::<Pod>().len(), 0);
    assert_eq!(status(&bench), json!({}));
}
