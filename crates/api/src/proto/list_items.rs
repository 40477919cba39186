//! A list of any known kind, decoded object by object.

use super::wire::{self, RawList};
use super::{Envelope, Object, ProtoError, object, unexpected};

/// A list that has been opened but not decoded: a page may hold a hundred thousand objects, and the caller may
/// want to do other things in between.
pub struct ListItems<'a> {
    api_version: &'a str,
    kind: &'a str,
    list: RawList<'a>,
}

impl<'a> ListItems<'a> {
    /// Opens the envelope of a list.
    ///
    /// # Errors
    ///
    /// When it is malformed, or not a list.
    pub fn open(bytes: &'a [u8]) -> Result<ListItems<'a>, ProtoError> {
        let Envelope { api_version, kind, raw } = Envelope::open(bytes)?;
        let Some(kind) = kind.strip_suffix("List") else {
            return Err(unexpected(api_version, kind, "a list".to_owned()));
        };
        Ok(ListItems { api_version, kind, list: wire::list(raw)? })
    }

    /// The resourceVersion at which a watch continues.
    pub fn resource_version(&self) -> &'a str {
        self.list.resource_version
    }

    /// Asks for the next page; empty on the last one.
    pub fn continue_token(&self) -> &'a str {
        self.list.continue_token
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.list.items.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.list.items.is_empty()
    }

    /// The bare messages in their order.
    pub fn messages(&self) -> impl Iterator<Item = &'a [u8]> {
        self.list.items.iter().copied()
    }

    /// Decodes the objects in their order, each with its resource version.
    ///
    /// # Errors
    ///
    /// An item fails when it is malformed, or of a kind that is not known.
    pub fn decode(&self) -> impl Iterator<Item = Result<(Object, &'a str), ProtoError>> {
        self.list.items.iter().map(|raw| {
            let (resource_version, _) = wire::version(raw)?;
            Ok((object(self.api_version, self.kind, raw)?, resource_version))
        })
    }
}
