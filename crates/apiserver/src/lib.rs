//! An embedded Kubernetes API server: what kubectl, client libraries and schedulers talk to, in the process.
//!
//! Four parts, each usable without the next:
//!
//! | part | what it is |
//! | --- | --- |
//! | [`store`] | objects in a multi-version log: pure, synchronous, without a clock |
//! | [`ApiServer`] | the API over the store: a request and a user in, a response out; the clock and the seed are given |
//! | [`journal`] | the store's changes on disk, for those who want it |
//! | [`http`] | sockets, TLS, who is who |
//!
//! [`schema`] is a table of facts about Kubernetes' types; decoding, protobuf, patches, OpenAPI and discovery all read it.

pub mod audit;
pub mod auth;
pub mod authorize;
pub mod faults;
pub mod http;
pub mod journal;
pub mod kubeconfig;
pub mod managed;
pub mod proto;
pub mod request;
pub mod schema;
pub mod select;
pub mod status;
pub mod store;

mod admit;
mod custom;
mod defaults;
mod discovery;
mod event;
mod object;
mod openapi;
mod server;
mod strategic;
mod table;
mod validate;

pub use server::{
    Admission, Answer, ApiServer, BODY_BYTES_MAX, Body, Clock, OpenError, Options, Setup,
};
