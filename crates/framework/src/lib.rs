//! The scheduling framework: the API for plugin authors.
//!
//! Read in this order: [`extension_points`] (the traits a plugin implements), [`registry`] (how it is registered and built),
//! [`pod_info`] and [`node_info`] (what it reads), [`watched_objects`] (custom resources and other kinds that it watches),
//! [`state`] (cycle state and state across cycles), [`cluster_event`] (cluster events and queueing hints), [`waiting_pods`]
//! (acting on other pods), and, for plugins with an incremental form, [`incremental`] and [`topology_counter`]; for plugins that
//! preempt, [`preemption`].

#![warn(missing_docs)]

pub mod affinity_terms;
pub mod api_calls;
pub mod cluster_event;
pub mod cluster_objects;
pub mod extension_points;
pub mod feature_gates;
pub mod incremental;
pub mod label_columns;
pub mod node_info;
pub mod node_table;
pub mod plugin_args;
pub mod pod_info;
pub mod pod_requests;
pub mod preemption;
pub mod registry;
pub mod resources;
pub mod result;
pub mod state;
pub mod template;
pub mod testkit;
pub mod topology_counter;
pub mod waiting_pods;
pub mod watched_objects;
pub mod world;

pub use cluster_event::{
    ActionType, ClusterEvent, EventObject, EventResource, QueueingHint, QueueingHintFn,
};
pub use extension_points::{
    Bind, Cx, DryRunCx, Filter, FilterRunner, FitError, NodeScore, ObjectEventHandler, Permit,
    PostBind, PostFilter, PostFilterCx, PostFilterResult, PreBind, PreEnqueue, PreFilter, PreScore,
    QueueSort, Reserve, Score, SerialCx, Sign,
};
pub use feature_gates::FeatureGates;
pub use incremental::{
    AnyIncremental, EvaluatorCx, Incremental, PluginEvaluator, PrepareCx, PrepareResult,
};
pub use node_info::NodeInfo;
pub use node_table::{NodeRow, NodeTable};
pub use plugin_args::FieldError;
pub use pod_info::{PodInfo, QueuedPodInfo};
pub use registry::{ExtensionPoints, ExtraField, PluginDef, PluginError, Registry};
pub use resources::Resources;
pub use result::{Code, Failure, PermitResult, PreFilterResult, PreScoreResult, Reason, Rejection};
pub use state::{CycleState, CycleStateSlot, PluginStateSlot, PluginStates, PublishedValueSlot};
pub use template::{PodTemplate, TemplateError};
pub use waiting_pods::{PodEventRecord, WaitingPod};
pub use watched_objects::{
    Gvr, ObjectChange, ObjectInfo, ObjectLister, ObjectSlot, WatchRequirement,
};
pub use world::World;

pub use loadmaster_stdx::Rng;

/// The highest score of a node by one plugin, after NormalizeScore (upstream's `MaxNodeScore`).
pub const MAX_NODE_SCORE: i64 = 100;
