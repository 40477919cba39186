//! Tests of names, labels and flags.

use super::*;

fn with(change: impl FnOnce(&mut MetricsSettings)) -> Metrics {
    let mut settings = MetricsSettings::default();
    change(&mut settings);
    Metrics::new(&settings).unwrap()
}

fn series<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(name)).collect()
}

#[test]
fn buckets_and_labels_as_upstream_writes_them() {
    let metrics = with(|_| ());
    metrics.scheduler.plugin_duration("NodeName", "Filter", "Success", 2e-5);
    let text = metrics.text();
    let buckets = series(&text, "scheduler_plugin_execution_duration_seconds_bucket");
    assert_eq!(buckets.len(), 21);
    assert_eq!(
        buckets[..3],
        [
            r#"scheduler_plugin_execution_duration_seconds_bucket{extension_point="Filter",plugin="NodeName",status="Success",le="1e-05"} 0"#,
            r#"scheduler_plugin_execution_duration_seconds_bucket{extension_point="Filter",plugin="NodeName",status="Success",le="1.5000000000000002e-05"} 0"#,
            r#"scheduler_plugin_execution_duration_seconds_bucket{extension_point="Filter",plugin="NodeName",status="Success",le="2.2500000000000005e-05"} 1"#,
        ]
    );
    assert!(text.contains("# HELP scheduler_cache_size [ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.\n# TYPE scheduler_cache_size gauge\n"));
    assert_eq!(series(&text, "scheduler_pending_pods").len(), 4, "shown from the start");
    assert_eq!(
        series(&text, "version_info"),
        [r#"version_info{binary="1.36.3",component="kube",emulation="1.36",min_compat="1.35"} 1"#]
    );
    assert!(text.contains(r#"kubernetes_feature_enabled{name="SidecarContainers",stage=""} 1"#));
}

#[test]
fn attempts_beyond_fourteen_are_one_series() {
    let metrics = with(|_| ());
    for attempts in [1, 14, 15, 99] {
        metrics.scheduler.pod_scheduled(attempts, 1.0);
    }
    let text = metrics.text();
    let counts = series(&text, "scheduler_pod_scheduling_sli_duration_seconds_count");
    assert_eq!(
        counts,
        [
            r#"scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 1"#,
            r#"scheduler_pod_scheduling_sli_duration_seconds_count{attempts="14"} 1"#,
            r#"scheduler_pod_scheduling_sli_duration_seconds_count{attempts="15+"} 2"#,
        ]
    );
}

#[test]
fn disabled_metrics_are_not_shown() {
    let name = "scheduler_preemption_attempts_total";
    let metrics =
        with(|it| it.disabled = vec![name.into(), "process_open_fds".into(), String::new()]);
    metrics.scheduler.preemption_attempt();
    let text = metrics.text();
    assert!(!text.contains(name) && !text.contains("process_open_fds"));
    assert_eq!(series(&text, "disabled_metrics_total"), ["disabled_metrics_total 2"]);
}

#[test]
fn label_values_that_are_not_allowed_become_unexpected() {
    let metrics = with(|it| {
        let key = "scheduler_queue_incoming_pods_total,event".to_owned();
        it.allowed_labels.insert(key, "PodAdd,NodeAdd".to_owned());
    });
    metrics.scheduler.queue_incoming(QueueLabel::Active, "PodAdd", 2);
    metrics.scheduler.queue_incoming(QueueLabel::Active, "Strange", 1);
    metrics.scheduler.queue_incoming(QueueLabel::Active, "Other", 1);
    let text = metrics.text();
    assert_eq!(
        series(&text, "scheduler_queue_incoming_pods_total"),
        [
            r#"scheduler_queue_incoming_pods_total{event="PodAdd",queue="active"} 2"#,
            r#"scheduler_queue_incoming_pods_total{event="unexpected",queue="active"} 2"#,
        ]
    );
    let unexpected = "cardinality_enforcement_unexpected_categorizations_total";
    assert_eq!(series(&text, unexpected), [format!("{unexpected} 2")]);
}

#[test]
fn reset_drops_labeled_series_and_keeps_unlabeled_counters() {
    let metrics = with(|_| ());
    metrics.scheduler.scheduling_attempt(AttemptResult::Scheduled, "p", 0.1);
    metrics.scheduler.preemption_attempt();
    metrics.healthcheck("ping", "livez", true);
    metrics.reset();
    let text = metrics.text();
    assert!(series(&text, "scheduler_schedule_attempts_total").is_empty());
    assert_eq!(
        series(&text, "scheduler_preemption_attempts_total"),
        ["scheduler_preemption_attempts_total 1"]
    );
    assert!(
        metrics.slis_text().contains(
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1"#
        )
    );
    metrics.reset_slis();
    assert_eq!(metrics.slis_text(), "");
}

#[test]
fn feature_gates_decide_which_metrics_are_registered() {
    let metrics = with(|_| ());
    metrics.scheduler.preemption_executed(ApiCallResult::Success, 0.1);
    metrics.scheduler.api_call("pod_binding", ApiCallResult::Error, 0.1);
    metrics.scheduler.group_algorithm_duration(0.1);
    let text = metrics.text();
    assert!(text.contains("scheduler_preemption_goroutines_execution_total"));
    assert!(!text.contains("scheduler_async_api_call") && !text.contains("podgroup"));
}

#[test]
fn a_manifest_of_allowed_labels() {
    let path = std::env::temp_dir().join(format!("loadmaster-labels-{}.yaml", std::process::id()));
    std::fs::write(&path, "allowListMapping:\n  \"m,l\": \"a,b\"\n").unwrap();
    let mapping = manifest(path.to_str().unwrap()).unwrap();
    assert_eq!(mapping, BTreeMap::from([("m,l".to_owned(), "a,b".to_owned())]));
    std::fs::write(&path, "allowListMapping: {m: a}\n").unwrap();
    let error = manifest(path.to_str().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the allow list of metric labels: \"m\" is not metric,label");
    let _ = std::fs::remove_file(&path);
}

/// Metrics of kube-scheduler about Go's HTTP client, which Loadmaster does not have.
const GO_RUNTIME_METRICS: [&str; 6] = [
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_exec_plugin_ttl_seconds",
    "rest_client_transport_cache_entries",
    "rest_client_transport_cert_rotation_gc_calls_total",
    "rest_client_transport_ca_reload_total",
    "rest_client_transport_create_calls_total",
];

/// Updates every metric once.
fn update_all_metrics(
    it: &SchedulerMetrics,
    requests: &RestClientMetrics,
    queues: &WorkqueueMetrics,
) {
    const PROFILE: &str = "default-scheduler";
    const OK: ApiCallResult = ApiCallResult::Success;
    it.scheduling_attempt(AttemptResult::Scheduled, PROFILE, 0.0);
    it.group_attempt(AttemptResult::Scheduled, PROFILE, 0.0);
    it.group_algorithm_duration(0.0);
    it.algorithm_duration(0.0);
    it.pod_scheduled(1, 0.0);
    it.scheduled_after_flush();
    it.extension_point_duration("Filter", "Success", PROFILE, 0.0);
    it.plugin_duration("NodeName", "Filter", "Success", 0.0);
    it.plugin_evaluations("NodeName", EvaluatedExtensionPoint::Filter, PROFILE, 1);
    it.queue_incoming(QueueLabel::Active, "PodAdd", 1);
    it.set_pending_pods(QueueLabel::Active, 1);
    it.add_unschedulable_pods("NodeName", PROFILE, 1);
    it.event_handled("PodAdd", 0.0);
    it.queueing_hint_duration("NodeName", "PodAdd", "Queue", 0.0);
    it.set_inflight_events("PodAdd", 1);
    it.permit_waited("Success", 0.0);
    it.add_goroutines("binding", 1);
    it.set_cache_size(CacheKind::Nodes, 0);
    it.preemption_attempt();
    it.preemption_victims(0);
    it.preemption_executed(OK, 0.0);
    it.batch_attempt(PROFILE, "no_hint");
    it.batch_flushed(PROFILE, "expired");
    it.node_hint_duration(true, PROFILE, 0.0);
    it.results_stored(PROFILE, 0.0);
    it.api_call("pod_binding", OK, 0.0);
    it.set_pending_api_calls("pod_binding", 1);
    it.claim_created(OK);
    it.binding_conditions_waited(PROFILE, "driver", "success", 0.0);
    it.volume_binder_request("add");
    it.volume_stage_error("bind");
    requests.record_response("GET", "host", Some(200), 0.0);
    requests.retried("GET", "host", Some(500));
    requests.bytes_transferred("GET", "host", 0, 0);
    requests.rate_limited("GET", "host", 0.0);
    queues.added("queue", 1);
    queues.taken("queue", 0.0, 0);
    queues.processed("queue", 0.0);
}

/// Names, help, types, labels and buckets, without values.
fn without_values(text: &str) -> std::collections::BTreeSet<String> {
    let cut = |line: &str| match line.rsplit_once(' ') {
        Some((series, _)) if !line.starts_with('#') => series.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(cut).collect()
}

/// Compares with the metrics of kube-scheduler 1.36.3, recorded by `conformance/cmd/metrics`.
#[test]
fn every_metric_equals_the_one_of_kube_scheduler() {
    let mut families = Families::new(&MetricsSettings::default()).unwrap();
    let scheduler = SchedulerMetrics::new(&mut families, |_| true).unwrap();
    let requests = RestClientMetrics::new(&mut families).unwrap();
    let queues = WorkqueueMetrics::new(&mut families).unwrap();
    update_all_metrics(&scheduler, &requests, &queues);
    let ours = without_values(&text_format::print(&families.gather()));
    let ours: Vec<&String> = ours
        .iter()
        .filter(|line| {
            line.contains("scheduler_")
                || line.contains("rest_client_")
                || line.contains("workqueue_")
        })
        .collect();
    let recorded = include_str!("../../tests/metrics.txt");
    let mut recorded: Vec<&str> = recorded
        .lines()
        .filter(|line| !GO_RUNTIME_METRICS.iter().any(|name| line.contains(name)))
        .collect();
    recorded.sort_unstable();
    assert!(recorded.len() > 450, "the recorded metrics are complete");
    expect_test::expect![[""]].assert_eq(
        &ours
            .iter()
            .filter(|line| !recorded.contains(&line.as_str()))
            .map(|line| format!("+ {line}\n"))
            .chain(
                recorded
                    .iter()
                    .filter(|line| !ours.iter().any(|it| it == *line))
                    .map(|line| format!("- {line}\n")),
            )
            .collect::<String>(),
    );
}
