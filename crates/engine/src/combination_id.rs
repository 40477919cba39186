//! Names of combinations of keys.

/// The id of a combination of keys; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CombinationId(pub u64);
