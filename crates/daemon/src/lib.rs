//! What a scheduler that runs as a daemon shows of itself: flags, endpoints, metrics, logs.
//!
//! ```text
//! argv ─flags::parse─► Options ─load─► Loaded (configuration, profiles, gates)
//!                         │
//!                         └──► serve::start(.., Parts) ─► HTTPS: health, metrics, configz, statusz, flagz
//! ```
//!
//! Nothing here schedules and nothing talks to the API server: what does, hands in closures and
//! values ([`serve::Parts`], [`metrics::Metrics`], [`logs`]).

pub mod flags;
mod load;
pub mod logs;
pub mod metrics;
pub mod serve;

pub use load::{LoadError, Loaded};
