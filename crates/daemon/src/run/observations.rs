//! Exports the engine's observations as metrics and log lines.

use std::collections::BTreeMap;
use std::sync::Arc;

use loadmaster_api::Timestamp;
use loadmaster_client::api_dispatcher::ApiDispatcherStats;
use loadmaster_client::event_recorder::{EventRecorderStats, NewEvent, ObjectReference};
use loadmaster_client::{RequestObserver, RequestOutcome};
use loadmaster_engine::engine::{
    AttemptOutcome, Conflict, Engine, EventRecord, Observation, RegardingObject, StuckPlugin,
};
use loadmaster_engine::guard::{self, ExtensionPoint, PluginExecutionDuration, PluginPanic};
use loadmaster_engine::queue::{IncomingQueue, SubQueue};
use loadmaster_framework::Code;

use crate::logs::Logs;
use crate::metrics::{
    AttemptResult, BindResult, CacheKind, EventResult, LoadmasterMetrics, Metrics, QueueLabel,
    SchedulerMetrics,
};

/// Updates metrics with one observation, or logs it.
pub(super) fn observe(engine: &Engine, metrics: &Metrics, logs: &Logs, observation: &Observation) {
    let scheduler = &metrics.scheduler;
    match observation {
        Observation::Attempt { profile_idx, outcome, nanos } => {
            let result = match outcome {
                AttemptOutcome::Scheduled => AttemptResult::Scheduled,
                AttemptOutcome::Unschedulable => AttemptResult::Unschedulable,
                AttemptOutcome::Error => AttemptResult::Error,
            };
            scheduler.scheduling_attempt(
                result,
                engine.profile_name(*profile_idx),
                seconds(*nanos),
            );
        }
        Observation::Algorithm { nanos } => scheduler.algorithm_duration(seconds(*nanos)),
        Observation::Bound { attempts, nanos, after_flush } => {
            scheduler.pod_scheduled(*attempts, seconds(*nanos));
            if *after_flush {
                scheduler.scheduled_after_flush();
            }
        }
        Observation::PermitWait { allowed, nanos } => {
            let result = if *allowed { "Success" } else { "Unschedulable" };
            scheduler.permit_waited(result, seconds(*nanos));
        }
        Observation::Preemption { counts, victims } => {
            if *counts {
                scheduler.preemption_attempt();
            }
            if let Some(n_victims) = victims.filter(|n| *n > 0) {
                scheduler.preemption_victims(n_victims);
            }
        }
        Observation::PluginExecutions(calls) => record_plugin_executions(scheduler, calls),
        Observation::PluginLogs(lines) => {
            lines.iter().for_each(|line| logs.write_plugin_line(line))
        }
        Observation::PluginPanicked(panic) => panicked(&metrics.loadmaster, panic),
        Observation::EventHandled { event, nanos } => {
            scheduler.event_handled(&event.to_string(), seconds(*nanos));
        }
        Observation::ShadowCompared(comparison) => {
            let profile = &comparison.profile;
            metrics.loadmaster.shadow_decision(profile, comparison.result.name());
            tracing::info!(profile = profile.as_str(), "{comparison}");
        }
        Observation::PluginStuck(stuck) => plugin_stuck(&metrics.loadmaster, stuck),
        Observation::Conflict(it) => conflict(&metrics.loadmaster, it),
        Observation::InternalError { message } => tracing::warn!("{message}"),
    }
}

/// Records the durations of plugins, and of extension points as the sum of their plugins. Filter and Score are different: per-node
/// executions are only sampled, so their total is reported separately under the plugin name [`guard::ALL_PLUGINS`].
fn record_plugin_executions(scheduler: &SchedulerMetrics, calls: &[PluginExecutionDuration]) {
    let mut points: BTreeMap<(&str, ExtensionPoint), (Code, u64)> = BTreeMap::new();
    for PluginExecutionDuration { plugin, extension_point, code, nanos, event } in calls {
        if let Some(event) = event {
            let hint = match code {
                Code::Success => "Queue",
                Code::Skip => "QueueSkip",
                _ => "Error",
            };
            scheduler.queueing_hint_duration(plugin.name, event, hint, seconds(*nanos));
            continue;
        }
        let is_all = plugin.name == guard::ALL_PLUGINS;
        if !is_all {
            scheduler.plugin_duration(
                plugin.name,
                extension_point.name(),
                code.name(),
                seconds(*nanos),
            );
        }
        let is_per_node = matches!(
            extension_point,
            ExtensionPoint::Filter
                | ExtensionPoint::Score
                | ExtensionPoint::NormalizeScore
                | ExtensionPoint::AddPod
                | ExtensionPoint::RemovePod
        );
        if is_all || !is_per_node {
            let code = if *code == Code::Skip { Code::Success } else { *code };
            let (worst, sum) =
                points.entry((&plugin.profile, *extension_point)).or_insert((Code::Success, 0));
            *worst = if code == Code::Success { *worst } else { code };
            *sum += nanos;
        }
    }
    for ((profile, extension_point), (code, nanos)) in points {
        scheduler.extension_point_duration(
            extension_point.name(),
            code.name(),
            profile,
            seconds(nanos),
        );
    }
}

fn plugin_stuck(metrics: &LoadmasterMetrics, stuck: &StuckPlugin) {
    let StuckPlugin { plugin, extension_point, pod, node } = stuck;
    metrics.plugin_stuck(plugin.name, extension_point.name());
    tracing::warn!(
        plugin = plugin.name,
        extension_point = extension_point.name(),
        profile = &*plugin.profile,
        pod,
        node = node.as_str(),
        "A plugin is stuck: it has not finished for a minute; the pod waits for it"
    );
}

fn conflict(metrics: &LoadmasterMetrics, conflict: &Conflict) {
    metrics.scheduler_conflict(conflict.kind.name(), &conflict.profile);
    let other = conflict.other.as_ref();
    tracing::warn!(
        kind = conflict.kind.name(),
        pod = conflict.pod,
        node = conflict.node.as_str(),
        bound_to = conflict.bound_to.as_str(),
        other = other.map_or("", |it| &it.pod),
        scheduler = other.map_or("", |it| &it.scheduler),
        "Conflict with another scheduler: {conflict}"
    );
}

fn panicked(metrics: &LoadmasterMetrics, panic: &PluginPanic) {
    let PluginPanic { plugin, extension_point, message, location, times } = panic;
    metrics.plugin_panicked(plugin.name, extension_point.name(), *times);
    tracing::error!(
        plugin = plugin.name,
        extension_point = extension_point.name(),
        profile = &*plugin.profile,
        times,
        location = location.as_deref().unwrap_or("unknown"),
        "A plugin panicked: {message}; {}",
        extension_point.fallback_description()
    );
}

/// Updates the gauges.
pub(super) fn update_state(engine: &mut Engine, metrics: &Metrics) {
    let scheduler = &metrics.scheduler;
    for incoming in engine.take_incoming_counts() {
        let queue = match incoming.queue {
            IncomingQueue::Active => QueueLabel::Active,
            IncomingQueue::Backoff => QueueLabel::Backoff,
            IncomingQueue::Unschedulable => QueueLabel::Unschedulable,
        };
        scheduler.queue_incoming(queue, &incoming.cause.to_string(), incoming.n);
    }
    let counts = engine.queue().counts();
    scheduler.set_pending_pods(QueueLabel::Active, counts.active);
    scheduler.set_pending_pods(QueueLabel::Backoff, counts.backoff);
    scheduler.set_pending_pods(QueueLabel::Unschedulable, counts.unschedulable);
    scheduler.set_pending_pods(QueueLabel::Gated, counts.gated);
    scheduler.set_cache_size(CacheKind::Nodes, engine.world().nodes().len());
    scheduler.set_cache_size(CacheKind::Pods, engine.world().n_assigned_pods());
    scheduler.set_cache_size(CacheKind::AssumedPods, engine.n_assumed_pods());
    metrics.loadmaster.set_pods_in_binding(engine.n_binding_pods());
}

/// Updates the age of the oldest pod in each queue. Reads every queued pod, and is therefore called less often than [`update_state`].
pub(super) fn update_pending_ages(engine: &Engine, metrics: &Metrics, now: Timestamp) {
    let mut oldest = [
        (SubQueue::Active, QueueLabel::Active, None),
        (SubQueue::Backoff, QueueLabel::Backoff, None),
        (SubQueue::Unschedulable, QueueLabel::Unschedulable, None),
        (SubQueue::Gated, QueueLabel::Gated, None),
    ];
    for (pod, sub_queue) in engine.queue().iter() {
        let created = pod.info.pod.created.get().unwrap_or(pod.info.queued);
        for (_, _, first) in oldest.iter_mut().filter(|(queue, ..)| *queue == sub_queue) {
            *first = Some(first.map_or(created, |first: Timestamp| first.min(created)));
        }
    }
    for (_, queue, first) in oldest {
        let nanos = first.map_or(0, |first| now.0.saturating_sub(first.0).max(0));
        metrics.loadmaster.set_oldest_pending_pod_age(queue, nanos as f64 / 1e9);
    }
}

/// Counts the requests to the API server.
pub(super) fn request_observer(metrics: &Arc<Metrics>) -> RequestObserver {
    let metrics = metrics.clone();
    Arc::new(move |outcome| {
        let RequestOutcome { method, host, status, duration } = *outcome;
        metrics.requests.record_response(method.as_str(), host, status, duration.as_secs_f64());
    })
}

/// What the API client has counted, as far as it is in the metrics.
#[derive(Default)]
pub(super) struct ClientCounts {
    calls: ApiDispatcherStats,
    events: EventRecorderStats,
}

impl ClientCounts {
    /// Adds the difference to the metrics.
    pub fn update(
        &mut self,
        metrics: &LoadmasterMetrics,
        calls: ApiDispatcherStats,
        events: EventRecorderStats,
    ) {
        let ClientCounts { calls: old, events: old_events } =
            std::mem::replace(self, ClientCounts { calls, events });
        metrics.bound(BindResult::Success, calls.n_binds_succeeded - old.n_binds_succeeded);
        metrics.bound(BindResult::Conflict, calls.n_binds_in_conflict - old.n_binds_in_conflict);
        metrics.bound(BindResult::Error, calls.n_binds_failed - old.n_binds_failed);
        metrics.events_recorded(EventResult::Written, events.n_written - old_events.n_written);
        metrics.events_recorded(EventResult::Dropped, events.n_dropped - old_events.n_dropped);
        metrics.events_recorded(EventResult::Error, events.n_failed - old_events.n_failed);
        metrics.set_events_waiting(events.n_waiting);
    }
}

/// Converts an Event about a pod for the event recorder.
pub(super) fn new_event(event: EventRecord) -> NewEvent {
    let pod = |pod: RegardingObject| ObjectReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
    };
    NewEvent {
        regarding: pod(event.regarding),
        related: event.related.map(pod),
        is_warning: event.is_warning,
        reason: event.reason.into(),
        action: event.action.into(),
        note: event.note,
        controller: event.controller,
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsSettings;
    use crate::run::testkit;
    use loadmaster_client::Method;
    use loadmaster_engine::engine::{ApiObject, ConflictKind};
    use loadmaster_engine::guard::PluginRef;
    use serde_json::json;
    use std::time::Duration;

    fn plugin_ref(name: &'static str) -> PluginRef {
        PluginRef { profile: "default-scheduler".into(), name }
    }

    fn call(
        plugin: &'static str,
        extension_point: ExtensionPoint,
        code: Code,
        nanos: u64,
    ) -> PluginExecutionDuration {
        PluginExecutionDuration {
            plugin: plugin_ref(plugin),
            extension_point,
            code,
            nanos,
            event: None,
        }
    }

    /// The lines of sums and totals of the metrics with these name prefixes.
    fn sums_and_totals(metrics: &Metrics, names: &[&str]) -> String {
        let text = metrics.text();
        let is_shown = |line: &&str| {
            let is_total = line.contains("_sum{") || line.contains("_total{");
            is_total && names.iter().any(|name| line.starts_with(name))
        };
        text.lines().filter(is_shown).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn extension_points_are_the_sums_of_their_plugins_except_filter_and_score() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let hint = PluginExecutionDuration {
            event: Some("NodeAdd".into()),
            ..call("NodeName", ExtensionPoint::QueueingHint, Code::Skip, 9_000)
        };
        record_plugin_executions(
            &metrics.scheduler,
            &[
                call("A", ExtensionPoint::PreFilter, Code::Skip, 1_000),
                call("B", ExtensionPoint::PreFilter, Code::Success, 2_000),
                call("A", ExtensionPoint::Filter, Code::Success, 5_000),
                call(guard::ALL_PLUGINS, ExtensionPoint::Filter, Code::Success, 70_000),
                call("A", ExtensionPoint::Permit, Code::Wait, 3_000),
                hint,
            ],
        );
        expect_test::expect![[r#"
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="Filter",profile="default-scheduler",status="Success"} 7e-05
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="Permit",profile="default-scheduler",status="Wait"} 3e-06
            scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreFilter",profile="default-scheduler",status="Success"} 3e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="Filter",plugin="A",status="Success"} 5e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="Permit",plugin="A",status="Wait"} 3e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="PreFilter",plugin="A",status="Skip"} 1e-06
            scheduler_plugin_execution_duration_seconds_sum{extension_point="PreFilter",plugin="B",status="Success"} 2e-06
            scheduler_queueing_hint_execution_duration_seconds_sum{event="NodeAdd",hint="QueueSkip",plugin="NodeName"} 9e-06"#]].assert_eq(&sums_and_totals(
            &metrics,
            &[
                "scheduler_framework_extension_point_duration_seconds",
                "scheduler_plugin_execution_duration_seconds",
                "scheduler_queueing_hint_execution_duration_seconds",
            ],
        ));
    }

    #[test]
    fn conflicts_and_stuck_plugins_are_counted() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let stuck = StuckPlugin {
            plugin: plugin_ref("Slow"),
            extension_point: ExtensionPoint::PreBind,
            pod: "default/web".to_owned(),
            node: "a".into(),
        };
        plugin_stuck(&metrics.loadmaster, &stuck);
        plugin_stuck(&metrics.loadmaster, &stuck);
        let of_kind = |kind| Conflict {
            kind,
            profile: "default-scheduler".into(),
            pod: "default/web".to_owned(),
            node: "a".into(),
            bound_to: "b".into(),
            other: None,
        };
        for kind in [
            ConflictKind::Bind,
            ConflictKind::Resources,
            ConflictKind::Resources,
            ConflictKind::Pod,
        ] {
            conflict(&metrics.loadmaster, &of_kind(kind));
        }
        expect_test::expect![[r#"
            loadmaster_conflicts_total{kind="bind",profile="default-scheduler"} 1
            loadmaster_conflicts_total{kind="pod",profile="default-scheduler"} 1
            loadmaster_conflicts_total{kind="resources",profile="default-scheduler"} 2
            loadmaster_plugin_stuck_total{extension_point="PreBind",plugin="Slow"} 2"#]]
        .assert_eq(&sums_and_totals(
            &metrics,
            &["loadmaster_conflicts_total", "loadmaster_plugin_stuck_total"],
        ));
    }

    #[test]
    fn the_age_of_the_oldest_pod_in_each_queue() {
        let check = |engine: &Engine, metrics: &Metrics, want: [f64; 4]| {
            // One hour after midnight.
            let now: jiff::Timestamp = "2026-01-31T01:00:00Z".parse().unwrap();
            let now = Timestamp(now.as_second() * 1_000_000_000);
            update_pending_ages(engine, metrics, now);
            let text = metrics.text();
            let age = |queue: &str| -> f64 {
                let begin =
                    format!(r#"loadmaster_oldest_pending_pod_age_seconds{{queue="{queue}"}} "#);
                let line = text.lines().find_map(|line| line.strip_prefix(&begin));
                line.unwrap().parse().unwrap()
            };
            assert_eq!(["active", "backoff", "unschedulable", "gated"].map(age), want);
        };
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let mut engine = testkit::engine(&["a"], &[]);
        check(&engine, &metrics, [0.0; 4]);
        let gates = json!([{"name": "quota"}]);
        for (name, minute, spec) in [
            ("new", 50, json!({})),
            ("old", 20, json!({})),
            ("gated", 5, json!({"schedulingGates": gates})),
            // A clock that is behind the API server's.
            ("unborn", 60, json!({})),
        ] {
            let created = format!("2026-01-31T{:02}:{:02}:00Z", minute / 60, minute % 60);
            let metadata = json!({"name": name, "namespace": "shop", "uid": name, "creationTimestamp": created});
            let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            testkit::apply(&mut engine, ApiObject::Pod(Box::new(pod)));
        }
        check(&engine, &metrics, [2400.0, 0.0, 0.0, 3300.0]);
        testkit::schedule_pods(&mut engine);
        check(&engine, &metrics, [0.0, 0.0, 0.0, 3300.0]);
    }

    #[test]
    fn requests_are_counted() {
        let metrics = Arc::new(Metrics::new(&MetricsSettings::default()).unwrap());
        let observer = request_observer(&metrics);
        let outcome = |status| RequestOutcome {
            method: &Method::POST,
            host: "api.example:6443",
            status,
            duration: Duration::from_millis(500),
        };
        for status in [Some(201), Some(201), Some(409), None] {
            observer(&outcome(status));
        }
        expect_test::expect![[r#"
            rest_client_request_duration_seconds_sum{host="api.example:6443",verb="POST"} 2
            rest_client_requests_total{code="201",host="api.example:6443",method="POST"} 2
            rest_client_requests_total{code="409",host="api.example:6443",method="POST"} 1
            rest_client_requests_total{code="<error>",host="api.example:6443",method="POST"} 1"#]]
        .assert_eq(&sums_and_totals(&metrics, &["rest_client_"]));
    }

    #[test]
    fn counts_of_the_client_are_added_once() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let mut counts = ClientCounts::default();
        let calls = |n| ApiDispatcherStats {
            n_binds_succeeded: 10 * n,
            n_binds_in_conflict: n,
            n_binds_failed: 2 * n,
            ..ApiDispatcherStats::default()
        };
        let events = |n| EventRecorderStats {
            n_written: 9 * n,
            n_dropped: 3 * n,
            n_failed: n,
            ..EventRecorderStats::default()
        };
        for n in [1, 1, 2] {
            counts.update(&metrics.loadmaster, calls(n), events(n));
        }
        expect_test::expect![[r#"
            loadmaster_binds_total{result="conflict"} 2
            loadmaster_binds_total{result="error"} 4
            loadmaster_binds_total{result="success"} 20
            loadmaster_events_total{result="dropped"} 6
            loadmaster_events_total{result="error"} 2
            loadmaster_events_total{result="written"} 18"#]]
        .assert_eq(&sums_and_totals(&metrics, &["loadmaster_binds", "loadmaster_events"]));
    }

    #[test]
    fn panics_are_counted() {
        let metrics = Metrics::new(&MetricsSettings::default()).unwrap();
        let panic = PluginPanic {
            plugin: plugin_ref("Panicking"),
            extension_point: ExtensionPoint::Filter,
            message: "injected".to_owned(),
            location: None,
            times: 3,
        };
        panicked(&metrics.loadmaster, &panic);
        expect_test::expect![[
            r#"loadmaster_plugin_panics_total{extension_point="Filter",plugin="Panicking"} 3"#
        ]]
        .assert_eq(&sums_and_totals(&metrics, &["loadmaster_plugin_panics_total"]));
    }
}
