//! The contract of plugin authors.
//!
//! Read in this order: [`points`] (what a plugin can take part in), [`registry`] (how it enters itself),
//! [`pod`] and [`node`] (what it sees), [`objects`] (custom resources and whatever else it watches), [`state`] (what it remembers),
//! [`event`] (what wakes its pods), [`waiting`] (acting on other pods), and, for plugins that want to be decided incrementally,
//! [`prepare`] and [`counter`]; for those that make room, [`preemption`].

#![warn(missing_docs)]

pub mod args;
pub mod cluster;
pub mod counter;
pub mod event;
pub mod gates;
pub mod label;
pub mod node;
pub mod objects;
pub mod pod;
pub mod points;
pub mod preemption;
pub mod prepare;
pub mod registry;
pub mod request;
pub mod requests;
pub mod resources;
pub mod result;
pub mod state;
pub mod table;
pub mod template;
pub mod testkit;
pub mod waiting;
pub mod world;

pub use args::FieldError;
pub use event::{Action, ClusterEvent, EventObject, EventResource, Hint, HintFn};
pub use gates::FeatureGates;
pub use node::{NodeInfo, Overlay};
pub use objects::{Gvr, ObjectChange, ObjectInfo, ObjectSlot, Objects, Presence};
pub use pod::{PodInfo, QueuedPodInfo};
pub use points::{
    Bind, Cx, Feasibility, Filter, NodeScore, ObjectEvents, Permit, PostBind, PostFilter,
    PostFiltered, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score, SerialCx,
    Sign, Unfit,
};
pub use prepare::{Prepare, Prepared, Run};
pub use registry::{Need, PluginDef, PluginError, Points, Registry};
pub use resources::Resources;
pub use result::{Code, Failure, Permitted, PreFiltered, PreScored, Reason, Rejection};
pub use state::{CycleState, PluginStates, Published, Slot, StateSlot};
pub use table::{NodeTable, Row};
pub use template::{PodTemplate, TemplateError};
pub use waiting::{PodEvent, WaitingPod};
pub use world::World;

pub use loadmaster_stdx::Rng;

/// Upper end of a plugin's score after normalisation (upstream's `MaxNodeScore`).
pub const MAX_NODE_SCORE: i64 = 100;
