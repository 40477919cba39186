//! What kube-scheduler does not count.

use prometheus::{Error, Gauge};

use super::family::{ALPHA, Counters, Families, Gauges, Histograms, Total, def, exponential};

/// Metrics of our own. Durations are in seconds.
pub struct OwnMetrics {
    shadow_agreement: Counters<2>,
    lost_races: Counters<2>,
    bind_window: Gauge,
    plugin_panics: Counters<2>,
    plugin_overdue: Counters<2>,
    missing_kinds: Gauges<3>,
    service_ends: Counters<1>,
    extender_calls: Histograms<3>,
    recording: Gauge,
    recorded: Total,
    wrong_decisions: Total,
}

impl OwnMetrics {
    pub(super) fn new(families: &mut Families) -> Result<Self, Error> {
        Ok(OwnMetrics {
            shadow_agreement: families.counters(def(
                "loadmaster_shadow_decisions_total",
                "Pods bound by the scheduler that is watched in shadow mode, by whether their node was among our best ones.",
                ALPHA,
                ["profile", "agreement"],
            ))?,
            lost_races: families.counters(def(
                "loadmaster_lost_races_total",
                "Races that another scheduler won. 'bind': it bound a pod before our bind came; 'pod': it bound a pod that was waiting or on its way to a node here; 'room': its pod and ours are together too much for a node.",
                ALPHA,
                ["kind", "profile"],
            ))?,
            bind_window: families.gauge(def(
                "loadmaster_bind_window_pods",
                "Number of pods past Permit whose binding has not ended.",
                ALPHA,
                [],
            ))?,
            plugin_panics: families.counters(def(
                "loadmaster_plugin_panics_total",
                "Number of times a plugin panicked; each cost one pod one attempt.",
                ALPHA,
                ["plugin", "extension_point"],
            ))?,
            plugin_overdue: families.counters(def(
                "loadmaster_plugin_overdue_total",
                "Number of times a plugin had not finished with a pod after a minute. The pod keeps its node.",
                ALPHA,
                ["plugin", "extension_point"],
            ))?,
            missing_kinds: families.gauges(def(
                "loadmaster_missing_kinds",
                "1 for each kind that cannot be read: because the server does not have it ('absent'), does not let us ('forbidden'), or fails ('failing').",
                ALPHA,
                ["group", "resource", "why"],
            ))?,
            service_ends: families.counters(def(
                "loadmaster_service_ends_total",
                "How often a service ended, failed or panicked. It is started again.",
                ALPHA,
                ["service"],
            ))?,
            extender_calls: families.histograms(
                def(
                    "loadmaster_extender_call_duration_seconds",
                    "How long calls on extenders took, by extender, verb and result.",
                    ALPHA,
                    ["extender", "verb", "result"],
                ),
                exponential(0.001, 2.0, 15),
            )?,
            recording: families.gauge(def(
                "loadmaster_recording",
                "1 while all that is seen and decided is being recorded, 0 when that has ended.",
                ALPHA,
                [],
            ))?,
            recorded: families.total(def(
                "loadmaster_recorded_bytes_total",
                "Number of bytes written to the recording.",
                ALPHA,
                [],
            ))?,
            wrong_decisions: families.total(def(
                "loadmaster_wrong_decisions_total",
                "Number of decisions that differ from asking every plugin about every node, as far as --check-every looked. Each is a bug.",
                ALPHA,
                [],
            ))?,
        })
    }

    /// In shadow mode, another scheduler bound a pod; `agreement` says how its choice stands to ours.
    pub fn shadow_decision(&self, profile: &str, agreement: &str) {
        self.shadow_agreement.inc([profile, agreement]);
    }

    /// Another scheduler won: `bind`, `pod` or `room`.
    pub fn race_lost(&self, kind: &str, profile: &str) {
        self.lost_races.inc([kind, profile]);
    }

    /// So many pods are past Permit and not bound yet.
    pub fn set_bind_window(&self, n_pods: usize) {
        self.bind_window.set(n_pods as f64);
    }

    /// A plugin panicked `n` times.
    pub fn plugin_panicked(&self, plugin: &str, point: &str, n: u64) {
        self.plugin_panics.add([plugin, point], n);
    }

    /// A plugin has been at work for one pod for too long.
    pub fn plugin_overdue(&self, plugin: &str, point: &str) {
        self.plugin_overdue.inc([plugin, point]);
    }

    /// Whether a kind cannot be read, and why: `absent`, `forbidden` or `failing`.
    pub fn set_missing(&self, group: &str, resource: &str, why: &str, is_missing: bool) {
        self.missing_kinds.set([group, resource, why], f64::from(u8::from(is_missing)));
    }

    /// A service ended, in whatever way.
    pub fn service_ended(&self, service: &str) {
        self.service_ends.inc([service]);
    }

    /// An extender answered, or did not.
    pub fn extender_called(&self, extender: &str, verb: &str, is_success: bool, seconds: f64) {
        let result = if is_success { "success" } else { "error" };
        self.extender_calls.observe([extender, verb, result], seconds);
    }

    /// Whether what is seen and decided is being recorded.
    pub fn set_recording(&self, is_on: bool) {
        self.recording.set(f64::from(u8::from(is_on)));
    }

    /// So many more bytes of it were written.
    pub fn recorded(&self, n_bytes: usize) {
        self.recorded.add(n_bytes as u64);
    }

    /// So many checked decisions were wrong.
    pub fn wrong_decisions(&self, n: usize) {
        self.wrong_decisions.add(n as u64);
    }
}
