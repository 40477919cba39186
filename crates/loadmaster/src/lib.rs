//! Loadmaster: a Kubernetes scheduler, and what a plugin author depends on.
//!
//! A program with plugins of its own is five lines. It has the whole command line, with the plugins registered beside the in-tree
//! ones, so that configurations may name them:
//!
//! ```no_run
//! use std::process::ExitCode;
//! # mod my_plugin {
//! #     use loadmaster::framework::*;
//! #     fn build(_: &mut Points, _: &loadmaster::serde_json::Value) -> Result<(), PluginError> { Ok(()) }
//! #     pub const DEF: PluginDef = PluginDef { name: "MyPlugin", build, args: None };
//! # }
//! fn main() -> ExitCode {
//!     loadmaster::SchedulerCommand::new().with_plugin(my_plugin::DEF).run()
//! }
//! ```
//!
//! | module | what a plugin file takes from it |
//! | --- | --- |
//! | [`framework`] | extension points, results, the view of nodes and pods, custom resources, events and hints, arguments |
//! | [`testkit`] | builders of nodes and pods, a bench for one plugin, a whole cluster in memory |
//! | [`service`] | what a task beside the scheduler can do ([`SchedulerCommand::with_service`]) |
//! | [`api`] | Kubernetes objects as the scheduler keeps them, quantities, label selectors |
//! | [`serde_json`] | `Value`, in which arguments arrive |

#![warn(missing_docs)]

mod apiserver;
mod command;
mod config_check;
mod embedded;
mod exit;
mod explain;
mod input;
mod kubelets;
mod replay;
mod run;
mod simulate;
mod terminal;
pub mod testkit;
mod text;
mod up;

pub use command::SchedulerCommand;

pub use loadmaster_api as api;
pub use loadmaster_daemon::run::service;
pub use loadmaster_framework as framework;
pub use serde_json;
