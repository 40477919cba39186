//! The engine: profiles, the scheduling queue, scheduling and binding cycles, and the evaluation of pods.
//!
//! [`Engine`] is the whole scheduler as a state machine without I/O; [`Scheduler`] selects the node of a single pod; [`evaluate`]
//! filters and scores nodes, per node and incrementally.

mod combination_id;
pub mod counterfactual;
mod decision;
pub mod diagnosis;
pub mod engine;
pub mod evaluate;
pub(crate) mod evaluation_cache;
pub mod explain;
mod full_scan;
pub mod guard;
mod node_rejections;
pub mod node_sampling;
mod plugin_events;
pub mod profile;
pub mod queue;
pub mod recording;
mod row_names;
pub mod scheduler;
mod score_index;
pub mod world_loader;

pub use loadmaster_framework::time;

pub use decision::Decision;
pub use engine::{Effect, Effects, Engine, EngineEvent};
pub use evaluate::{Evaluation, FilterResult, NodeEvaluation};
pub use plugin_events::states_from_world;
pub use profile::Profile;
pub use queue::Queue;
pub use scheduler::Scheduler;
pub use time::{MonoTime, Now};
