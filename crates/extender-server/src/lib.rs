//! HTTP extenders written in Rust: the four verbs as functions, and the server around them.
//!
//! An extender is a program that a scheduler asks, by HTTP, about the nodes its own plugins left. kube-scheduler and Loadmaster
//! ask alike. This one keeps pods off nodes without a label and prefers nodes with a high number in it:
//!
//! ```no_run
//! use loadmaster_extender_server::{ExtenderServer, Rejection, ServeError};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ServeError> {
//!     ExtenderServer::new()
//!         .filter(|ask| {
//!             ask.filter_nodes(|_pod, node| match node.label("example.com/tier") {
//!                 Some(_) => Ok(()),
//!                 None => Err(Rejection::unresolvable("node(s) had no tier")),
//!             })
//!         })
//!         .prioritize(|ask| {
//!             ask.score_nodes(|_pod, node| node.label("example.com/tier")?.parse().ok())
//!         })
//!         .serve("127.0.0.1:8888")
//!         .await
//! }
//! ```
//!
//! A handler is a plain closure or one that returns a future; it answers a value, or a `Result` whose [`Error`] takes any error
//! with `?`. State is what the closure captures. A verb without a handler is not served.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`ask`](Ask) | the questions with their nodes, whole or by name, and the answers |
//! | [`server`](ExtenderServer) | which handlers there are, limits, TLS |
//! | `endpoints` | a request in, a response out: paths, bodies, panics, health, metrics |
//! | `serve` | sockets, and how they end |

#![warn(missing_docs)]

mod answer;
mod ask;
mod object;
mod preempt;

mod endpoints;
mod metrics;
mod serve;
mod server;
mod tls;

pub use answer::{Error, Outcome};
pub use ask::{Ask, Filtered, Nodes, Rejection};
pub use object::Object;
pub use preempt::{Candidate, PreemptAsk};
pub use serve::{Listening, ServeError};
pub use server::{Bounds, ExtenderServer, Reply};
pub use tls::{Tls, TlsError};

pub use loadmaster_extender::messages;
