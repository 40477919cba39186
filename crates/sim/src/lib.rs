//! Worlds to try things in: generated cases, scenarios, and a cluster in memory.

pub mod cases;
pub mod cluster;
pub mod every_eviction;
pub mod load;
pub mod scenario;
pub mod simulate;
pub mod truth;
pub mod twin;
