//! Loadmaster: a Kubernetes scheduler, and the library for authors of out-of-tree plugins.
//!
//! A scheduler with out-of-tree plugins is five lines. It takes kube-scheduler's flags and has Loadmaster's commands, and configurations
//! can enable the plugins like in-tree plugins:
//!
//! ```no_run
//! use std::process::ExitCode;
//! # mod my_plugin {
//! #     use loadmaster::framework::*;
//! #     fn build(_: &mut ExtensionPoints, _: &loadmaster::serde_json::Value) -> Result<(), PluginError> { Ok(()) }
//! #     pub const DEF: PluginDef = PluginDef { name: "MyPlugin", build, args: None };
//! # }
//! fn main() -> ExitCode {
//!     loadmaster::SchedulerCommand::new()
//!         .with_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
//!         .with_plugin(my_plugin::DEF)
//!         .run()
//! }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`framework`] | extension points, results, views of nodes and pods, custom resources, cluster events and queueing hints, arguments |
//! | [`testkit`] | builders for nodes and pods, a test bench for one plugin, a simulated cluster |
//! | [`service`] | background services ([`SchedulerCommand::with_service`]) |
//! | [`kube`], [`k8s_openapi`] | re-exports: the API client of services ([`service::ServiceHandle::client`]) and the types of objects |
//! | [`tracing`] | re-export: log lines of services |
//! | [`api`] | Kubernetes objects as the scheduler stores them, quantities, label selectors |
//! | [`serde_json`] | re-export, for plugin arguments (`Value`) |
//!
//! Without the default feature `cluster` there are no commands `up`, `apiserver`, `kubelets`, `simulate` and `new`, and no [`testkit`]: such a
//! binary, as for an image, has no embedded API server and no simulator in it.

#![warn(missing_docs)]

#[cfg(feature = "cluster")]
mod apiserver;
mod cluster_client;
mod command;
mod completion;
mod config_check;
mod config_convert;
mod config_rbac;
mod controllers;
mod crds;
#[cfg(feature = "cluster")]
mod embedded;
mod exit;
mod explain;
mod help;
mod input;
#[cfg(feature = "cluster")]
mod kubelets;
mod manifest;
#[cfg(feature = "cluster")]
mod new_plugin;
mod replay;
mod run;
#[cfg(feature = "cluster")]
mod simulate;
mod terminal;
#[cfg(feature = "cluster")]
pub mod testkit;
mod text;
#[cfg(feature = "cluster")]
mod up;

pub use command::SchedulerCommand;

pub use loadmaster_api as api;
pub use loadmaster_client::{k8s_openapi, kube};
pub use loadmaster_daemon::run::service;
pub use loadmaster_framework as framework;
pub use serde_json;
pub use tracing;
