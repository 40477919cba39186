use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::CronJobController;
use crate::job::JobController;
use crate::kind::Kind;
use crate::test_kubelet::bench;
use crate::testkit::ControllerBench;

/// From 2026-01-01T00:00:00Z on.
fn start(schedule: &str, more: Value) -> ControllerBench {
    let mut bench =
        bench(vec![Box::<CronJobController>::default(), Box::<JobController>::default()]);
    let mut manifest = json!({"apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": "tick", "namespace": "default"},
        "spec": {"schedule": schedule, "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}]}}}}}});
    for (key, value) in more.as_object().unwrap() {
        manifest["spec"][key] = value.clone();
    }
    bench.create(manifest);
    bench.run_until_idle();
    bench
}

fn status(bench: &ControllerBench) -> Value {
    let cron: CronJob = bench.get("default", "tick").unwrap();
    serde_json::to_value(cron.status.unwrap_or_default()).unwrap()
}

fn end_all(bench: &mut ControllerBench, phase: &str) {
    for pod in bench.list::<Pod>() {
        if crate::workload::phase(&pod) == "Running" {
            bench.set_phase(pod.metadata.name.as_deref().unwrap(), phase);
        }
    }
    bench.run_until_idle();
}

const MINUTES: i64 = 29_453_760; // From the epoch to 2026-01-01T00:00:00Z.

fn name(minute: i64) -> String {
    format!("tick-{}", MINUTES + minute)
}

#[test]
fn a_job_is_created_at_each_scheduled_time() {
    let mut bench = start("*/2 * * * *", json!({}));
    bench.wait(119);
    assert_eq!(bench.list::<Job>().len(), 0);
    bench.wait(2);
    assert_eq!(bench.names::<Job>(), [name(2)]);
    let job: Job = bench.get("default", &name(2)).unwrap();
    assert_eq!(job.metadata.annotations.unwrap()[super::SCHEDULED], "2026-01-01T00:02:00Z");
    assert_eq!(job.metadata.labels.unwrap()["a"], "b");
    assert_eq!(job.metadata.owner_references.unwrap()[0].kind, "CronJob");
    let found = status(&bench);
    assert_eq!(found["lastScheduleTime"], "2026-01-01T00:02:00Z");
    assert_eq!(found["active"][0]["name"], name(2));
    end_all(&mut bench, "Succeeded");
    let found = status(&bench);
    assert!(found["active"].is_null() && found["lastSuccessfulTime"].is_string());
    bench.wait(120);
    assert_eq!(bench.names::<Job>(), [name(2), name(4)]);
    let events = bench.events();
    for event in [
        format!("SuccessfulCreate: Created job {}", name(2)),
        format!("SawCompletedJob: Saw completed job: {}, condition: Complete", name(2)),
    ] {
        assert!(events.contains(&event), "{events:?}");
    }
}

#[test]
fn jobs_that_overlap() {
    for (policy, jobs, active) in [("Allow", 3, 3), ("Forbid", 1, 1), ("Replace", 1, 1)] {
        let mut bench = start("* * * * *", json!({"concurrencyPolicy": policy}));
        bench.wait(190);
        let alive =
            bench.list::<Job>().into_iter().filter(|job| job.metadata.deletion_timestamp.is_none());
        assert_eq!(alive.count(), jobs, "{policy}");
        assert_eq!(status(&bench)["active"].as_array().unwrap().len(), active, "{policy}");
    }
}

#[test]
fn old_jobs_above_the_history_limit_are_deleted() {
    let mut bench =
        start("* * * * *", json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0}));
    for phase in ["Succeeded", "Succeeded", "Succeeded"] {
        bench.wait(61);
        end_all(&mut bench, phase);
    }
    assert_eq!(bench.list::<Job>().len(), 1);
}

#[test]
fn a_suspended_cron_job_creates_no_jobs_and_misses_start_times() {
    let mut bench = start("* * * * *", json!({"suspend": true, "startingDeadlineSeconds": 200}));
    bench.wait(36_000);
    assert_eq!(bench.list::<Job>().len(), 0);
    bench.merge(Kind::CronJob, "tick", json!({"spec": {"suspend": false}}));
    bench.run_until_idle();
    assert_eq!(bench.names::<Job>(), [name(600)]);
    assert!(!bench.events().iter().any(|one| one.starts_with("TooManyMissedTimes")));
    let mut bench = start("* * * * *", json!({"suspend": true}));
    bench.wait(36_000);
    bench.merge(Kind::CronJob, "tick", json!({"spec": {"suspend": false}}));
    bench.run_until_idle();
    assert_eq!(bench.names::<Job>(), [name(600)]);
    assert!(bench.events().iter().any(|one| one.starts_with("TooManyMissedTimes")));
}

#[test]
fn a_start_after_the_starting_deadline_is_skipped() {
    let mut bench = start("0 * * * *", json!({"suspend": true, "startingDeadlineSeconds": 60}));
    bench.wait(3_700);
    bench.merge(Kind::CronJob, "tick", json!({"spec": {"suspend": false}}));
    bench.run_until_idle();
    assert_eq!(bench.list::<Job>().len(), 0);
}
