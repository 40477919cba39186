//! Profiles, and the evaluation of a pod against the world: node by node as plugins are written, and incrementally as
//! decisions are made.

pub mod diagnosis;
pub mod evaluate;
pub mod explain;
mod kept;
mod pass;
pub mod profile;
pub mod scheduler;

pub use evaluate::{Evaluation, NodeVerdict, Verdict};
pub use profile::{Profile, ProfileError};
pub use scheduler::{Decision, Scheduler};
