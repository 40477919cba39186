//! The values that absent fields of a configuration get, and the default plugins.

use crate::duration::Duration;

// From upstream's pkg/scheduler/apis/config/v1/defaults.go and
// component-base/config/v1alpha1/defaults.go, 1.36.
pub(crate) const PARALLELISM: i32 = 16;
pub(crate) const POD_INITIAL_BACKOFF_SECONDS: i64 = 1;
pub(crate) const POD_MAX_BACKOFF_SECONDS: i64 = 10;
pub(crate) const SCHEDULER_NAME: &str = "default-scheduler";
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
pub(crate) const RETRY_PERIOD: Duration = Duration::from_secs(2);
pub(crate) const RESOURCE_LOCK: &str = "leases";
pub(crate) const RESOURCE_NAME: &str = "kube-scheduler";
pub(crate) const RESOURCE_NAMESPACE: &str = "kube-system";
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const QPS: f32 = 50.0;
pub(crate) const BURST: i32 = 100;
/// Upstream sets it when it creates the extender, before it prints the configuration.
pub(crate) const EXTENDER_HTTP_TIMEOUT: Duration = Duration::from_secs(5);

const NODE_DECLARED_FEATURES: &str = "NodeDeclaredFeatures";
const GANG_SCHEDULING: &str = "GangScheduling";
const TOPOLOGY_AWARE: &str = "TopologyAwareWorkloadScheduling";

/// Gates that add default plugins.
pub(crate) const PLUGIN_GATES: &[&str] = &[NODE_DECLARED_FEATURES, GANG_SCHEDULING, TOPOLOGY_AWARE];

/// The default plugins with their weights, in order; 0 where none is given. DynamicResources comes
/// before DefaultPreemption: deallocating a claim of an idle pod is cheaper than evicting a pod. Its
/// gate is locked on.
pub(crate) const PLUGINS: &[(&str, i32)] = &[
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
];

/// Default plugins behind gates, appended in this order.
pub(crate) const GATED_PLUGINS: &[(&str, &str, i32)] = &[
    (NODE_DECLARED_FEATURES, "NodeDeclaredFeatures", 0),
    (GANG_SCHEDULING, "GangScheduling", 0),
    (TOPOLOGY_AWARE, "TopologyPlacementGenerator", 0),
    (TOPOLOGY_AWARE, "PodGroupPodsCount", 1),
];
