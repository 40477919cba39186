//! Worlds to try things in: generated cases, scenarios, and clusters that misbehave.

pub mod cases;
pub mod every_eviction;
pub mod load;
pub mod scenario;
pub mod simulate;
pub mod truth;
pub mod twin;
