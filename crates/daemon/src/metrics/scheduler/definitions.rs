//! Definitions of the scheduler's metrics: names, help texts and labels.

use crate::metrics::family::{ALPHA, BETA, MetricDef, STABLE, def};

pub(super) const SCHEDULE_ATTEMPTS: MetricDef<2> = def(
    "scheduler_schedule_attempts_total",
    "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
    STABLE,
    ["result", "profile"],
);
pub(super) const ATTEMPT_DURATION: MetricDef<2> = def(
    "scheduler_scheduling_attempt_duration_seconds",
    "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
    STABLE,
    ["result", "profile"],
);
pub(super) const ALGORITHM_DURATION: MetricDef<0> = def(
    "scheduler_scheduling_algorithm_duration_seconds",
    "Scheduling algorithm latency in seconds",
    ALPHA,
    [],
);
pub(super) const EVENT_DURATION: MetricDef<1> = def(
    "scheduler_event_handling_duration_seconds",
    "Event handling latency in seconds.",
    ALPHA,
    ["event"],
);
pub(super) const PREEMPTION_VICTIMS: MetricDef<0> =
    def("scheduler_preemption_victims", "Number of selected preemption victims", STABLE, []);
pub(super) const PREEMPTION_ATTEMPTS: MetricDef<0> = def(
    "scheduler_preemption_attempts_total",
    "Total preemption attempts in the cluster till now",
    STABLE,
    [],
);
pub(super) const PENDING: MetricDef<1> = def(
    "scheduler_pending_pods",
    "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.",
    STABLE,
    ["queue"],
);
pub(super) const INFLIGHT: MetricDef<1> = def(
    "scheduler_inflight_events",
    "Number of events currently tracked in the scheduling queue.",
    ALPHA,
    ["event"],
);
pub(super) const GOROUTINES: MetricDef<1> = def(
    "scheduler_goroutines",
    "Number of running goroutines split by the work they do such as binding.",
    BETA,
    ["operation"],
);
pub(super) const BATCH_ATTEMPTS: MetricDef<2> = def(
    "scheduler_batch_attempts_total",
    "Counts of results when we attempt to use batching.",
    ALPHA,
    ["profile", "result"],
);
pub(super) const BATCH_FLUSHES: MetricDef<2> = def(
    "scheduler_batch_cache_flushed_total",
    "Counts of cache flushes by reason.",
    ALPHA,
    ["profile", "reason"],
);
pub(super) const SLI_DURATION: MetricDef<1> = def(
    "scheduler_pod_scheduling_sli_duration_seconds",
    "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.",
    BETA,
    ["attempts"],
);
pub(super) const SCHEDULING_ATTEMPTS: MetricDef<0> = def(
    "scheduler_pod_scheduling_attempts",
    "Number of attempts to successfully schedule a pod.",
    STABLE,
    [],
);
pub(super) const SCHEDULED_AFTER_FLUSH: MetricDef<0> = def(
    "scheduler_pod_scheduled_after_flush_total",
    "Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout. This metric helps detect potential queueing hint misconfigurations or event handling issues.",
    ALPHA,
    [],
);
pub(super) const EXTENSION_POINT_DURATION: MetricDef<3> = def(
    "scheduler_framework_extension_point_duration_seconds",
    "Latency for running all plugins of a specific extension point.",
    STABLE,
    ["extension_point", "status", "profile"],
);
pub(super) const PLUGIN_DURATION: MetricDef<3> = def(
    "scheduler_plugin_execution_duration_seconds",
    "Duration for running a plugin at a specific extension point.",
    ALPHA,
    ["plugin", "extension_point", "status"],
);
pub(super) const HINT_DURATION: MetricDef<3> = def(
    "scheduler_queueing_hint_execution_duration_seconds",
    "Duration for running a queueing hint function of a plugin.",
    ALPHA,
    ["plugin", "event", "hint"],
);
pub(super) const QUEUE_INCOMING: MetricDef<2> = def(
    "scheduler_queue_incoming_pods_total",
    "Number of pods added to scheduling queues by event and queue type.",
    STABLE,
    ["queue", "event"],
);
pub(super) const PERMIT_WAIT: MetricDef<1> = def(
    "scheduler_permit_wait_duration_seconds",
    "Duration of waiting on permit.",
    BETA,
    ["result"],
);
pub(super) const CACHE_SIZE: MetricDef<1> = def(
    "scheduler_cache_size",
    "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
    ALPHA,
    ["type"],
);
pub(super) const UNSCHEDULABLE: MetricDef<2> = def(
    "scheduler_unschedulable_pods",
    "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
    BETA,
    ["plugin", "profile"],
);
pub(super) const PLUGIN_EVALUATIONS: MetricDef<3> = def(
    "scheduler_plugin_evaluation_total",
    "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).",
    BETA,
    ["plugin", "extension_point", "profile"],
);
pub(super) const NODE_HINT_DURATION: MetricDef<2> = def(
    "scheduler_get_node_hint_duration_seconds",
    "Latency for getting a node hint.",
    ALPHA,
    ["hinted", "profile"],
);
pub(super) const STORE_RESULTS_DURATION: MetricDef<1> = def(
    "scheduler_store_schedule_results_duration_seconds",
    "Latency for getting a no.",
    ALPHA,
    ["profile"],
);
pub(super) const BINDER_CACHE_REQUESTS: MetricDef<1> = def(
    "scheduler_volume_binder_cache_requests_total",
    "Total number for request volume binding cache",
    ALPHA,
    ["operation"],
);
pub(super) const VOLUME_STAGE_ERRORS: MetricDef<1> = def(
    "scheduler_volume_scheduling_stage_error_total",
    "Volume scheduling stage error count",
    ALPHA,
    ["operation"],
);
pub(super) const PREEMPTION_DURATION: MetricDef<1> = def(
    "scheduler_preemption_goroutines_duration_seconds",
    "Duration in seconds for running goroutines for the preemption.",
    ALPHA,
    ["result"],
);
pub(super) const PREEMPTION_EXECUTIONS: MetricDef<1> = def(
    "scheduler_preemption_goroutines_execution_total",
    "Number of preemption goroutines executed.",
    ALPHA,
    ["result"],
);
pub(super) const API_CALLS: MetricDef<2> = def(
    "scheduler_async_api_call_execution_total",
    "Total number of API calls executed by the async dispatcher.",
    ALPHA,
    ["call_type", "result"],
);
pub(super) const API_CALL_DURATION: MetricDef<2> = def(
    "scheduler_async_api_call_execution_duration_seconds",
    "Duration in seconds for executing API call in the async dispatcher.",
    ALPHA,
    ["call_type", "result"],
);
pub(super) const API_CALLS_PENDING: MetricDef<1> = def(
    "scheduler_pending_async_api_calls",
    "Number of API calls currently pending in the async queue.",
    ALPHA,
    ["call_type"],
);
pub(super) const CLAIM_CREATES: MetricDef<1> = def(
    "scheduler_resourceclaim_creates_total",
    "Number of ResourceClaims creation requests within scheduler",
    ALPHA,
    ["status"],
);
pub(super) const BINDING_CONDITION_ALLOCATIONS: MetricDef<3> = def(
    "scheduler_dra_bindingconditions_allocations_total",
    "Number of allocations using devices with BindingConditions, counted per driver per scheduling attempt",
    ALPHA,
    ["profile", "driver", "status"],
);
pub(super) const BINDING_CONDITION_WAIT: MetricDef<3> = def(
    "scheduler_dra_bindingconditions_wait_duration_seconds",
    "Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
    ALPHA,
    ["profile", "driver", "status"],
);
pub(super) const GROUP_ATTEMPTS: MetricDef<2> = def(
    "scheduler_podgroup_schedule_attempts_total",
    "Number of attempts to schedule pod group, by the result. 'unschedulable' means a pod group could not be scheduled, while 'error' means an internal scheduler problem.",
    ALPHA,
    ["result", "profile"],
);
pub(super) const GROUP_ATTEMPT_DURATION: MetricDef<2> = def(
    "scheduler_podgroup_scheduling_attempt_duration_seconds",
    "Pod group scheduling attempt latency in seconds (scheduling algorithm + binding)",
    ALPHA,
    ["result", "profile"],
);
pub(super) const GROUP_ALGORITHM_DURATION: MetricDef<0> = def(
    "scheduler_podgroup_scheduling_algorithm_duration_seconds",
    "Pod group scheduling algorithm latency in seconds",
    ALPHA,
    [],
);
