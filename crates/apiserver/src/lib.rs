//! An embedded Kubernetes API server for kubectl, client libraries and schedulers, in the process.
//!
//! Four parts, each usable without the next:
//!
//! | part | what it is |
//! | --- | --- |
//! | [`store`] | objects in a multi-version log: pure, synchronous, without a clock |
//! | [`ApiServer`] | the API over the store: a request and a user in, a response out; the clock and the seed are given |
//! | [`journal`] | the store's changes on disk, optional |
//! | [`http`] | sockets, TLS, authentication |
//!
//! [`schema`] is a table of facts about Kubernetes' types; decoding, protobuf, patches, OpenAPI and discovery all read it.

pub mod audit;
pub mod authentication;
pub mod authorization;
pub mod fault_injection;
pub mod http;
pub mod journal;
pub mod kubeconfig;
pub mod managed_fields;
pub mod protobuf;
pub mod request;
pub mod schema;
pub mod selector;
pub mod status;
pub mod store;

mod custom_resource;
pub mod defaults;
mod discovery;
mod event_conversion;
mod object;
mod openapi;
mod server;
mod strategic_merge_patch;
mod strategy;
mod table;
mod validate;

pub use server::{
    AdmissionPlugins, ApiResponse, ApiServer, BODY_BYTES_MAX, Body, Clock, ClusterOptions,
    OpenError, Options,
};
