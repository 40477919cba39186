//! The few helpers the standard library lacks. Knows nothing of Kubernetes.

pub mod catch_panic;
pub mod duration;
pub mod erased;
pub mod error_chain;
pub mod float;
pub mod free_port;
pub mod hash;
pub mod json;
pub mod packed_list;
pub mod rng;
pub mod sort;
pub mod suggestion;

pub use erased::{Erased, ErasedSeed, decode_erased, decode_with};
pub use error_chain::ErrorChain;
pub use free_port::free_port;
pub use hash::{HashSeed, Map, Set};
pub use packed_list::PackedList;
pub use rng::Rng;
pub use sort::{CollectByInsertion, SortCompactly};
pub use suggestion::did_you_mean;
