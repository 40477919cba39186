//! HTTP extenders (`k8s.io/kube-scheduler/extender/v1`): programs that a scheduler asks, by HTTP, about the nodes that its own
//! plugins left.
//!
//! Sockets are elsewhere: the client that calls extenders and the library for people who write one both stand on this crate.

#![warn(missing_docs)]

pub mod messages;
