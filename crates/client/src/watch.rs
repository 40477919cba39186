//! Keeps a picture of the cluster current: for each kind a list, then a watch, for ever.
//!
//! [`Machine`] decides what to ask next and what an answer means; it does no I/O and owns no clock. [`follow`] waits on its behalf.
//!
//! As client-go's reflector: the first list may be stale (resourceVersion 0), later ones are never older than what is known;
//! lists come as a stream where the server offers that, else in pages; a watch goes on where the last one ended; 410 leads to a
//! new list, and what is no longer there is told as [`Change::Gone`]. Two differences, both to spare the server: a watch that
//! breaks is resumed, not replaced by a list, and objects whose version is known already are not told again.

mod decode;
mod driver;
mod machine;

#[cfg(test)]
mod tests;

use loadmaster_api::proto::Object;
use loadmaster_api::{Raw, Str};

use crate::kinds::Kind;

pub(crate) use decode::{Keep, Page};
pub(crate) use driver::list_path;
pub use driver::{Follow, Following, Form, follow};
pub use machine::{Do, Ended, Failure, Item, Machine, News, Read};

/// What has changed in the cluster. Changes of one object come in their order; between kinds there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large variant")]
#[non_exhaustive]
pub enum Change {
    /// An object is new, or not as it was.
    Set {
        /// Its kind.
        kind: Kind,
        /// As it is now.
        object: Object,
        /// The bytes it was read from, when [`Follow::keep_raw`] asks for them.
        raw: Option<Raw>,
    },
    /// An object is gone, or no longer one of those asked for (a pod that has ended).
    Gone {
        /// Its kind.
        kind: Kind,
        /// Empty for kinds without namespaces.
        namespace: Str,
        /// Its name.
        name: Box<str>,
        /// Its uid: another object of this name may follow.
        uid: Box<str>,
    },
    /// All objects of the kind have been told. Comes again after each new list.
    Synced(Kind),
    /// The kind cannot be read. Comes again when the reason changes; asking goes on.
    Unavailable {
        /// Which kind.
        kind: Kind,
        /// Why.
        why: Unavailable,
    },
    /// The kind can be read again.
    Available(Kind),
}

/// Why a kind cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// Not allowed.
    Forbidden {
        /// What is not allowed, in words: `list pods in core at cluster scope`.
        rule: String,
    },
    /// The server does not have it.
    Absent,
    /// Anything else.
    Failing {
        /// What went wrong last.
        text: String,
    },
}
