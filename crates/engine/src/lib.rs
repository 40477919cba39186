//! Profiles, the scheduling queue, and the evaluation of a pod against the world: node by node as plugins are written, and
//! incrementally as decisions are made.

pub mod diagnosis;
pub mod evaluate;
pub mod explain;
mod kept;
mod pass;
pub mod profile;
pub mod queue;
pub mod scheduler;
pub mod time;

pub use evaluate::{Evaluation, NodeVerdict, Verdict};
pub use profile::{Profile, ProfileError};
pub use queue::Queue;
pub use scheduler::{Decision, Scheduler};
pub use time::{Mono, Now};
