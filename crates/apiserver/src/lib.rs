//! An embedded Kubernetes API server.

pub mod proto;
pub mod schema;
pub mod store;
