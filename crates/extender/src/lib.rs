//! HTTP extenders (`k8s.io/kube-scheduler/extender/v1`): webhooks that a scheduler calls with the nodes that its own plugins found
//! feasible.
//!
//! | module | |
//! | --- | --- |
//! | [`messages`] | the types of extender/v1 as JSON |
//! | [`request`] | a call to an extender, its request body, and its response |
//! | [`chain`] | which extenders are called, in which order, and what a response or an error means |
//! | [`node_names`] | names of nodes, encoded once for many requests and matched quickly in responses |
//! | [`objects`] | the JSON of whole pods and nodes in requests |
//!
//! This crate does no I/O. `loadmaster-client` calls extenders, `loadmaster-engine` waits for them, and
//! `loadmaster-extender-server`
//! is the library for writing an extender; all three use this crate.

#![warn(missing_docs)]

pub mod chain;
pub mod messages;
pub mod node_names;
pub mod objects;
pub mod request;

pub use chain::{Extender, ExtenderScores, Extenders, FilterChain, NodeFailure, PreemptChain};
pub use node_names::{NodeNames, RemainingNodes};
pub use request::{ExtenderOperation, ExtenderRequest, ExtenderResponse, Verb};
