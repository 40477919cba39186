//! The engine: profiles, the evaluation of a pod against the world, the queue, and the cycles from one to the other.
//!
//! [`Engine`] is all of it; [`Scheduler`] decides single pods; [`evaluate`] answers about nodes, one by one as plugins are written and
//! incrementally as decisions are made.

pub mod diagnosis;
pub mod engine;
pub mod evaluate;
pub mod explain;
pub mod guard;
mod kept;
pub mod log;
mod pass;
pub mod profile;
pub mod queue;
pub mod scheduler;
pub mod search;
pub mod time;

pub use engine::{Effect, Effects, Engine, Event};
pub use evaluate::{Evaluation, NodeVerdict, Verdict};
pub use profile::{Profile, ProfileError};
pub use queue::Queue;
pub use scheduler::{Decision, Scheduler};
pub use time::{Mono, Now};
