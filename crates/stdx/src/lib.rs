//! The few helpers the standard library lacks. Knows nothing of Kubernetes.

pub mod catch_panic;
pub mod duration;
pub mod error_chain;
pub mod float;
pub mod hash;
pub mod rng;

pub use error_chain::ErrorChain;
pub use hash::{Map, Set};
pub use rng::Rng;
