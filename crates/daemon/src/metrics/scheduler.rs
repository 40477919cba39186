//! Metrics of the scheduler. From upstream's `pkg/scheduler/metrics`, 1.36.

mod definitions;

use prometheus::{Error, Histogram};

use super::family::{Counters, Families, Gauges, Histograms, UnlabeledCounter, exponential};
use super::labels::{ApiCallResult, AttemptResult, CacheKind, EvaluatedExtensionPoint, QueueLabel};

/// Attempts from this number on have the same label value.
const ATTEMPTS_MAX: u32 = 15;

/// The metrics of the scheduler. Durations are in seconds.
pub struct SchedulerMetrics {
    schedule_attempts: Counters<2>,
    attempt_duration: Histograms<2>,
    algorithm_duration: Histogram,
    sli_duration: Histograms<1>,
    scheduling_attempts: Histogram,
    scheduled_after_flush: UnlabeledCounter,
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
    preemption_attempts: UnlabeledCounter,
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

/// Creates metrics; those of disabled feature gates are not shown.
struct GatedFamilies<'a, F> {
    shown: &'a mut Families,
    hidden: Families,
    is_on: F,
}

impl<F: Fn(&str) -> bool> GatedFamilies<'_, F> {
    fn gate(&mut self, gate: &str) -> &mut Families {
        if (self.is_on)(gate) { self.shown } else { &mut self.hidden }
    }
}

impl SchedulerMetrics {
    pub(super) fn new(
        families: &mut Families,
        is_on: impl Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let mut to = GatedFamilies { hidden: families.empty_copy(), shown: families, is_on };
        let long = || exponential(0.001, 2.0, 15);
        let short = || exponential(0.0001, 2.0, 12);
        let fine = || exponential(0.00001, 1.5, 20);
        let tiny = || exponential(0.00001, 2.0, 12);
        let wide = || exponential(0.01, 2.0, 20);
        let counts = |n| exponential(1.0, 2.0, n);
        Ok(SchedulerMetrics {
            schedule_attempts: to.shown.counters(definitions::SCHEDULE_ATTEMPTS)?,
            attempt_duration: to.shown.histograms(definitions::ATTEMPT_DURATION, long())?,
            algorithm_duration: to.shown.histogram(definitions::ALGORITHM_DURATION, long())?,
            sli_duration: to.shown.histograms(definitions::SLI_DURATION, wide())?,
            scheduling_attempts: to.shown.histogram(definitions::SCHEDULING_ATTEMPTS, counts(5))?,
            scheduled_after_flush: to
                .shown
                .unlabeled_counter(definitions::SCHEDULED_AFTER_FLUSH)?,
            extension_point_duration: to
                .shown
                .histograms(definitions::EXTENSION_POINT_DURATION, short())?,
            plugin_duration: to.shown.histograms(definitions::PLUGIN_DURATION, fine())?,
            plugin_evaluations: to.shown.counters(definitions::PLUGIN_EVALUATIONS)?,
            queue_incoming: to.shown.counters(definitions::QUEUE_INCOMING)?,
            pending: to.shown.gauges(definitions::PENDING)?,
            unschedulable: to.shown.gauges(definitions::UNSCHEDULABLE)?,
            event_duration: to.shown.histograms(definitions::EVENT_DURATION, short())?,
            hint_duration: to.shown.histograms(definitions::HINT_DURATION, fine())?,
            inflight: to.shown.gauges(definitions::INFLIGHT)?,
            permit_wait: to.shown.histograms(definitions::PERMIT_WAIT, long())?,
            goroutines: to.shown.gauges(definitions::GOROUTINES)?,
            cache_size: to.shown.gauges(definitions::CACHE_SIZE)?,
            preemption_attempts: to.shown.unlabeled_counter(definitions::PREEMPTION_ATTEMPTS)?,
            preemption_victims: to.shown.histogram(definitions::PREEMPTION_VICTIMS, counts(7))?,
            preemption_duration: to
                .gate("SchedulerAsyncPreemption")
                .histograms(definitions::PREEMPTION_DURATION, wide())?,
            preemption_executions: to
                .gate("SchedulerAsyncPreemption")
                .counters(definitions::PREEMPTION_EXECUTIONS)?,
            batch_attempts: to.shown.counters(definitions::BATCH_ATTEMPTS)?,
            batch_flushes: to.shown.counters(definitions::BATCH_FLUSHES)?,
            node_hint_duration: to.shown.histograms(definitions::NODE_HINT_DURATION, tiny())?,
            store_results_duration: to
                .shown
                .histograms(definitions::STORE_RESULTS_DURATION, tiny())?,
            api_calls: to.gate("SchedulerAsyncAPICalls").counters(definitions::API_CALLS)?,
            api_call_duration: to
                .gate("SchedulerAsyncAPICalls")
                .histograms(definitions::API_CALL_DURATION, long())?,
            api_calls_pending: to
                .gate("SchedulerAsyncAPICalls")
                .gauges(definitions::API_CALLS_PENDING)?,
            claim_creates: to.gate("DRAExtendedResource").counters(definitions::CLAIM_CREATES)?,
            binding_condition_allocations: to
                .gate("DRADeviceBindingConditions")
                .counters(definitions::BINDING_CONDITION_ALLOCATIONS)?,
            binding_condition_wait: to
                .gate("DRADeviceBindingConditions")
                .histograms(definitions::BINDING_CONDITION_WAIT, exponential(0.1, 2.0, 14))?,
            group_attempts: to.gate("GenericWorkload").counters(definitions::GROUP_ATTEMPTS)?,
            group_attempt_duration: to
                .gate("GenericWorkload")
                .histograms(definitions::GROUP_ATTEMPT_DURATION, long())?,
            group_algorithm_duration: to
                .gate("GenericWorkload")
                .histogram(definitions::GROUP_ALGORITHM_DURATION, long())?,
            binder_cache_requests: to.shown.counters(definitions::BINDER_CACHE_REQUESTS)?,
            volume_stage_errors: to.shown.counters(definitions::VOLUME_STAGE_ERRORS)?,
        })
    }

    /// Initializes gauges that upstream shows from the start, with zero.
    pub(super) fn init_gauges(&self) {
        QueueLabel::ALL.iter().for_each(|queue| self.pending.add([queue.label()], 0.0));
        CacheKind::ALL.iter().for_each(|kind| self.cache_size.add([kind.label()], 0.0));
    }

    /// An attempt of a pod ended; both cycles together took `seconds`.
    pub fn scheduling_attempt(&self, result: AttemptResult, profile: &str, seconds: f64) {
        self.schedule_attempts.inc([result.label(), profile]);
        self.attempt_duration.observe([result.label(), profile], seconds);
    }

    /// The scheduling algorithm of one scheduling cycle took `seconds`.
    pub fn algorithm_duration(&self, seconds: f64) {
        self.algorithm_duration.observe(seconds);
    }

    /// The number of decisions, and their total duration in seconds.
    pub fn decision_count_and_seconds(&self) -> (u64, f64) {
        let duration = &self.algorithm_duration;
        (duration.get_sample_count(), duration.get_sample_sum())
    }

    /// A pod was bound after this number of attempts, `seconds` after it was first added to the queue.
    pub fn pod_scheduled(&self, attempts: u32, seconds: f64) {
        let label = if attempts >= ATTEMPTS_MAX { "15+".to_owned() } else { attempts.to_string() };
        self.sli_duration.observe([&label], seconds);
        self.scheduling_attempts.observe(f64::from(attempts));
    }

    /// A pod was bound after it was moved by the flush of unschedulablePods.
    pub fn scheduled_after_flush(&self) {
        self.scheduled_after_flush.inc();
    }

    /// All plugins of an extension point took `seconds`; `status` is a code's name.
    pub fn extension_point_duration(&self, point: &str, status: &str, profile: &str, seconds: f64) {
        self.extension_point_duration.observe([point, status, profile], seconds);
    }

    /// One plugin took `seconds` at an extension point.
    pub fn plugin_duration(&self, plugin: &str, point: &str, status: &str, seconds: f64) {
        self.plugin_duration.observe([plugin, point, status], seconds);
    }

    /// A plugin was evaluated in `n` attempts; with 0 the series is shown from the start, as upstream.
    pub fn plugin_evaluations(
        &self,
        plugin: &str,
        point: EvaluatedExtensionPoint,
        profile: &str,
        n: u64,
    ) {
        self.plugin_evaluations.add([plugin, point.label(), profile], n);
    }

    /// `n` pods were added to a queue because of an event.
    pub fn queue_incoming(&self, queue: QueueLabel, event: &str, n: u64) {
        self.queue_incoming.add([queue.label(), event], n);
    }

    /// The number of pods in a queue.
    pub fn set_pending_pods(&self, queue: QueueLabel, n_pods: usize) {
        self.pending.set([queue.label()], n_pods as f64);
    }

    /// Changes the number of pods that are unschedulable because of a plugin.
    pub fn add_unschedulable_pods(&self, plugin: &str, profile: &str, difference: i64) {
        self.unschedulable.add([plugin, profile], difference as f64);
    }

    /// Handling an event of the API server took `seconds`.
    pub fn event_handled(&self, event: &str, seconds: f64) {
        self.event_duration.observe([event], seconds);
    }

    /// A plugin's QueueingHint took `seconds` and returned `Queue`, `QueueSkip` or `Error`.
    pub fn queueing_hint_duration(&self, plugin: &str, event: &str, hint: &str, seconds: f64) {
        self.hint_duration.observe([plugin, event, hint], seconds);
    }

    /// The number of in-flight events of a kind; `PodPopped` counts the in-flight pods.
    pub fn set_inflight_events(&self, event: &str, n: usize) {
        self.inflight.set([event], n as f64);
    }

    /// A pod waited `seconds` at Permit; `result` is a code's name.
    pub fn permit_waited(&self, result: &str, seconds: f64) {
        self.permit_wait.observe([result], seconds);
    }

    /// Changes the amount of concurrent work of a kind: `binding` counts binding cycles. There are no
    /// goroutines in Loadmaster; the metric keeps upstream's name and meaning.
    pub fn add_goroutines(&self, operation: &str, difference: i64) {
        self.goroutines.add([operation], difference as f64);
    }

    /// The number of cached items.
    pub fn set_cache_size(&self, kind: CacheKind, n: usize) {
        self.cache_size.set([kind.label()], n as f64);
    }

    /// Preemption was attempted.
    pub fn preemption_attempt(&self) {
        self.preemption_attempts.inc();
    }

    /// A preemption selected this number of victims.
    pub fn preemption_victims(&self, n_victims: usize) {
        self.preemption_victims.observe(n_victims as f64);
    }

    /// Evicting the victims of one preemptor ended after `seconds`.
    pub fn preemption_executed(&self, result: ApiCallResult, seconds: f64) {
        self.preemption_executions.inc([result.label()]);
        self.preemption_duration.observe([result.label()], seconds);
    }

    /// Whether a decision used the results of the one before: `no_hint`, `hint_used`, `hint_not_used`.
    pub fn batch_attempt(&self, profile: &str, result: &str) {
        self.batch_attempts.inc([profile, result]);
    }

    /// The cached results for equal pods were dropped.
    pub fn batch_flushed(&self, profile: &str, reason: &str) {
        self.batch_flushes.inc([profile, reason]);
    }

    /// Getting the node hint took `seconds`.
    pub fn node_hint_duration(&self, was_found: bool, profile: &str, seconds: f64) {
        let hinted = if was_found { "hint" } else { "no_hint" };
        self.node_hint_duration.observe([hinted, profile], seconds);
    }

    /// Storing the results for equal pods took `seconds`.
    pub fn results_stored(&self, profile: &str, seconds: f64) {
        self.store_results_duration.observe([profile], seconds);
    }

    /// A call to the API server ended after `seconds`; `call` is `pod_binding`, `pod_status_patch` ...
    pub fn api_call(&self, call: &str, result: ApiCallResult, seconds: f64) {
        self.api_calls.inc([call, result.label()]);
        self.api_call_duration.observe([call, result.label()], seconds);
    }

    /// The number of pending calls.
    pub fn set_pending_api_calls(&self, call: &str, n: usize) {
        self.api_calls_pending.set([call], n as f64);
    }

    /// Creating a ResourceClaim succeeded or failed.
    pub fn claim_created(&self, result: ApiCallResult) {
        let status = match result {
            ApiCallResult::Success => "success",
            ApiCallResult::Error => "failure",
        };
        self.claim_creates.inc([status]);
    }

    /// Waiting for the BindingConditions of a driver's devices ended; `status` is `success`, `failure`,
    /// `timeout` or `error`.
    pub fn binding_conditions_waited(
        &self,
        profile: &str,
        driver: &str,
        status: &str,
        seconds: f64,
    ) {
        self.binding_condition_allocations.inc([profile, driver, status]);
        self.binding_condition_wait.observe([profile, driver, status], seconds);
    }

    /// An attempt of a pod group ended.
    pub fn group_attempt(&self, result: AttemptResult, profile: &str, seconds: f64) {
        self.group_attempts.inc([result.label(), profile]);
        self.group_attempt_duration.observe([result.label(), profile], seconds);
    }

    /// The scheduling algorithm of a pod group took `seconds`.
    pub fn group_algorithm_duration(&self, seconds: f64) {
        self.group_algorithm_duration.observe(seconds);
    }

    /// The cache of volume bindings was read or changed.
    pub fn volume_binder_request(&self, operation: &str) {
        self.binder_cache_requests.inc([operation]);
    }

    /// A stage of volume scheduling failed.
    pub fn volume_stage_error(&self, operation: &str) {
        self.volume_stage_errors.inc([operation]);
    }
}
