//! HTTP extenders (`k8s.io/kube-scheduler/extender/v1`): programs that a scheduler asks, by HTTP, about the nodes that its own
//! plugins left.
//!
//! | module | |
//! | --- | --- |
//! | [`messages`] | what goes over the wire |
//! | [`ask`] | one call as a value, and its message |
//! | [`chain`] | who is asked, in which order, and what an answer or an error means |
//! | [`names`] | names of nodes, written once and found again in answers |
//! | [`objects`] | whole pods and nodes, as extenders are sent them |
//!
//! Sockets are elsewhere: the client that calls extenders, the engine that waits for them, and the library for people who write
//! one all stand on this crate.

#![warn(missing_docs)]

pub mod ask;
pub mod chain;
pub mod messages;
pub mod names;
pub mod objects;

pub use ask::{Answer, Ask, Question, Verb};
pub use chain::{Extender, Extenders, Filtering, NodeFailure, Preempting, Scores};
pub use names::{Left, NodeNames};
