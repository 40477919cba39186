//! An embedded Kubernetes API server.

pub mod store;
