//! Simulated kubelets and the controllers of kube-controller-manager, for clusters without machines. They work with the embedded API server and with a real
//! kube-apiserver, and are independent of the scheduler.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`kind`] | the built-in kinds: [`Kind`], [`Object`], [`Key`] |
//! | [`dynamic_kind`], [`served_kinds`] | other kinds, found by API discovery |
//! | [`cache`] | the objects that controllers read |
//! | [`request`] | their API requests, as values |
//! | [`controller`] | the trait [`Controller`] |
//! | [`runner`] | runs controllers: events in, requests out; no I/O |
//! | [`manager`] | all controllers of a cluster |
//! | [`driver`] | connects the runner to an API server: watches, connections, a clock |
//! | [`kubelet`] | simulated kubelets |
//! | [`csi`] | simulated CSI drivers |
//! | [`pod_group`] | PodGroups of scheduler-plugins |
//! | [`elastic_quota`] | ElasticQuotas of scheduler-plugins |
//!
//! A controller is a pure function from the cache to requests. The runner does the rest: it retries what failed,
//! and reconciles a key again only when the cache shows the controller's own writes.

pub mod cache;
pub mod controller;
pub mod csi;
pub mod driver;
pub mod dynamic_kind;
pub mod elastic_quota;
pub mod kind;
pub mod kubelet;
pub mod manager;
pub mod meta;
pub mod pod_group;
pub mod request;
pub mod runner;
pub mod served_kinds;

mod claim_events;
mod cron_job;
mod custom_resource;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoint_slice;
mod ephemeral_volume;
mod expectations;
mod garbage_collector;
mod history;
mod job;
mod namespace;
mod node_lifecycle;
mod node_matching;
mod persistent_volume;
mod replica_set;
mod resource_quota;
mod result_builder;
mod service_account;
mod stateful_set;
mod storage_objects;
mod storage_protection;
mod taint_eviction;
#[cfg(test)]
pub(crate) mod test_kubelet;
#[cfg(test)]
pub(crate) mod testkit;
mod work_queue;
mod workload;

pub use cache::{Cache, Store};
pub use controller::{Controller, ObjectChange, ReconcileResult};
pub use kind::{Key, Kind, Object, Typed};
pub use request::{ControllerRequest, ControllerResponse, DeleteOptions, Patch};
pub use runner::ControllerRunner;
