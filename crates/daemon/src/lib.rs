//! A scheduler that runs as a daemon: flags, endpoints, metrics, logs, and [`run`], which puts them around the engine.
//!
//! ```text
//! argv ─flags::parse─► Options ─load─► Loaded (configuration, profiles, gates)
//!   │                     │               │
//!   └─prepare─► Plan ─begin─► Ready (logs, metrics) ─► serve::start(.., Parts) ─► HTTPS
//! ```
//!
//! Only [`run`] knows the engine and the client. The rest takes closures and values
//! ([`serve::Parts`], [`serve::Api`], [`metrics::Metrics`]). Read in this order: [`flags`],
//! [`Options::load`](flags::Options::load), [`prepare`], [`run`], [`serve`], [`metrics`], [`logs`].

pub mod flags;
mod load;
pub mod logs;
pub mod metrics;
pub mod run;
pub mod serve;
mod startup;

pub use load::{LoadError, Loaded};
pub use startup::{Plan, Ready, Stop, is_kube_scheduler, prepare};
