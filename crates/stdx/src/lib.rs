//! The few helpers the standard library lacks. Knows nothing of Kubernetes.

pub mod caught;
pub mod chain;
pub mod duration;
pub mod float;
pub mod hash;
pub mod rng;

pub use chain::Chain;
pub use hash::{Map, Set};
pub use rng::Rng;
