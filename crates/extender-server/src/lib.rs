//! A library for HTTP extenders in Rust: handlers for the four verbs, and the HTTP server that calls them.
//!
//! An extender is a webhook that a scheduler calls with the nodes that its own plugins found feasible. kube-scheduler and
//! Loadmaster
//! call it in the same way. This one rejects nodes without a label and prefers nodes with a high number in it:
//!
//! ```no_run
//! use loadmaster_extender_server::{ExtenderServer, NodeRejection, ServeError};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ServeError> {
//!     ExtenderServer::new()
//!         .filter(|request| {
//!             request.filter_nodes(|_pod, node| match node.label("example.com/tier") {
//!                 Some(_) => Ok(()),
//!                 None => Err(NodeRejection::unresolvable("node(s) had no tier")),
//!             })
//!         })
//!         .prioritize(|request| {
//!             request.score_nodes(|_pod, node| node.label("example.com/tier")?.parse().ok())
//!         })
//!         .serve("127.0.0.1:8888")
//!         .await
//! }
//! ```
//!
//! A handler is a closure that returns a value, a `Result`, or a future of one of them; `?` converts any error into [`Error`].
//! State
//! is what the closure captures. A verb without a handler is not served.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`nodes_request`](NodesRequest) | the requests of filter and prioritize, with nodes or node names, and the responses |
//! | [`preemption_request`](PreemptionRequest) | the request of preempt |
//! | [`server`](ExtenderServer) | the builder: handlers, limits, TLS |
//! | `endpoints` | routing: paths, bodies, panics, health, metrics |
//! | `listener` | sockets, TLS files and graceful shutdown, with `loadmaster-serving` |

#![warn(missing_docs)]

mod handler_result;
mod nodes_request;
mod object;
mod preemption_request;

mod endpoints;
mod listener;
mod metrics;
mod server;
mod tls;

pub use handler_result::{Error, IntoHandlerResult};
pub use listener::{BoundServer, ServeError};
pub use nodes_request::{FilteredNodes, NodeRejection, NodesRequest, RequestNodes};
pub use object::Object;
pub use preemption_request::{CandidateNodeVictims, PreemptionRequest};
pub use server::{ExtenderServer, PageReply, RequestLimits};
pub use tls::{Tls, TlsError};

pub use loadmaster_extender::messages;
