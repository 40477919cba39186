//! Reflectors: list and then watch each kind, and send what changes as [`ReflectorEvent`]s.
//!
//! [`ReflectorState`] decides what to request next and what a response means; it does no I/O and owns no clock.
//! [`start_reflectors`] starts a task per kind that does the I/O.
//!
//! As client-go's reflector: the first list may be stale (resourceVersion 0), later ones are never older than what was observed;
//! lists are streamed where the server supports it (WatchList), else paged; a watch continues at the resourceVersion where the
//! last one ended; 410 leads to a relist, and objects that it does not contain are sent as [`ReflectorEvent::Delete`]. Two
//! differences, both to reduce the load on the server: a broken watch is resumed, with backoff, as long as the server is unavailable, and an
//! object whose resourceVersion was observed already is not sent again.

mod decode;
mod runner;
mod state;

#[cfg(test)]
mod tests;

use loadmaster_api::proto::Object;
use loadmaster_api::{RawObject, Str};

use crate::kinds::Kind;

pub(crate) use decode::{DecodeOptions, ListPage};
pub(crate) use runner::list_path;
pub use runner::{ObjectFormat, ReflectorOptions, Reflectors, start_reflectors};
pub use state::{
    DecodedObject, ListWatchError, ReflectorAction, ReflectorInput, ReflectorState,
    VersionedObject, WatchEnd,
};

/// A change of the observed objects or of the reflector itself. Events of one kind are in order; between kinds there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large variant")]
#[non_exhaustive]
pub enum ReflectorEvent {
    /// An object was added or updated.
    Upsert {
        /// Its kind.
        kind: Kind,
        /// The new object.
        object: Object,
        /// The bytes from which it was decoded, with [`ReflectorOptions::keep_raw`].
        raw: Option<RawObject>,
    },
    /// An object was deleted, or no longer matches the field selector (such as a pod that has Succeeded).
    Delete {
        /// Its kind.
        kind: Kind,
        /// Empty for kinds without namespaces.
        namespace: Str,
        /// Its name.
        name: Box<str>,
        /// Its uid: another object with this name may follow.
        uid: Box<str>,
    },
    /// All objects of the kind have been sent. Sent again after each relist.
    Synced(Kind),
    /// The kind cannot be listed or watched. Sent again when the reason changes; the reflector continues to retry.
    Unavailable {
        /// The kind.
        kind: Kind,
        /// The reason.
        why: KindUnavailableReason,
    },
    /// The kind can be listed and watched again.
    Available(Kind),
}

/// Why a kind cannot be listed or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KindUnavailableReason {
    /// RBAC does not allow it.
    Forbidden {
        /// The missing permission, such as `list pods in core at cluster scope`.
        rule: String,
    },
    /// The server does not serve the resource.
    NotServed,
    /// Another error.
    Failing {
        /// The last error.
        text: String,
    },
}
