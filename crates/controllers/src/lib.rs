//! Fake kubelets, and small controllers: what makes a cluster without machines live. They serve the embedded API server as well as a real
//! kube-apiserver, and know no scheduler.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`kind`] | the kinds there are: [`Kind`], [`Object`], [`Key`] |
//! | [`other`], [`served`] | kinds beyond these: what a server's discovery tells |
//! | [`cache`] | what controllers see |
//! | [`request`] | what they ask for, as values |
//! | [`controller`] | what a controller is: [`Controller`] |
//! | [`runner`] | runs controllers: news in, requests out; pure |
//! | [`manager`] | all controllers of a cluster |
//! | [`driver`] | the same with watches, connections and a clock |
//! | [`kubelet`] | fake kubelets |
//!
//! A controller is a pure function from the cache to requests. All that makes controllers hard is in the runner: it repeats what failed,
//! and never lets a controller decide upon a cache that does not show the controller's own writes yet.

pub mod cache;
pub mod controller;
pub mod driver;
pub mod kind;
pub mod kubelet;
pub mod manager;
pub mod meta;
pub mod other;
pub mod request;
pub mod runner;
pub mod served;

mod cron_job;
mod daemon_set;
mod deployment;
mod disruption;
mod eviction;
mod expect;
mod garbage;
mod history;
mod job;
mod namespace;
mod node_lifecycle;
mod placement;
#[cfg(test)]
pub(crate) mod player;
mod protection;
mod queue;
mod quota;
mod replica_set;
mod service_account;
mod stateful_set;
#[cfg(test)]
pub(crate) mod testkit;
mod volume;
mod workload;
mod writes;

pub use cache::{Cache, Store};
pub use controller::{Change, Controller, Outcome};
pub use kind::{Key, Kind, Object, Typed};
pub use request::{Answer, DeleteOptions, Patch, Request};
pub use runner::Runner;
