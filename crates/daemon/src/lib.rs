//! What a scheduler that runs as a daemon shows of itself: flags, endpoints, metrics, logs.
//!
//! ```text
//! argv ─flags::parse─► Options ─load─► Loaded (configuration, profiles, gates)
//!   │                     │               │
//!   └─prepare─► Plan ─begin─► Ready (logs, metrics) ─► serve::start(.., Parts) ─► HTTPS
//! ```
//!
//! Nothing here schedules and nothing talks to the API server: what does, hands in closures and
//! values ([`serve::Parts`], [`serve::Api`], [`metrics::Metrics`]). Read in this order: [`flags`],
//! [`Options::load`](flags::Options::load), [`prepare`], [`serve`], [`metrics`], [`logs`].

pub mod flags;
mod load;
pub mod logs;
pub mod metrics;
pub mod serve;
mod startup;

pub use load::{LoadError, Loaded};
pub use startup::{Plan, Ready, Stop, is_kube_scheduler, prepare};
