//! Metrics that kube-scheduler does not have.

use prometheus::{Error, Gauge};

use super::family::{
    ALPHA, Counters, Families, Gauges, Histograms, UnlabeledCounter, def, exponential,
};
use super::labels::{BindResult, EventResult, QueueLabel};

/// Metrics of our own. Durations are in seconds.
pub struct LoadmasterMetrics {
    shadow_agreement: Counters<2>,
    conflicts: Counters<2>,
    bind_window: Gauge,
    binds: Counters<1>,
    events: Counters<1>,
    events_waiting: Gauge,
    oldest_pending_pod: Gauges<1>,
    plugin_panics: Counters<2>,
    plugin_stuck: Counters<2>,
    missing_kinds: Gauges<3>,
    service_ends: Counters<1>,
    extender_calls: Histograms<3>,
    recording: Gauge,
    recorded_bytes: UnlabeledCounter,
    decision_mismatches: UnlabeledCounter,
    reloads: Counters<1>,
}

impl LoadmasterMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        Ok(LoadmasterMetrics {
            shadow_agreement: families.counters(def(
                "loadmaster_shadow_decisions_total",
                "Number of pods bound by the other scheduler in shadow mode, by the result of the comparison with Loadmaster's decision: same_choice_possible, better_node_missed (by sampling), explained_by_order, unexplained, not_examined (too many mismatches at a time) or undecided.",
                ALPHA,
                ["profile", "agreement"],
            ))?,
            conflicts: families.counters(def(
                "loadmaster_conflicts_total",
                "Number of conflicts with another scheduler. 'bind': it bound a pod before our binding request; 'pod': it bound a pod that was pending or being bound here; 'resources': its pod and ours together exceed the resources of a node.",
                ALPHA,
                ["kind", "profile"],
            ))?,
            bind_window: families.gauge(def(
                "loadmaster_bind_window_pods",
                "Number of pods past Permit whose binding cycle has not ended.",
                ALPHA,
                [],
            ))?,
            binds: families.counters(def(
                "loadmaster_binds_total",
                "Number of bindings sent to the API server, by result. 'conflict': the pod was deleted or bound elsewhere meanwhile.",
                ALPHA,
                ["result"],
            ))?,
            events: families.counters(def(
                "loadmaster_events_total",
                "Number of Events, by result. 'dropped': the queue was full; 'error': the API server refused it or was not reached.",
                ALPHA,
                ["result"],
            ))?,
            events_waiting: families.gauge(def(
                "loadmaster_events_waiting",
                "Number of Events in the queue of the event recorder.",
                ALPHA,
                [],
            ))?,
            oldest_pending_pod: families.gauges(def(
                "loadmaster_oldest_pending_pod_age_seconds",
                "Seconds since the creation of the oldest pod in a queue, updated every five seconds; 0 if the queue is empty. The queues are those of scheduler_pending_pods.",
                ALPHA,
                ["queue"],
            ))?,
            plugin_panics: families.counters(def(
                "loadmaster_plugin_panics_total",
                "Number of plugin panics. Each fails one scheduling attempt of one pod.",
                ALPHA,
                ["plugin", "extension_point"],
            ))?,
            plugin_stuck: families.counters(def(
                "loadmaster_plugin_stuck_total",
                "Number of times a plugin was stuck: it had not finished with a pod after a minute. The pod keeps its node.",
                ALPHA,
                ["plugin", "extension_point"],
            ))?,
            missing_kinds: families.gauges(def(
                "loadmaster_missing_kinds",
                "1 for each kind that cannot be read: the API server does not serve it ('absent'), does not allow it ('forbidden'), or fails ('failing').",
                ALPHA,
                ["group", "resource", "why"],
            ))?,
            service_ends: families.counters(def(
                "loadmaster_service_ends_total",
                "Number of times a service ended, failed or panicked. It is then restarted.",
                ALPHA,
                ["service"],
            ))?,
            extender_calls: families.histograms(
                def(
                    "loadmaster_extender_call_duration_seconds",
                    "Duration of calls to extenders in seconds, by extender, verb and result.",
                    ALPHA,
                    ["extender", "verb", "result"],
                ),
                exponential(0.001, 2.0, 15),
            )?,
            recording: families.gauge(def(
                "loadmaster_recording",
                "1 while events and decisions are being recorded, 0 when the recording has ended.",
                ALPHA,
                [],
            ))?,
            recorded_bytes: families.unlabeled_counter(def(
                "loadmaster_recorded_bytes_total",
                "Number of bytes written to the recording.",
                ALPHA,
                [],
            ))?,
            reloads: families.counters(def(
                "loadmaster_configuration_reloads_total",
                "Number of times the configuration was read again, by result. 'success': it took effect; 'error': the file is invalid, and nothing changed.",
                ALPHA,
                ["result"],
            ))?,
            decision_mismatches: families.unlabeled_counter(def(
                "loadmaster_decision_mismatches_total",
                "Number of decisions verified by --check-every that differ from per-node evaluation. Each is a bug.",
                ALPHA,
                [],
            ))?,
        })
    }

    /// In shadow mode, another scheduler bound a pod; `agreement` is the result of the comparison with our decision.
    pub fn shadow_decision(&self, profile: &str, agreement: &str) {
        self.shadow_agreement.inc([profile, agreement]);
    }

    /// A conflict with another scheduler: `bind`, `pod` or `resources`.
    pub fn scheduler_conflict(&self, kind: &str, profile: &str) {
        self.conflicts.inc([kind, profile]);
    }

    /// The number of pods past Permit that are not bound yet.
    pub fn set_pods_in_binding(&self, n_pods: usize) {
        self.bind_window.set(n_pods as f64);
    }

    /// Shows what is known in advance from the start, with zero: an increase from nothing to 1 is none for `increase()` of Prometheus.
    pub(super) fn init(&self) {
        ["success", "error"].iter().for_each(|result| self.reloads.add([result], 0));
        BindResult::ALL.iter().for_each(|result| self.binds.add([result.label()], 0));
        EventResult::ALL.iter().for_each(|result| self.events.add([result.label()], 0));
        QueueLabel::ALL.iter().for_each(|queue| self.oldest_pending_pod.add([queue.label()], 0.0));
    }

    /// The configuration was read again, and took effect or was invalid.
    pub fn configuration_reloaded(&self, is_valid: bool) {
        self.reloads.add([if is_valid { "success" } else { "error" }], 1);
    }

    /// `n` bindings were sent to the API server.
    pub fn bound(&self, result: BindResult, n: u64) {
        self.binds.add([result.label()], n);
    }

    /// `n` Events were written, or not.
    pub fn events_recorded(&self, result: EventResult, n: u64) {
        self.events.add([result.label()], n);
    }

    /// The number of Events that are not written yet.
    pub fn set_events_waiting(&self, n: usize) {
        self.events_waiting.set(n as f64);
    }

    /// The time since the creation of the oldest pod in a queue; 0 if it is empty.
    pub fn set_oldest_pending_pod_age(&self, queue: QueueLabel, seconds: f64) {
        self.oldest_pending_pod.set([queue.label()], seconds);
    }

    /// A plugin panicked `n` times.
    pub fn plugin_panicked(&self, plugin: &str, point: &str, n: u64) {
        self.plugin_panics.add([plugin, point], n);
    }

    /// A plugin is stuck with one pod.
    pub fn plugin_stuck(&self, plugin: &str, point: &str) {
        self.plugin_stuck.inc([plugin, point]);
    }

    /// Whether a kind cannot be read, and the reason: `absent`, `forbidden` or `failing`.
    pub fn set_missing_kind(&self, group: &str, resource: &str, why: &str, is_missing: bool) {
        self.missing_kinds.set([group, resource, why], f64::from(u8::from(is_missing)));
    }

    /// A service ended, successfully or not.
    pub fn service_ended(&self, service: &str) {
        self.service_ends.inc([service]);
    }

    /// A call to an extender ended.
    pub fn extender_called(&self, extender: &str, verb: &str, is_success: bool, seconds: f64) {
        let result = if is_success { "success" } else { "error" };
        self.extender_calls.observe([extender, verb, result], seconds);
    }

    /// Whether a recording is running.
    pub fn set_recording(&self, is_on: bool) {
        self.recording.set(f64::from(u8::from(is_on)));
    }

    /// This many bytes were written to the recording.
    pub fn recorded_bytes(&self, n_bytes: usize) {
        self.recorded_bytes.add(n_bytes as u64);
    }

    /// This many verified decisions were different.
    pub fn decision_mismatches(&self, n: usize) {
        self.decision_mismatches.add(n as u64);
    }
}
