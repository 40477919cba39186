//! The scheduler process: flags, endpoints, metrics, logs, and [`run`], which connects them to the engine.
//!
//! ```text
//! argv ─flags::parse─► Options ─load─► LoadedConfig (configuration, profiles, feature gates)
//!   │                     │               │
//!   └─prepare─► StartupConfig ─start_logging─► CompletedConfig (logs, metrics) ─► serve::start(.., EndpointsConfig) ─► HTTPS
//! ```
//!
//! Only [`run`] depends on the engine and the client. The rest takes closures and values
//! ([`serve::EndpointsConfig`], [`serve::ReviewClient`], [`metrics::Metrics`]). Read in this order: [`flags`],
//! [`Options::load`](flags::Options::load), [`prepare`], [`run`], [`serve`], [`metrics`], [`logs`].

pub mod flags;
mod load_config;
pub mod logs;
pub mod metrics;
pub mod run;
pub mod serve;
mod startup;

pub use load_config::{LoadConfigError, LoadedConfig};
pub use startup::{CompletedConfig, EarlyExit, StartupConfig, is_kube_scheduler, prepare};
