//! The scheduling framework: the API for plugin authors.
//!
//! Read in this order: [`extension_points`] (the traits a plugin implements), [`registry`] (how it is registered and built),
//! [`pod_info`] and [`node_info`] (what it reads), [`watched_objects`] (custom resources and other kinds that it watches),
//! [`pod_index`] (pods by label or controller), [`pod_sums`] (sums of pods by a key of the plugin's own), [`state`] (cycle state and state across cycles), [`cluster_event`] (cluster events and queueing hints), [`waiting_pods`]
//! (acting on other pods), [`plugin_log`] and [`plugin_metrics`] (what it shows), [`rbac`] (the permissions that it needs), and, for plugins with an incremental form, [`incremental`], [`label_classes`] and [`topology_counter`]; for plugins that
//! preempt, [`preemption`].

#![warn(missing_docs)]

pub mod affinity_terms;
pub mod api_calls;
mod claim_users;
pub mod cluster_event;
pub mod cluster_objects;
pub mod context;
mod errors;
mod event_resource;
pub mod extension_points;
pub mod feature_gates;
pub mod incremental;
pub mod label_classes;
pub mod label_columns;
pub mod node_amounts;
pub mod node_info;
mod node_row;
mod node_score;
pub mod node_table;
mod nodes_to_filter;
mod ongoing_preemptions;
pub mod plugin_args;
pub mod plugin_log;
pub mod plugin_metrics;
pub mod pod_index;
pub mod pod_info;
pub mod pod_requests;
pub mod pod_sums;
pub mod preemption;
mod preemption_candidate;
pub mod rbac;
pub mod registry;
pub mod resources;
pub mod result;
mod slots_by;
pub mod state;
pub mod template;
pub mod testkit;
pub mod time;
pub mod topology_counter;
mod victim_cache;
pub mod waiting_pods;
pub mod watched_objects;
pub mod world;

pub use claim_users::ClaimUser;
pub use cluster_event::{ActionType, ClusterEvent, EventObject, QueueingHint, QueueingHintFn};
pub use errors::{FieldError, PluginError};
pub use event_resource::EventResource;
pub use extension_points::{
    Bind, Cx, Detail, DetailValue, DryRunCx, Explain, Filter, FilterRunner, FitError, NodeChange,
    NodeEventHandler, ObjectEventHandler, Permit, PodChange, PodEventHandler, PostBind, PostFilter,
    PostFilterCx, PostFilterResult, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve,
    Score, SerialCx, Sign,
};
pub use feature_gates::FeatureGates;
pub use incremental::{
    AnyIncremental, EvaluatorCx, Incremental, PluginEvaluator, PrepareCx, PrepareResult,
};
pub use node_info::NodeInfo;
pub use node_row::NodeRow;
pub use node_score::{MAX_NODE_SCORE, NodeScore};
pub use node_table::NodeTable;
pub use nodes_to_filter::NodesToFilter;
pub use plugin_log::{PluginLogger, PodLogger};
pub use plugin_metrics::{PluginCounter, PluginGauge, PluginHistogram};
pub use pod_index::{IndexedPods, PodIndex, PodIndexKey};
pub use pod_info::{ClaimName, PodInfo, QueuedPodInfo};
pub use pod_sums::{NamespaceSums, NamespaceTotal, PodSum, PodSums};
pub use rbac::PolicyRule;
pub use registry::{
    BuiltPlugin, BuiltPlugins, ExtensionPoints, ExtraField, IgnoredArgument, PluginDef, Registry,
};
pub use resources::Resources;
pub use result::{Code, Failure, PermitResult, PreFilterResult, PreScoreResult, Reason, Rejection};
pub use state::{
    CycleState, CycleStateSlot, NodeStateSlot, PluginStateSlot, PluginStates, PublishedValueSlot,
};
pub use template::{PodTemplate, TemplateError};
pub use time::{MonoTime, Now};
pub use waiting_pods::{PodEventRecord, WaitingPod};
pub use watched_objects::{
    Gvr, ObjectChange, ObjectInfo, ObjectLister, ObjectSlot, WatchRequirement,
};
pub use world::World;

pub use loadmaster_stdx::Rng;
