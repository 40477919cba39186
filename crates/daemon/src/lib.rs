//! The scheduler process: flags, endpoints, metrics, logs, and [`run`], which connects them to the engine.
//!
//! ```text
//! argv ─flags::parse_flags─► Options ─load_config─► LoadedConfig (configuration, profiles, feature gates)
//!   │                           │                      │
//!   └─load_startup_config─► StartupConfig ─start_logging─► CompletedConfig (logs, metrics) ─► serve::start_server(.., EndpointsConfig) ─► HTTPS
//! ```
//!
//! Only [`run`] depends on the engine and the client. The rest takes closures and values
//! ([`serve::EndpointsConfig`], [`serve::ReviewClient`], [`metrics::Metrics`]). Read in this order: [`flags`],
//! [`Options::load_config`](flags::Options::load_config), [`load_startup_config`], [`run`], [`serve`], [`metrics`], [`logs`].

pub mod flags;
mod load_config;
pub mod logs;
pub mod metrics;
pub mod run;
pub mod serve;
mod startup;

pub use load_config::{LoadConfigError, LoadedConfig, ReadConfigMapError, ReadPolicyError};
pub use startup::{
    CompletedConfig, EarlyExit, StartupConfig, load_startup_config, load_startup_config_or,
};
