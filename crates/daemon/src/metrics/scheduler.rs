//! What the scheduler counts. From upstream's `pkg/scheduler/metrics`, 1.36.

use prometheus::{Error, Histogram};

use super::family::{
    ALPHA, BETA, Counters, Families, Gauges, Histograms, STABLE, Total, def, exponential,
};
use super::labels::{ApiCallResult, AttemptResult, CacheKind, PluginPoint, Queue};

/// Attempts above this are counted together.
const ATTEMPTS_MAX: u32 = 15;

/// The metrics of the scheduler. Durations are in seconds.
pub struct SchedulerMetrics {
    schedule_attempts: Counters<2>,
    attempt_duration: Histograms<2>,
    algorithm_duration: Histogram,
    sli_duration: Histograms<1>,
    scheduling_attempts: Histogram,
    scheduled_after_flush: Total,
    extension_point_duration: Histograms<3>,
    plugin_duration: Histograms<3>,
    plugin_evaluations: Counters<3>,
    queue_incoming: Counters<2>,
    pending: Gauges<1>,
    unschedulable: Gauges<2>,
    event_duration: Histograms<1>,
    hint_duration: Histograms<3>,
    inflight: Gauges<1>,
    permit_wait: Histograms<1>,
    goroutines: Gauges<1>,
    cache_size: Gauges<1>,
    preemption_attempts: Total,
    preemption_victims: Histogram,
    preemption_duration: Histograms<1>,
    preemption_executions: Counters<1>,
    batch_attempts: Counters<2>,
    batch_flushes: Counters<2>,
    node_hint_duration: Histograms<2>,
    store_results_duration: Histograms<1>,
    api_calls: Counters<2>,
    api_call_duration: Histograms<2>,
    api_calls_pending: Gauges<1>,
    claim_creates: Counters<1>,
    binding_condition_allocations: Counters<3>,
    binding_condition_wait: Histograms<3>,
    group_attempts: Counters<2>,
    group_attempt_duration: Histograms<2>,
    group_algorithm_duration: Histogram,
    binder_cache_requests: Counters<1>,
    volume_stage_errors: Counters<1>,
}

impl SchedulerMetrics {
    /// Metrics of gates that are off are made and not shown.
    #[expect(clippy::too_many_lines, reason = "one table: a metric, its help, its labels")]
    pub(super) fn new(
        families: &mut Families,
        is_on: impl Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let mut hidden = families.sibling();
        let long = || exponential(0.001, 2.0, 15);
        let short = || exponential(0.0001, 2.0, 12);
        let fine = || exponential(0.00001, 1.5, 20);
        let tiny = || exponential(0.00001, 2.0, 12);
        let schedule_attempts = families.counters(def("scheduler_schedule_attempts_total", "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.", STABLE, ["result", "profile"]))?;
        let attempt_duration = families.histograms(
            def(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                STABLE,
                ["result", "profile"],
            ),
            long(),
        )?;
        let algorithm_duration = families.histogram(
            def(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                ALPHA,
                [],
            ),
            long(),
        )?;
        let event_duration = families.histograms(
            def(
                "scheduler_event_handling_duration_seconds",
                "Event handling latency in seconds.",
                ALPHA,
                ["event"],
            ),
            short(),
        )?;
        let preemption_victims = families.histogram(
            def(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                STABLE,
                [],
            ),
            exponential(1.0, 2.0, 7),
        )?;
        let preemption_attempts = families.total(def(
            "scheduler_preemption_attempts_total",
            "Total preemption attempts in the cluster till now",
            STABLE,
            [],
        ))?;
        let pending = families.gauges(def("scheduler_pending_pods", "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.", STABLE, ["queue"]))?;
        let inflight = families.gauges(def(
            "scheduler_inflight_events",
            "Number of events currently tracked in the scheduling queue.",
            ALPHA,
            ["event"],
        ))?;
        let goroutines = families.gauges(def(
            "scheduler_goroutines",
            "Number of running goroutines split by the work they do such as binding.",
            BETA,
            ["operation"],
        ))?;
        let batch_attempts = families.counters(def(
            "scheduler_batch_attempts_total",
            "Counts of results when we attempt to use batching.",
            ALPHA,
            ["profile", "result"],
        ))?;
        let batch_flushes = families.counters(def(
            "scheduler_batch_cache_flushed_total",
            "Counts of cache flushes by reason.",
            ALPHA,
            ["profile", "reason"],
        ))?;
        let sli_duration = families.histograms(def("scheduler_pod_scheduling_sli_duration_seconds", "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.", BETA, ["attempts"]), exponential(0.01, 2.0, 20))?;
        let scheduling_attempts = families.histogram(
            def(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                STABLE,
                [],
            ),
            exponential(1.0, 2.0, 5),
        )?;
        let scheduled_after_flush = families.total(def("scheduler_pod_scheduled_after_flush_total", "Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout. This metric helps detect potential queueing hint misconfigurations or event handling issues.", ALPHA, []))?;
        let extension_point_duration = families.histograms(
            def(
                "scheduler_framework_extension_point_duration_seconds",
                "Latency for running all plugins of a specific extension point.",
                STABLE,
                ["extension_point", "status", "profile"],
            ),
            short(),
        )?;
        let plugin_duration = families.histograms(
            def(
                "scheduler_plugin_execution_duration_seconds",
                "Duration for running a plugin at a specific extension point.",
                ALPHA,
                ["plugin", "extension_point", "status"],
            ),
            fine(),
        )?;
        let hint_duration = families.histograms(
            def(
                "scheduler_queueing_hint_execution_duration_seconds",
                "Duration for running a queueing hint function of a plugin.",
                ALPHA,
                ["plugin", "event", "hint"],
            ),
            fine(),
        )?;
        let queue_incoming = families.counters(def(
            "scheduler_queue_incoming_pods_total",
            "Number of pods added to scheduling queues by event and queue type.",
            STABLE,
            ["queue", "event"],
        ))?;
        let permit_wait = families.histograms(
            def(
                "scheduler_permit_wait_duration_seconds",
                "Duration of waiting on permit.",
                BETA,
                ["result"],
            ),
            long(),
        )?;
        let cache_size = families.gauges(def(
            "scheduler_cache_size",
            "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
            ALPHA,
            ["type"],
        ))?;
        let unschedulable = families.gauges(def("scheduler_unschedulable_pods", "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.", BETA, ["plugin", "profile"]))?;
        let plugin_evaluations = families.counters(def("scheduler_plugin_evaluation_total", "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).", BETA, ["plugin", "extension_point", "profile"]))?;
        let node_hint_duration = families.histograms(
            def(
                "scheduler_get_node_hint_duration_seconds",
                "Latency for getting a node hint.",
                ALPHA,
                ["hinted", "profile"],
            ),
            tiny(),
        )?;
        let store_results_duration = families.histograms(
            def(
                "scheduler_store_schedule_results_duration_seconds",
                "Latency for getting a no.",
                ALPHA,
                ["profile"],
            ),
            tiny(),
        )?;
        let binder_cache_requests = families.counters(def(
            "scheduler_volume_binder_cache_requests_total",
            "Total number for request volume binding cache",
            ALPHA,
            ["operation"],
        ))?;
        let volume_stage_errors = families.counters(def(
            "scheduler_volume_scheduling_stage_error_total",
            "Volume scheduling stage error count",
            ALPHA,
            ["operation"],
        ))?;

        let on = if is_on("SchedulerAsyncPreemption") { &mut *families } else { &mut hidden };
        let preemption_duration = on.histograms(
            def(
                "scheduler_preemption_goroutines_duration_seconds",
                "Duration in seconds for running goroutines for the preemption.",
                ALPHA,
                ["result"],
            ),
            exponential(0.01, 2.0, 20),
        )?;
        let preemption_executions = on.counters(def(
            "scheduler_preemption_goroutines_execution_total",
            "Number of preemption goroutines executed.",
            ALPHA,
            ["result"],
        ))?;
        let on = if is_on("SchedulerAsyncAPICalls") { &mut *families } else { &mut hidden };
        let api_calls = on.counters(def(
            "scheduler_async_api_call_execution_total",
            "Total number of API calls executed by the async dispatcher.",
            ALPHA,
            ["call_type", "result"],
        ))?;
        let api_call_duration = on.histograms(
            def(
                "scheduler_async_api_call_execution_duration_seconds",
                "Duration in seconds for executing API call in the async dispatcher.",
                ALPHA,
                ["call_type", "result"],
            ),
            long(),
        )?;
        let api_calls_pending = on.gauges(def(
            "scheduler_pending_async_api_calls",
            "Number of API calls currently pending in the async queue.",
            ALPHA,
            ["call_type"],
        ))?;
        let on = if is_on("DRAExtendedResource") { &mut *families } else { &mut hidden };
        let claim_creates = on.counters(def(
            "scheduler_resourceclaim_creates_total",
            "Number of ResourceClaims creation requests within scheduler",
            ALPHA,
            ["status"],
        ))?;
        let on = if is_on("DRADeviceBindingConditions") { &mut *families } else { &mut hidden };
        let binding_condition_allocations = on.counters(def("scheduler_dra_bindingconditions_allocations_total", "Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt", ALPHA, ["profile", "driver", "status"]))?;
        let binding_condition_wait = on.histograms(def("scheduler_dra_bindingconditions_wait_duration_seconds", "Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.", ALPHA, ["profile", "driver", "status"]), exponential(0.1, 2.0, 14))?;
        let on = if is_on("GenericWorkload") { &mut *families } else { &mut hidden };
        let group_attempts = on.counters(def("scheduler_podgroup_schedule_attempts_total", "Number of attempts to schedule pod group, by the result. 'unschedulable' means a pod group could not be scheduled, while 'error' means an internal scheduler problem.", ALPHA, ["result", "profile"]))?;
        let group_attempt_duration = on.histograms(
            def(
                "scheduler_podgroup_scheduling_attempt_duration_seconds",
                "Pod group scheduling attempt latency in seconds (scheduling algorithm + binding)",
                ALPHA,
                ["result", "profile"],
            ),
            long(),
        )?;
        let group_algorithm_duration = on.histogram(
            def(
                "scheduler_podgroup_scheduling_algorithm_duration_seconds",
                "Pod group scheduling algorithm latency in seconds",
                ALPHA,
                [],
            ),
            long(),
        )?;
        Ok(SchedulerMetrics {
            schedule_attempts,
            attempt_duration,
            algorithm_duration,
            sli_duration,
            scheduling_attempts,
            scheduled_after_flush,
            extension_point_duration,
            plugin_duration,
            plugin_evaluations,
            queue_incoming,
            pending,
            unschedulable,
            event_duration,
            hint_duration,
            inflight,
            permit_wait,
            goroutines,
            cache_size,
            preemption_attempts,
            preemption_victims,
            preemption_duration,
            preemption_executions,
            batch_attempts,
            batch_flushes,
            node_hint_duration,
            store_results_duration,
            api_calls,
            api_call_duration,
            api_calls_pending,
            claim_creates,
            binding_condition_allocations,
            binding_condition_wait,
            group_attempts,
            group_attempt_duration,
            group_algorithm_duration,
            binder_cache_requests,
            volume_stage_errors,
        })
    }

    /// Gauges that upstream shows from the start, at zero.
    pub(super) fn before_showing(&self) {
        Queue::ALL.iter().for_each(|queue| self.pending.add([queue.label()], 0.0));
        CacheKind::ALL.iter().for_each(|kind| self.cache_size.add([kind.label()], 0.0));
    }

    /// An attempt of a pod ended; both cycles together took `seconds`.
    pub fn attempt(&self, result: AttemptResult, profile: &str, seconds: f64) {
        self.schedule_attempts.inc([result.label(), profile]);
        self.attempt_duration.observe([result.label(), profile], seconds);
    }

    /// The part of a scheduling cycle that looks for a node took `seconds`.
    pub fn algorithm(&self, seconds: f64) {
        self.algorithm_duration.observe(seconds);
    }

    /// How many decisions there were, and how many seconds they took in all.
    pub fn decisions(&self) -> (u64, f64) {
        let duration = &self.algorithm_duration;
        (duration.get_sample_count(), duration.get_sample_sum())
    }

    /// A pod was bound at its attempt number `attempts`, `seconds` after it first was in the queue.
    pub fn scheduled(&self, attempts: u32, seconds: f64) {
        let label = if attempts >= ATTEMPTS_MAX { "15+".to_owned() } else { attempts.to_string() };
        self.sli_duration.observe([&label], seconds);
        self.scheduling_attempts.observe(f64::from(attempts));
    }

    /// A pod was bound that only the flush of unschedulablePods had brought back.
    pub fn scheduled_after_flush(&self) {
        self.scheduled_after_flush.inc();
    }

    /// All plugins of an extension point took `seconds`; `status` is a code's name.
    pub fn extension_point(&self, point: &str, status: &str, profile: &str, seconds: f64) {
        self.extension_point_duration.observe([point, status, profile], seconds);
    }

    /// One plugin took `seconds` at an extension point.
    pub fn plugin(&self, plugin: &str, point: &str, status: &str, seconds: f64) {
        self.plugin_duration.observe([plugin, point, status], seconds);
    }

    /// A plugin took part in `n` attempts; with 0 it is shown from the start, as upstream does.
    pub fn plugin_evaluations(&self, plugin: &str, point: PluginPoint, profile: &str, n: u64) {
        self.plugin_evaluations.add([plugin, point.label(), profile], n);
    }

    /// `n` pods came into a queue because of an event.
    pub fn queue_incoming(&self, queue: Queue, event: &str, n: u64) {
        self.queue_incoming.add([queue.label(), event], n);
    }

    /// So many pods are in a queue.
    pub fn set_pending(&self, queue: Queue, n_pods: usize) {
        self.pending.set([queue.label()], n_pods as f64);
    }

    /// Because of a plugin, so many more (or fewer) pods are unschedulable.
    pub fn add_unschedulable(&self, plugin: &str, profile: &str, difference: i64) {
        self.unschedulable.add([plugin, profile], difference as f64);
    }

    /// Handling an event of the API server took `seconds`.
    pub fn event_handled(&self, event: &str, seconds: f64) {
        self.event_duration.observe([event], seconds);
    }

    /// A plugin's hint took `seconds` and said `Queue`, `QueueSkip` or `Error`.
    pub fn hint(&self, plugin: &str, event: &str, hint: &str, seconds: f64) {
        self.hint_duration.observe([plugin, event, hint], seconds);
    }

    /// So many events of a kind are kept for pods in flight; `PodPopped` counts those pods.
    pub fn set_inflight_events(&self, event: &str, n: usize) {
        self.inflight.set([event], n as f64);
    }

    /// A pod waited `seconds` at Permit; `result` is a code's name.
    pub fn permit_waited(&self, result: &str, seconds: f64) {
        self.permit_wait.observe([result], seconds);
    }

    /// So much more (or less) of a kind of work is under way: `binding` counts binding cycles. There
    /// are no goroutines here; the metric keeps its name and its meaning.
    pub fn add_work(&self, operation: &str, difference: i64) {
        self.goroutines.add([operation], difference as f64);
    }

    /// So much is in the cache.
    pub fn set_cache_size(&self, kind: CacheKind, n: usize) {
        self.cache_size.set([kind.label()], n as f64);
    }

    /// A preemption was tried.
    pub fn preemption_attempt(&self) {
        self.preemption_attempts.inc();
    }

    /// A preemption chose so many victims.
    pub fn preemption_victims(&self, n_victims: usize) {
        self.preemption_victims.observe(n_victims as f64);
    }

    /// Evicting the victims of one preemptor ended after `seconds`.
    pub fn preemption_executed(&self, result: ApiCallResult, seconds: f64) {
        self.preemption_executions.inc([result.label()]);
        self.preemption_duration.observe([result.label()], seconds);
    }

    /// A decision did or did not use the one before: `no_hint`, `hint_used`, `hint_not_used`.
    pub fn batch_attempt(&self, profile: &str, result: &str) {
        self.batch_attempts.inc([profile, result]);
    }

    /// What was kept for pods alike was dropped.
    pub fn batch_flushed(&self, profile: &str, reason: &str) {
        self.batch_flushes.inc([profile, reason]);
    }

    /// Looking for the kept node took `seconds`.
    pub fn node_hint(&self, was_found: bool, profile: &str, seconds: f64) {
        let hinted = if was_found { "hint" } else { "no_hint" };
        self.node_hint_duration.observe([hinted, profile], seconds);
    }

    /// Keeping the nodes for pods alike took `seconds`.
    pub fn results_stored(&self, profile: &str, seconds: f64) {
        self.store_results_duration.observe([profile], seconds);
    }

    /// A call to the API server ended after `seconds`; `call` is `pod_binding`, `pod_status_patch` ...
    pub fn api_call(&self, call: &str, result: ApiCallResult, seconds: f64) {
        self.api_calls.inc([call, result.label()]);
        self.api_call_duration.observe([call, result.label()], seconds);
    }

    /// So many calls wait.
    pub fn set_pending_api_calls(&self, call: &str, n: usize) {
        self.api_calls_pending.set([call], n as f64);
    }

    /// A ResourceClaim was created, or not.
    pub fn claim_created(&self, result: ApiCallResult) {
        let status = match result {
            ApiCallResult::Success => "success",
            ApiCallResult::Error => "failure",
        };
        self.claim_creates.inc([status]);
    }

    /// Binding conditions of a driver's devices were waited for; `status` is `success`, `failure`,
    /// `timeout` or `error`.
    pub fn binding_conditions(&self, profile: &str, driver: &str, status: &str, seconds: f64) {
        self.binding_condition_allocations.inc([profile, driver, status]);
        self.binding_condition_wait.observe([profile, driver, status], seconds);
    }

    /// An attempt of a pod group ended.
    pub fn group_attempt(&self, result: AttemptResult, profile: &str, seconds: f64) {
        self.group_attempts.inc([result.label(), profile]);
        self.group_attempt_duration.observe([result.label(), profile], seconds);
    }

    /// Looking for the nodes of a pod group took `seconds`.
    pub fn group_algorithm(&self, seconds: f64) {
        self.group_algorithm_duration.observe(seconds);
    }

    /// The cache of volume bindings was asked or changed.
    pub fn volume_binder_request(&self, operation: &str) {
        self.binder_cache_requests.inc([operation]);
    }

    /// A stage of volume scheduling failed.
    pub fn volume_stage_error(&self, operation: &str) {
        self.volume_stage_errors.inc([operation]);
    }
}
